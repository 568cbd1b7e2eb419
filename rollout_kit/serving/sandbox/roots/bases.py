"""Which base an image of a Dockerfile is, on this machine: its own programs, a folder, or a Debian
system that is built."""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MACHINE = "machine"
"""As a root's folder: this machine's own programs."""

SUITES = {
    "bullseye": ("11", "oldoldstable"),
    "bookworm": ("12", "oldstable"),
    "trixie": ("13", "stable", "latest"),
    "forky": ("14", "testing"),
    "sid": ("unstable",),
}

PYTHONS = {"3.11": "bookworm", "3.13": "trixie", "3.14": "forky"}
"""The Debian suite whose Python has this version."""

NODES = {"18": "bookworm", "20": "trixie"}

PACKAGES = {
    "debian": "",
    "python": "python3,python3-pip,python3-venv,python-is-python3",
    "node": "nodejs,npm",
}

NO_BUILDER = (
    "apt-get install mmdebstrap builds one, as root; or name a folder with a root file system:"
    " +roots.{name}=<folder>"
)


@dataclass(frozen=True, slots=True)
class Base:
    """What lies below the steps of a Dockerfile: without a folder and a suite, this machine."""

    name: str
    folder: Path | None = None
    suite: str = ""
    packages: str = ""

    @property
    def identity(self) -> list[str]:
        """What its cached roots depend on."""
        if self.suite:
            return ["debian", self.suite, self.packages]
        if self.folder is not None:
            found = os.stat(self.folder)
            return ["folder", str(self.folder.resolve()), str(found.st_ino)]
        release = _read_release()
        return ["machine", release.get("PRETTY_NAME", ""), sys.version, platform.machine()]

    def __str__(self) -> str:
        if self.suite:
            return f"Debian {self.suite}" + (f" with {self.packages}" if self.packages else "")
        return f"the folder {self.folder}" if self.folder else "this machine's programs"


def find_base(image: str, roots: Mapping[str, str], *, needs_apt: bool = False) -> Base:
    """The base of an image; ValueError says why there is none here."""
    name = re.sub(r"^(docker\.io/)?(library/)?", "", image).partition("@")[0]
    short, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", "")
    for known in (image, name, short):
        if known in roots:
            return _find_folder(image, known, roots[known])
    if short not in PACKAGES:
        raise ValueError(
            f"there is no {image} here: debian, python and node are known; name a folder with its"
            f" files: +roots.{short}=<folder>"
        )
    version, suite = _read_tag(short, tag)
    if not needs_apt and _is_own(short, version, suite):
        return Base(image)
    if not suite:
        raise ValueError(
            f"Debian has no {short} {version or tag}: name a folder: +roots.{short}=<folder>"
        )
    if why := _explain_no_builder():
        need = "apt needs a root of its own" if needs_apt else f"this machine has no {name}"
        raise ValueError(f"{need}: {why.format(name=short)}")
    return Base(image, suite=suite, packages=PACKAGES[short])


def _find_folder(image: str, name: str, given: str) -> Base:
    if given == MACHINE:
        return Base(image)
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise ValueError(f"roots.{name}: there is no folder {folder}")
    return Base(image, folder=folder)


def _read_tag(name: str, tag: str) -> tuple[str, str]:
    """The version that a tag names, if it does, and the Debian suite that has it."""
    words = tag.removesuffix("-slim").split("-") if tag else []
    names = {other: suite for suite, others in SUITES.items() for other in (suite, *others)}
    if name == "debian":
        first = words[0].partition(".")[0] if words else "latest"
        return first, names.get(first, "")
    version = words[0] if words and words[0][:1].isdigit() else ""
    if name == "python":
        minor = ".".join(version.split(".")[:2])
        return minor, PYTHONS.get(minor, "") if version else PYTHONS["3.13"]
    major = version.partition(".")[0]
    return major, NODES.get(major, "") if version else NODES["20"]


def _is_own(name: str, version: str, suite: str) -> bool:
    """Whether this machine's programs are those of the image, for all that its tag says."""
    if name == "python":
        own = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return version in ("", "3", own)
    if name == "node":
        return _find_node() not in ("", None) and version in ("", _find_node())
    release = _read_release()
    return release.get("ID") == "debian" and release.get("VERSION_CODENAME") == suite


@cache
def _find_node() -> str:
    """The major version of this machine's Node.js; empty without one that a session sees."""
    path = shutil.which("node", path="/usr/local/bin:/usr/bin:/bin")
    if path is None:
        return ""
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.strip().removeprefix("v").partition(".")[0]


@cache
def _read_release() -> dict[str, str]:
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {name: value.strip('"') for name, _, value in pairs}


def _explain_no_builder() -> str:
    """Why no Debian system can be built here; empty if one can."""
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        return NO_BUILDER
    return ""
