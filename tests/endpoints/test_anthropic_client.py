"""Anthropic's own client at a model server of ours."""

import asyncio
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any

import pytest
from test_openai_clients import served

from rollout_kit.api.testing import ScriptedModel, call_response, text_response
from rollout_kit.types import JsonObject

if find_spec("anthropic") is None:
    pytest.skip("anthropic is not installed", allow_module_level=True)

ADD: Any = {
    "name": "add",
    "description": "Add two integers.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
USER: Any = {"role": "user", "content": "1 + 2?"}


def say(params: JsonObject) -> JsonObject:
    """Call the tool if there is one and it has not answered; else repeat the last text."""
    last = params["input"][-1]
    if params.get("tools") and last.get("type") != "function_call_output":
        return call_response(("add", '{"a": 1, "b": 2}'))
    if "output" in last:
        return text_response(f"It is {last['output']}.")
    content = last["content"]
    return text_response(content if isinstance(content, str) else content[-1]["text"])


def with_client(use: Callable[[Any], Awaitable[Any]]) -> Any:
    # Imported late: at the top of the module, each process of the tests would load it.
    import anthropic

    async def run() -> Any:
        async with (
            served(ScriptedModel(say)) as url,
            anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0) as client,
        ):
            return await use(client)

    return asyncio.run(run())


def test_a_tool_is_called_and_its_result_returned() -> None:
    async def use(client: Any) -> tuple[Any, Any]:
        ask = {"model": "m", "max_tokens": 50, "tools": [ADD]}
        called = await client.messages.create(messages=[USER], **ask)
        [call] = called.content
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "3"}
        said: Any = [{"role": "assistant", "content": called.content}]
        said.append({"role": "user", "content": [result]})
        return called, await client.messages.create(messages=[USER, *said], **ask)

    called, answered = with_client(use)
    [call] = called.content
    assert (called.stop_reason, call.name, call.input) == ("tool_use", "add", {"a": 1, "b": 2})
    assert (answered.stop_reason, answered.content[0].text) == ("end_turn", "It is 3.")
    assert answered.usage.output_tokens == 3


@pytest.mark.parametrize("tools", [[], [ADD]])
def test_a_streamed_message_is_the_one_that_is_not_streamed(tools: list[Any]) -> None:
    async def use(client: Any) -> tuple[Any, Any]:
        ask = {"model": "m", "max_tokens": 50, "messages": [USER], "tools": tools}
        async with client.messages.stream(**ask) as stream:
            async for _ in stream:
                pass
            streamed = await stream.get_final_message()
        return streamed, await client.messages.create(**ask)

    def essence(message: Any) -> Any:
        found = [block.model_dump(exclude={"id"}, exclude_none=True) for block in message.content]
        return found, message.stop_reason, message.usage.output_tokens

    streamed, whole = with_client(use)
    assert essence(streamed) == essence(whole)
    assert whole.content[0].type == ("tool_use" if tools else "text")


def test_its_tool_runner_ends_with_the_answer() -> None:
    async def use(client: Any) -> list[Any]:
        import anthropic

        @anthropic.beta_async_tool
        async def add(a: int, b: int) -> str:
            """Add two integers."""
            return str(a + b)

        ask = {"model": "m", "max_tokens": 50, "messages": [USER]}
        return [each async for each in client.beta.messages.tool_runner(tools=[add], **ask)]

    assert with_client(use)[-1].content[0].text == "It is 3."


def test_a_document_of_text_is_read_and_other_parts_are_refused() -> None:
    source: Any = {"type": "text", "media_type": "text/plain", "data": "a document"}

    async def use(client: Any) -> str:
        part: Any = {"type": "document", "source": source}
        ask = {"model": "m", "max_tokens": 50}
        message = await client.messages.create(
            messages=[{"role": "user", "content": [part]}], **ask
        )
        import anthropic

        with pytest.raises(anthropic.BadRequestError, match="there is no part 'document'"):
            source["type"] = "base64"
            await client.messages.create(messages=[{"role": "user", "content": [part]}], **ask)
        return message.content[0].text

    assert with_client(use) == "a document"
