"""Prepare a JSON schema and build its validator; runs in a worker process.

The validator differs from jsonschema in four points. `multipleOf` computes with decimals, so that
19.99 is a multiple of 0.01. `uniqueItems` takes one pass. Neither NaN nor infinity is a number.
Patterns are those of ECMA 262, which the specification of JSON Schema asks for.
"""

import math
import re
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from typing import Any

import jsonschema
from referencing import Registry

NESTED = (
    *("additionalItems", "additionalProperties", "contains", "contentSchema", "if", "then", "else"),
    *("items", "not", "propertyNames", "unevaluatedItems", "unevaluatedProperties"),
)
"""Keywords whose value is a schema."""

NAMED = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties")
"""Keywords, besides `properties`, whose value maps names to schemas."""

LISTED = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
"""Keywords whose value may be a list of schemas."""

SPACES = r"\t-\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"

CLASSES = {r"\d": "0-9", r"\w": "A-Za-z0-9_", r"\s": SPACES}
"""What these stand for in ECMA 262; in Python they have digits and letters of all languages."""

TOKEN = re.compile(r"\[\^?\]|\\k<\w+>|\\.|\(\?<(?=[A-Za-z_])|[\[\].$]", re.DOTALL)
"""Parts of a pattern that may mean something else in Python."""

OUTSIDE = {
    "$": r"\Z",
    ".": r"[^\n\r\u2028\u2029]",
    "(?<": "(?P<",
    "[]": "(?!)",
    "[^]": r"[\s\S]",
    **{name: f"[{members}]" for name, members in CLASSES.items()},
    **{name.upper(): f"[^{members}]" for name, members in CLASSES.items()},
}
"""Python's words for parts of a pattern outside of brackets."""


def prepare(schema: Any, *, is_strict: bool = True) -> None:
    """Translate patterns to Python's. If `is_strict`, require every property and allow no others,
    also in nested schemas, except those in lists."""
    if not isinstance(schema, dict):
        return
    properties = schema.get("properties")
    if is_strict and isinstance(properties, dict):
        schema["required"] = list(properties)
        schema["additionalProperties"] = False
        if not properties:
            del schema["required"]  # draft 4 has no empty list there
    if isinstance(pattern := schema.get("pattern"), str):
        schema["pattern"] = translate_pattern(pattern)
    if isinstance(patterns := schema.get("patternProperties"), dict):
        schema["patternProperties"] = {
            translate_pattern(pattern): each for pattern, each in patterns.items()
        }
    for keyword in NESTED:
        prepare(schema.get(keyword), is_strict=is_strict)
    for keyword in ("properties", *NAMED):
        if isinstance(named := schema.get(keyword), dict):
            for each in named.values():
                prepare(each, is_strict=is_strict)
    for keyword in LISTED:
        if isinstance(listed := schema.get(keyword), list):
            for each in listed:
                prepare(each, is_strict=False)


def translate_pattern(pattern: str) -> str:
    """Return the pattern of ECMA 262 in Python's words: `$` is only the end of the text."""
    is_inside = False

    def translate(found: re.Match[str]) -> str:
        nonlocal is_inside
        token = found[0]
        if is_inside:
            is_inside = not token.endswith("]") or token == r"\]"
            return "\\" + token if token.startswith("[") else CLASSES.get(token, token)
        is_inside = token == "["
        if token.startswith(r"\k"):
            return f"(?P={token[3:-1]})"
        return OUTSIDE.get(token, token)

    return TOKEN.sub(translate, pattern)


def build_validator(schema: Any) -> Any:
    """Return a validator of the draft in `$schema`; raise SchemaError for an invalid schema.

    Without a known `$schema`, or if the schema does not follow it, it is draft 2020-12, or else
    2019-09, where `items` may be a list. References to other documents are not resolved.
    """
    newest = jsonschema.Draft202012Validator
    declared = jsonschema.validators.validator_for(schema, default=newest)
    drafts = [declared, newest, jsonschema.Draft201909Validator]
    draft = next((each for each in drafts if _is_valid(each, schema)), None)
    if draft is None:
        declared.check_schema(schema)
        draft = declared
    return _extend(draft)(schema, registry=Registry())


def _is_valid(draft: Any, schema: Any) -> bool:
    try:
        draft.check_schema(schema)
    except jsonschema.SchemaError:
        return False
    return True


@cache
def _extend(draft: Any) -> Any:
    return jsonschema.validators.extend(
        draft,
        {"uniqueItems": check_unique, "multipleOf": check_multiple},
        type_checker=draft.TYPE_CHECKER.redefine(
            "number",
            lambda _, found: draft.TYPE_CHECKER.is_type(found, "number") and _is_finite(found),
        ),
    )


def _is_finite(number: Any) -> bool:
    return not isinstance(number, float) or math.isfinite(number)


def check_multiple(validator: Any, factor: Any, found: Any, schema: Any) -> Iterator[Any]:
    """`multipleOf` of the decimal numbers in the text, which floats only approximate."""
    if validator.is_type(found, "number") and Fraction(str(found)) % Fraction(str(factor)):
        yield jsonschema.ValidationError(f"{found!r} is not a multiple of {factor}")


def check_unique(validator: Any, wanted: Any, found: Any, schema: Any) -> Iterator[Any]:
    """`uniqueItems`, in one pass; jsonschema compares each object with all others."""
    if not (wanted and validator.is_type(found, "array")):
        return
    seen = set()
    for item in found:
        key = _key_of(item)
        if key in seen:
            yield jsonschema.ValidationError("it has non-unique elements")
            return
        seen.add(key)


def _key_of(value: Any) -> Any:
    """A hashable that is equal for equal values of JSON: 1 equals 1.0, and not true."""
    if isinstance(value, dict):
        return "object", frozenset((_key_of(name), _key_of(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return "array", tuple(map(_key_of, value))
    if isinstance(value, set):
        return "set", frozenset(map(_key_of, value))
    return (type(value), value) if isinstance(value, bool) else value
