"""A run of an agent that repairs a small program in a shell: a scripted model, real sessions."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import rollout_kit as rk

SHELL = "resources_servers/shell/configs/shell.yaml"

SOURCE = '''\
import re

UNITS = {"h": 3600, "m": 60, "s": 1}


def parse(text):
    """Seconds of a duration, such as 1h30m."""
    total = 0
    for number, unit in re.findall(r"(\\d+)([hms])", text):
        total += int(number) * UNITS[unit]
    return total
'''

SEEN = """\
from durations import parse


def test_hours_and_minutes():
    assert parse("1h30m") == 5400
"""

HIDDEN = """\
import pytest
from durations import parse


def test_hours_and_minutes():
    assert parse("1h30m") == 5400


def test_fraction():
    assert parse("1.5h") == 5400


def test_fraction_without_zero():
    assert parse(".5m") == 30


def test_days():
    assert parse("2d") == 172800


@pytest.mark.parametrize("text", ["soon", "3 apples", "1h soon"])
def test_unknown_text_is_refused(text):
    with pytest.raises(ValueError):
        parse(text)


def test_empty_text_is_refused():
    with pytest.raises(ValueError):
        parse("")
"""

PROMPT = (
    "`parse` in /work/durations.py is wrong for fractions such as `1.5h`, knows no days (`2d`), and"
    " gives 0 for texts that are no durations. Make it right for fractions and days, and raise a"
    " ValueError for all other texts."
)

SETUP = "git init -q && git add . && git -c user.name=a -c user.email=a@b.c commit -qm start"

VERIFY = "cd /verify && COLUMNS=100 PYTHONPATH=/work:$PYTHONPATH python3 -m pytest -q -rA --tb=line"

ROW = {
    "responses_create_params": {"input": PROMPT},
    "files": {
        "/work/durations.py": SOURCE,
        "/work/tests/test_durations.py": SEEN,
        "/work/pytest.ini": "[pytest]\naddopts = -p no:cacheprovider\n",
    },
    "setup": SETUP,
    "verifier": {
        "kind": "command",
        "command": VERIFY,
        "files": {"/verify/test_durations.py": HIDDEN},
        "keep": ["/work/durations.py"],
    },
}

Turn = tuple[str, str, dict[str, Any]]
"""What the model thinks, the tool that it calls, and the arguments."""

PROBE = """\
for text in 1h30m 1.5h 2d soon; do
  printf '%-6s ' "$text"
  python3 -c "from durations import parse; print(parse('$text'))"
done"""

FOUND = """\
    for number, unit in re.findall(r"(\\d+)([hms])", text):
        total += int(number) * UNITS[unit]
    return total
"""

DAYS = {"path": "durations.py", "old": '{"h": 3600', "new": '{"d": 86400, "h": 3600'}

TESTED = {"command": "python3 -m pytest -q"}

BEGINNING: list[Turn] = [
    (
        "I should look at the repository first: what is there, and who calls `parse`.",
        "exec",
        {"command": "find . -name '*.py'\ngrep -n parse *.py tests/*.py"},
    ),
    ("", "read_file", {"path": "durations.py"}),
    (
        "`re.findall` takes every piece that looks like a number with a unit, and **skips the"
        " rest**. So `1.5h` is read as `5h`, and `soon` as nothing. I reproduce all three"
        " complaints before I change anything.",
        "exec",
        {"command": PROBE},
    ),
    ("", "edit", DAYS),
]

MATCHED = """\
    if not re.fullmatch(r"(\\d+(\\.\\d+)?[dhms])+", text):
        raise ValueError(f"no duration: {text!r}")
    for number, unit in re.findall(r"(\\d+(?:\\.\\d+)?)([dhms])", text):
        total += float(number) * UNITS[unit]
    return total
"""

WIDER = MATCHED.replace(r"(\d+(\.\d+)?[dhms])", r"((\d+\.?\d*|\.\d+)[dhms])").replace(
    r"(\d+(?:\.\d+)?)", r"(\d+\.?\d*|\.\d+)"
)

LENIENT = """\
    for number, unit in re.findall(r"(\\d+\\.?\\d*)([dhms])", text):
        total += float(number) * UNITS[unit]
    if not total:
        raise ValueError(text)
    return total
"""

NEW_TEST = """\
cat >> tests/test_durations.py <<'END'


def test_fraction_and_days():
    assert parse("1.5h") == 5400
    assert parse("2d") == 172800
END"""

REFUSED = """\
python3 - <<'END'
from durations import parse
for text in ("soon", "", "3 apples", "1h soon"):
    try:
        print(repr(text), parse(text))
    except ValueError as error:
        print(repr(text), "refused:", error)
END"""

CHECKED: list[Turn] = [
    ("", "exec", {"command": NEW_TEST}),
    ("", "exec", TESTED),
    ("The tests pass. What about texts that must be refused?", "exec", {"command": REFUSED}),
]

CAREFUL: list[Turn] = [
    (
        "The whole text must match, not only pieces of it. I use `fullmatch` for the check, and"
        " keep `findall` for the sum.",
        "edit",
        {"path": "durations.py", "old": FOUND, "new": MATCHED},
    ),
    *CHECKED,
    (
        "`.5m` has no digit before the point, and someone may well write it so. I allow both.",
        "edit",
        {"path": "durations.py", "old": MATCHED, "new": WIDER},
    ),
    ("", "exec", TESTED),
    ("", "exec", {"command": "git diff --stat"}),
    ("", "exec", {"command": "git diff durations.py"}),
]

HASTY: list[Turn] = [
    (
        "I change the expression so that it takes a point, and refuse a total of 0.",
        "edit",
        {
            "path": "durations.py",
            "old": "    for number, unit in re.finditer(",
            "new": "    for match in re.finditer(",
        },
    ),
    (
        "That text is not in the file: it says `findall`.",
        "edit",
        {"path": "durations.py", "old": FOUND, "new": LENIENT},
    ),
    *CHECKED[:2],
    ("", "exec", {"command": "python -m mypy durations.py"}),
    ("There is no mypy here. I check by hand.", "exec", {"command": PROBE}),
    (
        "`soon` raises, as it should. The traceback is what a caller sees.",
        "exec",
        {"command": "git diff --stat"},
    ),
    ("", "exec", {"command": "git diff durations.py"}),
]

ENDS = {
    "careful": (
        CAREFUL,
        "`parse` reads fractions and days now, and refuses all texts that are no durations.",
    ),
    "hasty": (
        HASTY,
        "`parse` reads fractions and days now, and raises a `ValueError` if it finds nothing.",
    ),
}

ORDER = ("hasty", "careful")
"""How the rollouts of the task end, one after the other."""


class Coder:
    """A model that plays the turns; which end, stands in the ids of its calls."""

    def __init__(self, per_token_s: float = 0.004) -> None:
        self._begun, self._per_token_s = 0, per_token_s

    async def __call__(self, params: dict[str, Any]) -> dict[str, Any]:
        calls = [item for item in params["input"] if item.get("type") == "function_call"]
        if not calls:
            self._begun += 1
        number = int(calls[0]["call_id"].split("_")[1]) if calls else self._begun - 1
        turns, words = ENDS[ORDER[number % len(ORDER)]]
        turns = [*BEGINNING, *turns]
        at = len(calls)
        thought, tool, arguments = turns[at] if at < len(turns) else ("", "", {})
        items: list[dict[str, Any]] = []
        if thought:
            items.append(
                {
                    "type": "reasoning",
                    "id": f"rs_{at}",
                    "summary": [{"type": "summary_text", "text": thought}],
                }
            )
        if tool:
            call = {
                "type": "function_call",
                "id": f"fc_{at}",
                "call_id": f"call_{number}_{at}",
                "status": "completed",
            }
            items.append({**call, "name": tool, "arguments": json.dumps(arguments)})
        else:
            items.append(rk.message_item(words))
        written = len(json.dumps(items)) // 4
        read = len(json.dumps(params["input"])) // 4
        await asyncio.sleep(written * self._per_token_s)
        usage = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
        return rk.make_response("scripted", items, usage)


async def collect_repairs(output: Path) -> None:
    """Two rollouts of the task, of which the second one solves it."""
    await rk.collect(
        [ROW],
        model=Coder(),
        environment=SHELL,
        output=output,
        num_repeats=len(ORDER),
        parallelism=1,
    )


@contextmanager
def serve_coder(per_token_s: float) -> Iterator[str]:
    """The model as an endpoint; its address."""
    coder = Coder(per_token_s)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            reply = json.dumps(asyncio.run(coder(asked))).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
