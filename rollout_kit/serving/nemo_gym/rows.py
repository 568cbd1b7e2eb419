"""NeMo Gym's rows in the form that every server reads: the task's fields at the top of the row."""

from typing import Any

from ...types import JsonObject, splice

SOURCE = "task_source"
"""Key of a row: the server that lists its dataset, or its taskset."""

CONTAINER, INPUT = "task_data", "task_input"


def flatten(row: JsonObject) -> JsonObject:
    """The row with the fields of its `task_data`, or of its `task_input`, at the top; ValueError if
    a field is there twice with two values."""
    if isinstance(identity := row.get("task_id"), dict) and INPUT in row:
        for name, given in ((INPUT, row[INPUT]), (f"{INPUT}.{CONTAINER}", _container_of(row))):
            if not isinstance(given, dict):
                raise ValueError(f"{name} must be an object, not {type(given).__name__}")
        found = flatten(row[INPUT])
        around = {key: value for key, value in row.items() if key not in ("task_id", INPUT)}
        named = {"task_id": identity.get("task_id"), SOURCE: identity.get("taskset")}
        known = {key: value for key, value in named.items() if value is not None}
        return {**known, **around, **found}
    if not isinstance(row.get(CONTAINER), dict):
        return row
    rest = {key: value for key, value in row.items() if key != CONTAINER}
    return splice(rest, row[CONTAINER], CONTAINER)


def _container_of(row: JsonObject) -> Any:
    found = row[INPUT]
    return found.get(CONTAINER, {}) if isinstance(found, dict) else {}
