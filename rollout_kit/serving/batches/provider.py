"""What a provider of batches does, whichever client it is reached with."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from ...errors import ModelError
from ..transport.retry import retry_after_s

TRANSIENT_STATUSES = frozenset({408, 409, 425, 429})
"""Statuses after which a request may be sent again, besides those from 500 on."""

HALF_PRICE = 0.5
"""Of OpenAI, Azure, Anthropic and Google."""

HEAD = b'{"custom_id":"'
"""Start of each line of requests."""

UNANSWERED = 0
"""Status of a request that its batch has not answered: it has expired, or was cancelled."""


class Unsure(ModelError):
    """A batch may have been created: the request that creates it got no reply."""


class BatchFile(NamedTuple):
    """The requests of one batch, as they are on disk: one line each."""

    id: str
    """Our own id of the batch. The provider keeps it where it can."""
    path: Path
    number: int
    """Requests in it."""
    since: float
    """Unix time before which it was not submitted."""
    taken: frozenset[str] = frozenset()
    """The provider's ids of other batches of the same server."""

    def has(self, name: str) -> bool:
        """Whether a request with this `custom_id` is in it."""
        start = HEAD + name.encode()
        with self.path.open("rb") as stream:
            return any(line.startswith(start) for line in stream)


@dataclass(frozen=True, slots=True)
class Look:
    """A batch as its provider sees it."""

    state: Literal["running", "ended", "failed"]
    """failed: it was refused as a whole, and none of its requests was executed."""
    done: int = 0
    """Requests that have ended."""
    reason: str = ""
    is_passing: bool = False
    """Whether a batch that failed may be submitted again later: a quota was used up."""


Take = Callable[[str, int, Any], object]
"""Takes a result: `custom_id`, HTTP status or UNANSWERED, and the body."""


class Provider(Protocol):
    """Errors are ModelErrors; those that are `retryable` may pass."""

    name: str
    max_requests: int
    max_bytes: int
    price_factor: float
    """On the standard price, where no table has another."""

    def write(self, name: str, body: bytes) -> bytes:
        """A line of the file: the request with this `custom_id`."""
        ...

    async def submit(self, batch: BatchFile) -> str:
        """Have a batch executed; the provider's id of it. Unsure if it may have begun anyway."""
        ...

    async def find(self, batch: BatchFile) -> str | None:
        """The provider's id of a batch that may have been submitted; None if it has none."""
        ...

    async def look(self, found: str) -> Look: ...

    async def fetch(self, found: str, take: Take) -> None:
        """Take the results of a batch that has ended, in any order."""
        ...

    async def cancel(self, found: str) -> None:
        """Ask the provider to end a batch. What it has answered by then is paid for, and kept."""
        ...

    async def close(self) -> None: ...


def write_openai_line(name: str, path: str, body: bytes) -> bytes:
    """A line of the files that OpenAI, Azure and vLLM's run-batch read."""
    return b'{"custom_id":"%b","method":"POST","url":"%b","body":%b}\n' % (
        name.encode(),
        path.encode(),
        body,
    )


def may_pass(status: int) -> bool:
    """Whether a request that was answered with this status may be sent again."""
    return status in TRANSIENT_STATUSES or status >= 500


@contextmanager
def client_errors(
    name: str,
    of_status: type[Exception],
    of_client: type[Exception],
    *,
    is_unsure: bool = False,
) -> Iterator[None]:
    """Context of a call of a provider's own client, whose exceptions become ModelErrors. If it
    `is_unsure`, the call may have been executed although it failed."""
    try:
        yield
    except of_status as error:
        told: Any = error
        status, wait = told.status_code, told.response.headers.get("retry-after")
        kind = Unsure if is_unsure and status >= 500 else ModelError
        raise kind(
            f"{name}'s batches answered {status}: {told.message}",
            status=status,
            retryable=may_pass(status),
            retry_after_s=retry_after_s(wait, 0.0) if (wait or "").isdecimal() else None,
        ) from error
    except of_client as error:
        kind = Unsure if is_unsure else ModelError
        raise kind(f"{name}'s batches: {error}", status=503, retryable=True) from error
