"""Rollouts of benchmarks whose rows may not be published: `publish: false` in a definition.

Their tasks say so, and so do the lines of their rollouts. What is made for others, such as reports
and exports, leaves out the prompt and what else a row has.
"""

from ..store.lines import row_of
from ..types import JsonObject

WHY = "the terms of its benchmark do not allow to publish its rows"

NOTE = f"(left out: {WHY})"

KEPT = {"benchmark", "publish"}


def is_withheld(line: JsonObject) -> bool:
    """Whether the row of a rollout's line may not be published."""
    return line.get("publish") is False


def withhold(line: JsonObject) -> JsonObject:
    """A line without what its row has, if that may not be published. Of what its verifier set,
    numbers stay: texts can hold the right answer."""
    if not is_withheld(line):
        return line
    scores = {*line["rollout"].get("scores", ())} & line.keys()
    texts = {name for name in scores if not isinstance(line[name], int | float)}
    hidden = (row_of(line).keys() | texts | {"task_fields"}) - KEPT
    asked = {"input": [{"role": "user", "content": NOTE}]}
    kept = {name: value for name, value in line.items() if name not in hidden}
    return {**kept, "responses_create_params": asked}
