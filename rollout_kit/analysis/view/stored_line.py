"""A stored line as the page reads it: its head, its items by number, and its turns.

A line of many megabytes is never in memory as a whole once it is known where its items stand. That
and its turns are kept in the user's cache folder, so that the next viewer opens it at once. What is
kept there goes when its line has changed, and of many lines the oldest.
"""

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import orjson

from ...errors import OutputError
from ...responses import has_provider_data, without_provider_data
from ...store.files import write_atomically
from ...store.index import Index, LineChanged, cache_path
from ...types import JsonObject
from ..scan.ready import READY_VERSION, Scanned
from .huge_texts import find_text, parse_in_pieces, read_pieces
from .outline import describe_all, describe_findings, describe_steps
from .places import ItemSpan, find_places

OUTPUT = ("response", "output")

MAX_WHOLE = 2 << 20
"""Bytes of a line that is read as a whole."""

KEPT_FROM = 16 << 20
"""Bytes of a line whose places are kept on disk: finding those of a shorter one takes little."""

MAX_KEPT = 50
"""Lines of all files of which that is kept: some megabytes each."""

FORMAT = "2"
"""Grows when what is kept has another form, or a turn is described in another way."""


class WholeLine:
    """A line that is in memory: `head` is all of it."""

    is_long = False
    is_described = True

    def __init__(self, head: JsonObject) -> None:
        self.head = head

    def items(self, begin: int, end: int) -> list[Any]:
        """Items of the output."""
        return self._output[begin:end]

    def join(self) -> JsonObject:
        """The whole line."""
        return self.head

    def text(self, path: Sequence[Any]) -> Iterator[str]:
        """The text at a path, in pieces; LookupError or TypeError if there is none."""
        value: Any = self.head
        for name in path:
            value = value[name]
        if not isinstance(value, str):
            raise TypeError("no text")
        yield value

    @cached_property
    def described(self) -> JsonObject:
        """What `describe_all` says of it."""
        return describe_all(self.head)

    @property
    def steps(self) -> list[JsonObject]:
        """The heads of its turns."""
        return self.described["steps"]

    @property
    def _output(self) -> list[Any]:
        response = self.head.get("response")
        output = response.get("output") if isinstance(response, dict) else None
        return output if isinstance(output, list) else []


class StoredPlace(NamedTuple):
    """Where a line stands in its file, its bytes, and its CRC-32."""

    path: Path
    offset: int
    size: int
    check: int


class LongLine:
    """A line of which only the head, without the items of its output, and the turns are in memory.
    `places` has the beginning, the end and the CRC-32 of each item in the line; the first two of
    them are what stands before and behind the items. Huge texts are CutText."""

    def __init__(
        self,
        place: StoredPlace,
        places: list[list[int]],
        kept_at: Path | None = None,
        described: JsonObject | None = None,
    ) -> None:
        self._place, self._around, self._places = place, places[:2], places[2:]
        self._kept_at, self._described = kept_at, described
        self.is_long = bool(self._places)
        self.head: JsonObject = parse_for_people(self._read_head())

    def items(self, begin: int, end: int) -> list[Any]:
        """Items of the output, from the file; LineChanged if it was edited."""
        return [_parse_item(raw) for raw in self._read(self._places[begin:end])]

    def join(self) -> JsonObject:
        """The whole line, which takes as much memory as it has bytes without the huge texts."""
        if not self._places:
            return self.head
        output = self.items(0, len(self._places))
        return {**self.head, "response": {**self.head["response"], "output": output}}

    def text(self, path: Sequence[Any]) -> Iterator[str]:
        """The text at a path, in pieces; LookupError or TypeError if there is none."""
        if self._places and list(path[:2]) == [*OUTPUT] and len(path) > 2:
            [raw], path = self._read([self._places[path[2]]]), path[3:]
        else:
            raw = self._read_head()
        return read_pieces(find_text(raw, path))

    @property
    def is_described(self) -> bool:
        """Whether `described` takes no time."""
        return self._described is not None

    @cached_property
    def steps(self) -> list[JsonObject]:
        """The heads of its turns, which take less time than all of `described`."""
        return self._described["steps"] if self._described else describe_steps(self._scanned)

    @cached_property
    def described(self) -> JsonObject:
        """What `describe_all` says of it."""
        if self._described is None:
            found = {"steps": self.steps, **describe_findings(self._scanned)}
            del self._scanned
            self._keep(found)
            self._described = found
        return self._described

    @cached_property
    def _scanned(self) -> Scanned:
        return Scanned(self.join())

    def _keep(self, found: JsonObject) -> None:
        """Have the next viewer begin with what was found."""
        if self._kept_at is not None:
            with suppress(OSError, OutputError):
                self._kept_at.parent.mkdir(parents=True, exist_ok=True)
                places = [*self._around, *self._places]
                known = {"places": places, "described": found}
                write_atomically(self._kept_at, orjson.dumps(known), is_forced=False)
                _drop_oldest(self._kept_at.parent.parent)

    def _read_head(self) -> bytes:
        return b"".join(self._read(self._around))

    def _read(self, places: Iterable[list[int]]) -> Iterator[bytes]:
        path, offset, _, _ = self._place
        with suppress(OSError), path.open("rb") as stream:
            for first, behind, check in places:
                raw = os.pread(stream.fileno(), behind - first, offset + first)
                if crc32(raw) != check:
                    break
                yield raw
            else:
                return
        raise LineChanged(f"{path} was edited")


StoredLine = WholeLine | LongLine


def read_line(index: Index, row: int) -> StoredLine:
    """A line of an index; LineChanged if the file was edited."""
    columns = index.columns
    place = StoredPlace(index.path, columns.offsets[row], columns.lengths[row], columns.checks[row])
    if place.size <= MAX_WHOLE:
        return WholeLine(parse_for_people(index.line(row)))
    kept_at = _kept_at(index, place) if place.size >= KEPT_FROM else None
    if kept_at is not None and (known := _read_kept(kept_at)) is not None:
        return LongLine(place, **known, kept_at=kept_at)
    return LongLine(place, _find_all_places(index.line(row)), kept_at)


def _find_all_places(raw: bytes) -> list[list[int]]:
    """Those of what stands before and behind the items, and of the items."""
    found = find_places(raw) or [ItemSpan(len(raw), len(raw))]
    around = [ItemSpan(0, found[0].begin), ItemSpan(found[-1].end, len(raw))]
    view = memoryview(raw)
    spans = [*around, *(span for span in found if span.begin < span.end)]
    return [[*span, crc32(view[span.begin : span.end])] for span in spans]


def _kept_at(index: Index, place: StoredPlace) -> Path | None:
    """Where that of a line is kept. What was kept of lines that the file no longer has goes."""
    if (cached := cache_path(place.path)) is None:
        return None
    folder, columns = cached.with_suffix(".lines"), index.columns
    for path in folder.glob("*.json"):
        offset = int(number) if (number := path.name.partition("-")[0]).isdecimal() else -1
        row = bisect_left(columns.offsets, offset)
        if row == len(columns.offsets) or path.name != _name(offset, columns.checks[row]):
            with suppress(OSError):
                path.unlink()
    return folder / _name(place.offset, place.check)


def _name(offset: int, check: int) -> str:
    return f"{offset}-{check:08x}-{FORMAT}-{READY_VERSION}.json"


def _drop_oldest(folder: Path) -> None:
    """Keep that of MAX_KEPT lines: those that were opened first last go."""
    kept = sorted(folder.glob("*.lines/*.json"), key=_age_of)
    for path in kept[:-MAX_KEPT]:
        with suppress(OSError):
            path.unlink()
            path.parent.rmdir()  # which fails while it has others


def _age_of(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _read_kept(path: Path) -> JsonObject | None:
    with suppress(OSError, orjson.JSONDecodeError):
        return orjson.loads(path.read_bytes())
    return None


def parse_for_people(raw: bytes) -> Any:
    """A line for people: without what only an endpoint can read. Huge texts are CutText."""
    line = parse_in_pieces(raw)
    if not has_provider_data(raw):
        return line
    response, params = line.get("response"), line.get("responses_create_params")
    if isinstance(response, dict):
        line["response"] = without_provider_data(response)
    if isinstance(params, dict):
        line["responses_create_params"] = without_provider_data(params, "input")
    return line


def _parse_item(raw: bytes) -> Any:
    item = parse_in_pieces(raw)
    if not has_provider_data(raw):
        return item
    return without_provider_data({"output": [item]})["output"][0]
