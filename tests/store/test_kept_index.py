"""The index beside an output: continuing with it means the same as reading every line."""

import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest
from exported import line
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_kit.errors import OutputError
from rollout_kit.store.files import OutputPaths
from rollout_kit.store.index import Index
from rollout_kit.store.journal import Journal
from rollout_kit.store.kinds import kind_of, parse_head
from rollout_kit.store.lines import rollout_of
from rollout_kit.store.scan import Contents, LinePlace, Refusal
from rollout_kit.types import Rollout


@pytest.fixture(autouse=True)
def every_file_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollout_kit.store.index.SMALL", 0)


def odd_line(which: int, task: int, index: int) -> bytes:
    """A line as no present collection writes it."""
    made = line(task, index, "It is é.", 1.0)
    block = made["rollout"]
    plain = {name: value for name, value in made.items() if name not in ("kind", "schema")}
    failure = {"class": "ServerError", "terminal": True, "message": "x"}
    forms: list[Any] = [
        plain,
        {**made, "reward": None},
        {name: value for name, value in made.items() if name != "reward"},
        {**made, "usage": {"input_tokens": None}},
        {**made, "usage": []},
        {**made, "rollout": {**block, "settings": 7}},
        {**made, "rollout": {**block, "settings": "s" * 300, "verifier": "v"}},
        {**made, "rollout": {**block, "rollout_index": True}},
        {**made, "rollout": {**block, "rollout_index": (1 << 24) + 1 + index}},
        {**made, "rollout": {**block, "rollout_index": -1}},
        {**made, "rollout": {**block, "task_id": f"named {task}"}},
        {**made, "rollout": {**block, "duration_s": 1e300, "verifier": "w"}},
        {**made, "rollout": {**block, "duration_s": "long"}},
        {**made, "rollout": {**block, "scores": ["kind", "_ng_task_index", f"s{task}"]}},
        {**made, "_ng_task_index": 10**18, "agent_ref": {"name": "other"}},
        {**made, "kind": "unverified", "rollout": {**block, "settings": "u"}},
        {**made, "kind": "unverified", "response": None},
        {**made, "kind": "failure", "failure": failure, "repro": "x"},
        {**plain, "failure": failure, "repro": "x"},
        {**plain, "failure": failure},
        {"kind": "malformed", "schema": 1, "input": "in", "line": task, "failure": failure},
        {"kind": "label", "schema": 1},
        {"question": "foreign"},
        [1, 2],
        {**made, "schema": True},
        {**made, "kind": ""},
        {**made, "kind": "novel"},
        {**made, "schema": 2},
    ]
    if which < len(forms):
        return json.dumps(forms[which]).encode() + b"\n"
    valid = json.dumps(made, ensure_ascii=False).encode()
    raw = [valid.replace("é".encode(), b"\xff"), b"{" + b"[" * 3000, b"\x00\x00", b"  \t"]
    return raw[which - len(forms)] + b"\n"


PLAIN = st.tuples(st.just(-1), st.integers(0, 5), st.integers(0, 1))
ODD = st.tuples(st.integers(0, 31), st.integers(0, 5), st.integers(0, 1))
LINES = st.lists(st.one_of(PLAIN, PLAIN, ODD), max_size=12)


def written(lines: Iterable[tuple[int, int, int]]) -> bytes:
    return b"".join(
        own(task, index, "s") if which < 0 else odd_line(which, task, index)
        for which, task, index in lines
    )


def own(task: int, index: int, made_with: str = "s", **more: Any) -> bytes:
    made = line(task, index, f"It is {task:04}.", 1.0, **more)
    made["rollout"] |= {"settings": made_with, "verifier": "v"}
    return json.dumps(made).encode() + b"\n"


def facts(found: Contents) -> dict[str, Any]:
    return {
        "done": {kind: set(tasks) for kind, tasks in found.done._tasks.items() if tasks},
        "settings": found.settings,
        "verifiers": found.verifiers,
        "pending": {key: place.offset for key, place in found.pending.items()},
        "refusals": found.refusals,
        "malformed": found.malformed,
        "foreign": found.foreign,
        "idle": found.idle,
        "size": found.size,
    }


def plainly(path: Path) -> dict[str, Any]:
    """What every line says, each parsed as a whole."""
    found, offset = Contents(size=path.stat().st_size), 0
    for raw in path.read_bytes().splitlines(keepends=True):
        place, offset = LinePlace(path, offset), offset + len(raw)
        if raw.isspace():
            continue
        try:
            row = orjson.loads(raw)
        except orjson.JSONDecodeError:
            row = None
        row = row if isinstance(row, dict) else None
        kind = "none" if row is None else kind_of(row, "rollout")
        head = None if row is None else parse_head(row)
        if kind == "rollout" and head and found.take(head):
            continue
        found.idle.add(place.offset)
        if kind == "rollout" and head:
            continue
        if kind == "malformed" and row and isinstance(row.get("line"), int):
            found.malformed.add((str(row.get("input")), row["line"]))
        elif kind == "failure" and head and row:
            if row["failure"].get("terminal"):
                found.refusals.setdefault(head.key, []).append(Refusal.of(row))
        elif kind == "unverified" and head and row and isinstance(row.get("response"), dict):
            found.pending[head.key] = place
            if head.key not in found.done:
                found.keep_settings(head)
        elif kind in ("rollout", "none", "failure", "unverified", "foreign"):
            found.foreign += 1
    found.drop_done()
    return facts(found)


def opened(path: Path) -> dict[str, Any] | str:
    """What opening the output finds, or its error; all earlier rows are read."""
    try:
        journal = Journal(OutputPaths.of(path))
    except OutputError as error:
        return str(error)
    found = facts(journal.contents)
    rows = [row for row in journal.earlier_rows() if "response" in row]
    journal.close(clean=True)
    assert len(rows) <= len(journal.contents.done)
    return found


def without_index(path: Path) -> dict[str, Any] | str:
    OutputPaths(path).index.unlink(missing_ok=True)
    return opened(path)


@settings(max_examples=75, deadline=None)
@given(LINES, LINES, st.sampled_from([b"", b"\n", b'{"cut": ', own(9, 9).rstrip()]))
def test_every_form_of_line_means_the_same_with_an_index(
    tmp_path_factory: Any, first: Any, later: Any, end: bytes
) -> None:
    path = tmp_path_factory.mktemp("kept") / "rollouts.jsonl"
    path.write_bytes(own(8, 8) * 2 + own(8, 9) + written(first))
    for added in (b"", written(later) + end, b""):
        with path.open("ab") as stream:
            stream.write(added)
        with_index = opened(path)
        assert opened(path) == with_index  # now all of it is indexed, and repaired
        if isinstance(with_index, dict):
            assert with_index == plainly(path)
        assert without_index(path) == with_index


def edit_in_place(path: Path) -> None:
    with path.open("r+b") as stream:
        raw = stream.read()
        stream.seek(0)
        stream.write(raw.replace(f"{5:016x}".encode(), f"{77:016x}".encode()))
    os.utime(path, ns=(1, 1))


def rewrite(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], object]:
    def edit(path: Path) -> None:
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))

    return edit


def replace_by_copy(path: Path) -> None:
    """By one that was edited, with the same size and time."""
    shutil.copy2(path, copy := path.with_suffix(".copy"))
    edit_in_place(copy)
    times = path.stat()
    os.utime(copy, ns=(times.st_atime_ns, times.st_mtime_ns))
    copy.replace(path)


def damage(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    def edit(path: Path) -> None:
        index = OutputPaths(path).index
        index.write_bytes(change(index.read_bytes()))

    return edit


EDITS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "cut": rewrite(lambda lines: lines[:20]),
    "cut within a line": lambda path: os.truncate(path, path.stat().st_size // 2),
    "sorted": rewrite(lambda lines: sorted(lines, reverse=True)),
    "doubled": rewrite(lambda lines: lines * 2),
    "edited in place": edit_in_place,
    "touched": lambda path: path.touch(),
    "copied": replace_by_copy,
    "replaced": lambda path: path.write_bytes(own(1, 7)),
    "emptied": lambda path: path.write_bytes(b""),
    "grown": rewrite(lambda lines: [*lines, own(99, 0), own(99, 0), b"{}\n", own(98, 0)[:70]]),
    "no index": lambda path: OutputPaths(path).index.unlink(),
    "an index that is cut": damage(lambda raw: raw[: len(raw) * 2 // 3]),
    "an index that is damaged": damage(lambda raw: raw[:999] + b"x" + raw[1000:]),
    "an index of another version": damage(lambda raw: raw.replace(b"index 3", b"index 2", 1)),
    "garbage": damage(lambda raw: b"\0" * len(raw)),
    "an index that is a folder": lambda path: (
        OutputPaths(path).index.unlink(),
        OutputPaths(path).index.mkdir(),
    ),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_whatever_was_done_to_the_files_no_key_is_wrong(
    tmp_path: Path, edit: Callable[[Path], object]
) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b"".join(own(task, index) for task in range(20) for index in range(2)))
    opened(path)
    with Journal_of(path) as journal:
        for task in range(20, 40):
            journal.append_all([rollout_of(orjson.loads(own(task, 0)))])
            journal.check()
    edit(path)
    found = opened(path)
    assert opened(path) == found
    if isinstance(found, dict):
        assert found == plainly(path)


class Journal_of:
    """A journal that is closed in the end."""

    def __init__(self, path: Path) -> None:
        self.journal = Journal(OutputPaths.of(path))

    def __enter__(self) -> Journal:
        return self.journal

    def __exit__(self, *_: object) -> None:
        self.journal.close(clean=True)


def test_what_is_journalled_is_indexed_without_being_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rollouts.jsonl"
    with Journal_of(path) as journal:
        for task in range(30):
            journal.append_all([rollout_of(orjson.loads(own(task, 0, answer=f"{task}")))])
        journal.check()
        raw = OutputPaths(path).index.read_bytes()
        for task in range(30, 50):
            journal.append_all([rollout_of(orjson.loads(own(task, 0, new_score=task)))])
    assert OutputPaths(path).index.read_bytes().startswith(raw)
    monkeypatch.setattr("rollout_kit.store.index.RecordMaker.make", None)
    found = opened(path)
    assert found == plainly(path)


def test_what_a_kill_cuts_off_the_index_is_read_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    journal = Journal(OutputPaths.of(path))
    for task in range(30):
        journal.append_all([rollout_of(orjson.loads(own(task, 0)))])
        if task == 20:
            journal.check()
    journal._close_files()  # as a kill does
    assert opened(path) == plainly(path)
    assert opened(path) == plainly(path)


def test_an_edit_that_size_and_time_do_not_tell_ends_the_run_and_loses_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b"".join(own(task, 0) for task in range(100)))
    opened(path)
    times = path.stat()
    edit_in_place(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    journal = Journal(OutputPaths.of(path))
    assert sum(1 for _ in journal.earlier_rows()) == 5
    with pytest.raises(OutputError, match="was edited"):
        journal.check()
    journal.append_all([rollout_of(orjson.loads(own(500, 0)))])
    journal.close(clean=True)
    assert not OutputPaths(path).index.exists()
    assert opened(path) == plainly(path)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["s", "t", "reward", "cost_usd", "kind"]),
            st.sampled_from([None, True, 3, 0.5, "a", "x" * 300, [1], 10**18, -0.0]),
        ),
        max_size=6,
    )
)
def test_a_record_says_the_same_whether_its_line_was_parsed_or_written_here(
    tmp_path_factory: Any, scores: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("kept") / "rollouts.jsonl"
    with Journal_of(path) as journal:
        for number, each in enumerate(scores):
            made = orjson.loads(own(number, 0))
            made["rollout"] |= {"scores": list(each), "started_at": "2026-01-01T00:00:00.5Z"}
            given = {name: each[name] for name in ("s", "t") if name in each}
            journal.append_all([Rollout(rollout_of(made).info, {**made, **given})])
    kept, read = Index(path, kept_at=OutputPaths(path).index), Index(path)
    read.update()
    assert len(kept) == len(read) == len(scores)
    for row in range(len(read)):
        names = list(read.columns.names())
        assert kept.columns.fields(row, names) == read.columns.fields(row, names)
        assert kept.line(row) == read.line(row) and kept.key(row) == read.key(row)


def test_a_reader_uses_it_follows_the_file_and_never_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    kept_at, beside = tmp_path / "cache.index", OutputPaths(path).index

    def content(index: Index) -> list[Any]:
        index.update()
        names = sorted(index.columns.names())
        return [
            (index.key(row), index.line(row), index.columns.fields(row, names))
            for row in range(len(index))
        ]

    with Journal_of(path) as journal:
        for task in range(30):
            journal.append_all([rollout_of(orjson.loads(own(task, 0, answer=f"{task}")))])
        journal.check()
        raw = beside.read_bytes()
        index = Index(path, kept_at=kept_at, beside=beside)
        assert len(index) == 30 and content(index) == content(Index(path))
        journal.append_all([rollout_of(orjson.loads(own(50, 0, new_score=1)))])
        assert len(content(index)) == 31 and content(index) == content(Index(path))
        assert beside.read_bytes() == raw and not kept_at.exists()
    rewrite(lambda lines: lines[3:])(path)
    raw = beside.read_bytes()
    assert content(index) == content(Index(path, kept_at=kept_at, beside=beside))
    assert len(index) == 28 and beside.read_bytes() == raw and kept_at.exists()


def test_a_small_output_has_none_and_a_fresh_start_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rollouts.jsonl"
    monkeypatch.setattr("rollout_kit.store.index.SMALL", 1 << 20)
    with Journal_of(path) as journal:
        journal.append_all([rollout_of(orjson.loads(own(1, 0)))])
    assert not OutputPaths(path).index.exists()
    with Journal_of(path) as journal:
        for task in range(2000):
            journal.append_all([rollout_of(orjson.loads(own(task + 2, 0)))])
    assert opened(path) == plainly(path)
    assert OutputPaths(path).index.exists()


def test_a_file_with_very_many_odd_lines_is_read_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollout_kit.store.index.MAX_ODD", 3)
    monkeypatch.setattr("rollout_kit.store.rollouts.line_at", None)
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(own(1, 0) + own(2, 0) + odd_line(22, 0, 0) * 2 + odd_line(11, 1, 1) * 3)
    assert opened(path) == plainly(path) == opened(path)
