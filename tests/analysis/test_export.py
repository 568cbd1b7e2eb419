"""ng_export: each format has its columns, nothing is invented, and what is left out is counted."""

import fcntl
import itertools
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import as_function
from exported import TOOLS, Place, line, tool_line
from support import read_jsonl, write_jsonl

from rollout_kit.analysis.export.formats import FORMATS
from rollout_kit.errors import OutputError
from rollout_kit.store.index import Index
from rollout_kit.trajectory import GENERATION, LOG_PROBS, PROMPT, SUFFIX

command = as_function("ng_export")

BESIDE = {"reward", "task_id", "rollout_index"}
PAIR = {"chosen_reward", "rejected_reward", "margin", "rule", "task_id"}
PAIR |= {"chosen_index", "rejected_index", "chosen_scope", "rejected_scope"}
PAIR |= {"chosen_arm", "rejected_arm"}

COLUMNS = {
    "trl_sft": {"messages", "tools"} | BESIDE,
    "trl_prompt_completion": {"prompt", "completion", "tools"} | BESIDE,
    "trl_kto": {"prompt", "completion", "label"} | BESIDE,
    "trl_grpo": {"prompt", "expected_answer", "tools", "task_id"},
    "trl_dpo": {"prompt", "chosen", "rejected", "tools"} | PAIR,
    "trl_reward": {"chosen", "rejected", "tools"} | PAIR,
    "openrlhf_sft": {"input", "output"} | BESIDE,
    "openrlhf_dpo": {"prompt", "chosen", "rejected"} | PAIR,
    "openrlhf_prompts": {"input", "label", "datasource"},
    "verl_rl": {"data_source", "prompt", "ability", "reward_model", "extra_info"},
    "verl_sft": {"messages"} | BESIDE,
    "skyrl_rl": {"data_source", "prompt", "env_class", "reward_spec", "extra_info"},
    "slime": {"input", "label", "metadata", "tools"},
    "llamafactory_sft": {"conversations", "system", "tools"} | BESIDE,
    "llamafactory_kto": {"conversations", "system", "tools", "kto_tag"} | BESIDE,
    "llamafactory_dpo": {"conversations", "system", "tools", "chosen", "rejected"} | PAIR,
    "axolotl_sft": {"messages", "tools"} | BESIDE,
    "axolotl_dpo": {"messages", "chosen", "rejected"} | PAIR,
    "nemo_rl_pref": {"context", "completions"} | PAIR,
    "text_pairs": {"prompt", "chosen", "rejected"} | PAIR,
    "grouped": {"question", "gold_answer", "task_id", "agent", "trajectories"},
}

ANSWERS = [
    line(1, 0, "It is 1.", 1.0),
    line(1, 1, "It is 2.", 0.0, answer="2"),
    line(2, 0, "It is 2.", 1.0),
    line(2, 1, "It is", 0.0, cut="max_output_tokens", answer=None),
]


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(tmp_path, capsys)


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix != ".parquet":
        return read_jsonl(path)
    from pyarrow import parquet

    return parquet.read_table(path).to_pylist()


def export(place: Place, form: str, *argv: str) -> tuple[int, str, list[dict[str, Any]]]:
    suffix = "parquet" if FORMATS[form].is_parquet else "jsonl"
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    path = place.folder / f"out.{suffix}"
    source = place.folder / "rollouts.jsonl"
    words = (source, f"+format={form}", f"+output_fpath={path}", *argv)
    status, said = place.run(command, *words)
    return status, said, read(path) if path.exists() else []


@pytest.mark.parametrize("form", COLUMNS)
def test_each_format_has_the_columns_of_its_trainer(form: str, place: Place) -> None:
    place.write(ANSWERS)
    status, said, rows = export(place, form, "+drop_truncated=true")
    assert status == 0, said
    assert all(row.keys() == COLUMNS[form] for row in rows)
    is_of_rollouts = FORMATS[form].of_rollout is not None
    is_of_pairs = FORMATS[form].of_pair is not None
    assert len(rows) == (1 if is_of_pairs else 3 if is_of_rollouts else 2)
    report = json.loads((place.folder / "out_report.json").read_text())
    assert report["read"] == 4 and sum(report["files"].values()) == len(rows)
    assert report["left_out"]["drop_truncated"] == 1


def test_every_format_is_tested_here() -> None:
    assert FORMATS.keys() - COLUMNS.keys() == {
        *("trl_rollout", "parquet", "otlp", "rollouts", "atif"),
        *("huggingface", "inspect"),  # test_dataset_folder and tests/formats
    }


def test_the_right_one_is_preferred(place: Place) -> None:
    place.write(ANSWERS)
    [row] = export(place, "nemo_rl_pref")[2]
    assert row["context"][-1] == {"role": "user", "content": "How much is 1?"}
    ranked = {each["rank"]: each["completion"][0]["content"] for each in row["completions"]}
    assert ranked == {0: "It is 1.", 1: "It is 2."}
    labels = [(row["label"], row["reward"]) for row in export(place, "trl_kto")[2]]
    assert labels == [(True, 1.0), (False, 0.0), (True, 1.0), (False, 0.0)]
    [first, _] = export(place, "verl_rl")[2]
    assert first["reward_model"] == {"style": "rule", "ground_truth": "1"}
    assert first["extra_info"]["split"] == "train" and first["extra_info"]["index"] == 0


@pytest.mark.parametrize("form", ["trl_kto", "llamafactory_kto"])
def test_labels_are_counted_and_a_threshold_that_tells_nothing_apart_is_named(
    form: str, place: Place
) -> None:
    judged = ((0, 1.0), (1, 3.5), (2, 5.0))
    place.write([line(1, index, f"It is {index}.", score) for index, score in judged])
    _, said, _ = export(place, form)
    assert "labels: 3 right (reward ≥ 1), 0 wrong" in said
    assert "all labels are the same" in said and "+pass_threshold" in said
    _, said, _ = export(place, form, "+pass_threshold=3.5")
    assert "labels: 2 right (reward ≥ 3.5), 1 wrong" in said and "all labels" not in said
    report = json.loads((place.folder / "out_report.json").read_text())
    assert report["labels"] == {"right": 2, "wrong": 1, "pass_threshold": 3.5}


def test_an_item_that_is_no_object_is_left_out_of_token_sequences(place: Place) -> None:
    place.write([line(1, 0, [None], 1.0), line(1, 1, [5], 0.0)])
    status, said, _ = export(place, "trl_rollout")
    assert status == 1 and "2 (an item of its output is malformed)" in said


def test_drafts_of_killed_processes_are_removed(place: Place) -> None:
    place.write(ANSWERS)
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    names = ("out.jsonl", "out_report.json")
    left = [place.folder / f".{name}.{ended.pid}.tmp" for name in names]
    others = [
        place.folder / f".out.jsonl.{os.getppid()}.tmp",  # of a process that runs
        place.folder / f".out.jsonl.{ended.pid}",
        place.folder / ".out.jsonl.note.tmp",
        place.folder / f".other.jsonl.{ended.pid}.tmp",
    ]
    for path in [*left, *others]:
        path.write_text("draft")
    with left[0].open() as stream:  # a process of another machine writes it
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert export(place, "trl_sft")[0] == 0
        assert left[0].exists() and not left[1].exists()
    assert export(place, "trl_sft")[0] == 0
    assert not left[0].exists() and all(path.exists() for path in others)


def as_given(messages: list[Any]) -> list[Any]:
    """Messages without the nulls that Arrow puts where others have a field."""
    return [
        {name: value for name, value in message.items() if value is not None}
        for message in messages
    ]


@pytest.mark.parametrize("form", ["trl_sft", "verl_sft", "axolotl_sft", "parquet"])
def test_messages_tools_and_rewards_come_back_as_they_were(form: str, place: Place) -> None:
    arguments = [('{"item": "é"}', '{"shelf":  7}'), ('{"item": "x"}', "{bad"), ("", "")]
    place.write(
        [
            tool_line(1, index, index / 4, ("price", one), ("stock", other), said="Wait.")
            for index, (one, other) in enumerate(arguments)
        ]
    )
    _, _, rows = export(place, form)
    tools = [
        {"type": "function", "function": {n: v for n, v in tool.items() if n != "type"}}
        for tool in TOOLS
    ]
    for index, row in enumerate(rows):
        assert row["reward"] == index / 4 and json.loads(row["tools"]) == tools
        system, asked, called, first, second, answer = as_given(row["messages"])
        assert (system["role"], system["content"]) == ("system", "Be brief.")
        assert (asked["role"], asked["content"]) == ("user", "How much is 1?")
        assert called["content"] == "Wait." and called["reasoning_content"] == "I look it up."
        functions = [call["function"] for call in called["tool_calls"]]
        one, other = arguments[index]
        assert functions == [
            {"name": "price", "arguments": one},
            {"name": "stock", "arguments": other},
        ]
        ids = [call["id"] for call in called["tool_calls"]]
        assert [first["tool_call_id"], second["tool_call_id"]] == ids
        assert [first["content"], second["content"]] == ["0", "1"]
        assert answer["content"] == "It is 2." and "tool_calls" not in answer
    assert len(rows) == 3


FORM_OF_TOOLS = {
    **dict.fromkeys(("trl_sft", "trl_prompt_completion", "trl_grpo", "trl_dpo"), "chat text"),
    **dict.fromkeys(("trl_reward", "verl_sft", "axolotl_sft", "parquet"), "chat text"),
    **dict.fromkeys(("verl_rl", "skyrl_rl"), "extra"),
    **dict.fromkeys(("llamafactory_sft", "llamafactory_kto", "llamafactory_dpo"), "functions"),
    "slime": "chat",
    "otlp": "trace",
    "atif": "agent",
    "rollouts": "response",
}
"""Formats that have a place for tools → how they stand there."""

WITHOUT_TOOLS = FORMATS.keys() - FORM_OF_TOOLS.keys() - {"trl_rollout", "huggingface", "inspect"}
"""The token ids of `trl_rollout` hold them."""


def tools_in(row: dict[str, Any], form: str) -> Any:
    if form == "trace":
        spans = row["resourceSpans"][0]["scopeSpans"][0]["spans"]
        found = {each["key"]: each["value"] for each in spans[0]["attributes"]}
        return json.loads(found["gen_ai.tool.definitions"]["stringValue"])
    if form == "agent":
        return row["agent"].get("tool_definitions")
    if form == "response":
        return row["response"]["tools"]
    given = row["extra_info"]["tools"] if form == "extra" else row["tools"]
    return given if form == "chat" else json.loads(given)


def lines_with_tools(own: list[Any], sent: list[Any]) -> list[Any]:
    """Rollouts of two tasks; the rows have the tools `own`, and the requests had `sent`."""
    lines = []
    for task, index in itertools.product((1, 2), (0, 1)):
        each = line(task, index, f"It is {index}.", float(index), params={"tools": own})
        if not own:
            del each["responses_create_params"]["tools"]
        each["response"]["tools"] = sent
        each["rollout"] |= {"started_at": "2026-11-26T20:00:00.000Z", "duration_s": 1.0}
        lines.append(each)
    return lines


@pytest.mark.parametrize("of_row", [0, 1, 2])
@pytest.mark.parametrize("form", FORM_OF_TOOLS)
def test_tools_of_the_request_are_in_every_row(form: str, of_row: int, place: Place) -> None:
    """All, some or none of them come from the row; the resources server gives the others."""
    place.write(lines_with_tools(TOOLS[:of_row], TOOLS))
    status, said, rows = export(place, form, *(["+otel.content=true"] if form == "otlp" else []))
    assert status == 0 and rows and "tools:" not in said
    functions = [{k: v for k, v in tool.items() if k != "type"} for tool in TOOLS]
    for row in rows:
        found = tools_in(row, FORM_OF_TOOLS[form])
        if FORM_OF_TOOLS[form] in ("trace", "response"):
            assert found == TOOLS
        elif FORM_OF_TOOLS[form] == "functions":
            assert found == functions
        else:
            assert found == [{"type": "function", "function": each} for each in functions]


@pytest.mark.parametrize("form", sorted(WITHOUT_TOOLS))
def test_a_format_without_a_place_for_tools_says_so_in_one_line(form: str, place: Place) -> None:
    place.write(lines_with_tools([], TOOLS))
    status, said, rows = export(place, form)
    assert status == 0
    [told] = [each for each in said.splitlines() if each.startswith("  tools:")]
    what = "pair" if FORMATS[form].of_pair else "row"
    number = f"{len(rows)} {what}{'s' * (len(rows) > 1)}"
    assert told == f"  tools: left out of {number}, as the format {form} has no place for them"
    report = json.loads((place.folder / "out_report.json").read_text())
    assert report["without_tools"] == len(rows)
    place.write(ANSWERS)
    assert "tools:" not in export(place, form)[1]


def test_arguments_are_parsed_if_asked_for(place: Place) -> None:
    place.write(
        [tool_line(1, 0, 1.0, ("price", '{"item": 1}')), tool_line(1, 1, 1.0, ("price", "{"))]
    )
    _, said, [row] = export(place, "trl_sft", "+arguments=object")
    [call] = row["messages"][2]["tool_calls"]
    assert call["function"]["arguments"] == {"item": 1}
    assert "left out: 1 (the arguments of a tool call are not a JSON object)" in said


@pytest.mark.parametrize(
    ("argv", "kept"),
    [
        ([], ["0", "1", "2", "3"]),
        (["+min_reward=0.5"], ["0", "2"]),
        (["+max_reward=0.5"], ["1", "2", "3"]),
        (["+where=reward > 0 and 'three' in text"], ["2"]),
        (["+where=extracted_answer == '7'"], ["0", "1", "2", "3"]),
        (["+top_k_per_group=1"], ["0"]),
        (["+top_k_per_group=2"], ["0", "2"]),
        (["+dedupe=true"], ["0", "1", "2"]),
        (["+drop_truncated=true"], ["0", "1", "2"]),
        (["+reward_key=style.grace", "+min_reward=2"], ["1"]),
        (["+top_k_per_group=1", "+reward_key=style.grace"], ["1"]),
    ],
)
def test_filters(argv: list[str], kept: list[str], place: Place) -> None:
    texts = ["one", "two", "three", "two"]
    given = zip(texts, [1.0, 0.0, 0.5, 0.0], [None, None, None, "max_output_tokens"], strict=True)
    place.write(
        line(7, at, text, reward, cut=cut, style={"grace": 3 if at == 1 else 1})
        for at, (text, reward, cut) in enumerate(given)
    )
    _, said, rows = export(place, "trl_sft", *argv)
    assert [str(row["rollout_index"]) for row in rows] == kept, said


def test_a_task_whose_rollouts_are_all_alike_teaches_nothing(place: Place) -> None:
    place.write([*ANSWERS, line(3, 0, "a", 1.0), line(3, 1, "b", 1.0), line(4, 0, "c", 1.0)])
    _, said, rows = export(place, "trl_grpo", "+drop_zero_variance=true")
    assert [row["expected_answer"] for row in rows] == ["1", "2"]
    assert "left out: 3 (drop_zero_variance)" in said


def test_a_task_is_in_one_file_wherever_its_rollouts_are(place: Place) -> None:
    lines = [line(task, index, "x", 1.0) for task in range(60) for index in range(2)]
    found = []
    for given in (lines, lines[::-1]):
        place.write(given)
        _, said, rows = export(place, "trl_sft", "+test_fraction=0.25")
        test = read_jsonl(place.folder / "out_test.jsonl")
        parts = [sorted({row["task_id"] for row in part}) for part in (rows, test)]
        found.append(parts)
        assert len(rows) + len(test) == 120 and not set(parts[0]) & set(parts[1])
        assert 5 < len(parts[1]) < 25 and f"{len(test)} rows" in said
    assert found[0] == found[1]
    _, _, rows = export(place, "trl_sft", "+test_fraction=0.25", "+split_seed=1")
    assert sorted({row["task_id"] for row in rows}) != found[0][0]


def with_tokens(text: str, *turns: tuple[str, list[int], list[int]]) -> list[Any]:
    items = []
    for name, prompt, sampled in turns:
        [item] = line(1, 0, text, 1.0)["response"]["output"]
        log_probs = [-0.5] * len(sampled)
        items.append({**item, name: prompt, GENERATION: sampled, LOG_PROBS: log_probs})
    return items


def test_token_ids_are_those_that_were_sampled(place: Place) -> None:
    items = with_tokens("x", (PROMPT, [1, 2], [3, 9]), (SUFFIX, [4], [5, 9]))
    place.write([line(1, 0, items, 1.0), line(1, 1, "no ids", 0.0), line(1, 2, "none", None)])
    _, said, [row] = export(place, "trl_rollout")
    assert row["input_ids"] == [1, 2, 3, 9, 4, 5, 9]
    assert row["completion_mask"] == [0, 0, 1, 1, 0, 1, 1], "the tokens that end a turn are trained"
    assert row["old_log_probs"] == [0, 0, -0.5, -0.5, 0, -0.5, -0.5]
    assert row["advantage"] == pytest.approx(1.0), "the baseline is that of the whole group"
    assert row["model_version"] is None
    assert "left out: 1 (without token ids)" in said and "1 (without a reward)" in said


@pytest.mark.parametrize(
    ("method", "expected"),
    [("grpo", [1.0, -1.0]), ("dr_grpo", [0.5, -0.5]), ("rloo", [1.0, -1.0])],
)
def test_any_format_of_rollouts_can_have_advantages(
    place: Place, method: str, expected: list[float]
) -> None:
    """The baseline is that of all verified rollouts, also those that a filter leaves out."""
    place.write([line(1, 0, "a", 1.0), line(1, 1, "b", 0.0), line(1, 2, "c", None)])
    _, said, rows = export(place, "trl_sft", f"+advantage={method}")
    assert [row["advantage"] for row in rows] == pytest.approx(expected)
    assert "left out: 1 (without a reward)" in said
    _, _, [best] = export(place, "trl_sft", f"+advantage={method}", "+min_reward=1")
    assert best["advantage"] == pytest.approx(expected[0])
    status, said, _ = export(place, "trl_grpo", "+advantage=rloo")
    assert status == 1 and "format=trl_grpo has no rows of single rollouts" in said


def test_where_there_are_no_token_ids_none_are_invented(place: Place) -> None:
    place.write(ANSWERS)
    status, said, rows = export(place, "trl_rollout")
    assert (status, rows) == (1, [])
    assert "nothing was written: of 4 rollouts, no rollout is left" in said
    assert "4 (without token ids)" in said
    short = with_tokens("x", (PROMPT, [1], [2, 3]))
    short[0][LOG_PROBS].pop()
    place.write([line(1, 0, short, 1.0)])
    status, said, _ = export(place, "trl_rollout")
    assert status == 1 and "without a log-prob for each sampled token" in said


def test_what_llama_factory_would_drop_is_named(place: Place) -> None:
    calls = (("price", '{"item": "a"}'), ("stock", '{"shelf": 1}'))
    twice = [*line(1, 0, "a", 1.0)["response"]["output"], {"role": "user", "content": "b"}]
    place.write(
        [
            tool_line(1, 0, 1.0, *calls),
            tool_line(1, 1, 1.0, *calls, said="Let me see."),
            line(1, 2, twice, 1.0),
            line(2, 0, "It is 2.", 1.0, params={"instructions": None}),
        ]
    )
    (place.folder / "dataset_info.json").write_text('{"mine": {"file_name": "x.json"}}')
    _, said, rows = export(place, "llamafactory_sft")
    sides = [turn["from"] for turn in rows[0]["conversations"]]
    assert sides == ["human", "function_call", "observation", "gpt"]
    _, called, observed, _ = [turn["value"] for turn in rows[0]["conversations"]]
    thought, _, called = called.partition("</think>\n\n")
    assert "I look it up." in thought and observed == "0\n1"
    assert [call["arguments"] for call in json.loads(called)] == [{"item": "a"}, {"shelf": 1}]
    assert rows[0]["system"] == "Be brief." and rows[1]["system"] == ""
    assert json.loads(rows[0]["tools"])[0]["name"] == "price" and rows[1]["tools"] == ""
    assert "1 (it has text beside a tool call)" in said and len(rows) == 2
    assert "1 (its last turn is not the model's)" in said
    info = json.loads((place.folder / "dataset_info.json").read_text())
    assert info["mine"] == {"file_name": "x.json"}
    assert info["out"]["columns"]["messages"] == "conversations" and "ranking" not in info["out"]


def test_axolotl_s_yaml_names_the_fields(place: Place) -> None:
    place.write(ANSWERS)
    export(place, "axolotl_dpo")
    found = yaml.safe_load((place.folder / "out.yaml").read_text())
    [data] = found["datasets"]
    assert found["rl"] == "dpo" and data["type"] == "chat_template.default"
    assert data["field_rejected"] == "rejected" and Path(data["path"]).name == "out.jsonl"
    place.write([line(task, 0, "x", 1.0) for task in range(20)])
    export(place, "axolotl_sft", "+test_fraction=0.5")
    found = yaml.safe_load((place.folder / "out.yaml").read_text())
    assert Path(found["test_datasets"][0]["path"]).name == "out_test.jsonl"
    assert found["datasets"][0]["roles_to_train"] == ["assistant"] and "rl" not in found


def test_the_grouped_view_is_read_back_as_rollouts(place: Place) -> None:
    place.write([*ANSWERS, tool_line(3, 0, 0.5)])
    _, _, groups = export(place, "grouped")
    assert groups[0]["question"] == "How much is 1?" and groups[0]["gold_answer"] == "1"
    right, wrong = groups[0]["trajectories"]
    assert right["full_text"] == right["reasoning"] == "It is 1." and right["num_tokens"] == 5
    assert (right["answer"], right["correct"]) == ("1", True)
    assert (wrong["answer"], wrong["correct"]) == ("2", False)
    assert groups[2]["trajectories"][0]["reasoning"] == "I look it up."
    source, back = place.folder / "out.jsonl", place.folder / "back.jsonl"
    words = (source, "+format=rollouts", f"+output_fpath={back}")
    assert place.run(command, *words)[0] == 0
    lines = read_jsonl(back)
    assert [each["reward"] for each in lines] == [1.0, 0.0, 1.0, 0.0, 0.5]
    assert all("usage" not in each for each in lines), "a count of tokens is not invented"
    again = place.folder / "again.jsonl"
    place.run(command, back, "+format=grouped", f"+output_fpath={again}")
    assert read_jsonl(again) == groups
    place.write(groups, "rollouts.jsonl")
    assert len(export(place, "trl_dpo")[2]) == 1


def test_a_foreign_grouped_file_is_read(place: Place) -> None:
    answers = [{"full_text": "#### 4", "answer": "4", "reward": 1.2, "arm_name": "direct"}]
    place.write([{"question": "2 + 2?", "gold_answer": "#### 4", "trajectories": answers}])
    _, _, [row] = export(place, "rollouts")
    assert row["reward"] == 1.2 and row["expected_answer"] == "#### 4"
    assert row["arm_name"] == "direct" and row["extracted_answer"] == "4"
    place.write([{"question": "2 + 2?", "trajectories": [{"answer": "4"}]}])
    status, said, _ = export(place, "rollouts")
    assert status == 1 and "rollouts.jsonl:1: trajectory 1 has no full_text" in said


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], "choose a format"),
        (["+format=trl_stf"], "did you mean 'trl_sft'"),
        (["+format=trl_sft"], "name the file to write"),
        (["+format=trl_sft", "+output_fpath=x.csv"], "the name must end in .jsonl"),
        (["+format=verl_rl", "+output_fpath=x.jsonl"], "the name must end in .parquet"),
        (["+format=trl_sft", "+output_fpath=rollouts.jsonl"], "is also an input"),
        (["+format=trl_sft", "+output_fpath=x.jsonl", "+where=rewrad > 1"], "no rollout has"),
        (["+format=trl_sft", "+output_fpath=x.jsonl", "+where=reward >"], "is no filter"),
        (["+format=trl_sft", "+output_fpath=x.jsonl", "+reward_key=no.way"], "has a number"),
        (["+format=trl_sft", "+output_fpath=x.jsonl", "+min_reward=2"], "4 (min_reward)"),
        (["+format=trl_dpo", "+output_fpath=x.jsonl", "+max_reward=0"], "no pair is left"),
        (["+format=trl_sft", "+output_fpath=rollouts.jsonl/x.jsonl"], "cannot write"),
        (["+format=verl_sft", "+output_fpath=x.parquet", "+arguments=object"], "use text"),
        (["", "+format=trl_sft", "+output_fpath=x.jsonl"], "names of files is empty"),
        (["+format=trl_sft", "+output_fpath=x.jsonl", "+config_paths=[x.yaml]"], "it would be ign"),
    ],
)
def test_one_line_says_what_is_wrong(
    argv: list[str], expected: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.folder)
    place.write(ANSWERS)
    status, said = place.run(command, "rollouts.jsonl", *argv)
    assert status == 1 and expected in said and "Traceback" not in said
    assert [path.name for path in place.folder.iterdir()] == ["rollouts.jsonl"], "nothing is left"


def test_an_input_that_is_removed_while_it_is_read_is_named(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, count = place.write(ANSWERS), Index.count_others

    def remove_and_count(self: Index) -> Any:
        path.unlink()
        return count(self)

    monkeypatch.setattr(Index, "count_others", remove_and_count)
    words = ("+format=trl_sft", "+min_reward=1", f"+output_fpath={place.folder}/x.jsonl")
    status, said = place.run(command, path, *words)
    assert status == 1 and said == f"error: {path}: No such file or directory\n"


def test_a_prompt_needs_no_answer(place: Place) -> None:
    place.write([line(1, 0, [], 0.0), line(2, 0, [{"type": "web_search_call"}], 0.0)])
    assert len(export(place, "openrlhf_prompts")[2]) == 2
    status, said, _ = export(place, "trl_sft")
    assert status == 1 and "1 (its response is empty)" in said and "'web_search_call' item" in said


@pytest.mark.parametrize(
    "params", [{"input": 5}, {"input": [5]}, {"input": [{"content": [3]}]}, {"tools": [None]}]
)
def test_malformed_items_are_counted(params: Any, place: Place) -> None:
    place.write([line(1, 0, "x", 1.0, params=params), line(2, 0, "y", 1.0)])
    _, said, rows = export(place, "trl_sft")
    assert len(rows) == 1 and "left out: 1 (" in said


def test_a_malformed_item_has_no_trace_and_is_counted(place: Place) -> None:
    odd = tool_line(1, 0, 1.0, ("price", "{}"))
    for item in odd["response"]["output"]:
        item["call_id"] = ["c"]
    lines = [odd, line(2, 0, "y", 1.0)]
    for each in lines:
        each["rollout"]["started_at"] = "2026-01-01T00:00:00+00:00"
    place.write(lines)
    _, said, rows = export(place, "otlp")
    assert len(rows) == 1 and "left out: 1 (an item of its input or output is malformed)" in said


@pytest.mark.parametrize("room", [600, 5000])
def test_without_room_for_all_files_none_of_them_appears_or_is_replaced(
    place: Place, room: int
) -> None:
    """There is room for the file beside the export, or for the report, and not for the export."""
    place.write([line(task, 0, "x" * 200, 1.0) for task in range(40)])
    source, out = place.folder / "rollouts.jsonl", place.folder / "out"
    words = (source, "+format=llamafactory_sft", f"+output_fpath={out}/x.jsonl")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        status, said = place.run(command, *words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert status == 1 and f"cannot write {out}/x.jsonl: File too large" in said
    assert not list(out.iterdir())


def test_an_export_whose_report_has_no_room_can_be_made_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write(ANSWERS)
    words = ("+format=trl_sft", f"+output_fpath={place.folder}/x.jsonl")
    with monkeypatch.context() as full:

        def refuse(path: Path, content: object) -> None:
            raise OutputError(f"cannot write {path}: No space left on device")

        full.setattr("rollout_kit.commands.export.write_json", refuse)
        assert place.run(command, place.folder / "rollouts.jsonl", *words)[0] == 1
    assert place.run(command, place.folder / "rollouts.jsonl", *words)[0] == 0


def test_parquet_without_its_package_says_what_to_install(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write(ANSWERS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = place.folder / "x.parquet"
    words = (place.folder / "rollouts.jsonl", "+format=verl_rl", f"+output_fpath={path}")
    status, said = place.run(command, *words)
    assert status == 1 and "Parquet needs pyarrow:" in said and "install" in said


def test_rows_of_many_batches_share_one_schema(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr("rollout_kit.analysis.export.row_files.BATCH", 2)
    place.write(
        [
            *(line(task, 0, "x", None) for task in range(5)),
            tool_line(6, 0, 1.0, ("price", "{}")),
            line(7, 0, "y", 1),
        ]
    )
    _, said, rows = export(place, "parquet")
    assert [row["reward"] for row in rows] == [None] * 5 + [1.0, 1.0], said
    assert rows[5]["messages"][2]["tool_calls"][0]["function"]["name"] == "price"


def test_datasets_loads_what_trl_is_given(place: Place) -> None:
    datasets = pytest.importorskip("datasets")
    place.write([tool_line(1, 0, 1.0, ("price", '{"item": "a"}')), line(2, 0, "It is 2.", 0.0)])
    for form in ("trl_sft", "trl_prompt_completion", "trl_kto", "llamafactory_sft", "verl_sft"):
        _, _, rows = export(place, form)
        suffix = "parquet" if FORMATS[form].is_parquet else "jsonl"
        kind = "parquet" if suffix == "parquet" else "json"
        loaded = datasets.load_dataset(
            kind,
            data_files=str(place.folder / f"out.{suffix}"),
            split="train",
            cache_dir=str(place.folder / "cache" / form),
        )
        assert len(loaded) == len(rows) and set(loaded.column_names) == set(rows[0])
        assert [row["reward"] for row in loaded] == [1.0, 0.0]


def test_no_file_is_replaced_that_no_export_wrote(place: Place) -> None:
    place.write(ANSWERS)
    held = {
        place.folder / name: b"a file of the user\n" for name in ("tasks.jsonl", "a_test.jsonl")
    }
    held[place.folder / "rollouts.jsonl"] = (place.folder / "rollouts.jsonl").read_bytes()
    for path, content in held.items():
        path.write_bytes(content)
    for name, *more in (("rollouts",), ("tasks",), ("a", "+test_fraction=0.5")):
        words = (place.folder, "+format=trl_sft", f"+output_fpath={place.folder / name}.jsonl")
        status, said = place.run(command, *words, *more)
        assert status == 1 and "exists, and is no earlier export: remove it" in said
    assert {path: path.read_bytes() for path in held} == held
    assert not (place.folder / "a.jsonl").exists()


def test_an_export_is_replaced_by_the_next_one_until_it_is_collected_into(place: Place) -> None:
    place.write(ANSWERS)
    assert len(export(place, "trl_sft")[2]) == 4
    assert export(place, "parquet")[0] == 0, "both share a report"
    assert len(export(place, "rollouts", "+min_reward=1")[2]) == 2
    write_jsonl(place.folder / "out.d/run.json", [{}])
    assert export(place, "rollouts")[0] == 1
    assert len(read(place.folder / "out.jsonl")) == 2


def test_what_lies_beside_an_export_is_kept(place: Place) -> None:
    place.write(ANSWERS)
    for form, name, content in (
        ("axolotl_sft", "out.yaml", "base_model: mine\ndatasets: []\n"),
        ("llamafactory_sft", "dataset_info.json", "[]"),
        ("llamafactory_sft", "dataset_info.json", "{"),
    ):
        (path := place.folder / name).write_text(content)
        status, said, rows = export(place, form)
        assert status == 1 and name in said and "move it away" in said
        assert not rows and path.read_text() == content


def test_each_answer_of_a_foreign_grouped_file_is_read_or_refused(place: Place) -> None:
    odd = {"kind": "x", "schema": 9, "rollout": 3, "response": 4, "agent_ref": 5, "usage": []}
    answers = [{"full_text": "1", "reward": 1, **odd}, {"full_text": "2", "rollout_index": -4}]
    more = [{"full_text": "3", "reward": 0, "rollout_index": True}]
    question = {"question": "2 + 2?", "gold_answer": 4}
    place.write([{**question, "trajectories": answers}, {**question, "trajectories": more}])
    status, said, rows = export(place, "rollouts")
    assert status == 0, said
    assert [row["rollout"]["rollout_index"] for row in rows] == [0, 1, 2], "one task, in two lines"
    assert rows[0]["task_fields"] == odd and rows[0]["kind"] == "rollout"
    for wrong in ({"reward": "1"}, {"individual_reward": [1]}, {"components": [3]}):
        place.write([{**question, "trajectories": [answers[0], {**answers[1], **wrong}]}])
        status, said, _ = export(place, "rollouts")
        assert status == 1 and f"rollouts.jsonl:1: trajectory 2: {min(wrong)} cannot be" in said
    (place.folder / "rollouts.jsonl").write_text(
        '{"question": "a", "trajectories": [{"full_text": "1", "reward": NaN}]}\n'
        '{"question": "b", "trajectories": [{"full_text": "1", "reward": 1}]}\n'
    )
    assert (
        "rollouts.jsonl:1: no line of grouped answers, or no JSON" in export(place, "rollouts")[1]
    )


def test_a_label_that_no_row_has_is_refused(place: Place) -> None:
    place.write(ANSWERS)
    for form in ("openrlhf_prompts", "grouped"):
        status, said, rows = export(place, form, "+label_key=expected_anwser")
        assert status == 1 and not rows
        assert "label_key=expected_anwser: no row has it (did you mean 'expected_answer'?)" in said
    assert export(place, "trl_grpo", "+label_key=expected_answer")[0] == 0


def test_the_report_on_rows_of_tasks_is_about_all_of_their_rollouts(place: Place) -> None:
    place.write(ANSWERS)
    assert len(export(place, "verl_rl")[2]) == 2
    assert json.loads((place.folder / "out_report.json").read_text())["reward"]["mean"] == 0.5


def test_a_rollout_whose_row_has_trajectories_is_no_group(place: Place) -> None:
    place.write([line(1, 0, "It is 1.", 1.0, trajectories=["a row's own"])])
    status, said, rows = export(place, "grouped")
    assert status == 0, said
    assert [each["full_text"] for each in rows[0]["trajectories"]] == ["It is 1."]


@pytest.mark.parametrize("form", ["trl_sft", "llamafactory_sft", "verl_sft"])
@pytest.mark.parametrize("message", [{"content": "b"}, {"role": None, "content": "b"}])
def test_a_message_without_a_role_is_no_chat_message(
    form: str, message: dict[str, Any], place: Place
) -> None:
    asked = {"input": [message, {"role": "user", "content": "a"}]}
    place.write([line(1, 0, "It is 1.", 1.0, params=asked), line(2, 0, "It is 2.", 1.0)])
    _, said, rows = export(place, form)
    assert len(rows) == 1 and "left out: 1 (a message of its input or output has no role)" in said
