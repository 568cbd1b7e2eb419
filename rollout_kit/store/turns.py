"""The turns of unfinished rollouts, so that a run that was killed continues them.

Appended to a file beside the output, which is made with the first turn. The file is written anew
when most of it is about finished rollouts, and removed when no rollout is unfinished. The newest
snapshot of a rollout is a file in a folder next to it, which ends with the rollout.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import orjson

from ..errors import OutputError
from ..reading import parse_line, read_lines
from ..session import RETURNED, SNAPSHOT
from ..types import JsonObject, Key, StoredTurn
from .files import OutputPaths, write_atomically
from .held import HeldFile
from .kinds import key_of
from .lines import block_of, identity

ROOMY = 64 << 20
"""A smaller file is not written anew: that would cost more than it saves."""


class TurnPlace(NamedTuple):
    """Where the line of a turn stands, or of what came back for it."""

    offset: int
    size: int
    is_returned: bool


class TurnFile:
    """`open_file` opens the file for the journal; `is_settled` tells which rollouts are finished
    or failed permanently."""

    def __init__(
        self,
        paths: OutputPaths,
        open_file: Callable[[], HeldFile],
        is_settled: Callable[[Key], bool],
    ) -> None:
        self._path, self._open_file = paths.turns, open_file
        self._snapshots = SnapshotFolder(paths.sidecar("snapshots"))
        self._file: HeldFile | None = None
        self._places: dict[Key, list[TurnPlace]] = {}
        """Unfinished rollout → its lines."""
        self._live = 0
        """Bytes of these lines."""
        if self._path.exists():
            self._file = open_file()
            for offset, raw in read_lines(self._path):
                row = parse_line(raw)
                if row is None or (key := key_of(row)) is None or is_settled(key):
                    continue
                self._note(key, offset, len(raw), row.get("turn"))
        self._snapshots.keep(self._places)

    @property
    def num_unfinished(self) -> int:
        """Rollouts with stored turns."""
        return len(self._places)

    def read(self, key: Key) -> list[JsonObject]:
        """The turns of a rollout, as its agent reported them; its snapshot, if any, comes last."""
        places = [each for each in self._places.get(key, ()) if not each.is_returned]
        turns = [orjson.loads(raw)["turn"] for raw in self._read_lines(places)]
        return [*turns, *filter(None, (self._snapshots.read(key),))] if turns else turns

    def read_returned(self, key: Key, most: int) -> dict[str, list[JsonObject]]:
        """What came back for the newest turns of a rollout, shortened: request → items."""
        places = [each for each in self._places.get(key, ()) if each.is_returned][-most:]
        turns = [orjson.loads(raw)["turn"] for raw in self._read_lines(places)]
        return {turn["request"]: turn[RETURNED] for turn in turns}

    def append(self, turn: StoredTurn) -> None:
        """Store a turn; without content, have those so far not count."""
        if turn.content is None and turn.key not in self._places:
            return
        if turn.content is not None and SNAPSHOT in turn.content:
            self._snapshots.write(turn.key, turn.content)
            return
        line = {
            **identity("turn", turn.key, turn.task_index),
            "rollout": block_of(turn.key, {}),
            "turn": turn.content,
        }
        raw = orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
        if self._file is None:
            self._file = self._open_file()
        elif self._file.size > max(ROOMY, 2 * self._live):
            self._rewrite(self._file)
        offset = self._file.size
        self._file.write(raw)
        self._note(turn.key, offset, len(raw), turn.content)

    def settle(self, key: Key) -> None:
        """The rollout is finished: its turns are no longer needed."""
        for place in self._places.pop(key, ()):
            self._live -= place.size
        self._snapshots.drop(key)

    def tidy(self) -> None:
        """Leave only the turns of unfinished rollouts; remove the file if there are none."""
        if self._file is None:
            return
        if self._places:
            self._rewrite(self._file)
        else:
            self._path.unlink(missing_ok=True)
            self._snapshots.close()

    def _note(self, key: Key, offset: int, size: int, turn: object) -> None:
        if isinstance(turn, dict):
            place = TurnPlace(offset, size, RETURNED in turn)
            self._places.setdefault(key, []).append(place)
            self._live += size
        else:
            self.settle(key)

    def _read_lines(self, places: Iterable[TurnPlace]) -> Iterator[bytes]:
        for place in places:
            assert self._file is not None
            yield os.pread(self._file.descriptor, place.size, place.offset)

    def _rewrite(self, file: HeldFile) -> None:
        file.replace(self._read_lines(chain.from_iterable(self._places.values())))
        offset = 0
        for key, places in self._places.items():
            self._places[key] = []
            for place in places:
                self._places[key].append(place._replace(offset=offset))
                offset += place.size


class SnapshotFolder:
    """The newest snapshot of each unfinished rollout, a file each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: set[str] = set()

    def keep(self, keys: Iterable[Key]) -> None:
        """Take over what an earlier run has left of these rollouts, and remove the rest."""
        if not self._path.is_dir():
            return
        wanted = set(map(_name_snapshot, keys))
        for path in self._path.iterdir():
            if path.name in wanted:
                self._names.add(path.name)
            else:
                path.unlink(missing_ok=True)

    def write(self, key: Key, content: JsonObject) -> None:
        """Replace the snapshot of a rollout."""
        try:
            self._path.mkdir(exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot make the folder {self._path}: {error.strerror}") from None
        self._names.add(name := _name_snapshot(key))
        write_atomically(self._path / name, orjson.dumps(content), is_forced=False)

    def read(self, key: Key) -> JsonObject | None:
        """The snapshot of a rollout; None if there is none that can be read."""
        if (name := _name_snapshot(key)) not in self._names:
            return None
        try:
            found = orjson.loads((self._path / name).read_bytes())
        except (OSError, orjson.JSONDecodeError):
            return None
        return found if isinstance(found, dict) else None

    def drop(self, key: Key) -> None:
        """Remove the snapshot of a rollout."""
        if self._names and (name := _name_snapshot(key)) in self._names:
            self._names.discard(name)
            with suppress(OSError):
                (self._path / name).unlink()

    def close(self) -> None:
        """Remove the folder if it is empty."""
        with suppress(OSError):
            self._path.rmdir()


def _name_snapshot(key: Key) -> str:
    return f"{blake2b(orjson.dumps(list(key)), digest_size=16).hexdigest()}.json"


def read_turns(path: Path, key: Key) -> list[JsonObject]:
    """The turns of a rollout, and what came back for them, in a file of turns that another process
    may be writing; none if there is no file."""
    found: list[JsonObject] = []
    name = orjson.dumps(key.task_id)
    for _, raw in read_lines(path):
        if name not in raw or (row := parse_line(raw)) is None or key_of(row) != key:
            continue
        if isinstance(turn := row.get("turn"), dict):
            found.append(turn)
        else:
            found.clear()  # the rollout has ended, and may have begun again
    return found
