"""The verification of groups beside a run: once for each group, when its slots are settled.

It never holds up generation. No request waits in a server for the others of its group, so a failed
rollout cannot hang a group, and a retry cannot mix two. A failure leaves the group without a score;
the next run tries again.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from sys import intern

from ...analysis.metrics.summary import Metrics
from ...errors import OutputError, PeerTimeout, RolloutError, VerifyError
from ...serving.group_verdicts import GroupScores, as_group_scores
from ...serving.transport.retry import VERIFICATION, retry
from ...session import VERIFIER, Session, entered
from ...store.groups.members import build_request, group_digest, task_of_row
from ...store.groups.scores import GroupFile, Scored, build_group_line
from ...store.journal import Journal
from ...store.scope import Group
from ...time_limit import within
from ...types import JsonObject
from ..plan import Collection as Work
from .following import LOST, FollowedGroup, GroupFollower
from .tally import GroupTally

log = logging.getLogger(__name__)

MAX_HELD = 256
"""Settled groups that wait in memory; further ones are read from the output again."""


class GroupScoring:
    """Scores the groups of a run whose servers do so, and hands each on with its score.

    It does nothing if the run is about single rollouts. `fail` receives an error that ends the run.
    """

    def __init__(
        self,
        groups: GroupFollower,
        collection: Work,
        metrics: Metrics,
        fail: Callable[[OutputError], None],
        *,
        is_whole: bool,
    ) -> None:
        journal = collection.journal
        self._runner, self._policy = collection.runner, collection.command
        self._metrics, self._fail, self._groups = metrics, fail, groups
        self._renews = not collection.source.generates
        """Whether scores of another verifier do not count."""
        is_wanted = is_whole and not getattr(self._policy, "skip_verification", False)
        plans = self._runner.agents.items() if is_wanted else ()
        self._agents = {name for name, plan in plans if plan.verifies_groups}
        self.is_on = bool(self._agents)
        self.tally = GroupTally()
        self._file: GroupFile | None = None
        if self.is_on and isinstance(journal, Journal):
            opened = partial(journal.open_beside, journal.paths.groups)
            self._file = GroupFile(journal.paths, opened)
        self._last: dict[Group, Scored] = self._file.scored if self._file else {}
        self._limit = asyncio.Semaphore(self._policy.num_groups_in_parallel)
        self._tasks: set[asyncio.Task[None]] = set()
        if self.is_on:
            groups.add(self, self._agents, hashed=True)

    @property
    def planned(self) -> int:
        """Groups that are to be scored."""
        return sum(self._groups.planned[agent] for agent in self._agents)

    def stages(self) -> Counter[str]:
        """What is in flight."""
        number = len(self._tasks) + (self.is_on and bool(self._groups.noted))
        return Counter({"the verification of groups": number} if number else {})

    def take(self, settled: FollowedGroup, hand_on: Callable[[], bool]) -> bool:
        """Score a group, unless it is left out or has a score that counts."""
        group, tally = settled.group, self.tally
        if group.agent not in self._agents:
            return hand_on()
        if settled.is_final and (line := self._find_score(settled)):
            settled.score = line
            if not hand_on():
                settled.score = None
                return False
            tally.older += self._is_older(group, self._last.pop(group))
            self._count(settled, line)
            return True
        if settled.left_out:
            tally.dropped += settled.left_out == "dropped"
            tally.incomplete += settled.left_out == "incomplete"
            if settled.left_out == LOST:
                tally.failed[group] = LOST
            return hand_on()
        if settled.members is None or (self._file and len(self._tasks) >= MAX_HELD):
            return False
        task = asyncio.create_task(self._score(settled, hand_on))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    def has_place(self, group: Group) -> bool:
        return False

    async def has_room(self, group: Group) -> bool:
        await self.drain(self._policy.num_groups_in_parallel)
        return not self._groups.is_stopped

    async def drain(self, most: int = 0) -> None:
        """Wait until at most so many groups are waiting or in flight."""
        while len(self._tasks) > most:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def figures(self) -> JsonObject:
        """For the metrics file; groups that are still open are incomplete."""
        return self.tally.figures(self.planned)

    def _find_score(self, settled: FollowedGroup) -> JsonObject | None:
        """The line of an earlier run with the score of just these members, if it counts."""
        last = self._last.get(settled.group)
        if last is None or self._file is None or last.digest != group_digest(settled.total):
            return None
        is_older = self._is_older(settled.group, last)
        return None if is_older and self._renews else self._file.read(last)

    def _is_older(self, group: Group, scored: Scored) -> bool:
        return scored.verifier != self._runner.agents[group.agent].verifier

    async def _score(self, settled: FollowedGroup, hand_on: Callable[[], bool]) -> None:
        group = settled.group
        try:
            async with self._limit:
                if self._groups.is_stopped:
                    return
                scores, verifier = await self._ask(settled)
        except RolloutError as error:
            if settled.is_final:
                self.tally.failed[group] = intern(f"{error}")  # the error holds its members
                settled.left_out = "not scored"
                hand_on()
            return
        pairs = zip(settled.slots, scores.members, strict=True)
        line = build_group_line(
            group,
            settled.task_index,
            group_digest(settled.total),
            verifier,
            [(member.key, score) for member, score in pairs if member is not None],
            scores.group,
        )
        try:
            scored = self._file.append(line) if self._file else None
        except (OutputError, TypeError) as error:
            is_full = isinstance(error, OutputError)
            self._fail(error if is_full else OutputError(f"group {group.task_id}: {error}"))
            return
        if settled.is_final:
            self._count(settled, line)
            settled.score = line
            hand_on()
        elif scored is not None:
            self._last[group] = scored

    async def _ask(self, settled: FollowedGroup) -> tuple[GroupScores, str]:
        """The scores of a group, and the fingerprint of the verifier that gave them."""
        plan = self._runner.agents[settled.group.agent]
        timeout_s = self._policy.verify_group_timeout_s
        server, members = plan.resources or "", settled.slots
        raw = build_request(task_of_row(settled.row), members)
        session = Session()
        try:
            with entered(session), within(timeout_s):
                ask = partial(self._runner.peers.verify_group, server, raw)
                reply = await retry(ask, VERIFICATION)
            if not isinstance(reply, GroupScores):
                reply = as_group_scores(reply, members)
        except TimeoutError:
            why = f"no scores within verify_group_timeout_s={timeout_s:g}"
            raise PeerTimeout(why, server=server) from None
        except RolloutError as error:
            error.server = error.server or server
            raise
        except Exception as bug:
            log.exception("an unexpected error in the verification of a group")
            message = f"{type(bug).__name__}: {bug}"
            raise VerifyError(message, server=server, retryable=False) from bug
        finally:
            self._runner.bill.spent.add(session.spent)
        return reply, session.stats.get(VERIFIER, plan.verifier)

    def _count(self, settled: FollowedGroup, line: JsonObject) -> None:
        """Count a group that has a score."""
        self.tally.take(line)
        self.tally.scored -= settled.is_reopened
        self._metrics.add_group(settled.group, line)
