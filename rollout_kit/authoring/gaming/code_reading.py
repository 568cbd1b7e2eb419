"""Ways to game a server that its code shows: tools that give the answer away, tests that a
model can change, and submitted programs that are believed."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from .canary import GIVES_AWAY
from .sinks import STARTS
from .text_flow import SourceFile, get_calls, get_name, get_parameters, is_tool, read_folder

TRUTH_NAME = re.compile(
    r"(?:^|_)(?:answers?|expected|labels?|truth|gold|solutions?|secret|correct|hidden|reference)(?:_|$)",
    re.IGNORECASE,
)
"""Names of what a tool must not show."""

WRITES = frozenset({"write_text", "write_bytes", "writelines", "write"})

EDITABLE = "a tool can edit what the verifier trusts"
TRUSTS_EXIT = "believes the exit status of submitted code"

Found = tuple[str, str]
"""The name of a flag, and its evidence."""

Method = ast.FunctionDef | ast.AsyncFunctionDef


def read_code(folder: Path) -> list[Found]:
    """Flags that the code of a folder gives reason for."""
    files = read_folder(folder)
    found = list[Found]()
    for file in files:
        methods = [node for node in ast.walk(file.tree) if isinstance(node, Method)]
        for method in methods:
            if is_tool(method):
                found += _read_tool(file, method)
            found += _read_runner(file, method)
    if any(flag == "" for flag, _ in found):
        rests = _rests_on_world(files)
        found = [(flag or EDITABLE, what) for flag, what in found if flag or rests]
    return found


def _show(file: SourceFile, node: ast.stmt | ast.expr, what: str) -> str:
    return f"{file.path.parent.name}/{file.path.name}:{node.lineno}: {what}"


def _read_tool(file: SourceFile, tool: Method) -> Iterator[Found]:
    """A tool that returns a field named like the answer, or that writes where its caller says. The
    latter has no name yet: it depends on what the verdict rests on."""
    given = set(get_parameters(tool)) - {"self"}
    hidden = _list_hidden_names(tool)
    for node in ast.walk(tool):
        value = node.value if isinstance(node, ast.Return) else None
        if value is not None and (name := _find_truth(value, hidden)):
            yield GIVES_AWAY, _show(file, value, f"{tool.name} returns {name}")
        for place in _list_written_keys(node, file):
            if any(isinstance(each, ast.Name) and each.id in given for each in ast.walk(place)):
                assert isinstance(node, ast.stmt | ast.expr)
                what = f"{tool.name} writes where its arguments say"
                yield "", _show(file, node, what)


def _list_hidden_names(tool: Method) -> dict[str, str]:
    """Variables of a tool that hold a field named like the answer."""
    found = dict[str, str]()
    for node in ast.walk(tool):
        if isinstance(node, ast.Assign) and (name := _find_truth(node.value, found)):
            for target in node.targets:
                found |= {each.id: name for each in ast.walk(target) if isinstance(each, ast.Name)}
    return found


def _find_truth(node: ast.expr, hidden: dict[str, str]) -> str:
    """The field named like the answer whose value an expression passes on; '' if it has none. A
    comparison or a call such as `len` passes on no value."""
    match node:
        case ast.Compare():
            return ""
        case ast.Call(func=ast.Name(id=name)) if name in ("len", "bool", "isinstance", "hash"):
            return ""
        case ast.Call(
            func=ast.Attribute(value=value, attr="get"), args=[ast.Constant(value=key), *_]
        ):
            named = str(key)
            return named if TRUTH_NAME.search(named) and _is_of_state(value) else ""
        case ast.Attribute(value=value, attr=name) if TRUTH_NAME.search(name):
            return name if _is_of_state(value) else ""
        case ast.Subscript(value=value, slice=ast.Constant(value=str(name))):
            return name if TRUTH_NAME.search(name) and _is_of_state(value) else ""
        case ast.Name(id=name):
            return hidden.get(name, "")
        case ast.IfExp(body=body, orelse=orelse):
            return _find_truth(body, hidden) or _find_truth(orelse, hidden)
        case _:
            parts = (each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr))
            return next(filter(None, (_find_truth(each, hidden) for each in parts)), "")


def _is_of_state(node: ast.expr) -> bool:
    """Whether an expression is of `self.state`, or of what a session holds."""
    return any(isinstance(each, ast.Attribute) and each.attr == "state" for each in ast.walk(node))


def _list_written_keys(node: ast.AST, file: SourceFile) -> Iterator[ast.expr]:
    """Keys of the state and paths of files that a node writes to."""
    match node:
        case ast.Assign(targets=targets):
            for target in targets:
                if isinstance(target, ast.Subscript) and _is_state(target.value):
                    yield target.slice
        case ast.Call(func=ast.Attribute(value=value, attr="update"), args=[given, *_]):
            if _is_state(value):
                yield given
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in WRITES:
            yield value
        case ast.Call(func=func, args=[path, mode, *_]) if get_name(func, file.names) == "open":
            if isinstance(mode, ast.Constant) and set(str(mode.value)) & set("wax"):
                yield path
        case ast.Call(func=ast.Name(id="setattr"), args=[_, name, *_]):
            yield name
        case _:
            pass


def _is_state(node: ast.expr) -> bool:
    """Whether an expression is `self.state`, not a part of it."""
    return isinstance(node, ast.Attribute) and node.attr == "state"


def _rests_on_world(files: list[SourceFile]) -> bool:
    """Whether a verdict reads a field of the state named like the answer, a file, or starts a
    program."""
    for file in files:
        for verify in ast.walk(file.tree):
            if isinstance(verify, Method) and verify.name == "verify":
                for node in ast.walk(verify):
                    if isinstance(node, ast.expr) and _is_of_state(node) and _find_truth(node, {}):
                        return True
                for call in get_calls(verify):
                    name = get_name(call.func, file.names)
                    if name in STARTS or name == "open" or name.endswith((".read_text", ".exists")):
                        return True
    return False


def _read_runner(file: SourceFile, method: Method) -> Iterator[Found]:
    """A program that is started beside files written for it."""
    calls = [(call, get_name(call.func, file.names)) for call in get_calls(method)]
    starts = [call for call, name in calls if name in STARTS]
    writes = [
        call
        for call, name in calls
        if name.rpartition(".")[2] in ("write_text", "write_bytes") or _opens_to_write(call, name)
    ]
    if not starts or not writes:
        return
    if len(writes) > 1:
        what = f"{method.name} starts a program in a folder that holds a submission and its tests"
        yield EDITABLE, _show(file, starts[0], what)
    if any(
        isinstance(each, ast.Attribute) and each.attr == "returncode" for each in ast.walk(method)
    ):
        yield TRUSTS_EXIT, _show(file, starts[0], f"{method.name} reads no more than returncode")


def _opens_to_write(call: ast.Call, name: str) -> bool:
    mode = call.args[1] if len(call.args) > 1 else None
    is_mode = isinstance(mode, ast.Constant) and set(str(mode.value)) & set("wax")
    return (name == "open" or name.endswith(".open")) and bool(is_mode)
