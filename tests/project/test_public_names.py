"""Every public name has a docstring with an example, and the example runs as it stands."""

import ast
import asyncio
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from support import may_isolate, write_jsonl

import rollout_kit as rk

ALIASES = {"END", "Item", "JsonObject", "Reverify"}
"""Names that stand for a type or a value, which have no docstring."""

NAMES = sorted({name for names in rk._HOMES.values() for name in names.split()} - ALIASES)

EXAMPLE = re.compile(r"^Example(?: \(needs (.+)\))?:\n\n((?:(?: {4}.*)?\n?)+)", re.MULTILINE)

ROWS = [{"responses_create_params": {"input": "What is 2 + 2?"}, "expected_answer": "4"}]


def example_of(name: str) -> tuple[str, str]:
    """What the example of a name needs, and its code."""
    found = getattr(rk, name)
    text = vars(found).get("__doc__") if inspect.isclass(found) else found.__doc__
    assert text, f"{name} has no docstring"
    match = EXAMPLE.search(inspect.cleandoc(text) + "\n")
    assert match, f"{name} has no example"
    return match[1] or "", textwrap.dedent(match[2])


async def run(code: str, scope: dict[str, Any]) -> None:
    compiled = compile(code, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    found = eval(compiled, scope)
    if inspect.iscoroutine(found):
        await found


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_public_name_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    needs, code = example_of(name)
    assert re.search(rf"\b{name}\b", code) or name in inspect.getsource(getattr(rk, name))
    write_jsonl(tmp_path / "tasks.jsonl", ROWS)
    if '"rollouts.jsonl"' in code:
        model, verify = (lambda params: "4"), (lambda task, response: 1.0)
        rk.collect_sync(ROWS, model=model, verify=verify, output="rollouts.jsonl").table()
    if needs == "ng_run" or (needs == "namespaces" and not may_isolate()):
        compile(code, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        return
    asyncio.run(run(code, {"rk": rk, "rows": ROWS, "Path": Path, "asyncio": asyncio}))


def test_names_without_an_example_stand_for_a_type_alone() -> None:
    for name in ALIASES:
        assert not inspect.isclass(getattr(rk, name)) or getattr(rk, name) is dict
        assert not inspect.isfunction(getattr(rk, name))
