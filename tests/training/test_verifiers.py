"""verifiers' own evaluation on our servers, and on an environment of ours that it starts itself.
`make trainers` installs it, and `make test-trainers` runs this."""

import asyncio
import json
import os
import queue
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from running import ROOT, ng_run

from rollout_kit.api.testing import ScriptedModel, call_response
from rollout_kit.serving.sockets import bound_socket, url_of

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


def call_add(params: Any) -> Any:
    """Call `add` once, then say what it returned."""
    told = [each for each in params["input"] if each.get("type") == "function_call_output"]
    if told:
        return f"Answer: {told[0]['output']}"
    [tool] = params["tools"]
    return call_response((tool["name"], '{"a": 4, "b": 9}'))


@contextmanager
def serve_script(answer: Any) -> Iterator[str]:
    """Context in which a scripted model listens, in a thread; its URL."""
    found, is_over = queue.Queue[str](), threading.Event()

    async def serve() -> None:
        sock = bound_socket("127.0.0.1", 0)
        async with ScriptedModel(answer).serving(sock):
            found.put(url_of(sock))
            await asyncio.to_thread(is_over.wait)

    thread = threading.Thread(target=asyncio.run, args=[serve()])
    thread.start()
    try:
        yield found.get()
    finally:
        is_over.set()
        thread.join()


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: tasks, and a module that is an environment."""
    pytest.importorskip("verifiers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_KEY", "x")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # uv
    for name in ("math_with_verify", "calculator"):
        text = MODULE.replace("math_with_verify", name)
        (tmp_path / f"{name}_of_ours.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("arithmetic", "tool"):
        lines = (DATA / f"{name}.jsonl").read_text().splitlines()
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines[:4]))
    return tmp_path


@pytest.fixture
def urls(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The servers of an ng_run, by name."""
    with ng_run(tmp_path) as head, urllib.request.urlopen(f"{head}/server_instances") as reply:
        yield {each["name"]: each["url"] for each in json.load(reply)}


def evaluate(taskset: str, dataset: str, model: str, **task: Any) -> list[Any]:
    """The traces of two episodes for each task."""
    from verifiers.v1.cli.eval.runner import run_eval
    from verifiers.v1.configs.cli.eval import EvalConfig

    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    values = {
        "env": {
            "taskset": {"id": taskset, "dataset": f"{dataset}.jsonl", "task": task},
            "agent": agent,
        },
        "model": "tiny",
        "client": {"base_url": f"{model}/v1", "api_key_var": "NO_KEY"},
        "sampling": {"temperature": 1.0, "max_tokens": 96},
        "num_rollouts": 2,
        "push": False,
        "output_dir": "out",
    }
    episodes = asyncio.run(run_eval(EvalConfig.model_validate(values)))
    traces: list[Any] = [trace for episode in episodes for trace in episode.traces]
    assert len(traces) == 8 and not any(trace.errors for trace in traces)
    return traces


@pytest.mark.parametrize("taskset", ["nemo_gym", "math_with_verify_of_ours"])
def test_rewards_are_those_of_our_verifier(urls: dict[str, str], taskset: str) -> None:
    task = {"resources_url": urls["math_with_verify"]} if taskset == "nemo_gym" else {}
    traces = evaluate(taskset, "arithmetic", urls["policy_model"], **task)
    for trace in traces:
        answer = trace.info["nemo_gym"]["extracted_answer"]
        expected = trace.task.data.row["expected_answer"]
        assert trace.reward == (1.0 if answer == expected else 0.0)
    assert {trace.reward for trace in traces} & {1.0}


def test_tools_are_those_of_our_server() -> None:
    with serve_script(call_add) as url:
        traces = evaluate("calculator_of_ours", "tool", url)
    for trace in traces:
        assert trace.info["nemo_gym"]["tool_was_called"]
        assert trace.info["nemo_gym"]["extracted_answer"] == "13"
        assert trace.reward == float(trace.task.data.row["expected_answer"] == 13)
    assert {trace.reward for trace in traces} == {0.0, 1.0}
