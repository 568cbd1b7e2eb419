"""A session with the package installed, in which its tests are run with and without a fault."""

import json
import os
import re
import shlex
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import ConfigError
from ...serving.sandbox.roots.build import CannotBuild, Root, build_root
from ...serving.sandbox.roots.dockerfile import read_dockerfile
from ...serving.sandbox.roots.packing import open_packed
from ...serving.sandbox.session.bounds import SessionLimits, SessionRefused
from ...serving.sandbox.session.client import Sessions, ShellSession
from ...types import Say
from .source import PackageSource

RUNNER = Path(__file__).with_name("written") / "run_tests.py"

LIMITS = SessionLimits(time_s=7200.0, memory_mb=2048, disk_mb=1024)

PACKAGES = ("pytest",)

EXTRAS = ("test", "tests", "testing")

REQUIREMENTS = re.compile(r"(requirements[-_]?(tests?|dev)|(tests?|dev)[-_]requirements)\.txt$")

MODULE = re.compile(r"No module named '([A-Za-z_]\w*)")

PLUGINS = {
    "async def functions are not natively supported": "pytest_asyncio",
    "fixture 'benchmark' not found": "pytest_benchmark",
    "fixture 'mocker' not found": "pytest_mock",
    "fixture 'subtests' not found": "pytest_subtests",
}
"""What pytest says of a test that needs a plugin, and the plugin."""

MAX_MORE = 10
"""Modules that the tests miss and that are installed for them."""

WITHOUT_TESTS = (
    "(cd /rk && find . -type f -print0) | (cd /app && xargs -0 rm -f) && rm -rf /rk build dist"
)
"""The tests are there while the package is installed, because it may name their folders."""

PYTHON = "python3 -P"
"""Without the working folder among the places to import from."""

COMPILE = (
    f"unset PYTHONDONTWRITEBYTECODE; {PYTHON} /rk/run_tests.py /rk/collected.json --collect-only;"
    " python3 -m compileall -q /app"
)
"""Compiled once, package and tests are not compiled again in each run."""

Covered = dict[str, dict[int, frozenset[str]]]
"""File → line → the test files that run it. An empty name: it runs when the file is imported."""

NOT_INSTALLED = {"tests", "test", "testing"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run of the suite gave: tests that passed, and the last lines of those that failed."""

    passed: frozenset[str] = frozenset()
    failed: dict[str, str] = field(default_factory=dict)
    is_whole: bool = False


def write_context(source: PackageSource, target: Path, python: str, more: Sequence[str]) -> Path:
    """The Dockerfile of the package, next to its code. What is copied after it is the fault."""
    wanted = ["pytest", "coverage", *more]
    names = [each.name for each in sorted(source.folder.glob("*.txt"))]
    files = [f"-r {shlex.quote(name)}" for name in names if REQUIREMENTS.search(name)]
    extra = next((each for each in EXTRAS if each in _list_extras(source.folder)), "")
    whole = shlex.quote(f".[{extra}]" if extra else ".")
    install = f"pip install -q {' '.join(map(shlex.quote, wanted))} -e {whole}"
    more_files = f" && {{ pip install -q {' '.join(files)} || true; }}" if files else ""
    target.mkdir(parents=True, exist_ok=True)
    text = (
        f"FROM python:{python}-slim\nWORKDIR /app\nCOPY project/ /app/\nCOPY suite/ /rk/\n"
        f"RUN cp -R /rk/. /app/ && {install}{more_files} && {WITHOUT_TESTS}\n"
    )
    (target / "Dockerfile").write_text(text)
    for name, folder in (("project", source.folder), ("suite", source.tests)):
        if not (target / name).exists():
            link_tree(folder, target / name)
    return target / "Dockerfile"


def _list_extras(folder: Path) -> set[str]:
    text = "".join(
        path.read_text(errors="replace")
        for name in ("PKG-INFO", "setup.py", "setup.cfg", "pyproject.toml")
        if (path := folder / name).is_file()
    )
    found = set(re.findall(r"Provides-Extra: (\w+)", text))
    named = (each for each in EXTRAS if re.search(rf"\b{each}\b['\"]?\s*[:=]\s*\[", text))
    return found or set(named)


def link_tree(source: Path, target: Path) -> None:
    """The same files in another folder, without a copy where the file system can."""
    for place, _, names in os.walk(source):
        to = target / Path(place).relative_to(source)
        to.mkdir(parents=True, exist_ok=True)
        for name in names:
            try:
                os.link(Path(place, name), to / name)
            except OSError:
                (to / name).write_bytes(Path(place, name).read_bytes())


class Workbench:
    """A session in which the suite is run. Each run starts from the files of the package."""

    def __init__(self, session: ShellSession, timeout_s: float) -> None:
        self._session, self.timeout_s = session, timeout_s

    async def prepare(self, tests: Path) -> None:
        session = self._session
        await session.write_bytes("/rk/run_tests.py", RUNNER.read_bytes())
        file = open_packed(tests)
        try:
            await session.unpack(file, to="/app")
        finally:
            os.close(file)
        await session.exec(COMPILE, cwd="/app", timeout_s=self.timeout_s)
        await session.seal()

    async def run(
        self, files: Sequence[str], changed: dict[str, str] | None = None, *, covers: bool = False
    ) -> Outcome:
        """The outcome with `changed` files in place of those of the package."""
        session = self._session
        await session.reset()
        for path, text in (changed or {}).items():
            await session.write_bytes(f"/app/{path}", text.encode())
        # the newest way to trace sees each line once, so not in all tests
        measured = f"COVERAGE_CORE=ctrace {PYTHON} -m coverage run --source=/app"
        python = measured if covers else PYTHON
        command = f"{python} /rk/run_tests.py /rk/report.json {' '.join(map(shlex.quote, files))}"
        done = await session.exec(command, cwd="/app", timeout_s=self.timeout_s, output_bytes=2_000)
        try:
            found = json.loads(await session.read_bytes("/rk/report.json"))
        except (SessionRefused, ValueError):
            late = (
                f"the tests take longer than {self.timeout_s:g} s"
                if done.ended_by == "time"
                else ""
            )
            return Outcome(failed={"pytest": late or (done.stdout + done.stderr)[-600:]})
        if not found["passed"] and not found["failed"]:  # a conftest.py that fails ends pytest
            found["failed"] = {"conftest.py": (done.stdout + done.stderr)[-600:]}
        return Outcome(frozenset(found["passed"]), found["failed"], True)

    async def read_covered(self) -> Covered:
        """The lines that the last run with `covers` has executed, by file."""
        command = "python3 -m coverage json -q --show-contexts -o /rk/covered.json"
        await self._session.exec(command, cwd="/app", timeout_s=60.0)
        try:
            found = json.loads(await self._session.read_bytes("/rk/covered.json"))
        except (SessionRefused, ValueError):
            return {}
        return {
            path: {int(line): frozenset(files) for line, files in each["contexts"].items()}
            for path, each in found["files"].items()
        }


async def install(
    source: PackageSource, place: Path, python: str, timeout_s: float, say: Say
) -> tuple[Root, Path, Outcome]:
    """The root with the package and what its tests import, its Dockerfile, and the first outcome;
    ConfigError if it cannot be installed."""
    more: list[str] = []
    while True:
        dockerfile = write_context(source, place, python, more)
        try:
            root = await build_root(read_dockerfile(dockerfile), {}, PACKAGES, say, source.label)
        except CannotBuild as error:
            raise ConfigError(f"{source.label}: cannot be installed: {error}") from None
        async with opening(root, source, timeout_s) as bench:
            found = await bench.run([])
        names = find_missing(found.failed.values())
        new = sorted(names - NOT_INSTALLED - {*more, source.name.replace("-", "_")})
        if not new or len(more) >= MAX_MORE:
            return root, dockerfile, found
        more += new[:5]


def find_missing(messages: Iterable[str]) -> set[str]:
    """The modules and plugins that tests lack, as their failures say."""
    text = "\n".join(messages)
    return {*MODULE.findall(text), *(PLUGINS[each] for each in PLUGINS if each in text)}


@asynccontextmanager
async def opening(root: Root, source: PackageSource, timeout_s: float) -> AsyncIterator[Workbench]:
    packages = () if root.folder else PACKAGES
    async with (
        Sessions(root.folder, packages, layers=root.layers, limits=LIMITS) as sessions,
        sessions.session(LIMITS, cwd="/app", environment=root.environment) as session,
    ):
        bench = Workbench(session, timeout_s)
        await bench.prepare(source.tests)
        yield bench
