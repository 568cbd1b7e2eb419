"""Which files a command may replace, the drafts that become them, and the names of files that are
set aside for them."""

import fcntl
import glob
import itertools
import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from ..errors import ConfigError, OutputError

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
