"""The metrics file: aggregates of what belongs to a run, over all and for each arm."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ...store.scope import Group, parse_scope
from ...store.tasks import OwnTasks
from ...types import JsonObject, Rollout
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
    own: OwnTasks | None = None
    """The tasks that count; None for all."""
    others: dict[str, Aggregate] = field(default_factory=dict)
    """Agent → its rollouts of other tasks."""
    _of_scope: dict[tuple[str, str], list[Aggregate]] = field(default_factory=dict)

    @classmethod
    def of_run(cls, pass_threshold: float, covers: Covers, arms: Sequence[str]) -> "Metrics":
        """With the arms in the order of the configuration, those without rollouts among them."""
        return cls(pass_threshold, covers, arms={arm: {} for arm in arms})

    def add(self, rollout: Rollout) -> None:
        key = rollout.info.key
        if self.own is None or key.task_id in self.own:
            for part in self._parts(key.agent, key.scope):
                part.add(rollout)
        elif self.covers(key.agent, key.scope):
            self.others.setdefault(key.agent, Aggregate(self.pass_threshold)).add(rollout)

    def add_group(self, group: Group, line: JsonObject) -> None:
        """Count the rewards of a scored group, given as its line."""
        if self.own is not None and group.task_id not in self.own:
            return
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

    @property
    def rollouts(self) -> int:
        return sum(part.rollouts for part in self.agents.values())

    @property
    def verified(self) -> int:
        """Rollouts with a reward."""
        return sum(part.verified for part in self.agents.values())

    @property
    def informative(self) -> int:
        """Groups whose rewards are not all equal."""
        return sum(part.count_informative() for part in self.agents.values())

    @property
    def tasks(self) -> int:
        return sum(len(part.groups) for part in self.agents.values())

    def report(
        self,
        counts: Mapping[str, int],
        throughput: Mapping[str, float],
        repeats: int,
        *,
        lists_groups: bool = True,
    ) -> JsonObject:
        """The content of the metrics file.

        `counts` are those of the plan, and `throughput` is that of this run. Without the list of
        groups the report takes little memory and time.
        """
        agents = self.agents
        whole = self._add_up(agents)
        means = {name: each.mean for name, each in whole.numbers.items()}
        whole_file = self._measure_file(whole) if self.others else {}
        report = {
            "metrics": means,
            "intervals": kept({name: whole.interval(name) for name in REWARDS}),
            "pass_at_k": whole.pass_at_k(),
            "pass_at_k_tasks": whole.pass_at_k_tasks(),
            **whole.pass_hat_k(),
            **(whole.votes.figures(whole.pass_at_k_tasks()) if lists_groups else {}),
            "rates": whole.rates(),
            "counts": {**counts, "rollouts": whole.rollouts, **self._count_others()},
            "bracket": kept({"reward": whole.bracket(counts["planned"])}),
            "usage": whole.usage,
            **kept({"cost": whole.cost()}),
            "throughput": throughput,
            "latency_s": {name: sketch.summary() for name, sketch in whole.times.items()},
            **({"arms": self._arm_entries(lists_groups)} if self.arms else {}),
            **({"whole_file": whole_file} if whole_file else {}),
            "agents": [
                part.agent_entry(agent, repeats if lists_groups else None)
                for agent, part in agents.items()
            ],
        }
        headline = {"accuracy": whole.pass_rate(), **means, "avg_tool_calls": means.get(CALLS)}
        first = {name: value for name, value in headline.items() if name not in report}
        return {**kept({"reward": None, **first}), **report}

    def _count_others(self) -> dict[str, int]:
        """What the output holds of other inputs' tasks."""
        if not (parts := self.others.values()):
            return {}
        return {
            "other_rollouts": sum(each.rollouts for each in parts),
            "other_tasks": sum(len(each.groups) for each in parts),
        }

    def _measure_file(self, own: Aggregate) -> JsonObject:
        """Figures of all rollouts of the output, those of other inputs' tasks among them."""
        whole = Aggregate(self.pass_threshold)
        for part in (own, *self.others.values()):
            whole.merge(part)
        reward = whole.numbers.get("reward")
        return {
            "rollouts": whole.rollouts,
            "tasks": len(whole.groups),
            **kept({"reward": reward and reward.mean, "reward_interval": whole.interval("reward")}),
        }

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
                **part.pass_hat_k(),
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
