"""Random values that a JSON schema allows: arguments of tools, structured answers."""

from typing import Any

from rollout_kit.types import JsonObject

from .draws import Draws

MAX_DEPTH = 4
"""Depth to which a recursive schema is filled in."""


def make_arguments(schema: JsonObject, draws: Draws) -> JsonObject:
    """An object with every property in `schema`."""
    value = make_value(schema, draws)
    return value if isinstance(value, dict) else {}


def make_value(schema: JsonObject, draws: Draws) -> Any:
    """A value that `schema` allows, as far as this reads it: not `pattern`, for example."""
    return _value(schema, schema, draws, 0)


def _value(schema: Any, root: JsonObject, draws: Draws, depth: int) -> Any:
    schema = _resolve(schema, root)
    if depth > MAX_DEPTH:
        return None
    if "const" in schema:
        return schema["const"]
    if choices := schema.get("enum") or schema.get("examples"):
        return choices[draws.below(len(choices))]
    for key in ("anyOf", "oneOf", "allOf"):
        if options := [each for each in schema.get(key, ()) if each.get("type") != "null"]:
            return _value(options[0], root, draws, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((each for each in kind if each != "null"), "null")
    match kind:
        case "string":
            return _string(schema)
        case "integer" | "number":
            return _number(schema, kind, draws)
        case "boolean":
            return draws.uniform() < 0.5
        case "array":
            number = max(1, schema.get("minItems", 1))
            items = schema.get("items") or {"type": "string"}
            return [_value(items, root, draws, depth + 1) for _ in range(number)]
        case "null":
            return None
        case _:
            properties = schema.get("properties", {})
            return {name: _value(each, root, draws, depth + 1) for name, each in properties.items()}


def _resolve(schema: Any, root: JsonObject) -> JsonObject:
    """`schema`, or the definition in `root` that it refers to."""
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, dict) or not str(schema.get("$ref", "")).startswith("#"):
            break
        found: Any = root
        for part in filter(None, schema["$ref"][1:].split("/")):
            found = found.get(part, {}) if isinstance(found, dict) else {}
        schema = found
    return schema if isinstance(schema, dict) else {}


def _string(schema: JsonObject) -> str:
    text = "text" * -(-max(1, schema.get("minLength", 1)) // 4)
    return text[: schema.get("maxLength", len(text))]


def _number(schema: JsonObject, kind: str, draws: Draws) -> float:
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
    high = schema.get("maximum", schema.get("exclusiveMaximum", low + 100))
    if kind == "number":
        return low + (high - low) * (0.01 + 0.98 * draws.uniform())
    first = int(low) + ("minimum" not in schema and "exclusiveMinimum" in schema)
    last = int(high) - ("maximum" not in schema and "exclusiveMaximum" in schema)
    return first + draws.below(max(1, last - first + 1))
