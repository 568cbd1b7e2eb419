"""Plant faults in a package, keep those that its tests find each time, and write the tasks."""

import asyncio
import os
import random
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from ...config.keys import MakeTasksConfig
from ...errors import ConfigError, number_of
from ...types import Say
from .faults import Fault, choose, list_differences, list_faults, parses
from .source import PackageSource, find_previous, read_source
from .tasks import FaultyTask, write_task
from .workbench import Covered, Outcome, Workbench, install, opening

NUM_RUNS = 3
"""How often a verdict must be the same."""

AT_ONCE = max(2, min(8, len(os.sched_getaffinity(0))))
"""Sessions in which faults are tried."""

LEAST_S, SLOWER = 5.0, 5.0
"""Time limit of a run with a fault: so many times what the tests take, and at least this."""

MAX_SHARE = 0.8
"""Of the tests that a fault may break; one that breaks more is no search."""

MIN_LEAK = 12
"""Characters of a line that tells the answer if a test contains it."""


@dataclass(frozen=True, slots=True)
class Suite:
    """The tests that pass each time, their files, and how long a run takes."""

    tests: frozenset[str]
    files: tuple[str, ...]
    run_s: float
    covered: Covered

    def list_tests(self, files: Collection[str]) -> set[str]:
        return {each for each in self.tests if each.partition("::")[0] in files}

    def find_files(self, faults: Sequence[Fault]) -> Sequence[str]:
        """The test files that run the changed lines; all of them if an import runs one."""
        found = [self.covered.get(each.path, {}).get(each.line, {""}) for each in faults]
        files = {name for each in found for name in each}
        return self.files if "" in files else [each for each in self.files if each in files]


async def make_tasks(command: MakeTasksConfig, given: str, say: Say) -> list[Path]:
    """The folders of the tasks that were made of one package; ConfigError if none can be."""
    with tempfile.TemporaryDirectory(prefix="tasks-") as place:
        source = await asyncio.to_thread(read_source, given, Path(place))
        say(f"{source.label}: license {source.license}")
        context = Path(place, "context")
        root, dockerfile, first = await install(
            source, context, command.python, command.suite_timeout_s, say
        )
        async with AsyncExitStack() as stack:
            benches = [
                await stack.enter_async_context(opening(root, source, command.suite_timeout_s))
                for _ in range(AT_ONCE)
            ]
            suite = await _find_suite(benches[0], source, first)
            say(f"{source.label}: {number_of(len(suite.tests), 'test')} in {suite.run_s:.1f} s")
            for each in benches:
                each.timeout_s = min(each.timeout_s, max(LEAST_S, SLOWER * suite.run_s))
            faults = await _list_faults(suite.covered, source, command, Path(place))
            if not faults:
                raise ConfigError(
                    f"{source.label}: its tests run no line of its code in which a fault can be"
                    " planted. They may import another copy that is installed"
                )
            say(f"{source.label}: {number_of(len(faults), 'fault')} to try")
            found: list[FaultyTask] = []
            async for each in _try_all(benches, source, suite, faults, command):
                found.append(each)
                say(f"{source.label}: {len(found)} of at most {command.num_tasks} tasks")
        folders = []
        for number, task in enumerate(found, 1):
            name = f"{source.label}-{task.kind.replace('_', '-')}-{number:03}"
            folder = command.output_dir / name
            write_task(folder, task, source, dockerfile, suite.run_s)
            folders.append(folder)
    say(f"{source.label}: {number_of(len(folders), 'task')}")
    return folders


async def _find_suite(bench: Workbench, source: PackageSource, first: Outcome) -> Suite:
    """What passes in each of three runs."""
    began, found = time.monotonic(), first
    for _ in range(NUM_RUNS - 1):
        if not found.is_whole:
            break
        again = await bench.run([])
        found = Outcome(found.passed & again.passed, again.failed, again.is_whole)
    if not found.is_whole or not found.passed:
        reasons = " ".join(list(found.failed.values())[:1])[-300:]
        raise ConfigError(f"{source.label}: no test passes each time: {reasons or 'there is none'}")
    files = sorted({each.partition("::")[0] for each in found.passed})
    run_s = (time.monotonic() - began) / (NUM_RUNS - 1)
    await bench.run([], covers=True)
    return Suite(found.passed, tuple(files), run_s, await bench.read_covered())


async def _list_faults(
    covered: Covered, source: PackageSource, command: MakeTasksConfig, place: Path
) -> list[Fault]:
    draw = random.Random(command.seed)
    found: list[Fault] = []
    for path, lines in sorted(covered.items()):
        file = source.folder / path
        if file.is_file() and path.endswith(".py") and path != "setup.py":
            found += list_faults(path, file.read_text(errors="replace"), lines, draw)
    if "earlier_release" in command.kinds and source.origin.startswith("http"):
        found += await asyncio.to_thread(_list_reverted, source, set(covered), place)
    found = [each for each in found if each.kind in command.kinds]
    return choose(found, command.seed)


def _list_reverted(source: PackageSource, covered: set[str], place: Path) -> list[Fault]:
    """Differences to the release before, if there is one."""
    try:
        version = find_previous(source.name, source.version)
        if version is None:
            return []
        earlier = read_source(f"pypi:{source.name}=={version}", place / "earlier")
    except ConfigError:
        return []
    found: list[Fault] = []
    for path in sorted(covered):
        now, before = source.folder / path, earlier.folder / path
        if now.is_file() and before.is_file():
            texts = [each.read_text(errors="replace") for each in (now, before)]
            if texts[0] != texts[1]:
                found += list_differences(path, *texts)
    return found


async def _try_all(
    benches: Sequence[Workbench],
    source: PackageSource,
    suite: Suite,
    faults: Sequence[Fault],
    command: MakeTasksConfig,
) -> AsyncIterator[FaultyTask]:
    """The tasks, until there are enough or the time is over."""
    end = time.monotonic() + command.max_minutes * 60
    texts = _read_tests(source.tests)
    queue, made = iter(faults), asyncio.Queue[FaultyTask | None]()
    num_made = 0

    async def work(bench: Workbench) -> None:
        nonlocal num_made
        last: FaultyTask | None = None
        for fault in queue:
            if num_made >= command.num_tasks or time.monotonic() > end:
                break
            task = await _try(bench, suite, [fault], texts)
            if task is None:
                continue
            is_pair = last is not None and num_made % 4 == 3
            if is_pair and last is not None and last.faults[0].path != fault.path:
                pair = await _try(bench, suite, [last.faults[0], fault], texts)
                task = pair or task
            last = task
            num_made += 1
            if num_made <= command.num_tasks:
                made.put_nowait(task)
        made.put_nowait(None)

    workers = [asyncio.create_task(work(bench)) for bench in benches]
    try:
        num_ended = 0
        while num_ended < len(workers):
            task = await made.get()
            if task is None:
                num_ended += 1
            else:
                yield task
    finally:
        for worker in workers:
            worker.cancel()
        for found in await asyncio.gather(*workers, return_exceptions=True):
            if isinstance(found, Exception):
                raise found


async def _try(
    bench: Workbench, suite: Suite, faults: list[Fault], texts: str
) -> FaultyTask | None:
    """A task, if the tests find the fault, the same ones each time, and none tells the answer."""
    if not all(parses(each.changed) for each in faults):
        return None
    if any(len(line) >= MIN_LEAK and line in texts for each in faults for line in each.lost):
        return None
    changed = {each.path: each.changed for each in faults}
    files = suite.find_files(faults)
    first = await bench.run(files, changed)
    broken = suite.list_tests(files) - first.passed
    if not first.is_whole or not broken or len(broken) > MAX_SHARE * len(suite.tests):
        return None
    files = sorted({each.partition("::")[0] for each in broken})
    for _ in range(NUM_RUNS - 1):
        again = await bench.run(files, changed)
        if not again.is_whole or suite.list_tests(files) - again.passed != broken:
            return None
    tests = sorted(suite.list_tests(files))
    difficulty = await measure_difficulty(bench, suite, faults, files)
    if difficulty is None:
        return None
    messages = {each: first.failed.get(each, "") for each in sorted(broken)}
    return FaultyTask(tuple(faults), tuple(tests), tuple(files), messages, difficulty)


async def measure_difficulty(
    bench: Workbench, suite: Suite, faults: Sequence[Fault], files: Sequence[str]
) -> float | None:
    """The share of answers that fail, for a policy that reverts each fault with chance 1/2. None if
    a part of the faults can stay. Reverting all, and reverting none, were tried before."""
    num_failing = 1
    for number in range(1, len(faults)):
        for left in combinations(faults, number):
            found = await bench.run(files, {each.path: each.changed for each in left})
            if found.is_whole and not suite.list_tests(files) - found.passed:
                return None
            num_failing += 1
    return num_failing / 2 ** len(faults)


def _read_tests(folder: Path) -> str:
    return "\n".join(
        path.read_text(errors="replace") for path in sorted(folder.rglob("*")) if path.is_file()
    )
