"""Runs of other tools in which a value is of another kind than its format says: each is read, or
counted with the reason. What was imported is read by our own reader."""

import json
import shutil
import zipfile
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from made_rollouts import make_line
from support import write_jsonl

from rollout_kit.errors import ConfigError
from rollout_kit.formats.archive import open_archive, read_member
from rollout_kit.formats.importing import import_runs
from rollout_kit.formats.inspect_samples import write_sample
from rollout_kit.formats.trajectories import write_trajectory
from rollout_kit.store.lines import rollout_of
from rollout_kit.store.rollouts import RolloutFile

FILES = Path(__file__).with_name("files")

OTHER: list[Any] = [None, True, -1, 10**30, 0.5, "x", "\u2028", [], [[]], {}, {"a": [1]}, [None]]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value within, and of the value itself."""
    yield path
    inner = enumerate(value) if isinstance(value, list) else ()
    for name, each in value.items() if isinstance(value, dict) else inner:
        yield from places(each, (*path, name))


def spoilt(document: Any, others: list[Any] = OTHER) -> Iterator[Any]:
    """The document with one value after the other replaced by each of `others`."""
    for path in list(places(document))[1:]:
        for other in others:
            copy = deepcopy(document)
            holder = copy
            for name in path[:-1]:
                holder = holder[name]
            holder[path[-1]] = other
            yield copy


def inspect_samples() -> list[Any]:
    path = FILES / "inspect.eval"
    with open_archive(path) as archive:
        members = [each for each in archive.infolist() if each.filename.startswith("samples/")]
        return [json.loads(read_member(path, archive, each)) for each in members[:2]]


def in_json(name: str) -> Any:
    return json.loads((FILES / name).read_text("utf-8"))


def chat() -> Any:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    request = {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "2 + 2?"}]}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    }
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
    reply = {"model": "m", "choices": [{"message": message, "finish_reason": "stop"}]}
    return {"request": request, "response": {**reply, "usage": usage}}


def responses() -> Any:
    text = {"type": "output_text", "text": "4", "annotations": []}
    output = [{"type": "message", "role": "assistant", "content": [text]}]
    usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    response = {"id": "r", "output": output, "model": "m", "usage": usage}
    asked = [{"role": "user", "content": "hi"}]
    return {"request": {"input": asked, "temperature": 0.5}, "response": response}


def lm_eval() -> Any:
    return {
        "doc_id": 7,
        "doc": {"question": "2 + 2?"},
        "target": "4",
        "arguments": {"gen_args_0": {"arg_0": "Q: 2 + 2?", "arg_1": {"until": ["Q"]}}},
        "resps": [["4"]],
        "filtered_resps": ["4"],
        "metrics": ["exact_match"],
        "exact_match": 1.0,
    }


def nemo_gym() -> Any:
    call = {
        "duration_ms": 1500,
        "token_stats": {"prompt_tokens": 7, "completion_tokens": 2},
        "response_metadata": {"finish_reason": "stop", "model": "m"},
    }
    return {
        "responses_create_params": {"input": [{"role": "user", "content": "hi"}]},
        "response": {**responses()["response"]},
        "reward": 1.0,
        "agent_ref": {"name": "simple"},
        "_ng_task_index": 3,
        "_ng_rollout_index": 2,
        "ng_trajectory": {"model_calls": [call], "gaps": ["one"]},
    }


def verifiers() -> Any:
    nodes = [
        {"parent": None, "message": {"role": "user", "content": "2?"}, "token_ids": [1, 2]},
        {
            "parent": 0,
            "message": {"role": "assistant", "content": "4"},
            "sampled": True,
            "token_ids": [3, 4],
            "mask": [False, True],
            "logprobs": [-0.5],
        },
    ]
    used = {"prompt_tokens": 3, "completion_tokens": 1}
    time = {"start": 9.5, "end": 10}
    trace = {
        "nodes": nodes,
        "calls": [{"node": 1, "usage": used, "finish_reason": "stop", "time": time}],
        "task": {"key": "sum", "data": {"answer": "4"}},
        "agent": {"name": "solver", "config": {"model": "m"}},
        "rewards": {"right": {"score": 1, "weight": 0.5}},
        "metrics": {"length": 3},
        "timing": {"start": 9},
    }
    return {"env": {"id": "e"}, "traces": [trace], "ok": True}


def earlier_verifiers() -> Any:
    messages = [{"role": "assistant", "content": "4"}]
    return {"example_id": 1, "prompt": "2 + 2?", "completion": messages, "reward": 1, "task": "s"}


ROWS = (chat, responses, lm_eval, nemo_gym, verifiers, earlier_verifiers)


def check(folder: Path, number: int) -> None:
    """Import what is in `folder`: `number` runs, each read or counted."""
    output = folder.with_name("ours.jsonl")
    found = import_runs([folder], output)
    assert found.rollouts + found.left_out.total() >= number
    assert sum(1 for _ in RolloutFile(output).rollouts()) == found.rollouts > 0


@pytest.mark.parametrize("make", ROWS, ids=lambda make: make.__name__)
def test_lines(make: Any, tmp_path: Path) -> None:
    rows = [make(), *spoilt(make())]
    (tmp_path / "theirs").mkdir()
    write_jsonl(tmp_path / "theirs/rows.jsonl", rows)
    check(tmp_path / "theirs", len(rows))


def test_samples_of_inspect(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    number = 0
    with zipfile.ZipFile(tmp_path / "theirs/log.eval", "w") as archive:
        archive.writestr("header.json", '{"eval": {"model": "m", "task": "t"}}')
        for sample in inspect_samples():
            for each in [sample, *spoilt(sample, OTHER[number % 3 :: 3])]:
                archive.writestr(f"samples/{number}.json", json.dumps(each))
                number += 1
    check(tmp_path / "theirs", number)


def test_trajectories_of_atif(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    document = in_json("job/task-4__x/agent/trajectory.json")
    rows = [document, *spoilt(document)]
    write_jsonl(tmp_path / "theirs/rows.jsonl", rows)
    check(tmp_path / "theirs", len(rows))


@pytest.mark.parametrize("format", ["inspect", "atif"])
def test_what_our_exports_keep_for_us(format: str, tmp_path: Path) -> None:
    """Somebody may have edited it."""
    line = make_line(2)
    line["response"]["output"][0]["arguments"] = '{"a":  1}'
    rollout = rollout_of(line)
    (tmp_path / "theirs").mkdir()
    if format == "atif":
        documents = [made := write_trajectory(rollout), *spoilt(made)]
        write_jsonl(tmp_path / "theirs/rows.jsonl", documents)
    else:
        documents = [made := write_sample(rollout, "2"), *spoilt(made, OTHER[::4])]
        with zipfile.ZipFile(tmp_path / "theirs/log.eval", "w") as archive:
            archive.writestr("header.json", '{"eval": {"model": "m", "task": "t"}}')
            for number, each in enumerate(documents):
                archive.writestr(f"samples/{number}.json", json.dumps(each))
    check(tmp_path / "theirs", len(documents))


def test_results_of_harbor(tmp_path: Path) -> None:
    result = in_json("job/task-4__x/result.json")
    for number, each in enumerate([result, *spoilt(result)]):
        folder = tmp_path / "theirs" / f"trial-{number}"
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(each), "utf-8")
    check(tmp_path / "theirs", 1)


def test_one_damaged_file_of_a_folder_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    shutil.copytree(FILES, folder)
    (folder / "cut.eval").write_bytes((FILES / "inspect.eval").read_bytes()[:9_000])
    (folder / "cut.json").write_text('{"eval": {', "utf-8")
    (folder / "odd.json").write_text('{"eval": {}, "version": 2, "samples": {"a": 1}}', "utf-8")
    found = import_runs([folder], tmp_path / "ours.jsonl")
    assert found.rollouts == 12
    said = " ".join(found.left_out)
    assert "cut.eval" in said and "cut.json" in said
    for name in ("cut.eval", "cut.json"):
        with pytest.raises(ConfigError, match=name):
            import_runs([folder / name], tmp_path / "none.jsonl")
