"""What trackers show of a run: its figures by name, and a table of some of its rollouts."""

import math
import random
from typing import Any

from ...responses import content_texts, input_items
from ...types import JsonObject, Outcome, Rollout
from ..live.snapshot import Snapshot, figures_of

COLUMNS = (
    *("task_id", "agent", "scope", "rollout_index", "reward", "prompt", "answer", "scores"),
    *("num_turns", "num_tool_calls", "output_tokens", "cost_usd", "duration_s", "finish_reason"),
)

MAX_CELL = 10_000
"""Characters of a cell."""


def scalars_of(snapshot: Snapshot) -> dict[str, float]:
    """The figures that are known, by the names under which trackers draw them."""
    return only_numbers({each.curve: each.value for each in figures_of(snapshot) if each.curve})


def final_figures(metrics: JsonObject) -> dict[str, float]:
    """The means, the intervals, pass@k and pass^k of the metrics file."""
    found = {f"final/{name}": value for name, value in (metrics.get("metrics") or {}).items()}
    for name, bounds in (metrics.get("intervals") or {}).items():
        found |= {f"final/{name}_low": bounds[0], f"final/{name}_high": bounds[1]}
    for name, values in (("pass@", "pass_at_k"), ("pass^", "pass_hat_k"), ("maj@", "maj_at_k")):
        for k, value in (metrics.get(values) or {}).items():
            found[f"final/{name}{k}"] = value
    return only_numbers(found)


def only_numbers(found: dict[str, Any]) -> dict[str, float]:
    """Without what is not known or not finite."""
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


class TableSample:
    """Up to `size` rollouts, each of those that have ended as likely as any other."""

    def __init__(self, size: int) -> None:
        self._size, self._number = size, 0
        self._rollouts: list[Rollout] = []
        self._random = random.Random(0)

    def take(self, outcome: Outcome) -> None:
        """Follow an outcome."""
        if not isinstance(outcome, Rollout):
            return
        self._number += 1
        if len(self._rollouts) < self._size:
            self._rollouts.append(outcome)
        elif (place := self._random.randrange(self._number)) < self._size:
            self._rollouts[place] = outcome

    def table(self) -> JsonObject | None:
        """Columns, and a row of each rollout; None without any."""
        if not self._rollouts:
            return None
        return {"columns": COLUMNS, "rows": [_row(rollout) for rollout in self._rollouts]}


def _row(rollout: Rollout) -> list[Any]:
    info, line = rollout.info, rollout.line
    asked = input_items(line.get("responses_create_params") or {})
    last = asked[-1].get("content") if asked and isinstance(asked[-1], dict) else None
    scores = ", ".join(f"{name}={line.get(name)}" for name in info.scores)
    return [
        *info.key,
        rollout.reward,
        *(text[:MAX_CELL] for text in ("\n".join(content_texts(last)), rollout.text, scores)),
        *(info.num_turns, info.num_tool_calls, info.output_tokens, info.cost_usd, info.duration_s),
        info.finish_reason,
    ]
