"""The objects below one path of an S3 bucket, for weights and spools.

An object appears whole or not at all, a reader sees the last write, and `create` never replaces an
object. Nothing else is assumed: there is no rename, no lock and no append.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..errors import ConfigError, RolloutKitError, how_to_install

T = TypeVar("T")

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)
"""`Path` leaves one slash of `s3://`."""


class BucketError(RolloutKitError):
    """The bucket cannot be read or written."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    size: int
    signature: tuple[str, ...]
    """Differs if the object was written again with another content, or in another second."""


def read_place(place: str | Path, where: str) -> str | None:
    """The path in a bucket, as `s3://bucket/path`; None for a folder. ConfigError for a URL of
    another kind."""
    parts = SCHEME.fullmatch(str(place))
    if parts is None:
        return None
    if parts[1].lower() != "s3" or not parts[2].strip("/"):
        raise ConfigError(
            f"{where}={place}: this is a folder, or s3://bucket/path; mount other stores as a"
            " folder"
        )
    return f"s3://{parts[2].strip('/')}"


class S3Bucket:
    """What is below `url`. Names are relative to it. The keys, the region and AWS_ENDPOINT_URL come
    from the environment or the files of AWS."""

    def __init__(self, url: str) -> None:
        try:
            import s3fs  # type: ignore[import-not-found]
        except ImportError as error:
            needs = how_to_install("rollout-kit[s3]")
            raise ConfigError(f"{url} cannot be used ({error}): {needs}") from None
        self.url = url
        self._root = url.removeprefix("s3://")
        self._s3: Any = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)

    def list(self, folder: str = "") -> dict[str, StoredObject]:
        """The objects below a folder, by name."""
        found = self._do("listed", self._s3.find, self._path(folder), detail=True)
        start = len(self._root) + 1
        return {
            path[start:]: StoredObject(
                about["size"], (str(about.get("ETag")), str(about.get("LastModified")))
            )
            for path, about in sorted(found.items())
            if not path.endswith("/")  # as consoles make for a folder
        }

    def read(self, name: str) -> bytes | None:
        """None if there is no such object."""
        try:
            return self._do("read", self._s3.cat_file, self._path(name))
        except FileNotFoundError:
            return None

    def write(self, name: str, raw: bytes) -> None:
        self._do("written", self._s3.pipe_file, self._path(name), raw)

    def create(self, name: str, raw: bytes) -> bool:
        """Write an object that was not there; False if it was, with another content."""
        try:
            self._do("written", self._s3.pipe_file, self._path(name), raw, mode="create")
        except FileExistsError:  # by a request of ours, perhaps, whose reply was lost
            return self.read(name) == raw
        return True

    def upload(self, path: Path, name: str) -> None:
        self._do("written", self._s3.put_file, str(path), self._path(name))

    def download(self, name: str, path: Path) -> None:
        """FileNotFoundError if there is no such object."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._do("read", self._s3.get_file, self._path(name), str(path))

    def remove(self, names: Iterable[str]) -> None:
        if paths := [self._path(name) for name in names]:
            self._do("removed", self._s3.rm, paths)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    def _do(self, what: str, act: Callable[..., T], *args: Any, **keys: Any) -> T:
        from botocore.exceptions import (  # type: ignore[import-not-found]
            BotoCoreError,
            ClientError,
        )

        try:
            return act(*args, **keys)
        except FileExistsError:
            raise
        except FileNotFoundError as error:
            if "bucket does not exist" in str(error):
                raise BucketError(f"{self.url}: there is no such bucket") from None
            raise
        except (OSError, BotoCoreError, ClientError) as error:
            why = " ".join(str(error).split())
            raise BucketError(f"{self.url} cannot be {what}: {why}") from error
