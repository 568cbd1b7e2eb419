"""Which tasks an epoch has: small values that decide by what is known of a task.

A decision depends on the task, its groups in earlier epochs, the epoch and the seed alone. So a
training that continues decides as before.
"""

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Annotated, Any, Literal, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

MOST = 5
"""A task is left out for at most 2^MOST − 1 epochs."""

GROUP = 8
"""Members of a group, where a policy asks whether their rewards will differ."""

UNLOCKED_BY = 50
"""Groups of a level that must be known before the next one is unlocked."""


class KnownGroup(NamedTuple):
    """What is known of one group of a task. Rewards count as successes as far as they are from 0
    to 1."""

    epoch: int
    number: int
    successes: float
    is_informative: bool
    """Whether its rewards differ."""

    @property
    def rate(self) -> float:
        return self.successes / self.number


class LevelRates(Protocol):
    """What is known of the tasks whose rows have a number within a range."""

    def rate_of(self, above: float, most: float, before: int) -> tuple[int, float]:
        """Groups, and the share of successes in the last UNLOCKED_BY of them, before an epoch."""
        ...


class TaskPolicy(BaseModel):
    """Base of the policies; this one wants every task in every epoch."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def wants(self, task: str, epoch: int, groups: Sequence[KnownGroup]) -> bool:
        """Whether a task is wanted in an epoch; `groups` are those of the epochs before."""
        return True


class Uniform(TaskPolicy):
    """All tasks alike."""

    name: Literal["uniform"] = "uniform"


class Backoff(TaskPolicy):
    """Leave out tasks whose last groups had equal rewards, for 1, 3, 7, … epochs."""

    name: Literal["later"] = "later"

    def wants(self, task: str, epoch: int, groups: Sequence[KnownGroup]) -> bool:
        return epoch >= next_epoch([(each.epoch, each.is_informative) for each in groups])


class Band(TaskPolicy):
    """Want tasks whose rate of success is within a band. One that was outside in `streak` groups in
    a row comes back after 1, 3, 7, … epochs."""

    name: Literal["band"] = "band"
    low: float = Field(0.1, ge=0, le=1)
    high: float = Field(0.9, ge=0, le=1)
    streak: int = Field(1, ge=1)

    def wants(self, task: str, epoch: int, groups: Sequence[KnownGroup]) -> bool:
        due = outside = 0
        for each in groups:
            outside = 0 if self.low <= each.rate <= self.high else outside + 1
            due = each.epoch + 2 ** min(max(0, outside - self.streak + 1), MOST)
        return epoch >= due


class _Drawn(TaskPolicy):
    """Looks at the probability that the rewards of the next group differ. What was seen long ago
    counts less."""

    bar: float = Field(0.5, gt=0, lt=1)
    """Least probability of a group whose rewards differ."""
    memory: float = Field(0.8, gt=0, le=1)
    """Factor on what is known of a task, for each epoch that has passed."""

    def count(self, epoch: int, groups: Sequence[KnownGroup]) -> tuple[float, float]:
        """Successes and failures that are still believed, with one of both to begin with."""
        successes = failures = 0.5
        for each in groups:
            weight = self.memory ** (epoch - each.epoch - 1)
            successes += weight * each.successes
            failures += weight * (each.number - each.successes)
        return successes, failures


class Thompson(_Drawn):
    """Draw a rate of success from what is known, and want the task if a group at this rate is
    likely to have different rewards."""

    name: Literal["thompson"] = "thompson"
    seed: int = 0

    def wants(self, task: str, epoch: int, groups: Sequence[KnownGroup]) -> bool:
        if not groups:
            return True
        rng = Random(f"{self.seed} {task} {epoch}")
        return differ(rng.betavariate(*self.count(epoch, groups))) >= self.bar


class Ucb(_Drawn):
    """Want the task if some rate of success that is still plausible makes different rewards
    likely."""

    name: Literal["ucb"] = "ucb"
    width: float = Field(1.0, ge=0)
    """Standard deviations around the mean that are plausible."""

    def wants(self, task: str, epoch: int, groups: Sequence[KnownGroup]) -> bool:
        if not groups:
            return True
        successes, failures = self.count(epoch, groups)
        total = successes + failures
        mean = successes / total
        spread = self.width * math.sqrt(mean * (1 - mean) / (total + 1))
        nearest = min(max(0.5, mean - spread), mean + spread)
        return differ(nearest) >= self.bar


class Curriculum(TaskPolicy):
    """Begin with the tasks whose row has at most `start` in a field. The bound rises by `step` once
    the tasks of the last step are solved often enough."""

    name: Literal["curriculum"] = "curriculum"
    by: str = "level"
    start: float = 1
    step: float = Field(1, gt=0)
    rate: float = Field(0.7, gt=0, le=1)
    """Share of successes that unlocks the next step."""

    def find_top(self, known: LevelRates, epoch: int) -> float:
        """The greatest number that is unlocked in an epoch."""
        top, above = self.start, -math.inf
        while True:
            number, rate = known.rate_of(above, top, epoch)
            if number < UNLOCKED_BY or rate < self.rate:
                return top
            top, above = top + self.step, top


AnyPolicy = Annotated[
    Uniform | Backoff | Band | Thompson | Ucb | Curriculum, Field(discriminator="name")
]

POLICIES: TypeAdapter[AnyPolicy] = TypeAdapter(AnyPolicy)

NAMES = ("uniform", "later", "band", "thompson", "ucb", "curriculum")


def read_policy(given: str | Mapping[str, Any]) -> AnyPolicy:
    """A policy by its name, or as an object with its name and numbers."""
    return POLICIES.validate_python({"name": given} if isinstance(given, str) else dict(given))


def differ(rate: float, number: int = GROUP) -> float:
    """The probability that not all of so many members succeed, nor all fail."""
    return 1 - rate**number - (1 - rate) ** number


def next_epoch(groups: Sequence[tuple[int, bool]]) -> int:
    """The epoch from which on a task is wanted again. `groups`: the epoch of each of its groups,
    and whether its rewards differed."""
    due = streak = 0
    for epoch, is_informative in groups:
        streak = 0 if is_informative else streak + 1
        due = epoch + 2 ** min(streak, MOST)
    return due
