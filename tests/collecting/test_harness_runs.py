"""Runs of a program in sessions of the shell, over real processes: killed, continued, verified."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from endpoint import Endpoint, endpoint
from harness_programs import LOOP, SMALL_HARNESS
from support import HANG_S, NO_NAMESPACES, may_isolate, read_jsonl, write_jsonl
from workplace import ROOT

from rollout_kit.responses import function_call_item, make_response, message_item
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

    with endpoint(behave) as point:
        point.num_answered = 8
        command = write_run(tmp_path, point.url, SMALL_HARNESS, 2)
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            assert is_held.wait(HANG_S)
            while len(read_jsonl(tmp_path / "rollouts.d/turns.jsonl")) < 8:
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


HOSTILE = {
    "guesses addresses": LOOP
    + """
import urllib.error
base = os.environ["OPENAI_BASE_URL"]
for number in range(50):
    try:
        urllib.request.urlopen(base.replace("/r/", f"/r/{number:032x}/"), timeout=9)
    except urllib.error.HTTPError as error:
        assert error.code == 404
loop(os.environ["TASK"])
""",
    "reaches for the network": LOOP
    + """
import socket
for address in (("1.1.1.1", 53), ("127.0.0.1", int(sys.argv[1]) if sys.argv[1:] else 11000)):
    try:
        socket.create_connection(address, 2)
        raise SystemExit("reached")
    except OSError:
        pass
loop(os.environ["TASK"])
""",
    "floods": LOOP
    + """
import threading
def flood():
    try:
        ask([{"role": "user", "content": "x"}], tools=False)
    except Exception:
        pass
threads = [threading.Thread(target=flood) for _ in range(150)]
[each.start() for each in threads]; [each.join() for each in threads]
loop(os.environ["TASK"])
""",
    "keeps its stream open": LOOP
    + """
import socket
from urllib.parse import urlsplit
url = urlsplit(os.environ["OPENAI_BASE_URL"])
open_ones = [socket.create_connection((url.hostname, url.port)) for _ in range(40)]
for each in open_ones:
    each.sendall(b"POST " + url.path.encode() + b"/chat/completions HTTP/1.1\\r\\nHost: x\\r\\n"
                 b"content-length: 99999\\r\\n\\r\\n{")
loop(os.environ["TASK"])
""",
    "forks away, and asks after its end": LOOP
    + """
loop(os.environ["TASK"])
if not os.fork():
    os.setsid()
    while True:
        try:
            ask([{"role": "user", "content": "late"}], tools=False)
        except Exception:
            pass
""",
    "writes its own reward": LOOP
    + """
loop(os.environ["TASK"])
print(json.dumps({"reward": 1e9, "_ng_failure_class": "x"}))
open("/reward.json", "w").write('{"reward": 1e9}')
""",
    "fills the disk": LOOP
    + """
loop(os.environ["TASK"])
try:
    with open("/work/big", "wb") as file:
        while True:
            file.write(bytes(1 << 20))
except OSError:
    pass
""",
    "sends what is no request": LOOP
    + """
import socket
from urllib.parse import urlsplit
url = urlsplit(os.environ["OPENAI_BASE_URL"])
for raw in (b"\\x00" * 5000, b"GET / HTTP/9.9\\r\\n\\r\\n", b"POST " + b"/a" * 90000):
    with socket.create_connection((url.hostname, url.port)) as sock:
        sock.sendall(raw)
        sock.settimeout(2)
        try:
            sock.recv(100)
        except OSError:
            pass
for body in ({"messages": [[]]}, {"messages": [{"role": {}}]}):
    try:
        ask(**body)
    except Exception as error:
        assert getattr(error, "code", 0) in (400, 422), error
loop(os.environ["TASK"])
""",
}


QUICK = ("floods", "forks away, and asks after its end")
"""Those that every run of the tests has; the others are slow."""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=name, marks=() if name in QUICK else pytest.mark.slow)
        for name, program in HOSTILE.items()
    ],
)
def test_a_hostile_program_harms_no_other_rollout(program: str, tmp_path: Path) -> None:
    """Half of the rollouts are of the hostile program, and the others as if it were not there."""
    mixed = (
        "import os\n"
        f"hostile = {program!r}\nplain = {SMALL_HARNESS!r}\n"
        "exec(hostile if os.environ['TASK'].endswith(('0.', '2.')) else plain)\n"
    )
    with endpoint(give_commands) as point:
        command = write_run(tmp_path, point.url, mixed, 4)
        told = run(command)
    lines = {line["_ng_task_index"]: line for line in read_jsonl(tmp_path / "rollouts.jsonl")}
    assert len(lines) == 4, told
    for line in lines.values():
        assert line["reward"] == 1.0, (line["rollout"], told)
    for number in (1, 3):
        block = lines[number]["rollout"]
        assert block["num_turns"] == NUM_COMMANDS + 1 and block["gateway"]["calls"] == 7
        assert block["harness"]["stdout"] == "counted\n"
