"""Every exception that crosses a module, and how each travels over the wire.

RolloutKitError
├── ConfigError          the command or its YAML cannot be run; nothing was started
├── OutputError          the output files cannot be used: locked, other settings, disk full
├── StopRun              going on is pointless: the model server refuses everyone
└── RolloutError         one attempt failed; data, never a crash
    ├── TaskError        422  the row is not one that this server can take: terminal
    ├── ModelError       502  the model's endpoint refused or broke
    ├── ToolError        400  a tool said no; the agent turns it into text for the model
    ├── VerifyError      500  the verifier raised or gave no usable reward
    ├── SessionLost      410  the session is gone: start the attempt anew
    └── PeerError        503  a server could not be reached, or answered nonsense
        ├── PeerUnreachable  … and nothing was sent, so that sending again is safe
        ├── PeerLost         … and it broke off: whether it did what was asked nobody knows
        └── PeerTimeout  504  … or did not answer in time
"""

from difflib import get_close_matches
from pathlib import PurePath
from typing import Any, ClassVar

from pydantic import ValidationError

BODY_LIMIT = 2048
"""Characters of a refused reply's body that are kept: enough to read, small enough to store."""

TRANSIENT = frozenset({408, 409, 410, 425, 429, 500, 502, 503, 504, 520, 529})
"""Statuses that the same request may well get past later."""

THROTTLED = frozenset({429, 529})
"""Statuses of a server that limits its callers: what is waited after them is the limit's doing."""

REFUSED = frozenset({401, 402, 403, 404})
"""Statuses that say the set-up is wrong rather than the request: not retried, yet never
terminal."""


class RolloutKitError(Exception):
    """Base of all errors that are shown to people as one readable message."""


class ConfigError(RolloutKitError):
    """The command or its configuration cannot be run."""


class OutputError(RolloutKitError):
    """The output files cannot be used as they are."""


class StopRun(RolloutKitError):
    """The run as a whole cannot go on."""


class RolloutError(RolloutKitError):
    """One attempt failed.

    `status` is the HTTP status it has on the wire (for an endpoint's refusal, the endpoint's own),
    `server` the instance that failed, `body` the start of what the endpoint said.
    """

    default_status: ClassVar[int] = 500

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

    @property
    def terminal(self) -> bool:
        """Whether repeating it, even in a later run, is known to be pointless."""
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
        }
        return {"error": {key: value for key, value in fields.items() if value not in ("", None)}}


class TaskError(RolloutError):
    default_status = 422


class ModelError(RolloutError):
    default_status = 502


class ToolError(RolloutError):
    default_status = 400


class VerifyError(RolloutError):
    default_status = 500


class SessionLost(RolloutError):
    default_status = 410


class PeerError(RolloutError):
    default_status = 503


class PeerUnreachable(PeerError):
    default_status = 503


class PeerLost(PeerError):
    default_status = 503


class PeerTimeout(PeerError):
    default_status = 504


BY_NAME = {
    kind.__name__: kind
    for kind in (
        RolloutError,
        TaskError,
        ModelError,
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
    """The error that a peer's reply stands for: its own type if it is one of ours."""
    error = payload.get("error") if isinstance(payload, dict) else None
    if isinstance(error, dict) and error.get("type") in BY_NAME:
        known = _typed(error.get("status"), int)
        return BY_NAME[error["type"]](
            str(error.get("message", "")),
            server=str(error.get("server") or server),
            status=status if known is None else known,
            body=str(error.get("body", "")),
            retryable=_typed(error.get("retryable"), bool),
            retry_after_s=_typed(error.get("retry_after_s"), int | float),
        )
    kind = TaskError if status == 422 else PeerError
    return kind(
        f"answered {status}: {summary(payload, text)}", server=server, status=status, body=text
    )


def _typed(value: Any, wanted: Any) -> Any:
    return value if isinstance(value, wanted) else None


def summary(payload: Any, text: str) -> str:
    """The sentence in an error body that a person wants to read, on one line."""
    if isinstance(payload, list) and payload:  # Google's errors are lists of one
        payload = payload[0]
    for path in (("error", "message"), ("error",), ("message",), ("detail",)):
        found = payload
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, str) and found:
            return " ".join(found.split())
    return " ".join(text.split())[:300] or "(empty body)"


class boundary:
    """Attribute whatever is raised inside to `server`; a foreign exception becomes a `kind`."""

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
            # a real interrupt comes as a signal to the loop: what is left the server has raised
            message = f"{type(error).__name__}: {error}{_place(error)}"
            raise self._kind(message, server=self._server) from error


def _is_asked_for(error: BaseException) -> bool:
    """Whether this is our own cancellation of the task, and not one that a server made up."""
    import asyncio  # only here, as every command's --help imports this module

    if not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _place(error: BaseException) -> str:
    """` (app.py:12)`: the line that raised, for whoever wrote it."""
    frames = error.__traceback__
    if frames is None:
        return ""
    while frames.tb_next is not None:
        frames = frames.tb_next
    return f" ({PurePath(frames.tb_frame.f_code.co_filename).name}:{frames.tb_lineno})"


def validation_summary(error: ValidationError) -> str:
    """pydantic's complaints on one line: `options.0: Input should be a valid dictionary (got
    'x')`."""
    parts = []
    for problem in error.errors(include_url=False)[:5]:
        where = ".".join(str(part) for part in problem["loc"]) or "body"
        got = "" if problem["type"] == "missing" else f" (got {problem.get('input')!r:.80})"
        parts.append(f"{where}: {problem['msg']}{got}")
    if (more := error.error_count() - 5) > 0:
        parts.append(f"and {more} more")
    return "; ".join(parts)


def suggest(word: str, known: Any) -> str:
    """` (did you mean 'x'?)` when something known is close to `word`, else nothing."""
    close = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else ""
