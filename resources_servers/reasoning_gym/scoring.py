"""Scorers of reasoning-gym; runs in a worker process of `app.py`, and nothing else imports it."""

import ast
import builtins
import math
import re
import sys
import unicodedata
import warnings
from functools import cache
from types import BuiltinFunctionType, ModuleType
from typing import Any

warnings.filterwarnings("ignore", category=SyntaxWarning)

# cellpylib generates tasks, of which none are made here, and imports all of matplotlib
sys.modules["cellpylib"] = ModuleType("cellpylib")

import reasoning_gym  # noqa: E402
from reasoning_gym.algorithmic import binary_matrix, spiral_matrix, string_insertion  # noqa: E402
from reasoning_gym.factory import DATASETS  # noqa: E402
from reasoning_gym.games import n_queens  # noqa: E402

for _module in (binary_matrix, n_queens, spiral_matrix, string_insertion):
    _module.eval = ast.literal_eval  # their scorers execute the answer

GRIDS = frozenset({"arc_agi", "rearc"})
"""Families whose scorers expect tuples of tuples, which JSON turned into lists."""

SYMBOLIC = frozenset(
    {
        "countdown",
        "intermediate_integration",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
    }
)
"""Families whose scorers pass the answer to sympy's parser, which executes it."""

FUNCTIONS = frozenset(
    name for name, each in vars(builtins).items() if isinstance(each, BuiltinFunctionType)
) - {"abs", "divmod", "max", "min", "pow", "round", "sum"}
"""Python's functions that are no mathematics, such as `exec`."""


def score(row: dict[str, Any] | None, answer: str | None) -> Any:
    """Return the score from 0 to 1, 0 for an unreadable answer; without a row, all families."""
    if row is None or answer is None:
        return sorted(DATASETS)
    family = row["metadata"]["source_dataset"]
    if _is_code(family, answer):
        return 0.0
    if family in GRIDS:
        row = {**row, "metadata": _to_tuples(row["metadata"])}
    try:
        found = float(_get_scorer(family)(answer, row))
    except BaseException:  # scorers raise exceptions of any type on unusual input
        return 0.0
    return min(max(found, 0.0), 1.0) if math.isfinite(found) else 0.0


def _is_code(family: str, answer: str) -> bool:
    """Whether the scorer would execute more than mathematics."""
    answer = unicodedata.normalize("NFKC", answer)  # as Python does with names
    if family not in SYMBOLIC:
        return False
    names = set(re.findall(r"[^\W\d]\w*", answer))
    return bool(names & FUNCTIONS) or "__" in answer or "'" in answer or '"' in answer


@cache
def _get_scorer(family: str) -> Any:
    return reasoning_gym.get_score_answer_fn(family)


def _to_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _to_tuples(each) for name, each in value.items()}
    return tuple(map(_to_tuples, value)) if isinstance(value, list) else value
