"""ng_view in a real browser: `make test-view` installs one and runs this."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

import pytest
from agentic import FAULTS, agentic_line, faulty_line, plain_turns, say, use
from endpoint import endpoint
from exported import line, tool_line, write_scored
from kill_counts import MODEL, add_one, count_command
from support import HANG_S, write_jsonl
from workplace import said_until

from rollout_kit.responses import (
    function_call_item,
    function_call_output,
    message_item,
    reasoning_item,
)
from rollout_kit.store.notes.token_scores import write_token_scores
from rollout_kit.store.tasks import task_id_of
from rollout_kit.types import Key

ROOT = Path(__file__).resolve().parents[2]

MODULES = ROOT / ".browser"

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")

HOSTILE = """<script>globalThis.pwned = 1</script><img src=x onerror="globalThis.pwned = 2">
[click](javascript:alert('pwned')) <a href="javascript:alert('pwned')">here</a>
</script>{{constructor}}"""

pytestmark = pytest.mark.browser


@pytest.fixture
def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found or not (MODULES / "node_modules").exists() or not shutil.which("node"):
        pytest.skip("no Chromium or no playwright-core: make test-view installs them")
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of rollouts, one of them with hostile answers."""
    before = [
        *(line(1, index, "It is two.", 0.0) for index in range(2)),
        line(1, 2, "It is one.", 1.0),
        line(2, 0, "It is two.", 0.0),
        *(line(task, 0, f"It is {task}.", 0.0, notes="a long field " * 900) for task in (3, 4)),
        tool_line(5, 0, 1.0, ("stock", '{"shelf": 3}')),
        line(6, 0, HOSTILE, 0.0),
        line(7, 0, "20 MB of this: " + "<b>long</b> " * 1_800_000, 0.0),
    ]
    after = [line(task, 0, "It is right.", 1.0) for task in range(1, 6)]
    write_scored(tmp_path / "before.jsonl", before, lambda each: each["reward"])
    write_scored(tmp_path / "after.jsonl", after, lambda each: 0.5)
    return tmp_path


@contextmanager
def view(folder: Path) -> Iterator[str]:
    """The viewer of a folder; its address."""
    command = [Path(sys.executable).with_name("ng_view"), folder, "+port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as viewer:
        assert viewer.stdout
        yield next(word for word in viewer.stdout.readline().split() if "http" in word).rstrip("/")
        viewer.terminate()


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    with view(folder) as found:
        yield found


SIMULATED = """
config_paths: [configs/rehearsal.yaml]
rehearsal_port: {port}
policy_model:
  responses_api_models:
    openai_model: {{prices: {{input: 2.5, output: 10}}}}
"""


@pytest.fixture
def live(tmp_path: Path) -> Iterator[str]:
    """The page of a collection that runs until it is stopped."""
    config = tmp_path / "simulated.yaml"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        config.write_text(SIMULATED.format(port=free.getsockname()[1]))
    command = [
        Path(sys.executable).with_name("ng_collect_rollouts"),
        f"+config_paths=[{config}]",
        *("+dataset=example", "+num_repeats=20000", "+num_samples_in_parallel=4-24-48"),
        *(f"+output_jsonl_fpath={tmp_path}/rollouts.jsonl", "+dashboard=true"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as running:
        assert running.stdout
        lines = (line for line in running.stdout if line.startswith("Live page: "))
        yield next(lines).split()[-1]
        running.stdout.close()
        running.kill()


PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
    "AAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

IMAGE = f"data:image/png;base64,{PIXEL}"


def call(number: int) -> dict[str, Any]:
    """A call of an endpoint that gives all of them one id."""
    return function_call_item("count", f'{{"n": {number}}}', "call_0")


REPEATED = [
    *(call(0), call(1), function_call_output("call_0", "zero")),
    *(
        function_call_output("call_0", "one"),
        call(2),
        function_call_output("call_0", "two"),
        call(3),
    ),
]

MCP: dict[str, Any] = {"type": "mcp_call", "server_label": "deepwiki"}

BUILT_IN: list[dict[str, Any]] = [
    {"type": "mcp_list_tools", "server_label": "deepwiki", "tools": [{"name": "ask_question"}]},
    {**MCP, "name": "ask_question", "arguments": '{"about": "tabs"}', "output": "MCP says: spaces"},
    {**MCP, "name": "broken", "arguments": "{}", "output": None, "error": "the server is away"},
    {
        **{"type": "code_interpreter_call", "code": "print(6 * 7)", "container_id": "c"},
        "outputs": [{"type": "logs", "logs": "42"}, {"type": "image", "url": IMAGE}],
    },
    {
        **{"type": "file_search_call", "queries": ["which file"], "status": "completed"},
        "results": [{"filename": "notes.txt", "text": "it is in notes.txt", "score": 0.9}],
    },
    {"type": "web_search_call", "action": {"type": "search", "query": "weather in Oslo"}},
    {"type": "image_generation_call", "result": PIXEL, "status": "completed"},
    {"type": "local_shell_call", "call_id": "l", "action": {"command": ["ls", "ls /tmp"]}},
    {"type": "local_shell_call_output", "id": "l", "output": "a.txt"},
    {"type": "shell_call", "call_id": "s", "action": {"commands": ["make"]}},
    {
        **{"type": "shell_call_output", "call_id": "s"},
        "output": [
            {
                **{"stdout": "all good", "stderr": "a warning"},
                "outcome": {"type": "exit", "exit_code": 2},
            }
        ],
    },
    {"type": "apply_patch_call", "call_id": "p", "operation": {"type": "update", "path": "a.py"}},
    {"type": "apply_patch_call_output", "call_id": "p", "output": "patched"},
    {"type": "custom_tool_call", "call_id": "g", "name": "grep", "input": "needle"},
    {"type": "custom_tool_call_output", "call_id": "g", "output": "hay: needle"},
    {"type": "computer_call", "call_id": "k", "action": {"type": "screenshot"}},
    {
        **{"type": "computer_call_output", "call_id": "k"},
        "output": {"type": "computer_screenshot", "image_url": IMAGE},
    },
    function_call_item("look", "{}", "f"),
    {**function_call_output("f", ""), "output": [{"type": "input_image", "image_url": IMAGE}]},
    {"type": "compaction", "encrypted_content": "opaque"},
]


def make_failure(task: int, index: int) -> dict[str, Any]:
    """The line of a rollout that has failed."""
    made = line(task, index, "", None)
    for name in ("response", "responses_create_params", "expected_answer", "extracted_answer"):
        del made[name]
    failure = {"class": "PeerTimeout", "message": "too slow", "elapsed_s": 2.5}
    return {**made, "kind": "failure", "failure": failure, "at": "2026-11-26T20:00:00.000Z"}


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """Two files with all that the pages show."""

    def rollout(task: int, reward: float, tokens: int, second: int = 0) -> dict[str, Any]:
        made = line(task, 0, f"It is {task}.", reward)
        made["usage"] = made["response"]["usage"] = {"input_tokens": 7, "output_tokens": tokens}
        made["rollout"] |= {"started_at": f"2026-11-26T20:00:{second:02}.000Z", "duration_s": 2.0}
        return made

    row = {"responses_create_params": {"input": "Only in the input"}, "expected_answer": "12"}
    lost = make_failure(12, 0)
    lost["rollout"]["task_id"] = task_id_of(row)
    cut = [rollout(10 + each, each / 10, 500, each) for each in range(1, 6)]
    one = [
        rollout(1, 1.0, 20),
        *(rollout(task, 0.0, 30, task) for task in (2, 3)),
        line(8, 0, REPEATED, 1.0),
        line(9, 0, BUILT_IN, 1.0),
        *cut,
    ]
    write_jsonl(tmp_path / "one.jsonl", one)
    write_jsonl(tmp_path / "two.jsonl", [rollout(each, 0.5, 40 * each, each) for each in (1, 2, 3)])
    write_jsonl(tmp_path / "tasks.jsonl.input", [{"other": 1}, row])
    sidecars = tmp_path / "one.d"
    write_jsonl(sidecars / "failures.jsonl", [make_failure(1, 5), lost, make_failure(40, 1)])
    (sidecars / "run.json").write_text(
        json.dumps({"inputs": [{"path": str(tmp_path / "tasks.jsonl.input")}]})
    )
    turns = [None, *({"request": f"{n}", "response": {"output": [call(n)]}} for n in (1, 2))]
    turns += [{"request": "1", "returned": [function_call_output("call_0", "counted one")]}]
    of_rollout = {name: make_failure(1, 5)[name] for name in ("schema", "agent_ref", "rollout")}
    before = {**of_rollout, "kind": "turn", "turn": {"response": {"output": [call(0)]}}}
    lines = [before, *({**of_rollout, "kind": "turn", "turn": turn} for turn in turns)]
    lines = [{**each, "_ng_task_index": 1, "_ng_rollout_index": 5} for each in lines]
    write_jsonl(sidecars / "turns.jsonl", lines)
    return tmp_path


def test_the_pages_show_what_is_in_the_files(browser: str, shown: Path) -> None:
    pictures = os.environ.get("PICTURES", "")
    with view(shown) as url:
        script = ROOT / "tests/browser/shown.mjs"
        done = subprocess.run(
            ["node", script, MODULES, browser, url, pictures], capture_output=True, text=True
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok: ") == 8


def test_a_running_collection_is_watched_and_steered(browser: str, live: str) -> None:
    script = ROOT / "tests/browser/live.mjs"
    done = subprocess.run(["node", script, MODULES, browser, live], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok: ") == 9


def think_and_add(body: dict[str, Any]) -> tuple[int, Any]:
    """The answer of an endpoint that says why it calls a tool, and calls one that there is not."""
    asked = [each for each in body["input"] if each.get("name") != "note"]
    status, response = add_one({**body, "input": asked})
    *_, last = response["output"]
    if last["type"] == "function_call":
        done = json.loads(last["arguments"])["a"]
        thought = reasoning_item(f"I have {done}.\nOne more is {done + 1}.")
        about = "\n".join(f"line {n} of a reason" for n in range(400))
        note = function_call_item("note", json.dumps({"about": f"begin\n{about}\nend"}), f"n{done}")
        response["output"] = [thought, message_item("I <b>add</b> one."), last, note]
    return status, response


@pytest.mark.parametrize("where", [(), ("+executor=processes", "+num_workers=2")])
def test_a_rollout_in_flight_is_opened_and_grows(
    browser: str, tmp_path: Path, where: tuple[str, ...]
) -> None:
    script, pictures = ROOT / "tests/browser/flight.mjs", os.environ.get("PICTURES", "")
    with endpoint(think_and_add, delay_s=0.3) as point:  # turns of short rollouts are not reported
        point.num_answered = 6
        (tmp_path / "model.yaml").write_text(MODEL.format(url=point.url))
        words = ("+limit=1", "+dashboard=true", *where)
        command = count_command(tmp_path, str(tmp_path / "model.yaml"), *words)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as running:
            live = said_until(running, "Live page: ").rpartition("Live page: ")[2].split()[0]
            argv = ["node", script, MODULES, browser, live, pictures]
            with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as reader:
                assert reader.stdout
                said = [reader.stdout.readline()]
                point.num_answered = 9
                said += reader.stdout.readlines()
            point.num_answered = inf
            running.communicate(timeout=HANG_S)
    assert reader.returncode == 0, said
    assert [line[:3] for line in said] == ["ok:"] * 4


def test_a_reader_finds_reads_compares_and_labels(browser: str, folder: Path, url: str) -> None:
    report = folder / "report.html"
    written = [Path(sys.executable).with_name("ng_view"), folder / "before.jsonl"]
    subprocess.run([*written, f"+static={report}", "+where=task_index < 6"], check=True)
    script = ROOT / "tests/browser/viewer.mjs"
    done = subprocess.run(
        ["node", script, MODULES, browser, url, folder, report], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok: ") == 20


RENDERED = """**bold** and $x^2 + \\frac{1}{2}$, {{7*7}} <style>*{display:none}</style>
<svg onload="globalThis.pwned = 3"></svg> [go](javascript:globalThis.pwned=4) ![i](http://a.test/i.png)
[data](data:text/html,hi) $\\def\\x{\\x\\x}\\x$ $\\href{javascript:alert(1)}{a}$

| a | b |
|---|---|
| 1 | 2 |

```python
def f():
    return 1
```
"""

BOMB = (
    "\x1b[31mred\x1b[0m"
    + "\x1b[1m\x1b[0m" * 5000
    + "\x1b]8;;javascript:alert(1)\x07link\x1b]8;;\x07"
)


SCREEN = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAADwAAAAeCAIAAAD/+uoYAAAANUlEQVR42u3OQQkAAAgE"
    "sOv/MopRjGQKH8JgAZbqeSfS0tLS0tLS0tLS0tLS0tLS0tLS0lcWJCKBUycWZKAAAAAASUVORK5CYII="
)


def look(name: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """A turn whose call returns a picture of 60 times 30 pixels."""
    asked, returned = use(name, "", 0, **arguments)
    return [asked, {**returned, "output": [{"type": "input_image", "image_url": SCREEN}]}]


@pytest.fixture
def agentic(tmp_path: Path) -> Path:
    """Rollouts with one fault each, one with a long output, one of every kind of text."""
    long = "x" * 90_000 + "\n" + "y" * 90_000 + "needle in the middle" + "z" * 90_000
    turns = plain_turns(3)
    turns[0] = use("bash", f"{long}\nthe last words", 0, command="make")
    texts = [
        [say(RENDERED)],
        [say("\u202e turned " + "[" * 20_000 + "$" * 2000)],
        use("bash", BOMB, 1, command="ls --color"),
        use("ask", '{"answer": {"is": ["a", 1, null]}}', 2, about="x"),
        use("edit", "ok", 3, path="a.py", old_str="old line\n", new_str="new line\n"),
        use("apply", "ok", 4, patch="--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-old\n+new line\n"),
        use("exec", "ok", 5, command="for each in *; do\n  stat $each\ndone"),
        use("Bash", "ok", 6, command="if true; then\n  id\nfi", description="Who it is"),
        use("shell", "ok", 7, command=["bash", "-lc", "while false; do\n  nproc\ndone"]),
    ]
    judged = agentic_line(13, plain_turns(100))
    judged["rollout"]["scores"] = ["tests", "judge"]
    judged["tests"] = {"test_a": "PASSED", "test_b": "FAILED", "test_c": "PASSED"}
    judged["judge"] = [{"criterion": "reads", "met": True, "quote": "line 60 of src/app.py"}]
    repaired = agentic_line(14, plain_turns(3))
    repaired["rollout"]["scores"] = ["patch", "verifier_output"]
    repaired["patch"] = (
        "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-old\n+new\n"
    )
    repaired["verifier_output"] = "PASSED test_a.py::test_a\nFAILED test_a.py::test_b - it is old\n"
    clicks = [
        look("computer", {"action": "left_click", "coordinate": [30, 15]}),
        look("computer", {"action": {"type": "click", "x": 9, "y": 18}}),
        look("computer", {"action": "left_click", "coordinate": [400, 15]}),
    ]
    faults = [faulty_line(at + 1, fault) for at, fault in enumerate(FAULTS)]
    write_jsonl(
        tmp_path / "faults.jsonl",
        [
            *(*faults, judged, repaired),
            *(agentic_line(at, each) for at, each in ((11, turns), (12, texts), (15, clicks))),
        ],
    )
    write_jsonl(tmp_path / "many.jsonl", [line(each, 0, "yes", 1.0) for each in range(400)])
    return tmp_path


def test_a_reader_sees_what_an_agent_did(browser: str, agentic: Path) -> None:
    script = ROOT / "tests/browser/agentic.mjs"
    with view(agentic) as url:
        command = ["node", script, MODULES, browser, url, agentic, os.environ.get("PICTURES", "")]
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok: ") == 16


@pytest.fixture
def trails(tmp_path: Path) -> Path:
    """Three rollouts that differ from their fifth turn on, and one of another run."""
    same = [use("bash", "app.py", at, command=f"ls {at}") for at in range(4)]
    seen = use("bash", "ok", 4, command="sed -n 1,40p src/app.py")
    failed = use("bash", "Error: no such file: src/ap.py", 4, command="cat src/ap.py")
    tested = use("bash", "1 failed", 5, command="pytest")
    again = use("bash", "2 passed", 6, command="pytest -k fixed")
    endings = [
        ([seen, use("bash", "2 passed", 5, command="pytest"), [say("It is fixed.")]], 1.0),
        ([failed, tested, [say("I give up.")]], 0.0),
        ([seen, tested, again, [say("It works now.")]], 1.0),
    ]
    lines = []
    for index, (ending, reward) in enumerate(endings):
        turns = [*same, *ending]
        made = {**agentic_line(1, turns), "_ng_rollout_index": index, "reward": reward}
        made["rollout"] |= {"rollout_index": index, "num_turns": len(turns)}
        lines.append(made)
    write_jsonl(tmp_path / "one.jsonl", lines)
    other = {**lines[1], "_ng_rollout_index": 0}
    other["rollout"] = {**lines[1]["rollout"], "rollout_index": 0}
    write_jsonl(tmp_path / "two.jsonl", [other])
    return tmp_path


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """An RL run: rollouts of three versions with tokens and groups, evaluations of two."""
    lines = []
    for at in range(24):
        made = line(at // 8, at % 8, "It is two.", float(at % (4 - at // 8) == 0))
        made["rollout"] |= {"version_first": at // 8, "version_last": at // 8}
        made["response"]["output"][-1] |= {
            **{"prompt_token_ids": [5, 6], "generation_token_ids": [11, 12, 13]},
            **{"generation_log_probs": [-0.1, -2.0, -4.0], "policy_version_first": at // 8},
            **{"policy_version_last": 9, "policy_version_spans": [[0, 2, at // 8], [2, 3, 9]]},
        }
        lines.append(made)
    write_jsonl(tmp_path / "rl.jsonl", lines)
    points = [("test", 0, 0.2), ("test", 2, 0.6), ("test_greedy", 0, 0.3), ("test_greedy", 2, 0.5)]
    evaluations = [
        {
            **{"set": name, "version": version, "reward": reward, "rollouts": 8},
            **{"reward_low": reward - 0.1, "reward_high": reward + 0.1},
        }
        for name, version, reward in points
    ]
    write_jsonl(tmp_path / "rl.d" / "evaluations.jsonl", evaluations)
    key = Key(lines[0]["rollout"]["task_id"], "solver", "", 0)
    for policy, scores in {
        "reference": [-0.2, -1.5, -1.0],
        "version 9": [-0.1, -1.0, -3.0],
    }.items():
        write_token_scores(tmp_path / "rl.jsonl", key, policy, {0: scores})
    return tmp_path


def test_what_training_needs_is_shown(browser: str, trained: Path) -> None:
    script = ROOT / "tests/browser/training.mjs"
    with view(trained) as url:
        command = ["node", script, MODULES, browser, url, os.environ.get("PICTURES", "")]
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok: ") == 2


def test_rollouts_are_shown_side_by_side(browser: str, trails: Path) -> None:
    script = ROOT / "tests/browser/trails.mjs"
    with view(trails) as url:
        command = ["node", script, MODULES, browser, url, os.environ.get("PICTURES", "")]
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok: ") == 5


@pytest.fixture
def changing(tmp_path: Path) -> Path:
    """A long file, a short one, and one that begins with a failure, as `cat` joins them."""
    folder = tmp_path / "runs"
    folder.mkdir()
    write_jsonl(folder / "many.jsonl", [line(each, 0, "yes", 1.0) for each in range(400)])
    write_jsonl(
        folder / "few.jsonl", [line(9, 0, "no", 0.0), line(9, 1, "yes", 1.0), line(9, 2, "no", 0.0)]
    )
    joined = [make_failure(9, 7), *(line(9, each, "yes", float(each % 2)) for each in range(4))]
    write_jsonl(folder / "joined.jsonl", joined)
    return folder


def test_what_changes_is_followed_and_the_reader_stays_in_place(
    browser: str, changing: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.html"
    files = [changing / "few.jsonl", changing / "joined.jsonl"]
    command = [Path(sys.executable).with_name("ng_report"), *files, f"+output_fpath={report}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    script = ROOT / "tests/browser/changes.mjs"
    with view(changing) as url:
        done = subprocess.run(
            ["node", script, MODULES, browser, url, changing, report],
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok: ") == 6
