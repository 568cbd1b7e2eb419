"""verifiers' own evaluation on our servers, and on an environment of ours that it starts itself.
`make trainers` installs it, and `make test-trainers` runs this."""

import asyncio
import json
import os
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running import ROOT, ng_run

DATA = ROOT / "responses_api_models/local_model/data"

pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("ignore")]

MODULE = """
from rollout_kit.rl.adapters.verifiers import RolloutEnv, RolloutTaskset


class Sums(RolloutTaskset):
    config_paths = [
        "resources_servers/math_with_verify/configs/math_with_verify.yaml",
        "responses_api_models/trainer_model/configs/trainer_model.yaml",
    ]
    server = "math_with_verify"


__all__ = ["RolloutEnv", "Sums"]
"""


@pytest.fixture
def urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The servers of an ng_run, by name."""
    pytest.importorskip("verifiers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_KEY", "x")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # uv
    (tmp_path / "sums_of_ours.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    lines = (DATA / "arithmetic.jsonl").read_text().splitlines()
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines[:4]))
    with ng_run(tmp_path) as head, urllib.request.urlopen(f"{head}/server_instances") as reply:
        yield {each["name"]: each["url"] for each in json.load(reply)}


@pytest.mark.parametrize("taskset", ["nemo_gym", "sums_of_ours"])
def test_rewards_are_those_of_our_verifier(urls: dict[str, str], taskset: str) -> None:
    from verifiers.v1.cli.eval.runner import run_eval
    from verifiers.v1.configs.cli.eval import EvalConfig

    given = {"resources_url": urls["math_with_verify"]} if taskset == "nemo_gym" else {}
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    values = {
        "env": {
            "taskset": {"id": taskset, "dataset": "tasks.jsonl", "task": given},
            "agent": agent,
        },
        "model": "tiny",
        "client": {"base_url": f"{urls['policy_model']}/v1", "api_key_var": "NO_KEY"},
        "sampling": {"temperature": 1.0, "max_tokens": 96},
        "num_rollouts": 2,
        "push": False,
        "output_dir": "out",
    }
    episodes = asyncio.run(run_eval(EvalConfig.model_validate(values)))
    traces: list[Any] = [trace for episode in episodes for trace in episode.traces]
    assert len(traces) == 8 and not any(trace.errors for trace in traces)
    for trace in traces:
        answer = trace.info["nemo_gym"]["extracted_answer"]
        expected = trace.task.data.row["expected_answer"]
        assert trace.reward == (1.0 if answer == expected else 0.0)
    assert {trace.reward for trace in traces} & {1.0}
