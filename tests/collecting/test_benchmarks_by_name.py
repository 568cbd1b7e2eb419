"""Benchmarks by name: every definition loads, makes rows of its published columns, and runs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hub import Hub, standing_in
from published import as_csv, publish
from workplace import ROOT

import rollout_kit as rk
from benchmarks.agreement.shelf.made import read_made
from rollout_kit.collecting.data.benchmarks.prepared import check_definition, prepare_rows
from rollout_kit.collecting.data.mapping import Mapping
from rollout_kit.collecting.data.row_texts import RowTexts
from rollout_kit.config.benchmarks.definition import (
    Definition,
    list_definitions,
    read_definition,
    rows_file,
)
from rollout_kit.config.commands import known_keys
from rollout_kit.config.keys import AuditConfig
from rollout_kit.config.load import load
from rollout_kit.errors import ConfigError

pytest.importorskip("huggingface_hub")

NAMES = list_definitions()
NUM_ROWS = 20
MAX_LINES = 40

OPTIONS = ["red", "green", "blue", "white"]

COLUMNS: dict[str, dict[str, Any]] = {
    "gsm8k": {"question": "What is 1 + {n}?", "answer": "We add.\n#### 1,00{n}"},
    "gsm8k_platinum": {
        "question": "What is 1 + {n}?",
        "answer": "We add.\n#### {n}",
        "cleaning_status": "consensus",
    },
    "math_500": {
        **{
            "problem": "Find {n}.",
            "solution": "So $\\boxed{{{n}}}$.",
            "answer": "\\frac{{{n}}}{{7}}",
        },
        **{"subject": "Algebra", "level": 3, "unique_id": "test/algebra/{n}.json"},
    },
    "aime24": {"ID": "2024-I-{n}", "Problem": "Find {n}.", "Solution": "…", "Answer": 204},
    "aime25": {"problem": "Find {n}.", "answer": "{n}", "id": "{n}"},
    "aime26": {"problem": "Find {n}.", "answer": "{n}", "id": "{n}"},
    "hmmt_feb25": {
        "problem_idx": 3,
        "problem": "Find {n}.",
        "answer": "\\frac{{1}}{{576}}",
        "problem_type": ["Algebra"],
    },
    "hmmt_nov25": {
        "problem_idx": 3,
        "problem": "Find {n}.",
        "answer": "{n}",
        "problem_type": ["Algebra"],
    },
    "mmlu_pro": {
        **{"question_id": 70, "question": "Which is {n}?", "options": [*OPTIONS, "a", "b", "c"]},
        **{"answer": "C", "answer_index": 2, "cot_content": "", "category": "law", "src": "ori"},
    },
    "supergpqa": {
        **{"uuid": "{n}", "question": "Which is {n}?", "options": [*OPTIONS, "a", "b", "c"]},
        **{"answer": "blue", "answer_letter": "C", "discipline": "Law", "field": "Law"},
    },
    "imo_answerbench": {
        **{"Problem ID": "imo-bench-algebra-{n}", "Problem": "Find {n}.", "Category": "Algebra"},
        **{"Short Answer": "${n}$", "Subcategory": "Inequality", "Source": "IMO Shortlist 2021"},
    },
    "mmlu": {"question": "Which is {n}?", "subject": "law", "choices": OPTIONS, "answer": 2},
    "arc_challenge": {
        **{"id": "Mercury_{n}", "question": "Which is {n}?", "answerKey": "3"},
        **{"choices": {"text": OPTIONS, "label": ["1", "2", "3", "4"]}},
    },
    "commonsense_qa": {
        **{"id": "{n}", "question": "Which is {n}?", "question_concept": "x", "answerKey": "C"},
        **{"choices": {"text": [*OPTIONS, "black"], "label": list("ABCDE")}},
    },
    "gpqa_diamond": {
        **{
            "Question": "Which is {n}?",
            "Correct Answer": "right",
            "High-level domain": "Physics",
        },
        **{f"Incorrect Answer {number}": f"wrong {number}" for number in (1, 2, 3)},
    },
    "ifeval": {
        **{"key": 1000, "prompt": "Write {n} words without commas."},
        **{"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{"num_words": None}]},
    },
}
"""Definition → a row in the published columns. `{n}` is the number of the row."""

ANSWERS = {
    "gsm8k": "1,003",
    "math_500": "\\frac{3}{7}",
    "aime24": "204",
    "mmlu_pro": "C",
    "mmlu": "C",
    "supergpqa": "C",
    "imo_answerbench": "$3$",
    "arc_challenge": "C",
    "commonsense_qa": "C",
}
"""Definition → the expected answer of the row with the number 3."""


def fill(value: Any, number: int) -> Any:
    if isinstance(value, str):
        return value.format(n=number)
    if isinstance(value, list):
        return [fill(each, number) for each in value]
    if isinstance(value, dict):
        return {name: fill(each, number) for name, each in value.items()}
    return value


def make_rows(name: str) -> list[dict[str, Any]]:
    return [fill(COLUMNS[name], number) for number in range(NUM_ROWS)]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    with standing_in(monkeypatch, tmp_path) as found:
        yield found


@pytest.mark.parametrize("name", NAMES)
def test_every_definition_is_short_and_right(name: str):
    definition = read_definition(name)
    check_definition(definition)
    assert len(definition.path.read_text().splitlines()) <= MAX_LINES
    kind, _, k = definition.metric.replace("^", "@").partition("@")
    is_usual = kind in ("avg", "pass", "maj") and int(k) <= definition.repeats
    assert is_usual or definition.sections or definition.metric in definition.figures
    assert definition.source.get("type") == "url" or definition.rows > 0
    assert (ROOT / "resources_servers" / definition.server).is_dir()
    assert definition.instance not in known_keys()


FROM_HUB = [name for name in COLUMNS if "repo_id" in read_definition(name).source]


def test_every_definition_has_made_rows():
    kinds = {name: read_definition(name).source.get("type") for name in NAMES}
    found = {*COLUMNS, *read_made()}
    assert found >= {name for name, kind in kinds.items() if kind != "python_package"}


@pytest.mark.parametrize("name", FROM_HUB)
def test_rows_in_the_published_columns(name: str, hub: Hub):
    definition = read_definition(name)
    publish(hub, definition, make_rows(name))
    said: list[str] = []
    path = prepare_rows(name, lambda text, **_: said.append(text))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == NUM_ROWS
    assert f"has {NUM_ROWS} rows here, and its definition says {definition.rows:,}" in said[-1]
    asked = [row["responses_create_params"]["input"][-1]["content"] for row in rows]
    assert len(set(asked)) == NUM_ROWS
    assert not any("{" + field + "}" in text for text in asked for field in COLUMNS[name])
    if name in ANSWERS:
        assert rows[3]["expected_answer"] == ANSWERS[name]
    hub.files.clear()
    hub.asked.clear()
    assert prepare_rows(name, lambda *_, **__: None) == path
    assert not hub.asked


def test_options_in_an_order_of_a_seed(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    definition = read_definition("gpqa_diamond")
    file = tmp_path / "made.csv"
    file.write_bytes(as_csv(make_rows("gpqa_diamond")))
    source = {"type": "url", "url": file.as_uri()}
    own = write_definition(tmp_path, definition, source)
    rows = [
        json.loads(line)
        for line in prepare_rows(str(own), lambda *_, **__: None).read_text().splitlines()
    ]
    assert len({row["expected_answer"] for row in rows}) == 4
    for row in rows:
        [text] = [
            option[row["expected_answer"]]
            for option in row["options"]
            if row["expected_answer"] in option
        ]
        assert text == "right"
        assert (
            f"{row['expected_answer']}) right"
            in row["responses_create_params"]["input"][0]["content"]
        )


def write_definition(folder: Path, like: Definition, source: dict[str, Any], **other: Any) -> Path:
    import yaml

    content = like.model_dump(exclude={"name", "path"}, exclude_none=True)
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump({**content, "source": source, **other}))
    return path


def test_a_file_that_has_changed_is_refused(hub: Hub, tmp_path: Path):
    file = tmp_path / "made.csv"
    file.write_bytes(as_csv(make_rows("gpqa_diamond")))
    source = {"type": "url", "url": file.as_uri(), "sha256": "0" * 64}
    own = write_definition(tmp_path, read_definition("gpqa_diamond"), source)
    with pytest.raises(ConfigError, match=r"has changed: its SHA-256 is [0-9a-f]{64}, and the"):
        prepare_rows(str(own), lambda *_, **__: None)
    assert not rows_file(read_definition(str(own))).exists()


def test_gated_rows_are_one_line_with_the_page(hub: Hub):
    definition = read_definition("gsm8k")
    publish(hub, definition, make_rows("gsm8k"))
    hub.gated.add("openai/gsm8k")
    with pytest.raises(
        ConfigError, match=r"gated: accept its terms at https://\S+, then set HF_TOKEN"
    ):
        prepare_rows("gsm8k", lambda *_, **__: None)


def test_a_revision_that_is_gone_is_named(hub: Hub):
    publish(hub, read_definition("gsm8k"), make_rows("gsm8k"))
    hub.revisions.add("d" * 40)
    with pytest.raises(ConfigError, match=r"has no revision cc7b047b\w+ any more"):
        prepare_rows("gsm8k", lambda *_, **__: None)


def test_the_first_revision_is_held_to(hub: Hub):
    publish(hub, read_definition("math_500"), make_rows("math_500"))
    path = prepare_rows("math_500", lambda *_, **__: None)
    path.unlink()
    hub.asked.clear()
    prepare_rows("math_500", lambda *_, **__: None)
    assert hub.asked[0].endswith(f"/revision/{'c' * 40}")


def test_a_row_that_cannot_be_mapped_leaves_no_cache(hub: Hub):
    rows = make_rows("gsm8k")
    rows[7]["answer"] = "no number"
    publish(hub, read_definition("gsm8k"), rows)
    with pytest.raises(ConfigError, match=r"gsm8k: row 8: 'answer' does not match"):
        prepare_rows("gsm8k", lambda *_, **__: None)
    assert not rows_file(read_definition("gsm8k")).exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gsm9k", "no benchmark has this name; did you mean 'gsm8k'"),
        ("missing.yaml", "there is no such file"),
    ],
)
def test_unknown_names(name: str, message: str):
    with pytest.raises(ConfigError) as caught:
        read_definition(name)
    assert message in str(caught.value).replace(" (", "; ").replace("?)", "")


def collect(
    tmp_path: Path, hub: Hub, *words: str, name: str = "ng_collect_rollouts"
) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HF_HOME": str(tmp_path / "hub"),
        "HF_ENDPOINT": hub.url,
    }
    command = Path(sys.executable).with_name(name)
    return subprocess.run(
        [command, *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )


MODEL = """
my_model:
  responses_api_models:
    simulated_model:
      answer: script
      script_jsonl_fpath: ${input_jsonl_fpath}
      answer_template: 'ANSWER: {answer}'
"""


def test_one_command_runs_it_all(hub: Hub, tmp_path: Path):
    publish(hub, read_definition("mmlu_pro"), make_rows("mmlu_pro"))
    (tmp_path / "model.yaml").write_text(MODEL)
    done = collect(tmp_path, hub, "+benchmark=mmlu_pro", "+config_paths=[model.yaml]")
    assert done.returncode == 0, done.stderr
    output = tmp_path / "results/simulated_model/mmlu_pro.jsonl"
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["reward"] for line in lines] == [1.0] * NUM_ROWS
    assert {line["benchmark"] for line in lines} == {"mmlu_pro"}
    asked = lines[0]["responses_create_params"]
    assert asked["temperature"] == 0
    again = collect(tmp_path, hub, "+benchmark=mmlu_pro", "+config_paths=[model.yaml]")
    assert f"{NUM_ROWS} done" in again.stdout + again.stderr
    metrics = json.loads(output.with_name("mmlu_pro_aggregate_metrics.json").read_text())
    found = metrics["benchmark"]
    assert (found["metric"], found["value"], found["rows"]) == ("pass@1", 1.0, NUM_ROWS)
    assert "Benchmark mmlu_pro: pass@1 1.000 [" in done.stdout + done.stderr
    files = [f"+input_jsonl_fpath={output}", "+output_jsonl_fpath=again.jsonl"]
    verified = collect(tmp_path, hub, "+benchmark=mmlu_pro", *files, name="ng_reverify")
    assert verified.returncode == 0, verified.stderr
    lines = [json.loads(line) for line in (tmp_path / "again.jsonl").read_text().splitlines()]
    assert [line["reward"] for line in lines] == [1.0] * NUM_ROWS


def test_the_model_and_the_command_line_win_over_the_definition(hub: Hub, tmp_path: Path):
    publish(hub, read_definition("mmlu"), make_rows("mmlu"))
    (tmp_path / "model.yaml").write_text(
        MODEL + "responses_create_params: {temperature: 0.3, top_p: 0.9}\n"
    )
    words = ["+benchmark=mmlu", "+config_paths=[model.yaml]", "+responses_create_params.top_p=0.5"]
    done = collect(tmp_path, hub, *words, "+limit=2", "+output_jsonl_fpath=own.jsonl")
    assert done.returncode == 0, done.stderr
    asked = json.loads((tmp_path / "own.jsonl").read_text().splitlines()[0])
    params = asked["responses_create_params"]
    assert (params["temperature"], params["top_p"]) == (0.3, 0.5)


def test_other_rows_beside_a_benchmark_are_refused(hub: Hub, tmp_path: Path):
    (tmp_path / "model.yaml").write_text(MODEL)
    words = ["+benchmark=mmlu", "+config_paths=[model.yaml]", "+input_jsonl_fpath=own.jsonl"]
    done = collect(tmp_path, hub, *words)
    assert done.returncode == 1
    assert "input_jsonl_fpath and benchmark were both given" in done.stderr


def test_only_fields_of_a_mapping_are_put_into_objects():
    mapping = Mapping.model_validate({"fields": {"a.b": "x.y", "question": "q"}, "keep": True})
    texts = RowTexts()
    made = mapping.build_task({"x.y": 1, "q": "?", "c.d": 2}, texts)
    assert made["a"] == {"b": 1}
    assert made["c.d"] == 2
    with pytest.raises(ValueError, match=r"'a\.b': 'a' is no object"):
        mapping.build_task({"x.y": 1, "q": "?", "a": "text"}, texts)


@pytest.mark.anyio
async def test_from_python_with_a_model_alone(hub: Hub, tmp_path: Path):
    publish(hub, read_definition("mmlu_pro"), make_rows("mmlu_pro"))
    asked: list[dict[str, Any]] = []

    def answer(params: dict[str, Any]) -> str:
        asked.append(params)
        return "ANSWER: C"

    output = tmp_path / "mmlu_pro.jsonl"
    table = await rk.collect(benchmark="mmlu_pro", model=answer, output=output, limit=5)
    assert len(table) == len(asked) == 5
    assert asked[0]["temperature"] == 0
    assert table.metrics["benchmark"]["name"] == "mmlu_pro"
    assert table.metrics["benchmark"]["value"] == 1.0
    assert "\nOptions:\nA) red\n" in asked[0]["input"][-1]["content"]
    with pytest.raises(ConfigError, match="a benchmark brings its rows"):
        rk.collect([{}], benchmark="mmlu_pro", model=answer)
    with pytest.raises(ConfigError, match="it brings its own verifier and agent"):
        rk.collect(benchmark="mmlu_pro", model=answer, environment="string_match")


def test_an_audit_takes_its_verifier_and_its_rows():
    config = load(["+benchmark=human_eval", "+num_rows=5"], AuditConfig)
    assert "human_eval" in config.instances
    assert config.instances["human_eval"].settings["unit_test_timeout_secs"] == 30
    definition = read_definition("human_eval")
    assert config.command.input_jsonl_fpath == str(rows_file(definition))
    assert config.command.resources_server_name == "human_eval"
