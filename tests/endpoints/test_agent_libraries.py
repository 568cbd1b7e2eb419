"""litellm, LangChain, Pydantic AI and OpenAI's Agents SDK at every model server of ours.

They need an environment of their own: `make test-clients`.
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from test_openai_clients import ASKED, CHAT_TOOLS, LIMIT, MESSAGES, SERVERS, Sum, behind, served

litellm = pytest.importorskip("litellm")
openai_of_langchain = pytest.importorskip("langchain_openai")
anthropic_of_langchain = pytest.importorskip("langchain_anthropic")
pydantic_ai = pytest.importorskip("pydantic_ai")
agents = pytest.importorskip("agents")

pytestmark = pytest.mark.filterwarnings("ignore")


class Url(str):
    """Of a model server, without /v1."""

    is_tiny = False
    """Whether its model is too small to find a tool in a schema of another style."""


@pytest.fixture(scope="module", params=SERVERS)
def url(request: pytest.FixtureRequest) -> Iterator[Url]:
    loop, stack = asyncio.new_event_loop(), AsyncExitStack()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    async def begin() -> str:
        return await stack.enter_async_context(served(await behind(stack, request.param)))

    try:
        found = Url(run(begin()))
        found.is_tiny = request.param == "local_model"
        yield found
    finally:
        run(stack.aclose())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


WANTS_SUM = {
    "type": "json_schema",
    "json_schema": {"name": "Sum", "schema": Sum.model_json_schema()},
}
REFUSED = r"text\.format|tool_choice"
"""What local_model says, which cannot keep to a schema."""


def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def reach(url: str, api: str) -> dict[str, Any]:
    base = url if api == "anthropic" else f"{url}/v1"
    return {"model": f"{api}/policy", "api_base": base, "api_key": "none", "num_retries": 0}


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_litellm_reads_text_streams_and_calls(url: Url, api: str) -> None:
    asked = {**reach(url, api), "messages": MESSAGES, "max_tokens": LIMIT, "temperature": 0}
    whole = litellm.completion(**asked)
    assert whole.choices[0].message.content
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    pieces = [
        each.choices[0].delta.content or "" for each in litellm.completion(**asked, stream=True)
    ]
    assert "".join(pieces) == whole.choices[0].message.content
    called = litellm.completion(**asked, tools=CHAT_TOOLS)
    [call] = called.choices[0].message.tool_calls
    assert json.loads(call.function.arguments).keys() == {"a", "b"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "13"}
    turns = [*MESSAGES, called.choices[0].message.model_dump(exclude_none=True), result]
    assert litellm.completion(**{**asked, "messages": turns}, tools=CHAT_TOOLS).choices[0]


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_litellm_reads_structured_output(url: Url, api: str) -> None:
    asked = {
        **reach(url, api),
        "messages": MESSAGES,
        "temperature": 0,
        "response_format": WANTS_SUM,
    }
    if url.is_tiny:
        with pytest.raises(litellm.BadRequestError, match=REFUSED):
            litellm.completion(**asked)
        return
    said = litellm.completion(**asked).choices[0].message.content
    assert Sum.model_validate_json(said)


def test_litellm_speaks_responses_and_sees_errors(url: Url) -> None:
    asked = {**reach(url, "openai"), "temperature": 0}
    response = litellm.responses(**asked, input=ASKED, max_output_tokens=LIMIT)
    assert response.status == "completed" and response.output
    with pytest.raises((litellm.BadRequestError, litellm.NotFoundError), match=r"resp_1|previous"):
        litellm.responses(**asked, input=ASKED, previous_response_id="resp_1")


def model_of_langchain(url: Url, api: str) -> Any:
    limits = {"max_tokens": LIMIT, "temperature": 0, "max_retries": 0}
    if api == "anthropic":
        where = {"model": "policy", "base_url": url, "api_key": "none"}
        return anthropic_of_langchain.ChatAnthropic(**where, **limits)
    where = {"model": "policy", "base_url": f"{url}/v1", "api_key": "none"}
    is_new = {"use_responses_api": api == "responses"}
    return openai_of_langchain.ChatOpenAI(**where, **limits, **is_new)


@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
def test_langchain_reads_text_streams_and_calls(url: Url, api: str) -> None:
    model = model_of_langchain(url, api)
    whole = model.invoke(ASKED)
    assert whole.text
    assert whole.usage_metadata["output_tokens"] > 0
    assert "".join(each.text for each in model.stream(ASKED)) == whole.text
    tools = model.bind_tools([add])
    called = tools.invoke(ASKED)
    [call] = called.tool_calls
    assert call["args"].keys() == {"a", "b"}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "13"}
    assert tools.invoke([("user", ASKED), called, result]) is not None


@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
def test_langchain_reads_structured_output(url: Url, api: str) -> None:
    model = model_of_langchain(url, api).with_structured_output(Sum, method="json_schema")
    if url.is_tiny:
        with pytest.raises(Exception, match=REFUSED):
            model.invoke(ASKED)
    else:
        assert isinstance(model.invoke(ASKED), Sum)


def model_of_pydantic_ai(url: Url, api: str) -> Any:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    if api == "anthropic":
        provider = AnthropicProvider(base_url=url, api_key="none")
        return AnthropicModel(
            "policy", provider=provider, profile={"supports_json_schema_output": True}
        )
    kind = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
    return kind("policy", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))


@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
def test_pydantic_ai_runs_an_agent_with_a_tool(url: Url, api: str) -> None:
    model = model_of_pydantic_ai(url, api)
    settings = {"temperature": 0, "max_tokens": LIMIT}
    agent = pydantic_ai.Agent(model, tools=[add], model_settings=settings)
    result = agent.run_sync(ASKED)
    assert result.output
    assert result.usage.tool_calls == 1


@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
def test_pydantic_ai_reads_structured_output(url: Url, api: str) -> None:
    agent = pydantic_ai.Agent(
        model_of_pydantic_ai(url, api),
        output_type=pydantic_ai.NativeOutput(Sum),
        model_settings={"temperature": 0},
    )
    if url.is_tiny:
        with pytest.raises(Exception, match=REFUSED):
            agent.run_sync(ASKED)
    else:
        assert isinstance(agent.run_sync(ASKED).output, Sum)


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_openai_agents_read_structured_output(url: Url, api: str) -> None:
    from agents import Agent, ModelSettings, Runner, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)

    async def main() -> Any:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            agent = Agent(
                name="adder",
                model=model_of_agents(client, api),
                output_type=Sum,
                model_settings=ModelSettings(temperature=0),
            )
            return (await Runner.run(agent, ASKED)).final_output

    if url.is_tiny:
        with pytest.raises(Exception, match=REFUSED):
            asyncio.run(main())
    else:
        assert isinstance(asyncio.run(main()), Sum)


def model_of_agents(client: Any, api: str) -> Any:
    kind = agents.OpenAIChatCompletionsModel if api == "chat" else agents.OpenAIResponsesModel
    return kind(model="policy", openai_client=client)


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_openai_agents_run_with_a_tool_and_stream(url: Url, api: str) -> None:
    from agents import (
        Agent,
        ModelSettings,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)

    async def main() -> None:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            agent = Agent(
                name="adder",
                model=model_of_agents(client, api),
                tools=[function_tool(add)],
                model_settings=ModelSettings(temperature=0, max_tokens=LIMIT),
            )
            result = await Runner.run(agent, ASKED)
            assert result.final_output
            has_called = any(item.type == "tool_call_output_item" for item in result.new_items)
            assert has_called or url.is_tiny
            streamed = Runner.run_streamed(agent, ASKED)
            async for _ in streamed.stream_events():
                pass
            assert streamed.final_output == result.final_output

    asyncio.run(main())
