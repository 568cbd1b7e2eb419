"""Sources of a mix whose environment is down: none of their groups begin, and their rollouts in
flight are taken back, so that they hold no place in the buffer.

A source is down if nothing listens at one of its servers, or if its rollouts fail one after the
other because a server behind them cannot be reached.
"""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic

from ...collecting.pacing.give_up import UNREACHED
from ...collecting.run import Run
from ...collecting.slot import Slot
from ...errors import PeerUnreachable, RolloutError
from ...serving.transport.loop import gather_all
from ...store.scope import Group, group_of
from ...types import Attempt, Failure, Outcome, Rollout, Say
from ..producing.stragglers import renew_attempt

PROBE_EVERY_S = 1.0
"""Pause between two looks at the servers of a source."""

FAILURES = 8
"""Rollouts of a source that must fail in a row because a server was not reached."""

AGAIN_S = 15.0
"""After so long, the next rollout of a source that failed shows whether it is still down."""


class Outages:
    """`source_of` finds the source of a task id, `give_back` frees the place of a group, `put_back`
    receives a source that is back."""

    def __init__(
        self,
        source_of: Callable[[str], str | None],
        give_back: Callable[[Group], object],
        put_back: Callable[[str], object],
    ) -> None:
        self._source_of, self._give_back, self._put_back = source_of, give_back, put_back
        self.why: dict[str, str] = {}
        """Sources that are down → the reason."""
        self.changed = asyncio.Event()
        """Set, and replaced, when a source goes down or is back."""
        self._again = deque[Attempt]()
        self._failures = Counter[str]()
        self._retry_at: dict[str, float] = {}
        self._began: dict[str, float] = {}
        self.down_s: defaultdict[str, float] = defaultdict(float)
        """Seconds that each source was down."""
        self._say: Say = lambda text, **about: None

    def take(self, outcome: Outcome) -> None:
        """Follow an outcome."""
        name = self._source_of(outcome.key.task_id)
        if name is None:
            return
        if isinstance(outcome, Rollout):
            self._failures[name] = 0
        elif isinstance(outcome, Failure) and outcome.error.status in UNREACHED:
            self._failures[name] += 1
            if self._failures[name] >= FAILURES and name not in self.why:
                self._retry_at[name] = monotonic() + AGAIN_S
                self._put_down(name, f"its last {FAILURES} rollouts failed: {outcome.error}")

    def take_again(self) -> Iterator[Attempt]:
        """The attempts that were taken back, of sources that are up."""
        for _ in range(len(self._again)):
            attempt = self._again.popleft()
            if self._source_of(attempt.key.task_id) in self.why:
                self._again.append(attempt)
            else:
                yield attempt

    async def watch(self, run: Run, say: Say, servers_of: Mapping[str, Sequence[str]]) -> None:
        """Look at the servers of each source, until cancelled."""
        self._say = say
        await gather_all(self._watch_source(run, *each) for each in servers_of.items())

    async def _watch_source(self, run: Run, name: str, servers: Sequence[str]) -> None:
        while True:
            if reason := await _find_unreached(run, servers):
                self._put_down(name, reason)
            elif name in self.why and monotonic() >= self._retry_at.get(name, 0.0):
                self._put_up(name)
            if name in self.why:
                self._withdraw(run, name)
            await asyncio.sleep(PROBE_EVERY_S)

    def _put_down(self, name: str, reason: str) -> None:
        if name not in self.why:
            self._began[name] = monotonic()
            self._say(f"{name} is down: {reason}", event="source_down", source=name)
            self.why[name] = reason
            self._wake()

    def _put_up(self, name: str) -> None:
        del self.why[name]
        self._retry_at.pop(name, None)
        self._failures[name] = min(self._failures[name], FAILURES - 1)  # one more shows it
        self.down_s[name] += (seconds := monotonic() - self._began.pop(name))
        self._say(f"{name} is back after {seconds:.0f} s", event="source_back", source=name)
        self._put_back(name)
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def _withdraw(self, run: Run, name: str) -> None:
        """Take back the attempts of a source that have no response yet."""
        for task, slot in run.schedule.slots.items():
            attempt = slot.attempt
            if attempt is None or slot.parked is not None or task.done():
                continue
            if self._source_of(attempt.key.task_id) == name:
                slot.withdraw = self._keep
                task.cancel()

    def _keep(self, slot: Slot) -> None:
        assert slot.attempt is not None
        self._again.append(renew_attempt(slot))
        self._give_back(group_of(slot.attempt.key))


async def _find_unreached(run: Run, servers: Sequence[str]) -> str:
    """Why a server is not reached; empty if all are."""
    for server in servers:
        try:
            await run.runner.peers.call(server, "/health", None)
        except PeerUnreachable as error:
            return str(error)
        except RolloutError:
            pass  # something answers
    return ""
