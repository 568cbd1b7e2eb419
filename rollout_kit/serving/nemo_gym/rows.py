"""NeMo Gym's rows in the form that every server reads: the task's fields at the top of the row."""

from collections.abc import Mapping
from typing import Any

from ...types import JsonObject, splice

SOURCE = "task_source"
"""Key of a row: the server that lists its dataset, or its taskset."""

CONTAINER = "task_data"


def flatten(row: JsonObject) -> JsonObject:
    """The row with the fields of its `task_data`, or of its `task_input`, at the top; ValueError if
    a field is there twice with two values."""
    if _is_materialized(row):
        identity = row["task_id"]
        found = flatten(row["task_input"])
        around = {key: value for key, value in row.items() if key not in ("task_id", "task_input")}
        named = {"task_id": identity.get("task_id"), SOURCE: identity.get("taskset")}
        known = {key: value for key, value in named.items() if value is not None}
        return {**known, **around, **found}
    if not isinstance(row.get(CONTAINER), dict):
        return row
    rest = {key: value for key, value in row.items() if key != CONTAINER}
    return splice(rest, row[CONTAINER], CONTAINER)


def _is_materialized(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("task_id"), dict) and isinstance(row.get("task_input"), dict)
