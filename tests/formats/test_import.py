"""Runs of other tools become rollouts that every command reads. `files/` holds what the tools' own
packages have made, by the programs in `makers/`."""

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import as_function
from support import forget_home, read_jsonl, write_jsonl
from workplace import ROOT

from rollout_kit.formats import archive
from rollout_kit.formats.importing import import_runs
from rollout_kit.store.rollouts import RolloutFile

FILES = Path(__file__).with_name("files")
LOG, JOB = FILES / "inspect.eval", FILES / "job"

Ran = tuple[int | str | None, str]


@pytest.fixture
def run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ran]:
    """Runs a command in an empty folder; returns its status and all that it prints."""
    monkeypatch.chdir(tmp_path)
    forget_home(monkeypatch)

    def run(name: str, *words: str) -> Ran:
        with pytest.raises(SystemExit) as ended:
            as_function(name)(words)
        said = capsys.readouterr()
        return ended.value.code, said.out + said.err

    return run


def import_rows(tmp_path: Path, *rows: Any) -> list[Any]:
    write_jsonl(tmp_path / "theirs.jsonl", rows)
    import_runs([tmp_path / "theirs.jsonl"], tmp_path / "ours.jsonl")
    return read_jsonl(tmp_path / "ours.jsonl")


def kinds_of(line: Any) -> list[str]:
    return [each["type"] for each in line["response"]["output"]]


def test_a_log_of_inspect(tmp_path: Path, run: Callable[..., Ran]) -> None:
    status, said = run("ng_import", f"+input={LOG}", "+output_jsonl_fpath=ours.jsonl")
    assert status == 0 and "Imported 6 rollouts (inspect: 6)" in said
    assert "Without a reward: 1" in said and "  scores: 5" in said
    text, calls, thought, image, failing, failed = read_jsonl(tmp_path / "ours.jsonl")
    assert text["reward"] == 1.0 and text["expected_answer"] == "1" and text["match"] == 1.0
    called = [*["function_call"] * 2, *["function_call_output"] * 2]
    assert kinds_of(calls) == ["message", *called, "message"]
    turns = calls["rollout"]["turns"]
    assert turns["to"] == [5, 6] and turns["input"] == [11, 11] and turns["output"] == [7, 7]
    assert "cached" not in turns  # inspect does not say it
    assert calls["usage"]["total_tokens"] == 36
    assert calls["responses_create_params"]["tools"][0]["name"] == "add"
    assert kinds_of(thought) == ["reasoning", "message"]
    [asked] = image["responses_create_params"]["input"]
    assert asked["content"][1]["image_url"].startswith("data:image/png;base64,")
    assert image["reward"] == 0.0
    assert failing["inspect"]["error"] and failing["response"]["status"] == "failed"
    assert failed["rollout"]["task_id"] != text["rollout"]["task_id"]


def test_a_job_of_harbor_is_compared_with_a_log_of_inspect(
    tmp_path: Path, run: Callable[..., Ran]
) -> None:
    run("ng_import", f"+input={LOG}", "+output_jsonl_fpath=a.jsonl")
    status, said = run("ng_import", str(JOB), "+output_jsonl_fpath=b.jsonl")
    assert status == 0 and "harbor: 6" in said and "Without a reward: 1" in said
    status, said = run("ng_compare", "a.jsonl", "b.jsonl")
    # the sample that failed has no reward here, the trial that failed has none there
    assert status == 0 and "over 4 common tasks" in said
    _, calls, thought, image, seen, failed = read_jsonl(tmp_path / "b.jsonl")
    assert calls["reward"] == 1 and calls["rollout"]["model"] == "test/mock"
    last = calls["response"]["output"][2]
    assert last["prompt_token_ids"] == [1, 2, 3] and last["generation_token_ids"] == [4, 5]
    assert last["generation_log_probs"] == [-0.5, -0.25]
    assert calls["rollout"]["turns"]["cached"] == [4, 4]
    assert calls["harbor"]["trajectory"]["notes"] == "made by a test"
    assert kinds_of(thought)[0] == "reasoning"
    content = image["responses_create_params"]["input"][1]["content"]
    assert content[1]["image_url"] == "images/pixel.png"
    assert seen["response"]["output"][1]["role"] == "user"
    assert failed["reward"] is None and failed["response"]["error"]["message"].endswith("too slow")


def test_every_command_takes_rollouts_without_a_reward(
    tmp_path: Path, run: Callable[..., Ran]
) -> None:
    """One file has only such rollouts, and no mean counts them."""
    request = {"model": "m", "messages": [{"role": "user", "content": "2 + 2?"}]}
    choice = {"message": {"role": "assistant", "content": "4"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
    reply = {"model": "m", "choices": [choice], "usage": usage}
    [line] = import_rows(tmp_path, {"request": request, "response": reply})
    assert line["reward"] is None and line["usage"]["input_tokens"] == 5
    [rollout] = RolloutFile(tmp_path / "ours.jsonl").rollouts()
    assert rollout.reward is None and rollout.text == "4"
    for name, *words in (
        ("ng_view", "ours.jsonl", "+static=page.html"),
        ("ng_report", "ours.jsonl"),
        ("ng_export", "ours.jsonl", "+format=trl_sft", "+output_fpath=train.jsonl"),
        ("ng_merge", "ours.jsonl", "+output_jsonl_fpath=merged.jsonl"),
    ):
        status, said = run(name, *words)
        assert status == 0, said
    assert "mean reward" not in said
    status, said = run("ng_pairs", "ours.jsonl", "+format=trl_dpo", "+output_fpath=pairs.jsonl")
    assert status == 1 and "1 (without a reward)" in said


def test_a_request_to_responses_keeps_its_response(tmp_path: Path) -> None:
    output = [{"type": "message", "role": "assistant", "content": []}]
    response = {"id": "r", "output": output, "model": "m", "usage": None}
    request = {"input": "hi", "temperature": 0.5}
    [line] = import_rows(tmp_path, {"request": {"body": request}, "response": {"body": response}})
    assert line["response"] == response and line["rollout"]["model"] == "m"
    assert line["responses_create_params"]["temperature"] == 0.5


def test_rollouts_of_nemo_gym_with_a_trajectory(tmp_path: Path) -> None:
    call = {
        "duration_ms": 1500,
        "token_stats": {"prompt_tokens": 7, "completion_tokens": 2},
        "response_metadata": {"finish_reason": "stop", "model": "m"},
    }
    row = {
        "responses_create_params": {"input": "hi"},
        "response": {"output": [], "model": "m"},
        "reward": None,
        "agent_ref": {"name": "simple"},
        "_ng_task_index": 3,
        "_ng_rollout_index": 2,
        "ng_trajectory": {"model_calls": [call], "gaps": ["one"]},
    }
    [line] = import_rows(tmp_path, row)
    assert line["reward"] is None and line["agent_ref"] == {"name": "simple"}
    assert line["rollout"]["rollout_index"] == 2
    assert line["rollout"]["turns"]["model_s"] == [1.5]
    assert line["nemo_gym"]["ng_trajectory"]["gaps"] == ["one"]


def test_an_episode_of_verifiers(tmp_path: Path) -> None:
    def node(parent: int | None, role: str, text: str, ids: list[int], sampled: int = 0) -> Any:
        start = len(ids) - sampled
        return {
            "parent": parent,
            "message": {"role": role, "content": text},
            "sampled": bool(sampled),
            "token_ids": ids,
            "mask": [False] * start + [True] * sampled,
            "logprobs": [-0.5] * sampled,
        }

    nodes = [
        node(None, "user", "2 + 2?", [1, 2]),
        node(0, "assistant", "5", [3, 4], sampled=1),
        node(1, "user", "No.", [5]),
        node(2, "assistant", "4", [6, 7, 8], sampled=2),
        node(0, "assistant", "a branch that ended", []),
    ]
    used = {"prompt_tokens": 3, "completion_tokens": 1}
    trace = {
        "nodes": nodes,
        "calls": [
            {"node": at, "usage": used, "finish_reason": "stop", "time": {"start": 9.5, "end": 10}}
            for at in (1, 3)
        ],
        "task": {"key": "sum", "data": {"answer": "4"}},
        "agent": {"name": "solver", "config": {"model": "m"}},
        "rewards": {"right": {"score": 1, "weight": 0.5}, "form": {"score": 1, "weight": 0.25}},
        "metrics": {"length": 3},
        "timing": {"start": 9},
    }
    [line] = import_rows(tmp_path, {"env": {"id": "e"}, "traces": [trace], "ok": True})
    assert line["reward"] == 0.75 and line["length"] == 3 and line["expected_answer"] == "4"
    first, _, last = line["response"]["output"]
    assert first["prompt_token_ids"] == [1, 2, 3] and first["generation_token_ids"] == [4]
    assert last["prompt_suffix_token_ids"] == [5, 6] and last["generation_token_ids"] == [7, 8]
    assert line["rollout"]["turns"]["to"] == [1, 3]
    assert list(line["verifiers"]["other_nodes"]) == ["4"]
    row = {"responses_create_params": {"input": "2 + 2?"}, "expected_answer": 4, "level": 2}
    trace["task"] = {"key": "sum", "data": {"row": {**row, "agent_ref": {"name": "sums"}}}}
    (tmp_path / "ours.jsonl").unlink()
    [line] = import_rows(tmp_path, {"env": {"id": "e"}, "traces": [trace], "ok": True})
    assert (line["expected_answer"], line["level"], line["agent_ref"]) == (4, 2, {"name": "sums"})


def test_results_of_earlier_verifiers(tmp_path: Path) -> None:
    row = {"example_id": 1, "prompt": "2 + 2?", "completion": "4", "reward": 1, "task": "sums"}
    [one, two] = import_rows(tmp_path, row, row)
    assert [one["rollout"]["rollout_index"], two["rollout"]["rollout_index"]] == [0, 1]
    assert one["rollout"]["task_id"] == two["rollout"]["task_id"] and one["reward"] == 1


def test_samples_of_lm_eval(tmp_path: Path) -> None:
    row = {
        "doc_id": 7,
        "doc": {"question": "2 + 2?"},
        "target": "4",
        "arguments": {"gen_args_0": {"arg_0": "Q: 2 + 2?", "arg_1": {"until": ["Q"]}}},
        "resps": [["4"]],
        "filtered_resps": ["4"],
        "metrics": ["exact_match"],
        "exact_match": 1.0,
    }
    choices = {**row, "doc_id": 8, "resps": [[["-1.5", "True"]], [["-2.5", "False"]]]}
    written, chosen = import_rows(tmp_path, row, choices)
    assert written["reward"] == 1.0 and written["exact_match"] == 1.0
    assert written["response"]["output"][0]["content"][0]["text"] == "4"
    assert chosen["response"]["output"] == []
    assert chosen["lm_eval"]["resps"] == choices["resps"]


def test_what_is_damaged_is_counted_or_refused_in_one_line(
    tmp_path: Path, run: Callable[..., Ran]
) -> None:
    good = {"request": {"input": "hi"}, "response": {"output": [], "model": "m"}}
    text = json.dumps(good) + "\n" + '{"request": {}, "response": {}}\n[]\n' + '{"request'
    (tmp_path / "torn.jsonl").write_text(text)
    status, said = run("ng_import", "torn.jsonl", "+output_jsonl_fpath=a.jsonl", "+json=true")
    assert status == 0
    assert json.loads(said)["left_out"] == {
        "request and response are neither of Chat nor of Responses": 1,
        "no JSON object": 1,
        "a line that is cut off": 1,
    }
    (tmp_path / "cut.eval").write_bytes(LOG.read_bytes()[:9_000])
    (tmp_path / "foreign.jsonl").write_text('{"some": "thing"}\n')
    (tmp_path / "empty.jsonl").write_text("")
    shutil.copy(tmp_path / "a.jsonl", tmp_path / "ours.jsonl")
    for name, why in (
        ("cut.eval", "was it cut off"),
        ("foreign.jsonl", "These formats are read: inspect"),
        ("empty.jsonl", "no run of another tool is recognised"),
        ("none.jsonl", "there is no such file"),
        ("ours.jsonl", "these are rollouts already"),
    ):
        status, said = run("ng_import", name, "+output_jsonl_fpath=b.jsonl")
        assert status == 1 and why in said and said.count("\n") == 1, said
        assert not (tmp_path / "b.jsonl").exists()
    status, said = run("ng_import", "torn.jsonl", "+output_jsonl_fpath=a.jsonl")
    assert status == 1 and "exists already" in said
    status, said = run("ng_import", "torn.jsonl", "+output_jsonl_fpath=b.jsonl", "+format=inspekt")
    assert status == 1 and "inspect" in said


def test_a_member_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MAX_LINE", 10_000)
    with zipfile.ZipFile(tmp_path / "bomb.eval", "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("header.json", '{"eval": {}}')
        made.writestr("samples/1_epoch_1.json", b" " * 100_000)
    status, said = run("ng_import", "bomb.eval", "+output_jsonl_fpath=ours.jsonl")
    assert status == 1 and "samples/1_epoch_1.json has more than 10,000 bytes" in said


def test_reverifying_gives_a_reward(tmp_path: Path, run: Callable[..., Ran]) -> None:
    reply = {"choices": [{"message": {"role": "assistant", "content": "\\boxed{4}"}}], "model": "m"}
    asked = {"messages": [{"role": "user", "content": "2 + 2?"}]}
    row = {"request": asked, "response": reply, "expected_answer": "4"}
    write_jsonl(tmp_path / "theirs.jsonl", [row])
    agent = "string_match_simple_agent"
    run("ng_import", "theirs.jsonl", "+output_jsonl_fpath=ours.jsonl", f"+agent_name={agent}")
    [before] = read_jsonl(tmp_path / "ours.jsonl")
    environment = ROOT / "resources_servers/string_match/configs/string_match.yaml"
    words = (f"+config_paths=[{environment}]", "+input_jsonl_fpath=ours.jsonl")
    status, said = run("ng_reverify", *words, "+output_jsonl_fpath=verified.jsonl")
    assert status == 0, said
    [after] = read_jsonl(tmp_path / "verified.jsonl")
    assert before["reward"] is None and after["reward"] in (0.0, 1.0)
    assert "First verdicts: 1" in said
