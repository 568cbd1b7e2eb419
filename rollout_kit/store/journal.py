"""The rollouts file and its sidecars: append-only, one line per outcome, one writer.

Each `write` to a file opened for append is one line, or some whole lines that arrived together; so
a kill can tear only the last line, and opening repairs it. A whole line is never rewritten.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Literal
from zlib import crc32

import orjson

from ..errors import OutputError
from ..reading import line_at, parse_line, read_lines
from ..types import Failure, JsonObject, Key, Outcome, OutcomeSink, Rollout, StoredTurn, Unverified
from .files import OutputLock, OutputPaths, refuse_shards, write_atomically
from .held import HeldFile
from .index import KeptIndex, explain_edit
from .kinds import key_of, mark_as
from .lines import (
    Malformed,
    build_failure_line,
    build_malformed_line,
    dump_line,
    dump_rollout,
    failure_of,
    refuse_line,
)
from .manifest import note_doubts, read_doubts
from .scan import Contents, scan
from .scope import repeat_command
from .turns import TurnFile


class NoJournal:
    """A sink that keeps nothing on disk: for a run without an output."""

    def __init__(self, sink: OutcomeSink | None = None) -> None:
        self._sink = sink
        self.contents = Contents()
        self.notes: list[str] = []
        self.index = KeptIndex(None)
        self.writing_s = 0.0

    def append_all(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        if self._sink:
            self._sink.append_all(outcomes)
        return outcomes

    def append_turn(self, turn: StoredTurn) -> None:
        return

    num_unfinished = 0

    def find_turns(self, key: Key) -> list[JsonObject]:
        return []

    def find_returned(self, key: Key, most: int) -> dict[str, list[JsonObject]]:
        return {}

    def append_malformed(self, malformed: Malformed, source: str) -> bool:
        return True

    def earlier_rows(self) -> Iterator[JsonObject]:
        return iter(())

    def pending_line(self, key: Key) -> JsonObject:
        raise KeyError(key)

    def num_parked(self, wanted: Callable[[Key], bool]) -> int:
        return 0

    def check(self) -> None:
        return

    sync = finish = check

    def close(self, *, clean: bool) -> None:
        return


Fsync = Literal["row", "second", "exit"]


class Journal:
    """The files of an output, open for one run. `notes` says what opening had to repair.

    `command_line` is the command that a failure line repeats.
    """

    def __init__(
        self,
        paths: OutputPaths,
        *,
        fsync: Fsync = "second",
        command_line: str = "",
        sink: OutcomeSink | None = None,
    ) -> None:
        self.paths, self._sink = paths, sink
        self.notes: list[str] = []
        self._command_line = command_line
        self.writing_s = 0.0
        """Time spent on writing lines, `fsync` per row included."""
        self.written: dict[Key, int] = {}
        """Key → offset of the line, of the rollouts that were written last."""
        self._fsync: Fsync = fsync
        self._files: dict[Path, HeldFile] = {}
        self.index = KeptIndex(paths.index)
        self._is_touched = self._is_doubtful = self._is_edited = False
        """Another program touched the files; some cannot be forced to disk; a line was edited."""
        try:
            paths.main.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"cannot make the folder of {paths.main}: {error.strerror}"
            raise OutputError(f"{what}; choose another output_jsonl_fpath") from None
        self._lock = OutputLock(paths.main)
        try:
            paths.make_folder()
            for path in (paths.main, paths.unverified, paths.failures):
                self._hold(path)
            refuse_shards(paths)
            self.contents = contents = scan(paths, self.index)
            self.index.descriptor = self.main_file.descriptor
            for file in self._files.values():
                self._repair(file)
            self.contents.size = self.size
            self._prove_doubtful()
            self._turns = TurnFile(
                paths,
                lambda: self.open_beside(paths.turns),
                lambda key: key in contents.done or key in contents.pending,
            )
            if number := self.num_unfinished:
                what = "unfinished rollouts that continue from stored turns"
                self.notes.append(f"{what}: {number:,}")
        except BaseException:
            self._drop_empty()
            self._close_files()
            raise
        self._parked: dict[Key, bytes] = {
            key: _digest(self.pending_line(key)["response"]) for key in self.contents.pending
        }
        """Key → digest of its response that is on disk without a verdict."""

    def _hold(self, path: Path) -> HeldFile:
        file = self._files[path] = HeldFile(path, self.paths.torn)
        if path == self.paths.main:
            self.main_file = file
            self._lock.cover(file.descriptor)
        return file

    def open_beside(self, path: Path) -> HeldFile:
        """Open another file of the output; it is repaired, synced and closed with the others."""
        file = self._hold(path)
        self._repair(file)
        return file

    @property
    def size(self) -> int:
        return self.main_file.size

    def _repair(self, file: HeldFile) -> None:
        if cut := file.repair():
            self.notes.append(
                f"{file.path}: the last line was torn; its {cut:,} bytes are kept in"
                f" {self.paths.torn}"
            )

    def _prove_doubtful(self) -> None:
        """Write again what an earlier run could not force to disk: it may be in memory only."""
        for name, start in read_doubts(self.paths.manifest).items():
            if (file := self._files.get(self.paths.main.parent / name)) is not None:
                file.rewrite(int(start))

    def earlier_rows(self) -> Iterator[JsonObject]:
        """The rollouts that the main file held when it was opened, each key once."""
        contents = self.contents
        checks = iter(contents.checks)
        for offset, raw in read_lines(self.paths.main):
            if offset >= contents.size:
                return
            if offset in contents.idle:
                continue
            if crc32(raw) != next(checks, crc32(raw)):
                self._is_edited = True
                return
            if (row := parse_line(raw)) is not None:
                yield row

    def pending_line(self, key: Key) -> JsonObject:
        """The line of a response that waits for its verdict."""
        path, offset = self.contents.pending[key]
        return mark_as("unverified", orjson.loads(line_at(self._files[path].descriptor, offset)))

    def num_parked(self, wanted: Callable[[Key], bool]) -> int:
        """Responses on disk that wait for their verdict, of the keys that are `wanted`."""
        return sum(map(wanted, self._parked))

    def append_all(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        """Write outcomes, all rollouts by one `write`, and return them; OutputError if not all are
        on disk.

        A response without a verdict is written once; with an error it is named in the failures
        file as well. An outcome that is not JSON becomes a Failure, which is written and returned.
        """
        kept: list[Outcome] = []
        rollouts: list[tuple[bytes, Rollout]] = []
        try:
            for outcome in outcomes:
                try:
                    if isinstance(outcome, Rollout):
                        rollouts.append((dump_rollout(outcome), outcome))
                    else:
                        self._write_other(outcome)
                except TypeError as error:
                    outcome = refuse_line(outcome, error)
                    self._write_failure(outcome)
                kept.append(outcome)
        finally:
            if rollouts:
                self._write_rollouts(rollouts)
        if self._sink and kept:
            self._sink.append_all(kept)
        return kept

    def _write_other(self, outcome: Unverified | Failure) -> None:
        if isinstance(outcome, Failure):
            self._write_failure(outcome)
            return
        self._park(outcome)
        self._turns.settle(outcome.key)
        if outcome.error is not None:
            self._write_failure(failure_of(outcome, outcome.error))

    def _write_rollouts(self, rollouts: list[tuple[bytes, Rollout]]) -> None:
        """Write lines. If there is no room for all of them, those that are written count."""
        began, offset = perf_counter(), self.size
        self.written.clear()
        try:
            self.main_file.write_all([line for line, _ in rollouts])
            if self._fsync == "row":
                self.sync()
        finally:
            self.writing_s += perf_counter() - began
            is_kept = self._parked or self._turns.num_unfinished
            for line, rollout in rollouts:
                if offset == self.size:
                    break
                self.written[rollout.key] = offset
                self.index.append(offset, line, rollout)
                if is_kept:
                    self.settle(rollout.key)
                offset += len(line)

    def settle(self, key: Key) -> None:
        """The rollout of a key is written: what was kept of it is not needed any more."""
        if self._parked:
            self._parked.pop(key, None)
        if self._turns.num_unfinished:
            self._turns.settle(key)

    def append_turn(self, turn: StoredTurn) -> None:
        """Keep a turn of a rollout in progress."""
        began = perf_counter()
        self._turns.append(turn)
        if self._fsync == "row" and not turn.is_for_readers:
            self.sync()
        self.writing_s += perf_counter() - began

    @property
    def num_unfinished(self) -> int:
        """Rollouts with stored turns."""
        return self._turns.num_unfinished

    def find_turns(self, key: Key) -> list[JsonObject]:
        """The turns of an unfinished rollout that an earlier run stored."""
        return self._turns.read(key)

    def find_returned(self, key: Key, most: int) -> dict[str, list[JsonObject]]:
        """What came back for the newest turns of a rollout in progress: request → items."""
        return self._turns.read_returned(key, most)

    def append_malformed(self, malformed: Malformed, source: str) -> bool:
        """Name a malformed line of the input `source`; False if an earlier run has named it."""
        if (source, malformed.line) in self.contents.malformed:
            return False
        self._write(self._files[self.paths.failures], build_malformed_line(malformed, source))
        return True

    def _park(self, unverified: Unverified) -> None:
        response = _digest(unverified.line["response"])
        if self._parked.get(unverified.key) != response:
            self._write(self._files[self.paths.unverified], unverified.line)
            self._parked[unverified.key] = response

    def _write_failure(self, failure: Failure) -> None:
        repro = repeat_command(self._command_line, failure.key)
        self._write(self._files[self.paths.failures], build_failure_line(failure, repro))

    def _write(self, file: HeldFile, line: JsonObject | bytes) -> bytes:
        began = perf_counter()
        file.write(raw := line if isinstance(line, bytes) else dump_line(line))
        if self._fsync == "row":
            self.sync()
        self.writing_s += perf_counter() - began
        return raw

    def check(self) -> None:
        """Write what the index lacks; OutputError, once, if another program removed, moved,
        replaced or changed a file.

        What was written is kept where that is possible, and lines can still be appended.
        """
        failures = []
        for file in () if self._is_touched else self._files.values():
            try:
                file.check(self._lock.cover)
            except OutputError as error:
                failures.append(error)
        if self._is_edited and not self._is_touched:
            failures.append(OutputError(explain_edit(self.paths)))
        if failures:
            self._is_touched = True
            self.index.drop()
            raise failures[0]
        self.index.flush()

    def sync(self) -> None:
        """Force written lines to disk; OutputError, once, if that fails. It may block."""
        if self._is_doubtful:
            return
        try:
            for file in list(self._files.values()):  # another thread may add the turns
                file.sync()
        except OutputError:
            self._is_doubtful = True
            self._note_doubts()
            raise

    def finish(self) -> None:
        """Nothing more comes: have all lines in the output and on disk; OutputError if not."""
        self.check()
        self.sync()

    def close(self, *, clean: bool) -> None:
        """Force lines to disk and close; after a clean end, drop responses that have a verdict."""
        try:
            self.finish()
            if not (self._is_touched or self._is_doubtful):
                if clean:
                    self._compact()
                    self._turns.tidy()
                if self.size == 0:
                    self.index.drop()
                self._drop_empty()
        finally:
            self._close_files()

    def _note_doubts(self) -> None:
        """Have the next run write again what may be in memory only. The note itself may be so too:
        then both are there, or both are gone."""
        folder = self.paths.main.parent
        starts = {
            str(each.path.relative_to(folder)): each.doubtful_from for each in self._files.values()
        }
        note_doubts(self.paths.manifest, {k: at for k, at in starts.items() if at is not None})

    def _compact(self) -> None:
        """Rewrite the unverified file, atomically, with the pending responses only."""
        path = self.paths.unverified
        keep: dict[Key, bytes] = {}
        for offset, raw in read_lines(path):
            key = key_of(parse_line(raw) or {})
            if key is not None and key in self._parked:
                keep[key] = line_at(self._files[path].descriptor, offset)
        if keep:
            write_atomically(path, b"".join(keep.values()))
        else:
            path.unlink(missing_ok=True)

    def _drop_empty(self) -> None:
        """Remove the empty files that this run created."""
        for path, file in self._files.items():
            if file.is_made and file.size == 0:
                path.unlink(missing_ok=True)
        self.paths.drop_folder()

    def _close_files(self) -> None:
        self.index.close()
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._lock.release()


def _digest(response: JsonObject) -> bytes:
    return hashlib.blake2b(orjson.dumps(response), digest_size=8).digest()


AnyJournal = Journal | NoJournal
