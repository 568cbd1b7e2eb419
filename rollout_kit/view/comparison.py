"""Two outputs compared task by task, by the code of `ng_compare`."""

from collections import defaultdict
from dataclasses import asdict
from math import isnan

from ..errors import ConfigError
from ..metrics.paired import Side, compare
from ..types import JsonObject
from .dataset import ROW_BITS, Dataset

MAX_FLIPS = 500
"""Tasks that are listed, those that differ most first."""


def compare_outputs(dataset: Dataset, first: str, second: str) -> JsonObject:
    """The comparison, and the tasks on which the two differ; ConfigError if nothing can be
    compared."""
    from ..commands.compare import conclude  # it loads the collector, which only this page needs

    sides, rows = zip(*(_read(dataset, name) for name in (first, second)), strict=True)
    try:
        paired = compare(*sides)
    except ValueError as error:
        raise ConfigError(f"{first} and {second}: {error}") from None
    ones, others = (side.task_means() for side in sides)
    changed = [task for task in ones if task in others and ones[task] != others[task]]
    changed.sort(key=lambda task: (-abs(others[task] - ones[task]), task))
    flips = [
        {
            "task_id": task,
            "first": ones[task],
            "second": others[task],
            "rows": [rows[0][task], rows[1][task]],
        }
        for task in changed[:MAX_FLIPS]
    ]
    return {
        "first": {"file": first, "reward": sides[0].mean, "rollouts": sides[0].num_rollouts},
        "second": {"file": second, "reward": sides[1].mean, "rollouts": sides[1].num_rollouts},
        **asdict(paired),
        "conclusion": conclude(paired),
        "flips": flips,
        "num_flips": len(changed),
    }


def _read(dataset: Dataset, name: str) -> tuple[Side, dict[str, list[int]]]:
    """The rewards of an output, and the rows of each task."""
    side, rows = Side(name), defaultdict[str, list[int]](list)
    for number, part in enumerate(dataset.parts):
        columns = part.index.columns
        if dataset.output_of(number).name != name:
            continue
        answers = columns.texts.get("extracted_answer")
        kinds = columns.texts["kind"]
        for row in range(len(part.index)):
            if kinds[row] != "rollout":
                continue
            task = columns.task_id(row)
            reward = columns.numbers["reward"][row]
            answer = answers[row] if answers else None
            side.add(task, None if isnan(reward) else reward, answer)
            rows[task].append(number << ROW_BITS | row)
    if not side.tasks:
        raise ConfigError(f"{name}: no verified rollout is in it")
    return side, rows
