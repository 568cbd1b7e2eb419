"""Log Python's audit events while verifiers judge: Python imports this module first in each process
that has its folder in PYTHONPATH. Standard library only.

The file PYTHONAUDITLOG gets a line of JSON for each new pair of event and module, and for each
event with the text PYTHONAUDITMARK in its arguments. The names begin as those of the variables
that processes without keys inherit.
"""

import json
import os
import sys
from types import CodeType
from typing import Any

MARK = os.environ.get("PYTHONAUDITMARK", "")


def install() -> None:
    log = os.open(os.environ["PYTHONAUDITLOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    seen: set[tuple[str, str, bool]] = set()
    is_busy = False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal is_busy
        if is_busy:
            return
        is_busy = True
        try:
            try:
                module = sys._getframe(1).f_globals.get("__name__", "")
            except ValueError:  # while Python starts or ends
                module = ""
            is_marked = any(map(has_mark, arguments))
            if (key := (event, module, is_marked)) not in seen:
                seen.add(key)
                os.write(log, json.dumps(key).encode() + b"\n")
        finally:
            is_busy = False

    sys.addaudithook(hook)


def has_mark(value: Any) -> bool:
    """Whether the text is in an argument, or in the code that was compiled from it."""
    if isinstance(value, str):
        return MARK in value
    if isinstance(value, bytes | bytearray | memoryview):
        return MARK.encode() in bytes(value)
    if isinstance(value, list | tuple):
        return any(map(has_mark, value))
    if isinstance(value, CodeType):
        return any(map(has_mark, (value.co_consts, value.co_names, value.co_varnames)))
    return False


if MARK:
    install()
