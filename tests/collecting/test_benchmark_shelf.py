"""The definitions that `made.yaml` has rows of: rows as they are published become tasks."""

import json
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("huggingface_hub")

from hub import Hub, standing_in
from published import publish, write_url_files

from benchmarks.agreement.shelf.comparison import list_parts
from benchmarks.agreement.shelf.made import NUM_ROWS, make_rows, read_made
from rollout_kit.collecting.data.benchmarks.prepared import make_tasks, prepare_rows
from rollout_kit.collecting.data.benchmarks.row_readers import READERS
from rollout_kit.config.benchmarks.asked import name_file
from rollout_kit.config.benchmarks.definition import read_definition, rows_file
from rollout_kit.errors import ConfigError

NAMES = [name for name, made in read_made().items() if isinstance(made["rows"], list)]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    with standing_in(monkeypatch, tmp_path) as found:
        yield found


@pytest.mark.parametrize("name", NAMES)
def test_published_rows_become_tasks(name: str, hub: Hub, tmp_path: Path):
    definition = read_definition(name)
    source = definition.source
    rows = make_rows(name, list_parts(definition))
    if source.get("type") == "url":
        used = {row["part"]: None for row in rows if "part" in row}
        source = write_url_files(tmp_path, definition, rows)
        if used:
            source["parts"] = used
    else:
        if "parts" in source:
            source = {**source, "parts": sorted({row["part"] for row in rows})}
        publish(hub, definition, rows)
    definition = definition.model_copy(update={"source": source})
    said: list[str] = []
    path = prepare_rows(definition, said.append)
    tasks = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(tasks) >= NUM_ROWS
    asked = [task["responses_create_params"]["input"][-1]["content"] for task in tasks]
    assert len(set(asked)) == len(tasks)
    expected = [*make_tasks(definition, sorted(rows, key=lambda row: row.get("part", "")), rows)]
    wanted = [task["responses_create_params"]["input"][-1]["content"] for task in expected]
    assert sorted(asked) == sorted(wanted)
    hub.files.clear()
    hub.asked.clear()
    assert prepare_rows(definition, lambda *_: None) == path
    assert not hub.asked


def test_generated_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    pytest.importorskip("reasoning_gym")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    whole = read_definition("reasoning_gym")
    few = {**whole.source, "families": ["gcd", "sudoku"], "size": 2}
    path = prepare_rows(whole.model_copy(update={"source": few}), lambda *_: None)
    tasks = [json.loads(line) for line in path.read_text().splitlines()]
    assert [task["family"] for task in tasks] == ["gcd", "gcd", "sudoku", "sudoku"]
    assert tasks[0]["gold_output"] == f"<answer>{tasks[0]['answer']}</answer>"
    assert [each["role"] for each in tasks[0]["responses_create_params"]["input"]] == ["user"]
    for change, message in (
        ({"version": "0.0.1"}, "and its rows are those of 0.0.1: run"),
        ({"package": "no-such-package"}, "no-such-package is not installed"),
        ({"families": ["chess"]}, "reasoning-gym has no chess"),
    ):
        other = whole.model_copy(update={"source": {**few, **change}})
        with pytest.raises(ConfigError, match=message):
            prepare_rows(other, lambda *_: None)


def test_corrected_answers_of_mmlu_redux():
    row = {"choices": ["a", "b", "c", "d"], "answer": 2, "correct_answer": None, "error_type": "ok"}

    def read(error: str, corrected: str | None):
        found = READERS["mmlu_redux"]({**row, "error_type": error, "correct_answer": corrected})
        return found["choices"], found["right"]

    assert read("ok", None) == (["a", "b", "c", "d"], "C")
    assert read("bad_question_clarity", "1")[1] == "C"
    assert read("wrong_groundtruth", "1")[1] == "B"
    assert read("wrong_groundtruth", "D")[1] == "D"
    assert read("no_correct_answer", "e") == (["a", "b", "e", "d"], "C")
    assert read("multiple_correct_answers", "(0 and 3)")[1] == ["A", "D"]
    with pytest.raises(ValueError):
        read("wrong_groundtruth", "none of them")


def test_a_definition_is_like_another_with_some_rows(tmp_path: Path):
    own = tmp_path / "own.yaml"
    own.write_text("like: musr\nwhere: {part: [team_allocation]}\nrows: 250\n")
    definition = read_definition(str(own))
    assert (definition.name, definition.server, definition.rows) == ("own", "mcqa", 250)
    rows = make_rows("musr", list_parts(definition))
    tasks = [*make_tasks(definition, rows)]
    assert {task["category"] for task in tasks} == {"team_allocation"}
    own.write_text("like: musr\nwhere: {month: {from: '2024-08', before: '2025-03'}}\nrows: 2\n")
    dated = [{**row, "month": f"2025-0{number % 9 + 1}"} for number, row in enumerate(rows)]
    assert len([*make_tasks(read_definition(str(own)), dated)]) == 6
    with pytest.raises(ConfigError, match="row 1: has no column 'month'"):
        list(make_tasks(read_definition(str(own)), rows))


def test_a_subset_and_other_examples_by_a_name():
    rows = make_rows("mmlu_pro@lm_eval", [])
    rows[3]["category"] = "computer science"
    shown = [*rows, *(dict(row, category="computer science") for row in rows)]

    def ask(name: str) -> list[str]:
        tasks = make_tasks(read_definition(name), rows, shown)
        return [task["responses_create_params"]["input"][-1]["content"] for task in tasks]

    whole = ask("mmlu_pro@lm_eval")
    assert whole[0].count("Question:") == 6 and "(C).\n\nQuestion:" in whole[0]
    assert ask("mmlu_pro@lm_eval:category=computer science") == [whole[3]]
    assert len(ask("mmlu_pro@lm_eval:category=computer science+law")) == len(whole)
    assert ask("mmlu_pro@lm_eval:examples=0")[0].count("Question:") == 1
    drawn = ask("mmlu_pro@lm_eval:examples_seed=3")
    assert drawn == ask("mmlu_pro@lm_eval:examples_seed=3") != whole
    own = read_definition("mmlu_pro@lm_eval:examples=1")
    first, second, *_ = [
        dict(row, category="law", question=f"{at}?") for at, row in enumerate(rows)
    ]
    asked = [
        task["responses_create_params"]["input"][-1]["content"]
        for task in make_tasks(own, [first, second], [first, second])
    ]
    assert asked[0].index("1?") < asked[0].index("0?")  # no row is its own example
    assert asked[1].index("0?") < asked[1].index("1?")
    names = {read_definition(name).name for name in ("mmlu_pro:category=law", "mmlu_pro")}
    assert names == {"mmlu_pro_category_law", "mmlu_pro"}
    assert (
        name_file("mmlu_pro:category=computer science") == "mmlu_pro--category--computer--science"
    )
    some = read_definition("livecodebench_v6_2408_2505:contest_date=2024-09-01..2024-10-01")
    assert rows_file(some) != rows_file(read_definition("livecodebench_v6_2408_2505"))
    assert len([*make_tasks(some, make_rows("livecodebench_v6_2408_2505", []))]) == 10


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "livecodebench_v6_2408_2505:contest_date=2024-01-01..2024-02-01",
            "contest_date: the definition has",
        ),
        ("mmlu_pro:law", "'law' is no column=value, as in mmlu_pro:category=law"),
        ("mmlu_pro:examples=3", "needs a number, and a benchmark with worked examples"),
        ("gsm8k:order_seed=3", "needs a number, and a benchmark with options"),
        ("mmlu_pro@lm_eval:examples=many", "needs a number, and a benchmark with worked"),
        ("mmlu_pro@lm_eval:examples=30", "has 20 worked examples, and needs 30"),
        ("mmlu_pro:kind=law", "row 1: has no column 'kind'"),
    ],
)
def test_a_subset_that_is_none(name: str, message: str):
    rows = make_rows("mmlu_pro@lm_eval", [])
    with pytest.raises(ConfigError) as caught:
        list(make_tasks(read_definition(name), rows, rows))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("like: own", "no benchmark is called own"),
        ("like: gsm9k", "no benchmark is called gsm9k; did you mean 'gsm8k'"),
        ("like: musr\nreader: olympiadbench", "there is no 'olympiadbench'"),
        ("like: musr\nmapping: {prompt: {file: none.txt}}", "none.txt: cannot be read"),
    ],
)
def test_what_is_wrong_in_a_definition(text: str, message: str, tmp_path: Path):
    own = tmp_path / "own.yaml"
    own.write_text(text)
    with pytest.raises(ConfigError) as caught:
        list(make_tasks(read_definition(str(own)), [{}]))
    assert message in str(caught.value).replace(" (", "; ").replace("?)", "")
