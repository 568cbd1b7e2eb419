"""The files of rollouts that the words of a command name."""

import os
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from ..errors import ConfigError
from ..reading import MAX_STORED, LineTooLong, iterate_lines, open_file
from .files import ASKED, FLAT, OutputPaths, is_set_aside, main_of_sidecar
from .kinds import NEWER, OF_KEY, HeadReader

MAX_JUDGED = 3
"""Lines of a file by which it is judged."""


def files_of(words: Sequence[str]) -> list[Path]:
    """The files that are named. A folder stands for the files of rollouts in it; ConfigError if it
    has none."""
    found: list[Path] = []
    for word in words:
        path = Path(word).expanduser()
        if not path.is_dir():
            found.append(path)
            continue
        inside = [path / name for name, each in files_in(path) if each.is_file()]
        if not (outputs := list(filter(is_output, inside))):
            raise ConfigError(f"{word}: no file of rollouts (*.jsonl) is in it")
        found += (each for each in outputs if each not in found)
    return found


def distinct_files_of(words: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """The files that are named, each once, and those that are named again."""
    named = list(chain.from_iterable(files_of([word]) for word in words))
    real = os.path.realpath  # resolve() raises an error for a link to itself
    found = {real(path): path for path in reversed(named)}
    firsts = sorted(found.values(), key=named.index)
    return firsts, [path for path in named if found[real(path)] is not path]


def files_in(folder: Path) -> Iterator[tuple[str, Path]]:
    """(name to show, path) of the files in a folder that may be outputs, also of those that were
    removed because no rollout was verified, but not of those that were set aside."""
    if folder.is_dir():
        found = set[Path]()
        for each in folder.rglob("*.jsonl"):
            if (main := main_of_sidecar(each)) is not None:
                found.add(main)
            elif not (each.stem.endswith(FLAT) or is_asked(each)):
                found.add(each)
        for each in sorted(found):
            is_broken = each.is_symlink() and not each.exists()
            if not (is_broken or each.is_dir() or is_set_aside(each)):
                yield str(each.relative_to(folder)), each.resolve()


def is_asked(path: Path) -> bool:
    """Whether a file holds what `ng_scan` has asked models about another output."""
    return any(each.name == ASKED and each.parent.suffix == ".d" for each in path.parents)


def is_output(path: Path) -> bool:
    """Whether one of the first lines is a rollout, also one of a newer version; of a file that has
    none yet, those beside it."""
    reader, is_empty = HeadReader(), True
    try:
        with open_file(path) as stream:
            for raw in islice(iterate_lines(stream, MAX_STORED), MAX_JUDGED):
                is_empty = False
                if reader.judge(raw).kind in {*OF_KEY, NEWER}:
                    return True
    except (FileNotFoundError, LineTooLong):
        pass
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    beside = OutputPaths(path)
    sizes = (size_of(each) for each in (beside.unverified, beside.failures, beside.manifest))
    return is_empty and any(sizes)


def size_of(path: Path) -> int:
    """The bytes of a file; 0 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
