"""Which server gets a request: the one that has its prefix in its cache, unless it is too busy.

The turns of a session share a long prefix, and so do the rollouts of a task. vLLM computes what it
has cached in no time, so a request that goes elsewhere costs the whole prefix again.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Generic, Protocol, TypeVar

NUM_REMEMBERED = 100_000
"""Sessions and tasks whose server is remembered: more than are ever in flight."""

MUCH = 1.25
"""A task's server may have so many times the mean of requests in flight, and SOME more."""

SOME = 4


class Server(Protocol):
    in_flight: int
    num_requests: int


ServerT = TypeVar("ServerT", bound=Server)


class Routing(Generic[ServerT]):
    """Remembers where sessions and tasks went."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[Hashable, ServerT] = OrderedDict()
        self._tasks: OrderedDict[Hashable, ServerT] = OrderedDict()

    def choose(
        self, healthy: Sequence[ServerT], session: Hashable = None, task: Hashable = None
    ) -> ServerT | None:
        """The server for a request; None if none is healthy. None as a session or task: unknown."""
        if not healthy:
            return None
        chosen = self._sessions.get(session)
        if chosen is None or chosen not in healthy:
            chosen = self._tasks.get(task)
            if chosen is None or chosen not in healthy or not _has_room(chosen, healthy):
                chosen = min(healthy, key=lambda each: (each.in_flight, each.num_requests))
        for places, name in (self._sessions, session), (self._tasks, task):
            if name is not None:
                places[name] = chosen
                places.move_to_end(name)
                if len(places) > NUM_REMEMBERED:
                    places.popitem(last=False)
        return chosen


def _has_room(one: Server, healthy: Sequence[Server]) -> bool:
    mean = sum(each.in_flight for each in healthy) / len(healthy)
    return one.in_flight < MUCH * mean + SOME
