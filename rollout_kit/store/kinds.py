"""What a line of an output is.

This is the one place that decides which line is a rollout, which one a newer version or another
program wrote, and which one is damaged. `HeadReader` decides it without parsing the whole line.
"""

import json
import re
import sys
from collections.abc import Hashable, Iterable, Mapping
from itertools import repeat
from math import nan
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import orjson

from ..errors import OutputError
from ..reading import parse_line
from ..responses import has_more_brackets
from ..types import LARGEST, JsonObject, Key, is_countable
from .compact import INDEXES, is_index
from .head import BLOCK_FIELDS, NUMBERS, USAGE, Field
from .head import TEXTS as BLOCK_TEXTS

MARK = ("kind", "schema")
"""Fields that say what a line is, and in which version of this layout it is written."""

SCHEMA = 1

Kind = Literal[
    "rollout",
    "unverified",
    "failure",
    "malformed",
    "turn",
    "group",
    "label",
    "scan",
    "token_scores",
    "ack",
    "run",
]
"""What this version writes into an output and the files beside it."""

KINDS = frozenset(get_args(Kind))

FOREIGN = "foreign"
"""What `kind_of` says of a line of a kind that this program does not write."""

NEWER = "newer"
"""What `kind_of` says of a line that a newer version wrote."""

UNREADABLE = "unreadable"
"""A line that is not a JSON object: without a newline, a last line that is torn."""

OF_KEY = frozenset({"rollout", "unverified", "failure"})
"""Kinds of lines that have a head."""

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
        return _known(kind, schema)
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


A_NUMBER = frozenset({int, float, bool})
"""Types of JSON numbers as Python reads them; JSON numbers are finite."""

A_NUMBER_OR_NULL = A_NUMBER | {type(None)}


def key_of(line: Mapping[str, Any]) -> Key | None:
    """The key of a line; None if the line has no sound identity, usage and numbers."""
    block, agent = line.get("rollout"), line.get("agent_ref")
    if not isinstance(block, dict) or not isinstance(agent, dict):
        return None
    task_id, name = block.get("task_id"), agent.get("name")
    scope, index = block.get("scope", ""), block.get("rollout_index")
    if not (isinstance(task_id, str) and isinstance(name, str)):
        return None
    if not (isinstance(scope, str) and is_index(index)):
        return None
    usage = line.get("usage") or {}
    sound = (
        is_reward(line.get("reward"))
        and isinstance(usage, dict)
        and is_index(line.get("_ng_task_index", 0))
        and isinstance(block.get("scores", []), list)
        and _all_are(A_NUMBER_OR_NULL, usage, USAGE)
        and _all_are(A_NUMBER, block, NUMBERS)
    )
    return Key(task_id, name, scope, index) if sound else None


def is_reward(value: Any) -> bool:
    """Whether a line may have it as its reward: null, like none at all, says that it has none."""
    return value is None or is_countable(value)


def _all_are(kinds: frozenset[type], values: Mapping[str, Any], names: Iterable[str]) -> bool:
    """Whether those of the names that are present have values of these types."""
    return kinds.issuperset(map(type, map(values.get, names, repeat(0))))


DEEPEST = 1_000
"""Levels of JSON that every reader of a line takes."""

SKIPS_DEPTH = sys.version_info >= (3, 12)
"""Whether the decoder takes any number of levels in fields that it skips."""


class LineHead(NamedTuple):
    """The key of a line, and the fingerprints of the settings and the verifier that made it."""

    key: Key
    settings: str
    verifier: str


def parse_head(line: Mapping[str, Any]) -> LineHead | None:
    """None if `key_of` finds no key."""
    if (key := key_of(line)) is None:
        return None
    block = line["rollout"]
    settings, verifier = block.get("settings", ""), block.get("verifier", "")
    return LineHead(key, str(settings), verifier if isinstance(verifier, str) else "")


class Judged(NamedTuple):
    """What a line is. `kind` is one of KINDS, FOREIGN, NEWER or UNREADABLE; rollouts, responses
    without a verdict and failures have a sound `head`; without one, a line is FOREIGN.

    `fields`: the typed fields of the line; None if it had to be parsed as a whole, to `row`.
    """

    kind: str
    head: LineHead | None
    fields: Any = None
    row: JsonObject | None = None


def judge_parsed(raw: bytes, default: str = "rollout") -> Judged:
    """Judge a line by parsing it. `default`: what a line is that does not say it: rollout,
    unverified or failure."""
    if (row := parse_line(raw)) is None:
        return Judged(UNREADABLE, None)
    kind, head = kind_of(row, default), parse_head(row)
    if head is None and kind in OF_KEY:
        kind = FOREIGN
    return Judged(kind, head, None, row)


class HeadReader:
    """Judges lines like `judge_parsed`, in a third of its time: msgspec checks the whole line and
    builds the fields of its head only. To make a reader takes as long as to judge thirty lines.

    With `max_scores`, all fields are read, and the first ones that verifiers set, as the
    `attributes` of the typed fields.
    """

    def __init__(self, default: str = "rollout", max_scores: int = 0) -> None:
        self.attributes: dict[str, str] = {}
        """Name of a field that a verifier set → its attribute of the typed fields."""
        self._default, self._max_scores = default, max_scores
        self.learn(())

    def judge(self, raw: bytes) -> Judged:
        """What a line is. One with values of unusual types is parsed, such as null for a number."""
        try:
            _check_skipped(raw)
            fields = self._decode(raw)
            if self._max_scores and self._lacks(fields.rollout.scores):
                self.learn(fields.rollout.scores)
                fields = self._decode(raw)
        except (ValueError, RecursionError):
            return judge_parsed(raw, self._default)
        if fields.kind is not None and fields.schema is not None:
            kind = _known(fields.kind, fields.schema)
        elif fields.failure is None:
            kind = self._default
        else:
            kind = kind_of(orjson.loads(raw), self._default)
        block = fields.rollout
        key = Key(block.task_id, fields.agent_ref.name, block.scope, block.rollout_index)
        return Judged(kind, LineHead(key, block.settings, block.verifier), fields)

    def convert(self, row: JsonObject) -> Any:
        """The typed fields of a line that was parsed as a whole, without the values of unusual
        types; ValueError if a field has to be of its type."""
        from msgspec import convert

        if self._lacks(names := score_names(row["rollout"])):
            self.learn(names)
        return convert(_slim(row, self.attributes), self._type)

    def _lacks(self, names: Iterable[str]) -> bool:
        """Whether one of the fields is not read, though there is room for it."""
        num_read = len(self.attributes)
        return num_read < self._max_scores and not self.attributes.keys() >= set(names)

    def learn(self, names: Iterable[str]) -> None:
        """Read these fields too."""
        from msgspec import json

        for name in names:
            self.attributes.setdefault(name, f"score_{len(self.attributes)}")
        self._type = _line_type(self.attributes, is_whole=self._max_scores > 0)
        self._decode = json.Decoder(self._type).decode


def _known(kind: str, schema: int) -> str:
    """The kind that a line of a schema says, as far as this version knows it."""
    if schema > SCHEMA:
        return NEWER
    return kind if kind in KINDS else FOREIGN


def _check_skipped(raw: bytes) -> None:
    """ValueError if a line cannot be read as a whole. The decoder of some fields skips the others,
    and checks neither their encoding nor, from Python 3.12 on, their depth."""
    if not raw.isascii():
        raw.decode()
    if SKIPS_DEPTH and has_more_brackets(raw, DEEPEST):
        orjson.loads(raw)


def _make_bounded_types() -> tuple[Any, Any]:
    """The types of a reward and of an index in a line, for the decoder."""
    from msgspec import Meta

    reward = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
    return reward, Annotated[int, Meta(ge=INDEXES.start, le=INDEXES.stop - 1)]


NOT_OURS, REPEATED = "lines that no collection wrote", "rollouts with the key of an earlier one"
OF_NEWER = "lines that a newer version of rollout_kit wrote: use that version to read them"
NO_NUMBER = "lines whose reward is NaN, null, text or too large"
TORN, OPEN = "a last line that is cut off", "a last line without a newline"
"""Why a line does not count, as it is said to people."""


def why_left_out(raw: bytes) -> str:
    """Why a line that is no rollout, response without a verdict or failure is none."""
    try:
        line = json.loads(raw)  # which reads NaN and Infinity, as Python writes them
    except (ValueError, RecursionError):
        return NOT_OURS if raw.endswith(b"\n") else TORN
    if isinstance(line, dict) and kind_of(line, "") == NEWER:
        return OF_NEWER
    if not isinstance(line, dict) or is_reward(line.get("reward")):
        return NOT_OURS
    return NOT_OURS if key_of({**line, "reward": 0}) is None else NO_NUMBER


def why_unreadable(raw: bytes) -> str:
    """Why a line is no JSON object."""
    try:
        return f"not a JSON object but {type(orjson.loads(raw)).__name__}"
    except orjson.JSONDecodeError as error:
        return f"not JSON: {error}"


def score_names(block: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the fields that the verifier set, by the `rollout` block of a line."""
    return tuple([name for name in block.get("scores", ()) if isinstance(name, str)])


TAKEN = frozenset({"agent_ref", "rollout", "usage", "reward", "kind", "schema", "failure"}) | {
    "cost_usd",
    "_ng_task_index",
}
"""Fields of a line that are no scores, whatever its verifier calls them."""


OF_HEAD = frozenset({"settings", "verifier", *NUMBERS})
"""Fields of the `rollout` block that `LineHead` has, and those that a sound line needs."""


def _line_type(attributes: Mapping[str, str], *, is_whole: bool) -> Any:
    """The part of a line that has columns, or is in its head, as a type for the decoder."""
    from msgspec import defstruct

    reward, index = _make_bounded_types()
    name = defstruct("Name", [("name", str)], gc=False)
    usage = defstruct("Usage", [(each, float | None, None) for each in USAGE], gc=False)
    error = defstruct("Error", [("reason", str | None, None)], rename={"reason": "class"})
    block = defstruct(
        "Block",
        [
            ("task_id", str),
            ("rollout_index", index),
            ("scope", str, ""),
            *(
                (each.name, *_choose_type(each))
                for each in BLOCK_FIELDS
                if is_whole or each.name in OF_HEAD
            ),
            ("scores", list[str], []),
        ],
        gc=False,
    )
    fields = [
        ("agent_ref", name),
        ("rollout", block),
        ("usage", usage | None, None),
        ("reward", reward | None, nan),
        ("task_index", index, 0),
        ("kind", str | None, None),
        ("schema", int | None, None),
        ("failure", error | None, None),
        ("cost_usd", float | None, None),
    ]
    scores = {attribute: each for each, attribute in attributes.items() if each not in TAKEN}
    fields += [(each, Any, None) for each in scores]
    line = defstruct("Line", fields, rename={"task_index": "_ng_task_index", **scores}, gc=False)
    for each in set(attributes.values()) - set(scores):  # a score with the name of a usual field
        setattr(line, each, None)
    return line


def _choose_type(field: Field) -> tuple[Any, Any]:
    """The type of a field for the decoder, and its default."""
    if field.is_number:
        return float, nan if field.default is None else float(field.default)
    if str in field.types and int not in field.types:
        return (str, "") if field.default == "" else (str | None, None)
    return Any, None


def _slim(line: JsonObject, names: Iterable[str]) -> JsonObject:
    """The fields of a line that are read, without the values of unusual types."""
    block, failure = line["rollout"], line.get("failure")
    texts = {
        each: block[each] for each in ("scope", *BLOCK_TEXTS) if isinstance(block.get(each), str)
    }
    numbers = {each: block[each] for each in NUMBERS if each in block}
    reason = failure.get("class") if isinstance(failure, dict) else None
    slim = {
        **{each: line[each] for each in names if each in line and each not in TAKEN},
        "agent_ref": line["agent_ref"],
        "rollout": {
            **{each: block[each] for each in ("task_id", "rollout_index")},
            **texts,
            **numbers,
            "scores": list(score_names(block)),
        },
        "usage": line.get("usage") or None,
        "reward": nan if (reward := line.get("reward")) is None else float(reward),  # or a boolean
        "_ng_task_index": line.get("_ng_task_index", 0),
    }
    if type(line.get("schema")) is int and isinstance(line.get("kind"), str):
        slim |= {"kind": line["kind"], "schema": line["schema"]}
    if isinstance(failure, dict):
        slim["failure"] = {"class": reason if isinstance(reason, str) else None}
    return slim


def mark_of(raw: bytes) -> Hashable:
    """What a line is about: the key of a rollout or the place of a malformed line, else None."""
    row = parse_line(raw) or {}
    key = key_of(row)
    return (str(row.get("input")), str(row["line"])) if key is None and "line" in row else key
