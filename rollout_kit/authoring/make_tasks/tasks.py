"""A planted fault as a folder in Harbor's format, and as a row with a scripted answer."""

import json
import random
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...serving.harbor.task_folder import HarborTask
from ...serving.harbor.task_rows import make_row
from ...types import JsonObject
from .faults import Fault
from .source import PackageSource
from .workbench import link_tree

WRITTEN = Path(__file__).with_name("written")

SETTINGS = ("pyproject.toml", "setup.cfg", "tox.ini", "pytest.ini", "setup.py")

NUM_SHOWN = 3
"""Failing tests that the instruction names."""

TEST = "#!/bin/bash\ncd /tests && exec python3 -I /tests/verify.py\n"

TOML = """\
schema_version = "1.4"

[task]
name = {name}
description = {description}

[metadata]
license = {license}
package = {package}
version = {version}
origin = {origin}
kind = {kind}
num_faults = {number}
num_failing_tests = {failing}
difficulty = {difficulty}

[agent]
timeout_sec = 900.0

[verifier]
timeout_sec = {timeout}

[environment]
network_mode = "no-network"
build_timeout_sec = 600.0
memory_mb = 2048
"""


@dataclass(frozen=True, slots=True)
class FaultyTask:
    """Faults that are planted together, the tests of the verdict, and what fails now."""

    faults: tuple[Fault, ...]
    tests: tuple[str, ...]
    files: tuple[str, ...]
    messages: dict[str, str]
    difficulty: float
    """Share of its answers with which a policy fails that reverts each fault with chance 1/2."""

    @property
    def kind(self) -> str:
        return self.faults[0].kind


def write_task(
    folder: Path, task: FaultyTask, source: PackageSource, dockerfile: Path, run_s: float
) -> None:
    """Write all of a folder, in place of an earlier one."""
    shutil.rmtree(folder, ignore_errors=True)
    environment, tests, solution = (folder / each for each in ("environment", "tests", "solution"))
    for each in (environment, tests, solution):
        each.mkdir(parents=True)
    link_tree(source.folder, environment / "project")
    link_tree(source.tests, environment / "suite")
    text = dockerfile.read_text() + "COPY fault/ /app/\n"
    (environment / "Dockerfile").write_text(text)
    for fault in task.faults:
        _write(environment / "fault" / fault.path, fault.changed)
        _write(solution / "original" / fault.path, fault.original)
    (solution / "solve.sh").write_text(
        '#!/bin/bash\nset -e\ncp -R "$(dirname "$0")/original/." /app/\n'
    )
    link_tree(source.tests, tests / "suite")
    for name in SETTINGS:
        if (source.folder / name).is_file():
            _write(tests / "settings" / name, (source.folder / name).read_text(errors="replace"))
    for name in ("run_tests.py", "verify.py"):
        shutil.copy(WRITTEN / name, tests / name)
    limit_s = max(60.0, 20 * run_s)
    expected = {"tests": task.tests, "files": task.files, "timeout_s": limit_s}
    (tests / "expected.json").write_text(json.dumps(expected))
    (tests / "test.sh").write_text(TEST)
    (tests / "test.sh").chmod(0o755)
    (folder / "instruction.md").write_text(_instruct(task, source))
    (folder / "task.toml").write_text(_describe(folder.name, task, source, limit_s + 30))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _instruct(task: FaultyTask, source: PackageSource) -> str:
    number = len(task.faults)
    what = "a fault" if number == 1 else f"{number} faults"
    lines = [
        f"The source of the Python package {source.name} is in /app. It has {what}, so that some of"
        " its tests fail. You do not have the tests. Find and repair the source.",
        "",
    ]
    lines += [each.about for each in task.faults if each.about]
    lost = {line for each in task.faults for line in each.lost}
    shown = [
        (name, text)
        for name, text in task.messages.items()
        if not any(line in text for line in lost if len(line) > 3)
    ]
    if shown:
        lines += ["", "These tests fail, for example:", ""]
    for name, text in shown[:NUM_SHOWN]:
        lines += [f"- `{name}`", "", *(f"      {each}" for each in text.splitlines()), ""]
    return "\n".join(lines).rstrip() + "\n"


def _describe(name: str, task: FaultyTask, source: PackageSource, timeout_s: float) -> str:
    given = {
        "name": f"made/{name}",
        "description": f"Repair {source.name} {source.version}",
        "license": source.license,
        "package": source.name,
        "version": source.version,
        "origin": source.origin,
        "kind": task.kind,
    }
    quoted = {key: json.dumps(text, ensure_ascii=False) for key, text in given.items()}
    return TOML.format(
        **quoted,
        number=len(task.faults),
        failing=len(task.messages),
        difficulty=task.difficulty,
        timeout=timeout_s,
    )


def make_task_row(task: HarborTask, seed: int) -> JsonObject:
    """The row of a folder, with the calls of its solution and of a policy that reverts each edit
    with chance 1/2."""
    row = make_row(task, with_gold=True)
    draw = random.Random(f"{seed} {task.name}")
    original = task.folder / "solution" / "original"
    calls = [
        {"command": f"cat > {shlex.quote('/app/' + path)} <<'END_OF_FILE'\n{text}\nEND_OF_FILE"}
        for path, text in _read_all(original)
        if draw.random() < 0.5
    ]
    items = [
        {"type": "function_call", "name": "exec", "arguments": json.dumps(each)} for each in calls
    ]
    meta = {key: task.toml.metadata[key] for key in ("kind", "difficulty", "package", "license")}
    return {**row, "metadata": meta, "scripted_items": items}


def _read_all(folder: Path) -> Sequence[tuple[str, str]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(str(each.relative_to(folder)), each.read_text().rstrip("\n")) for each in files]
