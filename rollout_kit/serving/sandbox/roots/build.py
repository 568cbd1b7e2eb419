"""Build a root: a base, and one layer with what the steps of a Dockerfile have changed.

The steps run in a session, so they reach nothing of this machine. Of the network they reach the
registries of pip, apt and npm. The cache knows a root by its base, its steps and the content of the
files that it copies.
"""

import asyncio
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ....errors import ConfigError
from ....reading import cache_folder
from ....types import Say
from ..limits import SandboxError
from ..session.allowed import reaching
from ..session.bounds import SessionLimits, SessionRefused
from ..session.changes import Rules
from ..session.client import Sessions, ShellSession
from .bases import Base, find_base
from .dockerfile import BuildProblem, CopyStep, FolderStep, Recipe, RunStep, Step
from .packing import keep_plainly
from .tree import write_layer

REGISTRIES = (
    *("pypi.org", "files.pythonhosted.org", "*.debian.org", "deb.debian.org"),
    *("registry.npmjs.org", "nodejs.org"),
)
"""What the steps of a build reach."""

BUILD = SessionLimits(time_s=7200.0, memory_mb=4096, disk_mb=8192, num_processes=512)

NOT_KEPT = (
    *("/run", "/dev", "/proc", "/sys", "/root/.cache"),
    *("/var/cache/apt/archives", "/var/cache/apt/pkgcache.bin", "/var/cache/apt/srcpkgcache.bin"),
    "/var/lib/apt/lists",
)
"""What a build leaves there is no part of the root."""

CERTIFICATES = "/run/certificates.crt"

BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")

VERSION = 1
"""Of the layers in the cache; a change of what a build does makes another one."""

FOR_PYTHON = (
    "rm -f /usr/lib/python3*/EXTERNALLY-MANAGED; ln -sf /usr/bin/pip3 /usr/local/bin/pip || true"
)


@dataclass(frozen=True, slots=True)
class Root:
    """A root that sessions start from, and what a Dockerfile says of its commands."""

    digest: str
    folder: Path | None = None
    layers: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = ""
    num_bytes: int = 0
    """Of its layer."""
    was_cached: bool = False


class CannotBuild(Exception):
    """A root that cannot be had here, because of one line."""

    def __init__(self, problem: BuildProblem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def keep_folder() -> Path:
    """Where roots are kept; ConfigError without a home folder."""
    if (folder := cache_folder()) is None:
        raise ConfigError("roots: there is no home folder: set XDG_CACHE_HOME to a folder")
    return folder / "roots"


def choose_base(recipe: Recipe, roots: Mapping[str, str], name: str) -> Base:
    """The base of a recipe; CannotBuild with the first line that prevents it."""
    for problem in recipe.problems:
        raise CannotBuild(problem)
    needs_apt = any(isinstance(step, RunStep) and _uses_apt(step) for step in recipe.steps)
    try:
        return find_base(recipe.base, roots, needs_apt=needs_apt)
    except ValueError as error:
        raise CannotBuild(BuildProblem(name, recipe.base_line, f"FROM: {error}")) from None


def _uses_apt(step: RunStep) -> bool:
    words = " ".join(step.words).replace(";", " ").replace("&", " ").replace("|", " ").split()
    return any(word.rpartition("/")[2] in ("apt", "apt-get", "dpkg") for word in words)


async def build_root(
    recipe: Recipe,
    roots: Mapping[str, str],
    packages: Sequence[str],
    say: Say,
    name: str = "Dockerfile",
) -> Root:
    """The root of a recipe, from the cache or built; CannotBuild if a line prevents it. All steps
    to the last RUN are one layer, and what is copied after it another one."""
    base = choose_base(recipe, roots, name)
    folder, was_cached = base.folder, True
    if base.suite:
        folder, was_cached = await _get_debian(base, say)
    ground = Root("", folder, was_cached=was_cached)
    saying = _Saying(say, base, name)
    for steps in _split_steps(recipe.steps):
        below = ground.digest or json.dumps([VERSION, base.identity, sorted(packages)])
        digest = await asyncio.to_thread(_find_digest, below, steps)
        place = keep_folder() / f"{digest}.layer"
        async with _lock(place):
            about = _read_about(place)
            is_new = about is None
            if about is None:
                about = await _build(steps, ground, packages, place, saying)
        ground = replace(
            ground,
            digest=digest,
            layers=(place / "tree", *ground.layers),
            num_bytes=ground.num_bytes + about["num_bytes"],
            was_cached=ground.was_cached and not is_new,
        )
    given = {"workdir": recipe.workdir, "user": recipe.user}
    return replace(ground, environment=dict(recipe.environment), **given)


def _split_steps(steps: Sequence[Step]) -> list[Sequence[Step]]:
    """The steps of each layer. Folders alone need none: a session makes its working folder."""
    last = max((n for n, each in enumerate(steps) if isinstance(each, RunStep)), default=-1)
    parts = [steps[: last + 1], steps[last + 1 :]]
    return [part for part in parts if not all(isinstance(each, FolderStep) for each in part)]


@dataclass(frozen=True, slots=True)
class _Saying:
    say: Say
    base: Base
    name: str


def _find_digest(below: str, steps: Sequence[Step]) -> str:
    found = hashlib.sha256(below.encode())
    for step in steps:
        if isinstance(step, CopyStep):
            where = [step.target, step.is_folder, step.owner, step.mode, step.unpacks]
            found.update(json.dumps(where).encode())
            for source in step.sources:
                for part in _read_content(source):
                    found.update(part)
        elif isinstance(step, RunStep):
            ran = [step.words, step.cwd, step.user, step.environment]
            found.update(json.dumps(ran).encode())
        else:
            found.update(json.dumps(step.path).encode())
    return found.hexdigest()[:20]


def _read_content(source: Path) -> Iterator[bytes]:
    paths = [source, *sorted(source.rglob("*"))] if source.is_dir() else [source]
    for path in paths:
        status = path.lstat()
        yield f"{path.relative_to(source.parent)} {status.st_mode:o}\0".encode()
        if path.is_symlink():
            yield os.readlink(path).encode()
        elif path.is_file():
            yield path.read_bytes()


@asynccontextmanager
async def _lock(place: Path) -> AsyncIterator[None]:
    """Held by one builder of this place at a time, on this machine."""
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = await asyncio.to_thread(open, f"{place}.lock", "w")
    try:
        await asyncio.to_thread(fcntl.flock, file, fcntl.LOCK_EX)
        yield
    finally:
        file.close()


def _read_about(place: Path) -> dict[str, int] | None:
    try:
        return json.loads((place / "about.json").read_bytes())
    except (OSError, ValueError):
        return None


async def _build(
    steps: Sequence[Step], ground: Root, packages: Sequence[str], place: Path, saying: _Saying
) -> dict[str, int]:
    began, say = time.monotonic(), saying.say
    over = "the layer below" if ground.layers else saying.base
    say(f"{saying.name}: building over {over}")
    given = () if ground.folder else packages
    partial = Path(tempfile.mkdtemp(dir=place.parent, prefix="partial-"))
    try:
        async with (
            Sessions(ground.folder, given, layers=ground.layers, limits=BUILD) as sessions,
            sessions.session(BUILD) as session,
        ):
            await session.seal()
            await _write_certificates(session)
            async with reaching(session, REGISTRIES) as network:
                variables = {**network, **_name_certificates()}
                for step in steps:
                    await _perform(step, session, variables, saying)
            await session.end_processes()
            file, _ = await session.pack_changes(Rules(NOT_KEPT))
        about = await asyncio.to_thread(_keep_layer, file, partial, place)
    except SandboxError as error:
        raise CannotBuild(BuildProblem(saying.name, steps[0].line, str(error))) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    took_s = time.monotonic() - began
    say(f"{saying.name}: built in {took_s:.1f} s, {about['num_bytes'] / 1e6:.1f} MB")
    return about


def _keep_layer(file: int, partial: Path, place: Path) -> dict[str, int]:
    """Write the changes of a session as a layer, whole or not at all."""
    tree = partial / "tree"
    tree.mkdir(mode=0o755)
    with os.fdopen(file, "rb") as opened:
        size = write_layer(opened, tree)
    about = {"num_bytes": size, "built_at": int(time.time())}
    (partial / "about.json").write_text(json.dumps(about))
    shutil.rmtree(place, ignore_errors=True)
    partial.rename(place)
    return about


async def _perform(
    step: Step,
    session: ShellSession,
    network: Mapping[str, str],
    saying: _Saying,
) -> None:
    try:
        if isinstance(step, RunStep):
            saying.say(f"{saying.name}:{step.line}: RUN {shlex.join(step.words)[:100]}")
            await _run(step, session, network)
        elif isinstance(step, CopyStep):
            saying.say(f"{saying.name}:{step.line}: COPY to {step.target}")
            await _copy(step, session)
        else:
            await _shell(session, 'mkdir -p "$P"', P=step.path)
    except (SessionRefused, ValueError) as error:
        raise CannotBuild(BuildProblem(saying.name, step.line, str(error))) from None


async def _run(step: RunStep, session: ShellSession, network: Mapping[str, str]) -> None:
    session.user = step.user
    try:
        done = await session.exec(
            shlex.join(step.words),
            timeout_s=BUILD.time_s,
            output_bytes=4_000,
            cwd=step.cwd,
            environment={**dict(step.environment), **network},
        )
    finally:
        session.user = ""
    if done.status or done.ended_by:
        why = f"its limit of {done.ended_by}" if done.ended_by else f"status {done.status}"
        tail = (done.stdout + done.stderr).strip()[-1_000:]
        raise ValueError(f"RUN ended with {why}: {tail}")


async def _copy(step: CopyStep, session: ShellSession) -> None:
    """Copy by a tar file, which is laid out as the session shall have it."""
    is_folder = step.is_folder
    if not is_folder and not step.sources[0].is_dir():
        is_folder = (await session.exec('[ -d "$P" ]', environment={"P": step.target})).status == 0
    file = os.memfd_create("files", os.MFD_CLOEXEC)
    try:
        archives = await asyncio.to_thread(_pack_sources, file, step, is_folder)
        os.lseek(file, 0, os.SEEK_SET)
        await session.unpack(file, whole=True)
    finally:
        os.close(file)
    for path in archives:
        command = 'tar -xf "$P" -C "$(dirname "$P")" && rm -f "$P"'
        await _shell(session, command, P=path)
    if step.owner:
        await _shell(session, 'chown -R "$O" "$P"', O=step.owner, P=step.target)
    if step.mode:
        await _shell(session, 'chmod -R "$M" "$P"', M=step.mode, P=step.target)


async def _shell(session: ShellSession, command: str, **variables: str) -> None:
    done = await session.exec(command, cwd="/", environment=variables)
    if done.status:
        raise ValueError(done.stderr.strip()[-500:] or f"status {done.status}")


def _pack_sources(file: int, step: CopyStep, is_folder: bool) -> list[str]:
    """Write the files of a step into a tar file; which of them are archives to extract."""
    target, archives = step.target.strip("/"), list[str]()
    with (
        open(file, "wb", closefd=False) as opened,
        tarfile.open(fileobj=opened, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for source in step.sources:
            if source.is_dir():  # what is in it, not the folder itself
                archive.add(source, arcname=target or ".", recursive=False, filter=keep_plainly)
                for inner in sorted(source.iterdir()):
                    archive.add(inner, arcname=f"{target}/{inner.name}", filter=keep_plainly)
                continue
            name = f"{target}/{source.name}" if is_folder else target
            archive.add(source.resolve(), arcname=name, filter=keep_plainly)
            if step.unpacks and tarfile.is_tarfile(source):
                archives.append(f"/{name.lstrip('/')}")
    return archives


async def _write_certificates(session: ShellSession) -> None:
    for path in map(Path, BUNDLES):
        with suppress(OSError):
            await session.write_bytes(CERTIFICATES, await asyncio.to_thread(path.read_bytes))
            return


def _name_certificates() -> dict[str, str]:
    """Environment variables of programs that check certificates, without those that a task sets."""
    names = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
    given = dict.fromkeys((*names, "npm_config_cafile"), CERTIFICATES)
    pip = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_BREAK_SYSTEM_PACKAGES": "1"}
    return {**given, **pip, "PIP_ROOT_USER_ACTION": "ignore", "DEBIAN_FRONTEND": "noninteractive"}


async def _get_debian(base: Base, say: Say) -> tuple[Path, bool]:
    """The folder of a Debian system, and whether it was cached; CannotBuild if it fails."""
    digest = hashlib.sha256(json.dumps([VERSION, *base.identity]).encode()).hexdigest()[:12]
    place = keep_folder() / f"debian-{base.suite}-{digest}"
    async with _lock(place):
        if place.is_dir():
            return place, True
        say(f"{base.name}: building {base}: some minutes, once")
        began = time.monotonic()
        await asyncio.to_thread(_build_debian, base, place)
        say(f"{base.name}: built in {time.monotonic() - began:.0f} s")
    return place, False


def _build_debian(base: Base, place: Path) -> None:
    partial = Path(tempfile.mkdtemp(dir=place.parent, prefix="partial-"))
    try:
        _run_builder(base, partial)
        partial.chmod(0o755)
        partial.rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _run_builder(base: Base, target: Path) -> None:
    included = ",".join(filter(None, ("ca-certificates", base.packages)))
    hook = [f"--customize-hook=chroot \"$1\" sh -c '{FOR_PYTHON}'"] if "python" in included else []
    command = ["mmdebstrap", "--variant=minbase", "--mode=root", f"--include={included}", *hook]
    done = subprocess.run(
        [*command, base.suite, str(target)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        tail = " ".join(done.stderr.strip().splitlines()[-3:])
        raise CannotBuild(BuildProblem(base.name, 1, f"mmdebstrap {base.suite} failed: {tail}"))
