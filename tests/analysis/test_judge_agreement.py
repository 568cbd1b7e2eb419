"""How far judges agree: Cohen's kappa against other packages' figures, and ng_judge_agreement."""

import asyncio
import itertools
import json
import random
import re
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest
from claims import assert_prints
from command import as_function
from support import write_jsonl

import rollout_kit as rk
from rollout_kit.analysis.judge_agreement import RaterScore, _explain_certainty, find_vote
from rollout_kit.analysis.metrics.kappa import Rating, Weights, measure_agreement
from rollout_kit.store.notes.labels import Labelled, Labels

agreement_command = as_function("ng_judge_agreement")

BINARY = [[20, 5], [10, 15]]
SCALE = [[11, 4, 1, 0, 0], [3, 9, 6, 2, 0], [0, 5, 14, 5, 1], [0, 1, 6, 12, 4], [0, 0, 2, 3, 11]]


def ratings_of(table: list[list[int]]) -> list[Rating]:
    """One rating for each count of a confusion table, each of a task of its own."""
    number = itertools.count()
    return [
        Rating(one + 1, other + 1, next(number))
        for one, row in enumerate(table)
        for other, count in enumerate(row)
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("table", "weights", "kappa", "error"),
    [
        (BINARY, "none", 0.4, 0.12699606293110033),
        ([[60, 9], [7, 124]], "none", 0.8217667372173332, 0.04265383845409207),
        (SCALE, "none", 0.45631558983436593, 0.06358724988154278),
        (SCALE, "linear", 0.6551724137931034, 0.04848314536860106),
        (SCALE, "quadratic", 0.8069847397309851, 0.03709825717492124),
    ],
)
def test_kappa_is_that_of_other_packages(
    table: list[list[int]], weights: Weights, kappa: float, error: float
) -> None:
    """`kappa` is scikit-learn 1.9.1's cohen_kappa_score(…, weights=…), `error` statsmodels
    0.15.0's std_kappa of cohens_kappa(table, wt=None, "ca" or "fc")."""
    found = measure_agreement(ratings_of(table), weights)
    assert found.kappa == pytest.approx(kappa, abs=1e-12)
    assert found.error == pytest.approx(error, abs=1e-12)
    assert found.confusion == table and found.values == list(range(1, len(table) + 1))
    assert found.interval is not None and found.interval[0] < kappa < found.interval[1]


def test_repeats_of_a_task_narrow_no_interval() -> None:
    once = ratings_of(BINARY)
    again = measure_agreement([*once, *once, *once])
    assert again.interval == pytest.approx(measure_agreement(once).interval)
    assert (again.num_ratings, again.num_clusters) == (150, 50)
    alone = measure_agreement([each._replace(cluster="one") for each in once])
    assert alone.interval is None and alone.kappa == pytest.approx(0.4)


def test_the_standard_error_is_the_spread_over_samples() -> None:
    """Of 4 ratings a task, which depend on one another."""
    draw, kappas, errors = random.Random(1), [], []
    for _ in range(300):
        ratings = []
        for task in range(60):
            is_hard = draw.random() < 0.5
            for _ in range(4):
                first = draw.random() < (0.2 if is_hard else 0.8)
                second = first if draw.random() < (0.5 if is_hard else 0.95) else not first
                ratings.append(Rating(first, second, task))
        found = measure_agreement(ratings)
        assert found.kappa is not None and found.error is not None
        kappas.append(found.kappa)
        errors.append(found.error)
    assert fmean(errors) == pytest.approx(pstdev(kappas), rel=0.1)


def test_where_kappa_says_nothing() -> None:
    same = measure_agreement([Rating(1, 1, task) for task in range(20)])
    assert same.kappa is None and same.interval is None and same.share == 1.0
    both = measure_agreement([Rating(task % 2, task % 2, task) for task in range(20)])
    assert both.kappa == 1.0 and both.error == 0.0 and both.interval is None
    assert both.share_interval[0] == pytest.approx(0.8389, abs=1e-4)
    opposite = measure_agreement([Rating(task % 2, 1 - task % 2, task) for task in range(20)])
    assert opposite.kappa == -1.0


def test_a_distance_counts_though_no_rating_lies_between() -> None:
    near = [Rating(1, 2, 0), Rating(2, 1, 1), Rating(10, 10, 2), Rating(1, 1, 3)]
    found = measure_agreement(near, "quadratic").kappa
    assert found is not None and found > 0.95
    as_names = measure_agreement(near).kappa
    assert as_names is not None and as_names < 0.5


def test_a_vote_is_read_on_the_scale_of_its_judges() -> None:
    said = [RaterScore(2, 0.25, True), RaterScore(5, 1.0, True), RaterScore(2, 0.25, True)]
    assert find_vote(0.25, said) == RaterScore(2, 0.25, True)
    assert find_vote(0.5, said) == RaterScore(3, 0.5, True)
    assert find_vote(0.25, said[:1]) == said[0] and find_vote(None, said) is None


def judge_by(rule: Any) -> Any:
    """A judge that gives what `rule(criterion, number of the question)` returns."""

    def answer(params: dict[str, Any]) -> str:
        text = params["input"][0]["content"]
        number = int(re.search(r"Question (\d+)", text)[1])  # type: ignore[index]
        names = re.findall(r"^- (\w+):", text, re.MULTILINE)
        entries = [
            {"name": name, "evidence": "", "reason": "so", "score": rule(name, number)}
            for name in names
        ]
        return json.dumps({"criteria": entries})

    return answer


ROWS = [{"responses_create_params": {"input": f"Question {n}"}} for n in range(12)]
RUBRIC = [
    {"name": "correct", "description": "It is right."},
    {"name": "clear", "description": "It is clear.", "kind": "scaled", "lowest": 1, "highest": 5},
]
RULES = {
    "judge_a": lambda name, n: n % 2 == 0 if name == "correct" else 1 + n % 5,
    "judge_b": lambda name, n: n % 4 == 0 if name == "correct" else min(5, 2 + n % 5),
    "judge_c": lambda name, n: n % 2 == 0 if name == "correct" else 1 + n % 5,
}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("judged") / "judged.jsonl"
    judges = rk.judge({name: judge_by(rule) for name, rule in RULES.items()}, RUBRIC)
    run = rk.collect(ROWS, model=lambda params: "It is 4.", verify=judges, output=path)
    table = asyncio.run(run.table())
    labels = Labels.beside(path)
    for rollout in table:
        text = str(rollout.line["responses_create_params"]["input"])
        number = int(re.findall(r"\d+", text)[-1])
        if number < 8:
            good = Labelled.task(rollout.key.task_id) if number < 4 else Labelled(*rollout.key)
            labels.set(good, "good" if number % 2 == 0 else "bad")
            labels.set(Labelled(*rollout.key), f"clear={1 + number % 5}")
        elif number == 8:
            labels.set(Labelled(*rollout.key), "correct=yes")
            labels.set(Labelled(*rollout.key), "correct = no")
        elif number == 9:
            labels.set(Labelled(*rollout.key), "correct=perhaps")
            labels.set(Labelled(*rollout.key), "to discuss: later")
            labels.set(Labelled(*rollout.key), "style=4")
    return path


def run(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        agreement_command(list(map(str, words)))
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out + said.err


def test_judges_and_labels_are_compared_pair_by_pair(
    judged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ("+labels.good=correct=yes", "+labels.bad=correct=no")
    status, said = run(capsys, judged, *named, "+json=true")
    found = json.loads(said)
    assert status == 0 and found["rollouts"] == 12
    correct, clear = found["criteria"]["correct"], found["criteria"]["clear"]
    pairs = {(each["first"], each["second"]): each for each in correct["pairs"]}
    judges = [("judge_a", "judge_b"), ("judge_a", "judge_c"), ("judge_b", "judge_c")]
    people = [(name, "the labels") for name in (*RULES, "the vote")]
    assert set(pairs) == {*judges, *people}
    assert pairs["judge_a", "judge_b"]["confusion"] == [[6, 0], [3, 3]]
    assert pairs["judge_a", "judge_c"]["num_equal"] == 12
    assert pairs["judge_b", "the labels"]["confusion"] == [[4, 2], [0, 2]]
    assert pairs["the vote", "the labels"]["num_equal"] == 8
    scaled = {(each["first"], each["second"]): each for each in clear["pairs"]}
    assert clear["scale"] and not correct["scale"]
    assert scaled["judge_a", "judge_b"]["weights"] == "quadratic"
    assert scaled["judge_a", "the labels"]["num_equal"] == 8
    assert scaled["judge_a", "judge_b"]["values"] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert found["left_out"] == {
        "has contradicting labels of 'correct'": 1,
        "label 'correct=perhaps' says neither yes nor no, and no number": 1,
        "label 'style=4' names no criterion of the rollout": 1,
    }


def test_it_is_read_by_people(judged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = run(capsys, judged, "+labels.good=correct=yes", "+labels.bad=correct=no")
    assert status == 0
    assert "agree on 9 of 12 rollouts: 75.0% [46.8%, 91.1%]" in said
    assert "    judge_a  judge_b\n                no  yes\n    no           6    0\n" in said
    assert "kappa 1.000, without an interval: they never differ" in said
    assert "kappa (quadratic weights) 0." in said
    status, said = run(capsys, judged, "+weights=linear", "+where=task_index < 6")
    assert status == 0 and "kappa (linear weights)" in said and "6 rollouts with grades" in said


def test_a_judge_that_was_not_always_asked_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "third.jsonl"
    models = {name: judge_by(rule) for name, rule in RULES.items()}
    judges = rk.judge(models, RUBRIC[:1], vote="third")
    asyncio.run(rk.collect(ROWS, model=lambda params: "4", verify=judges, output=path).table())
    status, said = run(capsys, path)
    assert status == 0 and "judge_c graded only 3 of 12 rollouts" in said


def test_files_without_two_raters_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "one.jsonl"
    judges = rk.judge({"only": judge_by(RULES["judge_a"])}, RUBRIC)
    asyncio.run(rk.collect(ROWS, model=lambda params: "4", verify=judges, output=path).table())
    status, said = run(capsys, path)
    assert status == 1 and "no rollout is rated twice on a criterion (correct, clear)" in said
    plain = tmp_path / "plain.jsonl"
    run_ = rk.collect(ROWS, model=lambda p: "4", verify=lambda t, r: 1.0, output=plain)
    asyncio.run(run_.table())
    status, said = run(capsys, plain)
    assert status == 1 and "12 has no grades of a rubric" in said
    status, said = run(capsys, plain, "+labels.good=correct=perhaps")
    assert status == 1 and "labels: 'good': expected correct=yes or clear=4" in said


def test_a_criterion_that_does_not_exist_is_named(
    judged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said = run(capsys, judged, "+labels.good=corect=yes")
    assert status == 1 and "'good': no criterion is called 'corect' (did you mean" in said
    status, said = run(capsys, judged, judged)
    assert status == 0 and "is named twice, and counts once" in said
    assert "1 left out: label 'style=4' names no criterion of the rollout" in said


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ([(1, 1), (0, 0)], "they never differ"),
        ([(1, 1), (1, 0)], "one of them always says the same"),
        ([(1, 0), (0, 1)], "they always differ"),
        ([(1, 1), (0, 1), (0, 0), (1, 0)], None),
    ],
)
def test_what_the_ratings_do_not_tell_is_said(pairs: list[Any], why: str | None) -> None:
    ratings = [Rating(*pair, task) for task, pair in enumerate(pairs * 5)]
    found = measure_agreement(ratings)
    assert (found.interval is None) == (why is not None)
    if why:
        assert _explain_certainty(found) == why


def test_grades_that_cannot_be_read_are_counted(
    judged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.loads(each) for each in judged.read_text().splitlines()]
    lines[0]["judge_evaluations"][0]["grades"][0]["score"] = "high"
    lines[1]["judge_evaluations"] = "none"
    path = write_jsonl(tmp_path / "other.jsonl", lines)
    status, said = run(capsys, path)
    assert status == 0 and "10 rollouts with grades\n1 left out: has a grade without" in said
    assert "1 left out: has no grades of a rubric" in said


def test_the_page_shows_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "page.jsonl"
    models = {name: judge_by(rule) for name, rule in RULES.items()}
    run_ = rk.collect(ROWS, model=lambda p: "4", verify=rk.judge(models, RUBRIC), output=path)
    labels = Labels.beside(path)
    for number, rollout in enumerate(asyncio.run(run_.table())):
        labels.set(Labelled(*rollout.key), "correct=yes" if number % 3 else "correct=no")
    _, said = run(capsys, path)
    assert_prints("docs/judges.md", "40 rollouts with grades", said)
