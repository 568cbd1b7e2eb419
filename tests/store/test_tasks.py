"""Reading tasks: identity by content, errors by line, any size, any of the formats."""

import gzip
import io
import json
import os
import threading
from pathlib import Path
from typing import Any

import backports.zstd as zstd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import row, write_jsonl

from rollout_kit.errors import ConfigError
from rollout_kit.serving.endpoints.params import merge
from rollout_kit.store.arms.template import Prompt
from rollout_kit.store.files import OutputPaths, check_apart
from rollout_kit.store.input import input_file
from rollout_kit.store.lines import Malformed
from rollout_kit.store.tasks import TaskReader, task_id_of
from rollout_kit.types import Task

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(), each, max_size=3),
    max_leaves=8,
)


def reader(path: Path, **more: Any) -> TaskReader:
    settings = {"agents": ["agent"], "agent_name": "agent", **more}
    return TaskReader(path=path, default_params={}, override_params={}, **settings)


def tasks_in(path: Path, **more: Any) -> list[Task]:
    return [task for task in reader(path, **more).read() if isinstance(task, Task)]


def malformed_in(path: Path, **more: Any) -> list[Malformed]:
    return [task for task in reader(path, **more).read() if isinstance(task, Malformed)]


@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_identity_is_content_and_neither_order_nor_spacing_nor_bookkeeping(fields: dict) -> None:
    turned = dict(reversed(fields.items()))
    spaced = json.loads(json.dumps(fields, indent=3))
    marked = {**fields, "_ng_task_index": 3, "_ng_rollout_id": "x", "agent_ref": {"name": "y"}}
    unmarked = {key: value for key, value in fields.items() if not key.startswith("_ng_")}
    unmarked.pop("agent_ref", None)
    first = task_id_of(unmarked)
    assert len(first) == 16
    assert first == task_id_of(turned) == task_id_of(spaced) == task_id_of({**unmarked, **{}})
    assert task_id_of({**unmarked, "_ng_task_index": 3}) == first
    assert task_id_of(marked) == first


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object but list"),
        ("{}", "no responses_create_params object"),
        ('{"responses_create_params": 5}', "no responses_create_params object"),
        ('{"responses_create_params": {}}', "has no input"),
        ('{"responses_create_params": {"input": 5}}', "input: expected text or a list"),
        ('{"responses_create_params": {"messages": []}}', "messages: the Responses API calls this"),
        ("\x00\xff", "not JSON"),
        ('{"responses_create_params": {"input": NaN}}', "not JSON"),
    ],
)
def test_a_line_that_is_no_task_is_named_and_the_others_are_read(
    tmp_path: Path, line: str, message: str
) -> None:
    path = write_jsonl(tmp_path / "tasks.jsonl", [row("a"), line, "", row("b")])
    [found] = malformed_in(path)
    assert found.line == 2 and message in found.message
    assert [task.line for task in tasks_in(path)] == [1, 4]


def test_a_row_s_agent_must_run_here(tmp_path: Path) -> None:
    rows = [row("a", agent_ref={"name": "agent"}), row("b", agent_ref={"name": "agnet"}), row("c")]
    path = write_jsonl(tmp_path / "tasks.jsonl", rows)
    wrong, none = malformed_in(path, agent_name=None)
    assert "(did you mean 'agent'?)" in wrong.message and "+agent_name" in none.message
    assert [task.agent for task in tasks_in(path)] == ["agent"] * 3


def test_gz_zst_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf" + (json.dumps(row("a")) + "\n" + json.dumps(row("b"))).encode()
    (tmp_path / "plain.jsonl").write_bytes(text)
    (tmp_path / "tasks.jsonl.gz").write_bytes(gzip.compress(text))
    (tmp_path / "tasks.jsonl.zst").write_bytes(zstd.compress(text))
    for name in ("plain.jsonl", "tasks.jsonl.gz", "tasks.jsonl.zst"):
        assert len(tasks_in(tmp_path / name)) == 2, name


@pytest.mark.parametrize("name", ["tasks.jsonl.gz", "tasks.jsonl.zst"])
def test_a_cut_archive_is_an_error_that_says_where(tmp_path: Path, name: str) -> None:
    text = "".join(json.dumps(row(f"{n * 7919:x}")) + "\n" for n in range(2000)).encode()
    packed = gzip.compress(text) if name.endswith("gz") else zstd.compress(text)
    (tmp_path / name).write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ConfigError, match="cannot be read"):
        tasks_in(tmp_path / name)


@pytest.mark.parametrize("name", ["tasks.jsonl.gz", "tasks.jsonl.zst"])
def test_an_archive_that_is_none_is_an_error_that_says_so(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"no archive at all\n" * 10)
    with pytest.raises(ConfigError, match="cannot be read"):
        tasks_in(tmp_path / name)


def test_a_pipe_can_be_read_twice_too(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=['{"a": 1}\n'], daemon=True)
    writer.start()
    with input_file(str(pipe)) as path:
        assert path.read_text() == path.read_text() == '{"a": 1}\n'


def test_a_missing_file_suggests_its_neighbour(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "tasks.jsonl", [])
    with pytest.raises(ConfigError, match=r"did you mean 'tasks\.jsonl'"):
        tasks_in(tmp_path / "task.jsonl")


def test_the_limit_counts_tasks_and_not_malformed_lines(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "tasks.jsonl", [row("a"), "{", row("b"), row("c")])
    assert len(tasks_in(path, limit=2)) == 2
    assert len(tasks_in(path, limit=0)) == len(tasks_in(path, limit=None)) == 3


def test_repeats_of_identical_rows_are_numbered_on(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "tasks.jsonl", [row("a"), row("b"), row("a"), row("a")])
    found = tasks_in(path, repeats=lambda agent: 2)
    assert [(task.task_index, task.first_rollout) for task in found] == [
        (0, 0),
        (1, 0),
        (0, 2),
        (0, 4),
    ]


def test_standard_input_can_be_read_twice() -> None:
    stream = io.BytesIO((json.dumps(row("a")) + "\n").encode())
    with input_file("-", stream) as path:
        assert len(tasks_in(path)) == len(tasks_in(path)) == 1


def test_a_prompt_config_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("users: x")
    with pytest.raises(ConfigError, match="needs a text 'user'"):
        Prompt.load(tmp_path / "p.yaml")


def test_braces_without_a_name_stand_for_themselves(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(r"user: 'Answer {q} in \boxed{}, as {{}} or {{x}} or {2}.'")
    rows = [{"q": "1+1", "2": "two"}, {"q": "1+1"}]
    path = write_jsonl(tmp_path / "tasks.jsonl", rows)
    prompt = Prompt.load(tmp_path / "p.yaml")
    [task] = tasks_in(path, prompt=prompt)
    said = task.row["responses_create_params"]["input"][0]["content"]
    assert said == r"Answer 1+1 in \boxed{}, as {} or {x} or two."
    [found] = malformed_in(path, prompt=prompt)
    assert "needs the field '2'" in found.message and "brace twice: {{" in found.message


@pytest.mark.parametrize("text", ["a { b", "a } b", "{x!z}", "{x"])
def test_a_brace_that_is_not_closed_is_refused_before_any_row(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.yaml").write_text(f"user: 'fine'\nsystem: '{text}'")
    if text == "{x!z}":  # is known once there is a value
        [found] = malformed_in(
            write_jsonl(tmp_path / "tasks.jsonl", [{"x": 1}]),
            prompt=Prompt.load(tmp_path / "p.yaml"),
        )
        assert "prompt_config cannot be filled" in found.message
        return
    with pytest.raises(ConfigError, match=r"p\.yaml: system: .*brace twice"):
        Prompt.load(tmp_path / "p.yaml")


def test_a_prompt_config_never_replaces_an_input(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "tasks.jsonl", [row("a")])
    [found] = malformed_in(path, prompt=Prompt("{x}", None))
    assert "already has an input" in found.message


@given(st.dictionaries(st.text(), JSON), st.dictionaries(st.text(), JSON))
def test_merging_keeps_what_is_over_and_changes_neither(under: dict, over: dict) -> None:
    before = json.dumps([under, over])
    result = merge(under, over)
    assert set(result) == set(under) | set(over)
    for key, value in over.items():
        if not isinstance(value, dict):
            assert result[key] == value
    assert merge(result, over) == result
    assert json.dumps([under, over]) == before


@pytest.mark.parametrize(
    ("name", "raw", "expected"),
    [
        (
            "t.json",
            b'[\n{"a": 1},\n{"a": 2}\n]',
            "one JSON array.*'.\\[\\]' t.json > t.jsonl",
        ),
        ("t.jsonl", b'[{"a": 1}, {"a": 2}]', "is one JSON array.* t.jsonl > t_lines.jsonl"),
        ("t.jsonl", b'{\n  "a": 1\n}\n', "spread over several lines.*jq -c"),
        ("t.yaml", b"- question: 1\n", "is YAML.*yq"),
        ("t.parquet", b"PAR1\x15\x04", "cannot be read: .*Parquet"),
        ("t.jsonl", '{"a": 1}\n'.encode("utf-16"), "is UTF-16.*iconv"),
        (
            "t.jsonl",
            b'{"a": 1}\r{"a": 2}\r',
            r"returns as line ends.*tr '.r' '.n' < t.jsonl > t_l",
        ),
        ("a b.json", b"[{}, {}]", "one JSON array.*'a b.json' > 'a b.jsonl'"),
        ("t.txt", b"What is 1+1?\nWhat is 2+2?\n", "JSON object.* begins with .What is 1.1"),
        # mtime=0: the bytes name the test, and each process must find the same name
        ("t.jsonl", gzip.compress(b"{}\n", mtime=0), "not named .gz.*: gunzip < t.jsonl > t_lines"),
        ("t.jsonl", b"\x28\xb5\x2f\xfd", "not named .zst.*: zstd -dc t.jsonl > t_lines.jsonl"),
        ("t.jsonl", b"\x92\xff", "begins with bytes that are no text"),
    ],
)
def test_an_input_in_another_form_is_refused_with_the_command_that_converts_it(
    tmp_path: Path, name: str, raw: bytes, expected: str
) -> None:
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(ConfigError, match=expected):
        tasks_in(tmp_path / name)


def test_a_link_to_itself_is_an_input_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.symlink_to(path)
    check_apart(str(path), OutputPaths(tmp_path / "rollouts.jsonl"))
    with pytest.raises(ConfigError, match="cannot be read: Too many levels of symbolic links"):
        tasks_in(path)


def test_rows_of_other_tools_are_told_how_they_become_tasks(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": "hi"}]}, {"prompt": "hi"}, {"x": 1}]
    found = malformed_in(write_jsonl(tmp_path / "tasks.jsonl", rows))
    told = [each.message for each in found]
    assert "jq -c '{responses_create_params: {input: .messages}} + .'" in told[0]
    assert "add '+prompt={{ prompt }}'" in told[1] and "{{ field }}" in told[2]


def test_create_params_that_mean_nothing_make_a_row_malformed(tmp_path: Path) -> None:
    params = [
        {"input": "hi", "max_tokens": 3},
        {"input": "hi", "temperature": "hot"},
        {"input": [{"role": "banana", "content": "hi"}]},
        {"input": [{"role": "user", "content": "hi"}, {"type": "reasoning", "summary": []}]},
    ]
    rows = [{"responses_create_params": each} for each in params]
    found = malformed_in(write_jsonl(tmp_path / "tasks.jsonl", rows))
    told = [each.message for each in found]
    assert [text.partition(":")[0] for text in told] == [
        "responses_create_params.max_tokens",
        "responses_create_params.temperature",
        "responses_create_params.input[0].role",
    ]


def test_a_stored_rollout_is_no_task(tmp_path: Path) -> None:
    stored = {**row("a"), "kind": "rollout", "rollout": {"task_id": "0"}, "response": {}}
    own = {**row("b"), "kind": "rollout"}
    path = write_jsonl(tmp_path / "tasks.jsonl", [stored, own])
    [malformed] = malformed_in(path)
    assert "ng_reverify" in malformed.message and len(tasks_in(path)) == 1
