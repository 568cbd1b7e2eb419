"""Faults that are planted in a package, and the tasks that are made of them."""

import ast
import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import NO_NAMESPACES, may_isolate

from rollout_kit.authoring.make_tasks import making
from rollout_kit.authoring.make_tasks import source as sources
from rollout_kit.authoring.make_tasks.faults import Fault, choose, list_differences, list_faults
from rollout_kit.authoring.make_tasks.making import Suite
from rollout_kit.authoring.make_tasks.source import find_previous, is_test, read_source
from rollout_kit.authoring.make_tasks.tasks import FaultyTask, make_task_row, write_task
from rollout_kit.authoring.make_tasks.workbench import Outcome
from rollout_kit.errors import ConfigError
from rollout_kit.serving.harbor.task_folder import read_task

CODE = '''\
"""Ranges."""


def clamp(value, low=0, high=10):
    """Bound a value."""
    if value < low:
        return low
    result = min(value, high)
    return result


def total(numbers):
    found = 0
    for number in numbers:
        found += number * 2
    return not found or found + 1
'''

TESTS = """\
from ranges import clamp, total


def test_clamp():
    assert [clamp(each) for each in (-5, 5, 15)] == [0, 5, 10]


def test_total():
    assert total([1, 2]) == 7
"""


def write_project(folder: Path) -> Path:
    (folder / "tests").mkdir(parents=True)
    (folder / "ranges.py").write_text(CODE)
    (folder / "tests/test_ranges.py").write_text(TESTS)
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "ranges"\nversion = "1.0"\nlicense = "MIT"\n'
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[tool.setuptools]\npy-modules = ["ranges"]\n'
    )
    return folder


def find(covered: set[int]) -> list[Fault]:
    return list_faults("ranges.py", CODE, covered, random.Random(0))


def test_each_fault_is_code_that_differs_in_what_tests_cover() -> None:
    found = find(set(range(1, 30)))
    for each in found:
        assert ast.dump(ast.parse(each.changed)) != ast.dump(ast.parse(CODE))
    changed = "\n".join(each.changed for each in found)
    for expected in (
        "if value <= low:",
        "if False:",
        "return None",
        "found -= number * 2",
        "number + 2",
        "return found or",
        "not found and",
        "found = 1\n",
        "raise NotImplementedError\n\n\ndef total",
    ):
        assert expected in changed, expected
    assert {each.kind for each in found} == {"mutation", "removed_function"}
    assert not find(set())
    assert {each.line for each in find({15}) if each.kind == "mutation"} == {15}


def test_a_fault_knows_the_lines_that_are_lost() -> None:
    [fault] = [each for each in find({6}) if "value <= low" in each.changed]
    assert fault.lost == ["if value < low:"]


def test_a_difference_to_an_earlier_release_is_undone_alone() -> None:
    earlier = CODE.replace("value < low", "value <= low").replace("number * 2", "number")
    found = list_differences("ranges.py", CODE, earlier.replace('"""Ranges."""', '"""Range."""'))
    assert [each.line for each in found] == [1, 6, 15]
    assert all(each.changed != earlier for each in found)


def test_kinds_and_files_take_turns_and_a_seed_repeats_the_order() -> None:
    found = find(set(range(1, 30)))
    first = choose(found, 1)
    assert [each.kind for each in first[:2]] in (
        ["mutation", "removed_function"],
        ["removed_function", "mutation"],
    )
    assert first == choose(found, 1) and len(first) == len(found)


def test_tests_are_taken_apart_from_the_code(tmp_path: Path) -> None:
    found = read_source(str(write_project(tmp_path / "p")), tmp_path / "to")
    assert (found.name, found.version, found.license) == ("ranges", "1.0", "MIT")
    assert (found.folder / "ranges.py").is_file() and not (found.folder / "tests").exists()
    assert (found.tests / "tests/test_ranges.py").is_file()
    assert (
        is_test("a/conftest.py") and is_test("pkg/tests/x.py") and not is_test("pkg/testsuite.py")
    )
    with pytest.raises(ConfigError, match="neither a folder nor pypi"):
        read_source("nothing", tmp_path / "other")


def test_the_release_before_is_a_final_one(monkeypatch: pytest.MonkeyPatch) -> None:
    files = ["a-1.0.tar.gz", "a-1.1.tar.gz", "a-1.2rc1.tar.gz", "a-1.10.tar.gz", "a-2.0.zip"]
    monkeypatch.setattr(sources, "list_releases", lambda name: [(each, each) for each in files])
    assert find_previous("a", "1.10") == "1.1"
    assert find_previous("a", "2.0") == "1.10"
    assert find_previous("a", "1.0") is None


def test_a_task_tells_what_fails_and_not_what_was_lost(tmp_path: Path) -> None:
    found = read_source(str(write_project(tmp_path / "p")), tmp_path / "to")
    [fault] = [each for each in find({6}) if "value <= low" in each.changed]
    dockerfile = tmp_path / "Dockerfile"
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    dockerfile.write_text(f"FROM python:{python}-slim\nWORKDIR /app\nCOPY project/ /app/\n")
    messages = {"tests/test_ranges.py::test_clamp": "assert [1] == [0]"}
    task = FaultyTask((fault,), tuple(messages), ("tests/test_ranges.py",), messages, 0.5)
    write_task(tmp_path / "tasks/one", task, found, dockerfile, 0.1)
    read = read_task(tmp_path / "tasks/one", {})
    assert not read.problems and read.license == "MIT"
    text = read.steps[0].instruction
    assert "test_clamp" in text and "value < low" not in text
    row = make_task_row(read, 0)
    assert row["metadata"]["difficulty"] == 0.5 and row["gold_items"]


class ScriptedBench:
    """Tests that fail while one of these files has its fault."""

    def __init__(self, *deciding: str) -> None:
        self._deciding = set(deciding)

    async def run(self, files: Any, changed: dict[str, str]) -> Outcome:
        passed = frozenset() if self._deciding & set(changed) else frozenset({"t.py::test"})
        return Outcome(passed, {}, is_whole=True)


@pytest.mark.parametrize(
    ("deciding", "difficulty"), [(["a.py", "b.py"], 0.75), (["a.py"], None), (["b.py"], None)]
)
def test_each_of_two_faults_must_be_repaired(deciding: list[str], difficulty: float | None) -> None:
    faults = [Fault("mutation", path, 1, "x = 1", "x = 2") for path in ("a.py", "b.py")]
    suite = Suite(frozenset({"t.py::test"}), ("t.py",), 0.1, {})
    bench: Any = ScriptedBench(*deciding)
    found = asyncio.run(making.measure_difficulty(bench, suite, faults, ["t.py"]))
    assert found == difficulty


RUN = "import sys; from rollout_kit.commands import entry; entry.main(sys.argv[1], sys.argv[2:])"


@pytest.mark.slow
@pytest.mark.skipif(not may_isolate(), reason=NO_NAMESPACES)
def test_tasks_of_a_folder_are_solved_by_their_solution_alone(tmp_path: Path) -> None:
    """It installs the project, so it needs the registry of pip."""
    project, tasks = write_project(tmp_path / "p"), tmp_path / "tasks"
    argv = [sys.executable, "-c", RUN, "ng_make_tasks", str(project), f"+output_dir={tasks}"]
    done = subprocess.run([*argv, "+num_tasks=4", "+json=true"], capture_output=True, text=True)
    if "cannot be installed" in done.stderr:
        pytest.skip("the registry of pip is not reached")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["num_rows"] == 4
    argv = [sys.executable, "-c", RUN, "ng_check_harbor_tasks", str(tasks), "+run=true"]
    done = subprocess.run([*argv, "+json=true"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {(each["gold"], each["empty"]) for each in json.loads(done.stdout)} == {(1.0, 0.0)}
