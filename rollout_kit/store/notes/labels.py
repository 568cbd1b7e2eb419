"""Labels and notes that people set on rollouts and tasks: `<stem>.d/labels.jsonl`.

A line sets or removes one label; the last line of a label counts. Lines are only appended, so
several people can label the same output.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import OutputError
from ...types import JsonObject, Key
from ..files import OutputPaths
from ..input import plain_path
from ..kinds import kind_of, mark
from ..lines import now_text
from .note_file import NoteFile

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


class Labels(NoteFile):
    """The labels of one output."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._notes: dict[Labelled, dict[str, str]] = {}
        """Label → note."""

    @classmethod
    def beside(cls, output: Path) -> "Labels":
        return cls(OutputPaths(output).labels)

    def _read(self, lines: Iterable[Mapping[str, Any]]) -> None:
        notes: dict[Labelled, dict[str, str]] = {}
        for line in lines:
            _take(notes, line)
        self._notes = notes

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
        self._write(what, {"label": label.strip(), "note": note})

    def remove(self, what: Labelled, label: str) -> None:
        self._write(what, {"label": label, "removed": True})

    def _write(self, what: Labelled, content: JsonObject) -> None:
        named = {name: value for name, value in what._asdict().items() if value not in ("", None)}
        line = {**mark("label"), **named, **content, "at": now_text()}
        self._append([line])
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
