"""The metrics file: aggregates of what belongs to a run, over all and for each arm."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..store.groups.scope import Group, parse_scope
from ..types import JsonObject, Rollout
from .aggregate import CALLS, REWARDS, Aggregate, kept
from .groups import Groups

Covers = Callable[[str, str], bool]
"""Whether the rollouts of an agent in a scope are counted."""


def _covers_all(agent: str, scope: str) -> bool:
    return True


@dataclass(slots=True)
class Metrics:
    """The aggregates of an output by agent and by arm, and the content of the metrics file."""

    pass_threshold: float = 1.0
    covers: Covers = _covers_all
    agents: dict[str, Aggregate] = field(default_factory=dict)
    arms: dict[str, dict[str, Aggregate]] = field(default_factory=dict)
    """Arm → agent → its rollouts in this arm."""
    _of_scope: dict[tuple[str, str], list[Aggregate]] = field(default_factory=dict)

    @classmethod
    def of_run(cls, pass_threshold: float, covers: Covers, arms: Sequence[str]) -> "Metrics":
        """With the arms in the order of the configuration, those without rollouts among them."""
        return cls(pass_threshold, covers, arms={arm: {} for arm in arms})

    def add(self, rollout: Rollout) -> None:
        key = rollout.info.key
        for part in self._parts(key.agent, key.scope):
            part.add(rollout)

    def add_group(self, group: Group, line: JsonObject) -> None:
        """Count the rewards of a scored group, given as its line."""
        by_scope: defaultdict[str, list[float]] = defaultdict(list)
        for member in line["members"]:
            if (reward := member["reward"]) is not None:
                by_scope[member["scope"]].append(reward)
        for scope, rewards in by_scope.items():
            for part in self._parts(group.agent, scope):
                part.add_numbers(group, line["_ng_task_index"], "group_reward", rewards)

    def _parts(self, agent: str, scope: str) -> Sequence[Aggregate]:
        """Where the rollouts of a scope are counted."""
        if (parts := self._of_scope.get((agent, scope))) is not None:
            return parts
        parts = self._of_scope[agent, scope] = []
        if self.covers(agent, scope):
            parts.append(whole := self.agents.setdefault(agent, Aggregate(self.pass_threshold)))
            if arm := parse_scope(scope).arm:
                part = Aggregate(self.pass_threshold, Groups(whole.groups))
                parts.append(self.arms.setdefault(arm, {}).setdefault(agent, part))
        return parts

    def arm_rewards(self) -> dict[str, float]:
        """Arm → its mean reward, for the arms that have one."""
        found = {}
        for arm, parts in self.arms.items():
            numbers = (part.numbers.get("reward") for part in parts.values())
            rewards = [each for each in numbers if each]
            if number := sum(each.count for each in rewards):
                found[arm] = sum(each.total for each in rewards) / number
        return found

    @property
    def rollouts(self) -> int:
        return sum(part.rollouts for part in self.agents.values())

    @property
    def tasks(self) -> int:
        return sum(len(part.groups) for part in self.agents.values())

    def report(
        self,
        counts: Mapping[str, int],
        run: Mapping[str, float],
        repeats: int,
        *,
        lists_groups: bool = True,
    ) -> JsonObject:
        """The content of the metrics file.

        `counts` are those of the plan; `run` has `rollouts`, `output_tokens` and `elapsed_s` of
        this run. Without the list of groups the report takes little memory and time.
        """
        agents = self.agents
        whole = self._add_up(agents)
        elapsed_s = run["elapsed_s"] or math.inf
        means = {name: each.mean for name, each in whole.numbers.items()}
        report = {
            "metrics": means,
            "intervals": kept({name: whole.interval(name) for name in REWARDS}),
            "pass_at_k": whole.pass_at_k(),
            "pass_at_k_tasks": whole.pass_at_k_tasks(),
            **(whole.votes.figures(whole.pass_at_k_tasks()) if lists_groups else {}),
            "rates": whole.rates(),
            "counts": {**counts, "rollouts": whole.rollouts},
            "bracket": kept({"reward": whole.bracket(counts["planned"])}),
            "usage": whole.usage,
            **kept({"cost": whole.cost()}),
            "throughput": {
                "rollouts_per_s": run["rollouts"] / elapsed_s,
                "output_tokens_per_s": run["output_tokens"] / elapsed_s,
                "elapsed_s": run["elapsed_s"],
            },
            "latency_s": {name: sketch.summary() for name, sketch in whole.times.items()},
            **({"arms": self._arm_entries(lists_groups)} if self.arms else {}),
            "agents": [
                part.agent_entry(agent, repeats if lists_groups else None)
                for agent, part in agents.items()
            ],
        }
        headline = {"accuracy": whole.pass_rate(), **means, "avg_tool_calls": means.get(CALLS)}
        first = {name: value for name, value in headline.items() if name not in report}
        return {**kept({"reward": None, **first}), **report}

    def _arm_entries(self, with_votes: bool) -> JsonObject:
        """Arm → its figures."""
        wholes = {arm: self._add_up(parts) for arm, parts in self.arms.items()}
        return {
            arm: {
                "rollouts": part.rollouts,
                "tasks": sum(map(bool, part.groups.counts)),
                "metrics": {name: each.mean for name, each in part.numbers.items()},
                "intervals": kept({name: part.interval(name) for name in REWARDS}),
                "pass_at_k": part.pass_at_k(),
                **(part.votes.figures(part.pass_at_k_tasks()) if with_votes else {}),
                "rates": part.rates(),
                "usage": part.usage,
                **kept({"cost": part.cost()}),
            }
            for arm, part in wholes.items()
        }

    def _add_up(self, agents: Mapping[str, Aggregate]) -> Aggregate:
        if len(agents) == 1:
            return next(iter(agents.values()))
        whole = Aggregate(self.pass_threshold)
        for part in agents.values():
            whole.merge(part)
        return whole
