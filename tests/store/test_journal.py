"""The journal under kills: what was on disk stays, byte for byte, and resuming completes it."""

import errno
import json
import os
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Bench, read_jsonl, row

from rollout_kit.api.testing import run_virtual, text_response
from rollout_kit.errors import OutputError
from rollout_kit.serving.transport.wire import scores_of
from rollout_kit.store.files import OutputPaths, write_atomically
from rollout_kit.store.journal import Journal
from rollout_kit.store.kinds import key_of
from rollout_kit.store.lines import (
    WorkerRollout,
    build_line,
    dump_line,
    rollout_of,
    row_of,
    with_verdict,
)
from rollout_kit.types import Key, Rollout, Task, Unverified


@cache
def rollout(number: int) -> Rollout:
    key = Key(f"{number:016x}", "agent", "", 0)
    task = Task(key.task_id, number, number, "agent", row(f"q{number}"))
    line = build_line(task, key, text_response("é" * 5), {"settings": "s"})
    return rollout_of(with_verdict(line, {"reward": 1.0}, {"verifier": "v"}))


def unverified(number: int) -> Unverified:
    done = rollout(number)
    line = {name: value for name, value in done.line.items() if name != "reward"}
    line["kind"] = "unverified"
    return Unverified(done.info, line)


@settings(max_examples=5, deadline=None)
@given(number=st.integers(1, 6), repeats=st.integers(1, 3), parallel=st.integers(1, 5))
def test_cut_at_every_byte_of_its_last_lines_a_file_resumes_to_exactly_the_plan(
    number: int, repeats: int, parallel: int
) -> None:
    rows = [row(f"q{each}") for each in range(number)]
    wanted = Counter((f"q{task}", index) for task in range(number) for index in range(repeats))
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        keys = {"num_repeats": repeats, "num_samples_in_parallel": parallel}
        run_virtual(bench.collect(rows, **keys))
        path = bench.folder / "rollouts.jsonl"
        whole = path.read_bytes()
        last_two = sum(len(line) for line in whole.splitlines(keepends=True)[-2:])
        for cut in range(len(whole) - last_two, len(whole), 97):
            path.write_bytes(whole[:cut])
            kept = whole[: whole.rfind(b"\n", 0, cut) + 1]
            assert run_virtual(bench.collect(**keys)) == 0
            assert path.read_bytes().startswith(kept)
            assert Counter(bench.keys()) == wanted


def test_every_byte_of_the_last_line_can_be_the_last_one(tmp_path: Path) -> None:
    paths = OutputPaths(tmp_path / "rollouts.jsonl")
    first, second = (orjson.dumps(rollout(number).line) + b"\n" for number in range(2))
    for cut in range(len(second) + 1):
        paths.main.write_bytes(first + second[:cut])
        journal = Journal(paths, fsync="exit")
        journal.append_all([rollout(2)])
        journal.close(clean=True)
        lines = paths.main.read_bytes().splitlines(keepends=True)
        assert lines[0] == first
        found = [key_of(json.loads(line)) for line in lines]
        whole = cut >= len(second) - 1
        assert found == [rollout(n).key for n in ((0, 1, 2) if whole else (0, 2))]
        assert bool(journal.notes) == (0 < cut < len(second) - 1)


def test_the_torn_bytes_are_kept(tmp_path: Path) -> None:
    paths = OutputPaths(tmp_path / "rollouts.jsonl")
    paths.main.write_bytes(b'{"half": "a li')
    journal = Journal(paths)
    assert "14 bytes are kept in" in journal.notes[0]
    journal.close(clean=True)
    assert paths.torn.read_bytes() == b'{"half": "a li\n'


def test_a_parked_response_is_pending_until_its_rollout_is_there(tmp_path: Path) -> None:
    paths = OutputPaths(tmp_path / "rollouts.jsonl")
    journal = Journal(paths)
    for number in range(3):
        journal.append_all([unverified(number)])
        journal.append_all([unverified(number)])  # once on disk is enough
    journal.append_all([rollout(1)])
    journal.close(clean=False)
    again = Journal(paths)
    assert list(again.contents.pending) == [rollout(0).key, rollout(2).key]
    assert again.pending_line(rollout(2).key) == unverified(2).line
    again.append_all([rollout(0)])
    again.close(clean=True)
    assert [key_of(line) for line in read_jsonl(paths.unverified)] == [rollout(2).key]


def test_lines_of_others_are_left_alone_and_counted(tmp_path: Path) -> None:
    paths = OutputPaths(tmp_path / "rollouts.jsonl")
    foreign = b'{"reward": 1.0, "_ng_task_index": 0}\nnot json at all\n\n'
    foreign += orjson.dumps(rollout(1).line) + b"\n"
    paths.main.write_bytes(foreign)
    journal = Journal(paths)
    journal.append_all([rollout(0)])
    journal.close(clean=True)
    assert journal.contents.foreign == 2
    assert paths.main.read_bytes().startswith(foreign)


@pytest.mark.parametrize(
    "damage",
    [
        (b"text", b"te\x00t"),
        (b"text", b"te\xfft"),
        (b'"output":[', b'"output":[,'),
        (b"}\n", b"\n"),
        (b"}\n", b"}}\n"),
        (b'{"kind"', b'[{"kind"'),
    ],
)
def test_a_line_damaged_anywhere_is_collected_again(
    tmp_path: Path, damage: tuple[bytes, bytes]
) -> None:
    whole = orjson.dumps(rollout(1).line) + b"\n"
    damaged = whole.replace(*damage) if damage[0] != b"}\n" else whole[:-2] + damage[1]
    assert damaged != whole
    paths = OutputPaths(tmp_path / "rollouts.jsonl")
    paths.main.write_bytes(orjson.dumps(rollout(0).line) + b"\n" + damaged + whole)
    journal = Journal(paths)
    journal.close(clean=True)
    assert (len(journal.contents.done), journal.contents.foreign) == (2, 1)
    assert len(list(journal.earlier_rows())) == 2


def test_doubled_lines_of_concatenated_files_count_once(tmp_path: Path) -> None:
    paths = OutputPaths(tmp_path / "rollouts.jsonl")
    paths.main.write_bytes((orjson.dumps(rollout(0).line) + b"\n") * 2)
    journal = Journal(paths)
    journal.close(clean=True)
    assert len(list(journal.earlier_rows())) == len(journal.contents.done) == 1


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    paths = OutputPaths(tmp_path / "rollouts.jsonl")
    first = Journal(paths)
    with pytest.raises(OutputError, match="being written by another collector"):
        Journal(paths)
    first.close(clean=True)
    Journal(paths).close(clean=True)


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = OutputPaths(tmp_path / "rollouts.jsonl")
    journal = Journal(paths)
    journal.append_all([rollout(0)])
    real = os.write
    monkeypatch.setattr("rollout_kit.store.held.os.write", lambda fd, raw: real(fd, raw[:20]))
    with pytest.raises(OutputError, match="make room"):
        journal.append_all([rollout(1)])
    monkeypatch.undo()
    journal.close(clean=False)
    assert paths.main.read_bytes() == orjson.dumps(rollout(0).line) + b"\n"


def test_an_output_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "rollouts.jsonl").mkdir()
    with pytest.raises(OutputError, match=r"cannot write .*rollouts\.jsonl"):
        Journal(OutputPaths(tmp_path / "rollouts.jsonl"))


def test_an_atomic_write_leaves_no_litter(tmp_path: Path) -> None:
    write_atomically(tmp_path / "x.json", b"one")
    write_atomically(tmp_path / "x.json", b"two")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"two"]


def test_a_file_system_that_is_read_only_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for name in ("open", "unlink"):
        monkeypatch.setattr(Path, name, refuse)
    with pytest.raises(OutputError, match=r"cannot write .*x\.json: Read-only file system"):
        write_atomically(tmp_path / "x.json", b"one")


FIELDS = st.sampled_from(
    ["expected", "usage", "rollout", "reward", "response", "task_fields", "failure", "answer"]
)


@given(st.dictionaries(FIELDS, st.integers() | st.text()), st.dictionaries(FIELDS, st.integers()))
def test_a_line_gives_its_row_back_whatever_the_verifier_wrote_over(
    fields: dict, found: dict
) -> None:
    given_row = {"responses_create_params": {"input": "x"}, **fields}
    key = Key("0" * 16, "agent", "", 0)
    line = build_line(Task(key.task_id, 0, 1, "agent", given_row), key, text_response("x"), {})
    assert row_of(line) == given_row
    request = {**given_row, "response": {}}
    scores = {**scores_of(request, {**request, **found}), "reward": 0.5}
    assert row_of(with_verdict(line, scores, {})) == given_row
    assert key_of(line) == key


@pytest.mark.parametrize(
    "broken",
    [
        {"_ng_task_index": None},
        {"_ng_task_index": "first"},
        {"usage": {"input_tokens": "many"}},
        {"usage": ["many"]},
        {"reward": "1"},
    ],
)
def test_a_line_that_the_metrics_could_not_take_is_none_of_ours(broken: dict[str, Any]) -> None:
    line = rollout(1).line
    assert key_of(line) is not None and key_of({**line, **broken}) is None


def test_an_output_is_known_by_any_of_its_names(tmp_path: Path) -> None:
    main = tmp_path / "rollouts.jsonl"
    main.write_text("{}\n")
    os.link(main, tmp_path / "hard")
    (tmp_path / "soft").symlink_to(main)
    paths = OutputPaths(main)
    for name in ("hard", "soft", "../" + tmp_path.name + "/rollouts.jsonl", "rollouts.d/run.json"):
        assert paths.has(tmp_path / name), name
    assert not paths.has(tmp_path / "other.jsonl")


def as_written(number: int) -> WorkerRollout:
    """A rollout as a worker hands it over."""
    done = rollout(number)
    return WorkerRollout(done.info, done.line, dump_line(done.line), b"")


def note_writes(monkeypatch: pytest.MonkeyPatch, room: int = 1 << 20) -> list[bytes]:
    """What `os.write` has written since, on a disk with so much room."""
    written, write = list[bytes](), os.write

    def some(descriptor: int, raw: bytes) -> int:
        raw = raw[: max(0, room - sum(map(len, written)))]
        written.append(raw)
        return write(descriptor, raw)

    def cut(descriptor: int, size: int) -> None:
        written.pop()
        truncate(descriptor, size)

    truncate = os.ftruncate
    monkeypatch.setattr("os.write", some)
    monkeypatch.setattr("os.ftruncate", cut)
    return written


def test_lines_that_arrive_together_are_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = OutputPaths(tmp_path / "rollouts.jsonl")
    journal, done = Journal(paths, fsync="exit"), [as_written(number) for number in range(3)]
    written = note_writes(monkeypatch)
    assert journal.append_all(done) == done
    assert written == [b"".join(line_of(each) for each in done)] == [paths.main.read_bytes()]
    sizes = [len(line_of(each)) for each in done]
    assert [journal.written[each.key] for each in done] == [
        sum(sizes[:at]) for at in range(len(done))
    ]
    journal.close(clean=True)
    assert set(Journal(paths).contents.done.of_task(done[0].key.task_id, "agent")) == {done[0].key}


def test_without_room_for_all_lines_the_first_ones_are_whole_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = OutputPaths(tmp_path / "rollouts.jsonl")
    journal, done = Journal(paths, fsync="exit"), [as_written(number) for number in range(3)]
    note_writes(monkeypatch, 2 * len(line_of(done[0])) + 100)
    with pytest.raises(OutputError, match="every line in it is whole"):
        journal.append_all(done)
    assert paths.main.read_bytes() == line_of(done[0]) + line_of(done[1])
    assert journal.size == paths.main.stat().st_size
    sizes = [len(line_of(each)) for each in done]
    assert [*journal.written.values()] == [0, sizes[0]], "only what is on disk has a place"
    assert journal.index.size == journal.size, "the index knows what is on disk"


def line_of(rollout: Rollout) -> bytes:
    assert isinstance(rollout, WorkerRollout)
    return rollout.raw


def test_rollouts_in_the_shards_of_an_earlier_version_are_not_passed_over(tmp_path: Path) -> None:
    paths = OutputPaths.of(tmp_path / "rollouts.jsonl")
    paths.shards.mkdir(parents=True)
    (paths.shards / "w1.jsonl").write_bytes(dump_line(rollout(1).line))
    with pytest.raises(OutputError, match=r"ng_merge .*rollouts.jsonl .*shards/w1.jsonl \+output"):
        Journal(paths, fsync="exit")
