"""Verdicts made a second time while a run goes on: how often a verifier contradicts itself.

The sample is drawn by key, so every run over the same rollouts draws the same ones. Only the end of
the run waits for it.
"""

import asyncio
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from ..analysis.metrics.intervals import share
from ..errors import number_of
from ..serving.transport.loop import cancel_all
from ..types import Attempt, JsonObject, Key, Outcome, Rollout, Task
from .pacing.bill import Bill
from .rollout import Runner
from .slot import Slot

AT_ONCE = 4
"""Second verdicts at the same time; few, because the run's own verdicts come first."""

MAX_WAITING = 1_000
"""Rollouts that may wait for their second verdict; further ones are skipped and counted."""

MAX_LISTED = 100
"""Flips that the metrics file names."""


@dataclass(frozen=True, slots=True)
class Flip:
    """A rollout whose second verdict has another reward."""

    key: Key
    first: float
    second: float

    def line(self) -> JsonObject:
        return {**self.key._asdict(), "first": self.first, "second": self.second}

    def __str__(self) -> str:
        return f"{self.key.task_id}:{self.key.rollout_index} {self.first:g}→{self.second:g}"


@dataclass(slots=True)
class VerdictAudit:
    """The audit of one run. `again` counts second verdicts, `flips` lists those that differ."""

    runner: Runner
    fraction: float
    seed: int
    again: int = 0
    flips: list[Flip] = field(default_factory=list)
    failed: int = 0
    """Second verdicts that failed."""
    spared: int = 0
    """Rollouts skipped because too many waited."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    def take(self, outcome: Outcome) -> None:
        """Start a second verification if the rollout is in the sample and can be verified."""
        if not isinstance(outcome, Rollout) or outcome.reward is None:
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
        """Wait for the second verdicts that are under way."""
        await asyncio.gather(*self.tasks)

    async def cancel(self) -> None:
        await cancel_all(self.tasks)

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
        """Agent → why its verdicts are not audited."""
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
        alone = replace(self.runner.limits, batch_key="")  # a batch would give the same verdict
        apart = replace(self.runner, slow=set(), bill=Bill(), limits=alone)
        slot = Slot()
        task = Task(key.task_id, rollout.info.task_index, 0, key.agent, {})
        async with self.places:
            outcome = await apart(Attempt(key, task, stored=line), slot)
        self.runner.bill.spent.add(
            slot.ledger.spent
        )  # cost of a judge; it is no rollout of its own
        first = rollout.reward
        if not isinstance(outcome, Rollout) or outcome.reward is None or first is None:
            self.failed += 1
            return
        self.again += 1
        if outcome.reward != first:
            self.flips.append(Flip(key, first, outcome.reward))
