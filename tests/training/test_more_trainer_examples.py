"""The examples of SkyRL and OpenRLHF as far as a CPU goes (`make test-trainers`), and those of
trainers that are on no registry: their settings have known names, and their environments start."""

import asyncio
import importlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from rollout_kit.commands import package_environment
from rollout_kit.rl.adapters.nemo_rl import STAND_IN, RunHelper

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
DATA = ROOT / "responses_api_models/local_model/data"
KEYS = Path(__file__).parent / "peer_keys"


def run(script: str, *words: str) -> str:
    command = [sys.executable, str(EXAMPLES / script), *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.trainers
@pytest.mark.parametrize("trainer", ["skyrl", "openrlhf"])
def test_the_trainer_reads_the_example_and_computes_a_loss(trainer: str, tmp_path: Path) -> None:
    pytest.importorskip(trainer)
    run("trainer_data.py", trainer, str(tmp_path))
    said = run(f"{trainer}/check.py", "--folder", str(tmp_path))
    assert "are known; data: 960 tasks" in said
    assert "32 rollouts" in said
    [loss] = re.findall(r"loss ([+-]\d\.\d+)", said)
    assert abs(float(loss)) < 0.1  # the advantages of a group add up to 0


def list_names(settings: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted names of settings. Items of a list have the name of the list."""
    for key, value in settings.items():
        name = f"{prefix}{key}"
        yield name
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                yield from list_names(each, f"{name}.")


def read_keys(name: str) -> set[str]:
    lines = (KEYS / name).read_text().splitlines()
    return {line for line in lines if not line.startswith("#")}


def test_all_settings_of_nemo_rl_are_known() -> None:
    settings: Any = OmegaConf.to_container(OmegaConf.load(EXAMPLES / "nemo_rl/grpo.yaml"))
    assert settings.pop("defaults").endswith("RL/examples/configs/grpo_math_1B.yaml")
    del settings["env"]["nemo_gym"]  # which is ours
    assert set(list_names(settings)) <= read_keys("nemo_rl.txt")
    assert settings["policy"]["train_global_batch_size"] == (
        settings["grpo"]["num_prompts_per_step"] * settings["grpo"]["num_generations_per_prompt"]
    )


def test_all_settings_of_prime_rl_are_known(tmp_path: Path) -> None:
    """The environments are those that the package's own evaluation names, which verifiers reads."""
    settings = tomllib.loads((EXAMPLES / "prime_rl/rl.toml").read_text())
    orchestrator = settings["orchestrator"]
    assert orchestrator["batch_size"] % orchestrator["group_size"] == 0
    words = ["+environment=math_with_verify", f"+output_dir={tmp_path}/sums", "+model_name=tiny"]
    words += [f"+input_jsonl_fpath={DATA}/arithmetic.jsonl", "+base_url=http://127.0.0.1:8000/v1"]
    assert package_environment.main([*words, "+api_key_var=NO_KEY"]) == 0
    expected = tomllib.loads((tmp_path / "sums/eval.toml").read_text())["env"]
    for part in ("train", "eval"):
        [source] = orchestrator[part]["source"]
        assert source.pop("env") == expected
    assert set(list_names(settings)) <= read_keys("prime_rl.txt")


def test_the_environments_of_nemo_rl_start_as_its_actor_starts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the tiny model in place of NeMo-RL's vLLM."""
    pytest.importorskip("ctranslate2")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(STAND_IN))
    run("trainer_data.py", "nemo_rl", str(tmp_path))
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert len(rows) == 960
    settings: Any = OmegaConf.to_container(OmegaConf.load(EXAMPLES / "nemo_rl/grpo.yaml"))
    values = settings["env"]["nemo_gym"]
    assert values["config_paths"].pop(0) == "examples/nemo_rl/model.yaml"
    values |= {"rollouts_dir": str(tmp_path), "policy_model": TINY}
    asked = [rows[0], rows[-1]]

    async def main() -> list[Any]:
        cli = importlib.import_module("nemo_gym.cli")
        given = cli.GlobalConfigDictParserConfig(initial_global_config_dict=values)
        cli.RunHelper().start(global_config_dict_parser_config=given)
        collection = importlib.import_module("nemo_gym.rollout_collection")
        found = collection.RolloutCollectionHelper().run_examples(examples=asked)
        return [await each for each in found]

    try:
        results = [result for _, result in asyncio.run(main())]
    finally:
        RunHelper().shutdown()
    agents = {each["agent_ref"]["name"] for each in results}
    assert agents == {"math_with_verify_simple_agent", "calculator_simple_agent"}
    assert all(isinstance(each["reward"], float | int) for each in results)


TINY = {"responses_api_models": {"local_model": {"entrypoint": "app.py", "return_token_ids": True}}}


def test_the_policy_model_of_nemo_rl_is_where_nemo_rl_says() -> None:
    model: Any = OmegaConf.to_container(OmegaConf.load(EXAMPLES / "nemo_rl/model.yaml"))
    [vllm] = model["policy_model"]["responses_api_models"].values()
    assert vllm["base_url"] == "${policy_base_url}" and vllm["return_token_ids"] is True
