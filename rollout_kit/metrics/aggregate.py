"""Metrics over rollouts in one pass, with a few counters per task.

Everything kept is a count, a sum or a sketch, so the aggregates of two parts add up to the
aggregate of the whole.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import chain
from typing import Any

from ..store.groups.scope import Group
from ..store.lines import USAGE
from ..types import JsonObject, Rollout, RolloutInfo
from .groups import STATS, Groups, Moments
from .majority import Votes
from .sketch import Sketch

Z_95 = 1.96
"""Half-width of a 95 % normal interval, in standard errors."""

MAX_GROUPS = 10_000
"""The metrics file lists each task up to this many."""

TIMES = {
    "rollout": "duration_s",
    "model": "model_s",
    "tool": "tool_s",
    "verify": "verify_s",
    "queue": "queue_s",
}
"""Latencies of the metrics file, and the fields that have them."""

AT_ONCE = 256
"""Rollouts whose latencies, tokens, costs, turns and calls are counted together."""


@dataclass(slots=True)
class Aggregate:
    """Running metrics of any number of rollouts; a group is a task's rollouts by one agent."""

    pass_threshold: float = 1.0
    groups: Groups = field(default_factory=Groups)
    rollouts: int = 0
    unscored: int = 0
    votes: Votes = field(default_factory=Votes)
    cut_off: int = 0
    """Rollouts whose last turn reached a limit of tokens."""
    _numbers: dict[str, Moments] = field(default_factory=dict)
    _usage: dict[str, float] = field(default_factory=dict)
    _cost_usd: float = 0.0
    _unpriced: int = 0
    _times: dict[str, Sketch] = field(default_factory=lambda: {name: Sketch() for name in TIMES})
    _waiting: list[RolloutInfo] = field(default_factory=list)
    """Rollouts that `_fold` has still to count."""

    def add(self, rollout: Rollout) -> None:
        """Count one rollout."""
        info, head, groups = rollout.info, rollout.head, self.groups
        task_id, agent, _, _ = info.key
        self.rollouts += 1
        self._waiting.append(info)
        if len(self._waiting) >= AT_ONCE:
            self._fold()
        if head["rollout"].get("finish_reason") in CUT_OFF:
            self.cut_off += 1
        row = groups.row(agent, task_id, info.task_index)
        if (reward := head.get("reward")) is None:
            self.unscored += 1
        else:
            groups.counts[row] += 1
            if ANSWER in info.scores:
                self.votes.add((agent, task_id), head.get(ANSWER), reward)
            if reward >= self.pass_threshold:
                groups.successes[row] += 1
        lists_all = groups.whole is None and len(groups) <= MAX_GROUPS
        for name in ("reward", *info.scores):
            value = head.get(name)
            if isinstance(value, (int, float)) and math.isfinite(value):
                value = float(value)
                if (moments := self._numbers.get(name)) is None:
                    moments = self._numbers[name] = Moments()
                moments.add(value)
                if lists_all or name == "reward":
                    groups.column(name).add(row, value)
        if lists_all:
            if info.num_turns is not None:
                groups.column(TURNS).add(row, float(info.num_turns))
            if info.num_tool_calls is not None:
                groups.column(CALLS).add(row, float(info.num_tool_calls))

    @property
    def numbers(self) -> dict[str, Moments]:
        """The reward, what the verifier set, turns and calls."""
        self._fold()
        return self._numbers

    @property
    def usage(self) -> dict[str, float]:
        """Tokens."""
        self._fold()
        return self._usage

    @property
    def times(self) -> dict[str, Sketch]:
        """Latencies by name."""
        self._fold()
        return self._times

    def _fold(self) -> None:
        """Count what waits, many at once."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        fields = dict(zip(RolloutInfo._fields, zip(*waiting, strict=True), strict=True))
        for name in USAGE:
            self._usage[name] = self._usage.get(name, 0) + sum(fields[name])
        priced = _known(fields["cost_usd"])
        self._cost_usd += sum(priced)
        self._unpriced += len(waiting) - len(priced)
        for name in (TURNS, CALLS):
            if values := _known(fields[name]):
                self._numbers.setdefault(name, Moments()).merge(Moments.of(values))
        if self.groups.whole is None:  # latencies are those of all arms
            for name, sketch in self._times.items():
                sketch.extend(_known(fields[TIMES[name]]))

    def add_numbers(self, group: Group, index: int, name: str, values: Sequence[float]) -> None:
        """Count a number of a task's rollouts that is known later than the rest."""
        found = Moments.of(values)
        row = self.groups.row(group.agent, group.task_id, index)
        self.groups.column(name).merge(row, found)
        self.numbers.setdefault(name, Moments()).merge(found)

    def merge(self, other: "Aggregate") -> None:
        """Add the counts of another aggregate over other rollouts."""
        self.rollouts += other.rollouts
        self.unscored += other.unscored
        other._fold()
        self._cost_usd += other._cost_usd
        self._unpriced += other._unpriced
        for name, value in other.usage.items():
            self.usage[name] = self.usage.get(name, 0) + value
        for name, sketch in other.times.items():
            self.times[name].merge(sketch)
        self.groups.merge(other.groups)
        self.votes.merge(other.votes)
        self.cut_off += other.cut_off
        for name, moments in other.numbers.items():
            self.numbers.setdefault(name, Moments()).merge(moments)

    def interval(self, name: str) -> list[float] | None:
        """95 % interval of a mean, its standard error clustered by task; None for a single task."""
        return interval([self], name)

    def bracket(self, planned: int) -> list[float] | None:
        """The mean reward if every missing rollout scored 0, and if each scored 1."""
        reward = self.numbers.get("reward")
        if reward is None:
            return None
        missing = max(0, planned - reward.count)
        wanted = reward.count + missing
        return [reward.total / wanted, (reward.total + missing) / wanted]

    def cost(self) -> JsonObject | None:
        """US dollars, over the rollouts of known cost; None if nothing has a price."""
        self._fold()
        known = self.rollouts - self._unpriced
        if not (self._cost_usd or self._unpriced):
            return None
        return {
            "usd": self._cost_usd if known else None,
            "usd_per_rollout": self._cost_usd / known if known else None,
            "unknown": self._unpriced,
        }

    def pass_at_k(self) -> dict[str, float]:
        """Unbiased 1 − C(n−c,k)/C(n,k) (Chen et al. 2021), averaged over the tasks with n ≥ k."""
        alike = Counter(zip(self.groups.counts, self.groups.successes, strict=True))
        most = max((count for count, _ in alike), default=0)
        found = {}
        for k in _powers_up_to(most):
            total = tasks = 0.0
            for (count, successes), number in alike.items():
                if count >= k:
                    total += number * (1 - _chance_of_none(count, successes, k))
                    tasks += number
            found[str(k)] = total / tasks
        return found

    def pass_at_k_tasks(self) -> dict[str, int]:
        """For each k of `pass_at_k`, the number of tasks behind it."""
        counts = self.groups.counts
        ks = _powers_up_to(max(counts, default=0))
        return {str(k): sum(count >= k for count in counts) for k in ks}

    def rates(self) -> JsonObject:
        """Shares of rollouts: cut off by a limit of tokens, and without an answer."""
        cut_off = self.cut_off / self.rollouts if self.rollouts else None
        return kept({"cut_off": cut_off, "no_answer": self.votes.no_answer()})

    def pass_rate(self) -> float | None:
        """The share of verified rollouts that succeed; None if there is none."""
        verified = sum(self.groups.counts)
        return sum(self.groups.successes) / verified if verified else None

    def worst_tasks(self, number: int) -> list[tuple[str, float, int]]:
        """Task id, mean reward and number of rollouts of the tasks with the lowest mean."""
        column = self.groups.numbers.get("reward")
        if column is None:
            return []
        means = ((column[row].mean, row) for row, count in enumerate(self.groups.counts) if count)
        lowest = nsmallest(number, means)
        if not lowest:
            return []
        task_ids = self.groups.task_ids()
        return [(task_ids[row], mean, self.groups.counts[row]) for mean, row in lowest]

    def agent_entry(self, agent: str, repeats: int | None) -> JsonObject:
        """The agent's part of the metrics file, in NeMo Gym's shape; without `repeats` it lists no
        groups."""
        stats: dict[str, float] = {}
        for name, moments in sorted(self.numbers.items()):
            stats |= zip(_stat_names(name), moments.stats, strict=True)
        return {
            "agent_ref": {"name": agent},
            "agent_metrics": stats,
            "key_metrics": {
                name: value for name, value in stats.items() if name.startswith("mean/")
            },
            "group_level_metrics": [] if repeats is None else self._group_entries(repeats),
        }

    def _group_entries(self, repeats: int) -> list[JsonObject]:
        if len(self.groups) > MAX_GROUPS:
            return []
        groups, task_ids = self.groups, self.groups.task_ids()
        columns = [(each, _stat_names(name)) for name, each in sorted(groups.numbers.items())]
        entries = []
        for row in sorted(range(len(groups)), key=groups.indices.__getitem__):
            stats: JsonObject = {"_ng_task_index": groups.indices[row], "task_id": task_ids[row]}
            for column, names in columns:
                if (figures := column.stats(row)) is not None:
                    stats |= zip(names, figures, strict=True)
            stats |= {"num_rollouts": groups.counts[row], "expected_num_rollouts": repeats}
            entries.append(stats)
        return entries


def interval(parts: Iterable[Aggregate], name: str) -> list[float] | None:
    """95 % interval of a mean over aggregates of different groups, its standard error clustered by
    task; None for a single task.

    For numbers from 0 to 1 it is Wilson's interval at the number of independent samples that has
    the same standard error. So it stays within [0, 1] and keeps a width if all are equal.
    """
    parts = list(parts)
    whole = moments(parts, name)
    columns = [part.groups.numbers[name] for part in parts if name in part.groups.numbers]
    if not (whole.count and columns):
        return None
    mean, number, spread = whole.mean, 0, 0.0
    for count, total in chain.from_iterable(column.sums() for column in columns):
        apart = total - count * mean
        spread += apart * apart  # `**` raises OverflowError on large values
        number += 1
    if number < 2:
        return None
    error = math.sqrt(spread * number / (number - 1)) / whole.count
    if whole.smallest >= 0 and whole.largest <= 1:
        return _wilson(whole, error, number)
    return [mean - Z_95 * error, mean + Z_95 * error]


def moments(parts: Iterable[Aggregate], name: str) -> Moments:
    """The moments of a number over several aggregates."""
    whole = Moments()
    for part in parts:
        if (found := part.numbers.get(name)) is not None:
            whole.merge(found)
    return whole


def _wilson(whole: Moments, error: float, num_tasks: int) -> list[float]:
    """Wilson's score interval of a mean between 0 and 1 with this standard error."""
    mean = whole.mean
    spread = mean * (1 - mean)
    if spread <= 0:  # all 0 or all 1: repeats of a task add no evidence
        number = float(num_tasks)
    else:
        number = spread / (error * error) if error * error > 0 else math.inf
        if whole.squares == whole.total:  # only 0 and 1: no more independent samples than rollouts
            number = min(number, whole.count)
    shift = Z_95 * Z_95 / number
    middle = (mean + shift / 2) / (1 + shift)
    half = Z_95 * math.sqrt(spread / number + shift / (4 * number)) / (1 + shift)
    return [max(0.0, middle - half), min(1.0, middle + half)]


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _stat_names(name: str) -> tuple[str, ...]:
    """What the metrics file calls the STATS of a number."""
    return tuple(f"{stat}/{name}" for stat in STATS)


def _powers_up_to(most: int) -> list[int]:
    powers = [1 << bit for bit in range(most.bit_length()) if 1 << bit <= most]
    return sorted({*powers, most} - {0})


def _chance_of_none(n: int, successes: int, k: int) -> float:
    if n - successes < k:
        return 0.0
    return math.comb(n - successes, k) / math.comb(n, k)


REWARDS = ("reward", "group_reward")

TURNS, CALLS, ANSWER = "num_turns", "num_tool_calls", "extracted_answer"

CUT_OFF = frozenset({"max_output_tokens", "length", "max_tokens"})
"""Finish reasons of a response that a limit of tokens has cut off."""


def kept(values: Mapping[str, Any]) -> JsonObject:
    """The values that are known."""
    return {name: value for name, value in values.items() if value is not None}
