"""OpenAI's own client, sync and async, streamed and not, at every model server of ours."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import openai
import pytest
from claude import Claude
from hosted import Endpoint, listening, refuses
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from rollout_kit.api.testing import ScriptedModel, making
from rollout_kit.serving import registry
from rollout_kit.serving.model import Model
from rollout_kit.serving.sockets import bound_socket, url_of
from rollout_kit.serving.transport.peers import Peers
from rollout_kit.types import JsonObject

ASKED = "What is 4+9? Use the tool."
MESSAGES: list[Any] = [{"role": "user", "content": ASKED}]
ADD: dict[str, Any] = {
    "name": "add",
    "description": "Add two integers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}
CHAT_TOOLS: list[Any] = [{"type": "function", "function": ADD}]
TOOLS: list[Any] = [{"type": "function", **ADD}]
LIMIT = 64


class Clients(NamedTuple):
    """Of one server."""

    sync: OpenAI
    asynchronous: AsyncOpenAI
    run: Callable[..., Any]
    """A coroutine, to its end, in the loop of the server."""


@asynccontextmanager
async def served(model: Model) -> AsyncIterator[str]:
    sock = bound_socket("127.0.0.1", 0)
    await model.start()
    try:
        async with model.serving(sock):
            yield url_of(sock)
    finally:
        await model.stop()


def made(name: str, **settings: Any) -> Any:
    return making(registry.load("responses_api_models", name), **settings)(Peers({}), name)


def simulated() -> Any:
    return made("simulated_model", num_tool_turns=1, model_name="policy", text="Well, " * 20)


def say_or_call(turn: int, request: JsonObject) -> list[JsonObject]:
    """Call the tool, if there is one, and then answer, in JSON if that is wanted."""
    if "format" in (request.get("output_config") or {}):
        return [{"type": "text", "text": '{"number": 13, "is_even": false}'}]
    if request.get("tools") and turn == 1:
        name = request["tools"][0]["name"]  # a schema can be the tool that must be called
        given = {"a": 4, "b": 9} if name == "add" else {"number": 13, "is_even": False}
        return [{"type": "tool_use", "id": "toolu_1", "name": name, "input": given}]
    return [{"type": "text", "text": "Well, " * 20}]


async def behind(stack: AsyncExitStack, name: str) -> Model:
    """The model server that stands under `name`, in front of a simulated model where it needs
    one."""
    kind, _, api = name.partition(" ")
    if kind == "simulated_model":
        return simulated()
    if kind == "local_model":
        return made("local_model", model_name="policy", temperature=0)
    if kind == "anthropic_model":
        url = await stack.enter_async_context(listening(Claude(say_or_call, key="key")))
        where = {"anthropic_base_url": url, "anthropic_api_key": "key"}
        return made(kind, **where, anthropic_model="policy")
    if kind == "azure_openai_model":
        url = await stack.enter_async_context(served(simulated()))
        where = {"azure_endpoint": url, "azure_deployment": "policy", "api_key": "key"}
        old = {"api_version": "2024-10-21"} if api else {}
        return made(kind, **where, **old, upstream_api=api or "responses")
    url = await stack.enter_async_context(served(simulated()))
    if kind == "vllm_model":
        return made(kind, model_name="policy", base_url=url)
    where = {"openai_base_url": f"{url}/v1", "openai_model": "policy"}
    return made(kind, **where, upstream_api=api or "responses", stream=True)


SERVERS = [
    "simulated_model",
    "local_model",
    "vllm_model",
    "openai_model",
    "openai_model chat_completions",
    "azure_openai_model",
    "azure_openai_model chat_completions",
    "anthropic_model",
]


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def clients(server: str) -> Iterator[Clients]:
    if server == "local_model":
        pytest.importorskip("ctranslate2")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    stack = AsyncExitStack()

    async def begin() -> tuple[str, AsyncOpenAI]:
        url = await stack.enter_async_context(served(await behind(stack, server)))
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        return url, await stack.enter_async_context(client)

    url, asynchronous = run(begin())
    try:
        with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as sync:
            yield Clients(sync, asynchronous, run)
    finally:
        run(stack.aclose())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def test_a_response_is_the_same_to_both_and_streamed(clients: Clients) -> None:
    asked: dict[str, Any] = {"model": "policy", "input": ASKED, "temperature": 0}
    asked["max_output_tokens"] = LIMIT
    whole = clients.sync.responses.create(**asked)
    assert whole.output_text and whole.usage and whole.usage.output_tokens > 0
    assert (whole.object, whole.model) == ("response", "policy")
    again = clients.run(clients.asynchronous.responses.create(**asked))
    assert again.output_text == whole.output_text

    async def streamed() -> list[Any]:
        stream = await clients.asynchronous.responses.create(**asked, stream=True)
        return [event async for event in stream]

    for events in (
        list(clients.sync.responses.create(**asked, stream=True)),
        clients.run(streamed()),
    ):
        assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
        assert events[-1].type == f"response.{whole.status}"
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert "".join(deltas) == whole.output_text == events[-1].response.output_text
        assert events[-1].response.usage == whole.usage
        assert [event.sequence_number for event in events] == list(range(len(events)))
    with clients.sync.responses.stream(**asked) as stream:
        assert stream.get_final_response().output_text == whole.output_text


def test_a_chat_completion_is_the_same_to_both_and_streamed(clients: Clients) -> None:
    asked: dict[str, Any] = {"model": "policy", "messages": MESSAGES, "temperature": 0}
    asked["max_completion_tokens"] = LIMIT
    whole = clients.sync.chat.completions.create(**asked)
    said = whole.choices[0].message.content
    assert said and whole.usage and whole.usage.completion_tokens > 0
    assert (whole.object, whole.model) == ("chat.completion", "policy")
    again = clients.run(clients.asynchronous.chat.completions.create(**asked))
    assert again.choices[0].message.content == said
    told = {"stream": True, "stream_options": {"include_usage": True}}

    async def streamed() -> list[Any]:
        stream = await clients.asynchronous.chat.completions.create(**asked, **told)
        return [chunk async for chunk in stream]

    for chunks in (
        list(clients.sync.chat.completions.create(**asked, **told)),
        clients.run(streamed()),
    ):
        choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
        assert "".join(each.delta.content or "" for each in choices) == said
        assert choices[-1].finish_reason == whole.choices[0].finish_reason
        assert chunks[-1].usage.model_dump() == whole.usage.model_dump()
    with clients.sync.chat.completions.stream(**asked) as stream:
        assert stream.get_final_completion().choices[0].message.content == said


def test_tools_are_called_and_their_outputs_read_in_both_apis(clients: Clients) -> None:
    asked: dict[str, Any] = {"model": "policy", "tools": TOOLS, "temperature": 0}
    first = clients.sync.responses.create(**asked, input=MESSAGES)
    [call] = [item for item in first.output if item.type == "function_call"]
    assert call.name == "add" and json.loads(call.arguments).keys() == {"a", "b"}
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "13"}
    turns = [*MESSAGES, *(item.model_dump(exclude_unset=True) for item in first.output), output]
    assert clients.sync.responses.create(**asked, input=turns).output_text

    chat: dict[str, Any] = {"model": "policy", "tools": CHAT_TOOLS, "temperature": 0}
    choice = clients.sync.chat.completions.create(**chat, messages=MESSAGES).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
    [made_call] = choice.message.tool_calls
    assert made_call.function.name == "add"
    assert json.loads(made_call.function.arguments).keys() == {"a", "b"}
    said = choice.message.model_dump(exclude_unset=True)
    turns = [*MESSAGES, said, {"role": "tool", "tool_call_id": made_call.id, "content": "13"}]
    assert clients.sync.chat.completions.create(**chat, messages=turns).choices[0].message.content
    with clients.sync.chat.completions.stream(**chat, messages=MESSAGES) as stream:
        [streamed] = stream.get_final_completion().choices[0].message.tool_calls or []
    assert json.loads(streamed.function.arguments).keys() == {"a", "b"}


class Sum(BaseModel):
    number: int
    is_even: bool


def test_structured_output_is_what_the_schema_says(clients: Clients, server: str) -> None:
    asked: dict[str, Any] = {"model": "policy", "temperature": 0}
    if server == "local_model":  # it cannot, and says so
        with pytest.raises(openai.BadRequestError, match="format"):
            clients.sync.responses.parse(**asked, input=ASKED, text_format=Sum)
        with pytest.raises(openai.BadRequestError, match="format"):
            clients.sync.chat.completions.parse(**asked, messages=MESSAGES, response_format=Sum)
        return
    assert isinstance(
        clients.sync.responses.parse(**asked, input=ASKED, text_format=Sum).output_parsed, Sum
    )
    whole = clients.sync.chat.completions.parse(**asked, messages=MESSAGES, response_format=Sum)
    assert isinstance(whole.choices[0].message.parsed, Sum)
    told: dict[str, Any] = {**asked, "messages": MESSAGES, "response_format": Sum}
    with clients.sync.chat.completions.stream(**told) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Sum)


def test_the_model_is_listed(clients: Clients) -> None:
    assert [each.id for each in clients.sync.models.list()] == ["policy"]

    async def listed() -> list[str]:
        return [each.id async for each in clients.asynchronous.models.list()]

    assert clients.run(listed()) == ["policy"]
    assert clients.sync.models.retrieve("policy").id == "policy"
    with pytest.raises(openai.NotFoundError, match="no model is called 'org/other'"):
        clients.sync.models.retrieve("org/other")


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_is_none_is_a_bad_one(clients: Clients, stream: bool) -> None:
    bad: Any = 5
    with pytest.raises(openai.BadRequestError, match="input") as caught:
        clients.sync.responses.create(model="policy", input=bad, stream=stream)
    assert caught.value.status_code == 400
    with pytest.raises(openai.BadRequestError) as caught:
        clients.run(
            clients.asynchronous.chat.completions.create(
                model="policy", messages=bad, stream=stream
            )
        )
    assert caught.value.status_code == 400


def test_a_route_that_is_none_is_not_found(clients: Clients) -> None:
    with pytest.raises(openai.NotFoundError):
        clients.sync.embeddings.create(model="policy", input="Hi")


@pytest.mark.parametrize(
    "status, kind",
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (403, openai.PermissionDeniedError),
        (404, openai.NotFoundError),
        (409, openai.ConflictError),
        (422, openai.UnprocessableEntityError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_endpoint_says_reaches_the_client(
    status: int, kind: type[openai.APIStatusError], stream: bool
) -> None:
    async def main() -> openai.APIStatusError:
        async with listening(Endpoint(refuses(status, "the policy says no"))) as url:
            where = {"openai_base_url": url, "openai_model": "m", "max_tries": 1}
            where["request_timeout_s"] = 2.0  # a throttled request is held for half of it
            async with (
                served(made("openai_model", **where)) as front,
                AsyncOpenAI(base_url=f"{front}/v1", api_key="none", max_retries=0) as client,
            ):
                with pytest.raises(kind) as caught:
                    await client.responses.create(model="m", input="Hi", stream=stream)
                return caught.value

    error = asyncio.run(main())
    assert error.status_code == status and "the policy says no" in error.message


def test_the_run_s_token_is_the_key_beyond_this_machine() -> None:
    async def main() -> str:
        model = ScriptedModel(lambda params: "Hi")
        sock = bound_socket("0.0.0.0", 0)
        url = f"http://127.0.0.1:{sock.getsockname()[1]}/v1"
        async with model.serving(sock, token="the-token"):
            async with AsyncOpenAI(base_url=url, api_key="another", max_retries=0) as stranger:
                with pytest.raises(openai.AuthenticationError, match="token of this run"):
                    await stranger.responses.create(model="m", input="Hi")
            for name in ("x-api-key", "api-key"):  # as clients of Anthropic and Azure send it
                headers = {"authorization": "", name: "the-token"}
                async with AsyncOpenAI(
                    base_url=url, api_key="none", default_headers=headers, max_retries=0
                ) as other:
                    assert (await other.responses.create(model="m", input="Hi")).output_text == "Hi"
            async with AsyncOpenAI(base_url=url, api_key="the-token", max_retries=0) as known:
                return (await known.responses.create(model="m", input="Hi")).output_text

    assert asyncio.run(main()) == "Hi"
