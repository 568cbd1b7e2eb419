"""Lines of kinds that this program does not write, and lines that a newer version wrote: neither is
taken for a line of this version."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import as_function
from exported import line
from support import Bench, Desk, output_file, read_jsonl, row, write_jsonl

from rollout_kit.api.testing import run_virtual
from rollout_kit.errors import OutputError
from rollout_kit.store.files import OutputPaths
from rollout_kit.store.journal import Journal
from rollout_kit.store.rollouts import load

compare = as_function("ng_compare")
export = as_function("ng_export")
merge = as_function("ng_merge")
pairs = as_function("ng_pairs")
report = as_function("ng_report")
view = as_function("ng_view")

ROWS = [row(f"q{number}") for number in range(3)]

LATER = {"schema": 2}

NEWER = "has schema 2, and this version of rollout_kit reads schemas up to 1: a newer version wrote"

LEFT_OUT = "(lines that a newer version of rollout_kit wrote: use that version to read them)"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def run(main: Any, *argv: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(each) for each in argv])
        captured = capsys.readouterr()
        return int(str(ended.value.code or 0)), captured.out + captured.err

    return run


Run = Callable[..., tuple[int, str]]


def content_of(folder: Path) -> dict[str, bytes]:
    found = (each for each in folder.rglob("*") if each.is_file())
    return {str(each.relative_to(folder)): each.read_bytes() for each in found}


def refused(start: Callable[[], object], folder: Path, where: str) -> str:
    """The error that names the place; the files are as before."""
    before = content_of(folder)
    with pytest.raises(OutputError) as caught:
        start()
    assert content_of(folder) == before
    assert f"{folder / where}: this line {NEWER}" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("has_index", [False, True])
@pytest.mark.parametrize("at", range(3))
def test_a_collection_refuses_to_continue_what_a_newer_version_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, has_index: bool
) -> None:
    if has_index:
        monkeypatch.setattr("rollout_kit.store.index.SMALL", 0)
    bench = Bench(tmp_path)
    run_virtual(bench.collect(ROWS))
    assert (tmp_path / "rollouts.d/index.bin").exists() == has_index
    lines = bench.lines()
    lines[at] |= LATER
    write_jsonl(tmp_path / "rollouts.jsonl", lines)
    said = refused(
        lambda: run_virtual(bench.collect(ROWS, num_repeats=2)),
        tmp_path,
        f"rollouts.jsonl:{at + 1}",
    )
    assert "Nothing was sent. Use that version, or choose another output_jsonl_fpath" in said
    before = content_of(tmp_path)
    assert run_virtual(bench.collect(ROWS, resume="fresh", dry_run=True)) == 0
    assert content_of(tmp_path) == before
    run_virtual(bench.collect(ROWS, resume="fresh"))
    assert len(bench.lines()) == 3


def test_an_index_that_a_newer_version_kept_hides_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollout_kit.store.index.SMALL", 0)
    bench = Bench(tmp_path)
    with monkeypatch.context() as later:  # the newer version: its lines and its index
        later.setattr("rollout_kit.store.kinds.SCHEMA", 2)
        later.setattr("rollout_kit.store.columns.MAGIC", b"rollout index 4 of schema 2\n")
        run_virtual(bench.collect(ROWS))
    assert {each["schema"] for each in bench.lines()} == {2}
    assert (tmp_path / "rollouts.d/index.bin").stat().st_size > 100
    refused(lambda: run_virtual(bench.collect(ROWS)), tmp_path, "rollouts.jsonl:1")


@pytest.mark.parametrize("sidecar", ["unverified", "failures", "turns", "groups", "acks"])
def test_a_newer_line_beside_the_output_is_refused_too(tmp_path: Path, sidecar: str) -> None:
    bench = Bench(tmp_path)
    run_virtual(bench.collect(ROWS))
    lines = [{"kind": "failure", "schema": 1, "x": 1}, {"kind": "?", "schema": 2}]
    write_jsonl(tmp_path / output_file(sidecar), lines)
    refused(lambda: run_virtual(bench.collect(ROWS)), tmp_path, f"{output_file(sidecar)}:2")


def test_a_verification_refuses_a_newer_input_and_a_newer_output(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    run_virtual(desk.collect(ROWS))
    lines = desk.lines()
    write_jsonl(tmp_path / "rollouts.jsonl", [*lines[:2], lines[2] | LATER])
    said = refused(lambda: run_virtual(desk.reverify()), tmp_path, "rollouts.jsonl:3")
    assert said.endswith("wrote it. Use that version")
    write_jsonl(tmp_path / "rollouts.jsonl", lines)
    stale = {**lines[1], "rollout": {**lines[1]["rollout"], "verifier": "older"}}
    write_jsonl(tmp_path / "new.jsonl", [stale, lines[0] | LATER])
    refused(lambda: run_virtual(desk.reverify()), tmp_path, "new.jsonl:2")
    write_jsonl(tmp_path / "new.jsonl", [stale])
    for sidecar in ("failures", "turns"):
        beside = write_jsonl(tmp_path / f"new.d/{sidecar}.jsonl", [lines[0] | LATER])
        refused(lambda: run_virtual(desk.reverify()), tmp_path, f"new.d/{beside.name}:1")
        beside.unlink()


@pytest.mark.parametrize("suffix", ["", ".d/unverified", ".d/failures", ".d/labels"])
def test_a_merge_refuses_a_newer_source(tmp_path: Path, run: Run, suffix: str) -> None:
    one = write_jsonl(tmp_path / "one.jsonl", [line(1, 0, "a", 1.0)])
    two = write_jsonl(tmp_path / "two.jsonl", [line(2, 0, "a", 1.0)])
    (tmp_path / "two.d").mkdir()
    with (tmp_path / f"two{suffix}.jsonl").open("a") as stream:
        stream.write(json.dumps(line(3, 0, "a", 1.0) | LATER) + "\n")
    status, said = run(merge, one, two, f"+output_jsonl_fpath={tmp_path}/all.jsonl")
    assert status == 1 and f"two{suffix}.jsonl:{2 - bool(suffix)}: this line {NEWER}" in said
    assert not list(tmp_path.glob("all*"))


@pytest.mark.parametrize("packs", [False, True])
def test_readers_leave_newer_lines_out_and_say_so(tmp_path: Path, run: Run, packs: bool) -> None:
    lines = [line(task, index, "a", task % 2) for task in range(4) for index in range(2)]
    lines[0] |= LATER
    lines[7] = {"kind": "rollout", "schema": 3, "of": "another layout"}
    path = write_jsonl(tmp_path / "a.jsonl", lines)
    other = write_jsonl(tmp_path / "b.jsonl", lines[1:7])
    if packs:
        (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
        path = tmp_path / "a.jsonl.gz"
    out = tmp_path / "out.jsonl"
    status, said = run(export, path, "+format=rollouts", f"+output_fpath={out}")
    assert status == 0 and f"left out: 2 {LEFT_OUT}" in said
    assert read_jsonl(out) == lines[1:7]
    status, said = run(pairs, path, f"+output_fpath={tmp_path}/p.jsonl", "+format=trl_dpo")
    assert LEFT_OUT in said
    status, said = run(compare, path, other)
    assert status == 0 and f"a.jsonl{'.gz' * packs}: left out: 2 {LEFT_OUT}" in said
    with pytest.raises(OutputError, match=r"a\.jsonl.*:1: this line has schema 2"):
        list(load(path))


def test_a_file_of_newer_lines_alone_is_said_to_be_one(tmp_path: Path, run: Run) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [line(1, 0, "a", 1.0) | LATER])
    other = write_jsonl(tmp_path / "b.jsonl", [line(1, 0, "a", 1.0)])
    for main, *words in (
        (export, path, "+format=rollouts", f"+output_fpath={tmp_path}/out.jsonl"),
        (compare, path, other),
        (report, path, f"+output_fpath={tmp_path}/out.html"),
        (view, tmp_path, f"+static={tmp_path}/s.html"),
    ):
        _, said = run(main, *words)
        assert LEFT_OUT in said, main.__module__


def test_a_kind_that_is_not_known_is_no_failure_and_no_rollout(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    run_virtual(desk.collect(ROWS))
    path, lines = tmp_path / "rollouts.jsonl", desk.lines()
    beside = [{"kind": kind, "schema": 1} for kind in ("label", "group", "ack")]
    write_jsonl(path, [*lines, {**lines[0], "kind": "novel", "reward": 0.0}, *beside])
    assert run_virtual(desk.reverify()) == 2
    said = desk.out.getvalue()
    assert "1 malformed line" in said and "without a response" not in said
    assert "rollouts.jsonl:4: not a stored rollout: its kind, 'novel', is not known" in said
    assert [each["reward"] for each in desk.new()] == [1.0, 1.0, 1.0]
    run_virtual(desk.collect(ROWS))
    assert "1 lines of the output are no rollouts of this kind" in desk.out.getvalue()
    assert [each["reward"] for each in map(dict, desk.lines()[:3])] == [1.0] * 3
    assert len(list(load(path))) == 3
    write_jsonl(tmp_path / "novel.jsonl", [{"kind": "novel", "schema": 1}] * 3)
    with pytest.raises(OutputError, match="3 of its 3 lines were not written by a collection"):
        Journal(OutputPaths(tmp_path / "novel.jsonl"))


def test_an_unmarked_line_is_of_this_version_whatever_its_row_says(tmp_path: Path) -> None:
    made = line(1, 0, "a", 1.0)
    for fields in ({"schema": 7, "kind": None}, {"kind": "x", "schema": "2"}, {"schema": True}):
        path = write_jsonl(tmp_path / "rollouts.jsonl", [{**made, **fields}])
        journal = Journal(OutputPaths(path))
        assert len(journal.contents.done) == 1
        journal.close(clean=True)
