"""Two outputs compared task by task, by the code of `ng_compare`."""

from collections import defaultdict
from dataclasses import asdict, dataclass
from math import isnan

from ...errors import ConfigError
from ...types import JsonObject
from ..metrics.paired import Side, Sides, compare, task_name
from .dataset import ROW_BITS, Dataset

MAX_FLIPS = 500
"""Tasks that are listed, those that differ most first."""


REWARDS = ("reward", "group_reward")
"""What outputs can be compared by."""


@dataclass(slots=True)
class ComparedOutput:
    """The rewards of an output by task, and its rows by task."""

    name: str
    sides: dict[str, Side]
    """`reward` and `group_reward`, those that any rollout has."""
    rows: dict[str, list[int]]
    agents: set[str]

    def drop_agents(self) -> None:
        """Compare tasks across agents."""
        for side in self.sides.values():
            side.drop_agents()
        self.rows = {key.partition("\0")[2]: rows for key, rows in self.rows.items()}


def compare_outputs(dataset: Dataset, first: str, second: str, by: str = "") -> JsonObject:
    """The comparison, and the tasks on which the two differ; `by` is one of REWARDS, and without it
    the first one that both have. ConfigError if nothing can be compared."""
    from ..comparison import conclude  # it loads the collector, which only this page needs

    read = [_read(dataset, name) for name in (first, second)]
    if all(len(each.agents) < 2 for each in read):
        for each in read:
            each.drop_agents()
    common = [name for name in REWARDS if all(name in each.sides for each in read)]
    if not common:
        raise ConfigError(f"{first} and {second}: they have no reward of the same kind")
    by = by or common[0]
    if by not in common:
        raise ConfigError(f"by={by}: both have {' and '.join(common)}")
    sides = [each.sides[by] for each in read]
    try:
        paired = compare(*sides)
    except ValueError as error:
        raise ConfigError(f"{first} and {second}: {error}") from None
    ones, others = (side.task_means() for side in sides)
    changed = [task for task in ones if task in others and ones[task] != others[task]]
    changed.sort(key=lambda task: (-abs(others[task] - ones[task]), task))
    flips = [
        {
            "task_id": task.rpartition("\0")[2],
            "first": ones[task],
            "second": others[task],
            "rows": [each.rows[task] for each in read],
        }
        for task in changed[:MAX_FLIPS]
    ]
    return {
        "first": {"file": first, "reward": sides[0].mean, "rollouts": sides[0].num_rollouts},
        "second": {"file": second, "reward": sides[1].mean, "rollouts": sides[1].num_rollouts},
        "by": by,
        "can_be_by": common,
        **asdict(paired),
        "conclusion": conclude(paired),
        "flips": flips,
        "num_flips": len(changed),
    }


def _read(dataset: Dataset, name: str) -> ComparedOutput:
    """ConfigError if no rollout has a reward."""
    both = Sides.create(name)
    rows, agents = defaultdict[str, list[int]](list), set[str]()
    for number, part in enumerate(dataset.parts):
        columns, output = part.index.columns, dataset.output_of(number)
        if output.name != name:
            continue
        answers = columns.texts.get("extracted_answer")
        kinds, groups = columns.texts["kind"], output.group_rewards()
        for row in range(len(part.index)):
            if kinds[row] != "rollout":
                continue
            agent = columns.texts["agent"][row] or ""
            agents.add(agent)
            key, reward = part.index.key(row), columns.numbers["reward"][row]
            answer = answers[row] if answers else None
            score = groups.of(key) if groups else None
            held = None if isnan(reward) else reward
            both.add(key, held, score.reward if score else None, answer)
            rows[task_name(key)].append(number << ROW_BITS | row)
    sides = {kind: side for kind, side in zip(REWARDS, both, strict=True) if side.tasks}
    if not sides:
        raise ConfigError(f"{name}: no verified rollout is in it")
    return ComparedOutput(name, sides, rows, agents)
