"""A resources server that keeps what belongs to one session on `self`."""

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import as_function
from support import OF_OTHERS, write_jsonl

from rollout_kit.authoring.self_writes import find_self_writes
from rollout_kit.serving import registry

audit_verifier = as_function("ng_audit_verifier")
ng_test = as_function("ng_test")

APP = '''
from pathlib import Path
from pydantic import BaseModel
from rollout_kit import ResourcesServer, RunRequest, VerifyRequest, VerifyResponse, tool


KEPT = {"total": 0}
KEPT_FILE = Path(__file__).with_name("kept.txt")


def make_count():
    total = 0

    def count(number):
        nonlocal total
        total = 0 if number is None else total + number
        return total

    return count


COUNT = make_count()


class Row(VerifyRequest):
    expected: int


class Add(BaseModel):
    number: int


class Sums(ResourcesServer):
    reverify = "replay"

    def __init__(self, config, peers, name):
        super().__init__(config, peers, name)
        self.total = 0

    async def seed_session(self, body: RunRequest) -> dict:
        PLACE = START
        return {}

    @tool
    async def add(self, body: Add) -> dict:
        """Add a number."""
        CHANGE
        return {"total": VALUE}

    async def verify(self, body: Row) -> VerifyResponse:
        return body.scored(float(VALUE == body.expected))
'''

KINDS = {
    "state": (
        "self.state",
        "{'total': 0}",
        "self.state['total'] += body.number",
        "self.state['total']",
    ),
    "self": ("self.total", "0", "self.total += body.number", "self.total"),
    "helper": ("self.total", "0", "self._more(body.number)", "self.total"),
    "list": ("self.parts", "[]", "self.parts.append(body.number)", "sum(self.parts)"),
    "module": ("KEPT['total']", "0", "KEPT['total'] += body.number", "KEPT['total']"),
    "class": ("Sums.kept", "0", "Sums.kept += body.number", "Sums.kept"),
    "closure": ("_", "COUNT(None)", "COUNT(body.number)", "COUNT(0)"),
    "file": (
        "_",
        "KEPT_FILE.write_text('0')",
        "KEPT_FILE.write_text(str(int(KEPT_FILE.read_text()) + body.number))",
        "int(KEPT_FILE.read_text())",
    ),
}
ON_SELF = ("self", "helper", "list")
HELPER = "\n    def _more(self, number):\n        self.total += number\n"


def call(number: int, index: int) -> dict[str, Any]:
    return {
        "type": "function_call",
        "name": "add",
        "arguments": f'{{"number": {number}}}',
        "call_id": f"c{index}",
    }


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Makes a server of a kind in the working folder; returns its entrypoint."""
    monkeypatch.chdir(tmp_path)

    def made(kind: str) -> str:
        place, start, change, value = KINDS[kind]
        folder = tmp_path / f"resources_servers/sums_{kind}"
        folder.mkdir(parents=True)
        text = APP.replace("PLACE", place).replace("START", start)
        text = text.replace("CHANGE", change).replace("VALUE", value)
        (folder / "app.py").write_text(text + (HELPER if kind == "helper" else ""))
        rows = [
            {
                "responses_create_params": {"input": "Add."},
                "expected": 3 * number,
                "gold_items": [call(number, 0), call(2 * number, 1)],
                "wrong_items": [call(number, 0)],
            }
            for number in (1, 2, 5)
        ]
        (folder / "data").mkdir()
        (folder / "configs").mkdir()
        block = {f"sums_{kind}": {"resources_servers": {f"sums_{kind}": {}}}}
        (folder / f"configs/sums_{kind}.yaml").write_text(json.dumps(block))
        write_jsonl(folder / "data/example.jsonl", rows)
        return f"resources_servers/sums_{kind}"

    return made


def run(main: Any, capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit):
        main(list(argv))
    found = capsys.readouterr()
    return found.out + found.err


@pytest.mark.parametrize("kind", KINDS)
def test_ng_test_lets_sessions_take_turns_and_names_the_line(
    make: Callable[[str], str], capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    said = run(ng_test, capsys, f"+entrypoint={make(kind)}")
    [line] = [each for each in said.splitlines() if "sessions at the same time" in each]
    if kind == "state":
        assert line.startswith("ok") and "writes to self" not in said, said
    else:
        assert line.startswith("FAILED"), said
        names_line = f"sums_{kind}/app.py:" in said and "writes to self." in said
        assert names_line == (kind in ON_SELF), said
    assert "equal verdicts when repeated" in said, "one after the other they are equal"
    assert ("a verdict takes" in said) == (kind == "state" or line.startswith("FAILED"))


@pytest.mark.parametrize("kind", ["state", "self"])
def test_the_audit_finds_what_leaks_between_sessions(
    make: Callable[[str], str], capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    said = run(audit_verifier, capsys, f"+entrypoint={make(kind)}")
    assert ("leaks state between sessions" in said) == (kind == "self"), said
    assert ("writes to self.total" in said) == (kind == "self"), said


def test_no_server_of_ours_writes_to_self() -> None:
    names = registry.implementations("resources_servers", Path(registry.__file__).parents[2])
    # those of others keep one connection a rollout on themselves, to close what is left at the end
    loaded = (registry.load("resources_servers", name) for name in names if name not in OF_OTHERS)
    assert [str(each) for server in loaded for each in find_self_writes(server)] == []
    assert len(names) >= 18


def test_what_a_lock_guards_is_meant_to_be_shared(tmp_path: Path) -> None:
    guarded = """
        from rollout_kit import ResourcesServer

        class Guarded(ResourcesServer):
            async def verify(self, task, response):
                async with self.lock:
                    self.opened = True
                self.first, (other, *self.second) = 1, (2, 3)
                del self.third[0]
                return 1.0
    """
    folder = tmp_path / "resources_servers/guarded"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(textwrap.dedent(guarded))
    found = find_self_writes(registry.load("resources_servers", "guarded", tmp_path))
    assert [each.attribute for each in found] == ["first", "second", "third"]
