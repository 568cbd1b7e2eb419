"""Sessions of a harness that does everything, on the tiny model: tokens as they were sampled."""

import asyncio
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import rollout_kit as rk
from rollout_kit.rl import check_tokens, score_with
from rollout_kit.rl.rows import read_group
from rollout_kit.trajectory import GENERATION, sequences

pytest.importorskip("ctranslate2")
if find_spec("anthropic") is None or find_spec("openai") is None:
    pytest.skip("needs openai and anthropic", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]


def write_config(folder: Path) -> Path:
    agent = {
        "entrypoint": "app.py",
        "resources_server": {"type": "resources_servers", "name": "string_match"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
        "function": f"{ROOT / 'tests/helpers/wild_harness.py'}:run",
    }
    model = {"entrypoint": "app.py", "return_token_ids": True}
    config = {
        "config_paths": [str(ROOT / "resources_servers/string_match/configs/string_match.yaml")],
        "wild": {"responses_api_agents": {"harness_agent": agent}},
        "policy_model": {"responses_api_models": {"local_model": model}},
    }
    path = folder / "wild.yaml"
    path.write_text(json.dumps(config))
    return path


async def collect(folder: Path, number: int) -> Any:
    rows = [
        {"responses_create_params": {"input": f"session {n}"}, "expected_answer": "3"}
        for n in range(number)
    ]
    async with rk.servers(write_config(folder)) as servers:
        output = folder / "rollouts.jsonl"
        await rk.collect(
            servers, rows, output=output, agent_name="wild", num_repeats=2, max_attempts=1
        )
        rollouts = list(rk.load(output))
        return rollouts, await check_tokens(rollouts, score_with(servers.peers, "policy_model"))


@pytest.mark.parametrize("number", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_every_sampled_token_is_trained_on_once_with_its_log_prob(
    number: int, tmp_path: Path
) -> None:
    rollouts, found = asyncio.run(collect(tmp_path, number))
    assert len(rollouts) == 2 * number
    num_calls = 0
    for rollout in rollouts:
        block, output = rollout.line["rollout"], rollout.response["output"]
        own = block["gateway"]["calls"] - block["gateway"]["side_calls"]
        assert sum(GENERATION in item for item in output) == own
        num_calls += own
        chains = block["gateway"].get("chains", [{}])
        assert len(sequences(output)) == len(chains), block["gateway"]
    assert (found.num_turns, found.matched) == (num_calls, num_calls)
    assert found.mismatched == 0 and found.worst < 1e-2 and not found.not_scored
    group = read_group([each for each in rollouts if each.key.task_id == rollouts[0].key.task_id])
    assert len(group.rows) == sum(len(each.sequences) for each in group.rollouts)
    for record in group.rollouts:
        assert {row.reward for row in record.rows} == {record.reward}
        assert {row.advantage for row in record.rows} == {record.advantage}
        sampled = sum(len(turn.generation_ids) for turn in record.turns)
        assert sum(sum(row.mask) for row in record.rows) == sampled
