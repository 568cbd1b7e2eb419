"""ng_compare: the textbooks' numbers, and words that conclude no more than they allow."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from command import as_function
from exported import write_scored
from hypothesis import given
from hypothesis import strategies as st
from support import write_jsonl

from rollout_kit.analysis.comparison import MAX_WIDTH
from rollout_kit.analysis.metrics.majority import Vote, maj_at, vote
from rollout_kit.analysis.metrics.paired import Side, compare
from rollout_kit.analysis.metrics.student import mcnemar, t_quantile, t_tails

command = as_function("ng_compare")
export = as_function("ng_export")

REWARDS = st.lists(
    st.tuples(st.floats(0, 1, width=32), st.floats(0, 1, width=32)), min_size=2, max_size=30
)


def line(task: int, reward: float | None, index: int = 0, **more: Any) -> dict[str, Any]:
    agent = more.pop("agent", "solver")
    return {
        "agent_ref": {"name": agent},
        "_ng_task_index": task,
        "_ng_rollout_index": index,
        **({} if reward is None else {"reward": reward}),
        "response": {"output": []},
        "rollout": {
            "task_id": f"{task:016x}",
            "scope": "",
            "rollout_index": index,
            "settings": more.pop("settings", "s"),
            "model": more.pop("model", "m"),
            "scores": list(more),
        },
        **more,
    }


def run(*argv: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        command([*argv])
    shown = capsys.readouterr()
    return int(ended.value.code or 0), shown.out + shown.err


# Imported late: at the top of the module, each process of the tests would load them.
@pytest.fixture(scope="module")
def stats() -> Any:
    from scipy import stats

    return stats


@pytest.fixture(scope="module")
def their_mcnemar() -> Any:
    from statsmodels.stats.contingency_tables import mcnemar

    return mcnemar


# scipy rounds the tails of a t that is nearly 0
@given(st.floats(-40, 40).filter(lambda t: not 0 < abs(t) < 1e-6), st.integers(1, 5000))
def test_the_tails_of_student_s_t_are_scipy_s(stats: Any, t: float, freedom: int) -> None:
    assert t_tails(t, freedom) == pytest.approx(
        2 * stats.t.sf(abs(t), freedom), rel=1e-9, abs=1e-14
    )


@pytest.mark.parametrize("freedom", [1, 2, 3, 7, 30, 1208])
def test_the_quantiles_of_student_s_t_are_scipy_s(stats: Any, freedom: int) -> None:
    assert t_quantile(0.95, freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-10)


@given(st.integers(0, 400), st.integers(0, 400))
def test_mcnemar_s_test_is_statsmodels(their_mcnemar: Any, wins: int, losses: int) -> None:
    theirs = their_mcnemar([[0, wins], [losses, 0]], exact=True).pvalue if wins + losses else 1.0
    assert mcnemar(wins, losses) == pytest.approx(min(1.0, theirs), rel=1e-9)


@given(REWARDS)
def test_the_interval_is_that_of_a_paired_t_test(
    stats: Any, pairs: list[tuple[float, float]]
) -> None:
    first, second = Side("a"), Side("b")
    for number, (one, other) in enumerate(pairs):
        for repeat in (-0.5, 0.5):  # two rollouts of a task count as their mean
            first.add(f"{number}", one + repeat, None)
            second.add(f"{number}", other, None)
    found = compare(first, second)
    changes = [other - one for one, other in pairs]
    assert found.difference == pytest.approx(math.fsum(changes) / len(changes), abs=1e-9)
    if max(changes) - min(changes) > 1e-6 and found.interval:
        theirs = stats.ttest_1samp(changes, 0)
        low, high = theirs.confidence_interval(0.95)
        assert found.interval == pytest.approx((low, high), rel=1e-6, abs=1e-9)
        assert found.p == pytest.approx(theirs.pvalue, rel=1e-5, abs=1e-9)


def test_a_vote_counts_answers_and_not_rollouts_without_one() -> None:
    right, wrong, none = Vote("4", 1.0), Vote("5", 0.0), Vote(None, 0.0)
    assert vote([right, wrong, wrong]) == 0.0
    assert vote([right, none, none]) == 1.0
    assert vote([right, wrong]) == 0.5, "a tie is settled by chance"
    assert vote([none, none]) == vote([]) == 0.0
    assert maj_at(1, [right, right, wrong]) == pytest.approx(2 / 3)
    assert maj_at(3, [right, right, wrong]) == 1.0
    assert maj_at(2, [right, right, wrong]) == pytest.approx((1 + 0.5 + 0.5) / 3)


@given(st.lists(st.sampled_from(["a", "b", None]), min_size=12, max_size=40), st.integers(1, 12))
def test_drawn_votes_are_the_same_each_time_and_within_bounds(
    answers: list[str | None], k: int
) -> None:
    votes = [Vote(answer, float(answer == "a")) for answer in answers]
    assert maj_at(k, votes) == maj_at(k, votes)
    assert 0 <= maj_at(k, votes) <= 1


@pytest.mark.parametrize("number", [2, 5, 6])
@pytest.mark.parametrize("repeats", [1, 2])
def test_few_tasks_are_said_to_be_too_few(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int, repeats: int
) -> None:
    pairs = [(task, index) for task in range(number) for index in range(repeats)]
    for name in ("one", "two"):
        wins = [(name == "one") or index > 0 for _, index in pairs]
        lines = [
            line(task, float(win), index) for (task, index), win in zip(pairs, wins, strict=True)
        ]
        write_jsonl(tmp_path / f"{name}.jsonl", lines)
    _, said = run(f"{tmp_path}/one.jsonl", f"{tmp_path}/two.jsonl", capsys=capsys)
    if number < 6:
        assert f"{number} tasks cannot show a difference" in said and "at least 6" in said
    else:
        assert "The first is better" in said


def test_what_may_be_concluded_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ones = [line(task, float(task < 863)) for task in range(1209)]
    others = [line(task, float(4 <= task < 865), model="n") for task in range(1209)]
    a = write_jsonl(tmp_path / "a.jsonl", [*ones, line(5000, 1.0)])
    b = write_jsonl(tmp_path / "b.jsonl", others)
    status, said = run(str(a), str(b), capsys=capsys)
    assert status == 0
    assert "No difference can be seen: 863 of 1,209 against 861, p = 0.69 (McNemar" in said
    assert "the second wins 2, loses 4, ties 1,203" in said
    assert "Only in the first file: 1 task, not compared" in said
    assert "model: m → n" in said and "agent" not in said.partition("model:")[2]
    c = write_jsonl(tmp_path / "c.jsonl", [line(task, 1.0) for task in range(1209)])
    status, said = run(str(a), str(c), capsys=capsys)
    assert "The second is better: 863 of 1,209 against 1,209, p < 0.0001" in said
    status, said = run(str(c), str(a), capsys=capsys)
    assert "The first is better" in said


def test_several_files_are_compared_with_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for name, shift in (("a", 0.0), ("b", 0.2), ("c", 0.4)):
        rows = [
            line(task, round(0.1 * (task % 5) + shift, 3), index, extracted_answer=f"{task}")
            for task in range(20)
            for index in range(2)
        ]
        paths.append(str(write_jsonl(tmp_path / f"{name}.jsonl", rows)))
    status, said = run(*paths, "+json=true", capsys=capsys)
    found = json.loads(said)
    assert status == 0 and len(found["pairs"]) == 2
    assert [round(pair["difference"], 6) for pair in found["pairs"]] == [0.2, 0.4]
    assert found["files"][0]["maj_at_k"].keys() == {"1", "2"}
    assert found["pairs"][0]["right"] is None and "sign test" in found["pairs"][0]["test"]
    assert "maj@2" in run(*paths, capsys=capsys)[1]


def test_a_file_that_is_named_twice_counts_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = (write_jsonl(tmp_path / f"{name}.jsonl", [line(1, 1.0)]) for name in "ab")
    status, said = run(str(a), str(tmp_path), str(b), capsys=capsys)
    assert status == 0 and said.count("Difference") == 1
    assert f"{a}: is named twice, and counts once" in said
    status, said = run(str(a), str(tmp_path), "+json=true", capsys=capsys)
    assert json.loads(said)["named_again"] == [str(a)]
    status, said = run(str(a), f"{tmp_path}/./a.jsonl", capsys=capsys)
    assert status == 1 and f"{tmp_path}/a.jsonl is named twice; name two or more files" in said


def test_many_figures_go_to_lines_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # short names, wherever the folder is
    for name in "ab":
        rows = [line(1, 1.0, index, extracted_answer="1") for index in range(100)]
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    _, said = run("a.jsonl", "b.jsonl", capsys=capsys)
    shown = said.partition("Difference")[0].splitlines()
    assert max(map(len, shown)) <= MAX_WIDTH
    assert "maj@100 1.000" in said and "pass@100 1.000" in said and "over 100 rollouts" in shown[0]


def test_only_rollouts_that_a_filter_keeps_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(name: str, rewards: tuple[float, ...]) -> str:
        rows = [line(task, reward, level=task % 2) for task, reward in enumerate(rewards)]
        return str(write_jsonl(tmp_path / f"{name}.jsonl", rows))

    a, b = write("a", (1.0, 0.0, 1.0, 0.0)), write("b", (1.0, 1.0, 0.0, 1.0))
    status, said = run(a, b, "+where=level == 1", "+json=true", capsys=capsys)
    found = json.loads(said)
    assert status == 0 and found["where"] == "level == 1"
    assert [each["rollouts"] for each in found["files"]] == [2, 2]
    [pair] = found["pairs"]
    assert (pair["num_tasks"], pair["difference"]) == (2, 1.0)
    _, said = run(a, b, "+where=level == 1", capsys=capsys)
    assert said.startswith("Rollouts where level == 1:\n")
    for where, reason in (
        ("lvel == 1", "no rollout has the field 'lvel' (did you mean 'level'?)"),
        ("level == 7", "no verified rollout is in it for which this holds: level == 7"),
        ("level ==", "is no filter"),
    ):
        status, said = run(a, b, f"+where={where}", capsys=capsys)
        assert status == 1 and reason in said, said


def test_agents_of_one_file_are_kept_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [line(1, 1.0, agent="x"), line(1, 0.0, agent="y")]
    a = write_jsonl(tmp_path / "a.jsonl", rows)
    b = write_jsonl(tmp_path / "b.jsonl", rows[:1])
    _, said = run(str(a), str(b), "+json=true", capsys=capsys)
    [pair] = json.loads(said)["pairs"]
    assert (pair["num_tasks"], pair["only_first"], pair["difference"]) == (1, 1, 0.0)
    c = write_jsonl(tmp_path / "c.jsonl", rows[1:])
    _, said = run(str(b), str(c), "+json=true", capsys=capsys)
    [pair] = json.loads(said)["pairs"]
    assert pair["difference"] == -1.0 and pair["settings"]["agent"] == ["x", "y"]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([], "name two or more files"),
        (["a.jsonl"], "name two or more files"),
        (["a.jsonl", "missing.jsonl"], "no input file"),
        (["a.jsonl", "other.jsonl"], "no verified task in common"),
        (["a.jsonl", "unverified.jsonl"], "no verified rollout is in it"),
        (["empty"], "empty: no file of rollouts (*.jsonl) is in it"),
        (["a.jsonl", "empty"], "empty: no file of rollouts (*.jsonl) is in it"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    files: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    write_jsonl(tmp_path / "empty" / "pairs.jsonl", [{"chosen": "a", "rejected": "b"}])
    write_jsonl(tmp_path / "a.jsonl", [line(1, 1.0)])
    write_jsonl(tmp_path / "other.jsonl", [line(2, 1.0)])
    write_jsonl(tmp_path / "unverified.jsonl", [line(1, None)])
    status, said = run(*(str(tmp_path / name) for name in files), capsys=capsys)
    assert status == 1 and expected in said and "Traceback" not in said


def arm_line(arm: str, task: int, reward: float) -> dict[str, Any]:
    made = line(task, reward, settings=arm)
    made["rollout"]["scope"] = f"arm={arm}"
    return made


def test_the_arms_of_one_file_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        arm_line(arm, task, float(arm == "b" or task < 2)) for task in range(9) for arm in "ab"
    ]
    path = write_jsonl(tmp_path / "one.jsonl", lines[::-1])  # the last to finish is no baseline
    status, said = run(str(path), capsys=capsys)
    assert status == 0, said
    assert "a  reward 0.2222 over 9 rollouts" in said and "b  reward 1.0000" in said
    assert "The second is better: 2 of 9 against 9" in said
    write_jsonl(tmp_path / "one.d/run.json", ['{"settings": {"b": {}, "a": {}}}'])
    assert "The first is better: 9 of 9 against 2" in run(str(path), capsys=capsys)[1]
    path = write_jsonl(tmp_path / "one.jsonl", lines[::2])
    status, said = run(str(path), capsys=capsys)
    assert status == 1 and "or one with several arms" in said


def test_settings_are_listed_where_they_are_known_of_both_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(name: str, agent: str, **settings: Any) -> str:
        rows = [
            line(task, 1.0, agent=agent, settings=made) for task, made in enumerate(settings or "s")
        ]
        path = write_jsonl(tmp_path / f"{name}.jsonl", rows)
        if settings:
            content = {made: {"agent": {}, "arm": own} for made, own in settings.items()}
            write_jsonl(tmp_path / f"{name}.d/run.json", [{"settings": content}])
        return str(path)

    def settings(*paths: str) -> Any:
        status, said = run(*paths, "+json=true", capsys=capsys)
        assert status == 0, said
        return json.loads(said)["pairs"][0]["settings"]

    warm = write("warm", "x", a={"temperature": 1, "top_p": 1}, b={"top_p": 1})
    cold = write("cold", "y", c={"temperature": 0})
    assert settings(warm, cold) == {
        "agent": ["x", "y"],
        "arm.temperature": [{"values": [1, None]}, 0],
        "arm.top_p": [1, None],
    }
    assert "  arm.temperature: 2 values → 0" in run(warm, cold, capsys=capsys)[1]
    bare = write("bare", "x")
    assert settings(warm, bare) == {"settings": ["a, b", "s"]}
    assert settings(bare, write("same", "x")) == {}
    nameless = write_jsonl(tmp_path / "nameless.jsonl", [line(0, 1.0, agent="x", model="")])
    assert "model" not in settings(str(nameless), warm)


def test_two_files_are_compared_over_all_and_for_each_arm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, better in (("one", ""), ("two", "b")):
        lines = [arm_line(arm, t, float(arm in better)) for t in range(9) for arm in "ab"]
        write_jsonl(tmp_path / f"{name}.jsonl", lines)
    argv = [str(tmp_path / "one.jsonl"), str(tmp_path / "two.jsonl")]
    status, said = run(*argv, "+json=true", capsys=capsys)
    assert status == 0, said
    [pair] = json.loads(said)["pairs"]
    assert pair["difference"] == 0.5
    assert {arm: found["difference"] for arm, found in pair["arms"].items()} == {"a": 0, "b": 1}
    _, said = run(*argv, capsys=capsys)
    assert "  b: +1.0000. The second is better: 0 of 9 against 9" in said


def test_the_groups_rewards_are_compared_beside_the_individual_ones(
    stats: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ones = [line(task, 1.0, index) for task in range(12) for index in range(2)]
    first = write_scored(
        tmp_path / "a.jsonl", ones, lambda each: 0.1 * (each["_ng_task_index"] % 3)
    )
    second = write_scored(
        tmp_path / "b.jsonl", ones[:20], lambda each: 0.5 + 0.2 * (each["_ng_task_index"] % 3)
    )
    status, said = run(str(first), str(second), "+json=true", capsys=capsys)
    assert status == 0, said
    found = json.loads(said)
    [pair] = found["pairs"]
    assert (pair["difference"], pair["p"]) == (0.0, 1.0)
    changes = [0.5 + 0.1 * (task % 3) for task in range(10)]
    theirs = stats.ttest_1samp(changes, 0)
    assert pair["group_reward"]["num_tasks"] == 10
    assert pair["group_reward"]["difference"] == pytest.approx(sum(changes) / 10)
    low, high = theirs.confidence_interval(0.95)
    assert pair["group_reward"]["interval"] == pytest.approx([low, high])
    assert pair["group_reward"]["p"] == pytest.approx(theirs.pvalue, rel=1e-5)
    assert [file["group_reward"] for file in found["files"]] == pytest.approx([0.1, 0.68])
    _, said = run(str(first), str(second), capsys=capsys)
    assert "a.jsonl  reward 1.0000 · group reward 0.1000 over 24 rollouts of 12 tasks" in said
    assert "Group reward: difference +0.5900 [" in said
    assert "The second is better: 0.0900 against 0.6800, p < 0.0001" in said


def test_rollouts_that_only_their_group_has_scored_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [arm_line(arm, task, 0.0) for task in range(9) for arm in "ab"]
    for each in lines:
        del each["reward"]
    path, same = (
        write_scored(tmp_path / name, lines, lambda each: float("=b" in each["rollout"]["scope"]))
        for name in ("a.jsonl", "same.jsonl")
    )
    status, said = run(str(path), capsys=capsys)
    assert status == 0, said
    assert "a  group reward 0.0000 over 9 rollouts of 9 tasks" in said and "unverified" not in said
    assert "The second is better: 0 of 9 against 9" in said
    status, said = run(str(path), str(same), "+json=true", capsys=capsys)
    [pair] = json.loads(said)["pairs"]
    assert "difference" not in pair and pair["group_reward"]["ties"] == 9
    assert pair["arms"]["b"]["group_reward"]["difference"] == 0.0


def test_a_folder_stands_for_the_files_of_rollouts_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, names in (("before", ("a", "b")), ("after", ("c",))):
        (tmp_path / folder).mkdir()
        for name in names:
            rows = [line(task, float(name == "c")) for task in range(9)]
            write_scored(tmp_path / folder / f"{name}.jsonl", rows, lambda each: 1.0)
        write_jsonl(tmp_path / folder / "pairs.jsonl", [{"chosen": "a", "rejected": "b"}])
    argv = [str(tmp_path / "before"), str(tmp_path / "after"), "+json=true"]
    status, said = run(*argv, capsys=capsys)
    assert status == 0, said
    found = json.loads(said)
    assert [Path(file["path"]).name for file in found["files"]] == ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert [pair["difference"] for pair in found["pairs"]] == [0.0, 1.0]
    with pytest.raises(SystemExit) as ended:
        target = tmp_path / "train.jsonl"
        export([str(tmp_path / "before"), "+format=rollouts", f"+output_fpath={target}"])
    assert ended.value.code == 0 and len(target.read_text().splitlines()) == 9


def test_names_with_an_equals_sign_and_names_that_are_too_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "lr=1e-4.jsonl", [line(task, 0.0) for task in range(3)])
    (tmp_path / "lr=2e-4").mkdir()
    write_jsonl(tmp_path / "lr=2e-4/rollouts.jsonl", [line(task, 1.0) for task in range(3)])
    for first in ("lr=1e-4.jsonl", "./lr=1e-4.jsonl"):
        status, said = run(first, "lr=2e-4", "where=reward >= 0", capsys=capsys)
        assert status == 0 and "3 common tasks: the second wins 3" in said
    assert "no input file a/lr=3.jsonl" in run("a/lr=3.jsonl", first, capsys=capsys)[1]
    status, said = run("x" * 300, first, capsys=capsys)
    assert (status, said) == (1, f"error: {'x' * 300}: File name too long\n")


@pytest.mark.parametrize(("number", "p"), [(2, 0.5), (5, 0.0625), (6, 0.03125)])
@pytest.mark.parametrize("step", [1.0, 0.1])
def test_tasks_that_differ_alike_make_nothing_certain(number: int, p: float, step: float) -> None:
    sides = [Side("a"), Side("b")]
    for task in range(number):
        for side, reward in zip(sides, (task * step, (task + 1) * step), strict=True):
            for _ in range(2):
                side.add(f"{task}", reward, None)  # whose differences are equal but for rounding
    found = compare(*sides)
    assert (found.interval, found.test) == (None, "exact sign test over tasks")
    assert found.p == pytest.approx(p)
