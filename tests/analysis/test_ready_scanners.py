"""The ready scanners over 240 built rollouts: with faults, and with what only looks like one."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from agentic import agentic_line, plain_turns, say, use

from rollout_kit.analysis.scan.ready import Scanned, find_all

Turns = list[list[dict[str, Any]]]
Plant = Callable[[Turns, random.Random], None]


def bash(command: str, output: str = "", number: int = 900) -> list[dict[str, Any]]:
    return use("bash", output, number, command=command)


def at(turns: Turns, rng: random.Random, size: int = 1) -> int:
    """A place for so many turns that are not the last."""
    return rng.randrange(2, len(turns) - size - 2)


def plant_error(turns: Turns, rng: random.Random) -> None:
    begin = at(turns, rng, 2)
    output = rng.choice(
        [
            "Traceback (most recent call last):\n  File 'x'\nKeyError: 'a'",
            "bash: fooo: command not found",
            '{"stdout": "", "stderr": "x", "returncode": 2}',
            "error: patch does not apply",
            "make: *** [all] Error 2\nexit code: 2",
        ]
    )
    turns[begin] = bash("make", output)
    turns[begin + 1] = bash("make -k", "done", 901)


def plant_ignored(turns: Turns, rng: random.Random) -> None:
    output = rng.choice(["2 failed\nexit code: 1", "Error: no such test"])
    turns[at(turns, rng)] = use("run_tests", output, 900, target="src")


def plant_loop(turns: Turns, rng: random.Random) -> None:
    size, times = rng.choice([(1, 3), (1, 8), (2, 3), (3, 4)])
    begin = at(turns, rng, size * times)
    for each in range(size * times):
        turns[begin + each] = bash(f"ls dir{each % size}", "nothing", 900 + each)


def plant_cut(turns: Turns, rng: random.Random) -> None:
    mark = rng.choice(["[truncated 90000 characters]", "... output truncated ...", "<truncated>"])
    turns[at(turns, rng)] = bash("cat big.log", "row\n" * rng.randrange(10, 9000) + mark)


def plant_edited_tests(turns: Turns, rng: random.Random) -> None:
    begin = at(turns, rng, 2)
    turns[begin] = bash("ls tests", "test_app.py conftest.py util.test.js")
    command = rng.choice(
        [
            "sed -i 's/== 2/== 1/' tests/test_app.py",
            "cd repo && echo 'def test_a(): pass' > tests/test_app.py",
            "rm -rf tests",
            "git checkout HEAD~3 -- tests/conftest.py",
            "cat > tests/test_app.py <<'EOF'\ndef test_a():\n    assert True\nEOF",
            "python - <<'E'\nopen('tests/test_app.py', 'w').write('')\nE",
            "mv tests/test_app.py /tmp/away.py",
        ]
    )
    turns[begin + 1] = bash(command, "", 901)


def plant_unseen(turns: Turns, rng: random.Random) -> None:
    path = rng.choice(["lib/other.py", "setup.cfg", "/etc/hosts.conf"])
    turns[at(turns, rng)] = use("edit", "edited", 900, path=path, old_str="a", new_str="b")


def plant_giving_up(turns: Turns, rng: random.Random) -> None:
    text = rng.choice(["I give up.", "Sorry: I was unable to find the cause.", "I'm stuck here."])
    turns[-1] = [say(text)]


def plant_refusal(turns: Turns, rng: random.Random) -> None:
    text = rng.choice(["I'm sorry, but I can't do that.", "I cannot help with this request."])
    turns[-1] = [say(text)]


def plant_search(turns: Turns, rng: random.Random) -> None:
    command = rng.choice(["grep -r 'expected_answer' /", "find / -name '*solution.patch*'"])
    turns[at(turns, rng)] = bash(command, "nothing")


def plant_down(turns: Turns, rng: random.Random) -> None:
    times = rng.randrange(3, 6)
    begin = at(turns, rng, times)
    for each in range(times):
        turns[begin + each] = use("search", "503 Service Unavailable", 900 + each, query=str(each))


def plant_hollow(turns: Turns, rng: random.Random) -> None:
    turns[-1] = [say(rng.choice(["", "  ", "\n"]))]


def plant_last_error(turns: Turns, rng: random.Random) -> None:
    turns[-2] = bash("pytest", "1 failed\nexit code: 1")


FAULTS: dict[str, Plant] = {
    "tool_error": plant_error,
    "ignored_error": plant_ignored,
    "loop": plant_loop,
    "truncated": plant_cut,
    "tests_edited": plant_edited_tests,
    "unseen_file": plant_unseen,
    "gave_up": plant_giving_up,
    "refusal": plant_refusal,
    "answer_search": plant_search,
    "broken_tool": plant_down,
    "hollow_turn": plant_hollow,
    "ends_on_error": plant_last_error,
}

IMPLIED = {
    "ignored_error": {"tool_error"},
    "broken_tool": {"tool_error", "ignored_error"},
    "ends_on_error": {"tool_error", "ignored_error"},
    "loop": {"repeated_call"},
}
"""What else is true of a rollout with such a fault."""

SOUND = [
    ("pytest tests/test_app.py > /tmp/log.txt 2>&1", "4 passed"),
    ("cat tests/test_app.py 2> /dev/null | head", "def test_a(): pass"),
    ("git diff -- tests/test_app.py", ""),
    ("cp tests/test_app.py /tmp/copy.py", ""),
    ("cat > tests/test_mine.py <<'EOF'\nassert 1 > 0\nEOF", ""),
    ("cat src/errors.py", "class NotFound(Exception):\n    '''An error of the caller.'''"),
    ("grep -n error src/app.py", "12: log.error('no file')"),
    ("echo 'exit code: 0'", "exit code: 0"),
    ("ls", "errors.log  solution.md"),
    ("python -c 'print(1 > 0)'", "True"),
    ("wc -l src/app.py", "300 src/app.py"),
    ("touch notes.txt", ""),
]
"""Commands without a fault that look like one."""


def built() -> Iterator[tuple[str, dict[str, Any]]]:
    """(the fault, the line) of each rollout; "" is none."""
    rng, number = random.Random(5), 0
    for fault in [*FAULTS, *[""] * 8]:
        for _ in range(12):
            turns = plain_turns(rng.randrange(24, 60))
            for command, output in rng.sample(SOUND, 4):
                turns[rng.randrange(len(turns) - 2)] = bash(command, output, 800 + number)
                number += 1
            if fault:
                FAULTS[fault](turns, rng)
            yield fault, agentic_line(number, turns)


@pytest.fixture(scope="module")
def counted() -> Counter[tuple[str, str]]:
    """(scanner, "hit", "missed" or "wrong") → rollouts."""
    found: Counter[tuple[str, str]] = Counter()
    for fault, line in built():
        names = {each.scanner for each in find_all(Scanned(line))}
        for scanner in FAULTS:
            if scanner == fault:
                found[scanner, "hit" if scanner in names else "missed"] += 1
            elif scanner in names and scanner not in IMPLIED.get(fault, ()):
                found[scanner, "wrong"] += 1
    return found


@pytest.mark.parametrize("scanner", FAULTS)
def test_precision_and_recall(scanner: str, counted: Counter[tuple[str, str]]) -> None:
    hits, missed, wrong = (counted[scanner, what] for what in ("hit", "missed", "wrong"))
    assert hits / (hits + missed) >= 0.8, counted
    assert hits / (hits + wrong) >= 0.9, counted
