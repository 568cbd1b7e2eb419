"""Datasets to train on by name: `+dataset=NAME`."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("huggingface_hub")

from hub import Hub, standing_in
from published import publish

import rollout_kit as rk
from rollout_kit.collecting.data.benchmarks.prepared import check_definition, prepare_rows
from rollout_kit.config.benchmarks.definition import TRAINING, list_definitions, read_definition
from rollout_kit.errors import ConfigError

MAX_LINES = 40
NUM_ROWS = 20

DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the"
    " form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
    'What is {n} plus {n}?\n\nRemember to put your answer on its own line after "Answer:".'
)

COLUMNS: dict[str, dict[str, Any]] = {
    "dapo_math_17k": {
        "data_source": "math_dapo",
        "prompt": [{"content": DAPO, "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": "1{n}", "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": "9a9b6eb4-{n}"},
    },
    "deepscaler_preview": {"problem": "Find {n}.", "answer": "1{n}", "solution": "It is 1{n}."},
    "big_math": {
        **{"problem": "Find {n} of $\\frac{a}{b}$.", "answer": "1{n}", "source": "orca_math"},
        **{"domain": ["Mathematics -> Algebra"], "llama8b_solve_rate": 0.5},
    },
    "gsm8k_train": {"question": "How many are {n}?", "answer": "They are <<1+1=2>>2.\n#### 1{n}"},
    "math_train": {
        **{"problem": "Find ${n}$.", "level": "Level 2", "type": "Algebra"},
        "solution": "It is $\\boxed{1{n}}$.",
    },
    "deepmath_103k": {"prompt": [{"content": "Find {n}.", "role": "user"}], "solution": "1{n}"},
}
"""Dataset → a row in the published columns. `{n}` is the number of the row."""

ENDS = {
    "dapo_math_17k": 'Remember to put your answer on its own line after "Answer:".',
    "deepscaler_preview": "Find 3. Let's think step by step and output the final answer within"
    " \\boxed{}.",
    "big_math": "$\\frac{a}{b}$. Let's think step by step and output the final answer within"
    " \\boxed{}.",
    "gsm8k_train": "How many are 3? Let's think step by step and output the final answer after"
    ' "####".',
    "math_train": "Find $3$. Let's think step by step and output the final answer within"
    " \\boxed{}.",
    "deepmath_103k": "Find 3.",
}
"""Dataset → how the prompt of its fourth row ends."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with standing_in(monkeypatch, tmp_path) as found:
        yield found


def make_rows(name: str) -> list[dict[str, Any]]:
    text = json.dumps(COLUMNS[name])
    return [json.loads(text.replace("{n}", str(number))) for number in range(NUM_ROWS)]


def publish_rows(hub: Hub, name: str, times: int = 1) -> None:
    publish(hub, read_definition(TRAINING + name), make_rows(name) * times)


def read_tasks(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_dataset_has_made_rows():
    assert set(list_definitions(kind="dataset")) == set(COLUMNS)


@pytest.mark.parametrize("name", COLUMNS)
def test_rows_in_the_published_columns(name: str, hub: Hub):
    definition = read_definition(TRAINING + name)
    check_definition(definition)
    assert len(definition.path.read_text().splitlines()) <= MAX_LINES
    assert (definition.kind, definition.metric) == ("dataset", "")
    publish_rows(hub, name)
    said: list[str] = []
    path = prepare_rows(TRAINING + name, said.append)
    tasks = read_tasks(path)
    assert said[-1] == (
        f"warning: the dataset {name} has {NUM_ROWS} rows here, and its definition says"
        f" {definition.rows:,}"
    )
    assert [task["expected_answer"] for task in tasks] == [f"1{n}" for n in range(NUM_ROWS)]
    assert {task["dataset"] for task in tasks} == {name}
    asked = [task["responses_create_params"]["input"][-1]["content"] for task in tasks]
    assert asked[3].endswith(ENDS[name])
    hub.files.clear()
    hub.asked.clear()
    assert prepare_rows(TRAINING + name, said.append) == path
    assert not hub.asked


def test_rows_that_repeat_are_left_out_and_said(hub: Hub):
    publish_rows(hub, "dapo_math_17k", times=3)
    said: list[str] = []
    tasks = read_tasks(prepare_rows("dataset:dapo_math_17k", said.append))
    assert [task["expected_answer"] for task in tasks] == [f"1{n}" for n in range(NUM_ROWS)]
    assert "left out 40 rows whose prompt an earlier row has too" in "\n".join(said)
    publish_rows(hub, "gsm8k_train", times=2)
    assert len(read_tasks(prepare_rows("dataset:gsm8k_train", said.append))) == 2 * NUM_ROWS


def test_a_gated_dataset_is_one_line_with_the_page(hub: Hub):
    publish_rows(hub, "big_math")
    hub.gated.add("SynthLabsAI/Big-Math-RL-Verified")
    page = "https://huggingface.co/datasets/SynthLabsAI/Big-Math-RL-Verified"
    with pytest.raises(ConfigError, match=f"gated: accept its terms at {page}, then set HF_TOKEN"):
        prepare_rows("dataset:big_math", print)


def run(tmp_path: Path, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name(name)
    return subprocess.run(
        [command, *words], cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False
    )


MODEL = """
my_model:
  responses_api_models:
    simulated_model:
      answer: script
      script_jsonl_fpath: ${input_jsonl_fpath}
      answer_template: 'Answer: {answer}'
"""


def test_one_command_collects_on_a_dataset(hub: Hub, tmp_path: Path):
    publish_rows(hub, "dapo_math_17k", times=2)
    (tmp_path / "model.yaml").write_text(MODEL)
    words = ["+dataset=dapo_math_17k", "+config_paths=[model.yaml]", "+num_repeats=2"]
    done = run(tmp_path, "ng_collect_rollouts", *words)
    assert done.returncode == 0, done.stderr
    output = tmp_path / "results/simulated_model/dapo_math_17k.jsonl"
    lines = read_tasks(output)
    assert [line["reward"] for line in lines] == [1.0] * (2 * NUM_ROWS)
    assert {line["dataset"] for line in lines} == {"dapo_math_17k"}
    metrics = json.loads(output.with_name("dapo_math_17k_aggregate_metrics.json").read_text())
    assert "benchmark" not in metrics
    assert "Benchmark" not in done.stdout + done.stderr
    files = [f"+input_jsonl_fpath={output}", "+output_jsonl_fpath=again.jsonl"]
    verified = run(tmp_path, "ng_reverify", "+dataset=dapo_math_17k", *files)
    assert verified.returncode == 0, verified.stderr
    again = read_tasks(tmp_path / "again.jsonl")
    assert [line["reward"] for line in again] == [1.0] * (2 * NUM_ROWS)


@pytest.mark.anyio
async def test_from_python(hub: Hub, tmp_path: Path):
    publish_rows(hub, "gsm8k_train")
    output = tmp_path / "own.jsonl"
    await rk.collect(dataset="gsm8k_train", model=lambda params: "#### 13", output=output)
    lines = read_tasks(output)
    assert sum(line["reward"] for line in lines) == 1
    assert len(lines) == NUM_ROWS


def test_rows_are_fetched_and_listed(hub: Hub, tmp_path: Path):
    publish_rows(hub, "math_train")
    before = run(tmp_path, "ng_list", "+kind=dataset").stdout
    [line] = [each for each in before.splitlines() if "math_train" in each]
    assert line.startswith("dataset ")
    assert "to be fetched" in line
    done = run(tmp_path, "ng_prepare_data", "+dataset=math_train")
    assert done.returncode == 0, done.stderr
    after = run(tmp_path, "ng_list", "+kind=dataset").stdout
    [line] = [each for each in after.splitlines() if "math_train" in each]
    assert "to be fetched" not in line


def test_overlap_of_datasets_and_benchmarks_by_name(hub: Hub, tmp_path: Path):
    names = "Ada Bob Cleo Dan Eve Fay Gus Hal Ida Jo Kim Lou Max Ned Ola Pat Quin Ray Sue Tom"
    asked = [
        f"{name} has {number} apples and gives {number} of them to each friend of the {number}"
        f" friends that came, so how many does {name} keep?"
        for number, name in enumerate(names.split())
    ]
    tests = [{"question": text, "answer": f"#### {number}"} for number, text in enumerate(asked)]
    publish(hub, read_definition("gsm8k"), tests)
    publish(hub, read_definition("math_500"), [math_row(each) for each in range(NUM_ROWS)])
    hub.files["openai/gsm8k"]["main/train-00000-of-00001.parquet"] = hub.files["openai/gsm8k"][
        "main/test-00000-of-00001.parquet"
    ]
    publish_rows(hub, "dapo_math_17k")
    words = ["+dataset=[gsm8k_train,dapo_math_17k]", "+benchmark=[gsm8k,math_500]", "+json=true"]
    done = run(tmp_path, "ng_check_overlap", *words, "+clean_fpath=clean.jsonl")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    shares = {name: each["rows_found"] for name, each in found["benchmarks"].items()}
    assert shares == {"gsm8k": NUM_ROWS, "math_500": 0}
    assert found["benchmarks"]["gsm8k"]["examples"][0]["found_in"] == "gsm8k_train:1"
    kept = read_tasks(tmp_path / "clean.jsonl")
    assert {task["dataset"] for task in kept} == {"dapo_math_17k"}


def math_row(number: int) -> dict[str, Any]:
    problem = f"Let $p_{number}$ be a prime, and find the least {number} for which it divides x."
    about = {"subject": "Algebra", "level": 2, "unique_id": f"a/{number}"}
    return {"problem": problem, "solution": "1", "answer": "1", **about}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["+dataset=dapo_math_17"], "no dataset has this name did you mean 'dapo_math_17k'"),
        (["+dataset=gsm8k_train", "+benchmark=gsm8k"], "dataset and benchmark were both given"),
        (
            ["+dataset=gsm8k_train", "+input_jsonl_fpath=own.jsonl"],
            "input_jsonl_fpath and dataset were both given: a dataset brings its rows",
        ),
        (["+benchmark=own.yaml"], "own.yaml: metric: a benchmark needs one"),
        (["+dataset=scored.yaml"], "scored.yaml: metric: a dataset has none"),
        (["+dataset=none.yaml"], "dataset=none.yaml: there is no such file"),
    ],
)
def test_what_is_refused(words: list[str], message: str, tmp_path: Path):
    (tmp_path / "model.yaml").write_text(
        "policy_model: {responses_api_models: {simulated_model: {}}}"
    )
    (tmp_path / "own.yaml").write_text(OWN)
    (tmp_path / "scored.yaml").write_text(OWN + "kind: dataset\nmetric: pass@1\n")
    done = run(tmp_path, "ng_collect_rollouts", *words, "+config_paths=[model.yaml]")
    assert done.returncode == 1
    assert message in done.stderr.replace("(", "").replace("?)", "")


OWN = """
about: capitals
source: {type: file, file: rows.jsonl}
rows: 2
mapping:
  prompt: {user: "{question}"}
  fields: {expected_answer: answer}
verifier: {string_match: {}}
license: MIT
citation: none
follows: nobody
"""


def test_a_dataset_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows = [{"question": "France?", "answer": "Paris"}, {"question": "Italy?", "answer": "Rome"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "capitals.yaml").write_text(OWN + "kind: dataset\n")
    (tmp_path / "model.yaml").write_text(MODEL)
    words = ["+dataset=capitals.yaml", "+config_paths=[model.yaml]"]
    done = run(tmp_path, "ng_collect_rollouts", *words)
    assert done.returncode == 0, done.stderr
    lines = read_tasks(tmp_path / "results/simulated_model/capitals.jsonl")
    assert [line["expected_answer"] for line in lines] == ["Paris", "Rome"]
