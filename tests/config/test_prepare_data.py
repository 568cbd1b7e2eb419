"""ng_prepare_data: datasets that agents list become files of tasks that fit their verifiers."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command import as_function
from support import read_jsonl, write_jsonl

from rollout_kit.collecting.data.mapping import Mapping, get_shape
from rollout_kit.collecting.data.prepare import prepare
from rollout_kit.collecting.data.row_texts import RowTexts
from rollout_kit.config.keys import PrepareDataConfig
from rollout_kit.config.load import load
from rollout_kit.errors import ConfigError
from rollout_kit.types import JsonObject

prepare_data = as_function("ng_prepare_data")

GSM8K = {"question": "Ann has 3 pens and buys 4. How many?", "answer": "3 + 4 = <<3+4=7>>7\n#### 7"}


def task(number: int, **more: Any) -> JsonObject:
    asked = {"input": [{"role": "user", "content": f"What is {number} and 1?"}]}
    return {"responses_create_params": asked, "expected_answer": number + 1, **more}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def configured(*datasets: JsonObject, server: str = "calculator", **verifier: Any) -> None:
    agent = {"resources_server": {"name": "v"}, "model_server": {"name": "policy_model"}}
    blocks = {
        "v": {"resources_servers": {server: verifier}},
        "a": {"responses_api_agents": {"simple_agent": {**agent, "datasets": list(datasets)}}},
    }
    Path("run.yaml").write_text(json.dumps(blocks))


def prepared(**keys: Any) -> JsonObject:
    """What the command finds, by file name."""
    words = [f"+{name}={json.dumps(value)}" for name, value in keys.items()]
    argv = ["+config_paths=[run.yaml]", "+output_dirpath=out", *words]
    found = prepare(load(argv, PrepareDataConfig), lambda line: None)
    assert found == json.loads(Path("out/summary.json").read_text())
    return {Path(path).name: each for path, each in found.items()}


def entry(type_: str = "train", **more: Any) -> JsonObject:
    return {"name": type_, "type": type_, "jsonl_fpath": f"{type_}.jsonl", "license": "MIT", **more}


def test_rows_that_fit_are_written_for_their_agent_and_others_are_named(folder: Path) -> None:
    rows = [task(1), "not json", task(2, expected_answer="many"), {"expected_answer": 1}, task(3)]
    write_jsonl(folder / "train.jsonl", rows)
    configured(entry())
    found = prepared()["train.jsonl"]
    written = read_jsonl(folder / "out/train.jsonl")
    assert [row["expected_answer"] for row in written] == [2, 4]
    assert written[0]["agent_ref"] == {"type": "responses_api_agents", "name": "a"}
    assert (found["rows"], found["written"], found["left_out"]) == (5, 2, 3)
    assert [each.split(":")[1] for each in found["left_out_rows"]] == ["2", "3", "4"]
    assert "expected_answer" in found["left_out_rows"][1]
    assert "no responses_create_params" in found["left_out_rows"][2]
    assert found["fields"]["expected_answer"] == {
        **{"present": 2, "kinds": {"number": 2}, "min": 2, "max": 4, "mean": 3, "std": 1.414214},
    }
    assert found["prompt_words"] == {"min": 5, "max": 5, "mean": 5, "std": 0}


def test_a_server_that_seeds_its_sessions_itself_is_asked_too(folder: Path) -> None:
    write_jsonl(folder / "train.jsonl", [task(1, expected_count=3), task(2, initial_count=1)])
    configured(entry(), server="example_session_state_mgmt")
    found = prepared()["train.jsonl"]
    assert found["written"] == 0
    assert "initial_count" in found["left_out_rows"][0]
    assert "expected_count" in found["left_out_rows"][1]


def test_a_verifier_that_runs_elsewhere_cannot_be_asked_and_that_is_said(folder: Path) -> None:
    write_jsonl(folder / "train.jsonl", [task(1, expected_answer="many")])
    configured(entry(), placement="http://127.0.0.1:1")
    found = prepared()["train.jsonl"]
    assert found["written"] == 1 and "'v' runs elsewhere" in found["notes"][0]


def test_duplicates_missing_fields_and_overlap_are_reported(folder: Path) -> None:
    train = [task(1), task(2, level="hard"), task(1), task(3), task(2, level="hard")]
    write_jsonl(folder / "train.jsonl", train)
    write_jsonl(folder / "validation.jsonl", [task(2, level="unknown"), task(9)])
    configured(entry(), entry("validation", license=None))
    found = prepared()
    assert found["train.jsonl"]["duplicates"] == 2
    assert [Path(each).name for each in found["train.jsonl"]["duplicate_rows"]] == [
        "train.jsonl:3",
        "train.jsonl:5",
    ]
    assert found["train.jsonl"]["fields"]["level"]["missing"] == 3
    assert found["validation.jsonl"]["notes"] == [
        "a, dataset 'validation' has no license",
        "1 of its prompts are also in train.jsonl",
    ]
    assert len(read_jsonl(folder / "out/train.jsonl")) == 5
    assert prepared(drop_duplicates=True)["train.jsonl"]["written"] == 3
    assert len(read_jsonl(folder / "out/train.jsonl")) == 3


def test_modes_repeats_and_limits(folder: Path) -> None:
    for name in ("train", "example"):
        write_jsonl(folder / f"{name}.jsonl", [task(number) for number in range(4)])
    configured(entry(num_repeats=3), entry("example"))
    assert prepared(mode="example_validation").keys() == {"example.jsonl"}
    assert prepared(mode="train_preparation").keys() == {"train.jsonl"}
    assert prepared(limit=2).keys() == {"train.jsonl", "example.jsonl"}
    rows = read_jsonl(folder / "out/train.jsonl")
    assert [row["expected_answer"] for row in rows] == [1, 1, 1, 2, 2, 2]


def test_an_earlier_file_stays_whole_where_there_is_no_next_one(folder: Path) -> None:
    write_jsonl(folder / "train.jsonl", [task(1)])
    configured(entry())
    prepared()
    configured(entry(), {**entry(), "name": "gone", "jsonl_fpath": "gone.jsonl"})
    before = (folder / "out/train.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=r"dataset 'gone': no file gone\.jsonl: searched"):
        prepared()
    assert (folder / "out/train.jsonl").read_bytes() == before
    assert sorted(each.name for each in (folder / "out").iterdir()) == [
        "summary.json",
        "train.jsonl",
    ]


@pytest.mark.parametrize(
    ("name", "row", "fields", "asked"),
    [
        ("gsm8k", GSM8K, {"expected_answer": "7", "question": GSM8K["question"]}, "#### <answer>"),
        (
            "math",
            {"problem": "x?", "solution": "so \\boxed{1}, or \\boxed{\\frac{1}{2}}."},
            {"expected_answer": "\\frac{1}{2}", "question": "x?"},
            "in \\boxed{}",
        ),
        (
            "problem_answer",
            {"problem": "x?", "answer": 204},
            {"expected_answer": "204", "question": "x?"},
            "x?",
        ),
        (
            "mmlu",
            {"question": "Which?", "choices": ["ax", "bow"], "answer": 1},
            {
                "expected_answer": "B",
                "options": [{"A": "ax"}, {"B": "bow"}],
                "question": "Which?",
            },
            "Which?\nA: ax\nB: bow",
        ),
        (
            "verl",
            {"prompt": [{"role": "user", "content": "x?"}], "reward_model": {"ground_truth": 3}},
            {"expected_answer": "3"},
            "x?",
        ),
    ],
)
def test_shapes_that_many_datasets_have(
    name: str, row: JsonObject, fields: JsonObject, asked: str
) -> None:
    made = Mapping.model_validate(get_shape(name)).build_task(row, RowTexts())
    params = made.pop("responses_create_params")
    assert made == fields
    assert asked in params["input"][-1]["content"]


def test_a_mapping_of_one_s_own_says_what_a_row_lacks(folder: Path) -> None:
    rows = [{"q": "1 + 1?", "a": {"value": "it is 2", "level": 1}}, {"q": "2 + 2?", "a": {}}, {}]
    write_jsonl(folder / "train.jsonl", [*rows, {"q": "?", "a": {"value": "none"}}])
    mapping = {
        "prompt": {"user": "{q} Say only the number. {_hint}"},
        "fields": {
            "expected_answer": {"from": "a.value", "regex": "it is (\\d+)"},
            "_hint": {"value": "Be brief."},
        },
        "keep": True,
    }
    configured(entry(mapping=mapping))
    found = prepared()["train.jsonl"]
    [row] = read_jsonl(folder / "out/train.jsonl")
    said = row["responses_create_params"]["input"][0]["content"]
    assert said == "1 + 1? Say only the number. Be brief."
    assert (row["expected_answer"], row["q"], "_hint" in row) == ("2", "1 + 1?", False)
    problems = [each.split(": ", 1)[1] for each in found["left_out_rows"]]
    assert problems[:2] == ["has no field 'a.value'; there are q, a", "has no field 'a.value'"]
    assert "does not match" in problems[2]


def hub(monkeypatch: pytest.MonkeyPatch, load_dataset: Any) -> None:
    library = SimpleNamespace(load_dataset=load_dataset)
    monkeypatch.setitem(sys.modules, "datasets", library)  # type: ignore[arg-type]


ON_HUB = {
    "name": "gsm8k",
    "type": "train",
    "license": "MIT",
    "mapping": "gsm8k",
    "source": {"type": "huggingface", "repo_id": "openai/gsm8k", "config": "main"},
}


def test_a_dataset_of_the_hub_is_streamed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(*words: Any, **more: Any) -> Any:
        asked.append((words, more))
        return iter([GSM8K] * 3)

    hub(monkeypatch, load_dataset)
    configured(ON_HUB, server="math_with_verify")
    assert prepared(limit=2)["train.jsonl"]["written"] == 2
    assert asked == [
        (("openai/gsm8k", "main"), {"split": "train", "revision": None, "streaming": True})
    ]
    assert read_jsonl(folder / "out/train.jsonl")[0]["expected_answer"] == "7"


def test_without_network_or_library_it_is_said_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(ON_HUB, server="math_with_verify")

    def load_dataset(*words: Any, **more: Any) -> Any:
        raise ConnectionError("Couldn't reach the Hub")

    hub(monkeypatch, load_dataset)
    with pytest.raises(ConfigError, match=r"cannot download .*: ConnectionError: .* jsonl_fpath"):
        prepared()
    monkeypatch.setitem(sys.modules, "datasets", None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"pip install 'rollout-kit\[huggingface\]'"):
        prepared()
    with pytest.raises(ConfigError, match="should_download is false"):
        prepared(should_download=False)


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        ({"name": "x"}, "needs a jsonl_fpath"),
        (entry(mapping="gsm9k"), "did you mean 'gsm8k'"),
        (entry(num_repeat=2), "num_repeats"),
        (entry("trian"), "type"),
        (entry(mapping={"fields": {"a": {"from": "b", "regex": "("}}}), "not a regular expression"),
        (entry(mapping={"fields": {"a": {"from": "b", "regex": "c"}}}), "needs a group"),
        (entry(gitlab_identifier={"dataset_name": "d"}), "only datasets on Hugging Face"),
    ],
)
def test_what_is_wrong_with_an_entry_is_said(
    folder: Path, dataset: JsonObject, reason: str
) -> None:
    configured(dataset)
    with pytest.raises(ConfigError, match=reason):
        prepared()


def test_the_command_prints_what_it_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl(folder / "train.jsonl", [task(1), task(1), "torn"])
    configured(entry())
    with pytest.raises(SystemExit) as ended:
        prepare_data(["+config_paths=[run.yaml]", "+output_dirpath=out"])
    said = capsys.readouterr().out
    assert ended.value.code == 2
    assert (
        "out/train.jsonl: 2 rows, 1 task\n" in said
        and "1 row left out" in said
        and "1 × not JSON" in said
    )
    assert "1 repetition of an earlier row: " in said and "Details: out/summary.json" in said
