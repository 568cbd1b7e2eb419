"""Evaluate a text in a fork, so that the process that judges its value never executes the text.
Standard library only; it is called in a run of a sandbox's task.

The fork can only answer with JSON: whatever the text does, it decides its own value and no verdict.
"""

import json
import os
from collections.abc import Callable
from typing import Any

ANSWER_SIZE = 1 << 20
"""A longer value is not read."""


class Unreadable(ValueError):
    """The text has no value: it could not be evaluated, or the fork ended without an answer."""


def evaluate_apart(evaluate: Callable[[], Any]) -> Any:
    """Return the JSON value of `evaluate()`, called in a fork; Unreadable for what it raises.

    If the fork was killed, at the limit of its CPU time, this process ends as well.
    """
    # a file, because a pipe would be open as long as any process that the text has started
    answer = os.open("/tmp", os.O_TMPFILE | os.O_RDWR, 0o600)
    try:
        child = os.fork()
        if not child:
            _answer(evaluate, answer)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            os._exit(os.EX_TEMPFAIL)
        raw = os.pread(answer, ANSWER_SIZE, 0)
    finally:
        os.close(answer)
    try:
        found = json.loads(raw)
        if "error" not in found:
            return found["value"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Unreadable("the evaluation ended without an answer") from None
    raise Unreadable(str(found["error"]))


def _answer(evaluate: Callable[[], Any], answer: int) -> None:
    """Evaluate with no descriptor but `answer`, and end this process."""
    status = 1
    try:
        os.dup2(answer, 0)
        os.closerange(1, 1 << 10)
        try:
            raw = json.dumps({"value": evaluate()}).encode()
        except BaseException as error:
            raw = json.dumps({"error": f"{type(error).__name__}: {error}"[:500]}).encode()
        rest = memoryview(raw)
        while rest:
            rest = rest[os.write(0, rest) :]
        status = 0
    finally:
        os._exit(status)
