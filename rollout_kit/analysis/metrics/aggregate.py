"""Metrics over rollouts in one pass, with a few counters per task.

Everything kept is a count, a sum or a sketch, so the aggregates of two parts add up to the
aggregate of the whole.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import chain, groupby
from typing import Any

from ...store.head import LATENCIES, MEANS, USAGE
from ...store.kinds import A_NUMBER
from ...store.scope import Group
from ...types import JsonObject, Rollout, RolloutInfo, is_countable
from .groups import STATS, Groups, Moments
from .majority import Votes
from .sketch import Sketch

MAX_GROUPS = 10_000
"""The metrics file lists each task up to this many."""

AT_ONCE = 256
"""Rollouts that are counted together."""


EACH_K = 8
"""pass^k is listed for each k up to this one, then for powers of two."""

Waiting = tuple[RolloutInfo, Any, list[Any]]
"""What is counted of one rollout: its info, its reward, and what the verifier set, in the order of
`info.scores`."""


@dataclass(slots=True)
class Aggregate:
    """Running metrics of any number of rollouts; a group is a task's rollouts by one agent."""

    pass_threshold: float = 1.0
    _groups: Groups = field(default_factory=Groups)
    rollouts: int = 0
    _unscored: int = 0
    _votes: Votes = field(default_factory=Votes)
    _cut_off: int = 0
    """Rollouts whose last turn reached a limit of tokens."""
    _at_max_steps: int = 0
    """Rollouts that the agent's limit of turns ended."""
    _numbers: dict[str, Moments] = field(default_factory=dict)
    _usage: dict[str, float] = field(default_factory=dict)
    _cost_usd: float = 0.0
    _unpriced: int = 0
    _standard_usd: float = 0.0
    _unlisted: int = 0
    """Rollouts whose cost at standard prices is unknown."""
    _times: dict[str, Sketch] = field(
        default_factory=lambda: {name: Sketch() for name in LATENCIES}
    )
    _waiting: list[Waiting] = field(default_factory=list)
    """Rollouts that `_fold` has still to count."""
    _later: list[tuple[Group, int, str, Sequence[float]]] = field(default_factory=list)
    """Arguments of `add_numbers` that `_fold` has still to count."""

    def add(self, rollout: Rollout) -> None:
        """Count one rollout."""
        info, head = rollout.info, rollout.head
        get = head.get
        scores = [get(name) for name in info.scores]
        self.rollouts += 1
        self._waiting.append((info, get("reward"), scores))
        if len(self._waiting) >= AT_ONCE:
            self._fold()

    @property
    def groups(self) -> Groups:
        self._fold()
        return self._groups

    @property
    def votes(self) -> Votes:
        self._fold()
        return self._votes

    @property
    def unscored(self) -> int:
        """Rollouts without a reward."""
        self._fold()
        return self._unscored

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
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._count_rollouts(waiting)
        later, self._later = self._later, []
        for group, index, name, values in later:
            row, found = self._groups.row(group.agent, group.task_id, index), Moments.of(values)
            self._groups.column(name).merge(row, found)
            self._numbers.setdefault(name, Moments()).merge(found)

    def _count_rollouts(self, waiting: Sequence[Waiting]) -> None:
        infos, rewards, _ = zip(*waiting, strict=True)
        fields = dict(zip(RolloutInfo._fields, zip(*infos, strict=True), strict=True))
        for name in USAGE:
            self._usage[name] = self._usage.get(name, 0) + sum(fields[name])
        priced = _known(fields["cost_usd"])
        self._cost_usd += sum(priced)
        self._unpriced += len(waiting) - len(priced)
        listed = [
            standard if cost else cost
            for cost, standard in zip(fields["cost_usd"], fields["standard_usd"], strict=True)
        ]
        known = _known(listed)
        self._standard_usd += sum(known)
        self._unlisted += len(waiting) - len(known)
        reasons = fields["finish_reason"]
        self._cut_off += sum(map(CUT_OFF.__contains__, reasons))
        self._at_max_steps += reasons.count(MAX_STEPS)
        groups = self._groups
        if groups.whole is None:  # latencies are those of all arms
            for name, sketch in self._times.items():
                sketch.extend(_known(fields[LATENCIES[name]]))
        rows = groups.rows(fields["key"], fields["task_index"])
        scored = [row for row, reward in zip(rows, rewards, strict=True) if reward is not None]
        passed = [reward >= self.pass_threshold for reward in rewards if reward is not None]
        groups.count(scored, passed)
        self._unscored += len(waiting) - len(scored)
        self._count("reward", rows, rewards)
        self._count_scores(waiting, rows)
        for name in MEANS:
            self._count(name, rows, fields[name])

    def _count_scores(self, waiting: Sequence[Waiting], rows: Sequence[int]) -> None:
        """Count what the verifier set, of rollouts in a row that have the same fields at once."""
        at = 0
        for names, alike in groupby(waiting, lambda each: each[0].scores):
            found = list(alike)
            mine, at = rows[at : at + len(found)], at + len(found)
            infos, rewards, scores = zip(*found, strict=True)
            for name, values in zip(names, zip(*scores, strict=True), strict=True):
                self._count(name, mine, values)
                if name == ANSWER:
                    for info, answer, reward in zip(infos, values, rewards, strict=True):
                        if reward is not None:
                            task_id, agent, _, _ = info.key
                            self._votes.add((agent, task_id), answer, reward)

    def _count(self, name: str, rows: Sequence[int], values: Sequence[Any]) -> None:
        """Count the values that are numbers, each of the group in a row."""
        if {*map(type, values)} <= A_NUMBER and is_countable(sum(map(abs, values))):
            of, numbers = rows, values
        elif found := [pair for pair in zip(rows, values, strict=True) if is_countable(pair[1])]:
            of, numbers = zip(*found, strict=True)
        else:
            return
        self._numbers.setdefault(name, Moments()).merge(Moments.of(numbers))
        groups = self._groups
        if name == "reward" or (groups.whole is None and len(groups) <= MAX_GROUPS):
            groups.column(name).add(of, numbers)

    def add_numbers(self, group: Group, index: int, name: str, values: Sequence[float]) -> None:
        """Count a number of a task's rollouts that is known later than the rest."""
        self._later.append((group, index, name, values))
        if len(self._later) >= AT_ONCE:
            self._fold()

    def merge(self, other: "Aggregate") -> None:
        """Add the counts of another aggregate over other rollouts."""
        self._fold()
        other._fold()
        self.rollouts += other.rollouts
        self._unscored += other._unscored
        self._cost_usd += other._cost_usd
        self._unpriced += other._unpriced
        self._standard_usd += other._standard_usd
        self._unlisted += other._unlisted
        for name, value in other._usage.items():
            self._usage[name] = self._usage.get(name, 0) + value
        for name, sketch in other._times.items():
            self._times[name].merge(sketch)
        self._groups.merge(other._groups)
        self._votes.merge(other._votes)
        self._cut_off += other._cut_off
        self._at_max_steps += other._at_max_steps
        for name, moments in other._numbers.items():
            self._numbers.setdefault(name, Moments()).merge(moments)

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
            "standard_usd": None if self._unlisted else self._standard_usd,
        }

    def count_informative(self) -> int:
        """Groups whose rewards are not all equal."""
        column = self.groups.numbers.get("reward")
        return 0 if column is None else sum(most > least for least, most in column.ranges())

    @property
    def verified(self) -> int:
        """Rollouts with a reward."""
        self._fold()
        return self.rollouts - self._unscored

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

    def pass_hat_k(self) -> JsonObject:
        """pass^k, the chance that all of k samples of a task succeed, with its 95 % interval over
        tasks: `pass_hat_k` and `pass_hat_k_intervals`. Empty if no task has two rollouts.

        The estimate C(c,k)/C(n,k) is unbiased (Yao et al. 2024), averaged over the tasks with
        n ≥ k."""
        alike = Counter(zip(self.groups.counts, self.groups.successes, strict=True))
        most = max((count for count, _ in alike), default=0)
        if most < 2:
            return {}
        means: dict[str, float] = {}
        intervals: dict[str, list[float]] = {}
        for k in sorted({*range(1, min(most, EACH_K) + 1), *_powers_up_to(most)}):
            values = {
                (count, successes): math.comb(successes, k) / math.comb(count, k)
                for count, successes in alike
                if count >= k
            }
            whole = Moments.of_alike([(values[kind], alike[kind]) for kind in values])
            means[str(k)] = whole.mean
            if whole.count > 1:
                spread = sum(alike[kind] * (values[kind] - whole.mean) ** 2 for kind in values)
                error = math.sqrt(spread / (whole.count * (whole.count - 1)))
                intervals[str(k)] = whole.interval(error, whole.count)
        return {"pass_hat_k": means, "pass_hat_k_intervals": intervals}

    def rates(self) -> JsonObject:
        """Shares of rollouts: cut off by a limit of tokens, ended by the agent's limit of turns,
        and without an answer."""
        no_answer, number = self.votes.no_answer(), self.rollouts
        cut_off = self._cut_off / number if number else None
        max_steps = self._at_max_steps / number if self._at_max_steps else None
        return kept({"cut_off": cut_off, MAX_STEPS: max_steps, "no_answer": no_answer})

    def pass_rate(self) -> float | None:
        """The share of verified rollouts that succeed; None if there is none."""
        verified = sum(self.groups.counts)
        return sum(self.groups.successes) / verified if verified else None

    def worst_tasks(self, number: int) -> list[tuple[str, float, int]]:
        """Task id, mean reward and number of rollouts of the tasks with the lowest mean."""
        column = self.groups.numbers.get("reward")
        if column is None:
            return []
        lowest = nsmallest(number, column.means())
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
            "key_metrics": {name: stats[name] for name in stats if name.startswith("mean/")},
            "group_level_metrics": [] if repeats is None else self._group_entries(repeats),
        }

    def _group_entries(self, repeats: int) -> list[JsonObject]:
        if len(self.groups) > MAX_GROUPS:
            return []
        groups, task_ids, entries = self.groups, self.groups.task_ids(), []
        named = sorted(groups.numbers.items())
        columns = [(list(each.stats()), *_stat_names(name)) for name, each in named]
        for row in sorted(range(len(groups)), key=groups.indices.__getitem__):
            stats: JsonObject = {"_ng_task_index": groups.indices[row], "task_id": task_ids[row]}
            for known, mean, most, least, std in columns:
                if row < len(known) and (figures := known[row]) is not None:
                    # one by one, which takes a fifth of the time of `update`
                    stats[mean], stats[most], stats[least], stats[std] = figures
            stats |= {"num_rollouts": groups.counts[row], "expected_num_rollouts": repeats}
            entries.append(stats)
        return entries


def interval(parts: Iterable[Aggregate], name: str) -> list[float] | None:
    """95 % interval of a mean over aggregates of different groups, its standard error clustered by
    task; None for a single task."""
    parts = list(parts)
    whole = moments(parts, name)
    columns = [part.groups.numbers[name] for part in parts if name in part.groups.numbers]
    if not (whole.count and columns):
        return None
    return cluster(whole, chain.from_iterable(column.sums() for column in columns))


def cluster(whole: Moments, sums: Iterable[tuple[int, float]]) -> list[float] | None:
    """95 % interval of a mean whose values stand together in clusters: the count and the sum of
    each; None for a single one."""
    mean, number, spread = whole.mean, 0, 0.0
    for count, total in sums:
        apart = total - count * mean
        spread += apart * apart  # `**` raises OverflowError on large values
        number += 1
    if number < 2:
        return None
    error = math.sqrt(spread * number / (number - 1)) / whole.count
    return whole.interval(error, number)


def moments(parts: Iterable[Aggregate], name: str) -> Moments:
    """The moments of a number over several aggregates."""
    whole = Moments()
    for part in parts:
        if (found := part.numbers.get(name)) is not None:
            whole.merge(found)
    return whole


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

MAX_STEPS = "max_steps"
"""Finish reason of a rollout that the agent's key of this name has ended."""

CUT_OFF = ("max_output_tokens", "length", "max_tokens")
"""Finish reasons of a response that a limit of tokens has cut off."""


def kept(values: Mapping[str, Any]) -> JsonObject:
    """The values that are known."""
    return {name: value for name, value in values.items() if value is not None}
