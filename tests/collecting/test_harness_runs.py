"""Runs of a program in sessions of the shell, over real processes: killed, continued, verified."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ECONNREFUSED
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from endpoint import Endpoint, endpoint
from harness_programs import MCP_HARNESS, RESUMABLE_HARNESS, SMALL_HARNESS
from support import (
    HANG_S,
    NO_NAMESPACES,
    count_turns,
    may_isolate,
    read_jsonl,
    write_jsonl,
)
from workplace import ROOT

from rollout_kit.responses import function_call_item, make_response, message_item
from rollout_kit.serving.sockets import bound_socket
from rollout_kit.types import JsonObject

pytestmark = pytest.mark.skipif(not may_isolate(), reason=NO_NAMESPACES)

NUM_COMMANDS = 6

USED = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}


def give_commands(body: JsonObject) -> tuple[int, JsonObject]:
    """Have each rollout count to NUM_COMMANDS in a file, a line a command."""
    done = sum(item.get("type") == "function_call_output" for item in body["input"])
    if done < NUM_COMMANDS:
        command = f"echo {done} >> /work/count; date +%H:%M:%S.%N; wc -l /work/count"
        arguments = json.dumps({"command": command})
        output = [function_call_item("bash", arguments, f"call_{done}")]
    else:
        output = [message_item("counted")]
    return 200, make_response("scripted", output, USED)


def write_run(folder: Path, url: str, program: str, num_tasks: int, **keys: Any) -> list[str]:
    """The command of a run."""
    expected = {"/work/count": "".join(f"{n}\n" for n in range(NUM_COMMANDS))}
    rows = [
        {
            "responses_create_params": {"input": f"Count, number {n}."},
            "verifier": {"kind": "files", "expected": expected},
        }
        for n in range(num_tasks)
    ]
    write_jsonl(folder / "tasks.jsonl", rows)
    agent = {
        "entrypoint": "app.py",
        "resources_server": {"type": "resources_servers", "name": "shell"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
        "command": "python3 /root/h.py",
        "files": {"/root/h.py": program},
        **keys,
    }
    model = {
        "entrypoint": "app.py",
        "openai_base_url": url,
        "openai_api_key": "x",
        "openai_model": "m",
        "upstream_api": "responses",
    }
    config = {
        "config_paths": ["resources_servers/shell/configs/shell.yaml"],
        "counter": {"responses_api_agents": {"harness_agent": agent}},
        "policy_model": {"responses_api_models": {"openai_model": model}},
    }
    (folder / "run.yaml").write_text(json.dumps(config))
    return [
        str(Path(sys.executable).with_name("ng_collect_rollouts")),
        f"+config_paths=[{folder / 'run.yaml'}]",
        "+agent_name=counter",
        f"+input_jsonl_fpath={folder / 'tasks.jsonl'}",
        f"+output_jsonl_fpath={folder / 'rollouts.jsonl'}",
        "+num_samples_in_parallel=2",
        "+max_attempts=1",
    ]


def run(command: list[str], timeout_s: float = HANG_S) -> str:
    """What a run printed; nothing of its sessions is left."""
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        told, _ = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, told
    check_nothing_is_left(process.pid)
    return told


def check_nothing_is_left(run: int) -> None:
    """Wait for the end of the sessions of a run, and of what has started them."""
    while left := _find_sessions(run):
        os.sched_yield()
        assert left


@contextmanager
def leaving_nothing(folder: Path) -> Iterator[int]:
    """Context for runs that leave no mount, no temporary file, and nothing at the port that it
    gives for their gateway."""
    temporary, mounts = folder / "temporary", Path("/proc/self/mountinfo")
    temporary.mkdir()
    before = mounts.read_text()
    with bound_socket("127.0.0.1", 0) as sock:
        port = int(sock.getsockname()[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        yield port
    assert mounts.read_text() == before
    assert not list(temporary.iterdir())
    with socket.socket() as sock:
        assert sock.connect_ex(("127.0.0.1", port)) == ECONNREFUSED


def _find_sessions(run: int) -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(run).encode() in words and str(ROOT).encode() in words:
            found.append(pid)
    return found


def test_a_run_that_is_killed_asks_the_model_only_for_what_is_not_in_the_journal(
    tmp_path: Path,
) -> None:
    is_held = Event()

    def behave(body: JsonObject) -> tuple[int, JsonObject]:
        if len(point.requests) >= 8:
            is_held.set()
        return give_commands(body)

    with leaving_nothing(tmp_path) as port, endpoint(behave) as point:
        point.num_answered = 8
        command = write_run(tmp_path, point.url, SMALL_HARNESS, 2, gateway_port=port)
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            assert is_held.wait(HANG_S)
            while count_turns(tmp_path) < 8:
                assert process.poll() is None
            process.send_signal(signal.SIGKILL)
        check_nothing_is_left(process.pid)
        num_before = len(point.requests)
        point.num_answered = 1e9
        run(command)
        num_more = len(point.requests) - num_before
    lines = read_jsonl(tmp_path / "rollouts.jsonl")
    assert [line["reward"] for line in lines] == [1.0, 1.0]
    blocks = [line["rollout"] for line in lines]
    # the clock in the outputs of the commands is another one, and counts as the same
    assert sum(block["resumed_turns"] for block in blocks) == 8
    assert [block["gateway"]["diverged_at"] for block in blocks] == [None, None]
    assert num_more == 2 * (NUM_COMMANDS + 1) - 8
    assert [block["num_turns"] for block in blocks] == [NUM_COMMANDS + 1] * 2
    assert not (tmp_path / "rollouts.d/turns.jsonl").exists()


def give_other_outputs(body: JsonObject) -> tuple[int, JsonObject]:
    """The same commands, whose outputs differ each time that they run."""
    status, answer = give_commands(body)
    for item in answer["output"]:
        if "arguments" in item:
            item["arguments"] = item["arguments"].replace("date +%H:%M:%S.%N", "echo $RANDOM")
    return status, answer


@pytest.mark.parametrize(("every", "placement"), [(1, "local"), (3, "local"), (1, "process")])
def test_a_run_that_is_killed_starts_its_program_again_in_the_files_of_its_last_snapshot(
    every: int, placement: str, tmp_path: Path
) -> None:
    is_held = Event()

    def behave(body: JsonObject) -> tuple[int, JsonObject]:
        if len(point.requests) >= 5:
            is_held.set()
        return give_other_outputs(body)

    keys = {
        "resume_command": "python3 /root/h.py resume",
        "snapshot_every": every,
        "placement": placement,
    }
    with endpoint(behave) as point:
        point.num_answered = 5
        command = write_run(tmp_path, point.url, RESUMABLE_HARNESS, 1, **keys)
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            assert is_held.wait(HANG_S)
            while count_turns(tmp_path) < 5:
                assert process.poll() is None
            process.send_signal(signal.SIGKILL)
        check_nothing_is_left(process.pid)
        num_before = len(point.requests)
        snapshots = list((tmp_path / "rollouts.d/snapshots").iterdir())
        point.num_answered = 1e9
        run(command)
        num_more = len(point.requests) - num_before
    [line] = read_jsonl(tmp_path / "rollouts.jsonl")
    # the commands before the snapshot have not run again: each would have added its line
    assert line["reward"] == 1.0 and line["rollout"]["num_turns"] == NUM_COMMANDS + 1
    block = line["rollout"]["gateway"]
    known = block["restored"] + block["replayed"]
    assert len(snapshots) == 1 and num_more == NUM_COMMANDS + 1 - known
    if every == 1:
        assert known == 5 and block["diverged_at"] is None
    else:  # the output of the fourth call is another one now
        assert known == 4 and block["diverged_at"] == 5
    assert not (tmp_path / "rollouts.d/snapshots").exists()
    assert not (tmp_path / "rollouts.d/turns.jsonl").exists()


def test_a_program_outside_of_the_session_ends_with_the_run_and_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mcp")
    is_held, temporary = Event(), tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))

    def behave(body: JsonObject) -> tuple[int, JsonObject]:
        if len(point.requests) >= 3:
            is_held.set()
        return give_commands(body)

    keys = {"command": f"{sys.executable} ~/h.py", "outside": True}
    with endpoint(behave) as point:
        point.num_answered = 3
        command = write_run(tmp_path, point.url, MCP_HARNESS, 1, **keys)
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            assert is_held.wait(HANG_S)
            while count_turns(tmp_path) < 3:
                assert process.poll() is None
            homes = [str(path / "home").encode() for path in temporary.iterdir()]
            process.send_signal(signal.SIGKILL)
        check_nothing_is_left(process.pid)
        while any(_has_home(pid, homes) for pid in filter(str.isdigit, os.listdir("/proc"))):
            os.sched_yield()
        num_before = len(point.requests)
        point.num_answered = 1e9
        run(command)
        num_more = len(point.requests) - num_before
    assert len(homes) == 1 and not list(temporary.iterdir())
    lines = read_jsonl(tmp_path / "rollouts.jsonl")
    assert [line["reward"] for line in lines] == [1.0]
    assert num_more == NUM_COMMANDS + 1 - 3


def _has_home(pid: str, homes: list[bytes]) -> bool:
    try:
        found = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return any(b"HOME=" + home in found for home in homes)


def _read_recorded(lines: list[JsonObject]) -> list[str]:
    """The ids of all calls and messages of the model that lines have."""
    return sorted(
        item["id"]
        for line in lines
        for item in line["response"]["output"]
        if item.get("type") == "function_call" or item.get("role") == "assistant"
    )


def _read_answered(point: Endpoint, answers: list[JsonObject]) -> list[str]:
    assert len(answers) == len(point.requests)
    return sorted(item["id"] for answer in answers for item in answer["output"])


def test_what_is_recorded_is_what_the_endpoint_read_answered(tmp_path: Path) -> None:
    answers: list[JsonObject] = []

    def behave(body: JsonObject) -> tuple[int, JsonObject]:
        status, answer = give_commands(body)
        answers.append(answer)
        return status, answer

    with endpoint(behave) as point:
        told = run(write_run(tmp_path, point.url, SMALL_HARNESS, 3))
    lines = read_jsonl(tmp_path / "rollouts.jsonl")
    assert _read_recorded(lines) == _read_answered(point, answers), told
    for line in lines:
        block = line["rollout"]
        assert block["harness"]["status"] == 0 and block["harness"]["stdout"] == "counted\n"
        assert block["turns"]["to"][-1] == len(line["response"]["output"])
        assert "count" in line["patch"]
