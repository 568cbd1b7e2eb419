"""What other programs and the disk do to the files of a run: nothing lost, nothing twice, and no
exit 0 without the file."""

import errno
import fcntl
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from support import Bench, Echo, EchoRequest, asked, read_jsonl, row, write_jsonl

from rollout_kit.api.testing import ScriptedModel, making, run_virtual
from rollout_kit.authoring.chaos.check import check_files
from rollout_kit.collecting.history import git_state
from rollout_kit.errors import ConfigError, ModelError, OutputError
from rollout_kit.store.files import OutputPaths
from rollout_kit.store.journal import Journal
from rollout_kit.store.kinds import mark_as
from rollout_kit.store.lines import row_of
from rollout_kit.store.rollouts import load
from rollout_kit.types import JsonObject, VerifyResponse

ROWS = [row(f"q{number}") for number in range(40)]
EXPECTED = sorted(each["expected"] for each in ROWS)


def edit(path: Path) -> None:
    """As `sed -i`: a new file takes the place of the old one."""
    copy = path.with_name("sed.tmp")
    copy.write_bytes(path.read_bytes().replace(b"scripted", b"Scripted"))
    copy.replace(path)


def replace(path: Path) -> None:
    path.with_name("other").write_text('{"of": "another program"}\n')
    path.with_name("other").replace(path)


ACTS: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "removed": (Path.unlink, lambda path: None),
    "moved": (
        lambda path: path.rename(path.with_name("old.jsonl")),
        lambda path: path.with_name("old.jsonl").rename(path),
    ),
    "replaced": (edit, lambda path: None),
    "replaced by another file": (
        replace,
        lambda path: next(path.parent.glob("rollouts.2*.jsonl")).replace(path),
    ),
    "folder removed": (lambda path: shutil.rmtree(path.parent), lambda path: None),
    "folder moved": (
        lambda path: path.parent.rename(path.parent.with_name("old")),
        lambda path: path.parent.with_name("old").rename(path.parent),
    ),
}


def acting(at: int, act: Callable[[], object]) -> ScriptedModel:
    """A model that does something once, with its answer number `at`; four answers in 0.4 s."""
    answered: list[str] = []

    def answer(params: JsonObject) -> str:
        answered.append(asked(params))
        if len(answered) == at:
            act()
        return answered[-1]

    return ScriptedModel(answer, delay_s=0.4)


@pytest.mark.parametrize("at", [12, 40])
@pytest.mark.parametrize("what", ACTS)
def test_nothing_is_lost_or_paid_twice_when_the_output_is_touched(
    bench: Bench, what: str, at: int
) -> None:
    act, mend = ACTS[what]
    path = bench.folder / "out/rollouts.jsonl"

    bench.model = acting(at, lambda: act(path))
    keys = {"output_jsonl_fpath": path, "num_samples_in_parallel": 4}
    with pytest.raises(OutputError, match=what.removeprefix("folder ")) as raised:
        run_virtual(bench.collect(ROWS, **keys))
    assert "\n" not in str(raised.value)
    assert len(bench.model.calls) <= min(at + 12, 40)
    mend(path)
    assert run_virtual(bench.collect(**keys)) == 0
    found = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert sorted(line["expected"] for line in found) == EXPECTED
    assert len(bench.model.calls) == 40
    assert [each.name for each in path.parent.iterdir() if "lock" in each.name] == []


def test_a_file_changed_in_place_stops_the_run(bench: Bench) -> None:
    path = bench.folder / "rollouts.jsonl"

    bench.model = acting(12, lambda: os.truncate(path, 0))
    with pytest.raises(OutputError, match="changed by another program"):
        run_virtual(bench.collect(ROWS, num_samples_in_parallel=4))
    assert run_virtual(bench.collect()) == 0
    assert sorted(line["expected"] for line in bench.lines()) == EXPECTED


def test_a_sidecar_that_was_removed_is_there_again(bench: Bench) -> None:
    bench.model = acting(12, (bench.folder / "rollouts.d/failures.jsonl").unlink)
    with pytest.raises(OutputError, match=r"rollouts.d/failures.jsonl was removed"):
        run_virtual(bench.collect(["no task", *ROWS], num_samples_in_parallel=4))
    assert len(bench.lines("failures")) == 1


def test_no_second_collector_starts_where_the_file_was_moved(tmp_path: Path) -> None:
    paths = OutputPaths(tmp_path / "rollouts.jsonl")
    journal = Journal(paths)
    paths.main.rename(tmp_path / "old.jsonl")
    for path in (paths.main, tmp_path / "old.jsonl"):
        with pytest.raises(OutputError, match="being written by another collector"):
            Journal(OutputPaths(path))
    with pytest.raises(OutputError, match="moved"):
        journal.close(clean=True)
    Journal(paths).close(clean=True)


def fail_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a full thin device does: the first failure is reported, and then none."""
    calls: list[int] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


def test_the_first_failed_fsync_stops_the_run(bench: Bench, monkeypatch: Any) -> None:
    async def in_place(work: Callable[[], None]) -> None:
        work()

    monkeypatch.setattr("asyncio.to_thread", in_place)
    bench.model = acting(12, lambda: fail_fsync(monkeypatch))
    with pytest.raises(OutputError, match=r"Input/output error. Of the .* first 8 are known") as it:
        run_virtual(bench.collect(ROWS, num_samples_in_parallel=4, fsync="second"))
    assert "rollouts.jsonl to disk" in str(it.value)
    assert len(bench.model.calls) < 24
    manifest = json.loads((bench.folder / "rollouts.d/run.json").read_text())
    start = manifest["not_on_disk_from"]["rollouts.jsonl"]
    assert (
        start == sum(map(len, (bench.folder / "rollouts.jsonl").read_bytes().split(b"\n")[:8])) + 8
    )
    monkeypatch.undo()
    written: list[int] = []
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, raw, at: written.append(at) or real(fd, raw, at))
    assert run_virtual(bench.collect()) == 0
    assert written == [start], "what may be in memory only is written again"
    assert sorted(line["expected"] for line in bench.lines()) == EXPECTED
    assert "not_on_disk_from" not in json.loads((bench.folder / "rollouts.d/run.json").read_text())


@pytest.mark.parametrize("when", ["row", "exit"])
def test_a_failed_fsync_is_no_exit_0(bench: Bench, monkeypatch: Any, when: str) -> None:
    bench.model = acting(40, lambda: fail_fsync(monkeypatch))
    with pytest.raises(OutputError, match=r"cannot force .* to disk: Input/output error"):
        run_virtual(bench.collect(ROWS, fsync=when))


def without_flock(monkeypatch: pytest.MonkeyPatch, number: int = errno.ENOLCK) -> None:
    def flock(descriptor: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_without_flock_a_file_is_the_lock(tmp_path: Path, monkeypatch: Any, number: int) -> None:
    without_flock(monkeypatch, number)
    paths = OutputPaths(tmp_path / "rollouts.jsonl")
    journal = Journal(paths)
    with pytest.raises(OutputError, match=f"pid {os.getpid()} on .*remove .*rollouts.jsonl.owner"):
        Journal(paths)
    journal.close(clean=True)
    assert list(tmp_path.iterdir()) == []
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=-1)
    owner = {"pid": int(ended.stdout), "host": os.uname().nodename, "began": "1"}
    (tmp_path / ".rollouts.jsonl.owner").write_text(json.dumps(owner))
    Journal(paths).close(clean=True)
    (tmp_path / ".rollouts.jsonl.owner").write_text(json.dumps({**owner, "host": "another"}))
    with pytest.raises(OutputError, match="on another; if it has ended, remove"):
        Journal(paths)


def lines_of(folder: Path, stem: str = "rollouts") -> list[JsonObject]:
    files = sorted(folder.glob(f"{stem}*.jsonl"))
    return [orjson.loads(raw) for path in files for raw in path.read_bytes().splitlines()]


def test_concatenated_files_hold_what_their_lines_say(bench: Bench) -> None:
    """Each line says what it is: no failure counts as done, and no response is paid twice."""
    rows = ROWS[:12]

    def answer(params: JsonObject) -> str:
        if asked(params) == "q3":
            raise ModelError("not for us", status=422)
        if asked(params) == "q4":
            raise ModelError("not today", retryable=False)
        return asked(params)

    class Unwilling(Echo):
        async def verify(self, body: EchoRequest) -> VerifyResponse:
            if body.expected == "q5" and not is_mended:
                raise RuntimeError("not now")
            return body.scored(1.0)

    Unwilling._verify_request = EchoRequest
    bench.verifier, is_mended = making(Unwilling), False
    bench.model = ScriptedModel(answer)
    output = bench.folder / "all_0.jsonl"
    given = [*rows[:7], "no task", *rows[7:]]
    assert run_virtual(bench.collect(given, output_jsonl_fpath=output)) == 2
    files = sorted([*bench.folder.glob("all_*.jsonl"), *bench.folder.glob("all_*.d/*.jsonl")])
    lines = [line for path in files for line in read_jsonl(path)]
    kinds = Counter(line["kind"] for line in lines)
    assert kinds == {"rollout": 9, "unverified": 1, "failure": 3, "malformed": 1}
    assert {line["schema"] for line in lines} == {1}
    raw = b"".join(path.read_bytes() for path in files)
    (bench.folder / "rollouts.jsonl").write_bytes(raw)
    is_mended, bench.model = True, ScriptedModel(asked)
    assert run_virtual(bench.collect(given)) == 2, "q3 is refused for good"
    assert [asked(params) for params in bench.model.calls] == ["q4"]
    assert "9 done · 1 to verify only · 1 to collect · 1 failed permanently" in bench.out.getvalue()
    assert bench.metrics()["counts"]["rollouts"] == 11
    assert len(list(load(bench.folder / "rollouts.jsonl"))) == 11
    found = check_files(OutputPaths(bench.folder / "rollouts.jsonl"))
    assert (len(found.rollouts), found.findings) == (11, [])


def test_files_of_an_earlier_version_are_told_apart_by_their_fields(bench: Bench) -> None:
    def old(line: JsonObject) -> JsonObject:
        return {name: value for name, value in line.items() if name not in ("kind", "schema")}

    def answer(params: JsonObject) -> str:
        if asked(params) == "q1":
            raise ModelError("not today", retryable=False)
        return asked(params)

    bench.model = ScriptedModel(answer)
    assert run_virtual(bench.collect(ROWS[:4])) == 2
    lines = [*bench.lines(), *bench.lines("failures")]
    write_jsonl(bench.folder / "rollouts.jsonl", [old(line) for line in lines])
    bench.model = ScriptedModel(asked)
    assert run_virtual(bench.collect()) == 0
    assert [asked(params) for params in bench.model.calls] == ["q1"]


def test_a_row_and_a_verifier_keep_their_own_fields_of_these_names(bench: Bench) -> None:
    class Schemer(Echo):
        async def verify(self, body: EchoRequest) -> VerifyResponse:
            assert (body.model_extra or {})["schema"] == {"type": "object"}
            return body.scored(1.0, kind="found")

    Schemer._verify_request = EchoRequest
    bench.verifier = making(Schemer)
    rows = [row("q", schema={"type": "object"}, kind="asked")]
    assert run_virtual(bench.collect(rows)) == 0
    [line] = bench.lines()
    assert (line["kind"], line["schema"]) == ("rollout", 1)
    assert line["task_fields"] == {"schema": {"type": "object"}, "kind": "asked"}
    assert line["rollout"]["verdict_fields"] == {"kind": "found"}
    assert row_of(line) == rows[0]
    earlier = {name: value for name, value in line.items() if name != "task_fields"}
    assert row_of(mark_as("unverified", {**earlier, **line["task_fields"]})) == rows[0]


def indent(raw: bytes) -> bytes:
    return (
        b"\n".join(json.dumps(json.loads(line), indent=2).encode() for line in raw.splitlines())
        + b"\n"
    )


REFORMATTED: dict[str, Callable[[bytes], bytes]] = {
    "objects of several lines": indent,
    "UTF-16": lambda raw: raw.decode().encode("utf-16"),
    "UTF-16 or": lambda raw: raw.decode().encode("utf-16-be"),
    "carriage return": lambda raw: raw.replace(b"\n", b"\r"),
    "JSON array": lambda raw: b"[" + b",\n".join(raw.splitlines()) + b"]",
    "byte order mark": lambda raw: b"\xef\xbb\xbf" + raw,
    "is compressed": gzip.compress,
    "8 of its 8 lines": lambda raw: b'{"reward": 1.0}\n' * 8,
    "16 of its 16 lines": lambda raw: raw.replace(b'"schema"', b'\n"schema"'),
}


@pytest.mark.parametrize("what", REFORMATTED)
@pytest.mark.parametrize("suffix", ["", ".d/unverified"])
def test_a_reformatted_output_is_refused_before_the_first_request(
    bench: Bench, what: str, suffix: str
) -> None:
    if suffix:
        bench.verifier = making(Unable)
    assert run_virtual(bench.collect(ROWS[:8], stop_early=False)) == (2 if suffix else 0)
    path = bench.folder / f"rollouts{suffix}.jsonl"
    path.write_bytes(changed := REFORMATTED[what](path.read_bytes()))
    for resume in ("auto", "append"):
        with pytest.raises(OutputError, match=what) as raised:
            run_virtual(bench.collect(resume=resume))
        assert "Nothing was sent" in str(raised.value) and str(path) in str(raised.value)
    assert path.read_bytes() == changed
    assert len(bench.model.calls) == 8
    if "jq" in str(raised.value):
        remedy = str(raised.value).partition("  ")[2].partition("  ")[0]
        command = f"{remedy} < {path} > {path}.new && mv {path}.new {path}"
        if shutil.which("jq"):
            subprocess.run(command, shell=True, check=True)
            bench.verifier = making(Echo)
            assert run_virtual(bench.collect()) == 0
            assert len(bench.model.calls) == 8


class Unable(Echo):
    async def verify(self, body: EchoRequest) -> VerifyResponse:
        raise RuntimeError("not now")


@pytest.mark.parametrize("ending", [b"\r\n", b" \n", b"\n\n"])
def test_white_space_between_lines_changes_nothing(bench: Bench, ending: bytes) -> None:
    assert run_virtual(bench.collect(ROWS[:8])) == 0
    path = bench.folder / "rollouts.jsonl"
    path.write_bytes(path.read_bytes().replace(b"\n", ending))
    assert run_virtual(bench.collect()) == 0
    assert len(bench.model.calls) == 8


@pytest.mark.parametrize("name", ["r", "r.json", "r.d/unverified.jsonl", "r.d/groups.jsonl"])
def test_no_two_outputs_share_the_files_beside_them(bench: Bench, name: str) -> None:
    with pytest.raises(ConfigError, match=r"output_jsonl_fpath=.*(must end in .jsonl|beside)"):
        run_virtual(bench.collect(ROWS, output_jsonl_fpath=bench.folder / name))
    assert bench.model.calls == [] and not (bench.folder / name).exists()


def history(bench: Bench) -> list[JsonObject]:
    return read_jsonl(bench.folder / "rollouts.d/runs.ndjson")


def test_each_run_is_in_the_history_and_an_idle_one_changes_no_time(bench: Bench) -> None:
    assert run_virtual(bench.collect(ROWS[:2])) == 0
    start, end = history(bench)
    assert (start["event"], end["event"], start["run"]) == ("start", "end", end["run"])
    raw = (bench.folder / "tasks.jsonl").read_bytes()
    sha = hashlib.sha256(raw).hexdigest()
    path = str(bench.folder / "tasks.jsonl")
    assert start["input"] == {"path": path, "bytes": len(raw), "sha256": sha}
    assert start["command"] and start["versions"]["rollout_kit"]
    assert start["verifiers"]["echo_agent"]["fingerprint"]
    assert (end["exit_status"], end["counts"]["rollouts"]) == (0, 2)
    manifest = (bench.folder / "rollouts.d/run.json").read_bytes()
    assert run_virtual(bench.collect()) == 0
    assert (bench.folder / "rollouts.d/run.json").read_bytes() == manifest
    assert [line["event"] for line in history(bench)] == ["start", "end"] * 2
    assert run_virtual(bench.collect(ROWS[:3])) == 0
    assert (bench.folder / "rollouts.d/run.json").read_bytes() != manifest


def test_a_run_that_fails_says_why_in_the_history(bench: Bench, monkeypatch: Any) -> None:
    monkeypatch.setattr("rollout_kit.collecting.history.HASHED_FIRST", 0)
    path = bench.folder / "rollouts.jsonl"
    bench.model = acting(12, lambda: os.truncate(path, 0))
    with pytest.raises(OutputError):
        run_virtual(bench.collect(ROWS, num_samples_in_parallel=4))
    start, end = history(bench)
    assert "sha256" not in start["input"] and len(end["input"]["sha256"]) == 64
    assert end["exit_status"] == 1 and "changed by another program" in end["error"]
    with (bench.folder / "rollouts.d/runs.ndjson").open("a") as stream:
        stream.write('{"kind": "run", "torn')
    assert run_virtual(bench.collect(dry_run=True)) == 0
    assert run_virtual(bench.collect()) == 0
    lines = (bench.folder / "rollouts.d/runs.ndjson").read_bytes().splitlines()
    assert [orjson.loads(raw)["event"] for raw in lines[3:]] == ["start", "end"]


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_the_commit_and_changes_of_the_folder_are_known(tmp_path: Path) -> None:
    def git(*argv: str) -> str:
        named = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(["git", *named, *argv], cwd=tmp_path, check=True, capture_output=True)
        return done.stdout.decode().strip()

    assert git_state(tmp_path) is None
    git("init", "-q")
    (tmp_path / "app.py").write_text("one")
    git("add", ".")
    git("commit", "-qm", "one")
    (tmp_path / "new").touch()
    assert git_state(tmp_path) == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "app.py").write_text("two")
    assert git_state(tmp_path) == {"commit": git("rev-parse", "HEAD"), "dirty": True}
