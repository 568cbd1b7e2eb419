"""Finds handlers of a resources server that write to `self`, which all sessions share.

What a session needs between two calls belongs into `self.state`.
"""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..serving.service import Service

HANDLERS = frozenset(
    ["seed_session", "verify", "verify_group", "close_session", "new_game", "new_world"]
)
"""Methods that a request calls, besides those with one of these DECORATORS."""

DECORATORS = frozenset(("tool", "get", "post"))

PER_SESSION = "state"
"""The attribute that each session has of its own."""

CHANGES = {"add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove"}
CHANGES |= {"reverse", "setdefault", "sort", "update"}
"""Methods that change a list, a set or a mapping."""


Method = ast.FunctionDef | ast.AsyncFunctionDef


class SelfWrite(NamedTuple):
    """A line in a handler, or in a method that it calls, that changes an attribute of `self`."""

    file: Path
    line: int
    attribute: str

    def __str__(self) -> str:
        return (
            f"{self.file.parent.name}/{self.file.name}:{self.line}: writes to"
            f" self.{self.attribute}, which all sessions share: keep it in self.state"
        )


def find_self_writes(server: type[Service]) -> Iterator[SelfWrite]:
    """The writes in the code of a server's own folder, in the order of its lines."""
    folder = Path(inspect.getfile(server)).parent
    methods = _own_methods(server, folder)
    left = [name for name, (_, each) in methods.items() if name in HANDLERS or _is_route(each)]
    seen, found = set(left), list[SelfWrite]()
    while left:
        file, method = methods[left.pop()]
        for node in _walk(method):
            found += (
                SelfWrite(file, node.lineno, attribute)
                for attribute in _written(node)
                if attribute != PER_SESSION
            )
            called = _attribute_of_self(node.func) if isinstance(node, ast.Call) else None
            if called in methods and called not in seen:
                seen.add(called)
                left.append(called)
    yield from sorted(set(found))


def _own_methods(server: type, folder: Path) -> dict[str, tuple[Path, Method]]:
    """Name → file and code of the methods that the folder defines, as the class finds them."""
    found = {}
    for cls in server.__mro__:
        try:
            file = Path(inspect.getfile(cls))
        except TypeError:  # a built-in class
            continue
        if not file.is_relative_to(folder):
            continue
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
                for each in node.body:
                    if isinstance(each, Method):
                        found.setdefault(each.name, (file, each))
    return found


def _walk(node: ast.AST) -> Iterator[ast.stmt | ast.expr]:
    """A node and those in it, but not what a lock of `self` guards: that is meant to be shared."""
    guards = node.items if isinstance(node, ast.With | ast.AsyncWith) else []
    if any(_attribute_of_self(each.context_expr) is not None for each in guards):
        return
    if isinstance(node, ast.stmt | ast.expr):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _walk(child)


def _is_route(method: Method) -> bool:
    decorators = (
        each.func if isinstance(each, ast.Call) else each for each in method.decorator_list
    )
    return any(isinstance(each, ast.Name) and each.id in DECORATORS for each in decorators)


def _written(node: ast.AST) -> Iterator[str]:
    """The attributes of `self` that a node changes."""
    left: list[ast.expr] = []
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            left = [*targets]
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target, value=ast.expr()):
            left = [target]
        case ast.Call(func=ast.Attribute(attr=name, value=changed)) if name in CHANGES:
            left = [changed]
    while left:
        part = left.pop(0)
        if isinstance(part, ast.Tuple | ast.List):
            left += part.elts
        elif (root := _root_of(part)) is not None:
            yield root


def _root_of(node: ast.expr) -> str | None:
    """`x` of `self.x`, `self.x.y` and `self.x[…]`; None for what is not of `self`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        if (name := _attribute_of_self(node)) is not None:
            return name
        node = node.value
    return None


def _attribute_of_self(node: ast.AST) -> str | None:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id == "self" else None
    return None
