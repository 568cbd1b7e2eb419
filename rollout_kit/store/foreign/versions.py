"""What a line says it is: its kind, and the version of the layout that it is written in.

Lines of earlier versions do not say it. A line of a later version is never read as one of this
version: commands that write to its output refuse it, and readers of rollouts leave it out and say
so.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from ...errors import OutputError
from ...types import JsonObject

MARK = ("kind", "schema")
"""Fields that say what a line is, and in which version of this layout it is written."""

SCHEMA = 1

Kind = Literal[
    "rollout", "unverified", "failure", "malformed", "turn", "group", "label", "ack", "run"
]
"""What this version writes into an output and the files beside it."""

KINDS = frozenset(get_args(Kind))

FOREIGN = "foreign"
"""What `kind_of` says of a line of a kind that this program does not write."""

NEWER = "newer"
"""What `kind_of` says of a line that a newer version wrote."""

PRESENT = re.compile(rb'\{"kind":"[a-z]+","schema":%d[,}]' % SCHEMA)
"""The start of a line as this version writes it."""


def mark(kind: Kind) -> JsonObject:
    """The fields with which every line starts."""
    return {"kind": kind, "schema": SCHEMA}


def kind_of(line: Mapping[str, Any], default: str) -> str:
    """One of KINDS, FOREIGN or NEWER. Lines of earlier versions do not say what they are: those
    with a failure are known by their fields, and the others are what their file is meant to hold,
    the `default`."""
    schema, kind = line.get("schema"), line.get("kind")
    if type(schema) is int and isinstance(kind, str):
        if schema > SCHEMA:
            return NEWER
        return kind if kind in KINDS else FOREIGN
    if not isinstance(line.get("failure"), dict):
        return default
    if "rollout" not in line:
        return "malformed"
    return "failure" if "repro" in line or default == "failure" else "unverified"


def mark_as(kind: Kind, line: Mapping[str, Any]) -> JsonObject:
    """The line as one of this kind. In a line of an earlier version, fields of the names in MARK
    are the row's own."""
    if type(line.get("schema")) is int and isinstance(line.get("kind"), str):
        return {**line, "kind": kind}
    own = {name: line[name] for name in MARK if name in line}
    marked = {**mark(kind), **line, **mark(kind)}
    if own:
        marked["task_fields"] = {**line.get("task_fields", {}), **own}
    return marked


def refuse_newer(
    path: Path | str, number: int, line: Mapping[str, Any], *, is_output: bool = True
) -> OutputError:
    """The error about a line that a newer version wrote. `is_output`: whether the command would
    write to its output, and not only read it."""
    remedy = "Use that version"
    if is_output:
        remedy = "Nothing was sent. Use that version, or choose another output_jsonl_fpath"
    return OutputError(
        f"{path}:{number}: this line has schema {line['schema']}, and this version of rollout_kit"
        f" reads schemas up to {SCHEMA}: a newer version wrote it. {remedy}"
    )
