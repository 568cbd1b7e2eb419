"""One file of an output while a run appends to it: opened, repaired, written, forced to disk, and
watched for what other programs do to it.

A `write` is of whole lines. What was forced to disk before an `fsync` failed is known to be
durable; after that the kernel may report success for lines that it has dropped, so it is not asked
again.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ..errors import OutputError
from ..reading import last_line, number_bytes, parse_line, sync_folder
from .files import aside, draft_of, is_still
from .kinds import mark_of

READ = 1 << 20
"""Bytes that are copied at a time."""

MEANWHILE = "while rollouts were collected; the run stopped."


class HeldFile:
    """`is_made`: whether this run created the file; only such a file is removed if it stays empty.

    `size` is what the file holds, as far as this run knows. Torn lines are kept in `torn`.
    """

    def __init__(self, path: Path, torn: Path) -> None:
        self.path, self._torn = path, torn
        self.is_made = True
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            try:
                self.descriptor = os.open(path, flags | os.O_EXCL, 0o644)
            except FileExistsError:
                self.descriptor = os.open(path, flags, 0o644)
                self.is_made = False
            found = os.fstat(self.descriptor)
            if self.is_made:
                sync_folder(path)
        except OSError as error:
            raise OutputError(
                f"cannot write {path}: {error.strerror}; choose another output_jsonl_fpath"
            ) from None
        if not stat.S_ISREG(found.st_mode):
            os.close(self.descriptor)
            raise OutputError(
                f"cannot write {path}: it is not a regular file; choose another output_jsonl_fpath"
            )
        self.size = self._first = self._durable = found.st_size
        self._num_lines = self._num_durable = 0

    def repair(self) -> int:
        """Complete a last line that only lacks its newline; cut a torn one, keep its bytes in
        `torn`, and return their number."""
        try:
            tail = last_line(self.descriptor, self.size)
            if not tail:
                return 0
            if parse_line(tail) is not None:
                self.size += os.write(self.descriptor, b"\n")
                return 0
            with self._torn.open("ab") as stream:
                stream.write(tail + b"\n")
                stream.flush()
                os.fsync(stream.fileno())
            self.size -= len(tail)
            os.ftruncate(self.descriptor, self.size)
            return len(tail)
        except OSError as error:
            raise OutputError(
                f"cannot repair {self.path}: {error.strerror}; make room first"
            ) from None
        finally:
            self._first = self._durable = self.size

    def write_all(self, lines: Sequence[bytes]) -> None:
        """Append lines at once, as one call takes less time than many. If there is no room for all
        of them, append the first ones."""
        try:
            self.write(b"".join(lines), len(lines))
        except OutputError:
            for line in lines:
                self.write(line)

    def write(self, raw: bytes, num_lines: int = 1) -> None:
        """Append a line, or several, or nothing of it."""
        try:
            written = os.write(self.descriptor, raw)
            if written != len(raw):
                os.ftruncate(self.descriptor, os.fstat(self.descriptor).st_size - written)
                raise OSError(0, "no room for the whole line")
        except OSError as error:
            raise OutputError(
                f"cannot write {self.path}: {error.strerror}; every line in it is whole: make room"
                " and run the same command again"
            ) from error
        self.size += written
        self._num_lines += num_lines

    def sync(self) -> None:
        """Force the lines to disk; OutputError if that fails. It may block."""
        size, number = self.size, self._num_lines
        if size == self._durable:
            return
        try:
            os.fsync(self.descriptor)
        except OSError as error:
            raise OutputError(
                f"cannot force {self.path} to disk: {error.strerror}. Of the {self._num_lines:,}"
                f" lines that this run wrote to it, the first {self._num_durable:,} are known to be"
                " on disk, and the others may be in memory only: copy the file to another disk"
                " before this one is unmounted, mend the disk, and run the same command again"
            ) from error
        self._durable, self._num_durable = size, number

    @property
    def doubtful_from(self) -> int | None:
        """Offset from which lines may not be on disk; None if all are."""
        return self._durable if self.size > self._durable else None

    def rewrite(self, start: int) -> None:
        """Write the bytes from `start` on once more, so that forcing them to disk is a proof."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                while piece := os.pread(descriptor, READ, start):
                    start += os.pwrite(descriptor, piece, start)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise OutputError(
                f"cannot force {self.path} to disk: {error.strerror}; its lines may be in memory"
                " only: copy the file to another disk, and mend the disk"
            ) from None

    def check(self, lock: Callable[[int], object]) -> None:
        """OutputError if another program removed, moved, replaced or changed the file.

        What this run wrote is kept, and what it still writes goes to the same place. `lock` locks
        a descriptor; OutputError if another collector has it.
        """
        try:
            held = os.fstat(self.descriptor)
        except OSError as error:
            raise OutputError(f"cannot read {self.path}: {error.strerror}") from None
        if not is_still(self.path, self.descriptor):
            raise OutputError(self._rescue(held.st_nlink, lock))
        if held.st_size != self.size:
            expected, self.size = self.size, held.st_size
            raise OutputError(
                f"{self.path} was changed by another program {MEANWHILE} It has"
                f" {held.st_size:,} bytes instead of {expected:,}. Check the file; the same command"
                " collects what it lacks"
            )

    def replace(self, lines: Iterable[bytes]) -> None:
        """Have the file hold these lines only, atomically. What is written later follows them."""
        temporary = draft_of(self.path)
        try:
            temporary.unlink(missing_ok=True)
            self._go_on_in(HeldFile(temporary, self._torn), lines)
            temporary.replace(self.path)
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {error.strerror}") from error

    def close(self) -> None:
        os.close(self.descriptor)

    def _rescue(self, num_links: int, lock: Callable[[int], object]) -> str:
        """Keep what the path no longer names; returns what happened, and what to do."""
        if num_links and (place := self._present_place()) is not None:
            return (
                f"{self.path} was moved {MEANWHILE} Its lines are all in {place}: move it back, and"
                " run the same command again"
            )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not os.path.lexists(self.path):
                self._go_on_in(HeldFile(self.path, self._torn), self._pieces())
                return (
                    f"{self.path} was removed {MEANWHILE} Its lines are written there again: run"
                    " the same command to continue, or move the file away first"
                )
            new = HeldFile(self.path, self._torn)
            if (lacking := self._find_lacking(new, lock)) is not None:
                self._go_on_in(new, lacking)
                return (
                    f"{self.path} was replaced {MEANWHILE} The new file has got the lines of this"
                    " run that it lacked: run the same command to continue"
                )
            new.close()
            kept = aside(self.path)
            self._go_on_in(HeldFile(kept, self._torn), self._pieces())
        except OSError as error:
            return f"{self.path} was removed {MEANWHILE} Its lines are lost: {error.strerror}"
        return (
            f"{self.path} was replaced by another file {MEANWHILE} Its lines are all in {kept}:"
            " put one of the two in place, and run the same command again"
        )

    def _present_place(self) -> Path | None:
        """Where the open file is now, if the system tells."""
        with suppress(OSError):
            place = Path(os.readlink(f"/proc/self/fd/{self.descriptor}"))
            return place if is_still(place, self.descriptor) else None
        return None

    def _find_lacking(
        self, new: "HeldFile", lock: Callable[[int], object]
    ) -> Iterable[bytes] | None:
        """The lines of this run that an edited copy lacks; None if `new` is another file."""
        try:
            lock(new.descriptor)
        except OutputError:
            return None
        new.repair()
        theirs = {mark_of(raw) for _, raw in new._lines()}
        if not theirs <= {mark_of(raw) for _, raw in self._lines()}:
            return None
        return (
            raw for at, raw in self._lines() if at >= self._first and mark_of(raw) not in theirs
        )

    def _go_on_in(self, new: "HeldFile", pieces: Iterable[bytes]) -> None:
        """Write to another file from now on, first these pieces."""
        for piece in pieces:
            new.size += os.write(new.descriptor, piece)
        os.fsync(new.descriptor)
        os.dup2(new.descriptor, self.descriptor, inheritable=False)
        new.close()
        self.size = self._durable = new.size

    def _pieces(self) -> Iterator[bytes]:
        at = 0
        while piece := os.pread(self.descriptor, READ, at):
            yield piece
            at += len(piece)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with open(os.dup(self.descriptor), "rb") as stream:
            stream.seek(0)
            yield from number_bytes(stream)
