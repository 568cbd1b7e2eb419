"""Run by OpenEnv's interpreter: its own clients at a server of ours, whose URL is the argument. The
last part is what TRL's harness worker does with a session, with a scripted model."""

import asyncio
import json
import sys

from openenv.core import GenericEnvClient
from openenv.core.env_server.mcp_types import Tool
from openenv.core.harness import (
    MCPHarnessAdapter,
    ModelStepResult,
    StepEnvSessionAdapter,
)
from openenv.core.llm_client import LLMResponse, ToolCall
from openenv.core.mcp_client import MCPToolClient

URL, CALLS = sys.argv[1], json.loads(sys.argv[2])


async def by_steps():
    async with GenericEnvClient(base_url=URL) as env:
        first = await env.reset(task_index=0)
        for name, arguments in CALLS:
            last = await env.step({"type": "call_tool", "tool_name": name, "arguments": arguments})
        state = await env.state()
        return [first.observation["text"], last.reward, last.done, state]


async def over_mcp():
    async with MCPToolClient(base_url=URL) as env:
        tools = [each.name for each in await env.list_tools()]
        await env.reset(task_index=0)
        name, arguments = CALLS[0]
        return [tools, await env.call_tool(name, **arguments)]


def as_trl():
    """TRL calls `create`, `run_white_box`, `verify` and `close`, in this order."""
    calls = iter(CALLS)

    def sample(messages, tools, sampling):
        made = next(calls, None)
        asked = [] if made is None else [ToolCall(id="c", name=made[0], args=made[1])]
        return ModelStepResult(response=LLMResponse(content="", tool_calls=asked))

    client = GenericEnvClient(base_url=URL)
    session = StepEnvSessionAdapter(
        client,
        tool_specs=[Tool(name=name, description="", input_schema={}) for name in dict(CALLS)],
        action_builder=lambda name, arguments: {"tool_name": name, "arguments": arguments},
        initial_messages_builder=lambda result, state: result.observation["messages"],
        reset_kwargs={"task_index": 0},
    )
    try:
        played = MCPHarnessAdapter().run_white_box(sample, session)
        verdict = session.verify(played.messages)
    finally:
        session.close()
    return [len(played.tool_trace), played.done, verdict.env_reward]


found = {"steps": asyncio.run(by_steps()), "mcp": asyncio.run(over_mcp()), "trl": as_trl()}
sys.stdout.write(json.dumps(found))
