"""The folder in which a trainer hands over weights: `step_N/`, finished when it holds `STABLE`.

A trainer writes the files, then the marker. The marker may list sizes and checksums of the files;
`seal` writes such a marker. A step without a marker does not exist for a reader. `_SUCCESS` counts
as a marker too.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import RolloutKitError
from ...serving.weights import WEIGHTS, read_header
from ...store.files import share_files

STABLE = "STABLE"

MARKERS = (STABLE, "_SUCCESS")

STEP = re.compile(r"step_(\d{1,18})")

INDEX = "model.safetensors.index.json"


BEST = "best"
"""Link to the checkpoint that is best on held-out tasks."""


class BadStep(RolloutKitError):
    """The files of a step cannot be used."""


@dataclass(frozen=True, slots=True)
class WeightStep:
    """A finished step. `signature` differs if the step was written again. `url` is where it comes
    from, if that is not `folder`."""

    version: int
    folder: Path
    signature: tuple[int | str, ...]
    url: str = ""

    def __str__(self) -> str:
        return self.url or str(self.folder)


class StepFolder:
    """The steps of a folder on a disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self) -> list[WeightStep]:
        """The finished steps, the newest first."""
        return find_steps(self.folder)

    def fetch(self, step: WeightStep) -> None:
        """Have the files of a step in its folder: they are there."""

    def has(self, step: WeightStep) -> bool:
        return step.folder.exists()

    def publish(self, scratch: Path, version: int) -> None:
        """Make the sealed files of a folder beside the steps a step."""
        self.remove(version)
        scratch.rename(step_folder(self.folder, version))

    def remove(self, version: int) -> None:
        remove_step(step_folder(self.folder, version))

    def read_best(self) -> int | None:
        link = self.folder / BEST
        target = link.readlink().name if link.is_symlink() else ""
        return int(target.rpartition("_")[2]) if target else None

    def mark_best(self, version: int) -> None:
        scratch = self.folder / f".{BEST}"
        scratch.unlink(missing_ok=True)
        scratch.symlink_to(step_folder(self.folder, version).name)
        scratch.replace(self.folder / BEST)


def step_folder(directory: Path, version: int) -> Path:
    return directory / f"step_{version}"


def find_steps(directory: Path) -> list[WeightStep]:
    """The finished steps of a folder, the newest first; none if it cannot be read now."""
    found = []
    with suppress(OSError):
        for folder in directory.iterdir():
            named = STEP.fullmatch(folder.name)
            if named and (signature := _read_signature(folder)):
                found.append(WeightStep(int(named[1]), folder, signature))
    return sorted(found, key=lambda step: step.version, reverse=True)


def _read_signature(folder: Path) -> tuple[int, int, int] | None:
    for name in MARKERS:
        with suppress(OSError):
            status = (folder / name).stat()
            return status.st_ino, status.st_mtime_ns, status.st_size
    return None


def remove_step(folder: Path) -> None:
    """Remove the files of a step. Its marker goes first, so that nothing reads what is left."""
    for name in MARKERS:
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def seal(folder: Path) -> None:
    """Mark a step as finished, with size and checksum of each file. All who may read the folder may
    read its files. They are not synced: by their checksums a step that a power cut has damaged is
    found and left out."""
    share_files(folder)
    files = {
        str(path.relative_to(folder)): {"size": path.stat().st_size, "blake2b": _checksum(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in MARKERS
    }
    new = folder / f".{STABLE}"
    new.write_text(json.dumps({"files": files}))
    new.rename(folder / STABLE)


def check_step(step: WeightStep) -> None:
    """Raise BadStep if a file of the step is missing, cut off or not what the trainer wrote."""
    try:
        for name, about in _read_manifest(step.folder).items():
            path = step.folder / name
            if (size := path.stat().st_size) != about["size"]:
                raise BadStep(f"{name} has {size} bytes and should have {about['size']}")
            if _checksum(path) != about["blake2b"]:
                raise BadStep(f"{name} is not what was written: its checksum differs")
        weights = list(_list_weights(step.folder))
        for path in weights:
            if path.suffix == ".safetensors":
                _check_safetensors(path)
            elif not path.stat().st_size:
                raise BadStep(f"{path.name} is empty")
    except FileNotFoundError as error:
        raise BadStep(f"{Path(error.filename).name} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadStep(f"it cannot be read: {error}") from error
    if not weights:
        raise BadStep(f"there are no weights ({', '.join(WEIGHTS)})")


def _read_manifest(folder: Path) -> dict[str, Any]:
    """File → size and checksum, from the marker; nothing if the marker lists none."""
    for name in MARKERS:
        with suppress(FileNotFoundError):
            text = (folder / name).read_text("utf-8").strip()
            return json.loads(text)["files"] if text.startswith("{") else {}
    raise BadStep("it was taken back")


def _list_weights(folder: Path) -> Iterator[Path]:
    """The weights; with an index, those that it names."""
    if (folder / INDEX).is_file():
        named = json.loads((folder / INDEX).read_text("utf-8"))["weight_map"].values()
        yield from (folder / name for name in sorted(set(named)))
    else:
        yield from (path for path in sorted(folder.iterdir()) if path.suffix in WEIGHTS)


def _check_safetensors(path: Path) -> None:
    try:
        header = read_header(path)
    except ValueError as error:
        raise BadStep(f"{path.name} is no safetensors file, or it is cut off: {error}") from None
    if not header.tensors or not header.is_whole:
        raise BadStep(f"{path.name} is cut off: its size is not what its header says")


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
