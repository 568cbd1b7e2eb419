"""Runs inside the sandbox: executes the submitted code, or a function of the owner's task, and
reports what it returns. Standard library only.

Submitted code shares this process and can forge the report. So nothing that decides a verdict is
known here: neither expected values nor other tests. A task is trusted: see `apart`.
"""

import atexit
import builtins
import io
import json
import numbers
import os
import sys
import threading
import types
from collections.abc import Sequence
from typing import Any

TASK = "sandbox_task"
"""Name of the module of the owner's file."""

RECURSION_LIMIT = 50_000
"""The limit that LiveCodeBench sets."""

MAX_DIGITS = 1 << 20
"""Digits of an integer that code may print or read, as in NeMo Gym; Python's default is 4,300."""

STARTER = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random"),
    *("statistics", "itertools", "functools", "operator", "io", "sys", "json"),
)
"""Modules that LiveCodeBench imports before a solution, with `import` and `from … import *`."""

KEYS = (str, int, float, type(None))
"""Types of keys that JSON has as text."""

STDIN_COPY = "/tmp/.stdin"
"""Target of the link `/dev/stdin`, because there is no `/proc` with descriptors."""

HEADER = "\n".join(
    [*(f"from {name} import *" for name in (*STARTER, "builtins", "typing"))]
    + [f"import {name}" for name in STARTER]
)


def load_starter() -> dict[str, Any]:
    """Names that code may use without import. The zygote loads them once; it takes milliseconds."""
    names: dict[str, Any] = {}
    exec(HEADER, names)
    return {name: value for name, value in names.items() if not name.startswith("__")}


def load_task(source: str, folders: Sequence[str]) -> None:
    """Execute the owner's Python file, once, before any run."""
    module = sys.modules[TASK] = types.ModuleType(TASK)
    path = list(sys.path)
    sys.path += folders
    exec(compile(source, "task.py", "exec"), module.__dict__)
    sys.path[:] = path


def perform(raw: bytes, answers: int, *, folders: Sequence[str], names: dict[str, Any]) -> int:
    """Execute the request, write the answer and return the exit status."""
    request = json.loads(raw)
    report = _make_reporter(answers)
    sys.path[:] = [*sys.path, *folders]
    if request["task"]:
        return _perform_task(request, report)
    return _perform_code(request, report, names)


def _perform_task(request: dict[str, Any], report: Any) -> int:
    _open_streams("")
    try:
        value = getattr(sys.modules[TASK], request["task"])(*request["arguments"])
    except BaseException as error:
        report({"error": _format_error(error)})
        return 1
    report({"value": value})
    return 0


def _perform_code(request: dict[str, Any], report: Any, names: dict[str, Any]) -> int:
    code, function = request["code"], request.get("function")
    module = _make_main(names if request["starter"] else {})
    _open_streams(code)
    sys.argv = ["solution.py"]
    sys.setrecursionlimit(RECURSION_LIMIT)
    sys.set_int_max_str_digits(MAX_DIGITS)
    try:
        exec(compile(code, "solution.py", "exec"), module.__dict__)
        if function is not None:
            owner = module.Solution() if "class Solution" in code else module
            value = getattr(owner, function)(*request["arguments"])
            report({"value": _to_json(value), "number": _to_float(value)})
    except SystemExit as error:
        if function is not None:
            report({"error": repr(error)})
    except BaseException as error:
        report({"error": _format_error(error)})
        return 1
    _finish_threads()
    return 0


def _make_reporter(answers: int) -> Any:
    write, dumps = os.write, json.dumps

    def report(answer: dict[str, Any]) -> None:
        rest = memoryview(dumps(answer).encode())
        while rest:
            rest = rest[write(answers, rest) :]

    return report


def _make_main(names: dict[str, Any]) -> types.ModuleType:
    """Create `__main__`, with `names` as built-ins, so that only the code defines functions."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = {**vars(builtins), **names}
    sys.modules["__main__"] = module
    return module


def _open_streams(code: str) -> None:
    """Open new standard streams; those of the zygote belong to other descriptors."""
    if "/dev/stdin" in code and not os.path.exists("/proc/self"):
        data = b"".join(iter(lambda: os.read(0, 1 << 20), b""))
        with open(STDIN_COPY, "wb") as copy:
            copy.write(data)
        os.dup2(os.open(STDIN_COPY, os.O_RDONLY), 0)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = io.TextIOWrapper(open(2, "wb", closefd=False))  # noqa: SIM115


def _finish_threads() -> None:
    """End like a normal program: wait for threads and call `atexit` functions."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()


def _to_json(value: Any) -> Any:
    """Convert to JSON; other values become an object that equals no expected value."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return getattr(value, "item")()  # noqa: B009
    if isinstance(value, list | tuple):
        return [_to_json(each) for each in value]
    if isinstance(value, dict) and all(isinstance(key, KEYS) for key in value):
        names = json.loads(json.dumps(dict.fromkeys(value)))
        return {name: _to_json(each) for name, each in zip(names, value.values(), strict=True)}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, numbers.Number) and not isinstance(value, complex):
        whole = int(value)  # type: ignore[call-overload]
        return whole if whole == value else float(value)  # type: ignore[arg-type]
    return {f"not JSON: {type(value).__name__}": repr(value)[:200]}


def _to_float(value: Any) -> float | None:
    """A number, or a text that is one, as float; None for other values."""
    try:
        return float(value)
    except Exception:  # objects may define __float__
        return None


def _format_error(error: BaseException) -> str:
    try:
        return repr(error)[:500]
    except BaseException:
        return type(error).__name__
