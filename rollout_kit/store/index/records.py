"""Makes the record of a line: parses the fields that have columns, and skips the rest.

It takes a tenth of the time that parsing a whole line takes.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import orjson

from ...types import JsonObject, Key, Rollout
from ..compact import hex_number
from ..contents import check_skipped, make_bounded_types
from ..foreign.versions import NEWER, SCHEMA, kind_of
from ..lines import NUMBERS as BLOCK_NUMBERS
from ..lines import USAGE, key_of
from .columns import LEFT_OUT, NAN, TEXTS, Columns, Score
from .packing import EXACT, OF_PLACE, TAKEN, pack_figures, pack_own, seconds_of

OFFSET, CODES = struct.Struct("<Q"), struct.Struct(f"<{len(TEXTS)}I")
CODE, NUMBER = struct.Struct("<I4x"), struct.Struct("<d")

MAX_SCORES = 200
"""Columns for fields that verifiers set; a file with more keeps the first ones."""

MAX_COMBINED = 10_000

BLOCK_TEXTS = ("scope", "settings", "verifier", "model", "started_at", "finish_reason")

GIVEN = (*TEXTS[:8], "id_text")
"""Columns in the order in which a line's texts are given."""

OF_KEYS = ("agent", "scope", "settings", "verifier")
"""Columns of texts that a run needs to continue."""


class Record(NamedTuple):
    """`content` has the width that the columns have after it was made.

    `is_plain`: the line is a rollout, and `content` tells its key, settings and verifier exactly.
    """

    key: Key
    kind: str
    content: bytes
    settings: str
    verifier: str
    is_plain: bool


class RecordMaker:
    """Makes records, and adds the texts and columns that they need to `columns`."""

    def __init__(self, columns: Columns, default: str) -> None:
        self._columns = columns
        self._default = default
        """What a line is that does not say it: rollout, unverified or failure."""
        self._attributes: dict[str, str] = {}
        """Name of a field that the verifier set → its attribute of the parsed line."""
        self._learn([score.name for score in columns.scores])
        self._codes: dict[tuple[str | None, ...], tuple[bytes, bool]] = {}
        """The codes of texts that stand together in many lines, and whether all are kept."""
        self._forms: set[tuple[Any, ...]] = set()
        """Names of fields that verifiers set, with the types of their values: those that have their
        columns."""

    def make(self, offset: int, raw: bytes, check: int | None = None) -> Record | None:
        """The record of a line; None if it is no rollout or failure that a collection wrote.
        `check` is the CRC-32 of the line, if that is known."""
        try:
            line, is_usual = self._parse(raw)
            if line is None or (kind := self._kind(line, raw)) is None:
                return None
        except (ValueError, RecursionError):
            return None
        block, usage, error = line.rollout, line.usage, line.failure
        held, settings, verifier = self._attributes, block.settings, block.verifier
        names = tuple(name for name in block.scores if name in held)
        self._learn_form(names, tuple(getattr(line, held[name]) for name in names))
        key = Key(block.task_id, line.agent_ref.name, block.scope, block.rollout_index)
        failed = error.reason if error else None
        texts = (kind, key.agent, key.scope, block.model, settings, verifier)
        texts += (block.finish_reason, failed)
        used = (
            (usage.input_tokens or 0, usage.output_tokens or 0, usage.total_tokens or 0)
            if usage
            else (0, 0, 0)
        )
        reward = line.reward if kind == "rollout" else NAN
        cost_usd = block.cost_usd if line.cost_usd is None else line.cost_usd
        numbers = (line.task_index, key.rollout_index, block.attempt)
        numbers += (block.num_turns, block.num_tool_calls, *used, block.duration_s, block.model_s)
        numbers += (block.tool_s, block.verify_s, reward, cost_usd, seconds_of(block.started_at))
        if (number := hex_number(key.task_id)) is None:
            texts = (*texts, key.task_id)
        check = crc32(raw) if check is None else check
        figures = pack_figures(len(raw), check, number, numbers)
        scores = {each.name: getattr(line, held[each.name]) for each in self._columns.scores}
        content, is_whole = self._complete(offset, figures, texts, scores.get)
        is_plain = is_usual and kind == "rollout"
        is_plain = is_plain and (line.kind is None) == (line.schema is None)
        is_plain = is_plain and is_whole and number is not None and 0 <= key.rollout_index < EXACT
        return Record(key, kind, content, settings, verifier, is_plain)

    def make_own(self, offset: int, raw: bytes, rollout: Rollout) -> tuple[bytes, bool] | None:
        """The content of the record of a line that this process has at hand, and whether the record
        is plain. The line is not parsed if that can be avoided."""
        if not (figures := rollout.figures or pack_own(raw, rollout)):
            return self._make_plainly(offset, raw)
        get, info = rollout.head.get, rollout.info
        names, (_, agent, scope, _) = info.scores, info.key
        try:
            values = [get(name) for name in names]
            if (names, *map(type, values)) not in self._forms:
                self._learn_form(names, values)
            finish = rollout.head["rollout"].get("finish_reason")
            texts = ("rollout", agent, scope, info.model, info.settings, info.verifier)
            return self._complete(offset, figures, (*texts, finish, None), get)
        except TypeError:  # of another form in JSON
            return self._make_plainly(offset, raw)

    def _make_plainly(self, offset: int, raw: bytes) -> tuple[bytes, bool] | None:
        record = self.make(offset, raw)
        return record and (record.content, record.is_plain)

    def _parse(self, raw: bytes) -> tuple[Any, bool]:
        """The fields of a line, and whether they are of the usual types; ValueError if it is no
        line of a collection."""
        is_usual = True
        try:
            check_skipped(raw)
            line = self._decode(raw)
        except (ValueError, RecursionError):  # an unusual line: null for a number, say
            if (slim := _slim(raw, self._attributes)) is None:
                return None, False
            line, is_usual = self._convert(slim), False
        if len(self._attributes) < MAX_SCORES:
            names = line.rollout.scores
            if not self._attributes.keys() >= set(names):
                self._learn(names)
                return self._parse(raw)
        return line, is_usual

    def _kind(self, line: Any, raw: bytes) -> str | None:
        if line.kind is not None and line.schema is not None:
            kind = line.kind if line.schema <= SCHEMA else NEWER
        elif line.failure is None:
            kind = self._default
        else:
            kind = kind_of(orjson.loads(raw), self._default)
        return kind if kind in ("rollout", "unverified", "failure") else None

    def _complete(
        self,
        offset: int,
        figures: bytes,
        texts: tuple[str | None, ...],
        score_of: Callable[[str], Any],
    ) -> tuple[bytes, bool]:
        """The record of a line; and whether it tells the settings, the verifier, and what of the
        key is a text."""
        codes, is_whole = self._codes.get(texts) or self._code(texts)
        content = OFFSET.pack(offset) + figures[:OF_PLACE] + codes + figures[OF_PLACE:]
        for name, is_text in self._columns.scores:
            value = score_of(name)
            if is_text:
                text = LEFT_OUT if isinstance(value, (list, dict)) else value
                text = text if isinstance(text, str) else None
                content += CODE.pack(self._columns.texts[name].code_of(text))
            else:
                is_number = isinstance(value, (int, float)) and value - value == 0
                content += NUMBER.pack(value if is_number else NAN)
        return content, is_whole

    def _code(self, texts: tuple[str | None, ...]) -> tuple[bytes, bool]:
        """The packed codes of TEXTS, and whether none was left out that tells a key."""
        columns = self._columns.texts
        given: dict[str, str | None] = dict(zip(GIVEN, texts, strict=False))
        codes = [columns[name].code_of(given.get(name)) for name in TEXTS]
        kept = {name: columns[name].names[code] for name, code in zip(TEXTS, codes, strict=True)}
        is_whole = all(kept[name] == given.get(name) for name in OF_KEYS)
        found = CODES.pack(*codes), is_whole
        if len(self._codes) < MAX_COMBINED:
            self._codes[texts] = found
        return found

    def _learn_form(self, names: tuple[str, ...], values: Sequence[Any]) -> None:
        """Add the columns that the verifier's fields need, if their form is new."""
        if (form := (names, *map(type, values))) in self._forms:
            return
        if len(self._forms) < MAX_COMBINED:
            self._forms.add(form)
        columns = self._columns
        for name, value in zip(names, values, strict=True):
            if isinstance(value, (str, list, dict)):
                held: Mapping[str, Any] = columns.texts
            elif isinstance(value, (int, float)):
                held = columns.numbers
                if not isinstance(value, bool):
                    columns.flags.discard(name)
            else:
                continue
            if name not in held and len(columns.scores) < MAX_SCORES:
                columns.add_score(Score(name, held is columns.texts))
                self._learn([name])
                if isinstance(value, bool):
                    columns.flags.add(name)

    def _learn(self, names: Sequence[str]) -> None:
        """Have the decoder read these fields too."""
        from msgspec import convert, json  # only an index needs it

        if self._attributes.keys() >= set(names) and self._attributes:
            return
        for name in names:
            self._attributes.setdefault(name, f"score_{len(self._attributes)}")
        line = _line_type(self._attributes)
        self._decode = json.Decoder(line).decode
        self._convert = lambda slim: convert(slim, line)


def _line_type(attributes: Mapping[str, str]) -> Any:
    """The part of a line that has columns, as a type for the decoder."""
    from msgspec import defstruct

    reward, index = make_bounded_types()
    name = defstruct("Name", [("name", str)], gc=False)
    usage = defstruct("Usage", [(each, float | None, None) for each in USAGE], gc=False)
    error = defstruct("Error", [("reason", str | None, None)], rename={"reason": "class"})
    block = defstruct(
        "Block",
        [
            ("task_id", str),
            ("rollout_index", index),
            *((each, str, "") for each in BLOCK_TEXTS[:-1]),
            ("finish_reason", str | None, None),
            ("attempt", float, 1.0),
            *((each, float, NAN) for each in BLOCK_NUMBERS),
            ("scores", list[str], []),
        ],
        gc=False,
    )
    fields = [
        ("agent_ref", name),
        ("rollout", block),
        ("usage", usage | None, None),
        ("reward", reward, NAN),
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


def _slim(raw: bytes, names: Mapping[str, str]) -> JsonObject | None:
    """The fields of an unusual line that have columns, without the values of unusual types."""
    try:
        line = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(line, dict) or key_of(line) is None:
        return None
    block, failure = line["rollout"], line.get("failure")
    texts = {each: block[each] for each in BLOCK_TEXTS if isinstance(block.get(each), str)}
    numbers = {each: block[each] for each in BLOCK_NUMBERS if each in block}
    scores = [each for each in block.get("scores", ()) if isinstance(each, str)]
    reason = failure.get("class") if isinstance(failure, dict) else None
    slim = {
        **{each: line[each] for each in names if each in line and each not in TAKEN},
        "agent_ref": line["agent_ref"],
        "rollout": {
            **{each: block[each] for each in ("task_id", "rollout_index")},
            **texts,
            **numbers,
            "scores": scores,
        },
        "usage": line.get("usage") or None,
        "reward": float(line.get("reward", NAN)),  # which may be true or false
        "_ng_task_index": line.get("_ng_task_index", 0),
    }
    if type(line.get("schema")) is int and isinstance(line.get("kind"), str):
        slim |= {"kind": line["kind"], "schema": line["schema"]}
    if isinstance(failure, dict):
        slim["failure"] = {"class": reason if isinstance(reason, str) else None}
    return slim
