"""Shards of a collection, and their merge: one output as if one run had made it."""

import gzip
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from command import as_function
from exported import line
from support import Bench, read_jsonl, row, write_jsonl

from rollout_kit.api.testing import run_virtual
from rollout_kit.collecting.cluster.merging import counting, merge
from rollout_kit.config.shard import Shard
from rollout_kit.errors import OutputError
from rollout_kit.store import index as kept
from rollout_kit.store import rollouts
from rollout_kit.store.files import OutputLock, OutputPaths
from rollout_kit.store.index import Index
from rollout_kit.store.rollouts import StoredLine
from rollout_kit.store.tasks import task_id_of

command = as_function("ng_merge")

ROWS = [row(f"q{number}") for number in range(30)]

TIMES = ("throughput", "latency_s", "bottleneck", "cost", "parallelism")


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """Three parts of 30 tasks, collected apart."""
    for number in range(1, 4):
        bench = Bench(tmp_path)
        keys = {"output_jsonl_fpath": tmp_path / "s/r.jsonl", "num_repeats": 2}
        assert run_virtual(bench.collect(ROWS, shard=f"{number}/3", **keys)) == 0
    return [tmp_path / f"s/r-{number}-of-3.jsonl" for number in range(1, 4)]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def run(*argv: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            command([str(each) for each in argv])
        captured = capsys.readouterr()
        return int(str(ended.value.code or 0)), captured.out + captured.err

    return run


Run = Callable[..., tuple[int, str]]


def metrics_of(path: Path) -> dict[str, Any]:
    found = json.loads(path.with_name(f"{path.stem}_aggregate_metrics.json").read_bytes())
    agents = [{k: v for k, v in each.items() if k not in TIMES} for each in found.pop("agents")]
    return {"agents": agents, **{k: v for k, v in found.items() if k not in TIMES}}


def test_every_task_is_in_one_part_and_the_parts_are_alike() -> None:
    ids = [task_id_of({"n": number}) for number in range(10_000)]
    for count in (1, 3, 10):
        sizes = [sum(map(Shard(number, count).has, ids)) for number in range(1, count + 1)]
        assert sum(sizes) == len(ids)
        assert max(sizes) <= 1.15 * len(ids) / count


@pytest.mark.parametrize(
    ("value", "env", "expected"),
    [
        ("3/10", {}, (3, 10)),
        ("auto", {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_MIN": "5"}, None),
        ("auto/10", {"JOB_COMPLETION_INDEX": "0"}, (1, 10)),
        ("auto", {"JOB_COMPLETION_INDEX": "0"}, "give auto/10"),
        ("auto", {}, "neither is set"),
        ("3", {}, "of how many"),
        ("11/10", {}, "from 1 to 10"),
        ("0/10", {}, "from 1 to 10"),
        ("1/0", {}, "at least one part"),
        ("a/b", {}, "give 3/10"),
        ("", {}, "give 3/10"),
    ],
)
def test_the_value_of_shard(value: str, env: dict[str, str], expected: Any) -> None:
    if isinstance(expected, tuple):
        assert Shard.parse(value, env) == Shard(*expected)
    else:
        with pytest.raises(ValueError, match=expected or "neither is set"):
            Shard.parse(value, env)


def test_a_slurm_array_numbers_its_parts_from_its_own_bounds() -> None:
    array = {"SLURM_ARRAY_TASK_MIN": "4", "SLURM_ARRAY_TASK_MAX": "12"}
    array["SLURM_ARRAY_TASK_STEP"] = "4"
    found = [Shard.parse("auto", {**array, "SLURM_ARRAY_TASK_ID": each}) for each in ("4", "12")]
    assert found == [Shard(1, 3), Shard(3, 3)]


def test_merged_shards_are_what_one_run_makes(shards: list[Path], tmp_path: Path, run: Run) -> None:
    one = tmp_path / "one.jsonl"
    bench = Bench(tmp_path)
    assert run_virtual(bench.collect(ROWS, output_jsonl_fpath=one, num_repeats=2)) == 0
    merged, source = tmp_path / "merged.jsonl", tmp_path / "tasks.jsonl"
    status, said = run(*shards, f"+output_jsonl_fpath={merged}", f"+input_jsonl_fpath={source}")
    assert status == 0 and "Merged 3 files: 60 rollouts of 30 tasks" in said
    keys = [(line["rollout"]["task_id"], line["_ng_rollout_index"]) for line in read_jsonl(merged)]
    ids = [task_id_of(row) for row in read_jsonl(source)]
    assert keys == [(task_id, index) for task_id in ids for index in range(2)]
    assert metrics_of(merged) == metrics_of(one)
    again = Bench(tmp_path)
    keys_again = {"output_jsonl_fpath": merged, "num_repeats": 2}
    assert run_virtual(again.collect(ROWS, **keys_again)) == 0
    assert len(read_jsonl(merged)) == 60, "nothing was owed"


def test_a_pattern_takes_outputs_only_and_shards_that_lack_are_named(
    shards: list[Path], tmp_path: Path, run: Run
) -> None:
    for path in tmp_path.glob("s/r-2-of-3*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    status, said = run(f"+inputs=[{tmp_path}/s/*.jsonl]", f"+output_jsonl_fpath={tmp_path}/m.jsonl")
    assert status == 2 and "no file of shard 2/3" in said and "Merged 2 files" in said


def test_a_part_without_tasks_is_not_missing(tmp_path: Path, run: Run) -> None:
    for number in range(1, 4):
        bench = Bench(tmp_path)
        keys = {"output_jsonl_fpath": tmp_path / "r.jsonl", "shard": f"{number}/3"}
        assert run_virtual(bench.collect(ROWS[:1], **keys)) == 0
    assert len(list(tmp_path.glob("r-?-of-3.jsonl"))) == 1
    status, said = run(f"{tmp_path}/r-*.jsonl", f"+output_jsonl_fpath={tmp_path}/m.jsonl")
    assert status == 0 and "1 rollout of 1 task" in said


def test_what_is_odd_is_named_and_nothing_is_lost(
    shards: list[Path], tmp_path: Path, run: Run
) -> None:
    first, second, third = shards
    lines = [json.loads(line) for line in first.read_bytes().splitlines()]
    double = {**lines[0], "reward": 0.25}
    foreign = {"responses_create_params": {"input": "a task"}}
    others = read_jsonl(second)
    for each in others:
        each["rollout"]["settings"], each["rollout"]["verifier"] = "other", "another"
    write_jsonl(second, [*others, lines[1], double, foreign])
    third.write_bytes(third.read_bytes()[:-10])
    merged = tmp_path / "m.jsonl"
    status, said = run(*shards, f"+output_jsonl_fpath={merged}", "+json=true")
    report = json.loads(said)
    assert status == 2
    assert len(report["duplicates"]) == 1 and f": {first} has it" in report["duplicates"][0]
    assert "other in" in report["mixed_settings"][0]
    assert "another in" in report["mixed_verifiers"][0]
    assert report["torn"][0].startswith(f"{third}: ")
    assert report["missing"][0].startswith(f"{third}: 1 of")
    assert report["foreign"] == [f"{second}: 1 line is no rollout; left out"]
    assert len(read_jsonl(merged)) == report["rollouts"] == 59
    assert {line["reward"] for line in read_jsonl(merged)} != {0.25}


def test_files_that_hold_the_same_are_merged_and_nothing_is_missing(
    shards: list[Path], tmp_path: Path, run: Run
) -> None:
    earlier = tmp_path / "s/all.jsonl"
    assert run(*shards, f"+output_jsonl_fpath={earlier}")[0] == 0
    status, said = run(f"{tmp_path}/s/*.jsonl", f"+output_jsonl_fpath={tmp_path}/m.jsonl")
    assert status == 0 and "Merged 4 files: 60 rollouts of 30 tasks" in said
    assert "Twice, and equal: 60 lines, written once" in said
    lines = earlier.read_bytes().splitlines(keepends=True)
    again = [json.dumps({**json.loads(line), "reward": 0.5}) for line in lines]
    shards[0].with_name("other.jsonl").write_text("\n".join(again))
    status, said = run(f"{tmp_path}/s/[ao]*.jsonl", f"+output_jsonl_fpath={tmp_path}/n.jsonl")
    assert status == 2 and "and 50 more; +json=true lists them" in said
    assert (tmp_path / "n.jsonl").read_bytes() == earlier.read_bytes()


def test_files_without_sidecars_lack_nothing(shards: list[Path], tmp_path: Path, run: Run) -> None:
    first, second, _ = shards
    alone = tmp_path / "alone.jsonl"
    alone.write_bytes(first.read_bytes())
    status, said = run(alone, second, f"+output_jsonl_fpath={tmp_path}/m.jsonl", "+json=true")
    report = json.loads(said)
    assert status == 2 and report["missing"] == ["no file of shard 1/3, 3/3"]
    config = json.loads((tmp_path / "m.d/run.json").read_bytes())["config"]
    assert (
        config == json.loads((second.parent / f"{second.stem}.d/run.json").read_bytes())["config"]
    )
    assert run(alone, f"+output_jsonl_fpath={tmp_path}/n.jsonl")[0] == 0


def test_odd_lines_and_manifests_are_no_bugs(shards: list[Path], tmp_path: Path, run: Run) -> None:
    first, *_ = read_jsonl(shards[0])
    odd = [{"rollout_index": -1}, {"rollout_index": 2**40}, {"task_id": "s", "settings": ["a"]}]
    write_jsonl(tmp_path / "odd.jsonl", [{**first, "rollout": first["rollout"] | o} for o in odd])
    status, said = run(f"{tmp_path}/odd.jsonl", f"+output_jsonl_fpath={tmp_path}/o.jsonl")
    assert status == 2 and "Merged 1 file: 1 rollout" in said and "2 lines are no rollouts" in said
    broken = [
        {"counts": [1], "settings": [], "verifiers": 5, "inputs": {}},
        {"counts": {"planned": "a"}, "inputs": [5, {"shard": 7, "tasks": "b", "num_repeats": []}]},
        {"command": 7, "inputs": [{"shard": "auto/3", "planned": None}]},
    ]
    for path, manifest in zip(shards, broken, strict=True):
        write_jsonl(path.parent / f"{path.stem}.d/run.json", [manifest])
    status, said = run(*shards, f"+output_jsonl_fpath={tmp_path}/m.jsonl")
    assert status == 2 and "Merged 3 files: 60 rollouts" in said and "Traceback" not in said
    status, said = run(*shards, "+output_jsonl_fpath=/proc/nothing/m.jsonl")
    assert status == 1 and "cannot make the folder /proc/nothing/m.d" in said


def test_sidecars_come_along(shards: list[Path], tmp_path: Path, run: Run) -> None:
    first, second, _ = shards
    done, [open_line, *_] = read_jsonl(first), read_jsonl(second)
    write_jsonl(second, read_jsonl(second)[1:])
    unverified = {**open_line, "kind": "unverified"}
    write_jsonl((first.parent / "r-1-of-3.d/unverified.jsonl"), [{**done[0], "kind": "unverified"}])
    write_jsonl((second.parent / "r-2-of-3.d/unverified.jsonl"), [unverified])
    label = {"kind": "label", "schema": 1, "task_id": "x", "label": "bug"}
    write_jsonl((second.parent / "r-2-of-3.d/labels.jsonl"), [label])
    merged = tmp_path / "m.jsonl"
    status, said = run(*shards, f"+output_jsonl_fpath={merged}")
    assert status == 2 and "Unverified: 1" in said and "1 of" in said
    assert read_jsonl(tmp_path / "m.d/unverified.jsonl") == [unverified]
    assert read_jsonl(tmp_path / "m.d/labels.jsonl") == [label]
    runs = read_jsonl(tmp_path / "m.d/runs.ndjson")
    assert [each["event"] for each in runs] == ["start", "end"] * 3


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "name the files to merge"),
        (["nothing/*.jsonl"], "no file of rollouts"),
        (["nothing.jsonl"], "there is no file nothing.jsonl"),
        (["tasks.jsonl"], "there is no rollout in tasks.jsonl"),
        (["tasks.jsonl", "tasks.jsonl"], "twice"),
    ],
)
def test_what_cannot_be_merged_is_refused_in_a_line(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, words: list[str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "tasks.jsonl", ROWS)
    status, said = run(*words, "+output_jsonl_fpath=m.jsonl")
    assert status == 1 and reason in said and "Traceback" not in said
    assert not (tmp_path / "m.jsonl").exists()


def test_rows_that_are_not_in_a_file_yet_are_named(
    shards: list[Path], tmp_path: Path, run: Run
) -> None:
    left = shards[0].parent / "r-1-of-3.d/shards"
    left.mkdir()
    (left / "ab.jsonl").write_bytes(shards[0].read_bytes())
    words = [*shards, f"+output_jsonl_fpath={tmp_path}/all.jsonl"]
    status, said = run(*words)
    assert status == 1 and "run its command again" in said and str(left) in said
    packed = tmp_path / "part.jsonl.gz"
    packed.write_bytes(gzip.compress(shards[1].read_bytes()))
    status, said = run(packed, f"+output_jsonl_fpath={tmp_path}/all.jsonl")
    assert status == 1 and "gunzip --keep" in said
    assert not (tmp_path / "all.jsonl").exists()


def test_an_output_that_exists_stays(shards: list[Path], tmp_path: Path, run: Run) -> None:
    before = shards[2].read_bytes()
    status, said = run(*shards[:2], f"+output_jsonl_fpath={shards[2]}")
    assert status == 1 and "exists" in said
    assert shards[2].read_bytes() == before


def test_a_merge_that_fails_leaves_nothing_and_can_be_made_again(
    shards: list[Path], tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "all.jsonl"

    def refuse(path: Path, content: object) -> None:
        raise OutputError(f"cannot write {path}: No space left on device")

    with monkeypatch.context() as full:
        full.setattr(merge, "write_json", refuse)
        status, said = run(*shards, f"+output_jsonl_fpath={output}")
    assert status == 1 and "No space left" in said and not list(tmp_path.glob("*all*"))
    assert run(*shards, f"+output_jsonl_fpath={output}")[0] == 0


def test_a_merge_replaces_no_output_that_came_meanwhile(
    shards: list[Path], tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "all.jsonl"
    read = merge.Merge._read

    def read_slowly(self: merge.Merge) -> None:
        read(self)
        output.write_text("{}")

    monkeypatch.setattr(merge.Merge, "_read", read_slowly)
    status, said = run(*shards, f"+output_jsonl_fpath={output}")
    assert status == 1 and f"{output} exists: remove it" in said and output.read_text() == "{}"
    output.unlink()
    held = OutputLock(output)
    status, said = run(*shards, f"+output_jsonl_fpath={output}")
    held.release()
    assert status == 1 and "is being written by another collector" in said


@pytest.fixture
def indexed(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[Path]:
    """Shards with indexes, which small files do not have otherwise."""
    monkeypatch.setattr(kept, "SMALL", 0)
    shards: list[Path] = request.getfixturevalue("shards")
    assert all(OutputPaths(shard).index.exists() for shard in shards)
    return shards


def fields_of(index: Index) -> list[Any]:
    names = list(index.columns.names())
    return [(index.key(row), index.columns.fields(row, names)) for row in range(len(index))]


def test_sources_are_known_by_their_indexes_and_the_merge_gets_one(
    indexed: list[Path], tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(stream: BinaryIO, *more: object) -> Iterator[StoredLine]:
        assert not stream.read(), "a line was read to learn its key"
        yield from ()

    ordered = f"+input_jsonl_fpath={tmp_path / 'tasks.jsonl'}"
    with monkeypatch.context() as patched:
        patched.setattr(rollouts, "judge_lines", refuse)
        status, _ = run(*indexed, f"+output_jsonl_fpath={tmp_path / 'm.jsonl'}", ordered)
    assert status == 0
    for shard in indexed:
        OutputPaths(shard).index.unlink()
    run(*indexed, f"+output_jsonl_fpath={tmp_path / 'n.jsonl'}", ordered)
    merged, plain = tmp_path / "m.jsonl", tmp_path / "n.jsonl"
    assert merged.read_bytes() == plain.read_bytes() and metrics_of(merged) == metrics_of(plain)
    found = Index(merged, beside=OutputPaths(merged).index)
    assert len(found) == 60, "it holds before a line is read"
    again = Index(merged)
    again.update()
    assert fields_of(found) == fields_of(again)


def test_lines_that_an_index_does_not_tell_are_read(
    indexed: list[Path], tmp_path: Path, run: Run
) -> None:
    first, second, _ = indexed
    lines = read_jsonl(first)
    with second.open("ab") as stream:  # behind what its index covers
        stream.write(json.dumps({**lines[0], "reward": 0.25}).encode() + b"\nno line\n")
        stream.write(json.dumps(lines[1]).encode()[:-9])
    indexed.append(Path(shutil.copytree(first.parent, tmp_path / "again") / first.name))
    status, said = run(*indexed, f"+output_jsonl_fpath={tmp_path / 'm.jsonl'}", "+json=true")
    report = json.loads(said)
    assert status == 2 and report["rollouts"] == 60 and len(report["duplicates"]) == 1
    assert len(report["torn"]) == 1
    assert report["foreign"] == [f"{second}: 1 line is no rollout; left out"]


def test_an_index_that_does_not_fit_its_file_is_not_used(
    indexed: list[Path], tmp_path: Path, run: Run
) -> None:
    first, before = indexed[0], indexed[0].stat()
    lines = first.read_bytes().splitlines(keepends=True)
    middle = len(lines) // 2
    lines[middle : middle + 2] = lines[middle + 1], lines[middle]
    lines[middle] = lines[middle].replace(b'"reward":1.0', b'"reward":0.5')
    first.write_bytes(b"".join(lines))
    os.utime(first, ns=(before.st_atime_ns, before.st_mtime_ns))
    merged = tmp_path / "m.jsonl"
    assert run(*indexed, f"+output_jsonl_fpath={merged}")[0] == 0
    assert merged.read_bytes() == b"".join(path.read_bytes() for path in indexed)


@pytest.mark.parametrize("has_order", [False, True])
def test_a_process_beside_counts_what_one_process_counts(
    shards: list[Path], tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, has_order: bool
) -> None:
    words = [*shards, f"+input_jsonl_fpath={tmp_path / 'tasks.jsonl'}"][: 3 + has_order]
    alone, beside = tmp_path / "alone.jsonl", tmp_path / "beside.jsonl"
    assert run(*words, f"+output_jsonl_fpath={alone}")[0] == 0
    own, count = os.getpid(), merge.count

    def count_elsewhere(*args: Any, **more: Any) -> counting.Counted:
        assert os.getpid() != own
        return count(*args, **more)

    monkeypatch.setattr(merge, "MANY", 1)
    monkeypatch.setattr(merge, "count", count_elsewhere)
    assert run(*words, f"+output_jsonl_fpath={beside}")[0] == 0
    assert alone.read_bytes() == beside.read_bytes() and metrics_of(alone) == metrics_of(beside)


def test_a_merge_whose_counting_process_is_killed_leaves_nothing(
    shards: list[Path], tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = os.getpid()

    def die(*_: object, **__: object) -> None:
        assert os.getpid() != own
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(merge, "MANY", 1)
    monkeypatch.setattr(merge, "count", die)
    folder = tmp_path / "merged"
    status, said = run(*shards, f"+output_jsonl_fpath={folder}/m.jsonl")
    assert status == 1 and "was killed: run the same command again" in said
    assert not list(folder.iterdir())
    monkeypatch.undo()
    assert run(*shards, f"+output_jsonl_fpath={folder}/m.jsonl")[0] == 0


def test_a_counting_process_ends_with_its_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = os.getppid()
    monkeypatch.setattr(counting, "LOOK_EVERY", 1)
    lines = counting.until_orphaned([b"1", b"2"])
    assert next(lines) == b"1"
    monkeypatch.setattr(os, "getppid", lambda: parent + 1)
    with pytest.raises(BrokenPipeError):
        next(lines)


def test_files_of_one_name_and_arms_of_one_task_are_told_apart(tmp_path: Path, run: Run) -> None:
    paths = [tmp_path / folder / "rollouts.jsonl" for folder in ("one", "two")]
    for reward, path in enumerate(paths):
        path.parent.mkdir()
        arm = line(1, 0, "a", reward, scope="arm=warm")
        write_jsonl(path, [line(1, 0, "a", reward), arm])
    status, said = run(*paths, f"+output_jsonl_fpath={tmp_path}/m.jsonl", "+json=true")
    assert status == 2 and json.loads(said)["duplicates"] == [
        f"{key} of solver: {paths[0]} has it; the other line of {paths[1]} is left out"
        for key in ("0000000000000001:0", "0000000000000001:warm:0")
    ]
