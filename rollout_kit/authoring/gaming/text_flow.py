"""Follows the text of models and rows through the code of a server, to calls that run it or that
open the file it names.

The text enters by the arguments of handlers and by `self.state`. It flows through assignments,
calls of the folder's own functions, threads and worker processes. It ends at numbers, comparisons,
and in the files that the server's sandbox runs.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from ..self_writes import DECORATORS, HANDLERS
from .sinks import (
    HARMLESS,
    HOLDS_INSIDE,
    LAST_PARTS,
    OPENS_FILE,
    PATH_METHODS,
    PATHS,
    describe_sink,
)

ENTRIES = HANDLERS | {"check_later", "step", "compute_reward", "score", "env_response"}
"""Methods whose arguments hold text of a row or of a model."""

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

PASSES = 2
"""How often a body is read, so that what a loop assigns at its end is known at its start."""


class TextSink(NamedTuple):
    """A line that runs a text of a model or a row, or opens the file that it names."""

    file: Path
    line: int
    call: str
    what: str

    def __str__(self) -> str:
        return f"{self.file.parent.name}/{self.file.name}:{self.line}: {self.call} {self.what}"


@dataclass(frozen=True, slots=True)
class Code:
    """A function of the folder. `is_worker`: a worker process runs it."""

    file: Path
    node: Function
    is_worker: bool = False


@dataclass(slots=True)
class SourceFile:
    """A module of the folder, and what its imports call things."""

    path: Path
    tree: ast.Module
    names: dict[str, str] = field(default_factory=dict)


def read_folder(folder: Path) -> list[SourceFile]:
    """The modules of a server without its tests."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).parts
        if "tests" in parts or path.name.startswith(("test_", "conftest")):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except SyntaxError:  # the import says where
            continue
        found.append(SourceFile(path, tree, _read_imports(tree)))
    return found


def find_text_sinks(folder: Path) -> list[TextSink]:
    """The lines that run text of a model or a row, in order."""
    return _Flow(read_folder(folder)).find()


def get_calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def get_name(node: ast.AST, names: Mapping[str, str]) -> str:
    """The dotted name of an expression, as it is imported; '' for what has none."""
    match node:
        case ast.Name(id=name):
            return names.get(name, name)
        case ast.Attribute(value=value, attr=name):
            start = get_name(value, names)
            return f"{start}.{name}" if start else f"?.{name}"
        case ast.Subscript(value=ast.Name(id="__builtins__"), slice=ast.Constant(value=str(name))):
            return name
        case ast.Call(func=ast.Name(id="getattr"), args=[value, ast.Constant(value=str(name)), *_]):
            return f"{get_name(value, names)}.{name}"
        case _:
            return ""


def is_tool(node: ast.AST) -> bool:
    """Whether a model or a request calls this method by its name."""
    given = getattr(node, "decorator_list", ())
    named = (each.func if isinstance(each, ast.Call) else each for each in given)
    return any(getattr(each, "id", getattr(each, "attr", "")) in DECORATORS for each in named)


def get_parameters(node: Function) -> list[str]:
    given = node.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return [each.arg for each in every if each is not None]


def _read_imports(tree: ast.Module) -> dict[str, str]:
    found = dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                found[each.asname or each.name.partition(".")[0]] = (
                    each.name if each.asname else each.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return found


class _Flow:
    def __init__(self, files: list[SourceFile]) -> None:
        self.names = {each.path: each.names for each in files}
        self.sandboxed = {path for each in files for path, _ in _list_tasks(each, "Sandbox")}
        self.files = [each for each in files if each.path not in self.sandboxed]
        self.workers = {task for each in self.files for task in _list_tasks(each, "WorkerPool")}
        self.by_name: dict[str, list[Code]] = {}
        self.held = {"state"}
        """Attributes of `self` that hold text."""
        self.found = set[TextSink]()
        self.seen = set[tuple[int, bool, frozenset[str]]]()

    def find(self) -> list[TextSink]:
        for each in self.files:
            for node in ast.walk(each.tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    code = Code(each.path, node, (each.path, node.name) in self.workers)
                    self.by_name.setdefault(node.name, []).append(code)
        for _ in range(PASSES):  # what one handler keeps on `self`, another one may run
            self.seen.clear()
            for codes in list(self.by_name.values()):
                for code in codes:
                    if self._is_entry(code):
                        self.enter(code, frozenset(get_parameters(code.node)) - {"self", "cls"})
        return sorted(self.found)

    def _is_entry(self, code: Code) -> bool:
        name = getattr(code.node, "name", "")
        return code.is_worker or name in ENTRIES or is_tool(code.node)

    def enter(self, code: Code, tainted: frozenset[str]) -> None:
        """Read a function whose parameters of these names hold text. It may read text of `self`
        too."""
        if (key := (id(code.node), code.is_worker, tainted)) in self.seen:
            return
        self.seen.add(key)
        _Body(self, code, tainted).read()


def _list_tasks(file: SourceFile, kind: str) -> Iterator[tuple[Path, str]]:
    """The files that a `Sandbox(…)` or a `WorkerPool(…)` of this module runs, with each of the
    texts that the call names beside them, one of which is the function."""
    for call in get_calls(file.tree):
        if get_name(call.func, file.names).rpartition(".")[2] != kind:
            continue
        texts = _list_texts(call)
        files = [each for each in texts if each.endswith(".py")]
        files = files or [each for each in _list_texts(file.tree) if each.endswith(".py")]
        for each in files:
            yield from ((file.path.with_name(each), name) for name in texts or [""])


def _list_texts(tree: ast.AST) -> list[str]:
    nodes = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return [value for value in nodes if isinstance(value, str)]


class _Body:
    """Reads one function's body."""

    def __init__(self, flow: _Flow, code: Code, tainted: frozenset[str]) -> None:
        self.flow = flow
        self.code = code
        self.tainted = set(tainted)
        self.names = dict(flow.names[code.file])
        self.paths = set[str]()
        """Variables that hold a path."""
        self.keeps_inside = any(
            get_name(call.func, self.names).rpartition(".")[2] in HOLDS_INSIDE
            for call in get_calls(code.node)
        )

    def read(self) -> None:
        node = self.code.node
        for _ in range(PASSES):
            for each in node.body if isinstance(node.body, list) else [node.body]:
                self._visit(each)

    def _visit(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                self._assign(targets, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign([target], value)
            case (
                ast.AugAssign(target=target, value=value)
                | ast.NamedExpr(target=target, value=value)
            ):
                self._assign([target], value, keeps=True)
            case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
                self._assign([target], value)
            case ast.comprehension(target=target, iter=value):
                self._assign([target], value)
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                self._assign([target], value)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                own = (
                    frozenset(get_parameters(node)) if isinstance(node, ast.Lambda) else frozenset()
                )
                inner = Code(self.code.file, node, self.code.is_worker)
                self.flow.enter(inner, frozenset(self.tainted) | own)
                return
            case ast.Call():
                self._check(node)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                for each in node.generators:
                    self._visit(each)
            case ast.Match(subject=subject, cases=cases) if self.holds(subject):
                for each in (one for case in cases for one in ast.walk(case.pattern)):
                    self.tainted |= {name} if (name := getattr(each, "name", None)) else set()
            case _:
                pass
        for child in ast.iter_child_nodes(node):
            self._visit(child)

    def _assign(self, targets: list[ast.expr], value: ast.expr, *, keeps: bool = False) -> None:
        holds = self.holds(value)
        for target in targets:
            for node in ast.walk(target):
                if isinstance(node, ast.Name):
                    if holds:
                        self.tainted.add(node.id)
                    if self._is_path(value):
                        self.paths.add(node.id)
                    if (alias := get_name(value, self.names)) and not keeps:
                        self.names[node.id] = alias
                    elif isinstance(value, ast.Call) and isinstance(target, ast.Name):
                        self._keep_partial(node.id, value)
                elif holds and isinstance(node, ast.Attribute) and _is_self(node.value):
                    self.flow.held.add(node.attr)

    def _keep_partial(self, name: str, value: ast.Call) -> None:
        if get_name(value.func, self.names) == "functools.partial" and value.args:
            self.names[name] = get_name(value.args[0], self.names)

    def holds(self, node: ast.AST | None) -> bool:
        """Whether an expression may hold text of a model or a row."""
        match node:
            case ast.Name(id=name):
                return name in self.tainted
            case ast.Attribute(value=value, attr=name):
                return name in self.flow.held if _is_self(value) else self.holds(value)
            case ast.Subscript(value=value) | ast.Starred(value=value) | ast.Await(value=value):
                return self.holds(value)
            case ast.Compare() | ast.Constant() | None:
                return False
            case ast.Call(func=func, args=args, keywords=keywords):
                name = get_name(func, self.names)
                if name in HARMLESS:
                    return False
                given = [*args, *(each.value for each in keywords)]
                if isinstance(func, ast.Attribute) and not _is_self(func.value):
                    given.append(func.value)
                return any(map(self.holds, given))
            case ast.ListComp(elt=value) | ast.SetComp(elt=value) | ast.GeneratorExp(elt=value):
                return self.holds(value) or any(self.holds(each.iter) for each in node.generators)
            case _:
                return any(map(self.holds, ast.iter_child_nodes(node)))

    def _check(self, call: ast.Call) -> None:
        name = get_name(call.func, self.names)
        given = [*call.args, *(each.value for each in call.keywords)]
        tainted = [self.holds(each) for each in given]
        if isinstance(call.func, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
            self._reach(name, call, tainted, is_first=bool(tainted[:1] and tainted[0]))
        match call.func:
            case ast.Attribute(value=path, attr=method) if method in PATH_METHODS:
                if self._is_path(path) and self._chooses_folder(path):
                    self._keep(call, method, OPENS_FILE)
            case _:
                pass
        # a function that is given to a thread, a map or a partial with the text
        for place, each in enumerate(given):
            if isinstance(each, ast.Name | ast.Attribute) and not tainted[place] and any(tainted):
                target = get_name(each, self.names)
                self._reach(target, call, [], is_first=True, passes_all=True)

    def _is_path(self, node: ast.AST) -> bool:
        """Whether an expression is a path, with folders in it."""
        match node:
            case ast.Name(id=name):
                return name in self.paths
            case ast.Attribute(attr=attr) if attr in LAST_PARTS:
                return False
            case ast.Call(func=func) if get_name(func, self.names) in PATHS:
                return True
            case ast.BinOp(op=ast.Div(), left=left, right=right):
                return any(map(self._is_path, (left, right))) or self.holds(right)
            case _:
                return any(map(self._is_path, ast.iter_child_nodes(node)))

    def _chooses_folder(self, path: ast.AST) -> bool:
        """Whether text is in a path, other than as a name without folders."""
        match path:
            case ast.BinOp(left=left, right=right):
                return self._chooses_folder(left) or self._chooses_folder(right)
            case ast.Attribute(value=value, attr=attr) if attr in LAST_PARTS:
                return self.holds(value) and not self._is_path(value)
            case _:
                return self.holds(path)

    def _keep(self, call: ast.Call, name: str, what: str) -> None:
        if what and not (what == OPENS_FILE and self.keeps_inside):
            self.flow.found.add(TextSink(self.code.file, call.lineno, f"{name}(…)", what))

    def _reach(
        self,
        name: str,
        call: ast.Call,
        tainted: list[bool],
        *,
        is_first: bool,
        passes_all: bool = False,
    ) -> None:
        if any(tainted) or passes_all:
            kind = {"is_first": is_first, "is_worker": self.code.is_worker}
            what = describe_sink(name, call, **kind)
            self._keep(call, name.replace("?.", ""), what)
        for code in self.flow.by_name.get(name.rpartition(".")[2], ()):
            own = [each for each in get_parameters(code.node) if each not in ("self", "cls")]
            code = replace(code, is_worker=code.is_worker or self.code.is_worker)
            if passes_all:
                self.flow.enter(code, frozenset(own))
                continue
            by_place = {own[n] for n in range(min(len(own), len(call.args))) if tainted[n]}
            if any(isinstance(each, ast.Starred) for each in call.args) and any(tainted):
                by_place = set(own)
            later = zip(call.keywords, tainted[len(call.args) :], strict=True)
            by_place |= {each.arg for each, holds in later if holds and each.arg in own}
            self.flow.enter(code, frozenset(by_place))


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"
