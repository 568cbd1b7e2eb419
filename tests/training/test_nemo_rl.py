"""NeMo-RL's calls, on the package that stands in for NeMo Gym."""

import asyncio
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollout_kit import load
from rollout_kit.errors import ConfigError
from rollout_kit.rl.adapters.nemo_rl import STAND_IN, RunHelper
from rollout_kit.trajectory import sequences

DATA = Path(__file__).parents[2] / "responses_api_models/local_model/data"


@pytest.fixture
def gym(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a module of `nemo_gym`, as an actor of NeMo-RL does."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(STAND_IN))
    yield lambda name: importlib.import_module(f"nemo_gym.{name}")
    for name in [each for each in sys.modules if each.split(".")[0] == "nemo_gym"]:
        del sys.modules[name]
    RunHelper().shutdown()


def test_rows_come_back_with_whole_prompts(tmp_path: Path, gym: Any) -> None:
    from omegaconf import DictConfig

    servers = ["math_with_verify", "calculator"]
    values = {
        "config_paths": [
            "responses_api_models/local_model/configs/local_model.yaml",
            *(f"resources_servers/{name}/configs/{name}.yaml" for name in servers),
        ],
        "policy_model_name": "tiny",
        "policy_api_key": "dummy_key",
        "policy_base_url": ["http://127.0.0.1:9/v1"],
        "default_host": "10.0.0.1",
        "port_range_low": 5000,
        "ray_head_node_address": "10.0.0.1:6379",
        "global_aiohttp_connector_limit": 65536,
        "head_server": {"host": "0.0.0.0", "port": 5003},
        "policy_model": {
            "responses_api_models": {
                "local_model": {"return_token_ids": True, "model_name": "${policy_model_name}"}
            }
        },
        "rollouts_dir": str(tmp_path),
    }
    rows = []
    for name in ("arithmetic", "tool"):
        lines = (DATA / f"{name}.jsonl").read_text().splitlines()
        rows += [json.loads(line) for line in lines[:2]]
    for number, row in enumerate(rows):
        row["_rowidx"] = number
        row["responses_create_params"] |= {"temperature": 1.0, "top_p": 1.0}

    async def main() -> list[Any]:
        cli, server_utils = gym("cli"), gym("server_utils")
        helper = cli.RunHelper()
        helper.start(
            global_config_dict_parser_config=cli.GlobalConfigDictParserConfig(
                dotenv_path=tmp_path / "env.yaml",
                initial_global_config_dict=DictConfig(values),
                skip_load_from_cli=True,
            )
        )
        helper.poll()
        head = server_utils.BaseServerConfig(host="10.0.0.1", port=5003)
        collection = gym("rollout_collection").RolloutCollectionHelper()
        found = [
            await task for task in collection.run_examples(examples=rows, head_server_config=head)
        ]
        bad = [{**rows[0], "agent_ref": {"name": "nobody"}}]
        with pytest.raises(ConfigError, match="unknown agent 'nobody'"):
            await next(collection.run_examples(examples=bad))
        return found

    found = sorted(asyncio.run(main()), key=lambda pair: pair[0]["_rowidx"])
    assert [row for row, _ in found] == rows
    stored = list(load(next(tmp_path.glob("rollouts_*.jsonl"))))
    assert sorted(each.reward or 0 for each in stored) == sorted(
        each["reward"] for _, each in found
    )
    assert gym("global_config").get_global_config_dict().policy_model_name == "tiny"
    for row, result in found:
        assert result["responses_create_params"] == row["responses_create_params"]
        items = [item for item in result["response"]["output"] if "generation_token_ids" in item]
        seen: list[int] = []
        for item in items:
            assert item["prompt_token_ids"][: len(seen)] == seen
            assert "prompt_suffix_token_ids" not in item
            assert len(item["generation_log_probs"]) == len(item["generation_token_ids"])
            seen = item["prompt_token_ids"] + item["generation_token_ids"]
        assert seen == sequences(result["response"]["output"])[0].token_ids
    assert any(len(result["response"]["output"]) > 2 for _, result in found)
