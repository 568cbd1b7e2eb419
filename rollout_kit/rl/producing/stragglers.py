"""Over-provisioning: more groups are begun than a step of the trainer takes. Once it has enough,
the others are stopped, and go on in the next step: finished turns are not made again.

The groups that are done first are the short ones, so what a step trains on is biased; the run says
by how much.
"""

from collections.abc import Mapping
from typing import Any

from ...analysis.length_bias import LengthBias
from ...collecting.run import Run
from ...collecting.slot import Slot
from ...errors import number_of
from ...types import Attempt, Key, Outcome, Rollout

HOLD = "a full step"
"""Why nothing starts while a step has enough."""


class Stragglers:
    """Stops the rollouts of a run while the trainer has enough groups."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._stopped = set[Key]()
        self._lengths: dict[bool, list[int]] = {True: [], False: []}
        """Whether a rollout was stopped → the output tokens of those that have finished."""
        run.observe(self)

    def take(self, outcome: Outcome) -> None:
        """Follow the outcomes of the run."""
        if isinstance(outcome, Rollout):
            self._lengths[outcome.key in self._stopped].append(outcome.info.output_tokens)

    def follow(self, stats: Mapping[str, Any]) -> None:
        """Stop or go on, as the room of a buffer tells."""
        schedule, room = self._run.schedule, stats["room"]
        is_full = room is not None and room <= 0 and not stats["finished"]
        if is_full and HOLD not in schedule.holds:
            schedule.holds.add(HOLD)
            for task, slot in schedule.slots.items():
                if slot.attempt is not None and slot.parked is None and not task.done():
                    slot.withdraw = self._put_back
                    task.cancel()
        elif not is_full and HOLD in schedule.holds:
            self.let_go()

    def let_go(self) -> None:
        """Let everything go on."""
        self._run.schedule.holds.discard(HOLD)
        self._run.schedule.refresh()

    def report(self) -> str:
        """How many were stopped, and what that does to lengths; empty if none was."""
        if not self._stopped:
            return ""
        what = f"{number_of(len(self._stopped), 'rollout')} stopped at a full step"
        if (found := self._measure()) is None:
            return what
        return (
            f"{what}; their output tokens: {found.others}; of the others: {found.kept};"
            f" those that were not stopped are {found.describe()}"
        )

    def measure(self) -> dict[str, float]:
        """The same, for trackers."""
        if (found := self._measure()) is None:
            return {}
        return {
            "stopped/n": float(len(self._stopped)),
            "stopped/length_mean": found.others.mean,
            "stopped/length_bias": found.bias,
        }

    def _measure(self) -> LengthBias | None:
        return LengthBias.of(self._lengths[False], self._lengths[True])

    def _put_back(self, slot: Slot) -> None:
        attempt = renew_attempt(slot)
        self._stopped.add(attempt.key)
        self._run.schedule.start_again(attempt)


def renew_attempt(slot: Slot) -> Attempt:
    """The attempt of a slot that was stopped, with what it has so far."""
    attempt = slot.attempt
    assert attempt is not None
    stored = slot.parked.line if slot.parked else attempt.stored
    return attempt._replace(stored=stored, turns=tuple(slot.turns) or attempt.turns)
