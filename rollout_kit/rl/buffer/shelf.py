"""The rules of every buffer: who may begin a group, which groups wait, who holds which.

Every method decides at once and waits for nothing. The state depends on nothing but the calls,
their order, and the time that `clock` gives to each: shelves with the same calls are equal.
"""

import math
import secrets
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from itertools import islice
from random import Random
from typing import Any

from ...types import JsonObject
from .group import BufferedGroup, Settled
from .policy import BufferPolicy

MAX_DEAD = 1_000
"""Keys of groups that were handed out too often; the last ones are named in the statistics."""

FREE = ""
"""The lease of a group that was given back and waits for the next one."""


RULES = 2
"""Raise it when a call may have another result than before: shelves that must be equal may belong
to processes with different versions of this package."""


NAMING = frozenset({"reserve", "take"})
"""Operations that make names, and take a `token` for that."""


NO_FIGURES: Mapping[str, float | None] = {}


def owner_of(name: str) -> str:
    """The owner of a ticket or a lease."""
    return name.rpartition(":")[0]


@dataclass(slots=True)
class ShelfEntry:
    """A group on the shelf. `deadline` is that of its lease."""

    group: BufferedGroup
    size: int
    since: float
    uses: int
    deliveries: int = 0
    lease: str | None = None
    deadline: float = 0.0

    @property
    def version(self) -> int | None:
        return self.group.version_first


@dataclass(slots=True)
class Taken:
    """What one lease was given."""

    lease: str
    version: int | None
    """The trainer's."""
    entries: list[ShelfEntry] = field(default_factory=list)


class Shelf:
    """`note` receives each change that a file must know to build the shelf again."""

    def __init__(
        self,
        policy: BufferPolicy,
        clock: Callable[[], float],
        note: Callable[..., object] = lambda *change: None,
    ) -> None:
        self.policy, self._clock, self._note = policy, clock, note
        self.identity = secrets.token_hex(8)
        self.version: int | None = None
        self.is_finished = False
        self.figures: Mapping[str, float | None] = NO_FIGURES
        """Those that the trainer told with its version."""
        self.hold_each = 0
        """Nothing is handed out at every so many versions, until that version is let go."""
        self.let_off: int | None = None
        """The last version that was."""
        self.best: int | None = None
        """The version that is best on held-out tasks, if one is known."""
        self.base = self.acked_since = 0
        """The version from which steps are counted, and the uses acknowledged since."""
        self.ready: dict[str, ShelfEntry] = {}
        """Groups that wait, the oldest first."""
        self.held: dict[str, ShelfEntry] = {}
        """Groups that were handed out, the oldest first, by key."""
        self.bytes = self.uses = 0
        self.counts: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.lags: Counter[int] = Counter()
        """Staleness of the groups that were handed out."""
        self.dead: deque[str] = deque(maxlen=MAX_DEAD)
        self._tickets: dict[str, float] = {}
        self.known: dict[str, None] = {}
        """Keys of finished groups, the oldest first."""
        self.left: deque[Settled] = deque(maxlen=policy.remember)
        self.number_left = 0
        """How many groups have left."""
        self._oldest = self._next_due = math.inf
        """No waiting group has an older version; no lease ends before this."""

    def __len__(self) -> int:
        return len(self.ready) + len(self.held)

    def reserve(self, number: int, owner: str, token: str) -> list[str]:
        """Tickets for up to `number` groups that may be begun now. `token` is a text that no other
        call has."""
        if self.is_finished:
            return []
        now = self._clock()
        self._tickets = {each: due for each, due in self._tickets.items() if due > now}
        policy = self.policy
        room = policy.capacity - len(self) - len(self._tickets)
        bound = policy.num_to_begin(self._room(), len(self._tickets))
        room = min(number, room if bound is None else min(room, bound))
        tickets = [f"{owner}:{token}-{each}" for each in range(room)]
        self._tickets |= dict.fromkeys(tickets, now + policy.reserve_s)
        return tickets

    def release(self, tickets: Collection[str], owner: str) -> None:
        """Give reserved places back, and all of an owner: it did nothing with its groups."""
        own = [each for each in self._tickets if owner and owner_of(each) == owner]
        for ticket in [*tickets, *own]:
            self._tickets.pop(ticket, None)
        for entry in self.held.values():
            if owner and owner_of(entry.lease or "") == owner:
                entry.lease, self._next_due = FREE, -math.inf
                entry.deliveries -= 1

    def put(self, group: BufferedGroup, size: int = 0, ticket: str = "") -> str:
        """`ok`, or why the group was not taken: `duplicate`, `stale`, `full` or `too_large`."""
        key, policy = group.key, self.policy
        due = self._tickets.pop(ticket, None)
        if key in self.known or key in self.ready or key in self.held:
            self.counts["duplicates"] += 1
            return "duplicate"
        if policy.staleness is not None and self._is_stale(group, policy.staleness):
            return self._refuse(key, "stale")
        if policy.capacity_bytes is not None and size > policy.capacity_bytes:
            return self._refuse(key, "too_large")
        if policy.on_full == "drop_oldest":
            while self.ready and not self.has_room(size):
                self._drop(next(iter(self.ready)), "full")
        if not self.has_room(size):
            if due is not None:
                self._tickets[ticket] = due
            if policy.on_full != "block":
                self.dropped["full"] += 1
                self._note("full")
            return "full"
        self.add(group, size, policy.consume)
        self.counts["put"] += 1
        self._note("put", group, size, policy.consume)
        return "ok"

    def refuse(self, key: str, reason: str, ticket: str = "") -> str:
        """Drop a group that never came onto the shelf."""
        self._tickets.pop(ticket, None)
        if key in self.known or key in self.ready or key in self.held:
            self.counts["duplicates"] += 1
            return "duplicate"
        return self._refuse(key, reason)

    def has_room(self, size: int, ticket: str = "") -> bool:
        """Whether a group of this size can be put, with this ticket."""
        policy, num_reserved = self.policy, len(self._tickets) - (ticket in self._tickets)
        if len(self) + num_reserved >= policy.capacity:
            return False
        return policy.capacity_bytes is None or self.bytes + size <= policy.capacity_bytes

    def has_work(self, least: int, staleness: int | None) -> bool:
        """Whether `take` would hand out or drop something now."""
        if self._is_held:
            return False
        now, oldest = self._clock(), self._oldest
        if staleness is not None and self.version is not None and oldest < self.version - staleness:
            return True
        due = [each for each in self.held.values() if each.lease == FREE or each.deadline <= now]
        if len(due) + len(self.ready) >= self._count_needed(least):
            return True
        return any(self._verdict(each, staleness) for each in due)

    def _count_needed(self, least: int) -> int:
        return 1 if self.is_finished else max(1, least)

    def take(
        self, number: int, least: int, staleness: int | None, owner: str, token: str
    ) -> Taken | None:
        """Up to `number` groups under a new lease; None if there are not at least `least`. `token`
        is a text that no other call has."""
        now, policy = self._clock(), self.policy
        if self._is_held:
            return None
        self._sweep(staleness)
        again = self._take_back(now, staleness) if self._next_due <= now else []
        if len(again) + len(self.ready) < self._count_needed(least):
            return None
        taken = Taken(f"{owner}:{token}", self.version)
        again = again[:number]
        self.counts["redelivered"] += len(again)
        for key in [*again, *self._choose(number - len(again), token)]:
            entry = self.ready.pop(key, None) or self.held[key]
            entry.lease, entry.deadline = taken.lease, now + policy.visibility_s
            entry.deliveries += 1
            self.held[key] = entry
            self._next_due = min(self._next_due, entry.deadline)
            taken.entries.append(entry)
            if entry.version is not None and self.version is not None:
                self.lags[self.version - entry.version] += 1
        self.counts["delivered"] += len(taken.entries)
        return taken

    def ack(self, lease: str, keys: Collection[str] | None = None) -> list[str]:
        """The trainer has used these groups, or all of the lease; returns those that counted. A
        group that another lease was given meanwhile does not."""
        done = list(self._held_by(lease, keys))
        for key in done:
            self.use(key)
        return done

    def nack(
        self, lease: str, keys: Collection[str] | None = None, requeue: bool = True
    ) -> list[str]:
        """Give groups back, to be handed out again at once; or drop them."""
        done = list(self._held_by(lease, keys))
        for key in done:
            if requeue:
                self.held[key].lease, self._next_due = FREE, -math.inf
            else:
                self._drop(key, "nacked")
        return done

    def extend(self, lease: str) -> int:
        """Begin the visibility time of a lease, or of a ticket, again; returns how many groups it
        still has."""
        now = self._clock()
        if lease in self._tickets:
            self._tickets[lease] = now + self.policy.reserve_s
            return 1
        kept = list(self._held_by(lease, None))
        for key in kept:
            self.held[key].deadline = now + self.policy.visibility_s
        return len(kept)

    def set_version(self, version: int, figures: Mapping[str, float | None] = NO_FIGURES) -> None:
        """The trainer's weights are these now. A lower version than before begins a new count."""
        if self.version is None or version < self.version:
            self.base, self.acked_since = version, 0
        self.version, self.figures = version, figures
        self._note("version", version)

    def finish(self, is_finished: bool = True) -> None:
        """Nothing more is to be made or will come; or it is, after all."""
        self.is_finished = is_finished

    def hold_every(self, versions: int) -> None:
        """Hand out nothing at every so many versions, until `let_go`; 0: always hand out."""
        self.hold_each = versions

    def let_go(self, version: int, best: int | None) -> None:
        """Hand out groups at this version again. `best` is the best one so far."""
        self.let_off, self.best = version, best

    @property
    def _is_held(self) -> bool:
        if not self.hold_each or self.version is None or self.is_finished:
            return False
        return self.version % self.hold_each == 0 and self.version != self.let_off

    def list_settled(self, after: str, number: int) -> list[Settled]:
        """Groups that have left since `after`, which is empty for the first look."""
        seen = int(after or 0)
        skipped = len(self.left) - (self.number_left - seen)
        return list(islice(self.left, max(0, skipped), max(0, skipped) + number))

    def stats(self) -> JsonObject:
        """Counters and sizes, for people and alarms."""
        held = self.held.values()
        entries = [*self.ready.values(), *held]
        oldest = min((entry.since for entry in entries), default=None)
        counts = {name: self.counts[name] for name in COUNTERS}
        return {
            "id": self.identity,
            **counts,
            "dropped": dict(+self.dropped),
            "waiting": len(self.ready),
            "leased": len(self.held),
            "owners": dict(Counter(filter(None, (owner_of(e.lease or "") for e in held)))),
            "reserved": len(self._tickets),
            "room": self._room(),
            "bytes": self.bytes,
            "version": self.version,
            "figures": self.figures,
            "staleness": {str(lag): number for lag, number in sorted(self.lags.items())},
            "oldest_s": None if oldest is None else self._clock() - oldest,
            "dead": list(self.dead),
            "finished": self.is_finished,
            "hold_every": self.hold_each,
            "let_go": self.let_off,
            "best_version": self.best,
        }

    def _room(self) -> int | None:
        return self.policy.room(self.version, self.base, self.acked_since, self.uses)

    def _is_stale(self, group: BufferedGroup, staleness: int) -> bool:
        version = self.policy.version_of(group)
        return None not in (version, self.version) and version < self.version - staleness  # type: ignore[operator]

    def _wait(self, key: str, entry: ShelfEntry) -> None:
        self.ready[key] = entry
        if (version := self.policy.version_of(entry.group)) is not None:
            self._oldest = min(self._oldest, version)

    def _sweep(self, staleness: int | None) -> None:
        """Drop what waits and is too stale."""
        if staleness is None or self.version is None or self._oldest >= self.version - staleness:
            return
        for key in [k for k, each in self.ready.items() if self._is_stale(each.group, staleness)]:
            self._drop(key, "stale")
        self._oldest = self.version - staleness

    def _take_back(self, now: float, staleness: int | None) -> list[str]:
        """The groups whose lease has ended, which can be handed out again."""
        again, self._next_due = [], math.inf
        for key, entry in list(self.held.items()):
            if entry.lease != FREE and entry.deadline > now:
                self._next_due = min(self._next_due, entry.deadline)
            elif reason := self._verdict(entry, staleness):
                if reason == "dead":
                    self.dead.append(key)
                self._drop(key, reason)
            else:
                again.append(key)
        if again:
            self._next_due = now  # until they are handed out
        return again

    def _verdict(self, entry: ShelfEntry, staleness: int | None) -> str:
        """Why a group that comes back is dropped; empty if it is handed out again."""
        if entry.deliveries >= self.policy.max_deliveries:
            return "dead"
        is_stale = staleness is not None and self._is_stale(entry.group, staleness)
        return "stale" if is_stale else ""

    def _choose(self, number: int, token: str) -> list[str]:
        keys: Any = self.ready
        order = self.policy.order
        if order == "random":
            drawn = Random(token).random
            keys = sorted(keys, key=lambda _: drawn())
        elif order == "freshest":
            keys = sorted(keys, key=lambda key: -(self.ready[key].version or 0))
        return list(islice(keys, number))

    def _held_by(self, lease: str, keys: Collection[str] | None) -> Iterator[str]:
        if lease == FREE:
            return iter(())
        asked = list(self.held) if keys is None else dict.fromkeys(keys)
        return (key for key in asked if (one := self.held.get(key)) and one.lease == lease)

    def _refuse(self, key: str, reason: str) -> str:
        self.dropped[reason] += 1
        self.settle(key, reason)
        return reason

    def _drop(self, key: str, reason: str) -> None:
        self.dropped[reason] += 1
        self.settle(key, reason)

    def add(self, group: BufferedGroup, size: int, uses: int) -> None:
        self._wait(group.key, ShelfEntry(group, size, self._clock(), uses))
        self.bytes += size
        self.uses += uses

    def use(self, key: str) -> None:
        """Count one use of a group; after the last it leaves."""
        self.acked_since += 1
        self.counts["acked"] += 1
        entry = self.held.pop(key, None) or self.ready.pop(key)
        if entry.uses > 1:
            entry.uses -= 1
            self.uses -= 1
            entry.lease, entry.deliveries = None, 0
            self._wait(key, entry)
            self._note("use", key)
        else:
            self.held[key] = entry
            self.settle(key, "acked")

    def settle(self, key: str, reason: str) -> None:
        """The group leaves, or is known as one that never came."""
        entry = self.ready.pop(key, None) or self.held.pop(key, None)
        if entry:
            self.bytes -= entry.size
            self.uses -= entry.uses
        if len(self.known) >= self.policy.remember:
            del self.known[next(iter(self.known))]
        self.known[key] = None
        self.number_left += 1
        version = entry.version if entry else None
        lag = None if version is None or self.version is None else self.version - version
        self.left.append(Settled(str(self.number_left), key, reason, version, lag))
        self._note("left", key, reason)

    def save(self) -> JsonObject:
        """The whole state as JSON."""
        return {
            **{name: getattr(self, name) for name in PLAIN},
            "lags": list(self.lags.items()),
            "dead": list(self.dead),
            "tickets": self._tickets,
            "known": list(self.known),
            "left": [astuple(each) for each in self.left],
            "entries": [*self.held.values(), *self.ready.values()],
        }

    def restore(self, state: JsonObject) -> None:
        """Take over what `save` returned."""
        for name in PLAIN:
            setattr(self, name, state[name])
        self.counts, self.dropped = Counter(self.counts), Counter(self.dropped)
        self.lags, self.dead = Counter(dict(state["lags"])), deque(state["dead"], MAX_DEAD)
        self._tickets, self.known = state["tickets"], dict.fromkeys(state["known"])
        self.left = deque((Settled(*each) for each in state["left"]), self.policy.remember)
        for each in state["entries"]:
            entry = ShelfEntry(BufferedGroup.decode(each.pop("group")), **each)
            self.bytes += entry.size
            self.uses += entry.uses
            if entry.lease is None:
                self._wait(entry.group.key, entry)
            else:
                self.held[entry.group.key] = entry
        self._next_due = -math.inf

    def begin_again(self) -> None:
        """After the end of its process: no ticket or lease is left, and groups that were handed out
        wait."""
        self._tickets, self.is_finished, self.figures = {}, False, NO_FIGURES
        entries, self.held, self.ready = [*self.held.values(), *self.ready.values()], {}, {}
        for entry in entries:
            entry.lease, entry.deliveries, entry.since = None, 0, self._clock()
            self._wait(entry.group.key, entry)


PLAIN = ("identity", "version", "is_finished", "figures", "base", "acked_since", "counts")
PLAIN += ("dropped", "number_left", "hold_each", "let_off", "best")
"""Fields that are JSON."""

COUNTERS = ("put", "delivered", "redelivered", "acked", "duplicates")
