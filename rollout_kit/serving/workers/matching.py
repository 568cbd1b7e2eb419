"""Finds lines by a regular expression in a process of its own: one that takes for ever is killed,
and holds nothing else up.
"""

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic

from .environment import clean_environment

DEADLINE_S = 5.0
"""Time for one portion of lines."""

LOOK_S = 0.1
"""Time between two looks at whether the search was cancelled."""

PORTION = 4 << 20
"""Bytes of lines that are asked for at once; a longer line is asked for alone."""

CHILD = Path(__file__).with_name("matching_child.py")

Place = tuple[int, int, int]
"""Offset, length and CRC-32 of a line."""


class LineMatcher:
    """`pattern` is a regular expression over bytes. The process starts with the first lines, and
    ends soon after `is_cancelled`: then nothing matches."""

    def __init__(
        self,
        pattern: str,
        *,
        ignores_case: bool = False,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._asked = [pattern, ignores_case]
        self._is_cancelled = is_cancelled
        self._process: subprocess.Popen[bytes] | None = None

    def find(self, path: Path, places: Sequence[Place]) -> Iterator[tuple[list[int], int | None]]:
        """For each portion, in order: which of the places match, by number, and which place holds
        another line than it should, if one does. TimeoutError if a portion takes too long."""
        start = size = 0
        for number, (_, length, _) in enumerate(places):
            if size and size + length > PORTION:
                yield self._ask(path, places, start, number)
                start, size = number, 0
            size += length
        if start < len(places):
            yield self._ask(path, places, start, len(places))

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _ask(
        self, path: Path, places: Sequence[Place], start: int, end: int
    ) -> tuple[list[int], int | None]:
        process = self._process or self._start()
        assert process.stdin and process.stdout
        try:
            _send(process, [str(path), places[start:end]])
            raw, until = b"", monotonic() + DEADLINE_S
            while not raw.endswith(b"\n"):
                if not select.select([process.stdout], [], [], LOOK_S)[0]:
                    if self._is_cancelled():
                        self.close()
                        return [], None
                    if monotonic() > until:
                        raise TimeoutError(f"no answer within {DEADLINE_S:g} s")
                    continue
                if not (piece := os.read(process.stdout.fileno(), 1 << 16)):
                    raise TimeoutError("its process ended")
                raw += piece
        except (TimeoutError, BrokenPipeError) as error:
            self.close()
            raise TimeoutError(str(error)) from None
        found, changed = json.loads(raw)
        return [start + each for each in found], None if changed is None else start + changed

    def _start(self) -> "subprocess.Popen[bytes]":
        process = self._process = subprocess.Popen(
            [sys.executable, "-S", str(CHILD), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=clean_environment(),
        )
        _send(process, self._asked)
        return process


def _send(process: "subprocess.Popen[bytes]", what: object) -> None:
    assert process.stdin
    process.stdin.write(json.dumps(what).encode() + b"\n")
    process.stdin.flush()
