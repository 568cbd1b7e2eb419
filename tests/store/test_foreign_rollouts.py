"""Rollouts that NeMo Gym wrote: every command that reads rollouts reads them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from command import as_function
from support import forget_home, read_jsonl, write_jsonl

from rollout_kit.formats.importing import import_runs
from rollout_kit.store.nemo_gym import as_ours
from rollout_kit.store.tasks import task_id_of

collect_rollouts = as_function("ng_collect_rollouts")
compare = as_function("ng_compare")
export = as_function("ng_export")
reverify = as_function("ng_reverify")
view = as_function("ng_view")

NULLS = {"background": None, "temperature": None, "tools": []}


def row(question: str) -> dict[str, Any]:
    params = {"input": [{"role": "user", "content": question}]}
    options = [{"A": "yes"}, {"B": "no"}]
    return {"responses_create_params": params, "options": options, "expected_answer": "A"}


def rollout(task: int, index: int, letter: str, **fields: Any) -> dict[str, Any]:
    given = row(f"q{task}")
    part = {"type": "output_text", "text": f"\\boxed{{{letter}}}", "annotations": []}
    item = {"type": "message", "id": "m", "role": "assistant", "content": [part]}
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    response = {"id": "r", "object": "response", "model": "m", "output": [item], "usage": usage}
    return {
        **given,
        "responses_create_params": {**NULLS, **given["responses_create_params"]},
        "response": response,
        "reward": float(letter == "A"),
        "extracted_answer": letter,
        "_ng_task_index": task,
        "_ng_rollout_index": index,
        "agent_ref": {"name": "mcqa_simple_agent"},
        **fields,
    }


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two tasks with two rollouts each, and the rows that they come from."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    indices = [(task, index) for task in range(2) for index in range(2)]
    inputs = [{**row(f"q{t}"), "_ng_task_index": t, "_ng_rollout_index": i} for t, i in indices]
    write_jsonl(tmp_path / "theirs_materialized_inputs.jsonl", inputs)
    write_jsonl(tmp_path / "theirs.jsonl", [rollout(t, i, "AB"[(t + i) % 2]) for t, i in indices])
    return tmp_path / "theirs.jsonl"


def call_of(role: str, asked: list[Any], *said: Any) -> dict[str, Any]:
    """A call of a model in an episode of an environment server."""
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    response = {"id": "r", "object": "response", "model": "m", "output": [*said], "usage": usage}
    return {"role": role, "request": {"input": asked, "temperature": 1}, "response": response}


def episode(index: int) -> dict[str, Any]:
    """A rollout of `nemo_user_sim`: no response, but the calls of all models."""

    def message(role: str, text: str) -> dict[str, Any]:
        kind = "output_text" if role == "assistant" else "input_text"
        return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}

    asked, hello = [message("user", "A drink?")], message("assistant", "Which?")
    call = {"type": "function_call", "call_id": "c", "name": "pour", "arguments": "{}"}
    done = {"type": "function_call_output", "call_id": "c", "output": "poured"}
    then = [*asked, hello, message("user", "Tea.")]
    calls = [
        call_of("user", [], message("assistant", "A drink?")),
        call_of("assistant", asked, hello),
        call_of("judge", asked, message("assistant", "5")),
        call_of("assistant", then, call),
        call_of("assistant", [*then, call, done], message("assistant", "Here.")),
    ]
    return {
        "reward": 0.5,
        "invocations": calls,
        "_ng_task_id": {"taskset": "drinks", "task_id": "tea"},
        "_ng_task_index": 0,
        "_ng_rollout_index": index,
        "_ng_environment_server": "drinks_environment",
        "_ng_result_type": "nemo_user_sim",
    }


def test_an_episode_of_an_environment_server_is_the_assistant_s_conversation(
    theirs: Path,
) -> None:
    theirs.with_name("theirs_materialized_inputs.jsonl").unlink()
    write_jsonl(theirs, [episode(0), episode(1)])
    import_runs([theirs], theirs.with_name("imported.jsonl"))
    for path in (as_ours(str(theirs)), "imported.jsonl"):
        one, two = read_jsonl(Path(path))
        assert one["rollout"]["task_id"] == two["rollout"]["task_id"]
        assert [each["rollout"]["rollout_index"] for each in (one, two)] == [0, 1]
        assert one["agent_ref"]["name"] == "drinks_environment" and one["reward"] == 0.5
        [question] = one["responses_create_params"]["input"]
        assert question["content"][0]["text"] == "A drink?"
        items = [each.get("role") or each["type"] for each in one["response"]["output"]]
        calls = ["function_call", "function_call_output"]
        assert items == ["assistant", "user", *calls, "assistant"]
        assert one["response"]["usage"]["total_tokens"] == 15 and len(one["invocations"]) == 5
    assert one["rollout"]["turns"]["to"] == [2, 4, 5] and one["rollout"]["num_turns"] == 3


def status(main: Any, *argv: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(argv))
    return int(ended.value.code or 0)


def test_tasks_are_those_of_their_rows_and_scores_those_of_the_verifier(theirs: Path) -> None:
    lines = read_jsonl(Path(as_ours(str(theirs))))
    assert [line["rollout"]["task_id"] for line in lines[::2]] == [
        task_id_of(row("q0")),
        task_id_of(row("q1")),
    ]
    assert [line["rollout"]["rollout_index"] for line in lines] == [0, 1, 0, 1]
    assert "extracted_answer" in lines[0]["rollout"]["scores"]
    assert lines[0]["options"] and lines[0]["extracted_answer"] == "A"


def test_without_the_rows_beside_it_repeats_of_a_request_are_one_task(theirs: Path) -> None:
    theirs.with_name("theirs_materialized_inputs.jsonl").unlink()
    bare = [
        {k: v for k, v in line.items() if not k.startswith(("_ng_", "agent"))}
        for line in read_jsonl(theirs)
    ]
    write_jsonl(theirs, [*bare, {"not": "a rollout"}])
    lines = read_jsonl(Path(as_ours(str(theirs))))
    keys = [(line["rollout"]["task_id"], line["rollout"]["rollout_index"]) for line in lines]
    assert len({task for task, _ in keys}) == 2 and [index for _, index in keys] == [0, 1, 0, 1]
    assert {line["agent_ref"]["name"] for line in lines} == {"nemo_gym"}


@pytest.mark.parametrize("expected", [5, 5.0, 3e8, 1e-05, 0])
def test_a_number_of_the_row_is_there_when_it_is_verified_again(
    theirs: Path, expected: float
) -> None:
    theirs.with_name("theirs_materialized_inputs.jsonl").unlink()
    [bare] = [rollout(0, 0, repr(expected), library_reward=0.0, level=3)]
    agent = {"name": "math_with_verify_simple_agent"}
    write_jsonl(theirs, [{**bare, "expected_answer": expected, "reward": 0.0, "agent_ref": agent}])
    folder = "resources_servers/math_with_verify/configs/math_with_verify.yaml"
    server = "++math_with_verify.resources_servers.math_with_verify"
    argv = [f"+config_paths=[{folder}]", f"{server}.fast_mode=true"]
    argv += [f"+input_jsonl_fpath={theirs}", "+output_jsonl_fpath=again.jsonl"]
    assert status(reverify, *argv) == 0
    [again] = read_jsonl(Path("again.jsonl"))
    assert (again["reward"], again["library_reward"]) == (1.0, 1.0)
    assert (again["expected_answer"], again["level"]) == (expected, 3)


def test_a_changed_file_is_read_again_and_ours_is_left_alone(theirs: Path) -> None:
    first = as_ours(str(theirs))
    assert as_ours(first) == first, "the copy is a file of ours"
    write_jsonl(theirs, [rollout(0, 0, "B")])
    assert as_ours(str(theirs)) != first
    assert as_ours("rollouts/*.jsonl") == "rollouts/*.jsonl"


def test_the_commands_that_read_rollouts_read_theirs(
    theirs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = str(theirs)
    assert status(view, name, "+static=page.html") == 0
    copied = shutil.copy(theirs, "copied.jsonl")
    shutil.copy("theirs_materialized_inputs.jsonl", "copied_materialized_inputs.jsonl")
    assert status(compare, name, copied) == 0
    assert "ties 2" in capsys.readouterr().out
    assert status(export, name, "+format=trl_sft", "+output_fpath=sft.jsonl") == 0
    assert read_jsonl(Path("sft.jsonl"))
    yaml = "+config_paths=[resources_servers/mcqa/configs/mcqa.yaml]"
    argv = [yaml, f"+input_jsonl_fpath={name}", "+output_jsonl_fpath=again.jsonl"]
    assert status(reverify, *argv) == 0
    assert [line["reward"] for line in read_jsonl(Path("again.jsonl"))].count(1.0) == 2


def test_their_file_is_never_appended_to(theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl(theirs, read_jsonl(theirs)[:1])
    before = theirs.read_bytes()
    write_jsonl(Path("tasks.jsonl"), [row("q0")])
    config = "mcqa: {}\npolicy_model: {responses_api_models: {simulated_model: {}}}\n"
    Path("run.yaml").write_text(config)
    argv = ["+config_paths=[run.yaml]", "+input_jsonl_fpath=tasks.jsonl"]
    assert status(collect_rollouts, *argv, f"+output_jsonl_fpath={theirs}") == 1
    said = capsys.readouterr().err
    assert "rollouts of NeMo Gym" in said and "Nothing was sent" in said
    assert theirs.read_bytes() == before
    assert json.loads(before.splitlines()[0])["reward"] == 1.0


@pytest.mark.parametrize(("cache", "said"), [("/dev/null/cache", "Not a directory"), ("", "home")])
def test_a_copy_that_cannot_be_kept_is_one_error(
    theirs: Path,
    cache: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    forget_home(monkeypatch)
    words = [str(theirs), "+format=trl_sft", "+output_fpath=out.jsonl"]
    assert status(export, *words) == 1
    error = capsys.readouterr().err
    assert "theirs.jsonl" in error and said in error and "XDG_CACHE_HOME" in error
