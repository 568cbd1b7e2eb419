"""The lines of the failures file: keys without a result, and input lines that are no task."""

from ...errors import RolloutError
from ...types import Failure, JsonObject, Unverified
from ..foreign.versions import mark
from ..lines import block_of, identity, now_text
from ..tasks import Malformed


def build_failure_line(failure: Failure, repro: str) -> JsonObject:
    """The line of a key without a result: last error, every attempt, and the command to repeat
    it."""
    made_with = {"settings": failure.settings, "verifier": failure.verifier}
    known = {name: value for name, value in made_with.items() if value}
    line: JsonObject = {
        **identity("failure", failure.key, failure.task_index),
        "rollout": block_of(failure.key, known),
        "attempt": len(failure.attempts),
        "at": now_text(),
        "failure": failure.attempts[-1],
        "repro": repro,
    }
    if failure.cost_usd is not None:
        line["cost_usd"] = failure.cost_usd
    if len(failure.attempts) > 1:
        line["attempts"] = failure.attempts
    if (answered := failure.answered) is not None:
        line["response"] = answered["response"]
        line["answered"] = {name: value for name, value in answered.items() if name != "response"}
    return line


def failure_of(unverified: Unverified, error: RolloutError) -> Failure:
    """The failure that a response without a verdict is reported as."""
    info, verifier = unverified.info, unverified.verifier
    tried = unverified.line.get("failure") or {"message": error.message}
    return Failure(info.key, info.task_index, error, [tried], None, info.settings, verifier)


def describe_error(error: RolloutError, elapsed_s: float) -> JsonObject:
    """The `failure` block of one attempt."""
    found = {
        "class": type(error).__name__,
        "server": error.server,
        "status": error.status,
        "message": error.message,
        "body": error.body,
        "retryable": error.retryable,
        "terminal": error.terminal,
        "elapsed_s": round(elapsed_s, 3),
        "traceback": error.traceback,
    }
    return {name: value for name, value in found.items() if value != ""}


def build_malformed_line(malformed: Malformed, path: str) -> JsonObject:
    """The failure line of an input line that is no task."""
    failure = {"class": "MalformedLine", "message": malformed.message, "body": malformed.text}
    return {
        **mark("malformed"),
        "input": path,
        "line": malformed.line,
        "at": now_text(),
        "failure": {**failure, "retryable": False, "terminal": True},
    }
