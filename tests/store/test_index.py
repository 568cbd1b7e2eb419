"""The index of a file of rollouts: it says what the lines say, follows a file that grows, and
notices an edit."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from exported import line
from hypothesis import given
from hypothesis import strategies as st

from rollout_kit.store.columns import LEFT_OUT, MAX_TEXTS
from rollout_kit.store.index import BATCH, Index, LineChanged
from rollout_kit.store.kinds import NOT_OURS, REPEATED, TORN, HeadReader, key_of
from rollout_kit.types import Key


def write(path: Path, lines: list[Any]) -> None:
    path.write_bytes(b"".join(json.dumps(each).encode() + b"\n" for each in lines))


def read(path: Path, kept_at: Path | None = None) -> Index:
    index = Index(path, kept_at=kept_at)
    index.update()
    return index


def content(index: Index) -> list[dict[str, Any]]:
    names = list(index.columns.names())
    return [
        {"key": index.key(row), "line": index.line(row), **index.columns.fields(row, names)}
        for row in range(len(index))
    ]


ODD = st.sampled_from([None, True, 3, 0.5, "a", "é", "x" * 300, [1], {"a": 1}, -0.0, 10**20])


@given(
    st.lists(st.dictionaries(st.sampled_from(["s", "t", "odd name", "reward", "usage"]), ODD)),
    st.integers(1, 5),
)
def test_columns_hold_what_the_lines_hold(
    tmp_path_factory: Any, scores: list[dict[str, Any]], cut: int
) -> None:
    path = tmp_path_factory.mktemp("index") / "r.jsonl"
    lines = []
    for number, each in enumerate(scores):
        made = line(number, 0, f"It is {number}.", 0.5)
        made["rollout"]["scores"] = list(each)
        own = {name: value for name, value in each.items() if name not in ("reward", "usage")}
        lines.append({**made, **own})
    kept = path.with_suffix(".index")
    write(path, lines[: len(lines) // cut])
    read(path, kept)
    write(path, lines)
    grown, whole = content(read(path, kept)), read(path)
    assert grown == content(Index(path, kept_at=kept)) == content(whole)
    for row, made in enumerate(lines):
        for name in ("s", "t", "odd name"):
            value = made.get(name) if name in scores[row] else None
            shown = whole.columns.value(name, row)
            is_long = isinstance(value, str) and len(value) > 200
            if is_long or isinstance(value, list | dict):
                assert shown == LEFT_OUT
            else:
                assert shown == value


def test_every_form_of_line_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    rollout = line(1, 0, "It is 1.", 1.0)
    odd = {**line(2, 0, "x", 1), "usage": {"input_tokens": None, "output_tokens": 3}}
    odd["rollout"]["model"] = 7
    plain = {**line(3, 0, "x", 0.0, scope="abc")}
    del plain["kind"], plain["schema"]
    failed = {**line(4, 0, "x", None), "kind": "failure", "failure": {"class": "ServerError"}}
    named = line(5, 0, "x", 1.0)
    named["rollout"]["task_id"] = "a task"
    bad = [{"question": "none"}, [1], {**rollout, "rollout": {"task_id": 3}}]
    write(path, [rollout, odd, plain, failed, named, rollout, *bad])
    with path.open("ab") as stream:
        stream.write(b"\xff\xfe{\n\n{" + b"[" * 5000 + b"\n" + b'{"cut": ')
    index = read(path)
    kinds = [index.columns.texts["kind"][row] for row in range(len(index))]
    assert kinds == ["rollout", "rollout", "rollout", "failure", "rollout"]
    assert [index.key(row) for row in range(5)] == [
        key_of(each) for each in (rollout, odd, plain, failed, named)
    ]
    assert index.columns.value("failure", 3) == "ServerError"
    assert index.columns.value("output_tokens", 1) == 3
    assert index.left_out == {REPEATED: 1, NOT_OURS: 5}
    assert index.rest == b'{"cut": ' and index.why_no_last() == TORN


def test_a_line_that_is_nested_too_deep_is_no_rollout(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    lines = [json.dumps({**line(number, 0, "x", 1.0), "extra": 0}) for number in range(3)]
    lines[1] = lines[1].replace('"extra": 0', f'"extra": {"[" * 3000}{"]" * 3000}')
    lines[2] = lines[2].replace('"extra": 0', f'"extra": [{"[]," * 3000}0]')  # long, but not deep
    path.write_text("\n".join(lines) + "\n")
    index = read(path)
    assert [index.key(row).task_id for row in range(len(index))] == [
        key.task_id for key in map(key_of, (line(0, 0, "x", 1.0), line(2, 0, "x", 1.0))) if key
    ]
    assert index.left_out == {NOT_OURS: 1}
    kinds = [HeadReader().judge(each.encode()).kind for each in lines]
    assert kinds == ["rollout", "unreadable", "rollout"]


def test_a_file_that_grows_is_followed_and_a_torn_line_waits(tmp_path: Path) -> None:
    path, kept = tmp_path / "r.jsonl", tmp_path / "cache" / "r.index"
    write(path, [line(each, 0, "x", 1.0) for each in range(BATCH + 10)])
    index = read(path, kept)
    assert len(index) == BATCH + 10
    assert not index.update()
    raw = json.dumps(line(7, 1, "y", 0.0)).encode() + b"\n"
    with path.open("ab") as stream:
        stream.write(raw[:50])
    index.update()
    assert len(index) == BATCH + 10
    with path.open("ab") as stream:
        stream.write(raw[50:])
    assert index.update()
    assert index.key(BATCH + 10) == Key(f"{7:016x}", "solver", "", 1)
    again = Index(path, kept_at=kept)
    assert content(again) == content(read(path))


EDITS: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "sorted": lambda path: write_lines(path, sorted(path.read_bytes().splitlines(keepends=True))),
    "emptied": lambda path: path.write_bytes(b""),
    "replaced": lambda path: write(path, [line(9, 9, "z", 0.0)]),
    "edited": lambda path: path.write_bytes(path.read_bytes().replace(b"It is 5.", b"It is 6.")),
}


def write_lines(path: Path, lines: list[bytes]) -> None:
    path.write_bytes(b"".join(lines))


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edited_file_is_indexed_again(tmp_path: Path, edit: Callable[[Path], object]) -> None:
    path, kept = tmp_path / "r.jsonl", tmp_path / "r.index"
    write(path, [line(each, 0, f"It is {each}.", 1.0) for each in range(50, 0, -1)])
    index = read(path, kept)
    edit(path)
    index.update()
    assert content(index) == content(read(path)) == content(read(path, kept))


def test_an_edit_that_keeps_size_and_time_is_found_by_the_line(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write(path, [line(each, 0, f"It is {each}.", 1.0) for each in range(1, 99)])
    index = read(path)
    times = path.stat()
    raw = path.read_bytes().replace(b"It is 50.", b"It is 05.")
    path.write_bytes(raw)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert not index.update()
    with pytest.raises(LineChanged):
        index.line(49)
    index.update()
    assert b"It is 05." in index.line(49)


def test_a_damaged_index_is_only_a_cache(tmp_path: Path) -> None:
    path, kept = tmp_path / "r.jsonl", tmp_path / "r.index"
    write(path, [line(each, 0, "x", 1.0, answer=f"{each}") for each in range(2 * BATCH)])
    read(path, kept)
    whole, raw = content(read(path)), kept.read_bytes()
    for size in {0, 5, len(raw) // 3, len(raw) - 1}:
        kept.write_bytes(raw[:size])
        assert content(read(path, kept)) == whole
    for at in (20, len(raw) // 2, len(raw) - 5):
        kept.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        assert content(read(path, kept)) == whole
    kept.unlink()
    kept.mkdir()
    assert content(read(path, kept)) == whole


def test_two_readers_share_one_cache(tmp_path: Path) -> None:
    path, kept = tmp_path / "r.jsonl", tmp_path / "r.index"
    write(path, [line(each, 0, "x", 1.0) for each in range(10)])
    one = read(path, kept)
    other = Index(path, kept_at=kept)
    with path.open("ab") as stream:
        stream.write(json.dumps(line(11, 0, "x", 1.0)).encode() + b"\n")
    other.update()
    one.update()
    assert content(one) == content(other) == content(Index(path, kept_at=kept))


def test_texts_without_end_take_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollout_kit.store.columns.MAX_TEXTS", 10)
    path = tmp_path / "r.jsonl"
    write(path, [line(each, 0, "x", 1.0, answer=f"answer {each}") for each in range(30)])
    column = read(path).columns.texts["extracted_answer"]
    assert len(column.names) <= 12 < MAX_TEXTS
    assert column.is_partial and column[29] == LEFT_OUT and column[3] == "answer 3"


def test_an_index_of_many_files_holds_none_of_them_open(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write(path, [line(1, 0, "x", 1.0)])
    before = len(os.listdir("/proc/self/fd"))
    held = [read(path, tmp_path / f"{each}.index") for each in range(20)]
    absent = [read(tmp_path / "none.jsonl", tmp_path / "absent.index")]
    assert len(os.listdir("/proc/self/fd")) == before
    assert [len(each) for each in held + absent] == [1] * 20 + [0]
    assert not (tmp_path / "absent.index").exists()
