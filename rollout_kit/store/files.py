"""The files of one output: names them, locks them, moves them aside, replaces one atomically."""

import fcntl
import glob
import itertools
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from errno import EINVAL, ENOLCK, ENOSYS, EOPNOTSUPP
from pathlib import Path
from typing import BinaryIO

import orjson

from ..errors import ConfigError, OutputError
from ..reading import sync_folder
from ..serving.process_tree import may_run, read_start
from ..types import JsonObject

ASKED = "scans"
"""The folder in that of an output with what models were asked about its rollouts."""

KEPT = (
    "unverified.jsonl",
    "failures.jsonl",
    "turns.jsonl",
    "snapshots",
    "groups.jsonl",
    *("labels.jsonl", "scans.jsonl", "token_scores.jsonl"),
    ASKED,
    "acks.jsonl",
    "run.json",
    "runs.ndjson",
    "torn.bin",
    "shards",
    "batches",
)
"""Names in the folder of an output."""

SIDECARS = (*KEPT, "index.bin")
"""The same with the cache, which does not tell where the others are."""

FLAT = ("_unverified", "_failures", "_turns", "_runs", "_groups", "_labels", "_acks")
"""Ends of the names of JSONL files beside an output that an earlier version began."""

WITHOUT_FLOCK = frozenset({EINVAL, ENOLCK, ENOSYS, EOPNOTSUPP})
"""Errors of a file system that knows no `flock`."""


@dataclass(frozen=True, slots=True)
class OutputPaths:
    """The main file, and its sidecars in the folder `<stem>.d`.

    An output that an earlier version began keeps its sidecars beside the main file, as
    `<stem>_<name>`. OutputError if sidecars are in both places.
    """

    main: Path
    is_flat: bool = field(init=False, compare=False, repr=False)
    """Whether the sidecars are beside the main file."""

    def __post_init__(self) -> None:
        flat = _find_first(map(self._flat, KEPT))
        object.__setattr__(self, "is_flat", flat is not None)
        if flat and (inside := _find_first(self.folder / name for name in KEPT)):
            raise OutputError(
                f"{self.main} has sidecars in two places, {flat} and {inside}: keep those that"
                " belong to it, and move the others away"
            )

    @classmethod
    def of(cls, path: Path) -> "OutputPaths":
        """The files of an output; ConfigError for a name that is not possible."""
        if path.suffix in (".gz", ".zst"):
            raise ConfigError(
                f"{path}: rollouts are appended as plain lines: leave out {path.suffix}"
            )
        if path.suffix != ".jsonl":  # the files beside r and r.jsonl would be the same
            raise ConfigError(
                f"output_jsonl_fpath={path}: the name must end in .jsonl: write {path}.jsonl"
                + (f" (and continue what is there after  mv {path} {path}.jsonl)" * path.is_file())
            )
        if path.stem.endswith(FLAT) or main_of_sidecar(path) is not None:
            raise ConfigError(
                f"output_jsonl_fpath={path}: this is the name of a file beside another output;"
                " choose another name"
            )
        return cls(path)

    def beside(self, suffix: str) -> Path:
        return self.main.with_name(self.main.name.removesuffix(".jsonl") + suffix)

    @property
    def folder(self) -> Path:
        """The folder of the sidecars."""
        return self.beside(".d")

    def sidecar(self, name: str) -> Path:
        """The path of one of SIDECARS."""
        return self._flat(name) if self.is_flat else self.folder / name

    def make_folder(self) -> None:
        """Make the folder of the sidecars; OutputError if that is not possible."""
        if self.is_flat:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"cannot make the folder {self.folder}: {error.strerror}"
            raise OutputError(f"{what}; choose another output_jsonl_fpath") from None

    def drop_folder(self) -> None:
        """Remove the folder of the sidecars if it is empty."""
        with suppress(OSError):
            self.folder.rmdir()

    def _flat(self, name: str) -> Path:
        return self.beside(f"_{name}")

    @property
    def unverified(self) -> Path:
        return self.sidecar("unverified.jsonl")

    @property
    def failures(self) -> Path:
        return self.sidecar("failures.jsonl")

    @property
    def turns(self) -> Path:
        return self.sidecar("turns.jsonl")

    @property
    def groups(self) -> Path:
        return self.sidecar("groups.jsonl")

    @property
    def labels(self) -> Path:
        return self.sidecar("labels.jsonl")

    @property
    def scans(self) -> Path:
        return self.sidecar("scans.jsonl")

    @property
    def asked(self) -> Path:
        """A folder: one output for each question that models were asked about the rollouts."""
        return self.sidecar(ASKED)

    @property
    def acks(self) -> Path:
        return self.sidecar("acks.jsonl")

    @property
    def metrics(self) -> Path:
        return self.beside("_aggregate_metrics.json")

    @property
    def manifest(self) -> Path:
        return self.sidecar("run.json")

    @property
    def runs(self) -> Path:
        """No `.jsonl`: where it is beside the output, `cat rollouts_*.jsonl` leaves it out."""
        return self.sidecar("runs.ndjson")

    @property
    def torn(self) -> Path:
        return self.sidecar("torn.bin")

    @property
    def shards(self) -> Path:
        """A folder."""
        return self.sidecar("shards")

    @property
    def batches(self) -> Path:
        """A folder, with one of each model server that gathers requests into batches."""
        return self.sidecar("batches")

    @property
    def index(self) -> Path:
        """A cache: it is made again where it is missing or does not fit."""
        return self.sidecar("index.bin")

    def has(self, path: Path) -> bool:
        """Whether `path` is one of them, under any name."""
        real = os.path.realpath(path)  # resolve() raises an error for a link to itself
        return any(
            real == os.path.realpath(each)
            or (path.exists() and each.exists() and path.samefile(each))
            for each in self.all()
        )

    def all(self) -> list[Path]:
        return [self.main, self.metrics, *map(self.sidecar, SIDECARS)]

    def entries(self) -> list[Path]:
        """What holds them all in the folder of the main file: to move, or to remove."""
        return self.all() if self.is_flat else [self.main, self.metrics, self.folder]


def _find_first(paths: Iterable[Path]) -> Path | None:
    return next(filter(os.path.lexists, paths), None)


def main_of_sidecar(path: Path) -> Path | None:
    """The output that a sidecar belongs to, by its name; None for another file."""
    if path.parent.suffix == ".d" and path.name in SIDECARS:
        return path.parent.with_suffix(".jsonl")
    for end in ("_unverified", "_failures"):
        if path.suffix == ".jsonl" and path.stem.endswith(end):
            return path.with_stem(path.stem.removesuffix(end))
    return None


def check_apart(source: str, paths: OutputPaths) -> None:
    """ConfigError if the input is an output file: appended rollouts would destroy it."""
    if source != "-" and paths.has(Path(source)):
        raise ConfigError(f"{source} is both input and output: give another output_jsonl_fpath")


def set_aside(paths: OutputPaths, *, is_dry: bool = False) -> list[Path]:
    """Rename the files of an earlier run with a timestamp, as those of one output; returns their
    new paths. In a dry run they stay."""
    held = [path for path in paths.entries() if path.exists() and path != paths.index]
    if not held:
        return []
    with lock(paths.main):
        before, after = (
            path.name.removesuffix(".jsonl") for path in (paths.main, aside(paths.main))
        )
        moved = {path: path.with_name(after + path.name.removeprefix(before)) for path in held}
        if not is_dry:
            paths.index.unlink(missing_ok=True)
            for path, target in moved.items():
                path.rename(target)
    return list(moved.values())


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold the writer's lock while files are moved; OutputError if a collector holds it."""
    held = OutputLock(path)
    try:
        with suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                held.cover(descriptor)
            finally:
                os.close(descriptor)
        yield
    finally:
        held.release()


def write_json(path: Path, content: JsonObject) -> None:
    """Write indented JSON atomically."""
    write_atomically(path, orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")


def write_atomically(
    path: Path, content: bytes | Iterable[bytes], *, is_forced: bool = True
) -> None:
    """Replace `path` atomically: a reader sees either the old content or all of the new.
    `is_forced`: whether it is on disk in the end."""
    temporary = draft_of(path)
    try:
        with open_draft(temporary) as stream:
            stream.writelines([content] if isinstance(content, bytes) else content)
            stream.flush()
            if is_forced:
                os.fsync(stream.fileno())
        temporary.replace(path)
        if is_forced:
            sync_folder(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise OutputError(f"cannot write {path}: {error.strerror}") from error


class OutputLock:
    """A lock, taken when it is made; OutputError if another collector has it.

    It holds for the path and for the file, so that neither a moved file nor a second name lets
    another collector in. On a file system without `flock` it is a file that names its owner.
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        self._path = output.with_name(f".{output.name}.lock")
        self._covered: list[int] = []
        """Copies of descriptors: closing one of the originals must not end the lock."""
        try:
            while (found := self._take()) is None:
                pass
        except OSError as error:
            raise OutputError(
                f"cannot write {output}: {error.strerror}; choose another output_jsonl_fpath"
            ) from None
        self._descriptor = found

    def cover(self, descriptor: int) -> None:
        """Lock an open file of the output too; OutputError if another collector has it."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._refusal("") from None
        except OSError as error:
            if error.errno not in WITHOUT_FLOCK:
                raise
        self._covered.append(os.dup(descriptor))

    def release(self) -> None:
        """Remove the lock, unless the folder was moved and another collector has one there."""
        if is_still(self._path, self._descriptor):
            self._path.unlink(missing_ok=True)
        for descriptor in (self._descriptor, *self._covered):
            os.close(descriptor)
        self._covered.clear()

    def _take(self) -> int | None:
        """The lock file's descriptor; None if its last owner removed it meanwhile."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            owner = _owner(self._path)
            raise self._refusal(f" (pid {owner['pid']})" if owner else "") from None
        except OSError as error:
            os.close(descriptor)
            if error.errno not in WITHOUT_FLOCK:
                raise
            self._path.unlink(missing_ok=True)
            self._path = self._path.with_suffix(".owner")
            return self._take_by_name()
        if not is_still(self._path, descriptor):
            os.close(descriptor)
            return None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, _signature())
        return descriptor

    def _take_by_name(self) -> int:
        """The same without `flock`: the owner is the process that the file names."""
        owner = _owner(self._path)
        if owner is not None and not _runs(owner):
            self._path.unlink(missing_ok=True)
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, 0o644)
        except FileExistsError:
            who = f"pid {owner['pid']} on {owner['host']}; " if owner else ""
            raise self._refusal(f" ({who}if it has ended, remove {self._path})") from None
        os.write(descriptor, _signature())
        return descriptor

    def _refusal(self, who: str) -> OutputError:
        return OutputError(
            f"{self._output} is being written by another collector{who}: wait for it, or choose"
            " another output_jsonl_fpath"
        )


def is_still(path: Path, descriptor: int) -> bool:
    """Whether the path still names the file that was opened."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except OSError:
        return False


def _signature() -> bytes:
    pid = os.getpid()
    return orjson.dumps({"pid": pid, "host": socket.gethostname(), "began": read_start(pid)})


def _owner(path: Path) -> JsonObject | None:
    with suppress(OSError, orjson.JSONDecodeError):
        found = orjson.loads(path.read_bytes())
        if isinstance(found, dict) and type(found.get("pid")) is int and "host" in found:
            return found
    return None


def _runs(owner: JsonObject) -> bool:
    """Whether the owner may still run; of another machine nothing is known."""
    if owner["host"] != socket.gethostname():
        return True
    return may_run(owner["pid"], owner.get("began"))


SET_ASIDE = re.compile(r"(.+)\.\d{8}-\d{6}\d*\.jsonl")
"""Names that `aside` gives to files of rollouts."""


def check_replaceable(
    path: Path, what: str, is_own: Callable[[Path], object], other: str = "output_fpath"
) -> None:
    """ConfigError if something exists that is no earlier result of the same kind, as `is_own`
    tells: it would be lost. `other` is what to choose instead."""
    if path.exists() and not is_own(path):
        raise ConfigError(f"{path} exists, and is no {what}: remove it, or choose another {other}")


def aside(path: Path) -> Path:
    """An unused path beside the file, with the time in its name. No sidecar of it exists either."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    names = (f"{path.stem}.{stamp}{number}" for number in itertools.chain([""], itertools.count(1)))
    name = next(each for each in names if not any(path.parent.glob(f"{glob.escape(each)}[._]*")))
    return path.with_name(name + path.suffix)


def is_set_aside(path: Path) -> bool:
    """Whether the file has a name that `aside` gave, and the output that replaced it is there."""
    found = SET_ASIDE.fullmatch(path.name)
    ends = (".jsonl", ".d", "_run.json")  # an output without a rollout has no main file
    return found is not None and any(path.with_name(found[1] + end).exists() for end in ends)


def draft_of(path: Path, ending: str = "tmp") -> Path:
    """Where this process writes what becomes `path`. Drafts that killed processes have left there
    are removed. OutputError for a device or a pipe, which the draft would replace."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise OutputError(f"cannot write {path}: it is not a regular file; choose another name")
    start = f".{path.name}."
    for left in path.absolute().parent.glob(f"{glob.escape(start)}*.{ending}"):
        pid = left.name.removeprefix(start).partition(".")[0]
        if pid.isdecimal() and not _is_alive(int(pid)) and _is_free(left):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
    return path.with_name(f"{start}{os.getpid()}.{ending}")


def open_draft(draft: Path) -> BinaryIO:
    """The draft, locked."""
    stream = draft.open("wb", 1 << 18)
    lock_draft(stream.fileno())
    return stream


def share_files(folder: Path) -> None:
    """Let all who may read a folder read its files. safetensors and `tempfile` make files that only
    their owner may read."""
    mode = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)


def lock_draft(descriptor: int) -> None:
    """Have processes of other machines leave a draft alone until it is closed."""
    with suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _is_free(path: Path) -> bool:
    """Whether no process has locked it."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def refuse_shards(paths: OutputPaths) -> None:
    """OutputError if a run of an earlier version left rollouts that are not in the main file."""
    if left := sorted(paths.shards.glob("*.jsonl")):
        words = " ".join(map(str, (paths.main, *left)))
        raise OutputError(
            f"{paths.shards} holds rollouts that an interrupted run of an earlier version left"
            f" there. Merge them first:  ng_merge {words} +output_jsonl_fpath=merged.jsonl"
        )
