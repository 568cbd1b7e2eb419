"""Metrics over rollouts, one row at a time: a few counters a task, no servers, no second pass.

`aggregate(a) + aggregate(b) = aggregate(a ⊎ b)`: everything kept is a count, a sum or a sketch.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..types import JsonObject
from .groups import Groups, Moments
from .sketch import Sketch

Z_95 = 1.96
"""Half-width of a 95 % normal interval, in standard errors."""

MAX_GROUPS = 10_000
"""Tasks up to which the metrics file lists each one."""

TIMES = {
    "rollout": "duration_s",
    "model": "model_s",
    "tool": "tool_s",
    "verify": "verify_s",
    "queue": "queue_s",
}


@dataclass(slots=True)
class Aggregate:
    """Running metrics of any number of rollouts; a group is a task's rollouts by one agent."""

    pass_threshold: float = 1.0
    numbers: dict[str, Moments] = field(default_factory=dict)
    groups: Groups = field(default_factory=Groups)
    usage: dict[str, float] = field(default_factory=dict)
    times: dict[str, Sketch] = field(default_factory=lambda: {name: Sketch() for name in TIMES})
    rollouts: int = 0
    unscored: int = 0
    cost_usd: float = 0.0
    unpriced: int = 0
    """Rollouts whose cost is not known."""

    def add(self, line: Mapping[str, Any]) -> None:
        """Take one rollout line in."""
        rollout = line["rollout"]
        self.rollouts += 1
        used = line.get("usage") or {}
        for name in ("input_tokens", "output_tokens", "total_tokens"):
            self.usage[name] = self.usage.get(name, 0) + (used.get(name) or 0)
        if (cost := rollout.get("cost_usd")) is None:
            self.unpriced += 1
        else:
            self.cost_usd += cost
        for name, source in TIMES.items():
            if (seconds := rollout.get(source)) is not None:
                self.times[name].add(seconds)
        groups = self.groups
        index = line.get("_ng_task_index", 0)
        row = groups.row(line["agent_ref"]["name"], rollout["task_id"], index)
        reward = line.get("reward")
        if reward is None:
            self.unscored += 1
        else:
            groups.counts[row] += 1
            groups.successes[row] += reward >= self.pass_threshold
        for name, value in _numbers(line, rollout):
            moments = self.numbers.get(name)
            if moments is None:
                moments = self.numbers[name] = Moments()
            moments.add(value)
            if name == "reward" or len(groups) <= MAX_GROUPS:  # else nobody is told of them
                groups.column(name).add(row, value)

    def merge(self, other: "Aggregate") -> None:
        """Take in what another counted over other rollouts."""
        self.rollouts += other.rollouts
        self.unscored += other.unscored
        self.cost_usd += other.cost_usd
        self.unpriced += other.unpriced
        for name, value in other.usage.items():
            self.usage[name] = self.usage.get(name, 0) + value
        for name, sketch in other.times.items():
            self.times[name].merge(sketch)
        self.groups.merge(other.groups)
        for name, moments in other.numbers.items():
            self.numbers.setdefault(name, Moments()).merge(moments)

    def interval(self, name: str) -> list[float] | None:
        """95 % interval of a mean, its standard error clustered by task; None for a single task.

        Of numbers from 0 to 1 it is Wilson's, for as many independent ones as would have that
        standard error: it stays within 0 and 1, and is none too narrow where all are alike.
        """
        whole, column = self.numbers.get(name), self.groups.numbers.get(name)
        if whole is None or column is None:
            return None
        mean, number, spread = whole.mean, 0, 0.0
        for count, total in column.sums():
            apart = total - count * mean
            spread += apart * apart  # a power would overflow where this is inf
            number += 1
        if number < 2:
            return None
        error = math.sqrt(spread * number / (number - 1)) / whole.count
        if whole.smallest >= 0 and whole.largest <= 1:
            return _wilson(whole, error, number)
        return [mean - Z_95 * error, mean + Z_95 * error]

    def bracket(self, planned: int) -> list[float] | None:
        """The mean reward if everything that is missing scored 0, and if it scored 1."""
        reward = self.numbers.get("reward")
        if reward is None:
            return None
        missing = max(0, planned - reward.count)
        wanted = reward.count + missing
        return [reward.total / wanted, (reward.total + missing) / wanted]

    def cost(self) -> JsonObject | None:
        """In US dollars, of the rollouts whose cost is known; None where nothing costs anything."""
        known = self.rollouts - self.unpriced
        if not (self.cost_usd or self.unpriced):
            return None
        return {
            "usd": self.cost_usd if known else None,
            "usd_per_rollout": self.cost_usd / known if known else None,
            "unknown": self.unpriced,
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

    def agent_entry(self, agent: str, repeats: int | None) -> JsonObject:
        """The agent's part of the metrics file, in the shape of NeMo Gym's; no groups are listed
        without `repeats`."""
        stats: dict[str, float] = {}
        for name, moments in sorted(self.numbers.items()):
            stats |= moments.named(name)
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
        entries = []
        for row in sorted(range(len(groups)), key=groups.indices.__getitem__):
            stats: JsonObject = {"_ng_task_index": groups.indices[row], "task_id": task_ids[row]}
            for name, column in sorted(groups.numbers.items()):
                if (moments := column[row]).count:
                    stats |= moments.named(name)
            stats |= {"num_rollouts": groups.counts[row], "expected_num_rollouts": repeats}
            entries.append(stats)
        return entries


def _wilson(whole: Moments, error: float, num_tasks: int) -> list[float]:
    """Wilson's score interval of a mean between 0 and 1 with this standard error."""
    mean = whole.mean
    spread = mean * (1 - mean)
    if spread <= 0:  # all 0 or all 1: repeats of a task are then no more evidence than one
        number = float(num_tasks)
    else:
        number = spread / (error * error) if error * error > 0 else math.inf
        if whole.squares == whole.total:  # nothing but 0 and 1: no more than there are
            number = min(number, whole.count)
    shift = Z_95 * Z_95 / number
    middle = (mean + shift / 2) / (1 + shift)
    half = Z_95 * math.sqrt(spread / number + shift / (4 * number)) / (1 + shift)
    return [max(0.0, middle - half), min(1.0, middle + half)]


def _numbers(line: Mapping[str, Any], rollout: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    """What counts as a metric: the reward, numbers that the verifier set, turns and tool calls."""
    for name in ("reward", *rollout.get("scores", ())):
        value = line.get(name)
        if isinstance(value, (int, float)) and math.isfinite(value):
            yield name, float(value)
    for name in ("num_turns", "num_tool_calls"):
        if (value := rollout.get(name)) is not None:
            yield name, float(value)


def _powers_up_to(most: int) -> list[int]:
    powers = [1 << bit for bit in range(most.bit_length()) if 1 << bit <= most]
    return sorted({*powers, most} - {0})


def _chance_of_none(n: int, successes: int, k: int) -> float:
    if n - successes < k:
        return 0.0
    return math.comb(n - successes, k) / math.comb(n, k)


ScopeOf = Callable[[str], str]
"""From an agent to the scope that its rollouts are collected under."""


@dataclass(slots=True)
class Metrics:
    """The aggregates of an output's agents and scopes, and the object that the metrics file
    holds."""

    pass_threshold: float = 1.0
    parts: dict[tuple[str, str], Aggregate] = field(default_factory=dict)

    def add(self, line: Mapping[str, Any]) -> None:
        which = (line["agent_ref"]["name"], line["rollout"].get("scope", ""))
        if which not in self.parts:
            self.parts[which] = Aggregate(self.pass_threshold)
        self.parts[which].add(line)

    def of(self, scope_of: ScopeOf) -> dict[str, Aggregate]:
        """Agent → its aggregate in the scope that it is collected under."""
        return {
            agent: part for (agent, scope), part in self.parts.items() if scope == scope_of(agent)
        }

    def rollouts(self, scope_of: ScopeOf) -> int:
        return sum(part.rollouts for part in self.of(scope_of).values())

    def tasks(self, scope_of: ScopeOf) -> int:
        return sum(len(part.groups) for part in self.of(scope_of).values())

    def report(
        self,
        scope_of: ScopeOf,
        counts: Mapping[str, int],
        run: Mapping[str, float],
        repeats: int,
        *,
        lists_groups: bool = True,
    ) -> JsonObject:
        """The metrics file: each agent in one scope.

        `counts` as the plan knows them; `run` has this run's `rollouts`, `output_tokens`,
        `elapsed_s`. The list of groups is long: without it little memory and time is taken.
        """
        agents = self.of(scope_of)
        whole = next(iter(agents.values())) if len(agents) == 1 else self._added_up(agents)
        elapsed_s = run["elapsed_s"] or math.inf
        return {
            "metrics": {name: each.mean for name, each in whole.numbers.items()},
            "intervals": _kept({"reward": whole.interval("reward")}),
            "pass_at_k": whole.pass_at_k(),
            "counts": {**counts, "rollouts": whole.rollouts},
            "bracket": _kept({"reward": whole.bracket(counts["planned"])}),
            "usage": whole.usage,
            **_kept({"cost": whole.cost()}),
            "throughput": {
                "rollouts_per_s": run["rollouts"] / elapsed_s,
                "output_tokens_per_s": run["output_tokens"] / elapsed_s,
                "elapsed_s": run["elapsed_s"],
            },
            "latency_s": {name: sketch.summary() for name, sketch in whole.times.items()},
            "agents": [
                part.agent_entry(agent, repeats if lists_groups else None)
                for agent, part in agents.items()
            ],
        }

    def _added_up(self, agents: Mapping[str, Aggregate]) -> Aggregate:
        whole = Aggregate(self.pass_threshold)
        for part in agents.values():
            whole.merge(part)
        return whole


def _kept(values: Mapping[str, Any]) -> JsonObject:
    return {name: value for name, value in values.items() if value is not None}
