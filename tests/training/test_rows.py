"""Records and rows of rollouts for trainers, and the check of their log-probs."""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest
from command import as_function

from rollout_kit.errors import ModelError
from rollout_kit.responses import message_item
from rollout_kit.rl import (
    BatchAlarms,
    CheckpointManager,
    add_reference,
    check_tokens,
    measure_batch,
    read_group,
)
from rollout_kit.rl.checking import format_check
from rollout_kit.rl.scoring import keep_scores
from rollout_kit.store.lines import rollout_of
from rollout_kit.store.notes.token_scores import read_token_scores, write_token_scores
from rollout_kit.types import GroupScore

collect = as_function("ng_collect_rollouts")
command = as_function("ng_check_tokens")

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "responses_api_models/local_model/data"
CHECKPOINT = ROOT / "responses_api_models/local_model/checkpoint"


def turn(prompt: dict[str, Any], generation: list[int], version: int | None, **more: Any) -> Any:
    known = {} if version is None else {"policy_version_first": version}
    log_probs = [-0.5] * len(generation)
    ids = {"generation_token_ids": generation, "generation_log_probs": log_probs}
    return {"type": "message", **prompt, **ids, **known, **more}


def line(index: int, reward: float | None, output: list[Any], **more: Any) -> dict[str, Any]:
    block = {"task_id": "t", "scope": "", "rollout_index": index, "scores": ["length"]}
    given = {"agent_ref": {"name": "a"}, "length": 3, "rollout": {**block, **more}}
    return {
        **given,
        **({} if reward is None else {"reward": reward}),
        "response": {"output": output},
    }


CONTINUED = [
    turn({"prompt_token_ids": [1, 2]}, [3, 4], 5, generation_temperature=0.7),
    {"type": "function_call_output"},
    turn({"prompt_suffix_token_ids": [6]}, [7], 6, generation_stopped_by="length"),
    turn({"prompt_token_ids": [8], "prompt_restart": "…"}, [9], None),
]


def test_a_group_becomes_typed_records_and_rows() -> None:
    group = read_group([line(0, 1.0, CONTINUED), line(1, 0.0, CONTINUED[:1]), line(2, None, [])])
    assert group.group_id == "t/a" and group.versions == (5, 6)
    first, second, unscored = group.rollouts
    assert first.advantage == pytest.approx(1) and second.advantage == pytest.approx(-1)
    assert (unscored.advantage, unscored.rows, unscored.reward) == (0, [], None)
    assert first.components == {"length": 3}
    turns = [(each.prompt_ids, each.generation_ids, each.finish_reason) for each in first.turns]
    assert turns == [
        ([1, 2], [3, 4], "stop"),
        ([1, 2, 3, 4, 6], [7], "length"),
        ([8], [9], "stop"),
    ]
    continued, forked = first.rows
    assert continued.token_ids == [1, 2, 3, 4, 6, 7]
    assert continued.mask == [0, 0, 1, 1, 0, 1]
    assert continued.log_probs == [0, 0, -0.5, -0.5, 0, -0.5]
    assert continued.temperatures == [1, 1, 0.7, 0.7, 1, 1]
    assert continued.versions == [-1, -1, 5, 5, -1, 6] and forked.versions == [-1, -1]
    spans = {"policy_version_last": 6, "policy_version_spans": [[0, 1, 5], [1, 3, 6]]}
    spanning = turn({"prompt_token_ids": [1]}, [2, 3, 4], 5, **spans)
    [record] = read_group([line(0, 1.0, [spanning])]).rollouts
    assert record.rows[0].versions == [-1, 5, 6, 6]
    assert record.turns[0].version_spans == [(0, 1, 5), (1, 3, 6)]
    assert len(group.rows) == 3 and {row.group_id for row in group.rows} == {"t/a"}


def test_the_reward_of_a_scored_group_counts() -> None:
    scored = [
        rollout_of(line(index, 0.0, CONTINUED), GroupScore(reward, {"rank": reward}, {}))
        for index, reward in enumerate((3.0, 1.0))
    ]
    records = read_group(scored, method="dr_grpo").rollouts
    assert [(each.reward, each.advantage) for each in records] == [(3, 1), (1, -1)]
    assert records[0].components == {"rank": 3, "length": 3}


def test_log_probs_that_are_missing_are_named() -> None:
    broken = turn({"prompt_token_ids": [1]}, [2, 3], 1, generation_log_probs=[-0.5])
    with pytest.raises(ValueError, match="t/a, rollout 4: log-probs are missing"):
        read_group([line(4, 1.0, [broken])])


def test_differences_are_counted_and_turns_that_span_an_update_apart() -> None:
    async def score(ids: list[int], temperature: float, version: int | None) -> list[float]:
        if version == 9:
            raise ModelError("version 9 of the weights is gone")
        return [-0.5 if version == 5 else -2.0] * (len(ids) - 1)

    def one(version: int, last: int) -> Any:
        return turn({"prompt_token_ids": [1]}, [2, 3], version, policy_version_last=last)

    output = [one(5, 5), one(6, 6), one(5, 6), one(9, 9)]
    output.append({**one(5, 6), "policy_version_spans": [[0, 1, 5], [1, 2, 6]]})
    output.append({**one(5, 9), "policy_version_spans": [[0, 1, 5], [1, 2, 9]]})
    found = asyncio.run(check_tokens([rollout_of(line(0, 1.0, output))], score))
    assert (found.num_turns, found.matched, found.mismatched, found.spanning) == (6, 3, 1, 3)
    assert (found.num_behind, found.matched_behind) == (2, 0)
    assert (found.worst, found.spanning_worst) == (1.5, 1.5)
    assert found.not_scored == {"version 9 of the weights is gone": 2}
    assert "behind it 0 of 2 spans have" in format_check(found.to_json())


def test_scores_of_another_policy_are_kept_beside_the_rollouts(tmp_path: Path) -> None:
    async def score(ids: list[int], temperature: float, version: int | None) -> list[float]:
        assert version is None
        if len(ids) > 3:
            raise ModelError("too long")
        return [-float(token) for token in ids[1:]]

    output = [turn({"prompt_token_ids": [1]}, [2, 3], 1), message_item("no tokens")]
    output.append(turn({"prompt_token_ids": [1, 7, 8]}, [4], 1))
    rollout = rollout_of(line(0, 1.0, output))
    path = tmp_path / "out.jsonl"
    for policy in ("reference", "reference", "version 4"):
        found = asyncio.run(keep_scores(path, [rollout], score, policy))
    assert found == {"rollouts": 1, "scored": 1, "not_scored": 1}
    said = format_check(found)
    assert said == "1 turns of 1 rollouts are scored and kept; 1 could not be scored"
    kept = read_token_scores(path, rollout.key)
    assert kept == {policy: {"0": [-2.0, -3.0], "2": None} for policy in ("reference", "version 4")}
    assert read_token_scores(path, rollout.key._replace(rollout_index=9)) == {}
    quoted = rollout.key._replace(task_id='a "b" \\c')
    write_token_scores(path, quoted, "other", {0: [-1.0]})
    assert read_token_scores(path, quoted) == {"other": {"0": [-1.0]}}


def test_a_reference_gives_log_probs_and_kl_of_the_sampled_tokens() -> None:
    async def score(ids: Any, temperature: float, version: int | None) -> list[float]:
        assert version is None and temperature == (0.7 if len(ids) > 2 else 1)
        return [-0.5 if token == 3 else -1.5 for token in ids[1:]]

    rows = read_group([line(0, 1.0, CONTINUED)]).rows
    first, second = asyncio.run(add_reference(rows, score))
    assert first.log_probs == [0, 0, -0.5, -1.5, 0, -1.5] and second.log_probs == [0, -1.5]
    assert first.kl == pytest.approx([0, 0, 0, math.exp(-1), 0, math.exp(-1)])


def test_a_batch_is_measured_by_the_names_of_trainers() -> None:
    mixed = read_group([line(0, 1.0, CONTINUED), line(1, 0.0, CONTINUED[:1])])
    alike = read_group([line(0, 1.0, CONTINUED[:1], finish_reason="max_output_tokens")])
    found = measure_batch([mixed, alike], version=8, seconds=2.0)
    assert found["reward/mean"] == pytest.approx(2 / 3) and found["reward/min"] == 0
    assert found["group/zero_variance_frac"] == 0.5 == found["policy/mixed_version_frac"]
    assert (found["staleness/max"], found["weights/sync_lag"]) == (3, 2)
    assert found["length/truncated_frac"] == pytest.approx(1 / 3)
    assert found["throughput/tokens_per_sec"] == 4 and found["logprob/mean_nll"] == 0.5
    assert measure_batch([]) == {"group/n": 0, "rollout/n": 0}


def test_throughput_counts_the_seconds_of_sampling_not_those_of_waiting() -> None:
    """The trainer waited for 10 µs, as the batch was ready. Between the two groups nothing ran."""

    def at(second: int, duration_s: float, index: int) -> dict[str, Any]:
        started = f"2026-11-26T20:00:{second:02}.000Z"
        block = {"started_at": started, "duration_s": duration_s, "verify_s": 1.0}
        return line(index, float(index), CONTINUED, **block)

    groups = [read_group([at(0, 3, 0), at(1, 3, 1)]), read_group([at(30, 4, 0), at(30, 2, 1)])]
    found = measure_batch(groups, seconds=1e-5)
    assert found["throughput/tokens_per_sec"] == pytest.approx(16 / (3 + 3))
    assert found["throughput/rollouts_per_sec"] == pytest.approx(4 / (3 + 3))


def test_alarms_begin_after_some_batches_in_a_row_and_are_said_once() -> None:
    alarms = BatchAlarms()
    bad = {"group/zero_variance_frac": 0.9, "policy/entropy": 0.001, "kl/mean": math.nan}
    [first], second = alarms.check(bad), alarms.check(bad)
    assert first.startswith("kl/mean is nan: stop") and second == []
    collapse, entropy = alarms.check(bad)
    assert collapse.startswith("group/zero_variance_frac is 0.9, above 0.8 in 3 batches: reward")
    assert "policy/entropy is 0.001, below 0.01" in entropy
    assert alarms.check(bad) == alarms.check({"group/zero_variance_frac": 0.1}) == []
    assert len([each for _ in range(3) for each in alarms.check(bad)]) == 1


def test_the_policy_finds_the_log_probs_that_it_sampled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the command, with the versions that a trainer has written."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    steps, out = tmp_path / "steps", tmp_path / "out.jsonl"
    servers = [
        f"+config_paths=[{ROOT}/configs/demo.yaml]",
        "++policy_model.responses_api_models.local_model.return_token_ids=true",
        f"++policy_model.responses_api_models.local_model.weight_sync.path={steps}",
    ]

    def write(version: int) -> None:
        with CheckpointManager(steps, base=CHECKPOINT).write(version) as folder:
            raw = bytearray((CHECKPOINT / "model.safetensors").read_bytes())
            if version > 1:
                raw[-256:-128] = bytes(128)  # of the last tensor
            (folder / "model.safetensors").write_bytes(raw)

    def run(main: Any, *words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main([*servers, *words])
        return int(ended.value.code or 0), capsys.readouterr().out

    for version in (1, 2):
        write(version)
        asked = [f"+input_jsonl_fpath={DATA}/demo.jsonl", f"+output_jsonl_fpath={out}"]
        limits = [f"+limit={24 * version}", "+responses_create_params.temperature=1.3"]
        assert run(collect, *asked, *limits)[0] == 0
    status, text = run(command, f"+input_jsonl_fpath={out}", "+json=true")
    found = json.loads(text)
    assert status == 0 and found["mismatched"] == found["without_version"] == 0
    assert found["num_turns"] == found["matched"] >= 48 and found["worst"] < 1e-3
    lines = [json.loads(each) for each in out.read_text().splitlines()]
    assert {each["rollout"]["version_last"] for each in lines} == {1, 2}
    for item in lines[0]["response"]["output"]:
        if "generation_log_probs" in item:
            item["generation_log_probs"][0] -= math.log(2)
    out.write_text("".join(json.dumps(each) + "\n" for each in lines))
    status, text = run(command, f"+input_jsonl_fpath={out}")
    assert status == 1 and "differ by more than 0.01; largest difference 6.9e-01" in text
