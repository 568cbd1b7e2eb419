"""A training is predicted from recorded rollouts: queues by their closed forms, and the command."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support import write_jsonl

from rollout_kit.api.testing import run_virtual
from rollout_kit.commands import simulate_training
from rollout_kit.errors import ConfigError
from rollout_kit.rl.simulation.recording import (
    CallSpan,
    RecordedRollout,
    RecordedTurn,
    TokenSpeed,
    fit_speed,
    read_recording,
)
from rollout_kit.rl.simulation.replicas import SimulatedReplica
from rollout_kit.rl.simulation.training import TrainingSetup, predict
from rollout_kit.trajectory import ModelCall, pack_turns


async def play(replica: SimulatedReplica, calls: list[tuple[float, int]]) -> list[CallSpan]:
    """Calls at given times, with so many tokens each."""

    async def one(begin: float, tokens: int) -> CallSpan:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(begin)
        await replica.generate(tokens)
        return CallSpan(begin, loop.time(), tokens)

    return list(await asyncio.gather(*(one(*call) for call in calls)))


def list_ends(speed: TokenSpeed, places: int | None, calls: list[tuple[float, int]]) -> list[float]:
    async def main() -> list[CallSpan]:
        return await play(SimulatedReplica(speed, places), calls)

    return [span.end for span in run_virtual(main())]


def test_calls_wait_in_turn_for_a_place() -> None:
    assert list_ends(TokenSpeed(1), 1, [(0, 10), (1, 5), (2, 1)]) == pytest.approx([10, 15, 16])
    assert list_ends(TokenSpeed(1), 2, [(0, 10), (1, 5), (2, 1)]) == pytest.approx([10, 6, 7])


def test_sequences_slow_each_other_down() -> None:
    # Alone a token takes 1.5 s. From 3 s on both take 2 s: 4 tokens of the second until 11 s.
    assert list_ends(TokenSpeed(1, 0.5), None, [(0, 10), (3, 4)]) == pytest.approx([17, 11])


@pytest.mark.parametrize("places", [1, 3])
def test_the_speed_of_places_is_found_again(places: int) -> None:
    async def main() -> list[CallSpan]:
        calls = [(number * 0.7, 3 + number % 5) for number in range(60)]
        return await play(SimulatedReplica(TokenSpeed(0.5), places), calls)

    assert fit_speed(run_virtual(main()), places).alone_s == pytest.approx(0.5, rel=1e-6)


def test_the_speed_of_shared_replicas_is_found_again() -> None:
    async def main() -> list[CallSpan]:
        calls = [(number * 3.0, 30) for number in range(20)]
        calls += [(200.0 + number, 30) for number in range(40)]
        return await play(SimulatedReplica(TokenSpeed(0.2, 0.05)), calls)

    found = fit_speed(run_virtual(main()), None)
    assert found.alone_s == pytest.approx(0.2, rel=0.2)
    assert found.each_s == pytest.approx(0.05, rel=0.1)


def make_groups(number: int, size: int, tokens: int) -> list[list[RecordedRollout]]:
    return [
        [RecordedRollout((RecordedTurn(tokens, 0.0),), float(at % 2)) for at in range(size)]
        for _ in range(number)
    ]


def test_a_synchronous_step_takes_generation_and_training() -> None:
    setup = TrainingSetup(
        TokenSpeed(0.1),
        replicas=2,
        places=2,
        batch=4,
        group_size=5,
        staleness=0,
        step_s=7.0,
        steps=3,
    )
    found = predict(make_groups(3, 5, 10), setup)
    assert found.step_s == pytest.approx(4 * 5 * 10 * 0.1 / 4 + 7)  # 20 rollouts in 4 places
    assert found.rollouts_per_s == pytest.approx(20 / 12)
    assert found.staleness == {0: 12} and found.waste == {"trained on": 1.0}
    assert found.trainer_waits == pytest.approx(5 / 12)
    assert found.replicas_busy == pytest.approx(5 / 12)
    assert found.rollout_max_s == pytest.approx(5.0) and found.full_s == pytest.approx(0, abs=0.1)


def test_with_staleness_the_trainer_waits_for_nothing() -> None:
    setup = TrainingSetup(
        TokenSpeed(0.1), places=4, batch=4, group_size=5, staleness=1, step_s=7.0, steps=20
    )
    found = predict(make_groups(3, 5, 10), setup)
    assert found.step_s == pytest.approx(7, rel=0.05)
    assert set(found.staleness) <= {0, 1} and found.staleness[1] > 60


def test_groups_with_equal_rewards_are_waste() -> None:
    equal = [[RecordedRollout((RecordedTurn(10, 0.0),), 1.0)] * 4]
    setup = TrainingSetup(TokenSpeed(0.1), places=4, batch=2, group_size=4, staleness=0, steps=50)
    found = predict([*make_groups(1, 4, 10), *equal], setup)
    assert found.waste["zero variance"] == pytest.approx(0.5, abs=0.15)
    assert sum(found.waste.values()) == pytest.approx(1)
    assert predict([*make_groups(1, 4, 10), *equal], setup) == found


def test_a_training_that_drops_every_group_ends() -> None:
    equal = [[RecordedRollout((RecordedTurn(10, 0.0),), 1.0)] * 4]
    setup = TrainingSetup(
        TokenSpeed(0.1), batch=1, group_size=4, filters=("zero_variance",), steps=1
    )
    with pytest.raises(ConfigError, match=r"the buffer drops \d+ groups as zero_variance"):
        predict(equal, setup)


def write_rollouts(path: Path, number: int) -> Path:
    """Rollouts of two turns of 10 tokens, one after the other on a model with one place: each turn
    takes a second, the tool half of one."""
    lines: list[Any] = []
    for at in range(number):
        began = datetime.fromtimestamp(1_760_000_000 + 3 * at, UTC)
        calls = [
            ModelCall(to=1, start_s=0.0, model_s=1.0, tool_s=0.5, output=10),
            ModelCall(to=2, start_s=1.5, model_s=1.0, tool_s=0.0, output=10),
        ]
        block = {
            "task_id": f"{at // 4}",
            "scope": "",
            "rollout_index": at % 4,
            "started_at": began.isoformat().replace("+00:00", "Z"),
            "duration_s": 2.75,
            "verify_s": 0.25,
            "turns": pack_turns(calls),
        }
        reward, output = float(at % 2), {"output": []}
        line = {"agent_ref": {"name": "a"}, "reward": reward, "response": output, "rollout": block}
        lines.append(line)
    return write_jsonl(path, lines)


def test_the_command_predicts_from_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_rollouts(tmp_path / "rollouts.jsonl", 24)
    words = [f"+input_jsonl_fpath={path}", "+places=1", "+batch=2", "+staleness=0", "+step_s=1"]
    words += ["+steps=4", "+num_samples_in_parallel=1", "+replica_usd=3.6"]
    assert simulate_training.main([*words, "+json=true"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["recording"]["token_s"] == pytest.approx(0.1)
    assert (found["recording"]["num_rollouts"], found["recording"]["num_groups"]) == (24, 6)
    assert found["step_s"] == pytest.approx(8 * 2.75 + 1)  # one after the other
    assert found["rollout_p95_s"] == pytest.approx(2.75)
    assert found["cost_usd"] == pytest.approx(found["elapsed_s"] / 1000)
    assert simulate_training.main(words) == 0
    said = capsys.readouterr().out
    assert "a step: 23.0 s; 0.35 rollouts/s and 7 tokens/s are trained on" in said
    assert "tokens: trained on 100.0%" in said and "cost: $0.09 for 4 steps" in said
    assert "recorded: 24 rollouts in 6 groups" in said and "has more" not in said


def test_a_file_that_is_not_read_to_its_end_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_rollouts(tmp_path / "rollouts.jsonl", 25)
    words = [f"+input_jsonl_fpath={path}", "+places=1", "+batch=2", "+steps=2", "+step_s=1"]
    for limit, is_cut in ((24, True), (25, False)):
        assert simulate_training.main([*words, f"+limit={limit}", "+json=true"]) == 0
        found = json.loads(capsys.readouterr().out)["recording"]
        assert (found["num_rollouts"], found["is_cut"]) == (limit, is_cut)
    assert simulate_training.main([*words, "+limit=24"]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("recorded: the first 24 rollouts in 6 groups")
    assert second == "the file has more rollouts: +limit= reads as many as you say"


def test_a_recording_that_says_too_little_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="4 rollouts; 20 are needed"):
        read_recording(write_rollouts(tmp_path / "few.jsonl", 4))
