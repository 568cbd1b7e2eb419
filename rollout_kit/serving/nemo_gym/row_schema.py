"""Checks rows with the schema that NeMo Gym 0.7 keeps beside a server's code: `TaskData` of its
`task_data.py`, for the fields of a row that belong to its task.

This file runs under the server's interpreter, in the server's process or in one of its own, and
imports nothing of this toolkit.
"""

import importlib.util
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

MODULE, EXPORT = "task_data.py", "TaskData"

ROUTE = "/rows/check"
"""No tool can have this name."""

NOT_OF_TASK = frozenset(
    {"responses_create_params", "agent_ref", "task_source", "_ng_task_index", "_ng_rollout_index"}
)
"""Keys of a row that every row may have."""

METADATA, CONTAINER, INPUT = "verifier_metadata", "task_data", "task_input"

MAX_PROBLEMS, MAX_TEXT = 3, 300
"""Most problems that are named of one row, and characters of one."""

Problem = tuple[str, str]
"""A field, and what is wrong with it."""


class Schema:
    """The schema of one folder. Its module is imported for the first rows."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._adapter: Any = None
        self._in_metadata: frozenset[str] = frozenset()
        """Fields that the server reads from `verifier_metadata` alone."""

    def check(self, rows: list[Any]) -> dict[str, Any]:
        """`problems`: place of a row, field and reason of each. `unknown`: fields that the schema
        does not declare, with their number of rows. `error`: why the schema cannot be used."""
        try:
            if self._adapter is None:
                self._load()
        except Exception as error:
            text = f"{type(error).__name__}: {error}"[:MAX_TEXT]
            return {"problems": [], "unknown": {}, "error": f"{self._folder / MODULE}: {text}"}
        unknown: Counter[str] = Counter()
        problems: list[tuple[int, str, str]] = []
        for place, row in enumerate(rows):
            if isinstance(row, dict):
                found = list(self._find_problems(row, unknown))[:MAX_PROBLEMS]
                problems += [(place, field, reason[:MAX_TEXT]) for field, reason in found]
        return {"problems": problems, "unknown": unknown}

    def _load(self) -> None:
        from pydantic import TypeAdapter

        name = f"task_data_of_{self._folder.name}"
        spec = importlib.util.spec_from_file_location(name, self._folder / MODULE)
        assert spec is not None and spec.loader is not None, "a .py file always has a loader"
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # pydantic looks its annotations up there
        spec.loader.exec_module(module)
        if (schema := getattr(module, EXPORT, None)) is None:
            raise ValueError(f"it exports no {EXPORT}")
        self._in_metadata = frozenset(_find_fields_in_metadata(schema))
        self._adapter = TypeAdapter(schema)

    def _find_problems(self, row: dict[str, Any], unknown: "Counter[str]") -> Iterator[Problem]:
        fields, is_final = row, CONTAINER in row
        if isinstance(row.get("task_id"), Mapping) and INPUT in row:
            fields = row[INPUT]
            for field, given in ((INPUT, fields), (f"{INPUT}.{CONTAINER}", _container_of(fields))):
                if not isinstance(given, dict):
                    yield field, f"must be an object, not {type(given).__name__}"
                    return
            is_final = CONTAINER in fields
        if not is_final:
            nested = fields.get(METADATA)
            nested = nested if isinstance(nested, dict) else {}
            for field in sorted((fields.keys() & self._in_metadata) - nested.keys()):
                yield field, f"the server reads it from {METADATA}: move it there"
        flat = {key: value for key, value in fields.items() if key not in NOT_OF_TASK}
        for name in (METADATA, CONTAINER):
            inner = flat.pop(name, None)
            if not isinstance(inner, dict):
                flat |= {} if inner is None else {name: inner}
                continue
            for key, value in inner.items():
                if flat.setdefault(key, value) != value:
                    yield key, f"has two values, one of them in {name}"
        yield from self._validate(flat, unknown)

    def _validate(self, flat: dict[str, Any], unknown: "Counter[str]") -> Iterator[Problem]:
        from pydantic import ValidationError

        try:
            found = self._adapter.validate_python(flat)
        except ValidationError as error:
            for each in error.errors(include_url=False, include_input=False):
                yield ".".join(map(str, each["loc"])), each["msg"]
        except Exception as error:  # of a validator of the schema
            yield "", f"{type(error).__name__}: {error}"
        else:
            unknown.update((getattr(found, "__pydantic_extra__", None) or {}).keys())


def _container_of(fields: Any) -> Any:
    return fields.get(CONTAINER, {}) if isinstance(fields, dict) else {}


def _find_fields_in_metadata(schema: Any) -> Iterator[str]:
    for name, info in getattr(schema, "model_fields", {}).items():
        more = info.json_schema_extra
        if isinstance(more, dict) and more.get("legacy_location") == METADATA:
            yield name
    for each in get_args(schema):  # the members of a union
        yield from _find_fields_in_metadata(each)


class RowRoute:
    """The app of a server, and in front of it the route that checks rows."""

    def __init__(self, app: Any, schema: Schema) -> None:
        self._app, self._schema = app, schema

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope.get("path") != ROUTE:
            await self._app(scope, receive, send)
            return
        raw, more = [], True
        while more:
            message = await receive()
            raw.append(message.get("body", b""))
            more = message.get("more_body", False)
        reply = json.dumps(self._schema.check(json.loads(b"".join(raw))["rows"])).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(reply))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": reply})


def main() -> None:
    """Check the rows of each line of standard input, and answer with a line."""
    folder, root = sys.argv[1:]
    sys.path[:0] = [folder, root]
    schema, output = Schema(folder), sys.stdout
    sys.stdout = sys.stderr  # what the module prints is no reply
    for line in sys.stdin.buffer:
        output.write(json.dumps(schema.check(json.loads(line)["rows"])) + "\n")
        output.flush()


if __name__ == "__main__":
    main()
