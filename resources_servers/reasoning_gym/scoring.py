"""Scorers of reasoning-gym; runs in a worker process of `app.py`, and nothing else imports it.

Scorers that evaluate text are in `evaluating.py`.
"""

import math
import sys
import warnings
from functools import cache
from types import ModuleType
from typing import Any

warnings.filterwarnings("ignore", category=SyntaxWarning)

# cellpylib generates tasks, of which none are made here, and imports all of matplotlib
sys.modules["cellpylib"] = ModuleType("cellpylib")

import reasoning_gym  # noqa: E402
from reasoning_gym.factory import DATASETS  # noqa: E402

GRIDS = frozenset({"arc_agi", "rearc"})
"""Families whose scorers expect tuples of tuples, which JSON turned into lists."""


def score(row: dict[str, Any] | None, answer: str | None) -> Any:
    """Return the score from 0 to 1, 0 for an unreadable answer; without a row, all families."""
    if row is None or answer is None:
        return sorted(DATASETS)
    family = row["metadata"]["source_dataset"]
    if family in GRIDS:
        row = {**row, "metadata": _to_tuples(row["metadata"])}
    try:
        found = float(_get_scorer(family)(answer, row))
    except BaseException:  # scorers raise exceptions of any type on unusual input
        return 0.0
    return min(max(found, 0.0), 1.0) if math.isfinite(found) else 0.0


@cache
def _get_scorer(family: str) -> Any:
    return reasoning_gym.get_score_answer_fn(family)


def _to_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _to_tuples(each) for name, each in value.items()}
    return tuple(map(_to_tuples, value)) if isinstance(value, list) else value
