"""Programs in sessions of the shell, against a model that gives them commands."""

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from harness_programs import LOOP, MCP_HARNESS, RESUMABLE_HARNESS, SMALL_HARNESS
from support import NO_NAMESPACES, may_isolate

from rollout_kit.api.testing import ScriptedModel, making, mount
from rollout_kit.errors import ConfigError, ModelError, RolloutError
from rollout_kit.responses import (
    function_call_item,
    make_response,
    message_item,
    output_text,
)
from rollout_kit.serving import registry
from rollout_kit.serving.process_tree import read_start
from rollout_kit.session import RETURNED, Session, TurnLog, entered
from rollout_kit.types import JsonObject

SHELL = registry.load("resources_servers", "shell")
HARNESS = registry.load("responses_api_agents", "harness_agent")

ROW: JsonObject = {
    "responses_create_params": {
        "input": [
            {"role": "system", "content": "not for programs"},
            {"role": "user", "content": "Write 34 to /work/count.txt."},
        ]
    },
    "files": {"/work/a.txt": "one\n"},
    "verifier": {"kind": "files", "expected": {"/work/count.txt": "34"}},
}

COMMANDS = ["cat a.txt; pwd; echo $HOME", "echo 34 > /work/count.txt"]


def say(params: JsonObject) -> JsonObject:
    done = sum(item.get("type") == "function_call_output" for item in params["input"])
    if done < len(COMMANDS) and params.get("tools"):
        call = function_call_item("bash", json.dumps({"command": COMMANDS[done]}), f"call_{done}")
        output = [call]
    else:
        output = [message_item("I wrote 34.")]
    used = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
    return make_response("scripted", output, used)


def play(
    keys: JsonObject,
    model: Any = None,
    row: JsonObject = ROW,
    turn_log: TurnLog | None = None,
    shell_keys: JsonObject | None = None,
) -> tuple[JsonObject, JsonObject, JsonObject]:
    """The response, the verdict and the statistics of one rollout."""
    made = model or ScriptedModel(say)
    refs = {
        "resources_server": {"type": "resources_servers", "name": "shell"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }

    async def main() -> Any:
        servers = {
            "shell": making(SHELL, num_ready=0, **(shell_keys or {})),
            "policy_model": lambda peers, name: made,
            "harness": making(HARNESS, **refs, **keys),
        }
        async with mount(servers) as peers:
            session = Session()
            with entered(session):
                await peers.call("shell", "/seed_session", row, dict)
                try:
                    params = row["responses_create_params"]
                    response = await peers.call("harness", "/v1/responses", params, dict, turn_log)
                    asked = {**row, "response": response}
                    verdict = await peers.call("shell", "/verify", asked, dict)
                finally:
                    await peers.call("shell", "/close_session", {}, dict)
            return response, verdict, session.stats

    return asyncio.run(asyncio.wait_for(main(), 100))


IN_SESSION = pytest.mark.skipif(not may_isolate(), reason=NO_NAMESPACES)


@IN_SESSION
def test_a_program_works_in_its_session_and_is_verified_by_its_files() -> None:
    keys = {
        "command": 'python3 -m harness.main; echo "$GREETING" >&2',
        "environment": {"GREETING": "hello $MODEL", "PYTHONPATH": "/root"},
        "files": {"/root/harness/main.py": SMALL_HARNESS},
    }
    response, verdict, stats = play(keys)
    assert verdict["reward"] == 1.0 and "count.txt" in verdict["patch"]
    assert "harness" not in verdict["patch"] and "task.txt" not in verdict["patch"]
    outputs = [item["output"] for item in response["output"] if "output" in item]
    assert outputs[0] == "one\n/work\n/root\n"
    assert output_text(response) == "I wrote 34."
    ended = stats["harness"]
    assert (ended["status"], ended["stdout"], ended["stderr"]) == (
        0,
        "I wrote 34.\n",
        "hello model\n",
    )
    assert stats["num_turns"] == 3 and stats["num_tool_calls"] == 2
    assert stats["gateway"] == {"calls": 3, "side_calls": 0}
    assert response["usage"]["total_tokens"] == 21


def play_and_keep(keys: JsonObject, model: ScriptedModel | None = None) -> list[JsonObject]:
    """What a whole rollout reports and another one can continue from."""
    kept: list[JsonObject] = []
    log = TurnLog((), lambda turn: kept.append(json.loads(json.dumps(turn))))
    play(keys, model, turn_log=log)
    return [turn for turn in kept if RETURNED not in turn]


@IN_SESSION
def test_a_program_that_was_killed_goes_on_from_the_journal() -> None:
    keys = {"command": "python3 /root/h.py", "files": {"/root/h.py": SMALL_HARNESS}}
    kept = play_and_keep(keys, first := ScriptedModel(say))
    assert len(kept) == 3 == len(first.calls)
    again = ScriptedModel(say)
    log = TurnLog(tuple(kept[:2]), lambda turn: None)
    _, verdict, stats = play(keys, again, turn_log=log)
    assert verdict["reward"] == 1.0 and len(again.calls) == 1
    assert stats["resumed_turns"] == 2
    assert stats["gateway"]["replayed"] == 2 and stats["gateway"]["diverged_at"] is None


RESUMED: JsonObject = {
    "command": "python3 /root/h.py",
    "resume_command": "python3 /root/h.py resume",
    "snapshot_every": 1,
    "files": {"/root/h.py": RESUMABLE_HARNESS},
}


def keep_turns() -> list[JsonObject]:
    """The turns and snapshots that a whole rollout reports."""
    kept = play_and_keep(RESUMED)
    assert ["snapshot" in turn for turn in kept] == [False, True, False, True, False]
    return kept


@IN_SESSION
def test_the_response_has_the_calls_before_the_snapshot_too() -> None:
    kept = keep_turns()
    once, _, _ = play(RESUMED)
    again = ScriptedModel(say)
    stored = (kept[0], kept[2], kept[3])
    response, verdict, stats = play(RESUMED, again, turn_log=TurnLog(stored, lambda turn: None))
    assert verdict["reward"] == 1.0 and len(again.calls) == 1
    assert stats["gateway"] == {
        "calls": 3,
        "side_calls": 0,
        "restored": 2,
        "replayed": 0,
        "diverged_at": None,
    }
    assert stats["resumed_turns"] == 2
    kinds = [[item.get("type") for item in each["output"]] for each in (once, response)]
    assert kinds[0] == kinds[1]
    assert response["output"][:2] != [] and response["tools"] == once["tools"]


@IN_SESSION
def test_a_snapshot_whose_calls_are_not_stored_does_not_count() -> None:
    kept, again = keep_turns(), ScriptedModel(say)
    stored = (kept[0], kept[3])
    _, verdict, stats = play(RESUMED, again, turn_log=TurnLog(stored, lambda turn: None))
    assert verdict["reward"] == 1.0 and len(again.calls) == 2
    assert stats["gateway"]["replayed"] == 1 and "restored" not in stats["gateway"]


@IN_SESSION
def test_a_program_that_cannot_continue_fails_the_attempt() -> None:
    kept = keep_turns()
    log = TurnLog((kept[0], kept[1]), lambda turn: None)
    broken = {**RESUMED, "resume_command": "echo I know nothing >&2; exit 3"}
    with pytest.raises(RolloutError, match="status 3 before it asked the model: I know nothing"):
        play(broken, turn_log=log)


@IN_SESSION
def test_a_program_whose_requests_the_model_refuses_fails_with_the_reason() -> None:
    def refuse(params: JsonObject) -> str:
        raise ModelError("no row has this prompt", status=400)

    with pytest.raises(RolloutError, match=r"the model refused its request: .*no row has this"):
        play(
            {"command": "python3 /root/h.py", "files": {"/root/h.py": SMALL_HARNESS}},
            ScriptedModel(refuse),
        )


OUTSIDE: JsonObject = {
    "outside": True,
    "command": f"{sys.executable} ~/h.py",
    "files": {"/root/h.py": MCP_HARNESS},
}


@IN_SESSION
def test_a_program_outside_of_the_session_works_in_it_over_mcp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mcp")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "rollout_kit_harness_1_0_a"  # of a process that has ended
    left.mkdir()
    monkeypatch.setenv("SOME_API_KEY", "secret")
    keys = {**OUTSIDE, "command": f"echo $SOME_API_KEY; sleep 1000 & {OUTSIDE['command']}"}
    response, verdict, stats = play(keys)
    assert verdict["reward"] == 1.0 and "count.txt" in verdict["patch"]
    assert stats["num_turns"] == 3 and stats["num_tool_calls"] == 2
    blank, said = stats["harness"]["stdout"].splitlines()
    assert blank == "" and said.startswith(f"I wrote 34. {tmp_path}")
    outputs = [item["output"] for item in response["output"] if "output" in item]
    assert "one\n/work\n/root" in outputs[0], "a command of the session"
    assert not list(tmp_path.iterdir())


@IN_SESSION
def test_the_time_limit_ends_all_that_a_program_outside_has_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    command = f"setsid sleep 1000 & echo $! > {pid}; wait"
    with pytest.raises(RolloutError, match="before it asked the model"):
        play({**OUTSIDE, "command": f"{command.removesuffix('wait')} exit 3"})
    _, _, stats = play({**OUTSIDE, "command": command, "time_limit_s": 1.0})
    assert stats["harness"]["ended_by"] == "time"
    assert read_start(int(pid.read_text())) is None


def test_a_function_is_the_simplest_harness(tmp_path: Path) -> None:
    if not may_isolate():
        pytest.skip(NO_NAMESPACES)
    path = tmp_path / "mine.py"
    path.write_text(
        "async def run(task, client, shell):\n"
        "    asked = [{'role': 'user', 'content': task}]\n"
        "    said = await client.chat(messages=asked)\n"
        "    await shell.exec('echo 34 > count.txt')\n"
        "    return said['choices'][0]['message']['content'] + client.base_url[:7]\n"
    )
    response, verdict, stats = play({"function": f"{path}:run"})
    assert verdict["reward"] == 1.0 and output_text(response) == "I wrote 34."
    assert stats["harness"] == {"status": 0, "ended_by": "", "stdout": "I wrote 34.http://"}


def test_what_cannot_be_a_program_is_said_before_the_run(tmp_path: Path) -> None:
    for keys, why in (
        ({}, "a command or a function"),
        ({"function": "a.py:run", "resume_command": "a"}, "resume_command needs a command"),
        ({"function": "a.py:run", "outside": True}, "outside needs a command"),
        ({"command": "x", "function": "y:z"}, "not both"),
        ({"function": "nowhere.py:run"}, "there is no file"),
        ({"function": f"{__file__}:nothing"}, "no function 'nothing'"),
    ):
        with pytest.raises((ConfigError, ValueError), match=why):
            play(keys)


@IN_SESSION
def test_a_program_that_never_asks_fails_with_what_it_printed() -> None:
    with pytest.raises(RolloutError, match=r"status 127.*not-there") as caught:
        play({"command": "not-there"})
    assert not caught.value.retryable


@IN_SESSION
def test_past_a_limit_the_program_ends_and_what_it_left_is_verified() -> None:
    keys = {
        "command": "python3 /root/h.py; sleep 600",
        "files": {"/root/h.py": LOOP + "loop('x')\n"},
        "rollout_limits": {"calls": 2},
    }
    response, verdict, stats = play(keys)
    assert response["incomplete_details"] == {"reason": "rollout_limit"}
    assert stats["finish_reason"] == "rollout_limit" and stats["num_turns"] == 2
    assert stats["harness"]["ended_by"] == "calls" and verdict["reward"] == 1.0


@IN_SESSION
def test_at_its_time_limit_a_program_is_killed_with_all_that_it_started() -> None:
    keys = {
        "command": "(setsid sh -c 'sleep 3; echo late > /work/late' &) ; sleep 600",
        "time_limit_s": 0.5,
    }
    _, verdict, stats = play(keys)
    assert stats["harness"]["ended_by"] == "time" and stats["finish_reason"] == "time_limit"
    assert verdict["reward"] == 0.0 and "late" not in verdict["patch"]
