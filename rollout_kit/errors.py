"""Every exception that crosses a module, and its form on the wire.

RolloutKitError
├── ConfigError          the command or its YAML cannot be run; nothing was started
├── OutputError          the output files cannot be used: locked, other settings, disk full
├── StopRun              the run cannot go on, such as when every request is refused
└── RolloutError         one attempt failed; recorded as data
    ├── TaskError        422  this server cannot accept the row; terminal
    │   └── Dropped           a person has dropped the rollout while it was in flight
    ├── ModelError       502  the model's endpoint refused or failed
    ├── BatchPending     425  the answer comes with a batch; the rollout is put aside until then
    ├── ToolError        400  a tool failed; the agent turns the error into text for the model
    ├── VerifyError      500  the verifier raised or returned no usable reward
    ├── SessionLost      410  the session no longer exists; a new attempt is needed
    └── PeerError        503  a server could not be reached, or its reply was invalid
        ├── PeerUnreachable   nothing was sent, so sending again is safe
        ├── PeerLost          the connection broke; the request may have been executed
        └── PeerTimeout  504  no reply in time
"""

import os
import re
import shutil
import sys
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import PurePath
from traceback import format_exception
from typing import Any, ClassVar

from pydantic import ValidationError

BODY_LIMIT = 2048
"""Characters of an error's body that are kept."""

SUMMARY_LIMIT = 2000
"""Characters of the message in an error's body that are kept."""

CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""Characters that a terminal obeys."""

TRACEBACK_LIMIT = 16_384
"""Characters of a traceback that are kept."""

KIND = re.compile(r"[a-z][a-z0-9_]{0,63}(:[a-z][a-z0-9_]{0,63})?")
"""A name of a kind of failure, as NeMo Gym writes it; a server may put its own name before it."""

TRANSIENT = frozenset({408, 409, 410, 425, 429, 500, 502, 503, 504, 520, 529})
"""Statuses after which the same request may succeed later."""

THROTTLED = frozenset({429, 529})
"""Statuses of a server that limits its callers; waits after them count as `rate_limit_s`."""

REFUSED = frozenset({401, 402, 403, 404})
"""Statuses of a wrong set-up, such as a wrong key: not retried, but not terminal for the row."""


class RolloutKitError(Exception):
    """Base of all errors that people see as one readable message.

    Example:

        try:
            rk.load()
        except rk.RolloutKitError as error:
            print(error)
    """


class ConfigError(RolloutKitError):
    """The command or its configuration cannot be run. The message says what to change.

    Example:

        try:
            rk.collect(rows, servers="demo.yaml", num_repeats=0)
        except rk.ConfigError as error:
            print(error)
    """


class OutputError(RolloutKitError):
    """The output files cannot be used as they are: another program writes them, say.

    Example:

        run = rk.collect(
            rows, model=lambda params: "4", environment="string_match", output="out.jsonl"
        )
        try:
            await run
        except rk.OutputError as error:
            print(error)
    """


class StopRun(RolloutKitError):
    """The run as a whole cannot continue, for example because the endpoint refuses the key.

    Example:

        def refuse(params):
            raise rk.ModelError("the key is wrong", status=401, retryable=False)


        try:
            await rk.collect(rows * 9, model=refuse, environment="string_match", num_repeats=9)
        except rk.StopRun as error:
            print(error)
    """


class RolloutError(RolloutKitError):
    """One attempt failed.

    `status` is the HTTP status on the wire (the endpoint's own if an endpoint refused), `server`
    the instance that failed, `body` the start of the endpoint's reply. `traceback` is that of an
    exception that a server's own code raised.

    Example:

        error = rk.RolloutError("the tool is away", server="my_env", retryable=False)
        print(error.message, error.status, error.retryable)
    """

    default_status: ClassVar[int] = 500
    default_kind: ClassVar[str] = ""

    def __init__(
        self,
        message: str,
        *,
        server: str = "",
        status: int | None = None,
        body: str = "",
        retryable: bool | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.server = server
        self.status = self.default_status if status is None else status
        self.body = body[:BODY_LIMIT]
        self.retryable = self.status in TRANSIENT if retryable is None else retryable
        self.retry_after_s = retry_after_s
        self.traceback = ""
        self.failure_kind = self.default_kind
        """NeMo Gym's name of the failure; empty if its vocabulary has none."""

    @property
    def terminal(self) -> bool:
        """Whether repeating the attempt is useless, even in a later run."""
        return 400 <= self.status < 500 and self.status not in TRANSIENT | REFUSED

    def __str__(self) -> str:
        return f"{self.server}: {self.message}" if self.server else self.message

    def to_wire(self) -> dict[str, Any]:
        fields = {
            "type": type(self).__name__,
            "message": self.message,
            "server": self.server,
            "status": self.status,
            "retryable": self.retryable,
            "body": self.body,
            "retry_after_s": self.retry_after_s,
            "traceback": self.traceback,
            "failure_kind": self.failure_kind if self.failure_kind != self.default_kind else "",
        }
        return {"error": {key: value for key, value in fields.items() if value not in ("", None)}}


class TaskError(RolloutError):
    """A row that its server cannot take; it is not tried again.

    Example:

        class Sums(rk.ResourcesServer):
            async def seed_session(self, body):
                if "sum" not in body:
                    raise rk.TaskError("the row has no sum")
                return rk.SeedSessionResponse()
    """

    default_status = 422


class Dropped(TaskError):
    """A person has dropped the rollout."""

    default_kind = "cancelled"


class ModelError(RolloutError):
    """A model or its endpoint failed. `retry_after_s` is in seconds.

    Example:

        def ask(params):
            raise rk.ModelError("busy", status=429, retryable=True, retry_after_s=2.0)
    """

    default_status = 502


class BatchPending(RolloutError):
    """A model's answer comes with a batch. `body` names the batch and the request, `server` is the
    model server that has it. The rollout is put aside, and asks again once the batch has ended."""

    default_status = 425

    @property
    def batch(self) -> str:
        return self.body.partition(" ")[0]

    @property
    def request(self) -> str:
        return self.body.partition(" ")[2]


class ToolError(RolloutError):
    """A tool call failed; the policy reads the message.

    Example:

        class Store(rk.ResourcesServer):
            @rk.tool
            async def read(self, name: str) -> str:
                raise rk.ToolError(f"there is no {name}")
    """

    default_status = 400


class VerifyError(RolloutError):
    """A verifier gave no verdict; the response is kept and can be verified later.

    Example:

        def verify(task, response):
            raise rk.VerifyError("the judge is away", retryable=True)
    """

    default_status = 500
    default_kind = "verifier_error"


class SessionLost(RolloutError):
    """The session is no longer there. The rollout starts again in a new one."""

    default_status = 410
    default_kind = "session_lost"


class PeerError(RolloutError):
    """A server could not be reached, or its reply cannot be used."""

    default_status = 503


class PeerUnreachable(PeerError):
    """A server could not be reached. Nothing was sent, so the request is sent again."""

    default_status = 503
    default_kind = "transport_unreachable"


class PeerLost(PeerError):
    """The connection broke. The server may have done what was asked."""

    default_status = 503
    default_kind = "transport_peer_drop"


class PeerTimeout(PeerError):
    """No reply came within the time limit."""

    default_status = 504
    default_kind = "transport_timeout"


BY_NAME = {
    kind.__name__: kind
    for kind in (
        RolloutError,
        TaskError,
        Dropped,
        ModelError,
        BatchPending,
        ToolError,
        VerifyError,
        SessionLost,
        PeerError,
        PeerUnreachable,
        PeerLost,
        PeerTimeout,
    )
}


def from_wire(server: str, status: int, payload: Any, text: str) -> RolloutError:
    """The error in a peer's reply, with its original type if that is one of ours."""
    error = payload.get("error") if isinstance(payload, dict) else None
    if isinstance(error, dict) and error.get("type") in BY_NAME:
        known = _typed(error.get("status"), int)
        found = BY_NAME[error["type"]](
            str(error.get("message", "")),
            server=str(error.get("server") or server),
            status=status if known is None else known,
            body=str(error.get("body", "")),
            retryable=_typed(error.get("retryable"), bool),
            retry_after_s=_typed(error.get("retry_after_s"), int | float),
        )
        found.traceback = str(error.get("traceback", ""))
        if (kind := _typed(error.get("failure_kind"), str)) and KIND.fullmatch(kind):
            found.failure_kind = kind
        return found
    kind = TaskError if status == 422 else PeerError
    return kind(
        f"answered {status}: {summary(payload, text)}", server=server, status=status, body=text
    )


def _typed(value: Any, wanted: Any) -> Any:
    return value if isinstance(value, wanted) else None


def summary(payload: Any, text: str) -> str:
    """The message in an error body, on one line."""
    if isinstance(payload, list) and payload:  # Google's errors are lists of one
        payload = payload[0]
    for path in (("error", "message"), ("error",), ("message",), ("detail",)):
        found = payload
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, str) and found:
            return on_one_line(found, SUMMARY_LIMIT)
    return on_one_line(text, 300) or "(empty body)"


def on_one_line(text: str, length: int) -> str:
    """The text without line breaks and characters that a terminal obeys, cut to `length`."""
    return CONTROLS.sub("\ufffd", " ".join(text[: 4 * length].split())[:length])


class boundary:
    """Context that attributes every error to `server`; a foreign exception becomes a `kind`."""

    __slots__ = ("_kind", "_server")

    def __init__(self, server: str, kind: type[RolloutError] = RolloutError) -> None:
        self._server, self._kind = server, kind

    def __enter__(self) -> None:
        pass

    def __exit__(self, raised: Any, error: BaseException | None, traceback: Any) -> None:
        if error is None:
            return
        if isinstance(error, RolloutError):
            error.server = error.server or self._server
        elif isinstance(error, ValidationError):
            raise TaskError(validation_summary(error), server=self._server) from error
        elif not isinstance(error, RolloutKitError | GeneratorExit) and not _is_asked_for(error):
            # a real interrupt is a signal to the loop; the server itself raised this exception
            message = f"{type(error).__name__}: {error}{_place(error)}"
            failed = self._kind(message, server=self._server)
            if self._kind is not ToolError:  # those are text for the policy
                failed.traceback = _text_of(error)
            raise failed from error


def _is_asked_for(error: BaseException) -> bool:
    """Whether the task was really cancelled; a server may also raise CancelledError itself."""
    import asyncio  # imported late, because every command's --help imports this module

    if not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _text_of(error: BaseException) -> str:
    """The traceback of an exception; of a very long one, the end."""
    return "".join(format_exception(error))[-TRACEBACK_LIMIT:]


def _place(error: BaseException) -> str:
    """` (app.py:12)`: the line that raised."""
    frames = error.__traceback__
    if frames is None:
        return ""
    while frames.tb_next is not None:
        frames = frames.tb_next
    return f" ({PurePath(frames.tb_frame.f_code.co_filename).name}:{frames.tb_lineno})"


def validation_summary(error: ValidationError) -> str:
    """pydantic's errors on one line: `options.0: Input should be a valid dictionary (got 'x')`."""
    parts = []
    for problem in error.errors(include_url=False)[:5]:
        where = ".".join(str(part) for part in problem["loc"]) or "body"
        got = "" if problem["type"] == "missing" else f" (got {problem.get('input')!r:.80})"
        parts.append(f"{where}: {problem['msg']}{got}")
    if (more := error.error_count() - 5) > 0:
        parts.append(f"and {more} more")
    return "; ".join(parts)


def suggest(word: str, known: Any) -> str:
    """` (did you mean 'x'?)` if a known word is close to `word`, else nothing."""
    close = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else ""


def how_to_install(*requirements: str) -> str:
    """The command that installs packages for this interpreter: uv's environments have no pip."""
    python = os.path.relpath(sys.executable) if sys.executable.startswith(os.getcwd()) else ""
    python, what = python or sys.executable, " ".join(f"'{each}'" for each in requirements)
    if find_spec("pip") is None and shutil.which("uv"):
        return f"uv pip install --python {python} {what}"
    before = f"{python} -m ensurepip && " if find_spec("pip") is None else ""
    return f"{before}{python} -m pip install {what}"


def number_of(number: int, what: str) -> str:
    """`1 task`, `2,000 tasks`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
