"""What exports read: a file with an index gives the same as one whose lines are all read."""

import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from command import as_function
from exported import Place, line
from support import forget_home, read_jsonl, write_jsonl

from rollout_kit.analysis.export import source
from rollout_kit.errors import ConfigError
from rollout_kit.store.files import OutputPaths
from rollout_kit.store.filters.expression import Filter
from rollout_kit.store.rollouts import RolloutFile
from rollout_kit.store.scan import scan

compare = as_function("ng_compare")
export = as_function("ng_export")
merge = as_function("ng_merge")
report = as_function("ng_report")
view = as_function("ng_view")

WHERE = [
    "reward > 0.4",
    "reward == 0.1",
    "reward > 0.4 and 'is 3' in text",
    "'is 3' in text or reward == 1",
    "extracted_answer == '3' and finish_reason == 'stop'",
    "extracted_answer is null",
    "duration_s < 0.1234567891",
    "parts == null and num_turns < 3",
    "settings == 'abc' or verifier == ''",
    "expected_answer == '3' and reward >= 0",
    "not is_verified",
    "task_index in [1, 3, 7]",
]


def various_lines() -> list[Any]:
    pick = random.Random(0)
    lines = []
    for task in range(12):
        for index in range(4):
            reward = pick.choice([None, 0, 1.0, 0.1, 0.3000001, True])
            answer = pick.choice([None, "3", 3, 3.5, "x" * 300, ["a", "b"]])
            cut = pick.choice([None, None, "max_output_tokens"])
            made = line(task, index, f"It is {task % 5}.", reward, answer=answer, cut=cut)
            made["rollout"] |= {"duration_s": 0.123456789 * pick.random() * 2}
            made["rollout"]["scores"] += ["parts", "settings"]
            made |= {"parts": pick.choice([None, {"a": 1}, 2]), "settings": "abc"}
            lines.append(made)
    return [*lines, lines[3], {"kind": "failure", "schema": 1}, {"other": 1}]


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    made = Place(tmp_path, capsys)
    write_jsonl(tmp_path / "plain.jsonl", various_lines())
    (tmp_path / "packed.jsonl.gz").write_bytes(
        gzip.compress((tmp_path / "plain.jsonl").read_bytes())
    )
    return made


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("more", ["+dedupe=true", "+reward_key=parts", "+min_reward=0.1"])
def test_an_index_changes_nothing(place: Place, where: str, more: str) -> None:
    found = []
    for name in ("plain.jsonl", "packed.jsonl.gz"):
        path = place.folder / "out.jsonl"
        words = [place.folder / name, "+format=trl_sft", f"+output_fpath={path}"]
        status, said = place.run(export, *words, f"+where={json.dumps(where)}", more)
        report = json.loads((place.folder / "out_report.json").read_text()) if not status else {}
        for part in ("settings", "files", "beside"):
            report.pop(part, None)
        rows = read_jsonl(path) if not status else said.replace(name, "")
        found.append((status, rows, report))
        path.unlink(missing_ok=True)
    assert found[0] == found[1]


def test_comparison_reads_the_same_from_an_index(place: Place) -> None:
    plain, packed = (place.folder / name for name in ("plain.jsonl", "packed.jsonl.gz"))
    said = [place.run(compare, each, each, "+json=true")[1] for each in (plain, packed)]
    assert said[0] == said[1].replace(str(packed), str(plain))


def test_a_line_that_the_filter_leaves_out_is_not_parsed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []
    parse = RolloutFile.join_raw
    monkeypatch.setattr(
        RolloutFile, "join_raw", lambda file, raw: parsed.append(raw) or parse(file, raw)
    )
    keeps = Filter("reward == 1 and finish_reason == 'stop'")
    found = source.RolloutSource([place.folder / "plain.jsonl"])
    chosen = [each.place for each in found.candidates(keeps) if each.holds]
    assert chosen and not [raw for raw in parsed if raw]
    assert len(list(found.read(chosen))) == len(chosen) == len([raw for raw in parsed if raw])


@pytest.mark.parametrize("more", ["+dedupe=true", "+where=\"'a' in text\"", "+min_reward=0"])
def test_a_line_without_a_response_takes_no_other_with_it(place: Place, more: str) -> None:
    bare = line(1, 0, "a", 1.0, answer="x" * 300)
    del bare["response"]
    path = place.folder / "plain.jsonl"
    write_jsonl(path, [bare, line(1, 1, "a", 0.0), line(2, 0, "a", 1.0)])
    words = [path, "+format=trl_sft", f"+output_fpath={place.folder}/out.jsonl", more]
    status, said = place.run(export, *words)
    assert status == 0, said
    assert len(read_jsonl(place.folder / "out.jsonl")) == 2
    report = json.loads((place.folder / "out_report.json").read_text())
    assert report["left_out"] == {"without a response": 1}
    copy = path.with_name("copy.jsonl")
    copy.write_bytes(path.read_bytes())
    assert place.run(compare, path, copy)[0] == 0


def test_a_last_line_without_a_newline_and_a_mark_before_the_first_are_read(place: Place) -> None:
    path, lines = place.folder / "plain.jsonl", [line(1, 0, "a", 1.0), line(2, 0, "b", 1.0)]
    raw = b"\n".join(json.dumps(each).encode() for each in lines)
    for content in (raw, b"\xef\xbb\xbf" + raw + b"\n"):
        path.write_bytes(content)
        found = source.RolloutSource([path])
        places = [each.place for each in found.candidates()]
        assert [each.text for each in found.read(places)] == ["a", "b"]
        assert [each.rollout.text for each in found.candidates()] == ["a", "b"]


def test_a_line_that_was_edited_meanwhile_is_said_and_read_anew(place: Place) -> None:
    path = place.folder / "plain.jsonl"
    found = source.RolloutSource([path])
    places = [each.place for each in found.candidates()]
    before, raw = path.stat(), path.read_bytes()
    path.write_bytes(raw.replace(b"It is 3", b"It is 4"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ConfigError, match="was edited while it was read: run the same command"):
        list(found.read(places))
    texts = [each.rollout.text for each in source.RolloutSource([path]).candidates()]
    assert "It is 4." in texts and "It is 3." not in texts


LOST = [b"no JSON\n", b'{"other": 1}\n', b'{"kind": "rollout", "schema": 1}\n']


@pytest.mark.parametrize("size", [0, 1 << 20])
def test_lines_and_rollouts_that_are_left_out_are_counted(place: Place, size: int) -> None:
    path, again = place.folder / "plain.jsonl", place.folder / "again.jsonl"
    lines = [json.dumps(line(task, 0, "a" * size, task % 2)).encode() + b"\n" for task in range(4)]
    path.write_bytes(
        b"".join([LOST[0], lines[0], lines[0], lines[1], *LOST[1:], lines[2], b"\n", lines[3][:99]])
    )
    write_jsonl(again, [line(2, 0, "another run", 1.0), line(5, 0, "b", 1.0)])
    out = place.folder / "out.jsonl"
    for _ in range(2):  # with an index that an earlier reader has kept
        status, said = place.run(export, path, again, "+format=trl_sft", f"+output_fpath={out}")
        assert status == 0 and len(read_jsonl(out)) == 4
        assert "left out: 3 (lines that no collection wrote)" in said
        assert "left out: 2 (rollouts with the key of an earlier one)" in said
        assert "left out: 1 (a last line that is cut off)" in said
    status, said = place.run(compare, path, again)
    assert status == 0 and f"{path}: left out: 3 (lines that no collection wrote)" in said
    path.write_bytes(b"".join(LOST))
    status, said = place.run(export, path, "+format=trl_sft", f"+output_fpath={out}")
    assert status == 1 and "left out: 3 (lines that no collection wrote)" in said


@pytest.mark.parametrize(
    "more",
    [
        b',"reward":1e305',
        b',"reward":' + b"9" * 400,
        b',"_ng_task_index":' + b"9" * 30,
        b',"rollout":{"task_id":"a","rollout_index":' + b"9" * 30 + b"}",
        b',"deep":' + b"[" * 50_000 + b"]" * 50_000,
    ],
)
def test_lines_with_numbers_that_nothing_can_hold_and_deep_ones_are_left_out(
    more: bytes, place: Place
) -> None:
    kept, odd = (json.dumps(line(task, 0, "a", 1.0)).encode() for task in (1, 2))
    path, again = place.folder / "odd.jsonl", place.write([line(1, 0, "b", 0.5)], "again.jsonl")
    path.write_bytes(kept + b"\n" + odd[:-1] + more + b"}\n")
    status, said = place.run(compare, path, again)
    why = "lines whose reward is" if b"reward" in more else "lines that no collection wrote"
    assert status == 0 and f"{path}: left out: 1 ({why}" in said
    out = place.folder / "out.jsonl"
    status, said = place.run(export, path, "+format=trl_sft", f"+output_fpath={out}")
    assert status == 0 and len(read_jsonl(out)) == 1 and "left out: 1 (lines" in said
    status, said = place.run(view, path, f"+static={place.folder}/page.html")
    assert status == 0 and "1 rollout" in said
    merged = place.folder / "merged.jsonl"
    status, said = place.run(merge, path, f"+output_jsonl_fpath={merged}")
    assert status == 2 and "1 line is no rollout" in said and len(read_jsonl(merged)) == 1


def test_ids_that_no_column_holds_tell_tasks_apart(place: Place) -> None:
    lines = [line(task, index, f"{index}", index) for task in (1, 2) for index in (0, 1)]
    for each in lines:
        each["rollout"]["task_id"] = "a question as id? " * 20 + each["rollout"]["task_id"]
    path = write_jsonl(place.folder / "plain.jsonl", lines)
    out = place.folder / "out.jsonl"
    status, said = place.run(export, path, "+format=trl_dpo", f"+output_fpath={out}")
    assert status == 0, said
    assert [row["task_id"][-1] for row in read_jsonl(out)] == ["1", "2"]


def test_a_byte_order_mark_hides_no_rollout_from_any_command(place: Place) -> None:
    lines = [json.dumps(line(task, 0, "a", 1.0)).encode() + b"\n" for task in (1, 2)]
    path, merged = place.folder / "marked.jsonl", place.folder / "merged.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"".join(lines))
    for command, out, more in (
        (export, "+output_fpath=out.jsonl", "+format=trl_sft"),
        (report, "+output_fpath=out.html", "+title=a"),
        (view, "+static=view.html", "+where=reward == 1"),
        (view, "+static=view.html", "+where=reward == 1"),  # with the index that it has kept
    ):
        name, _, file = out.partition("=")
        status, said = place.run(command, path, f"{name}={place.folder / file}", more)
        assert status == 0 and "2 ro" in said and "left out" not in said
    status, said = place.run(merge, path, f"+output_jsonl_fpath={merged}")
    assert status == 0 and merged.read_bytes() == b"".join(lines)


def test_a_byte_order_mark_hides_no_line_beside_an_output(place: Place) -> None:
    mark = b"\xef\xbb\xbf"
    path = write_jsonl(place.folder / "marked.jsonl", [line(1, 0, "a", 1.0)])
    failed, waiting = line(2, 0, "b", 1.0), line(3, 0, "c", 1.0)
    del waiting["reward"]
    failed["kind"], waiting["kind"] = "failure", "unverified"
    failed["failure"] = {"class": "VerifyError", "message": "too slow", "terminal": True}
    for name, row in (("failures", failed), ("unverified", waiting)):
        beside = place.folder / f"marked_{name}.jsonl"
        beside.write_bytes(mark + json.dumps(row).encode() + b"\n")
    out = place.folder / "out.html"
    status, said = place.run(report, path, f"+output_fpath={out}")
    assert status == 0 and "1 failed" in out.read_text(), said
    merged = place.folder / "merged.jsonl"
    status, said = place.run(merge, path, f"+output_jsonl_fpath={merged}")
    assert len(read_jsonl(place.folder / "merged.d/failures.jsonl")) == 1, said
    assert len(read_jsonl(place.folder / "merged.d/unverified.jsonl")) == 1, said


def test_a_user_without_a_home_folder_reads_a_large_file(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollout_kit.store.index.SMALL", 0)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    forget_home(monkeypatch)
    words = [place.folder / "plain.jsonl", f"+output_fpath={place.folder / 'out.jsonl'}"]
    assert place.run(export, *words, "+format=trl_sft")[0] == 0
    static = f"+static={place.folder / 'view.html'}"
    assert place.run(view, place.folder / "plain.jsonl", static)[0] == 0


def test_fields_of_wrong_types_end_no_command(place: Place) -> None:
    """As another program, or a person, may have written them."""
    lines = [line(task, 0, "a", 1.0) for task in range(4)]
    lines[0]["rollout"]["scores"] = [1, None, {}]
    lines[1]["usage"] = {"input_tokens": 1e300, "output_tokens": 5.5}
    lines[2]["usage"] = {"input_tokens": -3, "output_tokens": 1e30, "total_tokens": 2.0**70}
    path = write_jsonl(place.folder / "odd.jsonl", lines)
    failed = {**line(9, 0, "b", None), "kind": "failure", "failure": "a text"}
    write_jsonl(place.folder / "odd.d/failures.jsonl", [failed])
    for command, *words in (
        (report, f"+output_fpath={place.folder / 'out.html'}"),
        (view, f"+static={place.folder / 'view.html'}"),
        (compare, place.folder / "plain.jsonl"),
        (export, f"+output_fpath={place.folder / 'out.jsonl'}", "+format=trl_sft"),
        (merge, f"+output_jsonl_fpath={place.folder / 'merged.jsonl'}"),
    ):
        status, said = place.run(command, path, *words)
        assert status == 0 and "left out" not in said.partition("plain.jsonl")[0], said
    (place.folder / "odd.d/unverified.jsonl").touch()
    found = scan(OutputPaths(path))
    assert len(found.done) == 4 and not found.refused


def test_links_to_nowhere_and_folders_named_like_files_hide_no_rollout(place: Place) -> None:
    folder = place.folder / "results"
    folder.mkdir()
    for name in ("one", "two"):
        write_jsonl(folder / f"{name}.jsonl", [line(1, 0, "a", 1.0), line(2, 0, "b", 0.0)])
    (folder / "loop.jsonl").symlink_to("loop.jsonl")
    (folder / "gone.jsonl").symlink_to("nowhere.jsonl")
    (folder / "folder.jsonl").mkdir()
    for command, word in (
        (compare, "+json=true"),
        (report, f"+output_fpath={place.folder / 'out.html'}"),
        (view, f"+static={place.folder / 'view.html'}"),
    ):
        status, said = place.run(command, folder, word)
        assert status == 0, said
    status, said = place.run(compare, folder / "loop.jsonl", folder / "one.jsonl")
    assert status == 1 and "loop.jsonl: cannot be read: Too many levels" in said
    status, said = place.run(compare, folder / "gone.jsonl", folder / "one.jsonl")
    assert status == 1 and "gone.jsonl: is a link to nowhere.jsonl, which is missing" in said


def test_a_pipe_is_refused_as_input_because_it_is_read_twice(place: Place) -> None:
    pipe = place.folder / "pipe.jsonl"
    os.mkfifo(pipe)
    for command, *words in (
        (compare, place.folder / "plain.jsonl"),
        (export, f"+output_fpath={place.folder / 'out.jsonl'}", "+format=trl_sft"),
    ):
        status, said = place.run(command, pipe, *words)
        assert status == 1 and "pipe.jsonl: a pipe can be read only once" in said


def test_no_output_replaces_a_device_or_a_pipe(place: Place) -> None:
    pipe = place.folder / "pipe.jsonl"
    os.mkfifo(pipe)
    for command, key, *more in (
        (report, "output_fpath"),
        (view, "static"),
        (export, "output_fpath", "+format=trl_sft"),
        (merge, "output_jsonl_fpath"),
    ):
        status, said = place.run(command, place.folder / "plain.jsonl", f"+{key}={pipe}", *more)
        assert status == 1 and f"{pipe}" in said, said
        assert pipe.is_fifo()
