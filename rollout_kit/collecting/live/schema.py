"""What running collections are asked, and what they reply, in JSON: at the socket of a run, and on
the routes of its page, of `ng_status +web=true` and of a head server.

A snapshot is passed on as it came: of a run of another version it may have other figures.
"""

from typing import Any, Protocol, TypeVar

import msgspec

from ...errors import ConfigError
from .snapshot import KnobChange, State

LIVE, HISTORY, STEER, TURNS = "/api/live", "/api/history", "/api/steer", "/api/turns"
"""Routes. LIVE gives a `LiveList`, HISTORY with `?run=` the history of a run, TURNS with `?run=`
and `&rollout=` the turns of a rollout in flight, from the number `&since=` on. STEER takes a
`SteerRequest` and gives a `SteerReply`, like a socket."""

MAX_REQUEST = 1 << 20
"""Bytes of a request."""

T = TypeVar("T")


class SteerRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request. Each part may be missing."""

    run: str = ""
    """The id of the collection, or the start of it, where there are several."""
    output: str = ""
    """The path of its rollouts, for the same."""
    steer: Any = None
    """Knobs and their new values."""
    dry_run: bool = False
    history: bool = False
    """Whether the reply has the history."""
    watch: str = ""
    """A rollout in flight, as `+only=…` takes it, whose turns so far the reply has."""
    since: int = 1
    """The number of the first of these turns that the reply has."""
    sender: str = msgspec.field(default="", name="from")
    """The program that asks, as the changes name it."""


class SteerReply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply of a collection."""

    changes: list[KnobChange]
    """What the request has changed, or would change."""
    dry_run: bool
    state: State
    history: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """Past snapshots, in the columns of the watcher's HISTORY, if asked for."""
    turns: list[Any] | msgspec.UnsetType = msgspec.UNSET
    """The turns of the rollout that is watched."""
    snapshot: msgspec.Raw


class LiveList(msgspec.Struct, frozen=True, kw_only=True):
    """All collections that are known."""

    url: str = ""
    """The head server, where it is asked too."""
    collections: list[msgspec.Raw]
    """Their snapshots."""
    servers: list[Any] | None = None
    """The processes of an `ng_run`, where its head server is asked too."""
    problems: list[str] = []
    """Why collections that were found do not answer."""


class SteerRefusal(msgspec.Struct, frozen=True):
    """Instead of a reply."""

    error: str


class Collections(Protocol):
    """Answers for one collection, or for several. ConfigError for what cannot be done."""

    async def live(self) -> LiveList: ...

    async def ask(self, asked: SteerRequest) -> SteerReply: ...


def encode(value: Any) -> bytes:
    """A line of JSON."""
    return msgspec.json.encode(value) + b"\n"


def read_request(raw: bytes) -> SteerRequest:
    """The request; ConfigError if it is none."""
    try:
        return msgspec.json.decode(raw.strip() or b"{}", type=SteerRequest)
    except msgspec.ValidationError as error:
        parts = ", ".join(each.encode_name for each in msgspec.structs.fields(SteerRequest))
        raise ConfigError(f"a request is a JSON object of {parts}: {error}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"the request is not JSON: {error}") from None


def read_reply(raw: bytes, kind: type[T]) -> T:
    """The reply; ConfigError with the reason of a refusal, or if it is in another format."""
    try:
        found = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        if "error" in found:
            raise ConfigError(msgspec.json.decode(found["error"], type=str))
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise ConfigError(f"the reply is in another format: {error}") from None
