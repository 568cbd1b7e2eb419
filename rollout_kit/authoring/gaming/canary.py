"""Tools that give the answer away: rows get another answer that no other place knows, every tool is
called, and no reply may hold that answer."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from ...responses import function_call_item, make_response
from ...types import JsonObject
from ..answers import TRUTH, Case
from ..audit_run import AuditVerdict
from .labels import IN_GOLD, NOT_A_LABEL, SETTINGS

GIVES_AWAY = "a tool gives the answer away"

CANARY = "canary"
"""Kind of these cases."""

NUM_ROWS = 3

MAX_TOOLS = 30

WORD, NUMBER = "quandrasimal", 739146

SAMPLES: Mapping[str, Any] = {
    "string": "1",
    "integer": 1,
    "number": 1.0,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}
"""An argument for each type of a JSON schema."""


def build_canary_cases(rows: Sequence[JsonObject], tools: Sequence[JsonObject]) -> list[Case]:
    """One session for each of the first rows: all tools of the server and the row are called."""
    found = []
    for number, row in enumerate(rows[:NUM_ROWS], 1):
        given = row.get("responses_create_params", {}).get("tools") or ()
        named = {
            str(each.get("name")): each
            for each in (*tools, *given)
            if isinstance(each, dict) and each.get("name")
        }
        changed = {
            key: value if key in SETTINGS or IN_GOLD.match(key) else _replace(key, value)
            for key, value in row.items()
        }
        if named and changed != row:
            calls = [
                function_call_item(name, _write_arguments(tool))
                for name, tool in list(named.items())[:MAX_TOOLS]
            ]
            response = {**make_response("audit", calls, None), "id": "resp_audit", "created_at": 0}
            found.append(Case(CANARY, f"row {number} with another answer", changed, response))
    return found


def find_given_away(
    cases: Sequence[Case], verdicts: Mapping[int, AuditVerdict]
) -> list[tuple[str, str]]:
    """A flag for the tools whose replies hold the answer. `verdicts`: by the number of the case."""
    tools = dict[str, str]()
    for number, case in enumerate(cases):
        replies = verdicts[number].replies if number in verdicts else []
        for call, reply in zip(case.response["output"], replies, strict=False):
            if re.search(rf"(?<!\d){NUMBER}(?!\d)|{WORD}", reply):
                tools.setdefault(call["name"], case.name)
    return [(GIVES_AWAY, f"{tool}, in {where}") for tool, where in tools.items()]


def _replace(name: str, value: Any) -> Any:
    """A part of a row with other answers."""
    is_truth = TRUTH.search(name) and not NOT_A_LABEL.search(name)
    match value:
        case dict():
            return {key: _replace(str(key), part) for key, part in value.items()}
        case list():
            return [_replace(name, part) for part in value]
        case str() if is_truth and value:
            return str(NUMBER) if re.fullmatch(r"[-+\d.,]+", value) else WORD
        case int() if is_truth and not isinstance(value, bool):
            return NUMBER
        case float() if is_truth:
            return float(NUMBER)
        case _:
            return value


def _write_arguments(tool: JsonObject) -> str:
    """Arguments that a tool's schema asks for."""
    schema = tool.get("parameters") or {}
    asked = schema.get("properties") or {}
    given = {name: _sample(asked.get(name) or {}) for name in schema.get("required") or ()}
    return orjson.dumps(given).decode()


def _sample(schema: JsonObject) -> Any:
    if options := schema.get("enum"):
        return options[0]
    if "default" in schema:
        return schema["default"]
    return SAMPLES.get(str(schema.get("type")), "1")
