"""The shipped quickstart as processes: a real model, the documents' commands, both placements."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import Response
from support import HANG_S, read_jsonl
from workplace import ROOT

from rollout_kit.serving.sockets import bound_socket

pytest.importorskip("ctranslate2")

TASKS = "resources_servers/mcqa/data/largest_number.jsonl"
DOCUMENTS = [
    "+num_samples_in_parallel=20",
    "+limit=null",
    "+responses_create_params.max_output_tokens=64",
    "+responses_create_params.temperature=0",
]
CHANGING = {"started_at", "duration_s", "model_s", "verify_s", "queue_s", "tool_s"}
CHANGING_IN_TURNS = ("start_s", "model_s", "tool_s", "waited_s")


def command(name: str, *argv: str) -> list[str]:
    code = f"from rollout_kit.commands import main; main('ng_{name}')"
    return [sys.executable, "-c", code, *argv]


def said_until_ready(servers: subprocess.Popen[str]) -> list[str]:
    assert servers.stdout is not None
    said = []
    for line in servers.stdout:
        said.append(line)
        if "All 3 servers ready" in line:
            return said
    raise AssertionError("".join(said))


def url_of(name: str, said: list[str]) -> str:
    [line] = [line for line in said if line.startswith(f"{name} ")]
    return next(word for word in line.split() if "://" in word)


def posted(url: str, body: bytes) -> dict[str, Any]:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=HANG_S) as reply:
        return json.loads(reply.read())


def lasting(line: dict[str, Any]) -> dict[str, Any]:
    """A rollout line without its times and ids."""
    line = json.loads(json.dumps(line))
    for name in CHANGING:
        line["rollout"].pop(name, None)
    for name in CHANGING_IN_TURNS:
        line["rollout"]["turns"].pop(name, None)
    line["response"].pop("id")
    line["response"].pop("created_at")
    for item in line["response"]["output"]:
        item.pop("id")
    return line


def by_key(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    return {
        (line["rollout"]["task_id"], line["rollout"]["rollout_index"]): lasting(line)
        for line in read_jsonl(path)
    }


@pytest.mark.documents
def test_two_terminals_give_the_rows_of_one_and_every_response_is_the_sdk_s(tmp_path: Path) -> None:
    with bound_socket("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
    head = f"+head_server.port={port}"
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    task_argv = ["+agent_name=mcqa_simple_agent", f"+input_jsonl_fpath={TASKS}", *DOCUMENTS]
    servers = subprocess.Popen(
        command("run", "+config_paths=[configs/quickstart.yaml]", head),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        said = said_until_ready(servers)
        warm_up = b'{"responses_create_params": {"input": [{"role": "user", "content": "test"}]}}'
        answer = posted(f"{url_of('mcqa_simple_agent', said)}/run", warm_up)
        assert answer["response"]["output"] and "reward" not in answer
        argv = [*task_argv, f"+output_jsonl_fpath={two}", head]
        subprocess.run(command("collect_rollouts", *argv), cwd=ROOT, check=True)
    finally:
        servers.terminate()
        servers.communicate(timeout=HANG_S)
    assert servers.returncode == 0
    argv = ["+config_paths=[configs/quickstart.yaml]", *task_argv, f"+output_jsonl_fpath={one}"]
    subprocess.run(command("collect_rollouts", *argv), cwd=ROOT, check=True)
    assert by_key(one) == by_key(two) and len(by_key(one)) == 96
    rewards = [line["reward"] for line in read_jsonl(one)]
    assert 0 < sum(rewards) / len(rewards) < 1
    for line in read_jsonl(two):
        Response.model_validate(line["response"])


def test_a_dataset_of_the_agent_can_be_named(tmp_path: Path) -> None:
    argv = ["+config_paths=[configs/quickstart.yaml]", "+dataset=example"]
    argv += [f"+output_jsonl_fpath={tmp_path}/rollouts.jsonl"]
    subprocess.run(command("collect_rollouts", *argv), cwd=ROOT, check=True)
    assert read_jsonl(tmp_path / "rollouts.jsonl")
