"""Parse text by its format and validate it against a JSON schema; runs in a worker process.

References to other documents are not resolved.
"""

import csv
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
from referencing import Registry

sys.path.insert(0, str(Path(__file__).parent))  # a worker runs this file by its path

from parsing import load_toml, load_xml, load_yaml

MESSAGE_LIMIT = 200

Verdict = tuple[str, str] | tuple[None, None]
"""Kind and text of the error."""


def examine(schema_str: str, format: str, coerce_xml: bool, said: str | None) -> Verdict:
    """Return what is wrong with `said`; if it is None, what is wrong with the schema.

    With the `format` `tool_call:KEY`, `said` is the arguments of a tool call, and the answer is the
    argument KEY, or all arguments if KEY is empty.
    """
    try:
        schema = json.loads(schema_str)
        strictify(schema)
        if said is None:
            if not isinstance(schema, dict):
                raise ValueError("it is not a JSON object")
            jsonschema.Draft202012Validator.check_schema(schema)
            return None, None
    except (ValueError, TypeError, RecursionError, jsonschema.SchemaError) as error:
        return _make_error("schema_error", error)
    if format.startswith("tool_call:"):
        key = format.partition(":")[2]
        try:
            found = json.loads(said)
        except (ValueError, RecursionError) as error:
            return _make_error("tool_arguments_parse_error", error)
        if key and (not isinstance(found, dict) or key not in found):
            return "missing_tool_payload_key", f"the arguments have no '{key}'"
        found = found[key] if key else found
    else:
        try:
            found = PARSERS[format](said)
        except Exception as error:  # parsers raise exceptions of any type on unusual input
            return _make_error("parse_error", error)
    try:
        if format == "xml" and coerce_xml:
            found = convert_xml(found, schema)
        elif format == "csv":
            found = convert_csv(found, schema)
        validator = VALIDATOR(schema, registry=Registry())
        first = next(validator.iter_errors(found), None)
    except Exception as error:  # validators too
        return _make_error("validation_error", error)
    if first is None:
        return None, None
    return "validation_error", _shorten(f"{first.json_path}: {first.message}")


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


VALIDATOR = jsonschema.validators.extend(
    jsonschema.Draft202012Validator, {"uniqueItems": check_unique}
)


def strictify(schema: Any) -> None:
    """Require every property and allow no others, also in schemas nested in mappings."""
    if isinstance(schema, dict):
        if "properties" in schema:
            schema["required"] = list(schema["properties"])
            schema["additionalProperties"] = False
        for value in schema.values():
            strictify(value)


def _make_error(kind: str, error: Exception) -> Verdict:
    return kind, _shorten(f"{type(error).__name__}: {error}")


def _shorten(message: str) -> str:
    """Shorten a message and escape lone surrogates, which cannot be encoded."""
    return message[:MESSAGE_LIMIT].encode(errors="backslashreplace").decode()


class Csv(NamedTuple):
    header: list[str]
    rows: list[dict[str, Any]]


def load_csv(text: str) -> Csv:
    reader = csv.DictReader(io.StringIO(text))
    rows = list(reader)
    return Csv(list(reader.fieldnames or ()), rows)


PARSERS = {
    "json": json.loads,
    "yaml": load_yaml,
    "xml": load_xml,
    "toml": load_toml,
    "csv": load_csv,
}


def convert_xml(found: Any, schema: Any) -> Any:
    """Convert texts of XML to numbers, booleans and lists if the schema requires them."""
    wanted = schema.get("type") if isinstance(schema, dict) else None
    if wanted == "object" and isinstance(found, dict):
        properties = schema.get("properties", {})
        return {
            name: convert_xml(value, properties[name]) if name in properties else value
            for name, value in found.items()
        }
    if wanted == "array":
        if isinstance(found, dict) and len(found) == 1:  # <tags><tag>a</tag><tag>b</tag></tags>
            [found] = found.values()
        items = found if isinstance(found, list) else [] if found is None else [found]
        return [convert_xml(item, schema.get("items", {})) for item in items]
    if found is None and wanted == "string":
        return ""
    return convert(found, wanted) if isinstance(found, str) else found


def convert_csv(table: Csv, schema: Any) -> list[dict[str, Any]]:
    """Convert cells to the types in the schema. Raise ValueError for a header with other columns,
    because the schema itself accepts any header if no row follows."""
    properties = schema.get("items", schema).get("properties", {})
    if set(table.header) != set(properties) and properties:
        raise ValueError(f"the columns are {', '.join(table.header)}, not {', '.join(properties)}")
    wanted = {name: each.get("type", "string") for name, each in properties.items()}
    return [
        {name: _convert_cell(value, wanted.get(name, "string")) for name, value in row.items()}
        for row in table.rows
    ]


def _convert_cell(value: Any, wanted: Any) -> Any:
    if isinstance(wanted, list):
        if not value and "null" in wanted:
            return None
        return next(_convert_to_each(value, wanted), value)
    return convert(value, wanted) if isinstance(value, str) and value else value


def _convert_to_each(value: Any, wanted: list[Any]) -> Iterator[Any]:
    for each in wanted:
        if each != "null":
            found = _convert_cell(value, each)
            if not isinstance(found, str) or each == "string":
                yield found


def convert(text: str, wanted: Any) -> Any:
    """Convert text to a JSON type; return it unchanged if that fails."""
    try:
        if wanted == "integer":
            return int(text)
        if wanted == "number":
            return float(text)
    except ValueError:
        return text
    truth = {"true": True, "1": True, "false": False, "0": False}
    return truth.get(text.lower(), text) if wanted == "boolean" else text
