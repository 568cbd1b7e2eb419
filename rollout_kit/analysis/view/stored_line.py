"""A stored line as the page reads it: its head, its items by number, and its turns.

A line of many megabytes is never in memory as a whole once it is known where its items stand. That
and its turns are kept in the user's cache folder, so that the next viewer opens it at once.
"""

import os
from collections.abc import Iterator
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
from ..scan.ready import READY_VERSION
from .outline import describe_steps
from .places import find_places

MAX_WHOLE = 2 << 20
"""Bytes of a line that is read as a whole."""

KEPT_FROM = 16 << 20
"""Bytes of a line whose places are kept on disk: finding those of a shorter one takes little."""

FORMAT = "1"
"""Grows when what is kept has another form, or a turn is described in another way."""


class WholeLine:
    """A line that is in memory: `head` is all of it."""

    is_long = False

    def __init__(self, head: JsonObject) -> None:
        self.head = head

    def items(self, begin: int, end: int) -> list[Any]:
        """Items of the output."""
        return self._output[begin:end]

    def join(self) -> JsonObject:
        """The whole line."""
        return self.head

    @cached_property
    def described(self) -> JsonObject:
        """What `describe_steps` says of it."""
        return describe_steps(self.head)

    @property
    def _output(self) -> list[Any]:
        response = self.head.get("response")
        output = response.get("output") if isinstance(response, dict) else None
        return output if isinstance(output, list) else []


class StoredPlace(NamedTuple):
    """Where a line stands in its file, and its CRC-32."""

    path: Path
    offset: int
    check: int


class LongLine:
    """A line of which only the head, without the items of its output, and the turns are in memory.
    `places` has, of each item, its beginning and its end in the line, and its CRC-32."""

    is_long = True

    def __init__(
        self,
        place: StoredPlace,
        head: JsonObject,
        places: list[list[int]],
        kept_at: Path | None = None,
        described: JsonObject | None = None,
    ) -> None:
        self.head = head
        self._place, self._places, self._kept_at = place, places, kept_at
        self._described = described

    def items(self, begin: int, end: int) -> list[Any]:
        """Items of the output, from the file; LineChanged if it was edited."""
        return list(self._read(begin, end))

    def join(self) -> JsonObject:
        """The whole line, which takes as much memory as it has bytes."""
        output = self.items(0, len(self._places))
        return {**self.head, "response": {**self.head["response"], "output": output}}

    @cached_property
    def described(self) -> JsonObject:
        """What `describe_steps` says of it."""
        found = self._described or describe_steps(self.join())
        if self._described is None and self._kept_at is not None:
            with suppress(OSError, OutputError):
                self._kept_at.parent.mkdir(parents=True, exist_ok=True)
                known = {"head": self.head, "places": self._places, "described": found}
                write_atomically(self._kept_at, orjson.dumps(known), is_forced=False)
        return found

    def _read(self, begin: int, end: int) -> Iterator[Any]:
        path, offset, _ = self._place
        with suppress(OSError), path.open("rb") as stream:
            for first, behind, check in self._places[begin:end]:
                raw = os.pread(stream.fileno(), behind - first, offset + first)
                if crc32(raw) != check:
                    break
                yield _parse_item(raw)
            else:
                return
        raise LineChanged(f"{path} was edited")


StoredLine = WholeLine | LongLine


def read_line(index: Index, row: int) -> StoredLine:
    """A line of an index; LineChanged if the file was edited."""
    columns = index.columns
    size, place = (
        columns.lengths[row],
        StoredPlace(index.path, columns.offsets[row], columns.checks[row]),
    )
    if size <= MAX_WHOLE:
        return WholeLine(parse_for_people(index.line(row)))
    kept_at = _kept_at(place) if size >= KEPT_FROM else None
    if kept_at is not None and (known := _read_kept(kept_at)) is not None:
        return LongLine(place, **known)
    raw = index.line(row)
    if (found := find_places(raw)) is None:
        return WholeLine(parse_for_people(raw))
    head = parse_for_people(raw[: found[0].begin] + raw[found[-1].end :])
    view = memoryview(raw)
    places = [[*span, crc32(view[span.begin : span.end])] for span in found]
    return LongLine(place, head, places, kept_at)


def _kept_at(place: StoredPlace) -> Path | None:
    if (index := cache_path(place.path)) is None:
        return None
    version = f"{FORMAT}-{READY_VERSION}"
    return index.with_suffix(".lines") / f"{place.offset}-{place.check:08x}-{version}.json"


def _read_kept(path: Path) -> JsonObject | None:
    with suppress(OSError, orjson.JSONDecodeError):
        return orjson.loads(path.read_bytes())
    return None


def parse_for_people(raw: bytes) -> Any:
    """A line for people: without what only an endpoint can read."""
    line = orjson.loads(raw)
    if not has_provider_data(raw):
        return line
    response, params = line.get("response"), line.get("responses_create_params")
    if isinstance(response, dict):
        line["response"] = without_provider_data(response)
    if isinstance(params, dict):
        line["responses_create_params"] = without_provider_data(params, "input")
    return line


def _parse_item(raw: bytes) -> Any:
    item = orjson.loads(raw)
    if not has_provider_data(raw):
        return item
    return without_provider_data({"output": [item]})["output"][0]
