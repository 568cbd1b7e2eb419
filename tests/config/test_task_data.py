"""Rows are checked with the `task_data.py` of their server, in the server's interpreter."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from claims import assert_prints
from endpoint import Endpoint
from support import write_jsonl
from test_nemo_gym import LETTERS, collect, collect_rollouts, model, place, policy, says

from rollout_kit.errors import ConfigError
from rollout_kit.serving.nemo_gym.checkout import Gym
from rollout_kit.serving.nemo_gym.row_schema import Schema
from rollout_kit.serving.nemo_gym.rows import flatten
from rollout_kit.serving.nemo_gym.schema_process import SchemaProcess

__all__ = ["model", "place"]

SCHEMA = """
import os
from typing import Annotated, Literal, Union
from pydantic import BaseModel, ConfigDict, Field

with open(os.path.join(os.path.dirname(__file__), "imported_by"), "a") as file:
    file.write(f"{os.getpid()}\\n")

class Letter(BaseModel):
    model_config = ConfigDict(extra="allow")
    kind: Literal["letter"] = "letter"
    expected_answer: str
    level: int = Field(1, json_schema_extra={"legacy_location": "verifier_metadata"})

class Word(BaseModel):
    model_config = ConfigDict(extra="allow")
    kind: Literal["word"]
    expected_answer: str
    words: list[str]

TaskData = Union[Letter, Word]
"""

GOOD: list[dict[str, Any]] = [
    says("a", expected_answer="a", verifier_metadata={"level": 2}),
    says("b", verifier_metadata={"expected_answer": "b"}),
    says("c", task_data={"expected_answer": "c", "level": 3}),
    {
        "task_id": {"taskset": "t", "task_id": "1"},
        "task_input": says("d", expected_answer="d", kind="word", words=["d"]),
    },
]
BAD = [
    (says("a"), "expected_answer", "Field required"),
    (
        says("a", expected_answer="a", level=2),
        "level",
        "the server reads it from verifier_metadata",
    ),
    (
        says("a", expected_answer="a", verifier_metadata={"expected_answer": "b"}),
        "expected_answer",
        "has two values",
    ),
    (says("a", expected_answer="a", task_data=3), "", ""),
    (
        {"task_id": {"taskset": "t"}, "task_input": "no"},
        "task_input",
        "must be an object, not str",
    ),
    (
        {"task_id": {"taskset": "t"}, "task_input": {"task_data": [1]}},
        "task_input.task_data",
        "must be an object, not list",
    ),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "task_data.py").write_text(SCHEMA)
    return tmp_path


def test_rows_in_every_form_fit_a_flat_schema(folder: Path) -> None:
    assert Schema(str(folder)).check(GOOD) == {"problems": [], "unknown": {}}


@pytest.mark.parametrize(("row", "field", "reason"), BAD)
def test_a_row_that_breaks_the_schema_is_named_with_its_field(
    folder: Path, row: dict[str, Any], field: str, reason: str
) -> None:
    found = Schema(str(folder)).check([*GOOD, row])
    if not reason:  # an undeclared field that the schema allows
        assert found == {"problems": [], "unknown": {"task_data": 1}}
        return
    assert [each[0] for each in found["problems"]] == [len(GOOD)] * len(found["problems"])
    named = [(name, why) for _, name, why in found["problems"]]
    assert any(name.split(".")[-1] == field.split(".")[-1] and reason in why for name, why in named)
    if field.startswith("task_input"):
        with pytest.raises(ValueError, match=f"{field} {reason}"):
            flatten(row)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("TaskData = 3", "PydanticSchemaGenerationError"),
        ("x = 1", "exports no TaskData"),
        ("(", ""),
    ],
)
def test_a_schema_that_cannot_be_used_is_no_fault_of_the_rows(
    tmp_path: Path, text: str, reason: str
) -> None:
    (tmp_path / "task_data.py").write_text(text)
    found = Schema(str(tmp_path)).check(GOOD)
    assert found["problems"] == [] and str(tmp_path) in found["error"]
    assert reason in found["error"]


def put_schema(place: Path) -> Path:
    path = place.parent / "Gym/resources_servers/letters/task_data.py"
    path.write_text(SCHEMA)
    return path


def refuse(place: Path, model: Endpoint, rows: list[Any], *words: str) -> None:
    write_jsonl(place / "tasks.jsonl", rows)
    openai = "responses_api_models/openai_model/configs/openai_model.yaml"
    with pytest.raises(SystemExit) as ended:
        collect_rollouts(
            [
                f"+config_paths=[{LETTERS},{openai}]",
                "+nemo_gym=../Gym",
                f"+nemo_gym_python={sys.executable}",
                "+input_jsonl_fpath=tasks.jsonl",
                "+output_jsonl_fpath=out/rollouts.jsonl",
                *policy(model),
                *words,
            ]
        )
    assert ended.value.code == 1


@pytest.mark.parametrize("words", [[], ["+dry_run=true"]])
def test_nothing_is_sent_when_a_row_breaks_the_schema(
    place: Path, model: Endpoint, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    path = put_schema(place)
    rows = [*GOOD[:2], {"no": "task"}, says("x", expected_answer=4, words="none")]
    refuse(place, model, rows, *words)
    said = capsys.readouterr().err
    assert "tasks.jsonl: 1 of 3 rows for 'letters' break the schema" in said
    assert "tasks.jsonl:4: Letter.expected_answer: Input should be a valid string" in said
    assert "+task_data_validation=warn" in said
    assert_prints("docs/nemo-gym.md", "error: tasks.jsonl: 1 of", said.replace(f"{place}/", ""))
    assert model.requests == []
    assert not (place / "out/rollouts.jsonl").exists()
    assert str(os.getpid()) not in path.with_name("imported_by").read_text().split()


def test_a_warning_sends_them_and_off_checks_none(
    place: Path, model: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    path = put_schema(place)
    rows = [says("a", expected_answer="a", colour="red"), says("b", expected_answer="b", level=2)]
    found = collect(place, model, LETTERS, rows, "+task_data_validation=warn")
    assert len(found) == 2
    said = "".join(capsys.readouterr())
    assert "tasks.jsonl: 1 of 2 rows" in said and "tasks.jsonl:2: level" in said
    assert "does not declare: colour (1 row)" in said
    imported_by = path.with_name("imported_by")
    imported_by.unlink()
    collect(place, model, LETTERS, [says("c", expected_answer=1)], "+task_data_validation=off")
    assert not imported_by.exists()


def test_one_process_checks_many_rows_and_its_end_is_an_error(place: Path) -> None:
    put_schema(place)
    server = Gym(place.parent / "Gym", place).find("resources_servers", "letters")
    assert server is not None
    process = SchemaProcess(server, sys.executable)
    try:
        many = [says("a", expected_answer="a")] * 4_999 + [says("a")]
        for _ in range(3):
            assert {each[0] for each in process.check(many)["problems"]} == {4_999}
        assert len((server.folder / "imported_by").read_text().split()) == 1
        process._process.kill()
        with pytest.raises(ConfigError, match="the process that checks rows with it ended"):
            process.check([{}])
    finally:
        process.close()
