"""The source of a package: its release on the Python registry, or a folder. Nothing is run."""

import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from urllib.parse import urljoin

from ...errors import ConfigError

INDEX = "https://pypi.org"
"""`PIP_INDEX_URL` names another one."""

TIMEOUT_S = 60

MAX_BYTES = 20 << 20
"""A larger source is no small package."""

MAX_FILES = 3_000

TESTS = re.compile(r"(^|/)(tests?|testing)/|(^|/)(test_[^/]*|[^/]*_test|conftest)\.py$")

LEFT_OUT = {".git", ".hg", ".tox", ".nox", ".venv", "__pycache__", "build", "dist", "node_modules"}

ANCHOR = re.compile(r'<a\s[^>]*?href="([^"]+)"[^>]*>([^<]+)</a>')


@dataclass(frozen=True, slots=True)
class PackageSource:
    """A package's files: `folder` has its code, `tests` its tests, at the same paths."""

    name: str
    version: str
    license: str
    origin: str
    folder: Path
    tests: Path

    @property
    def label(self) -> str:
        return f"{self.name}-{self.version}".replace("_", "-").lower()


def read_source(given: str, target: Path) -> PackageSource:
    """Unpack the source into `target`; ConfigError if it cannot be had."""
    if given.startswith("pypi:"):
        name, _, version = given.removeprefix("pypi:").partition("==")
        raw, file, url = _download(name, version)
        _unpack(raw, file, target / "whole")
        inner = [each for each in (target / "whole").iterdir() if each.is_dir()]
        whole = inner[0] if len(inner) == 1 else target / "whole"
        return _split(whole, target, f"{url} sha256={hashlib.sha256(raw).hexdigest()}")
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"{given}: neither a folder nor pypi:<package>")
    return _split(folder.resolve(), target, str(folder))


def list_releases(name: str) -> list[tuple[str, str]]:
    """The source releases of a package, as file and URL, in the order of the index."""
    index = os.environ.get("PIP_INDEX_URL", f"{INDEX}/simple").rstrip("/")
    page = f"{index}/{re.sub(r'[-_.]+', '-', name).lower()}/"
    accept = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
    request = urllib.request.Request(page, headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as stream:
            raw, kind = stream.read(), stream.headers.get("Content-Type", "")
    except (OSError, ValueError) as error:
        raise ConfigError(f"pypi:{name}: cannot be found at {page}: {error}") from None
    if "json" in kind:
        files = [(each["filename"], each["url"]) for each in json.loads(raw)["files"]]
    else:
        files = [(found[2].strip(), found[1]) for found in ANCHOR.finditer(raw.decode())]
    is_source = re.compile(r"\.(tar\.gz|zip)$")
    return [(file, urljoin(page, url)) for file, url in files if is_source.search(file)]


def sort_key(version: str) -> tuple[tuple[int, ...], bool]:
    """Releases in order, and before a final one what leads to it."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    numbers = tuple(map(int, found[0].split("."))) if found else (0,)
    return numbers, found is not None and found[0] == version


def version_of(file: str) -> str:
    return re.sub(r"\.(tar\.gz|zip)$", "", file).rpartition("-")[2]


def find_previous(name: str, version: str) -> str | None:
    """The release before this one."""
    versions = {version_of(file) for file, _ in list_releases(name)}
    older = [each for each in versions if sort_key(each) < sort_key(version)]
    final = [each for each in older if sort_key(each)[1]]
    return max(final, key=sort_key, default=None)


def _download(name: str, version: str) -> tuple[bytes, str, str]:
    releases = list_releases(name)
    if version:
        releases = [each for each in releases if version_of(each[0]) == version]
    final = [each for each in releases if sort_key(version_of(each[0]))[1]] or releases
    if not final:
        raise ConfigError(f"pypi:{name}: has no source release {version}".rstrip())
    file, url = max(final, key=lambda each: sort_key(version_of(each[0])))
    try:
        with urllib.request.urlopen(url.partition("#")[0], timeout=TIMEOUT_S) as stream:
            raw = stream.read(MAX_BYTES + 1)
    except (OSError, urllib.error.URLError) as error:
        raise ConfigError(f"pypi:{name}: cannot be downloaded: {error}") from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"pypi:{name}: its source has more than {MAX_BYTES >> 20} MB")
    return raw, file, url.partition("#")[0]


def _unpack(raw: bytes, file: str, target: Path) -> None:
    """Write the regular files of an archive; names that lead out of it are left out."""
    target.mkdir(parents=True)
    size = 0
    for number, (name, content, is_program) in enumerate(_read_archive(raw, file)):
        size += len(content)
        if size > 5 * MAX_BYTES or number > MAX_FILES:
            raise ConfigError(f"{file}: is too large")
        path = target / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755 if is_program else 0o644)


def _read_archive(raw: bytes, file: str) -> Iterator[tuple[str, bytes, bool]]:
    try:
        if file.endswith(".zip"):
            with zipfile.ZipFile(io.BytesIO(raw)) as archive:
                for entry in archive.infolist():
                    if not entry.is_dir():
                        yield entry.filename, archive.read(entry), False
            return
        with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
            for member in archive:
                if member.isreg() and (opened := archive.extractfile(member)) is not None:
                    yield member.name, opened.read(), bool(member.mode & 0o100)
    except (tarfile.TarError, zipfile.BadZipFile, OSError) as error:
        raise ConfigError(f"{file}: cannot be unpacked: {error}") from None


def is_test(path: str) -> bool:
    return TESTS.search(path) is not None


def _split(whole: Path, target: Path, origin: str) -> PackageSource:
    """Copy the code and the tests apart, so that no agent sees the tests."""
    code, tests = target / "project", target / "suite"
    number = 0
    for place, folders, names in os.walk(whole):
        folders[:] = sorted(each for each in folders if each not in LEFT_OUT)
        for name in sorted(names):
            path = Path(place, name)
            if path.is_symlink() or not path.is_file() or name.endswith(".pyc"):
                continue
            inside = path.relative_to(whole)
            to = (tests if is_test(inside.as_posix()) else code) / inside
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, to)
            number += 1
            if number > MAX_FILES:
                raise ConfigError(f"{whole.name}: has more than {MAX_FILES:,} files")
    if not tests.is_dir():
        raise ConfigError(f"{whole.name}: its source has no tests")
    code.mkdir(exist_ok=True)
    name, version, license = _read_metadata(whole)
    return PackageSource(name or whole.name, version or "0", license, origin, code, tests)


def _read_metadata(folder: Path) -> tuple[str, str, str]:
    """Name, version and license, as the release or the project's file says."""
    path = folder / "PKG-INFO"
    if path.is_file():
        about = HeaderParser().parsestr(path.read_text(errors="replace"))
        license = about.get("License-Expression") or about.get("License") or ""
        classes = [
            each.rpartition(" :: ")[2]
            for each in about.get_all("Classifier", [])
            if each.startswith("License ::")
        ]
        if not license or len(license) > 100 or "\n" in license:
            license = ", ".join(classes) or license.strip().split("\n")[0]
        return about.get("Name", ""), about.get("Version", ""), license or "unknown"
    import tomllib

    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text()).get("project", {})
    except (OSError, ValueError):
        project = {}
    license = project.get("license") or "unknown"
    if isinstance(license, dict):
        license = license.get("text") or license.get("file") or "unknown"
    return project.get("name", ""), project.get("version", ""), str(license).split("\n")[0]
