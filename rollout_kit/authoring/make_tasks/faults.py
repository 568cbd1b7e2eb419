"""Faults to plant in Python code: changed operators and values, removed bodies, and lines of an
earlier release. The code is parsed and never run."""

import ast
import difflib
import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

Kind = Literal["mutation", "removed_function", "earlier_release"]

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}

OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "+",
}

MAX_HUNK = 12
"""Lines of a difference between two releases that is one fault."""

MAX_OF_FILE = 150

MIN_BODY = 2
"""Lines of a function whose removal is a task."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A file with a fault: `changed` in place of `original`, which differ from `line` on. `about`
    says what the agent is told, for a function that is missing."""

    kind: Kind
    path: str
    line: int
    original: str
    changed: str
    about: str = ""

    @property
    def lost(self) -> list[str]:
        """The lines of the original that the faulty file does not have."""
        found = difflib.ndiff(self.changed.splitlines(), self.original.splitlines())
        return [line[2:].strip() for line in found if line.startswith("+ ") and line[2:].strip()]


def list_faults(path: str, text: str, covered: Collection[int], draw: random.Random) -> list[Fault]:
    """Mutations and removed functions of lines that tests cover, at most MAX_OF_FILE of each."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    source = _Text(text)
    nodes = [each for each in ast.walk(tree) if getattr(each, "lineno", 0) in covered]
    draw.shuffle(nodes)
    mutations = (
        Fault("mutation", path, getattr(node, "lineno", 0), text, changed)
        for node in nodes
        for changed in _mutate(node, source)
        if changed != text
    )
    found = list(islice(mutations, MAX_OF_FILE))
    functions = [
        each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for node in draw.sample(functions, min(len(functions), MAX_OF_FILE)):
        if body := _find_body(node, covered):
            changed = source.replace(_start(body[0]), _end(body[-1]), "raise NotImplementedError")
            about = f"The function `{node.name}` in {path} has lost its body. Write it again."
            found.append(Fault("removed_function", path, body[0].lineno, text, changed, about))
    return found


def list_differences(path: str, text: str, earlier: str) -> list[Fault]:
    """Each small difference to an earlier release, undone alone."""
    now, before = text.splitlines(keepends=True), earlier.splitlines(keepends=True)
    found = []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, now, before).get_opcodes():
        if tag == "equal" or j - i > MAX_HUNK or m - k > MAX_HUNK:
            continue
        changed = "".join([*now[:i], *before[k:m], *now[j:]])
        if parses(changed) and ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text)):
            found.append(Fault("earlier_release", path, i + 1, text, changed))
    return found


def choose(faults: list[Fault], seed: int) -> list[Fault]:
    """The faults in a random order in which kinds and files take turns."""
    draw = random.Random(seed)
    groups: dict[tuple[str, str], list[Fault]] = {}
    for each in draw.sample(faults, len(faults)):
        groups.setdefault((each.kind, each.path), []).append(each)
    queues, chosen = list(groups.values()), []
    while queues:
        chosen += [queue.pop() for queue in queues]
        queues = [queue for queue in queues if queue]
    return chosen


class _Text:
    """A source file, of which spans of nodes are replaced. Columns of nodes count bytes."""

    def __init__(self, text: str) -> None:
        self.lines = [line.encode() for line in text.splitlines(keepends=True)]

    def replace(self, start: tuple[int, int], end: tuple[int, int], new: str) -> str:
        before = b"".join(self.lines[: start[0] - 1]) + self.lines[start[0] - 1][: start[1]]
        after = self.lines[end[0] - 1][end[1] :] + b"".join(self.lines[end[0] :])
        return (before + new.encode() + after).decode(errors="replace")

    def get(self, start: tuple[int, int], end: tuple[int, int]) -> str:
        if start[0] != end[0]:
            return ""
        return self.lines[start[0] - 1][start[1] : end[1]].decode(errors="replace")


def _start(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def _mutate(node: ast.AST, text: _Text) -> Iterator[str]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        new = COMPARISONS.get(type(node.ops[0]))
        if new and text.get(_end(node.left), _start(node.comparators[0])).strip():
            yield text.replace(_end(node.left), _start(node.comparators[0]), f" {new} ")
    elif isinstance(node, ast.BinOp) and (new := OPERATORS.get(type(node.op))):
        between = text.get(_end(node.left), _start(node.right))
        if between and "(" not in between and ")" not in between:
            yield text.replace(_end(node.left), _start(node.right), f" {new} ")
    elif isinstance(node, ast.BoolOp):
        new = "or" if isinstance(node.op, ast.And) else "and"
        between = text.get(_end(node.values[0]), _start(node.values[1]))
        if between.strip() in ("and", "or"):
            yield text.replace(_end(node.values[0]), _start(node.values[1]), f" {new} ")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield text.replace(_start(node), _start(node.operand), "")
    elif isinstance(node, ast.Constant):
        yield from _change_constant(node, text)
    elif isinstance(node, ast.If) and not isinstance(node.test, ast.Constant):
        yield text.replace(_start(node.test), _end(node.test), "False")
    elif isinstance(node, ast.Return) and node.value is not None:
        if not isinstance(node.value, ast.Constant):
            yield text.replace(_start(node.value), _end(node.value), "None")
    elif isinstance(node, ast.AugAssign):
        new, between = OPERATORS.get(type(node.op)), text.get(_end(node.target), _start(node.value))
        if new and between.strip().endswith("="):
            yield text.replace(_end(node.target), _start(node.value), f" {new}= ")


def _change_constant(node: ast.Constant, text: _Text) -> Iterator[str]:
    if isinstance(node.value, bool):
        yield text.replace(_start(node), _end(node), str(not node.value))
    elif isinstance(node.value, int) and abs(node.value) < 1_000:
        yield text.replace(_start(node), _end(node), str(node.value + 1))


def _find_body(
    node: ast.FunctionDef | ast.AsyncFunctionDef, covered: Collection[int]
) -> list[ast.stmt]:
    """What a function does that tests run, without its docstring; empty if it is too short."""
    first = node.body[0]
    is_documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    body = node.body[1:] if is_documented else node.body
    if not body or body[0].lineno == node.lineno:
        return []
    lines = range(body[0].lineno, (body[-1].end_lineno or 0) + 1)
    is_covered = any(line in covered for line in lines)
    return body if is_covered and len(lines) >= MIN_BODY else []


def parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
