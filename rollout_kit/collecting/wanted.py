"""Which rollouts of each task a run asks for, and under which scope."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ..errors import ConfigError
from ..store.arms.arm import Arm, order_by_prompt
from ..store.scope import is_named, parse_scope
from ..types import Attempt, Key, Task

Scopes = Mapping[tuple[str, str], str]
"""(agent, id of the arm, or empty) → scope, where it is not the scope of the arm alone."""


@dataclass(frozen=True)
class Wanted:
    """Attempts at a task go through its arms, those with equal prompts beside each other."""

    repeats: Callable[[str], int]
    scopes: Scopes = field(default_factory=dict)
    add_seed: bool = False
    only: tuple[str, int] | None = None
    """(task_id, rollout_index): only this rollout, even if it failed permanently before."""
    arms: Sequence[Arm] = ()
    epoch: int = 0
    """Which time the tasks are gone through; the first has no mark in the scope."""
    num_epochs: int | None = 1
    """None: for ever."""

    @cached_property
    def ordered(self) -> Sequence[Arm | None]:
        """The arms in the order of their requests; one None if there are no arms."""
        return order_by_prompt(self.arms) or [None]

    @cached_property
    def arm_ids(self) -> list[str]:
        """The arms in the order of the configuration."""
        return [arm.id for arm in self.arms]

    def at(self, epoch: int) -> "Wanted":
        """What is wanted of one epoch."""
        return replace(self, epoch=epoch)

    def scope_of(self, agent: str, arm: str = "") -> str:
        scope = self._scope_without_epoch(agent, arm)
        return parse_scope(scope)._replace(epoch=self.epoch).text if self.epoch else scope

    def covers(self, agent: str, scope: str) -> bool:
        """Whether rollouts of this scope belong to the run."""
        if self.num_epochs != 1 and (epoch := parse_scope(scope).epoch):
            if self.num_epochs is not None and epoch >= self.num_epochs:
                return False
            scope = parse_scope(scope)._replace(epoch=None).text
        arm = parse_scope(scope).arm if self.arms else ""
        is_asked = not self.arms or arm in self.arm_ids
        return is_asked and scope == self._scope_without_epoch(agent, arm)

    def _scope_without_epoch(self, agent: str, arm: str) -> str:
        return self.scopes.get((agent, arm), f"arm={arm}" if arm else "")

    def per_task(self, agent: str) -> int:
        """Rollouts of each task."""
        return sum(self._repeats_of(arm, agent) for arm in self.ordered)

    def common_repeats(self) -> int | None:
        """How many rollouts a task has in each arm; None if arms, or the agents of the tasks that
        were seen, differ in it."""
        found = {number for arms in self._of_agents.values() for _, _, number in arms}
        return found.pop() if len(found) == 1 else None

    def keys(self, task: Task) -> list[Key]:
        """The keys of a task, the repeats of an arm in order."""
        return [key for _, key in self.pairs(task)]

    def num_keys(self, task: Task) -> int:
        """How many they are, whatever `only` says."""
        found = self._of_agents.get(task.agent) or self._of_agent(task.agent)
        return sum(number for _, _, number in found)

    def attempts(
        self,
        task: Task,
        settled: Callable[[Key], bool],
        pairs: Iterable[tuple[Arm | None, Key]] | None = None,
    ) -> Iterator[Attempt]:
        """Attempts at the keys of a task that are not settled. `pairs` are those of the task, where
        they are known already."""
        for arm, key in self.pairs(task) if pairs is None else pairs:
            if settled(key):
                continue
            asked = task
            if self.add_seed:
                before = self.epoch * self._repeats_of(arm, task.agent)
                asked = with_seed(task, before + key.rollout_index)
            yield arm.attempt(key, asked) if arm else Attempt(key, asked)

    def pairs(self, task: Task) -> Iterator[tuple[Arm | None, Key]]:
        """The keys of a task, each with its arm."""
        task_id, agent, only = task.task_id, task.agent, self.only
        for arm, scope, number in self._of_agents.get(agent) or self._of_agent(agent):
            first = task.first_rollout * number if self.arms else task.first_rollout
            for index in range(first, first + number):
                key = Key(task_id, agent, scope, index)
                if only is None or is_named(key, only):
                    yield arm, key

    @cached_property
    def _of_agents(self) -> dict[str, list[tuple[Arm | None, str, int]]]:
        return {}

    def _of_agent(self, agent: str) -> list[tuple[Arm | None, str, int]]:
        """Each arm, its scope, and how many rollouts a task has in it."""
        found = self._of_agents[agent] = [
            (arm, self.scope_of(agent, arm.id if arm else ""), self._repeats_of(arm, agent))
            for arm in self.ordered
        ]
        return found

    def _repeats_of(self, arm: Arm | None, agent: str) -> int:
        return arm.repeats if arm and arm.repeats is not None else self.repeats(agent)


def with_seed(task: Task, seed: int) -> Task:
    """The task with a `seed`, unless its row has one."""
    params = {"seed": seed, **task.row["responses_create_params"]}
    return task._replace(row={**task.row, "responses_create_params": params})


def repeats_of(asked: int | dict[str, int]) -> Callable[[str], int]:
    """Agent → rollouts of each task, as the key `num_repeats` says."""
    if isinstance(asked, int):
        return lambda agent: asked

    def repeats(agent: str) -> int:
        found = asked.get(agent, asked.get("_default"))
        if found is None:
            raise ConfigError(f"num_repeats: has neither '{agent}' nor '_default'")
        return found

    return repeats
