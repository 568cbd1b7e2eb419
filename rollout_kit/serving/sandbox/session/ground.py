"""The files that every session starts from: this machine's programs, or a folder. Standard library
only.

Of this machine a session sees `/usr`, the interpreter and the harmless part of `/etc`: no home, no
key, no configuration of a service.
"""

import os
import shutil
import stat
import sys
from contextlib import suppress
from typing import NamedTuple

from .. import kernel

PLACE = "/sys"
"""Hidden in the mounts of the warden, which needs nothing of it: a place that every machine has."""

BASE, LOWER, ROOM = f"{PLACE}/base", f"{PLACE}/lower", f"{PLACE}/room"

OPT_PACKAGES = "/opt/packages"

ENVIRONMENT = {
    "HOME": "/root",
    "LC_CTYPE": "C.UTF-8",  # LANG has each program read twelve files more, to the same effect
    "PATH": "/opt/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "SHELL": "/bin/bash",  # without it, bash looks the user up at each start
    "TERM": "xterm",
}

FOLDERS = ("etc", "home", "mnt", "opt", "opt/bin", "root", "run", "srv", "usr", "var", "var/tmp")

LINKED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

COPIED = """
alternatives bash.bashrc bash_completion debian_version inputrc ld.so.cache ld.so.conf ld.so.conf.d
locale.alias localtime login.defs magic mime.types networks nsswitch.conf os-release perl profile
protocols python3 python3.11 python3.12 python3.13 python3.14 rpc services shells
ssl/certs/ca-certificates.crt ssl/openssl.cnf terminfo timezone
"""
"""Of `/etc`."""

WRITTEN = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1::/:/usr/sbin/nologin\n"
    "agent:x:1000:1000::/home/agent:/bin/bash\nnobody:x:65534:65534::/:/usr/sbin/nologin\n",
    "group": "root:x:0:\ndaemon:x:1:\ntty:x:5:\nagent:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost session\n::1 localhost\n",
    "hostname": "session\n",
    "resolv.conf": "",
}


class Ground(NamedTuple):
    """`overlays`: where a session may write, and what lies below, the uppermost folder first;
    `binds`: what it only reads."""

    overlays: list[tuple[str, list[str]]]
    binds: list[tuple[str, str]]

    @property
    def sources(self) -> list[str]:
        below = [source for _, sources in self.overlays for source in sources]
        return [*below, *(source for _, source in self.binds)]

    @property
    def places(self) -> list[tuple[str, list[int]]]:
        """The overlays with the numbers of their sources."""
        numbers = iter(range(len(self.sources)))
        return [(place, [next(numbers) for _ in sources]) for place, sources in self.overlays]


def prepare(root: str, packages: list[str], folders: dict[str, str], layers: list[str]) -> Ground:
    """Lay out the ground in the mounts of this process: of the folder `root`, or of this machine
    if it is empty; with the `packages`, files and folders to import, and `folders` that are seen,
    place → folder. `layers` lie over it, the uppermost first."""
    kernel.mount("tmpfs", PLACE, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=512m")
    for place in (BASE, LOWER, ROOM):
        os.mkdir(place)
    found = Ground([("/", [os.path.realpath(root)])], []) if root else _lay_own(packages)
    for place, sources in found.overlays:
        above = [os.path.realpath(each) + place.rstrip("/") for each in layers]
        sources[:0] = [each for each in above if os.path.isdir(each)]
    for place, folder in folders.items():
        found.binds.append((os.path.normpath(place), os.path.realpath(folder)))
    num_below = len(found.sources) - len(found.binds)
    for number, source in enumerate(found.sources):
        os.mkdir(f"{LOWER}/{number}")
        # an overlay shows no other mounts, and cannot be made where there are some
        is_alone = number < num_below
        kernel.bind_read_only(source, f"{LOWER}/{number}", is_alone=is_alone)
    return found


def _lay_own(packages: list[str]) -> Ground:
    overlays = [("/", [BASE]), ("/usr", ["/usr"])]
    for name in FOLDERS:
        os.makedirs(f"{BASE}/{name}", exist_ok=True)
    for name in LINKED:
        if os.path.islink(f"/{name}"):
            os.symlink(os.readlink(f"/{name}"), f"{BASE}/{name}")
        elif os.path.isdir(f"/{name}"):
            os.mkdir(f"{BASE}/{name}")
            overlays.append((f"/{name}", [f"/{name}"]))
    for name in COPIED.split():
        _copy(f"/etc/{name}", f"{BASE}/etc/{name}")
    for name, text in WRITTEN.items():
        with open(f"{BASE}/etc/{name}", "w") as file:
            file.write(text)
    os.chmod(f"{BASE}/root", 0o711)  # the interpreter may be in there
    prefix = os.path.realpath(sys.base_prefix)
    if not prefix.startswith("/usr"):  # at its own place, where it finds its libraries
        os.makedirs(BASE + prefix)
        overlays.append((prefix, [prefix]))
        program = f"{prefix}/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
        for name in ("python", "python3", os.path.basename(program)):
            os.symlink(program, f"{BASE}/opt/bin/{name}")
        for name in ("pip", "pip3"):
            _write_program(name, "exec python3 -m pip")
    _copy_packages(packages)
    return Ground(overlays, [])


def _copy_packages(packages: list[str]) -> None:
    os.mkdir(BASE + OPT_PACKAGES)
    for each in packages:
        _copy(each, f"{BASE}{OPT_PACKAGES}/{os.path.basename(each)}")
    if os.path.isdir(f"{BASE}{OPT_PACKAGES}/pytest"):
        _write_program("pytest", "exec python3 -m pytest")


def _write_program(name: str, command: str) -> None:
    with open(f"{BASE}/opt/bin/{name}", "w") as file:
        file.write(f'#!/bin/sh\n{command} "$@"\n')
    os.chmod(f"{BASE}/opt/bin/{name}", 0o755)


def _copy(source: str, target: str) -> None:
    """Copy what every user may read."""
    if not os.path.lexists(source):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.isdir(source) and not os.path.islink(source):
        shutil.copytree(source, target, symlinks=True, ignore=_list_hidden, dirs_exist_ok=True)
    elif os.path.islink(source) and not os.path.exists(source):
        os.symlink(os.readlink(source), target)
    elif os.stat(source).st_mode & stat.S_IROTH:
        shutil.copy(source, target)


def _list_hidden(folder: str, names: list[str]) -> list[str]:
    hidden = []
    for name in names:
        with suppress(OSError):
            if not os.lstat(f"{folder}/{name}").st_mode & stat.S_IROTH:
                hidden.append(name)
    return hidden
