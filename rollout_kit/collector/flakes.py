"""Verdicts made again while a collection goes on: how often a verifier contradicts itself.

A sample of the rollouts that this run finishes, drawn by their keys, so that it is the same in
every run over them. Nothing waits for it but the end of the run.
"""

import asyncio
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from ..metrics.intervals import share
from ..pacing.bill import Bill
from ..types import Attempt, JsonObject, Key, Outcome, Rollout, Task
from .plan import number_of
from .rollout import Runner
from .schedule import Schedule, Slot

AT_ONCE = 4
"""Verdicts that are made again at the same time: the run's own come first."""

MAX_WAITING = 1_000
"""Rollouts that are kept for it in memory; beyond, the sample gets thinner, and it is told."""

MAX_LISTED = 100
"""Flips that the metrics file names."""


@dataclass(frozen=True, slots=True)
class Flip:
    """A rollout that got another reward the second time."""

    key: Key
    first: float
    second: float

    def line(self) -> JsonObject:
        return {**self.key._asdict(), "first": self.first, "second": self.second}

    def __str__(self) -> str:
        return f"{self.key.task_id}:{self.key.rollout_index} {self.first:g}→{self.second:g}"


@dataclass(slots=True)
class Flakes:
    """Of one run. `again` and `flips` are those whose second verdict is there."""

    runner: Runner
    fraction: float
    seed: int
    again: int = 0
    flips: list[Flip] = field(default_factory=list)
    failed: int = 0
    """Second verdicts that did not come."""
    spared: int = 0
    """Drawn, and left out, as too many waited."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    def take(self, outcome: Outcome) -> None:
        """Have the verdict of a rollout made again, if it is drawn and can be."""
        if not isinstance(outcome, Rollout) or "reward" not in outcome.line:
            return
        plan = self.runner.agents[outcome.key.agent]
        if plan.opaque or plan.reverify != "stateless" or not self._is_drawn(outcome.key):
            return
        if len(self.tasks) >= MAX_WAITING:
            self.spared += 1
            return
        task = asyncio.create_task(self._compare(outcome))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def finish(self) -> None:
        """Wait for what is under way."""
        await asyncio.gather(*self.tasks)

    async def cancel(self) -> None:
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def figures(self) -> JsonObject:
        """For the metrics file."""
        rate = share(len(self.flips), self.again) if self.again else None
        return {
            "fraction": self.fraction,
            "seed": self.seed,
            "rollouts": self.again,
            "flipped": len(self.flips),
            "flake_rate": rate.value if rate else None,
            "interval": [round(rate.low, 6), round(rate.high, 6)] if rate else None,
            "failed": self.failed,
            "spared": self.spared,
            "flips": [flip.line() for flip in self.flips[:MAX_LISTED]],
            "not_audited": self._not_audited(),
        }

    def lines(self) -> list[str]:
        """For people, at the end."""
        of = f"of {number_of(self.again, 'verdict')} made again"
        if self.again:
            rate = share(len(self.flips), self.again)
            text = (
                f"Audit: {len(self.flips):,} {of} came out otherwise: a flake rate of"
                f" {rate.value:.2%} (95 % interval: {rate.low:.2%} … {rate.high:.2%})"
            )
        else:
            text = f"Audit: no verdict was made again (audit_fraction={self.fraction:g})"
        shown = [f"  {flip}" for flip in self.flips[:5]]
        shown += [f"  … and {len(self.flips) - 5:,} more"] if len(self.flips) > 5 else []
        if self.failed:
            shown.append(f"  {number_of(self.failed, 'second verdict')} did not come")
        if self.spared:
            shown.append(f"  {self.spared:,} that were drawn were left out: verdicts are too slow")
        shown += [f"  not audited: {agent}: {why}" for agent, why in self._not_audited().items()]
        return [text, *shown]

    def _not_audited(self) -> dict[str, str]:
        """Agent → why."""
        found = {}
        for name, plan in self.runner.agents.items():
            if plan.opaque:
                found[name] = "it brings its verdicts itself"
            elif plan.reverify != "stateless":
                found[name] = f"its verifier looks at a session's state (reverify: {plan.reverify})"
        return found

    def _is_drawn(self, key: Key) -> bool:
        digest = blake2b(repr((self.seed, *key)).encode(), digest_size=8).digest()
        return int.from_bytes(digest) < self.fraction * 2**64

    async def _compare(self, rollout: Rollout) -> None:
        line, key = rollout.line, rollout.key
        apart = replace(self.runner, slow=set(), bill=Bill())
        slot = Slot(Schedule(iter(()), apart, int))  # a place among no others
        task = Task(key.task_id, line["_ng_task_index"], 0, key.agent, {})
        async with self.places:
            outcome = await apart(Attempt(key, task, stored=line), slot)
        self.runner.bill.spent.add(slot.spent)  # a judge's; it is no rollout of its own
        if not isinstance(outcome, Rollout):
            self.failed += 1
            return
        self.again += 1
        if outcome.line["reward"] != line["reward"]:
            self.flips.append(Flip(key, line["reward"], outcome.line["reward"]))
