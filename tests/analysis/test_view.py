"""ng_view without a browser: filters, searches, orders, and the server's replies."""

import asyncio
import json
import os
import re
import shlex
import subprocess
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

import aiohttp
import pytest
from agentic import agentic_line, say, use
from command import as_function
from endpoint import endpoint, says
from exported import line, tool_line, write_scored
from hypothesis import given
from hypothesis import strategies as st
from support import eventually, read_jsonl, write_jsonl

from rollout_kit.analysis.facts import gather
from rollout_kit.analysis.report import build_page
from rollout_kit.analysis.view import query as view_query
from rollout_kit.analysis.view.app import Viewer, build_app
from rollout_kit.analysis.view.compared import compare_outputs
from rollout_kit.analysis.view.dataset import Dataset
from rollout_kit.analysis.view.figures import histogram, plots
from rollout_kit.analysis.view.query import Query
from rollout_kit.analysis.view.raw_calls import NO_TOOLS
from rollout_kit.errors import ConfigError, OutputError
from rollout_kit.reading import parse_line
from rollout_kit.responses import input_items, message_item
from rollout_kit.serving.group_verdicts import GroupMemberScore
from rollout_kit.serving.sockets import bound_socket, url_of
from rollout_kit.serving.transport.app import served
from rollout_kit.store.filters.expression import Filter, parse
from rollout_kit.store.filters.masks import mask_of, split
from rollout_kit.store.groups.members import group_digest, hold
from rollout_kit.store.groups.scores import build_group_line
from rollout_kit.store.index import Index
from rollout_kit.store.kinds import NOT_OURS, OPEN, REPEATED
from rollout_kit.store.lines import rollout_of
from rollout_kit.store.notes.labels import Labelled, Labels
from rollout_kit.store.rollouts import load
from rollout_kit.store.scope import group_of
from rollout_kit.types import Key

command = as_function("ng_view")
export = as_function("ng_export")

NUMBERS = ["reward", "num_turns", "output_tokens", "score", "flag"]
TEXTS = ["extracted_answer", "model", "status", "mixed", "arm"]

LEAVES = st.sampled_from(
    ["0", "0.5", "1", "-1", "true", "null", "'a'", "'m'", "'verified'", "[0, 1]", "['a', 'm']"]
)
OPERANDS = st.one_of(
    st.sampled_from([*NUMBERS, *TEXTS]),
    LEAVES,
    st.builds("({} + {})".format, st.sampled_from(NUMBERS), st.sampled_from([*NUMBERS, "1"])),
    st.builds("-{}".format, st.sampled_from(NUMBERS)),
    st.builds("len({})".format, st.sampled_from(TEXTS)),
    st.builds("abs({})".format, st.sampled_from(NUMBERS)),
)
COMPARISONS = st.builds(
    "{} {} {}".format,
    OPERANDS,
    st.sampled_from(["<", "<=", ">", ">=", "==", "!=", "in", "not in", "is"]),
    OPERANDS,
)
EXPRESSIONS = st.recursive(
    st.one_of(COMPARISONS, st.sampled_from(NUMBERS)),
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("not {}".format, inner),
    ),
    max_leaves=4,
)

ROWS = st.fixed_dictionaries(
    {
        "reward": st.sampled_from([0.0, 1.0, 0.5, None]),
        "num_turns": st.sampled_from([0, 1, 9, None]),
        "score": st.sampled_from([0, 1, -1.5, None]),
        "flag": st.sampled_from([True, False, None]),
        "mixed": st.sampled_from(["a", "m", 1, None]),
        "answer": st.sampled_from(["a", "m", "", None]),
        "scope": st.sampled_from(["", "arm=a", "arm=m,epoch=1", "epoch=1"]),
    }
)


def build(number: int, row: dict[str, Any]) -> dict[str, Any]:
    own = {"answer": row["answer"], "scope": row["scope"]}
    made = line(number, 0, "It is so.", row["reward"], **own)
    if row["num_turns"] is None:
        del made["rollout"]["num_turns"]
    else:
        made["rollout"]["num_turns"] = row["num_turns"]
    made["rollout"]["scores"] += ["score", "flag", "mixed"]
    return {**made, **{name: row[name] for name in ("score", "flag", "mixed")}}


@given(st.lists(ROWS, min_size=1, max_size=6), st.lists(EXPRESSIONS, min_size=1, max_size=5))
def test_a_filter_over_columns_means_what_it_means_over_lines(
    tmp_path_factory: Any, rows: list[dict[str, Any]], texts: list[str]
) -> None:
    path = write_jsonl(
        tmp_path_factory.mktemp("view") / "r.jsonl", [build(*each) for each in enumerate(rows)]
    )
    index = Index(path)
    index.update()
    lines = [rollout_of(parse_line(index.line(row)) or {}) for row in range(len(index))]
    for text in texts:
        quick, slow = split(parse(text), index.columns)
        try:
            expected = [Filter(text)(rollout) for rollout in lines]
        except ConfigError:
            continue  # where columns decide, they may not come to the row that has no answer
        try:
            mask = mask_of(quick, index.columns, len(index)) if quick else bytes([1]) * len(index)
        except ConfigError:
            assert slow is not None  # it stands before and excludes the row that has no answer
            continue
        if slow is None:
            assert [bool(each) for each in mask] == expected, text
        else:
            assert all(one or not other for one, other in zip(mask, expected, strict=True)), text


def failure(task: int, index: int) -> dict[str, Any]:
    made = line(task, index, "x", None)
    block = {name: made["rollout"][name] for name in ("task_id", "scope", "rollout_index")}
    return {
        **{name: made[name] for name in ("schema", "agent_ref", "_ng_task_index")},
        "kind": "failure",
        "rollout": block,
        "attempt": 2,
        "failure": {"class": "ServerError", "message": "it is down"},
        "repro": "ng_collect_rollouts +only=…",
    }


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two outputs, one with a failure, a superseded failure and a response without a verdict."""
    answers = [
        line(1, 0, "It is 1.", 1.0),
        line(1, 1, "It is 1.", 1.0),
        line(1, 2, 'It is "2", or é.', 0.0, answer="2"),
        line(2, 0, "It is 3.", 0.0, answer="3"),
        tool_line(3, 0, 1.0, ("price", '{"item": "tea"}')),
    ]
    write_jsonl(tmp_path / "a.jsonl", answers)
    write_jsonl(tmp_path / "a.d/failures.jsonl", [failure(2, 0), failure(5, 0), failure(5, 0)])
    waiting = {**line(6, 0, "It is 6.", None), "kind": "unverified"}
    write_jsonl(tmp_path / "a.d/unverified.jsonl", [waiting])
    write_jsonl(tmp_path / "sub.jsonl", [line(1, 0, "It is 7.", 0.0, answer="7")])
    write_jsonl(tmp_path / "tasks.jsonl", [{"responses_create_params": {"input": "hi"}}])
    return tmp_path


@pytest.fixture
def viewer(results: Path) -> Viewer:
    found = Viewer(Dataset([str(results)], is_kept=False), "results")
    found.update()
    return found


def shown(viewer: Viewer, where: str = "", search: str = "", sort: str = "") -> list[Any]:
    result = viewer.queries.wait(Query(where, search, sort))
    assert not result.error, result.error
    rows = [viewer.row(row_id) for row_id in result.ids]
    return [(int(row["task_id"], 16), row["rollout_index"]) for row in rows]


ALL = [(1, 0), (1, 1), (1, 2), (2, 0), (3, 0), (6, 0), (5, 0), (1, 0)]


def test_what_has_a_result_hides_its_failures(viewer: Viewer) -> None:
    assert shown(viewer) == ALL
    assert shown(viewer, "status == 'failed'") == [(5, 0)]
    assert shown(viewer, "status == 'unverified'") == [(6, 0)]


@pytest.mark.parametrize(
    ("where", "search", "sort", "expected"),
    [
        ("reward == 0", "", "", [(1, 2), (2, 0), (1, 0)]),
        ("reward == 0 and '3' in text", "", "", [(2, 0)]),
        ("expected_answer == '1' and reward > 0", "", "", [(1, 0), (1, 1)]),
        (f"task_id == '{3:016x}'", "", "", [(3, 0)]),
        ("", "tea", "", [(3, 0)]),
        ("", '"2", or é', "", [(1, 2)]),
        ("", "/IT IS [67]/i", "", [(6, 0), (1, 0)]),
        ("reward < 2", "It is 7", "", [(1, 0)]),
        ("is_verified", "", "-row", [(1, 0), *reversed(ALL[:5])]),
        ("reward >= 0", "", "extracted_answer", [(1, 0), (1, 1), (1, 2), (2, 0), (3, 0), (1, 0)]),
        ("reward >= 0", "", "-reward", [(1, 0), (1, 1), (3, 0), (1, 2), (2, 0), (1, 0)]),
    ],
)
def test_a_query_chooses_and_orders(
    viewer: Viewer, where: str, search: str, sort: str, expected: list[Any]
) -> None:
    assert shown(viewer, where, search, sort) == expected


def test_rows_are_chosen_and_ordered_by_their_file(viewer: Viewer) -> None:
    assert shown(viewer, "file == 'sub.jsonl'") == [(1, 0)]
    assert shown(viewer, "'a' in file and 'It is 3' in text") == [(2, 0)]
    assert shown(viewer, "file != 'sub.jsonl' or reward > 1") == ALL[:-1]
    assert shown(viewer, sort="-file") == [ALL[-1], *ALL[:-1]]


def test_rows_have_their_arm_and_a_file_without_arms_says_so(tmp_path: Path) -> None:
    arms = ["b", "a", ""]
    lines = [line(1, 0, arm, 1.0, scope=f"arm={arm}" if arm else "") for arm in arms]
    write_jsonl(tmp_path / "arms.jsonl", lines)
    write_jsonl(tmp_path / "plain.jsonl", [line(2, 0, "a", 1.0, scope="epoch=1")])
    viewer = Viewer(Dataset([str(tmp_path)], is_kept=False), "")
    viewer.update()
    assert [file["has_arms"] for file in viewer.state()["files"]] == [True, False]
    assert [viewer.row(each)["arm"] for each in viewer.queries.wait(Query()).ids][:3] == [
        *arms[:2],
        None,
    ]
    ids = viewer.queries.wait(Query("arm == 'a' or arm == 'b'", sort="arm")).ids
    assert [viewer.row(each)["arm"] for each in ids] == ["a", "b"]
    assert dict(histogram(viewer.dataset, ids, "arm")["names"]) == {"a": 1, "b": 1}


def test_arms_are_in_the_order_of_their_declaration_else_of_their_numbers(tmp_path: Path) -> None:
    arms = ["", "arm_2", "arm_10", "b", "b1.9", "b1.10"]
    lines = [line(1, 0, arm, 1.0, scope=f"arm={arm}" if arm else "") for arm in reversed(arms)]
    for arm, each in zip(reversed(arms), lines, strict=True):
        each["rollout"]["settings"] = f"made by {arm}"
    path = write_jsonl(tmp_path / "arms.jsonl", lines)
    dataset = Dataset([str(path)], is_kept=False)
    dataset.update()
    viewer = Viewer(dataset, "")

    def check(arms: list[str]) -> None:
        ids = viewer.queries.wait(Query(sort="arm")).ids
        assert [viewer.row(each)["arm"] or "" for each in ids] == [*arms, ""]
        assert [part["arm"] for part in plots(dataset, list(ids))["parts"]] == ["", *arms]
        page = build_page([gather("arms", path, 1.0)], "Arms")
        assert re.findall(r"<td[^>]*>solver · ([^<]*)</td>", page) == arms

    check(arms[1:])
    declared = ["b1.10", "arm_10", "arm_2"]
    content = {"settings": {f"made by {arm}": {} for arm in declared}}
    write_jsonl(tmp_path / "arms.d/run.json", [content])
    check([*declared, "b", "b1.9"])


def test_a_viewer_that_reads_an_index_still_names_the_lines_without_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write_jsonl(
        tmp_path / "a.jsonl", [line(1, 0, "a", 1.0), {"other": 1}, line(1, 0, "b", 1.0)]
    )
    for _ in range(2):
        viewer = Viewer(Dataset([str(path)]), "")
        viewer.update()
        [file] = viewer.state()["files"]
        assert file["rollouts"] == 1 and file["left_out"] == {NOT_OURS: 1, REPEATED: 1}


@pytest.mark.parametrize(
    ("end", "why"),
    [(b'{"reward": 1.0, "rol', "a last line that is cut off"), (None, OPEN), (b" ", "")],
)
def test_a_static_page_says_which_lines_it_lacks(
    end: bytes | None, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [line(1, 0, "a", 1.0)])
    with path.open("ab") as stream:
        stream.write(json.dumps(line(2, 0, "b", 1.0)).encode() if end is None else end)
    target = tmp_path / "page.html"
    with pytest.raises(SystemExit):
        command([str(path), f"+static={target}"])
    said, page = capsys.readouterr().out, target.read_text()
    assert (f"{path}: left out: 1 ({why})\n" if why else "MB\n") in said
    assert (why in page) if why else "left out" not in said


def test_a_random_order_is_one_of_all_rows(viewer: Viewer) -> None:
    assert sorted(shown(viewer, sort="~1")) == sorted(ALL)
    assert shown(viewer, sort="~1") == shown(viewer, sort="~1")


@pytest.mark.parametrize(
    ("where", "search", "said"),
    [
        ("rewrd < 1", "", "did you mean 'reward'?"),
        ("reward <", "", "is no filter"),
        ("__import__('os')", "", "the only functions are"),
        ("reward < 'a'", "", "not supported"),
        ("reward / 0 > 1", "", "division by zero"),
        ("", "/(/", "no regular expression"),
    ],
)
def test_a_wrong_query_says_what_is_wrong(
    viewer: Viewer, where: str, search: str, said: str
) -> None:
    assert said in viewer.queries.wait(Query(where, search)).error


def test_an_order_by_no_column_says_so(viewer: Viewer) -> None:
    assert "did you mean 'reward'?" in viewer.queries.wait(Query(sort="-rewrd")).error
    for name in ("file", "arm", "group_reward", "status", "row", "~1"):
        assert not viewer.queries.wait(Query(sort=name)).error


def test_a_result_that_the_file_has_outgrown_stands_in_and_says_that_it_is_not_whole(
    viewer: Viewer, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, may_read = Query("'It is' in text"), threading.Event()
    eventually(lambda: viewer.queries.result(query).is_done)
    before = viewer.rows(query, 0, 100)["total"]
    with (results / "a.jsonl").open("a") as stream:
        stream.write(json.dumps(line(9, 0, "It is 9.", 1.0)) + "\n")
    viewer.update()
    chosen = view_query.choose
    monkeypatch.setattr(view_query, "choose", lambda *each: may_read.wait() and chosen(*each))
    found = viewer.rows(query, 0, 100)
    assert (found["total"], found["is_done"]) == (before, False)
    assert not viewer.neighbours(query, 0)["is_done"]
    assert not viewer.count(query, lambda ids: {})["is_done"]
    may_read.set()
    eventually(lambda: viewer.rows(query, 0, 100)["is_done"])
    assert viewer.rows(query, 0, 100)["total"] == before + 1


def test_a_search_without_matches_tells_how_far_it_is(viewer: Viewer) -> None:
    for query in (Query("'nothing' in text"), Query("", "nothing"), Query("", "/no+thing/")):
        result, shares = view_query.Result(query), []
        for found in view_query.choose(viewer.dataset, result):
            assert not found
            shares.append(result.searched)
        assert shares == sorted(shares) and result.searched > 0.5


def searching() -> list[str]:
    """The processes of this one that search."""
    found = []
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread or a process that has ended
            for child in (thread / "children").read_text().split():
                command = Path(f"/proc/{child}/cmdline").read_text()
                found += [command] if "matching_child" in command else []
    return found


def test_an_expression_that_takes_for_ever_is_ended_and_holds_nothing_up(
    viewer: Viewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollout_kit.serving.workers.matching.DEADLINE_S", 60.0)
    slow = Query("", '/"(([^"]|[a-z])+)+!!/')
    running = viewer.queries.result(slow)
    assert viewer.queries.wait(Query("", "tea")).is_done and not running.is_done
    eventually(searching)
    viewer.queries.cancel(slow)
    eventually(lambda: not searching())
    monkeypatch.setattr("rollout_kit.serving.workers.matching.DEADLINE_S", 0.5)
    assert "write it simpler" in viewer.queries.wait(slow).error
    assert not searching()


def test_an_output_that_appears_in_a_folder_is_shown(viewer: Viewer, results: Path) -> None:
    before, generation = shown(viewer), viewer.dataset.generation
    new = results / "later" / "more.jsonl"
    new.parent.mkdir()
    (results / "later" / "tasks.jsonl").write_text('{"question": "x"}\n')
    new.write_bytes(b"")
    viewer.update()
    assert shown(viewer) == before
    write_jsonl(new, [line(70, 0, "It is 70.", 1.0)])
    viewer.update()
    assert shown(viewer) == [*before, (70, 0)]
    assert viewer.dataset.generation == generation
    assert [each["name"] for each in viewer.state()["files"]][-1] == "later/more.jsonl"


@pytest.mark.parametrize("name", ["none.jsonl", "."])
def test_failures_are_shown_though_no_rollout_has_left_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write_jsonl(tmp_path / "none.d/failures.jsonl", [failure(1, 0), failure(2, 0)])
    monkeypatch.chdir(tmp_path)
    viewer = Viewer(Dataset([name], is_kept=False), "")
    viewer.update()
    assert shown(viewer, 'status == "failed"') == [(1, 0), (2, 0)]


def test_a_group_tells_how_many_rollouts_it_has_and_shows_the_first(
    viewer: Viewer, results: Path
) -> None:
    write_jsonl(results / "many.jsonl", [line(90, each, "x", 1.0) for each in range(300)])
    viewer.update()
    row = viewer.queries.wait(Query(f"task_id == '{90:016x}'")).ids[0]
    group = viewer.reader.group(row)
    assert group["num_members"] == 300 and len(group["members"]) == 256


def test_a_file_that_grows_changes_the_rows(viewer: Viewer, results: Path) -> None:
    with (results / "a.jsonl").open("a") as stream:
        stream.write(json.dumps(line(5, 0, "It is 5.", 1.0)) + "\n")
    viewer.update()
    assert (5, 0) in shown(viewer, "reward == 1")
    assert shown(viewer, "status == 'failed'") == []


def test_a_group_holds_all_rollouts_of_the_task(viewer: Viewer) -> None:
    first = viewer.queries.wait(Query()).ids[0]
    group = viewer.reader.group(first)
    assert [each["reward"] for each in group["members"]] == [1, 1, 0]
    one, other, third = (each["digest"] for each in group["members"])
    assert one == other != third


def test_labels_are_kept_beside_the_output_and_the_last_one_counts(
    viewer: Viewer, results: Path
) -> None:
    row = viewer.queries.wait(Query()).ids[2]
    viewer.reader.set_label(row, {"label": "bug", "note": "wrong unit"})
    viewer.reader.set_label(row, {"label": "flaky", "on": "task"})
    viewer.reader.set_label(row, {"label": "odd"})
    viewer.reader.set_label(row, {"label": "odd", "removed": True})
    assert viewer.row(row)["labels"] == ["flaky", "bug"]
    found = viewer.reader.rollout(row)
    assert (found["labels"], found["task_labels"]) == ({"bug": "wrong unit"}, {"flaky": ""})
    lines = read_jsonl(results / "a.d/labels.jsonl")
    assert {each["kind"] for each in lines} == {"label"}
    again = Viewer(Dataset([str(results / "a.jsonl")], is_kept=False), "")
    again.update()
    assert again.row(2)["labels"] == ["flaky", "bug"]
    with pytest.raises(Exception, match="1 to 100 characters"):
        viewer.reader.set_label(row, {"label": " "})


@pytest.mark.parametrize("wrong", [{"on": "tsk"}, {"note": [1]}, {"removed": "yes"}])
def test_a_label_with_a_field_of_a_wrong_kind_is_refused(
    viewer: Viewer, results: Path, wrong: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        viewer.reader.set_label(0, {"label": "bug", **wrong})
    assert not (results / "a.d/labels.jsonl").exists()


def test_a_label_for_a_row_that_is_another_rollout_by_now_is_refused(
    viewer: Viewer, results: Path
) -> None:
    shown = viewer.reader.rollout(0)["key"]
    lines = (results / "a.jsonl").read_bytes().splitlines(keepends=True)
    (results / "a.jsonl").write_bytes(b"".join(reversed(lines)))
    viewer.update()
    body = {"label": "bug", "key": shown}
    now = viewer.find("a.jsonl", Key(**shown))["id"]
    found = ask(
        viewer,
        ("POST", "/api/labels?id=0", {}, body),
        ("POST", f"/api/labels?id={now}", {}, body),
    )
    assert [status for status, _, _ in found] == [409, 200]


def test_a_file_that_cannot_be_read_is_said_and_the_others_are_followed(
    viewer: Viewer, results: Path
) -> None:
    before, labels = shown(viewer), results / "a.d/labels.jsonl"
    (results / "sub.jsonl").rename(results / "sub.txt")
    (results / "sub.jsonl").mkdir()
    labels.mkdir()
    write_jsonl(results / "new.jsonl", [line(80, 0, "It is 80.", 1.0)])
    viewer.update()
    assert shown(viewer) == [*before, (80, 0)]
    problems = {each["name"]: each["problem"] for each in viewer.state()["files"]}
    assert problems["sub.jsonl"].endswith("sub.jsonl: cannot be read: Is a directory")
    assert problems["a.jsonl"].endswith("a.d/labels.jsonl: cannot be read: Is a directory")
    with pytest.raises(ConfigError, match="cannot be read"):
        viewer.dataset.check_readable()
    labels.rmdir()
    (results / "sub.jsonl").rmdir()
    (results / "sub.txt").rename(results / "sub.jsonl")
    viewer.update()
    assert not any(each["problem"] for each in viewer.state()["files"])


def test_labels_stay_where_their_file_can_no_longer_be_read(results: Path) -> None:
    labels, what = Labels.beside(results / "a.jsonl"), Labelled.task("1")
    labels.set(what, "bug")
    labels.path.unlink()
    labels.path.mkdir()
    with pytest.raises(OutputError, match="cannot be read"):
        labels.refresh()
    assert labels.on(what) == {"bug": ""}


def test_a_label_behind_a_line_that_was_cut_is_kept(viewer: Viewer, results: Path) -> None:
    viewer.reader.set_label(0, {"label": "bug"})
    with (results / "a.d/labels.jsonl").open("a") as stream:
        stream.write('{"kind":"label","task_')
    viewer.reader.set_label(0, {"label": "odd"})
    again = Labels.beside(results / "a.jsonl")
    again.refresh()
    assert [list(notes) for _, notes in again.items()] == [["bug", "odd"]]


Asking = Callable[[str, str, dict[str, str], Any], Awaitable[tuple[int, str, Any]]]


def ask(viewer: Viewer, *requests: tuple[str, str, dict[str, str], Any]) -> list[Any]:
    """Status, text and headers of each request to a real server."""

    async def main() -> list[Any]:
        sock = bound_socket("127.0.0.1", 0)
        url, found = url_of(sock), []
        async with served(build_app(viewer), sock), aiohttp.ClientSession() as session:
            for method, path, headers, body in requests:
                headers = {k: v.replace("HERE", url[7:]) for k, v in headers.items()}
                async with session.request(method, url + path, headers=headers, json=body) as reply:
                    found.append((reply.status, await reply.text(), reply.headers))
        return found

    return asyncio.run(main())


def test_the_server_answers_and_nothing_is_loaded_from_elsewhere(viewer: Viewer) -> None:
    found = ask(
        viewer,
        ("GET", "/", {}, None),
        ("GET", "/main.js", {}, None),
        ("GET", "/../../pyproject.toml", {}, None),
        ("GET", "/%2e%2e/app.py", {}, None),
        ("GET", "/api/rollout?id=x", {}, None),
        ("GET", "/api/rollout?id=99", {}, None),
        ("GET", "/api/rows?count=2&where=reward%20%3C%201", {}, None),
        ("GET", "/api/compare?first=a.jsonl&second=sub.jsonl", {}, None),
        ("GET", "/api/plots", {}, None),
        ("GET", "/api/histogram?column=extracted_answer", {}, None),
        ("GET", "/%00.js", {}, None),
        ("GET", f"/{'a' * 5000}.js", {}, None),
        ("GET", "/api/rows?count=-1", {}, None),
    )
    statuses = [status for status, _, _ in found]
    assert statuses == [200, 200, 404, 404, 400, 400, 200, 200, 200, 200, 404, 404, 200]
    assert json.loads(found[-1][1])["rows"] == []
    for _, _, headers in found:
        assert "default-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    compared = json.loads(found[7][1])
    assert compared["flips"][0]["task_id"] == f"{1:016x}"
    page = found[0][1]
    assert not re.search(r"https?://", page.replace("http-equiv", ""))


def test_pages_of_other_sites_are_refused(viewer: Viewer) -> None:
    body = {"label": "bug"}
    found = ask(
        viewer,
        ("GET", "/api/state", {"host": "evil.example"}, None),
        ("GET", "/api/state", {"origin": "http://evil.example"}, None),
        ("GET", "/api/state", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}, None),
        ("POST", "/api/labels?id=0", {"content-type": "text/plain"}, body),
        ("POST", "/api/labels?id=0", {"origin": "null"}, body),
        ("POST", "/api/cancel", {"origin": "null"}, body),
        ("POST", "/api/labels?id=0", {"origin": "http://HERE"}, body),
    )
    assert [status for status, _, _ in found] == [403, 403, 403, 415, 403, 403, 200]


def test_an_edited_line_is_said_and_read_anew(viewer: Viewer, results: Path) -> None:
    path = results / "sub.jsonl"
    times = path.stat()
    path.write_bytes(path.read_bytes().replace(b"It is 7.", b"It is 8."))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    row = viewer.queries.wait(Query("extracted_answer == '7'")).ids[0]
    status, text, _ = ask(viewer, ("GET", f"/api/rollout?id={row}", {}, None))[0]
    assert (status, "was edited" in text) == (409, True)
    viewer.update()
    assert (
        "It is 8."
        in viewer.reader.rollout(row)["line"]["response"]["output"][0]["content"][0]["text"]
    )


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028"


def test_a_static_report_holds_the_rollouts_and_no_markup_of_theirs(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_jsonl(results / "hostile.jsonl", [line(1, 0, HOSTILE, 0.0, answer=HOSTILE)])
    target = results / "report.html"
    with pytest.raises(SystemExit) as ended:
        command([str(results), "+where=reward < 0.5", f"+static={target}"])
    assert ended.value.code == 0
    assert "4 rollouts" in capsys.readouterr().out
    page = target.read_text()
    assert page.count("</script>") == 2
    assert "onerror=alert(2)>" not in page
    assert not re.search(r"<(script|link)[^>]*(src|href)=", page)
    report = json.loads(re.search(r'id="report">(.*?)</script>', page, re.S)[1])  # type: ignore[index]
    assert {row["file"] for row in report["rows"]} == {"a.jsonl", "sub.jsonl", "hostile.jsonl"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name a folder or files of rollouts"),
        (["none.jsonl"], "no file or folder none.jsonl"),
        (["tasks.jsonl"], "its first lines are no rollouts"),
        (["empty"], "no file of rollouts"),
        (["grouped.jsonl"], "+format=rollouts"),
        (["a.jsonl", "+static=x.html", "+where=reward > 9"], "nothing was written"),
        (["a.jsonl", "+port=x"], "port"),
        (["a.jsonl", "+where=reward <"], "is no filter"),
        (["nothing"], "no file or folder"),
        (["a.jsonl", "+wher=reward < 1"], "did you mean 'where'?"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line(
    results: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (results / "empty").mkdir()
    answers = {"question": "1+1", "gold_answer": "2", "trajectories": [{"full_text": "2"}]}
    write_jsonl(results / "grouped.jsonl", [answers])
    monkeypatch.chdir(results)
    with pytest.raises(SystemExit) as ended:
        command(words)
    assert ended.value.code == 1
    assert said in capsys.readouterr().err
    assert not (results / "x.html").exists()


def test_labels_choose_rollouts_in_exports_too(results: Path) -> None:
    labels = Labels.beside(results / "a.jsonl")
    labels.set(Labelled(f"{2:016x}", "solver", "", 0), "bug")
    labels.set(Labelled.task(f"{1:016x}"), "flaky")
    rows = [each for each in load(results / "a.jsonl") if Filter("'bug' in labels")(each)]
    assert [row.key.task_id for row in rows] == [f"{2:016x}"]
    target = results / "train.jsonl"
    with pytest.raises(SystemExit) as ended:
        words = ["+format=trl_sft", f"+output_fpath={target}", "+where='flaky' not in labels"]
        export([str(results / "a.jsonl"), *words])
    assert ended.value.code == 0
    assert {each["task_id"] for each in read_jsonl(target)} == {f"{2:016x}", f"{3:016x}"}


def test_group_scores_are_shown_and_filtered_by(results: Path) -> None:
    rollouts = [rollout for rollout in load(results / "a.jsonl") if rollout.key.task_id[-1] == "1"]
    digest = group_digest(sum(hold(each.key, each.line).digest for each in rollouts))
    scores = [(each.key, GroupMemberScore(2.5 - at)) for at, each in enumerate(rollouts)]
    group = group_of(rollouts[0].key)
    scored = build_group_line(group, 1, digest, "v", scores, {"agreement": 0.5})
    write_jsonl(results / "a.d/groups.jsonl", [scored])
    viewer = Viewer(Dataset([str(results / "a.jsonl")], is_kept=False), "")
    viewer.update()
    assert shown(viewer, "group_reward > 1") == [(1, 0), (1, 1)]
    assert shown(viewer, sort="group_reward")[:4] == [(1, 2), (1, 1), (1, 0), (2, 0)]
    first = viewer.queries.wait(Query()).ids[0]
    assert viewer.row(first)["group_reward"] == 2.5
    assert viewer.reader.group(first)["figures"] == {"agreement": 0.5}
    assert viewer.reader.rollout(first)["group"]["reward"] == 2.5


def test_outputs_are_compared_by_either_reward(tmp_path: Path) -> None:
    ones = [line(task, 0, "One.", 1.0) for task in range(4)]
    first = write_scored(tmp_path / "a.jsonl", ones, lambda each: 0.0)
    second = write_scored(tmp_path / "b.jsonl", ones, lambda each: each["_ng_task_index"] % 2)
    write_jsonl(tmp_path / "c.jsonl", ones)
    dataset = Dataset([str(tmp_path)], is_kept=False)
    Viewer(dataset, "").update()
    own = compare_outputs(dataset, first.name, second.name)
    assert (own["by"], own["difference"], own["num_flips"]) == ("reward", 0.0, 0)
    assert own["can_be_by"] == ["reward", "group_reward"]
    found = compare_outputs(dataset, first.name, second.name, "group_reward")
    assert (found["difference"], found["wins"], found["ties"]) == (0.5, 2, 2)
    assert [flip["task_id"][-1] for flip in found["flips"]] == ["1", "3"]
    assert compare_outputs(dataset, first.name, "c.jsonl")["can_be_by"] == ["reward"]
    with pytest.raises(ConfigError, match=r"by=group_reward: both have reward$"):
        compare_outputs(dataset, first.name, "c.jsonl", "group_reward")


def test_a_deep_and_a_long_value_are_cut(results: Path) -> None:
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    rows = [{**line(1, 0, "x" * 300_000, 1.0), "deep": deep}]
    write_jsonl(results / "deep.jsonl", rows)
    viewer = Viewer(Dataset([str(results / "deep.jsonl")], is_kept=False), "")
    viewer.update()
    status, text, _ = ask(viewer, ("GET", "/api/rollout?id=0", {}, None))[0]
    assert status == 200 and "deeper levels" in text and "more characters" in text
    assert len(text) < 250_000


def test_files_of_one_name_in_several_folders_are_told_apart(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "rollouts.jsonl" for folder in ("before", "after", "later")]
    for reward, path in enumerate(paths):
        path.parent.mkdir()
        write_jsonl(path, [line(task, 0, "It is 1.", reward) for task in (1, 2)])
    later = paths.pop()
    later.rename(hidden := tmp_path / "later.txt")
    folders = [str(path.parent) for path in (*paths, later)]
    (later.parent / "a.jsonl").write_bytes(hidden.read_bytes())
    dataset = Dataset(folders, is_kept=False)
    hidden.rename(later)
    dataset.update()
    names = [output.name for output in dataset.outputs]
    assert names == [*map(str, paths), f"{later.parent}/a.jsonl", str(later)]
    found = compare_outputs(dataset, *names[:2])
    assert (found["first"]["reward"], found["second"]["reward"]) == (0, 1)


@pytest.mark.parametrize(("others", "both"), [("solver", 1), ("other", 2)])
def test_tasks_are_compared_across_agents_unless_a_file_has_several(
    tmp_path: Path, others: str, both: int
) -> None:
    write_jsonl(tmp_path / "a.jsonl", [line(task, 0, "a", 1.0) for task in (1, 2)])
    more = {"agent_ref": {"name": "other"}}
    write_jsonl(
        tmp_path / "b.jsonl",
        [{**line(1, 0, "a", 0.0), **more}, {**line(2, 0, "a", 0.0), "agent_ref": {"name": others}}],
    )
    dataset = Dataset([str(tmp_path)], is_kept=False)
    dataset.update()
    found = compare_outputs(dataset, "a.jsonl", "b.jsonl")
    assert found["num_tasks"] == both
    assert sorted(each["task_id"] for each in found["flips"]) == [
        f"{task:016x}" for task in (1, 2)[-both:]
    ]


def test_the_request_of_a_turn_and_the_command_can_be_copied(tmp_path: Path) -> None:
    turns = [use("bash", "ok", at, command=f"echo 'it\\''s {at}'") for at in range(3)]
    made = agentic_line(0, turns)
    made["rollout"]["model"] = "m"
    path = write_jsonl(tmp_path / "r.jsonl", [made])
    (tmp_path / "r.d").mkdir()
    (tmp_path / "r.d/run.json").write_text(json.dumps({"command": "ng_collect_rollouts +x=1"}))
    viewer = Viewer(Dataset([str(path)], is_kept=False), "")
    viewer.update()
    assert viewer.reader.rollout(0)["repro"] == f"ng_collect_rollouts +x=1 +only={0:016x}:0"
    commands = viewer.reader.request(0, 2)
    branch, collect = commands["again"].splitlines()
    assert shlex.split(branch)[:3] == ["ng_branch", str(path), "+turn=2"]
    assert collect.startswith("ng_collect_rollouts +x=1 +input_jsonl_fpath=from_turn_2.jsonl")
    curl = commands["curl"]
    body = json.loads(curl.partition("<<'JSON'\n")[2].removesuffix("\nJSON\n"))
    assert body["model"] == "m"
    assert [item.get("type", "message") for item in body["input"]] == [
        "message",
        "function_call",
        "function_call_output",
    ]
    with pytest.raises(ConfigError, match="3 turns"):
        viewer.reader.request(0, 4)


def test_the_raw_call_of_a_turn_is_rebuilt_or_the_recorded_one(tmp_path: Path) -> None:
    turns = [use("bash", "out", at, command=f"echo {at}") for at in range(3)]
    made = agentic_line(0, turns)
    path, tape = write_jsonl(tmp_path / "r.jsonl", [made]), tmp_path / "tape"
    viewer = Viewer(Dataset([str(path)], is_kept=False), "")
    viewer.update()
    rebuilt = viewer.reader.call(0, 2)
    assert rebuilt["source"] == "" and rebuilt["notes"] == [NO_TOOLS]
    asked = [*input_items(made["responses_create_params"]), *made["response"]["output"][:2]]
    assert rebuilt["request"]["input"] == asked
    assert rebuilt["response"] == {"output": made["response"]["output"][2:3]}
    assert "status" not in rebuilt["response"] and viewer.reader.call(0, 3)["response"]["output"]
    with pytest.raises(ConfigError, match="3 turns"):
        viewer.reader.call(0, 4)

    (tmp_path / "r.d").mkdir()
    (tmp_path / "r.d/run.json").write_text(json.dumps({"config": {"record": str(tape)}}))
    request = {"model": "m", "tools": [{"type": "function", "name": "bash"}], "input": asked}
    said = made["response"]["output"][2:3]
    reply = {"id": "resp_1", "output": said, "usage": {"input_tokens": 5}}
    call = {"task_id": f"{0:016x}", "rollout_index": 0, "server": "p", "path": "/v1/responses"}
    other = {**reply, "output": [message_item("of another attempt")]}
    lines = [
        {**call, "request": request, "reply": reply},
        {**call, "request": request, "reply": other},
        {**call, "rollout_index": 1, "request": request, "reply": {**reply, "id": "resp_2"}},
        {**call, "path": "/verify", "request": request, "reply": reply},
        {**call, "request": request, "error": {"status": 500}},
    ]
    tape.mkdir()
    write_jsonl(tape / "calls-agent.jsonl", lines)
    recorded = viewer.reader.call(0, 2)
    assert recorded["source"] == str(tape / "calls-agent.jsonl")
    assert (recorded["request"], recorded["response"]) == (request, reply)
    assert viewer.reader.call(0, 1)["source"] == ""


def test_the_copied_request_is_one_that_a_shell_sends(tmp_path: Path) -> None:
    turns = [use("bash", "$(touch no) `no` \n'JSON'", 0, command="x"), [say("Done.")]]
    path = write_jsonl(tmp_path / "r.jsonl", [agentic_line(0, turns)])
    viewer = Viewer(Dataset([str(path)], is_kept=False), "")
    viewer.update()
    curl = viewer.reader.request(0, 2)["curl"]
    with endpoint(says(lambda body: "ok")) as model:
        environment = {**os.environ, "OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "k"}
        subprocess.run(["bash", "-c", curl], check=True, cwd=tmp_path, env=environment)
    (request,) = model.requests
    assert request[2]["input"][2]["output"] == "$(touch no) `no` \n'JSON'"
    assert not (tmp_path / "no").exists()


def test_figures_of_many_rows_are_those_of_each_row(tmp_path: Path) -> None:
    lines = [
        line(at // 3, at % 3, "x", None if at % 7 == 3 else at % 5 / 4, scope=f"arm={'ab'[at % 2]}")
        for at in range(60)
    ]
    for at, each in enumerate(lines):
        each["usage"] = each["response"]["usage"] = {"output_tokens": at % 11 * 10}
        each["rollout"]["started_at"] = f"2026-11-28T10:00:{at:02}.000Z"
    write_jsonl(tmp_path / "one.jsonl", lines)
    dataset = Dataset([str(tmp_path)], is_kept=False)
    dataset.update()
    viewer = Viewer(dataset, "")
    ids = viewer.queries.wait(Query("task_index > 2", sort="-output_tokens")).ids
    rows = [viewer.row(each) for each in ids]
    found = plots(dataset, ids)
    assert found["series"] == ["a", "b"]
    for of, (part, arm) in enumerate(zip(found["parts"], "ab", strict=True)):
        own = [row for row in rows if row["arm"] == arm]
        rewards = [row["reward"] for row in own if row["reward"] is not None]
        assert part["rollouts"] == len(own) and part["reward"] == pytest.approx(fmean(rewards))
        assert part["unverified"] == len(own) - len(rewards) > 0
        assert part["output_tokens"] == pytest.approx(fmean(row["output_tokens"] for row in own))
        assert sum(each[of] for each in found["reward"]["of_series"]) == len(rewards)
        assert sum(number for *_, number in found["over_time"][of]) == len(rewards)
        assert sum(each[3] for each in found["length"]["points"] if each[4] == of) == len(rewards)
    for tokens, reward, row_id, _, of in found["length"]["points"]:
        row = viewer.row(row_id)
        assert (row["output_tokens"], row["reward"], row["arm"]) == (tokens, reward, "ab"[of])
    assert found["length"]["missing"] == sum(row["reward"] is None for row in rows)


def test_learning_curves_are_read_beside_the_output(tmp_path: Path) -> None:
    lines = [line(at // 8, at % 8, "x", float(at % (3 - at // 8) == 0)) for at in range(16)]
    for at, each in enumerate(lines):
        each["rollout"]["version_first"] = at // 8
    write_jsonl(tmp_path / "rl.jsonl", lines)
    write_jsonl(tmp_path / "plain.jsonl", [line(1, 0, "x", 1.0)])
    evaluations = [
        {"set": "test", "version": 2, "reward": 0.5, "reward_low": 0.4, "reward_high": 0.6},
        {"set": "test", "version": 0, "reward": 0.25, "rollouts": 8},
        {"set": "test"},
    ]
    write_jsonl(tmp_path / "rl.d" / "evaluations.jsonl", evaluations)
    dataset = Dataset([str(tmp_path)], is_kept=False)
    dataset.update()
    ids = Viewer(dataset, "").queries.wait(Query()).ids
    training, test = plots(dataset, ids)["learning"]
    assert training["name"] == "rl.jsonl · training" and test["name"] == "rl.jsonl · test"
    assert [(point[0], point[1], point[4]) for point in training["points"]] == [
        (0, 3 / 8, 8),
        (1, 4 / 8, 8),
    ]
    assert test["points"] == [[0, 0.25, None, None, 8], [2, 0.5, 0.4, 0.6, None]]
