"""Labels and notes that people set on rollouts and tasks: `<stem>.d/labels.jsonl`.

A line sets or removes one label; the last line of a label counts. Lines are only appended, so
several people can label the same output.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from ...errors import OutputError
from ...reading import parse_line, read_lines
from ...types import JsonObject, Key
from ..files import OutputPaths
from ..input import plain_path
from ..kinds import kind_of, mark
from ..lines import now_text
from .appending import append_lines

MAX_LABEL, MAX_NOTE = 100, 10_000
"""Characters."""


class Labelled(NamedTuple):
    """What a label is on: one rollout, or a task with index None and an empty agent and scope."""

    task_id: str
    agent: str
    scope: str
    rollout_index: int | None

    @classmethod
    def task(cls, task_id: str) -> "Labelled":
        return cls(task_id, "", "", None)


def find_labels(path: Path) -> "Labels | None":
    """The labels beside a file of rollouts; None if there are none."""
    path = plain_path(path)
    if path.suffix != ".jsonl":
        return None
    found = Labels.beside(path)
    return found if found.refresh() else None


@dataclass
class Labels:
    """The labels of one output, read again when the file has changed. Threads may share it."""

    path: Path
    _notes: dict[Labelled, dict[str, str]] = field(default_factory=dict)
    """Label → note."""
    _seen: tuple[int, int, int] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by the thread that reads or appends."""

    @classmethod
    def beside(cls, output: Path) -> "Labels":
        return cls(OutputPaths(output).labels)

    def refresh(self) -> bool:
        """Read the file if it has changed; True if so. OutputError if it cannot be read."""
        with self._lock:
            notes: dict[Labelled, dict[str, str]] = {}
            try:
                if (seen := self._state()) == self._seen:
                    return False
                for _, raw in read_lines(self.path):
                    _take(notes, parse_line(raw) or {})
            except OSError as error:
                raise OutputError(f"{self.path}: cannot be read: {error.strerror}") from None
            self._seen, self._notes = seen, notes
            return True

    def _state(self) -> tuple[int, int, int] | None:
        """Whether two states are equal tells whether the file has changed."""
        with suppress(FileNotFoundError):
            found = self.path.stat()
            return found.st_ino, found.st_size, found.st_mtime_ns
        return None

    def of(self, key: Key) -> JsonObject:
        """Label → note of a rollout and of its task."""
        task = self._notes.get(Labelled.task(key.task_id), {})
        return {**task, **self._notes.get(Labelled(*key), {})}

    def on(self, what: Labelled) -> Mapping[str, str]:
        return self._notes.get(what, {})

    def items(self) -> Iterator[tuple[Labelled, Mapping[str, str]]]:
        return iter(list(self._notes.items()))

    def set(self, what: Labelled, label: str, note: str = "") -> None:
        """Append a label; OutputError if it is no label, or the file cannot be written."""
        if not label.strip() or len(label) > MAX_LABEL or len(note) > MAX_NOTE:
            raise OutputError(
                f"a label has 1 to {MAX_LABEL} characters, a note at most {MAX_NOTE:,}"
            )
        self._append(what, {"label": label.strip(), "note": note})

    def remove(self, what: Labelled, label: str) -> None:
        self._append(what, {"label": label, "removed": True})

    def _append(self, what: Labelled, content: JsonObject) -> None:
        named = {name: value for name, value in what._asdict().items() if value not in ("", None)}
        line = {**mark("label"), **named, **content, "at": now_text()}
        raw = orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
        with self._lock:
            append_lines(self.path, raw)
            _take(self._notes, line)


def _take(notes: dict[Labelled, dict[str, str]], line: Mapping[str, Any]) -> None:
    """Set or remove the label of a line in `notes`."""
    label, task_id = line.get("label"), line.get("task_id")
    if not isinstance(label, str) or not isinstance(task_id, str):
        return
    if kind_of(line, "label") != "label":
        return
    index = line.get("rollout_index")
    agent, scope = str(line.get("agent") or ""), str(line.get("scope") or "")
    what = Labelled(task_id, agent, scope, index if isinstance(index, int) else None)
    held = notes.setdefault(what, {})
    if line.get("removed") is True:
        held.pop(label, None)
    else:
        held[label] = str(line.get("note") or "")
