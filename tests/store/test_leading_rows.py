"""A run that continues does not read the input's rows again that an earlier run has read and that
are done; it collects the same as one that reads them all."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Bench, row

from rollout_kit.api.testing import run_virtual
from rollout_kit.store.files import OutputPaths
from rollout_kit.store.tasks import TaskReader


@pytest.fixture(autouse=True)
def every_input_is_long() -> Iterable[list[list[int]]]:
    """The leading rows that were read, of each run."""
    read: list[list[int]] = []
    whole = TaskReader.read_owed

    def read_owed(self: TaskReader, owed: Sequence[int]) -> Any:
        read.append(list(owed))
        return whole(self, read[-1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rollout_kit.store.index.SMALL", 0)
        patch.setattr("rollout_kit.collecting.sources.KEPT_BYTES", -1)
        patch.setattr("rollout_kit.collecting.sources.COUNT_FIRST", 10)
        patch.setattr(TaskReader, "read_owed", read_owed)
        yield read


def collect(folder: Path, rows: list[Any] | None = None, **keys: Any) -> set[tuple[str, int]]:
    bench = Bench(folder)
    run_virtual(bench.collect(rows, agent_name="echo_agent", **keys))
    assert len(bench.keys()) == len(set(bench.keys()))
    return set(bench.keys())


ROWS = st.lists(
    st.one_of(
        *[st.integers(0, 9).map(lambda number: row(f"q{number}"))] * 4,
        st.sampled_from([{"no": "task"}, [1]]),
    ),
    min_size=2,
    max_size=12,
)
RUNS = st.lists(
    st.tuples(st.sampled_from([None, 1, 3, 7]), st.integers(1, 2)), min_size=2, max_size=4
)


@settings(max_examples=20, deadline=None)
@given(ROWS, RUNS)
def test_runs_with_other_limits_and_repeats_collect_what_a_run_alone_would(
    rows: list[Any], runs: list[tuple[int | None, int]]
) -> None:
    rows, wanted = [row("first"), *rows], set[tuple[str, int]]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "together"
        folder.mkdir()
        for number, (limit, repeats) in enumerate(runs):
            keys = {"limit": limit, "num_repeats": repeats, "max_failed_fraction": 1.0}
            alone = Path(name) / f"{number}"
            alone.mkdir()
            wanted |= collect(alone, rows, **keys)
            found = collect(folder, None if number else rows, **keys)
            assert found == wanted


def test_rows_that_are_done_are_not_read(
    tmp_path: Path, every_input_is_long: list[list[int]]
) -> None:
    rows = [row(f"q{number}") for number in range(20)]
    collect(tmp_path, rows, limit=12)
    collect(tmp_path)
    collect(tmp_path, num_repeats=2)
    assert every_input_is_long == [[], list(range(20))]
    assert len(collect(tmp_path, num_repeats=2)) == 40
    assert every_input_is_long[2:] == [[]]


def test_an_input_that_was_changed_is_read_as_a_whole(
    tmp_path: Path, every_input_is_long: list[list[int]]
) -> None:
    rows = [row(f"q{number}") for number in range(20)]
    collect(tmp_path, rows)
    path = tmp_path / "tasks.jsonl"
    shutil.copy(path, copy := tmp_path / "copy")
    copy.replace(path)
    assert len(collect(tmp_path, [*rows, row("one more")])) == 21
    assert every_input_is_long == []
    OutputPaths(tmp_path / "rollouts.jsonl").index.unlink()
    collect(tmp_path)
    assert every_input_is_long == []


def test_an_edit_of_the_input_that_size_and_time_do_not_tell_is_found_by_the_next_run(
    tmp_path: Path,
) -> None:
    rows = [row(f"q{number:03}" + "x" * 400) for number in range(100)]
    collect(tmp_path, rows)
    path = tmp_path / "tasks.jsonl"
    times = path.stat()
    with path.open("r+b") as stream:
        raw = stream.read().replace(b"q050", b"q999")
        stream.seek(0)
        stream.write(raw)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert len(collect(tmp_path)) == 100
    assert len(collect(tmp_path)) == 101
