"""A spool in a bucket: `s3://bucket/path/000000000017`, one object for each write.

The objects are numbered, and none is ever written twice. So a write is there or not, and two
processes cannot both write the next one: the one that opened the spool last continues, and the
other gets an error at its next write. All objects before the newest whole state are superfluous.
"""

import secrets
from collections.abc import Iterator
from typing import Any

from ...errors import ConfigError, OutputError
from ...reading import parse_line
from ..bucket import BucketError, S3Bucket
from .shelf import Shelf
from .spool import SPARE_BYTES, apply_change, format_change

MAX_OBJECTS = 1000
"""The whole state is written after so many changes, so that opening reads few objects."""

DIGITS = 12


class BucketSpool:
    """What `Spool` is, without a lock: the process that opened it last may write."""

    def __init__(self, url: str) -> None:
        self._bucket, self._writer = S3Bucket(url), secrets.token_hex(8)
        self._check_create()
        self._shelf: Shelf | None = None
        self._number = self._size = self._live = self._num_changes = 0
        self._is_behind = False
        """Whether a change is not written."""

    def _check_create(self) -> None:
        """ConfigError if this S3 would replace an object that is to be created."""
        name = f"probe-{self._writer}"
        self._bucket.create(name, b"1")
        is_safe = not self._bucket.create(name, b"2")
        self._bucket.remove([name])
        if not is_safe:
            raise ConfigError(
                f"spool={self._bucket.url}: this server ignores If-None-Match, so two processes"
                " could write the spool at once: take a file, or redis://"
            )

    def restore(self, shelf: Shelf) -> None:
        """Put on the shelf what the objects hold, and write every change from now on."""
        while True:
            names = self._list()
            changes = list(self._read(names))
            starts = [place for place, (kind, _) in enumerate(changes) if kind == "shelf"]
            self._number = int(names[-1]) if names else 0
            taken = Shelf(shelf.policy, shelf._clock)
            for kind, values in changes[starts[-1] if starts else 0 :]:
                apply_change(taken, kind, *values)
            taken.begin_again()
            if self._create(self._number + 1, content := format_change("shelf", taken.save())):
                break  # else another process has written meanwhile
        self._number += 1
        state = parse_line(content) or {}
        shelf.restore(*state["shelf"])
        self._shelf = shelf
        self._begin_after(content)

    def append(self, kind: str, *values: Any) -> None:
        if self._shelf is None:
            return
        if self._num_changes >= MAX_OBJECTS or self._size > 2 * self._live + SPARE_BYTES:
            self._write_all()
            return
        self._write(raw := format_change(kind, *values))
        self._size += len(raw)
        self._num_changes += 1

    def catch_up(self) -> None:
        """Write what a failed write lacks; OutputError as long as that is not possible."""
        if self._is_behind:
            self._write_all()

    def _write_all(self) -> None:
        assert self._shelf is not None
        self._write(raw := format_change("shelf", self._shelf.save()))
        self._begin_after(raw)

    def close(self) -> None:
        """Nothing is open."""

    def _write(self, raw: bytes) -> None:
        self._is_behind = True
        try:
            while not self._create(self._number + 1, raw):
                if not self._is_own(self._number + 1):
                    raise OutputError(
                        f"spool={self._bucket.url}: another process has opened this spool: end one"
                        " of them"
                    )
                self._number += 1  # a write of ours whose reply was lost
        except BucketError as error:
            raise OutputError(str(error)) from None
        self._number += 1
        self._is_behind = False

    def _create(self, number: int, raw: bytes) -> bool:
        return self._bucket.create(_name(number), format_change("writer", self._writer) + raw)

    def _is_own(self, number: int) -> bool:
        first = (self._bucket.read(_name(number)) or b"").partition(b"\n")[0]
        return first + b"\n" == format_change("writer", self._writer)

    def _begin_after(self, content: bytes) -> None:
        """The last object is a whole state: remove those before it."""
        self._size = self._live = len(content)
        self._num_changes = 0
        self._bucket.remove(name for name in self._list() if int(name) < self._number)

    def _list(self) -> list[str]:
        return [name for name in self._bucket.list() if len(name) == DIGITS and name.isdecimal()]

    def _read(self, names: list[str]) -> Iterator[tuple[str, list[Any]]]:
        for name in names:
            for line in (self._bucket.read(name) or b"").splitlines():
                for kind, values in (parse_line(line) or {}).items():
                    if kind != "writer":
                        yield kind, values


def _name(number: int) -> str:
    return f"{number:0{DIGITS}}"
