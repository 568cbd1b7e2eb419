"""Shell commands for agents of others, whatever their tools and their prompts are."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rollout_kit.api.testing import making, mount
from rollout_kit.errors import ConfigError
from rollout_kit.serving import registry
from rollout_kit.session import Session, entered
from rollout_kit.types import JsonObject

SIMULATED = registry.load("responses_api_models", "simulated_model")

SHELL = {
    "name": "shell",
    "parameters": {
        "properties": {
            "command": {"type": "array", "items": {"type": "string"}},
            "why": {"type": "string"},
        },
        "required": ["command", "why"],
    },
}
OTHER = {"name": "read", "parameters": {"properties": {"path": {"type": "string"}}}}
BASH = {"name": "bash", "parameters": {"properties": {"cmd": {"type": "string"}}}}


def ask(path: Path, asked: list[JsonObject], **keys: Any) -> list[JsonObject]:
    settings = {"answer": "commands", "script_jsonl_fpath": str(path), **keys}

    async def main() -> list[JsonObject]:
        async with mount({"m": making(SIMULATED, **settings)}) as peers:
            with entered(Session()):
                found = [await peers.call("m", "/v1/responses", each, dict) for each in asked]
        return [each["output"][-1] for each in found]

    return asyncio.run(main())


def request(text: str, tool: JsonObject | None, num_done: int = 0) -> JsonObject:
    items: list[JsonObject] = [{"role": "user", "content": f"You are an agent. Task: {text}!"}]
    for number in range(num_done):
        call = {"call_id": f"c{number}", "name": "x", "arguments": "{}"}
        items.append({"type": "function_call", **call})
        items.append({"type": "function_call_output", "call_id": f"c{number}", "output": "ok"})
    tools = [] if tool is None else [{"type": "function", **each} for each in (OTHER, tool)]
    return {"input": items, "tools": tools}


def test_the_commands_of_a_row_are_played_to_any_tool_for_commands(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    params = {"input": "count the lines"}
    path.write_text(json.dumps({"responses_create_params": params, "gold_commands": ["ls", "wc"]}))
    task = "count the lines"
    first, second, last, over, aside, unknown = ask(
        path,
        [
            request(task, SHELL),
            request(task, BASH, 1),
            request(task, BASH, 2),
            request(task, BASH, 3),
            request(task, None),
            request("something else", BASH),
        ],
        last_command="echo END",
    )
    assert json.loads(first["arguments"]) == {"command": ["bash", "-c", "ls"], "why": "text"}
    assert (second["name"], json.loads(second["arguments"])) == ("bash", {"cmd": "wc"})
    assert json.loads(last["arguments"]) == {"cmd": "echo END"}
    assert {each["type"] for each in (over, aside, unknown)} == {"message"}


def test_rows_without_commands_are_refused_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"responses_create_params": {"input": "x"}}\n')
    with pytest.raises(ConfigError, match=r"rows\.jsonl:1: no row"):
        ask(path, [])
