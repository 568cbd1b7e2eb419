"""Scripted shell commands for agents of others: each wraps the task in prompts of its own, and has
its own tool for commands."""

from pathlib import Path
from typing import Any

import orjson

from rollout_kit.errors import ConfigError
from rollout_kit.serving.registry import resolve_path
from rollout_kit.types import JsonObject

from .arguments import make_value
from .asked import RESPONSES, Asked, Tool, read
from .draws import Draws
from .script import Turn

PARAMETERS = ("command", "cmd")
"""Names of a parameter that is a command of the shell."""

DONE = "It is done."


class CommandScript:
    """The commands of the row whose task is part of the prompt, one a turn, then a sentence.

    `last` is a command with which the agent wants to be told the end."""

    def __init__(self, rows: dict[str, list[str]], source: str, last: str) -> None:
        self._rows, self._source, self._last = rows, source, last

    @classmethod
    def read(cls, path: str, last: str) -> "CommandScript":
        """Read the rows; ConfigError names an invalid line."""
        found = resolve_path(path)
        if found is None or not found.is_file():
            raise ConfigError(f"script_jsonl_fpath {path}: no such file")
        return cls(_read_rows(found, path), path, last)

    def turn(self, asked: Asked, draws: Draws) -> Turn:
        """The next command, as a call of the tool for commands. Without such a tool, or for another
        task, it is a sentence."""
        commands = next((own for task, own in self._rows.items() if task in asked.prompt), None)
        tool = _find_tool(asked.tools)
        if commands is None or tool is None:
            return Turn(DONE)
        due = [*commands, self._last] if self._last else commands
        if asked.num_turns >= len(due):
            return Turn(DONE)
        made = _write_arguments(*tool, due[asked.num_turns], draws)
        return Turn("", ((tool[0].name, orjson.dumps(made).decode()),))


def _read_rows(found: Path, path: str) -> dict[str, list[str]]:
    rows: dict[str, list[str]] = {}
    for number, line in enumerate(found.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
            task = read(RESPONSES, row["responses_create_params"]).question
            commands = row["gold_commands"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path}:{number}: no row with gold_commands: {error!r}") from None
        rows[task] = [str(each) for each in commands]
    # a task that contains another one is found first
    return dict(sorted(rows.items(), key=lambda each: -len(each[0])))


def _find_tool(tools: tuple[Tool, ...]) -> tuple[Tool, str, JsonObject] | None:
    """The first tool that takes a command, the parameter's name, and its schema."""
    for tool in tools:
        properties = tool.parameters.get("properties") or {}
        for name in PARAMETERS:
            if isinstance(schema := properties.get(name), dict):
                return tool, name, schema
    return None


def _write_arguments(
    tool: Tool, name: str, schema: JsonObject, command: str, draws: Draws
) -> JsonObject:
    properties = tool.parameters.get("properties") or {}
    made: dict[str, Any] = {
        each: make_value(properties.get(each) or {}, draws)
        for each in tool.parameters.get("required") or ()
        if each != name
    }
    return {**made, name: ["bash", "-c", command] if schema.get("type") == "array" else command}
