"""`<stem>.d/acks.jsonl`: the groups that have left the buffer, one line each. With the rollouts it
tells what a lost buffer held."""

from collections.abc import Callable, Iterable
from pathlib import Path

from ...reading import parse_line, read_lines
from ...store.held import HeldFile
from ...store.kinds import Kind, mark
from ...store.lines import dump_line, now_text
from ..buffer.group import Settled

KIND: Kind = "ack"


ACKED = "acked"
"""Why a group has left that a trainer has used."""


class AckFile:
    """`identity` is that of the buffer: numbers of another one mean nothing here."""

    def __init__(self, path: Path, open_file: Callable[[], HeldFile], identity: str) -> None:
        self.path = path
        self._open_file, self._identity = open_file, identity
        self._file = open_file() if path.exists() else None
        self.keys: set[str] = set()
        """Groups that are not to be put again."""
        self.used: set[str] = set()
        """Those that a trainer has acknowledged."""
        self.after = ""
        """The last one of this buffer."""
        for _, raw in read_lines(path):
            line = parse_line(raw) or {}
            if line.get("kind") == KIND and isinstance(line.get("key"), str):
                self.keys.add(line["key"])
                if line.get("reason") == ACKED:
                    self.used.add(line["key"])
                if line.get("buffer") == identity:
                    self.after = str(line.get("number") or "")

    def append(self, settled: Iterable[Settled]) -> None:
        """Write down groups that have left."""
        lines = []
        for each in settled:
            line = {**mark(KIND), "key": each.key, "reason": each.reason, "version": each.version}
            line |= {"buffer": self._identity, "number": each.number, "at": now_text()}
            lines.append(dump_line(line))
            self.keys.add(each.key)
            self.after = each.number
        if lines:
            self._file = self._file or self._open_file()
            self._file.write(b"".join(lines))
