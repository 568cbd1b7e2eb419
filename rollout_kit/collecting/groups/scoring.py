"""The verification of groups beside a run: once for each group, when its slots are settled.

It never holds up generation. No request waits in a server for the others of its group, so a failed
rollout cannot hang a group, and a retry cannot mix two. A group that does not fit into memory, or
has rollouts of earlier runs, is read from the output again. A failure leaves the group without a
score; the next run tries again.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from sys import intern

from ...analysis.metrics.summary import Metrics
from ...config.keys import GroupsConfig
from ...errors import OutputError, PeerTimeout, RolloutError, VerifyError
from ...serving.group_verdicts import GroupScores, as_group_scores
from ...serving.transport.retry import VERIFICATION, retry
from ...session import VERIFIER, Session, entered
from ...store.groups.members import build_request, group_digest
from ...store.groups.reading import read_groups
from ...store.groups.scores import GroupFile, Scored, build_group_line
from ...store.journal import AnyJournal, Journal
from ...store.scope import Group
from ...time_limit import running_loop, within
from ...types import JsonObject, Outcome, Rollout, StoredTurn
from ..plan import Collection as Work
from ..rollout import Runner
from .jobs import Job, Needed, make_job
from .slots import OpenGroup, OpenGroups
from .tally import GroupTally

log = logging.getLogger(__name__)

MAX_HELD = 256
"""Settled groups that wait in memory; further ones are read from the output again."""

GATHER_S = 0.05
"""Time in which outcomes are gathered. Going through them one after the other, and asking about the
groups that they settle, takes two thirds of the CPU that it takes between the steps of other work.
"""


class GroupScoring:
    """For a run whose servers score groups; the sink of its outcomes.

    `note` receives each score that counts, as its line; `fail` an error that ends the run. With
    `renews`, scores of another verifier do not count.
    """

    def __init__(
        self,
        runner: Runner,
        journal: AnyJournal,
        policy: GroupsConfig,
        *,
        agents: Collection[str],
        note: Callable[[Group, JsonObject], None],
        fail: Callable[[OutputError], None],
        renews: bool = False,
    ) -> None:
        self._runner, self._journal, self._policy = runner, journal, policy
        self._note, self._fail, self._renews = note, fail, renews
        self.is_on = bool(agents)
        self.followers: list[Callable[[Group, JsonObject | None], None]] = []
        """They receive the line of each group that this run scored, None for one that it could not
        score."""
        done = journal.contents.done
        self.open = OpenGroups(agents, done, self._settle, lambda: running_loop().time())
        self.tally = GroupTally()
        self._file: GroupFile | None = None
        if self.is_on and isinstance(journal, Journal):
            opened = partial(journal.open_beside, journal.paths.groups)
            self._file = GroupFile(journal.paths, opened)
        self._last: dict[Group, Scored] = self._file.scored if self._file else {}
        self._needed: dict[Group, Needed] = {}
        self._gathered: deque[Job] = deque()
        self._is_gathering = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    @classmethod
    def of(
        cls,
        collection: Work,
        metrics: Metrics,
        fail: Callable[[OutputError], None],
        is_whole: bool,
    ) -> "GroupScoring":
        """That of a run; it does nothing if no server scores groups, or if the run is about single
        rollouts."""
        runner, source, policy = collection.runner, collection.source, collection.command
        is_wanted = is_whole and not getattr(policy, "skip_verification", False)
        plans = runner.agents.items() if is_wanted else ()
        agents = {name for name, plan in plans if plan.verifies_groups}
        found = cls(
            runner,
            collection.journal,
            policy,
            agents=agents,
            note=metrics.add_group,
            fail=fail,
            renews=not source.generates,
        )
        if found.is_on:
            source.on_task = found.open.plan
        return found

    def stages(self) -> Counter[str]:
        """What is in flight."""
        number = self._num_waiting + bool(self.open.noted)
        return Counter({"the verification of groups": number} if number else {})

    @property
    def _num_waiting(self) -> int:
        """Groups that are gathered, or in flight."""
        return len(self._gathered) + len(self._tasks)

    def append_all(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Write outcomes, as the sink of a schedule; they are followed with others."""
        kept = self._journal.append_all(outcomes)
        for outcome in kept:
            self.open.note(outcome)
        if self.open.noted and not self._is_gathering:
            self._gather()
        return kept

    def append_turn(self, turn: StoredTurn) -> None:
        self._journal.append_turn(turn)

    def add_earlier(self, rollout: Rollout) -> None:
        self.open.add_earlier(rollout)

    def stop(self) -> None:
        """Start nothing more; what is in flight may finish."""
        self._is_stopped = True
        self._gathered.clear()

    def cancel(self) -> None:
        self.stop()
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        self.cancel()
        self._go_on()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def watch(self) -> None:
        """Score groups whose deadline has passed as they are."""
        deadline_s = self._policy.group_deadline_s
        while deadline_s is not None:
            await asyncio.sleep(deadline_s / 8)
            self._go_on()
            for group, opened in self.open.overdue(deadline_s):
                is_enough = opened.num_members >= self._policy.min_members
                if self._policy.incomplete_groups == "partial" and is_enough and opened.held:
                    job = make_job(group, opened, opened.owed | opened.failed)
                    self._start(job._replace(is_final=False))

    async def finish(self) -> None:
        """Wait for everything that was settled. Stopped, only for what is in flight."""
        await self._drain(0)
        await self.catch_up()
        await self._drain(0)

    async def catch_up(self) -> None:
        """Read settled groups from the output, and score those whose score is not current."""
        while self._needed and not self._is_stopped:
            needed, self._needed = self._needed, {}
            journal = self._journal
            assert isinstance(journal, Journal)
            sizes = {group: each.num_members for group, each in needed.items()}
            async for found in read_groups(journal.paths.main, journal.size, sizes):
                await self._drain(self._policy.num_groups_in_parallel)
                if self._is_stopped:
                    return
                want = needed.pop(found.group)
                members = {**dict.fromkeys(want.failed), **found.members}
                slots = {key: members[key] for key in sorted(members)}
                job = Job(found.group, want.task_index, found.task, slots)
                self._start(job._replace(is_again=want.num_members is None))
            for group in needed:
                self.tally.failed[group] = "its rollouts are not in the output any more"

    def _settle(self, group: Group, opened: OpenGroup) -> None:
        policy, count = self._policy, opened.num_members
        last = self._last.get(group)
        is_known = last is not None and last.digest == group_digest(opened.total)
        if is_known and last is not None and self._counts(group, last) and self._file:
            del self._last[group]
            self._take(group, self._file.read(last))
        elif not count or (opened.failed and policy.incomplete_groups == "wait"):
            self.tally.incomplete += 1
        elif policy.incomplete_groups == "drop" and (opened.failed or self._is_late(opened)):
            self.tally.dropped += 1
        elif opened.failed and count < policy.min_members:
            self.tally.incomplete += 1
        elif self._file and (opened.held is None or self._num_waiting >= MAX_HELD):
            size = None if opened.is_reopened else count
            self._needed[group] = Needed(opened.task_index, size, frozenset(opened.failed))
        elif opened.held:
            self._start(make_job(group, opened, opened.failed))
        else:  # without an output its earlier rollouts cannot be read again
            self.tally.incomplete += 1

    def _counts(self, group: Group, last: Scored) -> bool:
        """Whether a score with the right digest counts."""
        is_older = last.verifier != self._runner.agents[group.agent].verifier
        self.tally.older += is_older and not self._renews
        return not (is_older and self._renews)

    def _is_late(self, opened: OpenGroup) -> bool:
        deadline_s, began = self._policy.group_deadline_s, opened.began
        if deadline_s is None or began is None:
            return False
        return running_loop().time() - began >= deadline_s

    def _start(self, job: Job) -> None:
        if self._is_stopped:
            return
        self._gathered.append(job)
        if not self._is_gathering:
            self._gather()

    def _gather(self) -> None:
        self._is_gathering = True
        running_loop().call_later(GATHER_S, self._start_gathered)

    def _start_gathered(self) -> None:
        self._is_gathering = True  # what it settles starts below
        self._go_on()
        self._is_gathering = False
        self._start_task()

    def _start_task(self) -> None:
        """Start a task, and another one if it waits: one serves all verifiers that do not wait."""
        if self._gathered and len(self._tasks) < self._policy.num_groups_in_parallel:
            task = asyncio.create_task(self._score_gathered())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.get_loop().call_soon(self._start_task)  # follows the first step of the task

    def _go_on(self) -> None:
        """Follow the outcomes that were gathered."""
        try:
            self.open.go_on()
        except Exception as bug:  # a callback of the loop has nobody else to tell
            log.exception("an unexpected error while groups were followed")
            self._fail(OutputError(f"the groups cannot be followed: {type(bug).__name__}: {bug}"))

    async def _drain(self, most: int) -> None:
        """Wait until at most so many groups are waiting or in flight."""
        self._go_on()
        while self._num_waiting > most:
            self._start_gathered()
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def _score_gathered(self) -> None:
        """Ask about one group after the other."""
        while self._gathered:
            await self._score(self._gathered.popleft())

    async def _score(self, job: Job) -> None:
        try:
            scores, verifier = await self._ask(job)
        except RolloutError as error:
            if job.is_final:
                self.tally.failed[job.group] = intern(f"{error}")  # the error holds its members
                self._tell(job.group, None)
            return
        pairs = zip(job.members.values(), scores.members, strict=True)
        line = build_group_line(
            job.group,
            job.task_index,
            job.digest,
            verifier,
            [(member.key, score) for member, score in pairs if member is not None],
            scores.group,
        )
        try:
            scored = self._file.append(line) if self._file else None
        except (OutputError, TypeError) as error:
            is_full = isinstance(error, OutputError)
            self._fail(error if is_full else OutputError(f"group {job.group.task_id}: {error}"))
            return
        if job.is_final:
            self._take(job.group, line)
            self._tell(job.group, line)
            self.tally.scored -= job.is_again
        elif scored is not None:
            self._last[job.group] = scored

    async def _ask(self, job: Job) -> tuple[GroupScores, str]:
        """The scores of a group, and the fingerprint of the verifier that gave them."""
        plan, timeout_s = self._runner.agents[job.group.agent], self._policy.verify_group_timeout_s
        server, members = plan.resources or "", list(job.members.values())
        raw = build_request(job.task, members)
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

    def _take(self, group: Group, line: JsonObject) -> None:
        self.tally.take(line)
        self._note(group, line)

    def _tell(self, group: Group, line: JsonObject | None) -> None:
        for follow in self.followers:
            follow(group, line)

    def figures(self) -> JsonObject:
        """For the metrics file; groups that are still open are incomplete."""
        return self.tally.figures(self.open.planned)
