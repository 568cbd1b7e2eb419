"""The session that a call belongs to. Each attempt has one of its own.

A session travels in a ContextVar inside a process and as a header between processes. It keeps the
cookies that servers set. It counts the tokens and the money of all its model calls: those of the
agent, of a judge inside a verifier, and of tries that failed. It also collects the statistics of
the rollout. Servers in other processes report usage and statistics in reply headers.
"""

import json
import os
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from itertools import repeat
from secrets import token_hex
from typing import Any, NamedTuple
from zlib import crc32

from .time_limit import Extendable

ID_BYTES = 16

AT_ONCE = 256
"""Ids drawn in one system call; one call per id was the largest cost of a session."""

HEADER = "x-rollout-session"
"""Name of the HTTP header that carries the session's id."""

SPENT_HEADER = "x-rollout-spent"
"""Name of the HTTP reply header with the usage: calls, tokens, US dollars, unpriced calls,
refusals by a rate limit, US dollars at standard prices, calls whose standard price is unknown."""

STATS_HEADER = "x-rollout-stats"
"""Name of the HTTP reply header with the statistics: a JSON object, in ASCII. It is a header so
that a response, also a recorded one, contains what the model said and no measurements."""

TURNS_HEADER = "x-rollout-turns"
"""Name of the HTTP header of a request for a rollout whose turns are stored: the number of bytes of
the stored turns, a JSON list in front of the body."""

TIER_HEADER = "x-rollout-tier"
"""Name of the HTTP header with the `tier` of a session."""

CLAIM_HEADER = "x-rollout-claim"
"""Name of the HTTP header with the `claim` of a session."""

TICKET_HEADER = "x-rollout-ticket"
"""Name of the HTTP header with the ticket of a session, if model servers may gather its requests
into batches."""

LOST_TIMES: tuple[str, ...] = ("rate_limit_s", "retry_s")
"""Statistics that add up over the calls of a session: time that model servers spent waiting because
of rate limits, and time of failed tries. Any other statistic replaces its earlier value."""

VERIFIER = "verifier"
"""Statistic: the fingerprint of the verifier that gave the verdict, if its server was restarted
since the caller may have asked for it."""

REPAIRED = "repaired"
"""Statistic: the ways in which replies were changed, which add up over the calls of a session."""

TURNS = "turns"
"""Statistic: the turns of the rollout, as `trajectory.pack_turns` makes them."""

WAITS = "waits"
"""Event among the turns that an agent reports: whether the rollout waits for a batch from now on,
with its session open."""

RETURNED = "returned"
"""Event among the turns that an agent reports: what came back for the turn of the same `request`,
shortened. Readers see it; a rollout that continues does not use it."""

FIRST_TURNS = "first_turns"
"""Field of a row: the items of each turn with which its rollouts begin. Then the model is asked."""

GIVEN = "given"
"""Such a turn, among the stored turns of a rollout."""

SNAPSHOT, SNAPSHOT_DATA = "snapshot", "data"
"""Event among the turns that an agent reports: the calls before it, and the files of the session,
from which the program may be started again. Only the newest one of a rollout is kept."""

LOST_CODE = -32041
"""JSON-RPC error code, over MCP, of a call to a session that no longer exists."""


@dataclass(slots=True)
class Spent:
    """Running total of the model calls made. `unpriced` counts calls of unknown price, `throttled`
    the answers of an endpoint that refused a request because of its rate limit (429, 529).
    `standard_usd` is what the calls would cost at standard prices, without cache and batches;
    `unlisted` counts calls for which that is unknown."""

    calls: int = 0
    tokens: int = 0
    usd: float = 0.0
    unpriced: int = 0
    throttled: int = 0
    standard_usd: float = 0.0
    unlisted: int = 0

    @property
    def cost_usd(self) -> float | None:
        """US dollars; None if no call was counted or the price of one is unknown."""
        return self.usd if self.calls and not self.unpriced else None

    def call(self, tokens: int, usd: float | None, standard_usd: float | None = None) -> None:
        """Count one model call; `usd` and `standard_usd` are None if its price is unknown."""
        self.calls += 1
        self.tokens += tokens
        if usd is None:
            self.unpriced += 1
        else:
            self.usd += usd
        if standard_usd is None:
            self.unlisted += 1
        else:
            self.standard_usd += standard_usd

    def add(self, other: "Spent") -> None:
        self.calls += other.calls
        self.tokens += other.tokens
        self.usd += other.usd
        self.unpriced += other.unpriced
        self.throttled += other.throttled
        self.standard_usd += other.standard_usd
        self.unlisted += other.unlisted

    def to_header(self) -> str:
        """The value of the `SPENT_HEADER` header."""
        billed = f"{self.calls} {self.tokens} {self.usd!r} {self.unpriced} {self.throttled}"
        return f"{billed} {self.standard_usd!r} {self.unlisted}"

    def add_header(self, text: str) -> None:
        """Add the header of another process; ignore one that does not parse."""
        try:
            found = text.split()
            rest = {4: ["0", "0", found[0]], 5: ["0", found[0]], 7: []}[len(found)]
            calls, tokens, usd, unpriced, throttled, standard, unlisted = [*found, *rest]
            told = int(calls), int(tokens), float(usd), int(unpriced), int(throttled)
            self.add(Spent(*told, float(standard), int(unlisted)))
        except (ValueError, LookupError):
            return


@dataclass(slots=True)
class TurnLog:
    """Turns of one rollout that outlive its process: those that an interrupted attempt has stored,
    by the digest of their request, and the function that stores one more."""

    stored: Sequence[dict[str, Any]]
    report: Callable[[dict[str, Any]], Awaitable[None] | None]


class BatchTicket(NamedTuple):
    """Lets model servers gather the requests of a rollout into batches. `id` is the same in each
    attempt that continues the rollout, also after a restart."""

    id: str
    waits: bool = False
    """Whether a call waits for its answer. If not, it ends with BatchPending until there is one."""

    def to_header(self) -> str:
        """The value of the `TICKET_HEADER` header."""
        return f"{self.id} waits" if self.waits else self.id

    @classmethod
    def from_header(cls, text: str) -> "BatchTicket":
        id, _, waits = text.partition(" ")
        return cls(id, waits == "waits")


_drawn: list[str] = []
os.register_at_fork(after_in_child=_drawn.clear)


def fresh_id() -> str:
    """An id that cannot be guessed. Safe to call from any thread."""
    while True:
        try:
            return _drawn.pop()
        except IndexError:
            digits = token_hex(ID_BYTES * AT_ONCE)
            size = 2 * ID_BYTES
            _drawn.extend(digits[start : start + size] for start in range(0, len(digits), size))


@dataclass(slots=True)
class Session:
    id: str = field(default_factory=fresh_id)
    cookies: dict[str, str] = field(default_factory=dict)
    spent: Spent = field(default_factory=Spent)
    """Usage of the model calls made in this session."""
    stats: dict[str, Any] = field(default_factory=dict)
    """Statistics of the rollout: the agent's turns, calls and times, and LOST_TIMES."""
    calls: dict[str, int] = field(default_factory=dict)
    """How often each call was made, counted while calls are recorded or replayed."""
    turn_log: TurnLog | None = None
    """Set for the call of an agent, which takes it."""
    conversations: dict[str, Any] = field(default_factory=dict)
    """What each model server of this process keeps of the last request, by its name: a
    `RequestReader`."""
    limits: list[Extendable] = field(default_factory=list)
    """Time limits of all who wait for a call of this session. A model server extends them while
    its weights change."""
    ticket: BatchTicket | None = None
    """Set where requests may wait for batches."""
    tier: str = ""
    """Service tier of requests that go into no batch, where neither row nor server names one and
    the server's prices have it."""
    claim: str = ""
    """What its run claims of model servers that others use too, as a header."""

    @classmethod
    def of(
        cls,
        rollout: tuple[str, int] | None,
        spent: Spent | None,
        run: str = "",
        limits: list[Extendable] | None = None,
    ) -> "Session":
        """A new session whose id starts with the rollout (task id, index) it serves, if any, and
        with a digest of what names its run."""
        id = fresh_id()
        if rollout is not None and rollout[0].isascii() and rollout[0].isalnum():
            id = f"{rollout[0]}.{rollout[1]}.{_digest(run)}{id}"
        return cls(id, spent=spent or Spent(), limits=[] if limits is None else limits)

    @property
    def rollout(self) -> tuple[str, int] | None:
        """The rollout that its id names; None if the session has another origin."""
        task_id, _, rest = self.id.partition(".")
        index = rest.partition(".")[0]
        return (task_id, int(index)) if index.isdecimal() else None

    @property
    def origin(self) -> str:
        """What all sessions of one rollout in one run share; empty without a rollout."""
        return self.id[: -2 * ID_BYTES] if self.rollout else ""

    @property
    def lost_s(self) -> tuple[float, ...]:
        """The LOST_TIMES so far."""
        return tuple(map(self.stats.get, LOST_TIMES, repeat(0.0)))

    def lose(self, name: str, seconds: float) -> None:
        """Add `seconds` to one of the LOST_TIMES."""
        self.stats[name] = self.stats.get(name, 0.0) + seconds

    def note_repair(self, what: str) -> None:
        """Note how a reply was changed, so that it could be kept."""
        known = self.stats.setdefault(REPAIRED, [])
        if what not in known:
            known.append(what)

    def stats_to_header(self, *, has_turns: bool = True) -> str:
        """The value of the `STATS_HEADER` header. The turns of a long rollout are more than most
        clients take in a header."""
        stats = self.stats
        if not has_turns and TURNS in stats:
            stats = {name: value for name, value in stats.items() if name != TURNS}
        return json.dumps(stats, separators=(",", ":"))

    def add_stats_header(self, text: str) -> None:
        """Add the header of another process; ignore one that does not parse."""
        try:
            stats = json.loads(text)
        except ValueError:
            return
        for name, value in stats.items() if isinstance(stats, dict) else ():
            if name == REPAIRED and isinstance(value, list):
                for what in value:
                    self.note_repair(str(what))
            elif name not in LOST_TIMES:
                self.stats[name] = value
            elif isinstance(value, int | float):
                self.lose(name, value)


@lru_cache(maxsize=64)
def _digest(run: str) -> str:
    """Eight digits that stand for a run, which all of its sessions name."""
    return f"{crc32(run.encode()):08x}"


def seed_of(session: Session) -> int:
    """A number that the rollout of a session determines: the task and the repeat."""
    digest = blake2b(f"{session.rollout or session.id}".encode(), digest_size=4)
    return int.from_bytes(digest.digest())


_current: ContextVar[Session | None] = ContextVar("session", default=None)


current_session: Callable[[], Session | None] = _current.get
"""The session that the running code belongs to."""


def note_repair(what: str) -> None:
    """Note it in the current session, if there is one."""
    if (session := current_session()) is not None:
        session.note_repair(what)


class entered:
    """Context in which every call belongs to `session`."""

    __slots__ = ("_session", "_token")

    def __init__(self, session: Session | None) -> None:
        self._session = session

    def __enter__(self) -> Session | None:
        self._token: Token[Session | None] = _current.set(self._session)
        return self._session

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)
