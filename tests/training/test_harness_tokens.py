"""Sessions of a harness that does everything, on the tiny model: tokens as they were sampled."""

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import rollout_kit as rk
from rollout_kit.rl import check_tokens, score_with
from rollout_kit.rl.rows import GroupRecord, read_group
from rollout_kit.serving import registry
from rollout_kit.trajectory import GENERATION, LOG_PROBS, RESTART, sequences
from rollout_kit.types import JsonObject

pytest.importorskip("ctranslate2")
if find_spec("anthropic") is None or find_spec("openai") is None:
    pytest.skip("needs openai and anthropic", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]

LocalModel: Any = registry.load("responses_api_models", "local_model")

MEMBERS = 4

MOST_PROMPT_TOKENS = 8_000


class LoggingConfig(LocalModel.Config):
    return_token_ids: bool = True
    num_threads: int = 2


class LoggingModel(LocalModel):
    """`log` has the number of prompt tokens, the sampled tokens and the log-probs of each call."""

    Config = LoggingConfig
    log: list[tuple[int, tuple[int, ...], tuple[float, ...]]]

    async def responses(self, params: JsonObject) -> JsonObject:
        response = await super().responses(params)
        last = response["output"][-1]
        number = response["usage"]["input_tokens"]
        self.log.append((number, tuple(last[GENERATION]), tuple(last[LOG_PROBS])))
        return response


def write_config(folder: Path) -> Path:
    agent = {
        "entrypoint": "app.py",
        "resources_server": {"type": "resources_servers", "name": "string_match"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
        "function": f"{ROOT / 'tests/helpers/wild_harness.py'}:run",
    }
    config = {
        "config_paths": [str(ROOT / "resources_servers/string_match/configs/string_match.yaml")],
        "wild": {"responses_api_agents": {"harness_agent": agent}},
    }
    path = folder / "wild.yaml"
    path.write_text(json.dumps(config))
    return path


async def collect(folder: Path, number: int, model: type[LoggingModel]) -> Any:
    rows = [
        {"responses_create_params": {"input": f"session {n}"}, "expected_answer": "42"}
        for n in range(number // MEMBERS)
    ]
    async with rk.servers(write_config(folder), model=model) as servers:
        output = folder / "rollouts.jsonl"
        await rk.collect(
            servers, rows, output=output, agent_name="wild", num_repeats=MEMBERS, max_attempts=1
        )
        rollouts = list(rk.load(output))
        return rollouts, await check_tokens(rollouts, score_with(servers.peers, "policy_model"))


@pytest.mark.parametrize("number", [4, pytest.param(1000, marks=pytest.mark.slow)])
def test_every_sampled_token_is_trained_on_once_with_its_log_prob(
    number: int, tmp_path: Path, record_property: Callable[[str, Any], None]
) -> None:
    model = type("Model", (LoggingModel,), {"log": []})
    rollouts, found = asyncio.run(collect(tmp_path, number, model))
    assert len(rollouts) == number
    num_own, num_all = 0, 0
    for rollout in rollouts:
        block, output = rollout.line["rollout"], rollout.response["output"]
        own = block["gateway"]["calls"] - block["gateway"]["side_calls"]
        assert sum(GENERATION in item for item in output) == own
        num_own, num_all = num_own + own, num_all + block["gateway"]["calls"]
        chains = block["gateway"].get("chains", [{}])
        # a chain is one sequence: no turn was tokenized again
        whys = [item[RESTART] for item in output if RESTART in item]
        assert whys == [chain["why"] for chain in chains if "why" in chain]
        assert len(sequences(output)) == len(chains), block["gateway"]
    record_property("calls", num_all)
    record_property("tokens", found.num_tokens)
    record_property("worst", found.worst)
    assert (found.num_turns, found.matched) == (num_own, num_own)
    assert found.mismatched == 0 and found.worst < 1e-2 and not found.not_scored
    groups: dict[str, list[Any]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.key.task_id, []).append(rollout)
    assert {len(members) for members in groups.values()} == {MEMBERS}
    records = [read_group(members) for members in groups.values()]
    check_log(records, model.log, num_all)
    for record in records:
        check_advantages(record)


def check_log(records: list[GroupRecord], log: list[Any], num_all: int) -> None:
    """The rows have what the model has sampled, all of it but the side calls, and nothing else."""
    assert len(log) == num_all
    turns = [turn for group in records for each in group.rollouts for turn in each.turns]
    rows = Counter(
        (len(turn.prompt_ids), tuple(turn.generation_ids), tuple(turn.log_probs)) for turn in turns
    )
    assert rows <= Counter(log)
    assert max(len(turn.prompt_ids) for turn in turns) <= MOST_PROMPT_TOKENS


def check_advantages(group: GroupRecord) -> None:
    """As computed by hand: all rows of a rollout have its distance to the mean of the group, in
    standard deviations, for what it sampled."""
    rewards = [each.reward or 0.0 for each in group.rollouts]
    mean = sum(rewards) / MEMBERS
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / MEMBERS)
    assert len(group.rows) == sum(len(each.sequences) for each in group.rollouts)
    for record in group.rollouts:
        by_hand = 0.0 if deviation == 0 else ((record.reward or 0.0) - mean) / deviation
        for row in record.rows:
            assert row.reward == record.reward
            assert row.advantage == pytest.approx(by_hand, abs=1e-6)
        sampled = sum(len(turn.generation_ids) for turn in record.turns)
        assert sum(sum(row.mask) for row in record.rows) == sampled
