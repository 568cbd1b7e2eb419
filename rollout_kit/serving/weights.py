"""A model's weights on disk: where they are, which tensors a file has, and a digest of all.

The digest identifies a policy by its content: weights that are replaced under the same path are
another one, and copies in other places are the same one. Files are sampled: of a safetensors file
the header and three blocks of each tensor, of others evenly spaced blocks. Training changes far
more than one block of a tensor. Digests are kept in the user's cache folder, by path, size and
times of a file.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..reading import cache_folder

BLOCK = 4096

NUM_BLOCKS = 1024
"""Blocks of a file whose format is not known."""

MAX_HEADER_BYTES = 100_000_000
"""Limit of safetensors itself."""

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")

FURTHER = frozenset(
    {
        *("config.json", "generation_config.json", "adapter_config.json", "chat_template.jinja"),
        *("chat_template.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model"),
    }
)
"""Files beside the weights that change what is generated."""


class Tensor(NamedTuple):
    """`start` and `end` of its bytes count from the end of the file's header."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class TensorFile(NamedTuple):
    """The header of a safetensors file, which ends at `begin`."""

    begin: int
    tensors: dict[str, Tensor]
    is_whole: bool
    """Whether all of their bytes are there, and nothing else."""


def read_header(path: Path) -> TensorFile:
    """ValueError if this is no safetensors file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
            raise ValueError("it has no header")
        header = json.loads(file.read(length))
    try:
        tensors = {
            name: Tensor(of["dtype"], tuple(of["shape"]), *map(int, of["data_offsets"]))
            for name, of in header.items()
            if name != "__metadata__"
        }
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"a damaged header: {error!r}") from None
    begin, last = 8 + length, max((each.end for each in tensors.values()), default=0)
    return TensorFile(begin, tensors, begin + last == size)


def digest_of(paths: Iterable[Path]) -> str:
    """A digest of the contents of these checkpoint folders or files; empty without weights."""
    digest = hashlib.blake2b(digest_size=8)
    has_weights = False
    for place in paths:
        for path in _list_files(place):
            has_weights |= path.suffix in WEIGHTS
            digest.update(f"{path.name}\0{_digest_file(path)}\0".encode())
    return digest.hexdigest() if has_weights else ""


def find_folder(name: str) -> Path | None:
    """The folder that a model's name is, if it is one on this machine."""
    path = Path(name).expanduser()
    return path if path.is_dir() else None


def hub_folder(name: str) -> Path:
    """Where the local cache of Hugging Face keeps a model."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()
    return hub / f"models--{name.replace('/', '--')}"


def find_in_hub(name: str, revision: str | None = None) -> Path | None:
    """The snapshot of a Hugging Face model in the local cache."""
    own = hub_folder(name)
    commit = revision or "main"
    with suppress(OSError, UnicodeDecodeError):
        commit = (own / "refs" / commit).read_text().strip()
    found = own / "snapshots" / commit
    return found if found.is_dir() else None


def _list_files(place: Path) -> list[Path]:
    paths = sorted(place.iterdir()) if place.is_dir() else [place]
    is_known = [path.suffix in WEIGHTS or path.name in FURTHER for path in paths]
    return [path for path, known in zip(paths, is_known, strict=True) if known and path.is_file()]


def _digest_file(path: Path) -> str:
    status = path.stat()
    times = status.st_mtime_ns, status.st_ctime_ns
    key = f"{path.resolve()}\0{status.st_ino}\0{status.st_size}\0{times}"
    if (folder := cache_folder()) is None:
        return _sample(path, status.st_size)
    cached = folder / "weights" / hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
    with suppress(OSError, UnicodeDecodeError):
        if found := cached.read_text():
            return found
    found = _sample(path, status.st_size)
    with suppress(OSError):  # a cache that cannot be written is none
        cached.parent.mkdir(parents=True, exist_ok=True)
        new = cached.with_suffix(f".{os.getpid()}")
        new.write_text(found)
        new.replace(cached)
    return found


def _sample(path: Path, size: int) -> str:
    digest = hashlib.blake2b(f"{size}".encode(), digest_size=16)
    with path.open("rb") as file:
        if size <= 2 * NUM_BLOCKS * BLOCK and path.suffix != ".safetensors":
            digest.update(file.read())
            return digest.hexdigest()
        for start in _list_starts(path, size):
            file.seek(start)
            digest.update(file.read(BLOCK))
    return digest.hexdigest()


def _list_starts(path: Path, size: int) -> Iterator[int]:
    """Where blocks are read."""
    if path.suffix == ".safetensors":
        with suppress(ValueError):
            begin, tensors, _ = read_header(path)
            yield from range(0, begin, BLOCK)
            for first, last in sorted((each.start, each.end) for each in tensors.values()):
                middle = (first + last) // 2
                yield from (begin + each for each in (first, middle, max(first, last - BLOCK)))
            return
    yield from range(0, size, max(BLOCK, size // NUM_BLOCKS))
