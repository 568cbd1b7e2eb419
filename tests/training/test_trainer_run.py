"""Servers in a trainer's process that ask the trainer's own engine."""

import asyncio
import json
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from trainer_engine import CHECKPOINT, PlayedEngine

from rollout_kit import load
from rollout_kit.errors import ConfigError, StopRun, VerifyError
from rollout_kit.rl import read_group
from rollout_kit.rl.adapters.engine import Sampled, TrainerEngine
from rollout_kit.rl.adapters.trainer_run import TrainerRun, read_outcome, read_sequence
from rollout_kit.types import Rollout, Unverified

DATA = CHECKPOINT.parent / "data"
CONFIGS = [
    "responses_api_models/trainer_model/configs/trainer_model.yaml",
    "resources_servers/math_with_verify/configs/math_with_verify.yaml",
    "resources_servers/calculator/configs/calculator.yaml",
]


def rows_of(name: str, number: int) -> list[Any]:
    lines = (DATA / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[:number]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def roll_out(
    rows: list[Any], engine: TrainerEngine, folder: Path, **keys: Any
) -> list[Rollout | BaseException]:
    async def main() -> list[Rollout | BaseException]:
        run = TrainerRun(engine, keys.pop("configs", CONFIGS), output_dir=folder, **keys)
        try:
            return await asyncio.gather(*map(run.roll_out, rows), return_exceptions=True)
        finally:
            await run.close()

    return asyncio.run(main())


@pytest.mark.parametrize("agents", ["here", "elsewhere"])
def test_what_is_stored_is_what_the_engine_sampled(tmp_path: Path, agents: str) -> None:
    """Several turns with tools, equal rows, over HTTP where the agents are other processes."""
    rows = [*rows_of("tool", 2), *rows_of("arithmetic", 2), rows_of("tool", 1)[0]]
    key = "responses_api_agents.simple_agent.placement=process"
    place = [f"++{row['agent_ref']['name']}.{key}" for row in (rows[0], rows[2])]
    played = PlayedEngine()
    overrides = place if agents == "elsewhere" else []
    given = roll_out(rows, played.with_tokenizer(), tmp_path, overrides=overrides)
    assert all(isinstance(each, Rollout) for each in given), given
    stored = list(load(next(tmp_path.glob("rollouts_*.jsonl"))))
    lines = sorted(json.dumps(each.line, sort_keys=True) for each in given)  # type: ignore[union-attr]
    assert lines == sorted(json.dumps(each.line, sort_keys=True) for each in stored)
    by_session = defaultdict(list)
    for prompt, sampling, session, sampled in played.asked:
        assert sampling == {"temperature": 1.0}
        by_session[session].append((prompt, sampled))
    turns = [
        [
            (one.prompt_ids, one.generation_ids, one.log_probs, one.finish_reason, one.versions)
            for one in read_group([rollout]).rollouts[0].turns
        ]
        for rollout in stored
    ]
    assert sorted(turns) == sorted(
        [(ids, one.token_ids, one.log_probs, one.finish_reason, one.versions) for ids, one in each]
        for each in by_session.values()
    )
    assert max(map(len, turns)) >= 2
    for rollout, row in zip(given, rows, strict=True):
        assert isinstance(rollout, Rollout)
        assert read_sequence(rollout).versions == rollout.versions
        question = rollout.line["responses_create_params"]["input"]
        assert question == row["responses_create_params"]["input"]


def test_a_later_turn_continues_what_was_sampled(tmp_path: Path) -> None:
    """Also where the text would be tokenized otherwise."""
    played, calls = PlayedEngine(), []
    engine = played.with_tokenizer()
    says = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    [end] = engine.tokenizer.all_special_ids[:1]
    spelled = [each for letter in says for each in engine.encode(letter)]

    async def generate(prompt: list[int], sampling: Any, session: str) -> Sampled:
        calls.append(prompt)
        said = spelled if len(calls) == 1 else engine.encode("3")
        return Sampled([*said, end], [-0.5] * (len(said) + 1), "stop")

    assert len(spelled) > len(engine.encode(says))
    [rollout] = roll_out(rows_of("tool", 1), TrainerEngine(generate, engine.tokenizer), tmp_path)
    first, second = calls
    assert second[: len(first) + len(spelled) + 1] == [*first, *spelled, end]
    assert isinstance(rollout, Rollout)
    assert len(read_sequence(rollout).turns) == 2
    assert rollout.versions is None


def test_it_runs_in_a_thread_too(tmp_path: Path) -> None:
    """The event loops of Ray's actors and of some trainers are not in the main thread."""
    with ThreadPoolExecutor(1) as pool:
        arguments = (rows_of("arithmetic", 2), PlayedEngine().with_tokenizer(), tmp_path)
        found = pool.submit(roll_out, *arguments).result()
    assert all(isinstance(each, Rollout) for each in found), found


def test_a_slow_verdict_is_waited_for(tmp_path: Path) -> None:
    """Its response is yielded before; without a verdict it counts as failed."""
    rows = rows_of("arithmetic", 1)
    [rollout] = roll_out(rows, PlayedEngine().with_tokenizer(), tmp_path)
    assert isinstance(rollout, Rollout)
    early = Unverified(rollout.info, rollout.line)
    late = Unverified(rollout.info, rollout.line, VerifyError("it is broken"))
    assert read_outcome(early) is None and read_outcome(rollout) is rollout
    with pytest.raises(StopRun, match="it is broken"):
        read_outcome(late)

    async def main() -> Rollout:
        run = TrainerRun(None, CONFIGS)
        found = asyncio.get_running_loop().create_future()
        run._waiting[rollout.key.task_id, rollout.key.agent].append(found)
        run._settle(early)
        assert not found.done()
        run._settle(rollout)
        return await found

    assert asyncio.run(main()) is rollout


def test_what_goes_wrong_is_said(tmp_path: Path) -> None:
    played = PlayedEngine()

    async def broken(prompt: list[int], sampling: Any, session: str) -> Sampled:
        return Sampled([1, 2], [-0.5], "stop")

    rows = rows_of("arithmetic", 1)
    [error] = roll_out(rows, TrainerEngine(broken, played.with_tokenizer().tokenizer), tmp_path)
    assert isinstance(error, StopRun) and "2 token ids and 1 log-probs" in str(error)
    local = ["responses_api_models/local_model/configs/local_model.yaml", CONFIGS[1]]
    [error] = roll_out(rows, played.with_tokenizer(), tmp_path, configs=local)
    assert isinstance(error, ConfigError) and "must be a trainer_model" in str(error)
    [error] = roll_out([{"agent_ref": {"name": "no"}}], played.with_tokenizer(), tmp_path)
    assert isinstance(error, ConfigError) and "unknown agent 'no'" in str(error)
    with pytest.raises(ConfigError, match="num_repeats: a trainer asks for each rollout"):
        TrainerRun(None, CONFIGS, num_repeats=4)
