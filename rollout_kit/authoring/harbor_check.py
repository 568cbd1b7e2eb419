"""Whether tasks in Harbor's folders run here, and which line prevents it.

With `run`, the solution of each task and an agent that does nothing are played, too.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..errors import RolloutError
from ..serving.harbor.task_folder import HarborTask
from ..serving.harbor.task_rows import make_row
from ..types import JsonObject
from .playing import play, serving_shell

AT_ONCE = 2
"""Tasks that are played at the same time."""


@dataclass(slots=True)
class CheckedTask:
    """What is known of a folder. Rewards are None if they were not asked for, or there are none."""

    task: HarborTask
    problems: list[str] = field(default_factory=list)
    gold: float | None = None
    empty: float | None = None
    has_solution: bool = False

    @property
    def runs(self) -> bool:
        return not self.problems

    @property
    def is_sound(self) -> bool:
        """Whether the solution has a higher reward than doing nothing, as far as it was tried."""
        if self.gold is None or self.empty is None:
            return self.runs
        return self.runs and self.gold > self.empty

    def to_json(self) -> JsonObject:
        found: JsonObject = {
            "folder": str(self.task.folder),
            "name": self.task.name,
            "runs": self.runs,
            "problems": self.problems,
            "notes": [str(each) for each in self.task.notes],
            "steps": len(self.task.steps),
            "license": self.task.license,
        }
        if self.gold is not None or self.empty is not None:
            found |= {"gold": self.gold, "empty": self.empty}
        return found


def check_task(task: HarborTask) -> CheckedTask:
    has_solution = bool(task.steps) and all(step.solution for step in task.steps)
    return CheckedTask(task, [str(each) for each in task.problems], has_solution=has_solution)


async def run_tasks(
    checked: list[CheckedTask], roots: Mapping[str, str], tell: Callable[[CheckedTask], None]
) -> None:
    """Play the solution of each task, and an empty answer; the rewards go into `checked`. What
    fails is a problem of its task."""
    places = asyncio.Semaphore(AT_ONCE)
    settings: JsonObject = {
        "roots": dict(roots),
        "task_folders": [str(each.task.folder) for each in checked],
        "max_command_timeout_s": 3600.0,
    }
    async with serving_shell(**settings) as peers:

        async def run(one: CheckedTask) -> None:
            async with places:
                row = make_row(one.task, with_gold=True)
                try:
                    one.empty = (await play(peers, row, []))["reward"]
                    if one.has_solution:
                        one.gold = (await play(peers, row, row["gold_items"]))["reward"]
                except RolloutError as error:
                    one.problems.append(error.message)
                tell(one)

        await asyncio.gather(*(run(each) for each in checked if each.runs))
