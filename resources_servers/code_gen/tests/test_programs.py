"""Tests that are a program over a function."""

import asyncio

import orjson
import pytest
from support import HANG_S

from rollout_kit import make_response, message_item
from rollout_kit.errors import TaskError
from rollout_kit.serving.registry import load
from rollout_kit.session import Session, entered

CodeGen = load("resources_servers", "code_gen")
PROMPT = 'from typing import List\n\n\ndef add(a: int, b: int) -> int:\n    """Add."""\n'
CHECK = """
METADATA = {}


def check(candidate):
    assert candidate(1, 2) == 3
    assert candidate(-1, b=1) == 0


check(add)
"""


def verify(pairs):
    """The verdicts on (unit_tests, text) pairs, from one server."""

    async def run():
        server = CodeGen(CodeGen.Config(unit_test_timeout_secs=HANG_S), None, "code_gen")
        await server.start()
        try:
            found = []
            for tests, text in pairs:
                task = {
                    "responses_create_params": {"input": "?"},
                    "verifier_metadata": {"unit_tests": tests},
                }
                with entered(Session()):
                    response = make_response("m", [message_item(text)] if text else [], None)
                    body = orjson.dumps({**task, "response": response})
                    found.append((await server.handle("/verify", body)).model_dump())
            return found
        finally:
            await server.stop()

    return asyncio.run(run())


def program_over(program=CHECK, prompt=PROMPT, name="add"):
    return {"program": program, "preamble": prompt, "fn_name": name}


RIGHT = "def add(a, b):\n    return a + b"
ANSWERS = [
    (f"```python\n{RIGHT}\n```", 1),
    (RIGHT, 1),
    ("    return a + b", 1),
    ("```python\n    return a + b\n```", 1),
    ("add = lambda a, b: a + b", 1),
    ("def add(a, b):\n    return a - b", 0),
    ("", 0),
    ("I cannot write code.", 0),
    ("```python\ndef add(a, b):\n    return a +", 0),
    ("def add(a, b):\n    raise SystemExit(0)", 0),
    ("import os\nos._exit(0)", 0),
    ("import sys\nsys.exit(0)", 0),
    ("def other(a, b):\n    return a + b", 0),
    (
        "class Same(int):\n    def __eq__(self, other):\n        return True\n"
        "def add(a, b):\n    return Same(7)",
        0,
    ),
    (
        "class Same:\n    def __eq__(self, other):\n        return True\n"
        "def add(a, b):\n    return Same()",
        0,
    ),
    ("import builtins\nbuiltins.AssertionError = ValueError\ndef add(a, b):\n    return 7", 0),
    (
        "import sys\nmain = sys.modules['__main__']\nmain.run_tests = lambda *_: {'passed': True}\n"
        "main.encode = lambda value: {'passed': True}\ndef add(a, b):\n    return 7",
        0,
    ),
    ("def check(candidate):\n    pass\ndef add(a, b):\n    return 7", 0),
]


def test_answers_to_a_function():
    found = verify([(program_over(), text) for text, _ in ANSWERS])
    wrong = [
        (text, verdict["metadata"])
        for verdict, (text, reward) in zip(found, ANSWERS, strict=True)
        if verdict["reward"] != reward
    ]
    assert not wrong


VALUES = [
    ("(1, 2)", "[1, 2]"),
    ("{1: 'a'}", "{'1': 'a'}"),
    ("1", "'1'"),
    ("None", "False"),
    ("{1, 2}", "[1, 2]"),
    ("b'a'", "'a'"),
    ("1 + 2j", "1"),
    ("float('inf')", "10.0**308"),
    ("[(1, 'é\\ud800'), {'a': [None, True]}]", "[(1, 'é'), {'a': [None, True]}]"),
    ("10**400", "10**400 + 1"),
]


def test_values_keep_their_types():
    program = "assert value() == {}"
    pairs = [
        (program_over(program.format(right), "", "value"), f"def value():\n    return {given}")
        for right, wrong in VALUES
        for given in (right, wrong)
    ]
    assert [verdict["reward"] for verdict in verify(pairs)] == [1, 0] * len(VALUES)


ROUND_TRIP = """
import random
for _ in range(20):
    text = "".join(chr(random.randint(97, 122)) for _ in range(random.randint(1, 9)))
    assert decode(encode(text)) == text
    assert decode(decode(text)) == text
"""


def test_calls_with_earlier_results_and_helpers_of_the_prompt():
    prompt = (
        'def encode(text):\n    return text[::-1]\n\n\ndef decode(text):\n    """Undo encode."""\n'
    )
    later = "first = grow([1])\nsecond = grow(first)\nassert second == [1, 1, 1], second"
    pairs = [
        (program_over(ROUND_TRIP, prompt, "decode"), "    return text[::-1]"),
        (program_over(ROUND_TRIP, prompt, "decode"), "    return text"),
        (program_over(later, "", "grow"), "def grow(items):\n    return items + [1]"),
        (program_over(later, "", "grow"), "def grow(items):\n    return items"),
        (
            program_over("assert count() == 1\nassert count() == 2", "", "count"),
            "seen = []\ndef count():\n    seen.append(1)\n    return len(seen)",
        ),
    ]
    assert [verdict["reward"] for verdict in verify(pairs)] == [1, 0, 1, 0, 1]


def test_exceptions_reach_the_tests():
    program = (
        "try:\n    fail()\nexcept ValueError as error:\n    assert 'no' in str(error)\n"
        "else:\n    assert False"
    )
    pairs = [
        (program_over(program, "", "fail"), "def fail():\n    raise ValueError('no')"),
        (program_over(program, "", "fail"), "def fail():\n    raise KeyError('no')"),
        (program_over(program, "", "fail"), "def fail():\n    return 1"),
    ]
    assert [verdict["reward"] for verdict in verify(pairs)] == [1, 0, 0]


def test_tests_that_cannot_run_are_an_error_of_the_row():
    with pytest.raises(TaskError, match=r"unit_tests\.program cannot run"):
        verify([(program_over("assert add(1, 2 == 3"), RIGHT)])


@pytest.mark.parametrize(
    "tests", [{"program": "x"}, {"program": "x", "fn_name": "f", "inputs": ["1"], "outputs": ["1"]}]
)
def test_program_needs_a_function_and_no_other_tests(tests):
    with pytest.raises(TaskError, match="needs fn_name"):
        verify([(tests, RIGHT)])
