"""The keys of a command that put a protocol of others in front of its environments: `mcp`, whose
tools every agent gets, and `openenv`, by which clients of OpenEnv reach them.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..types import JsonObject
from .instance_keys import is_url
from .instances import AGENTS, RESOURCES, Block, Instance, add_missing_agent, config_of
from .interpolation import Resolved
from .keys import Command

MCP, MCP_ENVIRONMENT = "mcp", "mcp_environment"

OPENENV, OPENENV_TASKS = "openenv", "openenv_tasks"
"""Keys of a resources server; the first is also the command's key that sets both."""


def with_mcp(
    blocks: list[Block], resolved: Resolved, command: type[Command], cwd: Path
) -> list[Block]:
    """The servers, with the MCP server that the key `mcp` names (a command or a URL) in front of
    each resources server that an agent asks. Without any, it is the only resources server."""
    where = str(resolved.values.get(MCP) or "") if MCP in command.model_fields else ""
    if not where:
        return blocks
    server: JsonObject = {"url": where} if is_url(where) else {"command": where}
    if not any(block.type == RESOURCES for block in blocks):
        return [*blocks, Block(MCP_ENVIRONMENT, RESOURCES, MCP_ENVIRONMENT, server, (MCP,))]
    found: dict[str, Block] = {}
    wired = []
    for block in [*blocks, *add_missing_agent(blocks, cwd, command.asks_policy)]:
        asked = block.given.get("resources_server")
        if block.type == AGENTS and isinstance(asked, dict) and "name" in asked:
            behind = str(asked["name"])
            front = f"{behind}_{MCP}"
            given = {**server, "verifier": {"type": RESOURCES, "name": behind}}
            found[front] = Block(front, RESOURCES, MCP_ENVIRONMENT, given, (MCP,))
            asks = {"type": RESOURCES, "name": front}
            block = block._replace(given={**block.given, "resources_server": asks})
        wired.append(block)
    return [*wired, *found.values()]


def with_openenv(given: Mapping[str, Instance], cwd: Path) -> dict[str, Instance]:
    """The servers, each resources server offered to clients of OpenEnv, with the first data set of
    an agent that asks it as its tasks."""
    tasks: dict[str, str] = {}
    for one in given.values():
        asked = one.settings.get("resources_server")
        paths = [each["jsonl_fpath"] for each in one.datasets if each.get("jsonl_fpath")]
        if one.type == AGENTS and isinstance(asked, dict) and paths:
            tasks.setdefault(str(asked.get("name")), str(paths[0]))
    offered = dict(given)
    for name, one in given.items():
        block = Block(name, one.type, one.implementation, one.settings, (name,), made=one.made)
        config = config_of(block, cwd) if one.type == RESOURCES and one.code is None else None
        if config is not None and OPENENV in config.model_fields:
            settings = {OPENENV_TASKS: tasks.get(name), **one.settings, OPENENV: True}
            offered[name] = replace(one, settings=settings)
    return offered
