"""Rows that workers write themselves: files in the folder `<stem>.d/shards` beside the output.

With `rows=shards` a worker appends the line of a rollout to a file of its own, on a disk that all
nodes share, and tells the driver the head and the place. At the end of the run the lines go into
the output. A run that was killed leaves them in the folder, and the next one takes them over.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import OutputError, number_of
from ..types import Key, LineAt
from .files import OutputPaths
from .held import HeldFile
from .lines import key_of
from .scan import check_schema, parse_line, read_lines, read_rows


class ShardFile:
    """The file of one worker."""

    def __init__(self, folder: Path, worker: str) -> None:
        self._path = folder / f"{worker}.jsonl"
        self._open()

    def _open(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab", buffering=0)
        except OSError as error:
            raise OutputError(
                f"rows=shards: a worker cannot write {self._path}: {error.strerror}; put the output"
                " on a disk that all nodes share"
            ) from None
        self._size = os.fstat(self._file.fileno()).st_size

    def append(self, raw: bytes) -> LineAt:
        """Write a line; OutputError if there is no room for it."""
        if not os.fstat(self._file.fileno()).st_nlink:  # a run has ended, and another has begun
            self.close()
            self._open()
        try:
            written = self._file.write(raw)
            if written != len(raw):
                self._file.truncate(self._size)
                raise OSError(0, "no room for the whole line")
        except OSError as error:
            raise OutputError(f"cannot write {self._path}: {error.strerror}") from None
        self._size += len(raw)
        return LineAt(str(self._path), self._size - len(raw), len(raw))

    def close(self) -> None:
        self._file.close()


def take_over(paths: OutputPaths, main: HeldFile) -> Iterator[str]:
    """Add the lines that a killed run left in its shards, each key once; says how many. OutputError
    if a newer version wrote a line there or in the main file."""
    left: dict[Key, LineAt] = {}
    shards = sorted(paths.shards.glob("*.jsonl"))
    for path in (*shards, paths.main):
        check_schema(path)
    for path in shards:
        for offset, raw in read_lines(path):
            row = parse_line(raw) if raw.endswith(b"\n") else None
            if row is not None and (key := key_of(row)) is not None:
                left.setdefault(key, LineAt(str(path), offset, len(raw)))
    for _, row in read_rows(paths.main) if left else ():
        if row is not None and (key := key_of(row)) is not None:
            left.pop(key, None)
    move_lines(left.values(), main, paths.shards)
    if left:
        yield f"{number_of(len(left), 'rollout')} of an interrupted run taken over from its shards"


def move_lines(lines: Iterable[LineAt], main: HeldFile, folder: Path) -> None:
    """Append the lines to the output, force them to disk, and remove the shards."""
    for line in lines:
        main.write(line.read())
    main.sync()
    shutil.rmtree(folder)
