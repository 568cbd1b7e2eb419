"""Replies of judges on disk: the same question to the same model is paid once, also by later runs.

A line is one reply that could be read. Lines are only appended, so several processes may share the
file. It is read as far as it has grown whenever a reply is not known yet.
"""

import hashlib
import os
from pathlib import Path
from typing import Any

import orjson

from ...errors import ConfigError
from ...reading import parse_line
from ...types import JsonObject


def digest_question(*parts: Any) -> str:
    """The key of a question: all that its reply depends on."""
    raw = orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(raw, digest_size=16).hexdigest()


class ReplyFile:
    """The replies by key. ConfigError if the file cannot be written."""

    def __init__(self, path: Path) -> None:
        self._path = path.expanduser()
        self._places: dict[str, tuple[int, int]] = {}
        """Key → start and length (bytes) of its line."""
        self._end = 0
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.open("ab").close()
        except OSError as error:
            reason = error.strerror
            raise ConfigError(f"judge_cache_fpath: {path}: cannot be written: {reason}") from None

    def find(self, key: str) -> str | None:
        """The reply to a question; None if there is none yet. OSError if it cannot be read."""
        with self._path.open("rb") as file:
            if key not in self._places:
                file.seek(self._end)
                self._take(file.read())
            if (place := self._places.get(key)) is None:
                return None
            file.seek(place[0])
            line = parse_line(file.read(place[1])) or {}
        said = line.get("said")
        return said if isinstance(said, str) and line.get("key") == key else None

    def _take(self, raw: bytes) -> None:
        """Note the places of whole lines; one without an end is read when it has one."""
        for line in raw[: raw.rfind(b"\n") + 1].splitlines(keepends=True):
            found = parse_line(line)
            if found is not None and isinstance(key := found.get("key"), str):
                self._places.setdefault(key, (self._end, len(line)))
            self._end += len(line)

    def add(self, key: str, said: str, **about: JsonObject | str) -> None:
        """Append a reply; OSError if it cannot be written."""
        raw = orjson.dumps({"key": key, **about, "said": said}, option=orjson.OPT_APPEND_NEWLINE)
        with self._path.open("a+b") as file:
            end = file.seek(0, os.SEEK_END)
            if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
                raw = b"\n" + raw  # behind a line that was cut: both would be unreadable
            file.write(raw)
