"""The turns of a rollout that is in flight, on the live page of its run."""

import json
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from endpoint import endpoint
from kill_counts import MODEL, TURNS, add_one, count_command
from support import HANG_S
from workplace import ROOT, said_until

from rollout_kit.collecting.live.flight import describe_flight, name_last
from rollout_kit.responses import (
    function_call_item,
    function_call_output,
    make_response,
    message_item,
    reasoning_item,
)
from rollout_kit.serving.agents.returned_items import find_returned, shorten_returned
from rollout_kit.serving.gymnasium import observation_item


def test_the_turns_so_far_are_described() -> None:
    given = {"command": "ls -l", "timeout_s": 0, "why": "x" * 9_000}
    call = function_call_item("bash", json.dumps(given), "c")
    said = [reasoning_item("Where am I?"), message_item("I look.\nThen I think."), call]
    turns = [
        {"response": make_response("m", said, {"total_tokens": 9})},
        {"response": make_response("m", [message_item("Done.")], None)},
        {"waits": True},
    ]
    first, second, third = describe_flight(turns)
    assert (first["number"], first["tokens"]) == (1, 9)
    assert (first["reasoning"], first["says"]) == ("Where am I?", "I look.\nThen I think.")
    [tool] = first["tools"]
    command, timeout, why = tool["arguments"]
    assert tool["name"] == "bash" and command == {"name": "command", "text": "ls -l"}
    assert timeout["text"] == "0" and "… 5,000 more characters …" in why["text"]
    assert (second["says"], second["tools"]) == ("Done.", [])
    assert third["says"] == "" and name_last(turns[:1]) == "bash ls -l"
    assert name_last(turns[:2]) == "Done." and name_last([]) == ""
    assert [each["number"] for each in describe_flight([turns[1]] * 500)][::199] == [301, 500]
    assert [each["number"] for each in describe_flight([turns[1]] * 9, since=8)] == [8, 9]
    assert len(describe_flight([turns[1]] * 3, since=8)) == 3  # it has begun again
    told = {"response": make_response("m", [function_call_item("look", "north", "c")], None)}
    assert describe_flight([told])[0]["tools"][0]["arguments"] == [{"name": "", "text": "north"}]


def test_what_came_back_for_a_turn_is_described_with_it() -> None:
    call, long = function_call_item("bash", '{"command": "make"}', "c"), "x" * 9_000
    response = make_response("m", [call], None)
    turns = [{"request": "a", "response": response}, {"request": "b", "response": response}]
    asked = [message_item("Go."), call, function_call_output("c", f"begin {long} Error: end")]
    returned = shorten_returned(find_returned(asked, has_calls=True))
    first, second = describe_flight(turns, {"a": returned})
    [tool], [other] = first["tools"], second["tools"]
    assert tool["output"].startswith("begin x") and tool["output"].endswith("x Error: end")
    assert "… 5,017 more characters …" in tool["output"] and len(tool["output"]) < 4_100
    assert other["output"] is None
    game = [*asked[:2], observation_item("You are in a cave.")]
    assert find_returned(game, has_calls=False) == game[2:]
    assert find_returned([*asked, message_item("Hm.")], has_calls=False) == []
    [moved] = describe_flight(turns[:1], {"a": shorten_returned(game[2:])})
    assert moved["answer"] == "You are in a cave."


@pytest.mark.parametrize("where", [(), ("+executor=processes", "+num_workers=2")])
def test_a_rollout_in_flight_is_watched(tmp_path: Path, where: tuple[str, ...]) -> None:
    with endpoint(add_one, delay_s=0.3) as point:
        point.num_answered = 3 * (TURNS - 2)
        (tmp_path / "model.yaml").write_text(MODEL.format(url=point.url))
        command = count_command(tmp_path, str(tmp_path / "model.yaml"), "+dashboard=true", *where)
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            said = said_until(process, "Live page: ")
            url = said.rpartition("Live page: ")[2].split()[0].rstrip("/")
            waiting = wait_for_turns(url)
            run = ask(f"{url}/api/live")["collections"][0]["run_id"]
            address = f"{url}/api/turns?run={run}&rollout={waiting['rollout']}"
            turns, newest = ask(address), ask(f"{address}&since={waiting['turns']}")
            point.num_answered = 1e9
            process.communicate(timeout=HANG_S)
            assert process.returncode == 0
    assert "add" in waiting["last"] and waiting["tokens"] >= 7 * waiting["turns"]
    assert [turn["number"] for turn in turns] == list(range(1, len(turns) + 1))
    [tool] = turns[1]["tools"]
    assert tool["name"] == "add" and newest[0]["number"] == waiting["turns"]
    assert [[*each.values()] for each in tool["arguments"]] == [["a", "1"], ["b", "1"]]
    outputs = [turn["tools"][0]["output"] for turn in turns[:-1]]
    assert outputs == list(map(str, range(1, len(turns))))


def wait_for_turns(url: str) -> dict[str, Any]:
    give_up = time.monotonic() + HANG_S
    while time.monotonic() < give_up:
        for each in ask(f"{url}/api/live")["collections"][0]["slowest"]:
            if each["turns"] >= 3:
                return each
        time.sleep(0.05)
    raise AssertionError("no turn was reported")


def ask(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=HANG_S) as reply:
        return json.load(reply)
