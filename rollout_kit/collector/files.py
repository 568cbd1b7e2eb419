"""The files of one output: their names, moving them aside, replacing one atomically."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError, OutputError


@dataclass(frozen=True, slots=True)
class OutputPaths:
    """The main file and everything that stands beside it."""

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
    def metrics(self) -> Path:
        return self.beside("_aggregate_metrics.json")

    @property
    def manifest(self) -> Path:
        return self.beside("_run.json")

    @property
    def torn(self) -> Path:
        return self.beside("_torn.bin")

    def all(self) -> list[Path]:
        return [
            self.main,
            self.unverified,
            self.failures,
            self.metrics,
            self.manifest,
            self.torn,
        ]


def check_apart(source: str, paths: OutputPaths) -> None:
    """Rollouts appended to their own input would destroy it."""
    if source != "-" and Path(source).resolve() in {path.resolve() for path in paths.all()}:
        raise ConfigError(f"{source} is both input and output: give another output_jsonl_fpath")


def set_aside(paths: OutputPaths) -> list[Path]:
    """Move the files of an earlier run out of the way, under a timestamp; returns where they
    are."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    moved = []
    for path in paths.all():
        if path.exists():
            target = path.with_name(f"{path.stem}.{stamp}{path.suffix}")
            path.rename(target)
            moved.append(target)
    return moved


def write_atomically(path: Path, content: bytes) -> None:
    """`path` holds either what it held or all of `content`, whenever one looks."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputError(f"cannot write {path}: {error.strerror}") from error
