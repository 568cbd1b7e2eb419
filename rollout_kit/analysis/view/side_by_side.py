"""Rollouts next to each other: what they have in common at the beginning, and two of them aligned
turn by turn."""

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from hashlib import blake2b
from itertools import takewhile
from typing import Any

from ...store.steps import ToolUse, TurnStep, describe_use, read_steps, shorten
from ...types import JsonObject

MAX_COLUMNS = 12
"""Rollouts next to each other; the others are left out."""

MAX_TURNS = 400
"""Turns of a rollout from the first difference on that are sent, and that are aligned."""

MAX_OUTPUT, MAX_TEXT = 240, 600
"""Characters of an output and of what the model says."""


def put_side_by_side(lines: Sequence[Mapping[str, Any]]) -> JsonObject:
    """`num_equal` turns at the beginning are the same in all. `columns` has the turns from there
    on. `rows` aligns two rollouts: each is a pair of places in the two columns, null for none, and
    whether they are equal."""
    steps = list(map(read_steps, lines))
    marks = [list(map(_sign, each)) for each in steps]
    num_equal = sum(1 for _ in takewhile(_are_equal, zip(*marks, strict=False)))
    shown = [each[num_equal : num_equal + MAX_TURNS] for each in steps]
    rows = None
    if len(shown) == 2:
        rest = [each[num_equal : num_equal + MAX_TURNS] for each in marks]
        rows = _align(*rest)
    return {
        "num_equal": num_equal,
        "columns": [list(map(_describe, each)) for each in shown],
        "num_turns": [len(each) for each in steps],
        "rows": rows,
    }


def _are_equal(marks: tuple[bytes, ...]) -> bool:
    return len({*marks}) == 1


def _sign(step: TurnStep) -> bytes:
    """A digest of what a turn says, calls and gets."""
    made = blake2b(step.text.encode("utf-8", "surrogatepass"), digest_size=12)
    for tool in step.tools:
        for part in (tool.name, tool.arguments, tool.output or ""):
            made.update(b"\0" + part.encode("utf-8", "surrogatepass"))
    return made.digest()


def _align(one: Sequence[bytes], other: Sequence[bytes]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for tag, i, j, k, m in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        for at in range(max(j - i, m - k)):
            left, right = i + at if i + at < j else None, k + at if k + at < m else None
            rows.append([left, right, tag == "equal"])
    return rows


def _describe(step: TurnStep) -> JsonObject:
    return {
        "number": step.number,
        "says": shorten(step.text, MAX_TEXT),
        "tools": list(map(_describe_tool, step.tools)),
    }


def _describe_tool(tool: ToolUse) -> JsonObject:
    output = None if tool.output is None else shorten(tool.output, MAX_OUTPUT)
    return {**describe_use(tool), "output": output}
