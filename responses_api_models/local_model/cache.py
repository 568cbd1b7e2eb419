"""Cache of converted checkpoints in the user's cache folder.

The key is the checkpoint's content. An entry appears by one rename, so concurrent processes never
see a part of it. If two processes convert at once, both use the entry that is renamed first.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from rollout_kit.reading import cache_folder

from .checkpoint import required
from .lora import FILES as ADAPTER_FILES

LAYOUT = "1"
"""Part of the cache key; increment it if `convert` writes a different model."""

TEMPORARY = "rollout_kit-local_model-"
"""Start of the name of a temporary conversion; the process id follows."""

CONVERTED_FROM = ("config.json", "model.safetensors", "tokenizer.json")


@contextmanager
def converted(
    checkpoint: Path, adapter: Path | None = None, *, is_kept: bool = True
) -> Iterator[Path]:
    """Context with the CTranslate2 directory of a checkpoint, with an adapter added if one is
    given; converted if it is not in the cache.

    If the cache cannot be written, or the conversion is not to be kept, the directory is a
    temporary one.
    """
    cache = cache_folder()
    if not is_kept or cache is None:
        with _convert_for_now(checkpoint, adapter) as folder:
            yield folder
        return
    target = cache / "local_model" / checkpoint_hash(checkpoint, adapter)
    if target.is_dir():
        yield target
        return
    from .convert import convert  # imported late: ctranslate2.specs imports torch if installed

    try:
        scratch = target.with_name(f".converting-{uuid4().hex}")
        scratch.mkdir(parents=True)
    except OSError:
        with _convert_for_now(checkpoint, adapter) as folder:
            yield folder
        return
    try:
        convert(checkpoint, scratch, adapter)
        _publish(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    yield target


@contextmanager
def _convert_for_now(checkpoint: Path, adapter: Path | None) -> Iterator[Path]:
    from .convert import convert

    with tempfile.TemporaryDirectory(prefix=f"{TEMPORARY}{os.getpid()}-") as folder:
        convert(checkpoint, Path(folder), adapter)
        yield Path(folder)


def remove_leftovers() -> None:
    """Remove temporary conversions of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*"):
        pid = folder.name.removeprefix(TEMPORARY).partition("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            shutil.rmtree(folder, ignore_errors=True)


def checkpoint_hash(checkpoint: Path, adapter: Path | None = None) -> str:
    digest = hashlib.sha256(LAYOUT.encode())
    paths = [required(checkpoint, name) for name in CONVERTED_FROM]
    paths += [required(adapter, name) for name in ADAPTER_FILES] if adapter else []
    for path in paths:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:24]


def _publish(scratch: Path, target: Path) -> None:
    try:
        scratch.rename(target)
    except OSError:
        if not target.is_dir():  # another process was first; its copy is the same
            raise
