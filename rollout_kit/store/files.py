"""The files of one output: names them, moves them aside, replaces one atomically."""

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from errno import EINVAL
from pathlib import Path

import orjson

from ..errors import ConfigError, OutputError
from ..types import JsonObject
from .lock import OutputLock

SIDECARS = ("_unverified", "_failures", "_turns", "_runs", "_groups", "_labels", "_acks")
"""Ends of the names of the JSONL files beside an output."""


@dataclass(frozen=True, slots=True)
class OutputPaths:
    """The main file and the files beside it."""

    main: Path

    def beside(self, suffix: str) -> Path:
        return self.main.with_name(self.main.name.removesuffix(".jsonl") + suffix)

    @property
    def unverified(self) -> Path:
        return self.beside("_unverified.jsonl")

    @property
    def failures(self) -> Path:
        return self.beside("_failures.jsonl")

    @property
    def turns(self) -> Path:
        return self.beside("_turns.jsonl")

    @property
    def metrics(self) -> Path:
        return self.beside("_aggregate_metrics.json")

    @property
    def manifest(self) -> Path:
        return self.beside("_run.json")

    @property
    def torn(self) -> Path:
        return self.beside("_torn.bin")

    def has(self, path: Path) -> bool:
        """Whether `path` is one of them, under any name."""
        return any(
            path.resolve() == each.resolve()
            or (path.exists() and each.exists() and path.samefile(each))
            for each in self.all()
        )

    def all(self) -> list[Path]:
        return [
            self.main,
            self.unverified,
            self.failures,
            self.turns,
            self.metrics,
            self.manifest,
            self.torn,
        ]


def check_apart(source: str, paths: OutputPaths) -> None:
    """ConfigError if the input is an output file: appended rollouts would destroy it."""
    if source != "-" and paths.has(Path(source)):
        raise ConfigError(f"{source} is both input and output: give another output_jsonl_fpath")


def set_aside(paths: OutputPaths) -> list[Path]:
    """Rename the files of an earlier run with a timestamp; returns their new paths."""
    moved = []
    if any(path.exists() for path in paths.all()):
        with lock(paths.main):
            for path in paths.all():
                if path.exists():
                    path.rename(target := aside(path))
                    moved.append(target)
    return moved


def leave_out(paths: OutputPaths, drops: Callable[[bytes], bool]) -> Path:
    """Rewrite the main file atomically without the lines that `drops` selects; returns the path of
    the original."""
    with lock(paths.main):
        kept = aside(paths.main)
        try:
            os.link(paths.main, kept)
        except OSError:  # a file system without links
            shutil.copyfile(paths.main, kept)
        with paths.main.open("rb") as stream:
            write_atomically(paths.main, (raw for raw in stream if not drops(raw)))
    return kept


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold the writer's lock while files are moved; OutputError if a collector holds it."""
    held = OutputLock(path)
    try:
        with path.open("ab") as stream:
            held.cover(stream.fileno())
            yield
    finally:
        held.release()


def aside(path: Path) -> Path:
    """An unused path beside the file, with the time in its name."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    names = (f"{stamp}{suffix}" for suffix in itertools.chain([""], itertools.count(1)))
    found = (path.with_name(f"{path.stem}.{name}{path.suffix}") for name in names)
    return next(each for each in found if not each.exists())


def write_json(path: Path, content: JsonObject) -> None:
    """Write indented JSON atomically."""
    form = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    write_atomically(path, orjson.dumps(content, option=form))


def sync_folder(path: Path) -> None:
    """Force the folder's entry of a file to disk, where the file system can."""
    with suppress(PermissionError, FileNotFoundError):
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno != EINVAL:
                raise
        finally:
            os.close(descriptor)


def write_atomically(
    path: Path, content: bytes | Iterable[bytes], *, is_forced: bool = True
) -> None:
    """Replace `path` atomically: a reader sees either the old content or all of the new.

    `is_forced`: whether it is on disk in the end.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.writelines([content] if isinstance(content, bytes) else content)
            stream.flush()
            if is_forced:
                os.fsync(stream.fileno())
        temporary.replace(path)
        if is_forced:
            sync_folder(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise OutputError(f"cannot write {path}: {error.strerror}") from error
