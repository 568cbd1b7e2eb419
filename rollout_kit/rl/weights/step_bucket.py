"""Steps in a bucket: `s3://bucket/path/step_N/`, with copies on this machine of those in use.

A step exists once its marker does. The marker is written last and removed first, and it is looked
at again after a download, so files of two writes are never taken for one step.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...errors import ConfigError
from ...reading import cache_folder
from ..bucket import S3Bucket, StoredObject
from .folder import MARKERS, STABLE, STEP, BadStep, WeightStep, remove_step, step_folder

BEST = "best"
"""The object that names the checkpoint that is best on held-out tasks."""

ORIGIN = ".origin"
"""The file of a copy that says which write of the step it is of."""

KEPT = 2
"""Copies that stay although the bucket has no such step any more: the one in use, and the one that
an update which fails returns to."""


def find_copies(url: str, cache_dir: str | None = None) -> Path:
    """The folder for the copies of the steps of a bucket."""
    cache = Path(cache_dir).expanduser().absolute() if cache_dir else cache_folder()
    if cache is None:
        raise ConfigError(f"{url}: there is no home folder for copies: set XDG_CACHE_HOME")
    return cache / "steps" / hashlib.blake2b(url.encode(), digest_size=8).hexdigest()


class StepBucket:
    """The steps of a bucket. Its processes on one machine share the copies."""

    def __init__(self, url: str, cache_dir: str | None = None) -> None:
        self.folder = find_copies(url, cache_dir)
        self._bucket = S3Bucket(url)

    def find(self) -> list[WeightStep]:
        """The finished steps, the newest first; BucketError if the bucket cannot be read."""
        objects = self._bucket.list()
        found = []
        for number in {int(m[1]) for m in map(STEP.match, objects) if m}:
            markers = [objects.get(f"step_{number}/{marker}") for marker in MARKERS]
            if marker := next(filter(None, markers), None):
                found.append(self._make_step(number, marker))
        return sorted(found, key=lambda step: step.version, reverse=True)

    def _make_step(self, version: int, marker: StoredObject) -> WeightStep:
        folder = step_folder(self.folder, version)
        return WeightStep(version, folder, marker.signature, f"{self._bucket.url}/step_{version}")

    def fetch(self, step: WeightStep) -> None:
        """Have a copy of the step in its folder; BadStep if it is not what it was when found."""
        with self._lock():
            if _read_origin(step.folder) == list(step.signature):
                return
            scratch = step.folder.with_name(f".{step.folder.name}.copy")
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
            self._download(step, scratch)
            self._keep(scratch, step)

    def _download(self, step: WeightStep, scratch: Path) -> None:
        name = step.folder.name
        for path, about in self._bucket.list(name).items():
            copy = scratch / Path(path).relative_to(name)
            if not copy.resolve().is_relative_to(scratch.resolve()):
                raise BadStep(f"{path} is no name of a file")
            try:
                self._bucket.download(path, copy)
            except FileNotFoundError:
                raise BadStep(f"{path} was removed while it was read") from None
            if (size := copy.stat().st_size) != about.size:
                raise BadStep(f"{path} has {size} bytes and should have {about.size}")
        if self._read_signature(step.version) != step.signature:
            raise BadStep("it was written again while it was read")

    def _keep(self, scratch: Path, step: WeightStep) -> None:
        """Make files on this machine the copy of a step."""
        (scratch / ORIGIN).write_text(json.dumps(step.signature))
        remove_step(step.folder)
        scratch.rename(step.folder)
        listed = {each.version for each in self.find()}
        copies = sorted(
            (int(m[1]) for p in self.folder.iterdir() if (m := STEP.fullmatch(p.name))),
            reverse=True,
        )
        for version in copies[KEPT:]:
            if version not in listed:
                remove_step(step_folder(self.folder, version))

    def has(self, step: WeightStep) -> bool:
        return self._read_signature(step.version) is not None

    def publish(self, scratch: Path, version: int) -> None:
        """Make the sealed files of a folder a step. They become its copy on this machine."""
        self.remove(version)
        name = f"step_{version}"
        for path in sorted(scratch.rglob("*")):
            if path.is_file() and path.name not in MARKERS:
                self._bucket.upload(path, f"{name}/{path.relative_to(scratch)}")
        self._bucket.upload(scratch / STABLE, f"{name}/{STABLE}")
        marker = self._bucket.list(name)[f"{name}/{STABLE}"]
        with self._lock():
            self._keep(scratch, self._make_step(version, marker))

    def remove(self, version: int) -> None:
        name = f"step_{version}"
        objects = self._bucket.list(name)
        self._bucket.remove(f"{name}/{each}" for each in MARKERS if f"{name}/{each}" in objects)
        self._bucket.remove(path for path in objects if path not in _markers_of(name))

    def read_best(self) -> int | None:
        text = (self._bucket.read(BEST) or b"").decode()
        named = STEP.fullmatch(text.strip())
        return int(named[1]) if named else None

    def mark_best(self, version: int) -> None:
        self._bucket.write(BEST, f"step_{version}\n".encode())

    def _read_signature(self, version: int) -> tuple[str, ...] | None:
        name = f"step_{version}"
        objects = self._bucket.list(name)
        found = (objects.get(marker) for marker in _markers_of(name))
        return next((each.signature for each in found if each), None)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Context in which no other process of this machine changes the copies."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.folder / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _markers_of(name: str) -> tuple[str, ...]:
    return tuple(f"{name}/{marker}" for marker in MARKERS)


def _read_origin(folder: Path) -> list[str] | None:
    with suppress(OSError, ValueError):
        return json.loads((folder / ORIGIN).read_text())
    return None
