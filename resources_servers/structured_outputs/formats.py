"""Parse text by its format and validate it against a JSON schema; runs in a worker process."""

import csv
import io
import json
import math
import sys
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonschema

sys.path.insert(0, str(Path(__file__).parent))  # a worker runs this file by its path

from conversion import Converter, Csv
from parsing import load_toml, load_xml, load_yaml
from schemas import build_validator, prepare

MESSAGE_LIMIT = 200

Verdict = tuple[str, str] | tuple[None, None]
"""Kind and text of the error."""


def examine(schema_str: str, format: str, coerce_xml: bool, said: str | None) -> Verdict:
    """Return what is wrong with `said`; if it is None, what is wrong with the schema.

    With the `format` `tool_call:KEY`, `said` is the arguments of a tool call, and the answer is the
    argument KEY, or all arguments if KEY is empty.
    """
    try:
        validator = load_schema(schema_str)
        if said is None:
            if not isinstance(validator.schema, dict):
                raise ValueError("it is not a JSON object")
            return None, None
    except (ValueError, TypeError, RecursionError, jsonschema.SchemaError) as error:
        return _make_error("schema_error", error)
    if format.startswith("tool_call:"):
        key = format.partition(":")[2]
        try:
            found = load_json(said)
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
            found = Converter(validator, is_xml=True).convert(found, validator.schema)
        elif format == "csv":
            found = Converter(validator, is_xml=False).convert_table(found, validator.schema)
        first = next(validator.iter_errors(found), None)
    except Exception as error:  # validators too
        return _make_error("validation_error", error)
    if first is None:
        return None, None
    return "validation_error", _shorten(f"{first.json_path}: {first.message}")


@lru_cache(maxsize=64)
def load_schema(text: str) -> Any:
    """Return the validator of a schema; all rollouts of a task share it."""
    schema = json.loads(text)
    prepare(schema)
    return build_validator(schema)


def _make_error(kind: str, error: Exception) -> Verdict:
    return kind, _shorten(f"{type(error).__name__}: {error}")


def _shorten(message: str) -> str:
    """Shorten a message and escape lone surrogates, which cannot be encoded."""
    return message[:MESSAGE_LIMIT].encode(errors="backslashreplace").decode()


def load_csv(text: str) -> Csv:
    reader = csv.DictReader(io.StringIO(text))
    rows = list(reader)
    return Csv(list(reader.fieldnames or ()), rows)


def load_json(text: str) -> Any:
    """Refuse `NaN` and `Infinity`, which Python reads and JSON does not have."""
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_read_float)


def _read_float(text: str) -> float | Decimal:
    number = float(text)
    return number if math.isfinite(number) else Decimal(text)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


PARSERS = {
    "json": load_json,
    "yaml": load_yaml,
    "xml": load_xml,
    "toml": load_toml,
    "csv": load_csv,
}
