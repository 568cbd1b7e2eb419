"""A right answer to a row of BFCL, as items of a response, from its possible answers or calls."""

import json
import re
from collections.abc import Sequence
from typing import Any

from ....responses import function_call_item, message_item
from ....types import JsonObject

NEXT = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "…"}]}
"""What stands between two steps of a conversation."""

ENDS = {"java": {"float": "f", "long": "L"}, "javascript": {"Bigint": "n"}}
"""Language → type → the end of its numbers."""


def choose_calls(row: JsonObject) -> list[JsonObject]:
    """A right call for each possible answer of a row of one turn."""
    functions = {each["name"]: each for each in reversed(row["functions"])}
    found = []
    for answer in row["possible_answers"]:
        [(name, possible)] = answer.items()
        function = functions.get(name, row["functions"][0])
        arguments = {}
        for key, values in possible.items():
            about = function["parameters"].get(key, {"type": "any"})
            chosen = [value for value in values if value != ""] or values or [None]
            if chosen[0] != "" or key in function["required"]:
                arguments[key] = _write(chosen[0], about, row["language"])
        found.append({name: arguments})
    return found


def _write(value: Any, about: JsonObject, language: str) -> Any:
    if isinstance(value, dict):
        value = _fill(value)
    elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        value = [_fill(each) for each in value]
    if language == "python":
        return value
    return write_literal(value, about["type"], about.get("items"), language)


def _fill(value: JsonObject) -> JsonObject:
    """An object with the first right value of each of its fields that has one."""
    firsts = {
        key: next((each for each in right if each != ""), "") if isinstance(right, list) else right
        for key, right in value.items()
    }
    return {key: first for key, first in firsts.items() if first != "" or "" not in value[key]}


def write_literal(value: Any, kind: str, inner: str | None, language: str) -> str:
    """A value as a program writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value}{ENDS[language].get(kind, '')}"
    if isinstance(value, list):
        quoted = (kind == "ArrayList" and inner == "String") or language == "javascript"
        parts = [_write_part(each, inner or "any", language, quoted) for each in value]
        if language == "javascript":
            return f"[{', '.join(parts)}]"
        text = ", ".join(parts)
        if kind != "ArrayList":
            return f"new {inner or 'Object'}[]{{{text}}}"
        return f"new ArrayList<>(Arrays.asList({text}))" if parts else "new ArrayList<>()"
    if isinstance(value, dict) and language == "java":
        pairs = (f'put("{key}", {_guess(each)});' for key, each in value.items())
        return f"new HashMap<>() {{{{ {' '.join(pairs)} }}}}"
    if isinstance(value, dict):
        pairs = (f'"{key}": {_guess(each)}' for key, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    return str(value)


def _write_part(value: Any, kind: str, language: str, is_quoted: bool) -> str:
    if isinstance(value, str) and is_quoted:
        return f'"{value}"'
    return write_literal(value, kind, None, language)


def _guess(value: Any) -> str:
    return json.dumps(value) if not isinstance(value, dict) else str(value)


def make_gold(row: JsonObject) -> list[JsonObject]:
    """The items of a right response to a row with an answer."""
    if row["kind"] == "single_turn":
        calls = choose_calls(row)
        if row["mode"] == "prompt":
            return [message_item(write_calls(calls, row["language"]))]
        return _call_items(calls)
    items: list[JsonObject] = []
    for turn in row["ground_truth"]:
        for calls in [turn] if turn else []:
            if row["mode"] == "prompt":
                items.append(message_item(write_calls(calls)))
            else:
                items += _call_items(calls)
            items.append(NEXT)
        items += [message_item("Done."), NEXT]
    return items[:-1]


def _call_items(calls: Sequence[JsonObject]) -> list[JsonObject]:
    return [
        function_call_item(re.sub(r"\.", "_", name), json.dumps(arguments), f"call_{number}")
        for number, call in enumerate(calls)
        for name, arguments in call.items()
    ]


def write_calls(calls: Sequence[JsonObject], language: str = "python") -> str:
    """Calls as a text."""
    found = []
    for call in calls:
        for name, arguments in call.items():
            pairs = [
                f"{key}={repr(value) if language == 'python' else _write_argument(str(value))}"
                for key, value in arguments.items()
            ]
            found.append(f"{name}({', '.join(pairs)})")
    return f"[{', '.join(found)}]"


def _write_argument(text: str) -> str:
    """A literal of Java or JavaScript in a call: anything that is no number, name or expression is
    a text."""
    is_code = re.fullmatch(r"[\w.]+|-?[\d.]+\w?|new .*|[\[{].*|.*\(.*\)", text, re.DOTALL)
    return text if is_code else json.dumps(text)
