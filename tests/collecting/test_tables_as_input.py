"""Tables and rows of other tools as input: `+map`, `+prompt`, and GSM8K without either."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import as_function
from support import read_jsonl

import rollout_kit as rk
from rollout_kit.collecting.data.row_mapping import RowMap, find_row_map
from rollout_kit.collecting.data.row_texts import RowTexts
from rollout_kit.config.keys import CollectConfig

collect_rollouts = as_function("ng_collect_rollouts")

MODEL = """
policy_model:
  responses_api_models:
    simulated_model: {answer: text, text: "So: Result: 4"}
string_match:
  resources_servers:
    string_match: {extraction_pattern: 'Result: (?P<answer>\\d+)'}
"""

GSM8K = {"question": "Ann has 1 pen and buys 3. How many?", "answer": "1 + 3 = <<1+3=4>>4\n#### 4"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(MODEL)
    Path("p.yaml").write_text("user: '{Frage}'")
    Path("t.csv").write_text('Frage,Antwort\n"What is 2+2?",4\n"What is {{ 3 }}+4?",7\n')
    return tmp_path


class Run:
    """Runs the command: its status, and what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str]:
        configs = "resources_servers/string_match/configs/string_match.yaml,run.yaml"
        own = [f"+config_paths=[{configs}]", "+output_jsonl_fpath=o.jsonl"]
        with pytest.raises(SystemExit) as end:
            collect_rollouts([*own, *words])
        printed = self._capsys.readouterr()
        return int(end.value.code or 0), printed.out + printed.err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


def asked(line: dict[str, Any]) -> str:
    return line["responses_create_params"]["input"][-1]["content"]


MAPPED = ("+map.question=Frage", "+map.expected_answer=Antwort")


def test_a_csv_with_a_prompt_and_a_regex_answer(run: Run) -> None:
    prompt = "+prompt=Solve {{ question }} Say: Result: <n>"
    status, said = run("+input_jsonl_fpath=t.csv", *MAPPED, prompt)
    assert status == 0, said
    first, second = read_jsonl(Path("o.jsonl"))
    assert (first["reward"], second["reward"]) == (1.0, 0.0)
    assert asked(first) == "Solve What is 2+2? Say: Result: <n>"
    assert asked(second) == "Solve What is {{ 3 }}+4? Say: Result: <n>"  # a value, no template
    assert first["Antwort"] == first["expected_answer"] == "4"
    status, said = run("+input_jsonl_fpath=t.csv", *MAPPED, prompt)
    assert "2 done" in said and status == 0
    status, said = run("+input_jsonl_fpath=t.csv", *MAPPED, "+prompt=Do {{ question }}")
    assert status == 1 and "map.template" in said


def test_a_parquet_file_is_asked_by_its_question(run: Run) -> None:
    rows = [{"q": "What is 2+2?", "meta": {"right": 4}}]
    pq.write_table(pa.Table.from_pylist(rows), "t.parquet")
    words = ("+map.question=q", "+map.expected_answer={from: meta.right, as: text}")
    assert run("+input_jsonl_fpath=t.parquet", *words)[0] == 0
    [line] = read_jsonl(Path("o.jsonl"))
    assert line["reward"] == 1.0 and asked(line) == "What is 2+2?"


@pytest.mark.parametrize("words", [(), ("+map=gsm8k",)])
def test_a_file_of_gsm8k_is_input_as_it_is(words: tuple[str, ...], run: Run) -> None:
    Path("gsm8k_train.jsonl").write_text(json.dumps(GSM8K) + "\n")
    status, said = run("+input_jsonl_fpath=gsm8k_train.jsonl", *words)
    assert status == 0, said
    [line] = read_jsonl(Path("o.jsonl"))
    assert line["expected_answer"] == "4" and line["reward"] == 1.0
    assert GSM8K["question"] in asked(line)
    assert ("read with +map=gsm8k" in said) == (not words)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("+prompt={question}",), "write a field as {{ question }}"),
        (("+prompt={{ Frage",), "not a jinja template"),
        (("+prompt={{ Frage }}", "+prompt_config=p.yaml"), "give one of the two"),
        (("+map=gsm8",), "did you mean 'gsm8k'"),
        (("+map.question=Frag",), "has no field 'Frag' (did you mean 'Frage'?)"),
        (("+prompt={{ Frag }}",), "'Frag' is undefined"),
        (("+map.question.regex=(.)",), "needs `from`"),
        (("+map.question.from=Frage", "+map.question.regex=x"), "needs a group"),
        ((), "it has Frage, Antwort"),
    ],
)
def test_a_key_that_cannot_be_used_says_what_to_write(
    words: tuple[str, ...], error: str, run: Run
) -> None:
    status, said = run("+input_jsonl_fpath=t.csv", *words)
    assert status and error in said


def test_a_dataset_of_hugging_face_is_input(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    loaded: list[Any] = []

    def load_dataset(*words: Any, **named: Any) -> Any:
        loaded.append((words, named))
        return iter([GSM8K])

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    status, said = run("+input_jsonl_fpath=hf://openai/gsm8k?config=main&split=test")
    assert status == 0, said
    named = {"split": "test", "revision": None, "streaming": True}
    assert loaded == [(("openai/gsm8k", "main"), named)]
    [line] = read_jsonl(Path("o.jsonl"))
    assert line["reward"] == 1.0 and line["answer"] == GSM8K["answer"]
    for words, error in {
        "hf://openai/gsm8k?splits=test": "splits: unknown key (did you mean 'split'?)",
        "hf://": "name the dataset",
    }.items():
        status, said = run(f"+input_jsonl_fpath={words}")
        assert status == 1 and error in said


def row_map(**keys: Any) -> RowMap:
    found = find_row_map(CollectConfig(**keys), Path("none.jsonl"))
    assert found is not None
    return found


def test_a_prompt_reaches_nothing_but_the_row_and_ends_in_time() -> None:
    hostile = row_map(prompt="{{ question.__class__.__mro__ }}")
    with pytest.raises(ValueError, match="unsafe"):
        hostile.apply({"question": "x"})
    endless = row_map(
        prompt="{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    )
    with pytest.raises(ValueError, match="no answer within 1 s of CPU time"):
        endless.apply({})
    with pytest.raises(ValueError, match=r"an expression is a list: write it with"):
        row_map(prompt="{{ options }}").apply({"question": "?", "options": ["a"]})
    said = row_map(prompt="{{ question }} {{ options | join(' or ') }}").apply(
        {"question": "{{ 7 * 7 }}", "options": ["a", "b"]}
    )
    assert asked(said) == "{{ 7 * 7 }} a or b"


def test_an_expression_of_a_map_ends_in_time_and_the_next_row_is_read() -> None:
    texts = RowTexts(deadline_s=0.05)
    with pytest.raises(ValueError, match=r"no answer within 0\.05 s"):
        texts.search(r"(a|aa)+$", "a" * 200 + "b")
    assert texts.search(r"(\d)(?P<answer>\d)", "12") == "2"
    texts.close()


def test_a_template_may_stand_in_a_file_and_rows_of_a_program_take_both_keys() -> None:
    Path("ask.jinja").write_text("{{ question }}\n{# a note #}Now.")
    rows = [{"question": "2+2?", "answer": "4"}, {"question": "3+3?", "answer": "6"}]
    table = rk.collect_sync(
        rows,
        prompt="ask.jinja",
        map={"expected_answer": "answer"},
        model=lambda params: "Answer: 4",
        environment="string_match",
    ).table()
    assert [each.reward for each in table] == [1.0, 0.0]
    assert asked(next(iter(table)).line) == "2+2?\nNow."
