"""What a model server answers to a client of others, by the types of the newest OpenAI package and
by the standard Open Responses: nothing is missing, and nothing is unknown."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from claude import Claude
from hosted import Endpoint, asks, gives, listening, running, with_model
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter
from support import HANG_S, read_jsonl, write_jsonl
from test_openai_clients import ADD, SERVERS, TOOLS, behind, made, served
from trainer_engine import PlayedEngine
from workplace import ROOT

from rollout_kit.api.testing import ScriptedModel
from rollout_kit.errors import TaskError
from rollout_kit.responses import (
    function_call_item,
    function_call_output,
    function_calls,
    make_response,
    message_item,
    reasoning_item,
)
from rollout_kit.serving.endpoints.open_responses import complete, seal_items, unseal_items
from rollout_kit.serving.endpoints.provider_data import keep
from rollout_kit.serving.model import Model
from rollout_kit.session import Session
from rollout_kit.trajectory import TOKEN_FIELDS, VERSION_FIRST, VERSION_LAST
from rollout_kit.types import JsonObject

REQUIRED = {
    *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model"),
    *("previous_response_id", "instructions", "output", "error", "tools", "tool_choice"),
    *("truncation", "parallel_tool_calls", "text", "top_p", "presence_penalty", "user"),
    *("frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage", "metadata"),
    *("max_output_tokens", "max_tool_calls", "store", "background", "service_tier"),
    *("safety_identifier", "prompt_cache_key"),
}
"""Fields that Open Responses requires."""

NOT_NULL = {
    *("truncation", "text", "top_p", "temperature", "presence_penalty", "frequency_penalty"),
    *("top_logprobs", "store", "background", "service_tier", "tools", "tool_choice", "metadata"),
    *("parallel_tool_calls", "output", "created_at", "model", "status"),
}

OF_STANDARD = {"presence_penalty", "frequency_penalty", "store"}
"""Fields of Open Responses that OpenAI's type lacks, though its API has them."""

OF_TOKENS = TOKEN_FIELDS | {VERSION_FIRST, VERSION_LAST}
"""What `trainer_model` is for: each of its answers has its tokens."""

REQUIRED_OF_ITEMS = {
    "message": {"type", "id", "status", "role", "content"},
    "function_call": {"type", "id", "call_id", "name", "arguments", "status"},
    "reasoning": {"type", "id", "summary"},
}


def unknown_fields(value: Any, at: str = "") -> Iterator[str]:
    """The fields that a model of the OpenAI package does not know, at any depth."""
    if isinstance(value, BaseModel):
        yield from (f"{at}.{name}" for name in value.model_extra or {})
        for name in type(value).model_fields:
            yield from unknown_fields(getattr(value, name, None), f"{at}.{name}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from unknown_fields(each, f"{at}.{number}")


def check(response: JsonObject, allowed: frozenset[str] = frozenset()) -> None:
    """Fail unless a response has all fields with their types, and no others."""
    assert REQUIRED - response.keys() == set()
    assert not {name for name in NOT_NULL if response[name] is None}
    read = Response.model_validate(response)
    found = {path for path in unknown_fields(read) if path.rpartition(".")[2] not in allowed}
    assert found == {f".{name}" for name in OF_STANDARD}
    for tool in response["tools"]:
        assert {"type", "name", "description", "parameters", "strict"} <= tool.keys()
    for item in response["output"]:
        assert REQUIRED_OF_ITEMS[item["type"]] <= item.keys()
        for part in item.get("content") or () if item["type"] == "message" else ():
            assert part["type"] == "refusal" or {"text", "annotations", "logprobs"} <= part.keys()


@cache
def event_type() -> TypeAdapter[Any]:
    return TypeAdapter(ResponseStreamEvent)


def check_event(event: JsonObject, allowed: frozenset[str] = frozenset()) -> None:
    read = event_type().validate_python(event)
    assert type(read).model_fields["type"].annotation.__args__ == (event["type"],)  # type: ignore[union-attr]
    if "response" in event:
        check(event["response"], allowed)
    own = {name: value for name, value in event.items() if name != "response"}
    assert own.keys() <= type(read).model_fields.keys()
    if "item" in event:
        assert not {p for p in unknown_fields(read.item) if p.rpartition(".")[2] not in allowed}


async def trainer(stack: AsyncExitStack) -> Model:
    engine = PlayedEngine()
    model = made("trainer_model", model_name="policy", temperature=0)
    model.use_engine(engine.with_tokenizer())
    stack.push_async_callback(engine.engine.close)
    return model


class Client:
    """Posts JSON to a model server, and knows no session."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url, self._session = url, session

    async def post(self, path: str, body: JsonObject) -> tuple[int, Any]:
        async with self._session.post(f"{self._url}{path}", json=body) as reply:
            return reply.status, json.loads(await reply.read())

    async def respond(self, **body: Any) -> JsonObject:
        status, response = await self.post("/v1/responses", {"model": "policy", **body})
        assert status == 200, response
        return response

    async def stream(self, **body: Any) -> list[JsonObject]:
        asked = {"model": "policy", **body, "stream": True}
        async with self._session.post(f"{self._url}/v1/responses", json=asked) as reply:
            text = (await reply.read()).decode()
        lines = [line for line in text.splitlines() if line.startswith("data: ")]
        return [json.loads(line.removeprefix("data: ")) for line in lines]


def through(
    make: Callable[[AsyncExitStack], Awaitable[Model]], use: Callable[[Client], Awaitable[Any]]
) -> Any:
    """Run `use` with a client of a server over HTTP."""

    async def main() -> Any:
        async with AsyncExitStack() as stack:
            url = await stack.enter_async_context(served(await make(stack)))
            session = await stack.enter_async_context(aiohttp.ClientSession())
            return await use(Client(url, session))

    return asyncio.run(main())


ALL = [*SERVERS, "trainer_model"]
Using = Callable[[Callable[[Client], Awaitable[Any]]], Any]


@pytest.fixture(params=ALL)
def server(request: pytest.FixtureRequest) -> tuple[str, Using]:
    name = request.param
    if name in ("local_model", "trainer_model"):
        pytest.importorskip("ctranslate2")

    def use(work: Callable[[Client], Awaitable[Any]]) -> Any:
        return through(trainer if name == "trainer_model" else lambda s: behind(s, name), work)

    return name, use


def allowed_of(name: str) -> frozenset[str]:
    return OF_TOKENS if name == "trainer_model" else frozenset()


ASKED = "What is 4+9? Use the tool."


def test_text(server: tuple[str, Using]) -> None:
    name, use = server
    given = {"max_output_tokens": 64, "temperature": 0, "metadata": {"a": "b"}, "user": "u"}
    response = use(lambda client: client.respond(input=ASKED, **given))
    check(response, allowed_of(name))
    assert {key: response[key] for key in given} == given
    assert (response["status"], response["store"]) == ("completed", False)
    assert response["completed_at"] >= response["created_at"]


def test_a_stream(server: tuple[str, Using]) -> None:
    name, use = server
    events = use(lambda client: client.stream(input=ASKED, temperature=0, max_output_tokens=64))
    for event in events:
        check_event(event, allowed_of(name))
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["completed_at"] is None
    assert events[-1]["type"] == "response.completed"


def test_a_system_prompt(server: tuple[str, Using]) -> None:
    name, use = server
    asked = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": ASKED}]
    response = use(lambda client: client.respond(input=asked, instructions="Be brief."))
    check(response, allowed_of(name))
    assert response["instructions"] == "Be brief."


def test_a_tool_call_and_several_turns(server: tuple[str, Using]) -> None:
    name, use = server

    async def work(client: Client) -> list[JsonObject]:
        items: list[JsonObject] = [{"role": "user", "content": ASKED}]
        given: JsonObject = {"tools": TOOLS, "temperature": 0, "max_output_tokens": 64}
        responses = []
        for _ in range(3):
            responses.append(await client.respond(input=items, **given))
            items += responses[-1]["output"]
            if calls := function_calls(responses[-1]["output"]):
                items += [function_call_output(each["call_id"], "13") for each in calls]
            else:
                items.append({"role": "user", "content": ASKED})
        return responses

    responses = use(work)
    for response in responses:
        check(response, allowed_of(name))
    assert function_calls(responses[0]["output"])[0]["name"] == ADD["name"]
    assert not function_calls(responses[1]["output"])


def test_an_image(server: tuple[str, Using]) -> None:
    name, use = server
    parts = [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"},
    ]
    asked = {"model": "policy", "input": [{"role": "user", "content": parts}]}
    status, reply = use(lambda client: client.post("/v1/responses", asked))
    if name in ("local_model", "trainer_model"):  # models of text
        assert status == 400 and "is not text" in reply["error"]["message"]
    else:
        check(reply, allowed_of(name))


THOUGHT = {"role": "assistant", "content": "13", "reasoning_content": "4 and 9 make 13."}


def thinker(name: str) -> Any:
    """An endpoint that thinks before it answers, and the settings that lead to it."""
    if name == "anthropic_model":
        thought = {"type": "thinking", "thinking": "4 and 9 make 13.", "signature": "s"}
        return Claude(lambda turn, request: [thought, {"type": "text", "text": "13"}], key="key")
    choice = {"index": 0, "finish_reason": "stop", "message": THOUGHT}
    if name.endswith("responses"):
        own = {**reasoning_item("4 and 9 make 13."), "encrypted_content": "of the endpoint"}
        return Endpoint(gives(make_response("policy", [own, message_item("13")], None)))
    return Endpoint(gives({"model": "policy", "choices": [choice]}))


async def thinking(stack: AsyncExitStack, name: str) -> Model:
    url = await stack.enter_async_context(listening(thinker(name)))
    kind, _, api = name.partition(" ")
    match kind:
        case "anthropic_model":
            where = {"anthropic_base_url": url, "anthropic_api_key": "key"}
            return made(kind, **where, anthropic_model="policy")
        case "azure_openai_model":
            where = {"azure_endpoint": url, "azure_deployment": "policy", "api_key": "key"}
            return made(kind, **where, upstream_api=api)
        case "vllm_model":
            return made(kind, model_name="policy", base_url=url)
    return made(kind, openai_base_url=url, openai_model="policy", upstream_api=api)


@pytest.mark.parametrize(
    "name",
    [
        "vllm_model",
        "openai_model responses",
        "openai_model chat_completions",
        "azure_openai_model responses",
        "azure_openai_model chat_completions",
        "anthropic_model",
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_reasoning_comes_and_goes_back_as_the_endpoint_wants_it(
    name: str, is_streamed: bool
) -> None:
    async def work(client: Client) -> JsonObject:
        given: JsonObject = {"input": [{"role": "user", "content": ASKED}]}
        if is_streamed:
            events = await client.stream(**given)
            for event in events:
                check_event(event)
            response = events[-1]["response"]
        else:
            response = await client.respond(**given)
        more = [*given["input"], *response["output"], {"role": "user", "content": "And 1 more?"}]
        check(await client.respond(input=more))
        return response

    response = through(lambda stack: thinking(stack, name), work)
    check(response)
    thought, said = response["output"]
    assert (thought["type"], said["content"][0]["text"]) == ("reasoning", "13")
    assert thought["summary"][0]["text"] == "4 and 9 make 13."


def test_provider_data_travels_as_encrypted_content() -> None:
    thought, call = reasoning_item("Add."), function_call_item("add", "{}", "c1")
    keep(thought, "host m", text_in=["reasoning_content"], message={"details": [1]})
    keep(call, "host m", call={"extra": {"signature": "s"}})
    signed = reasoning_item("More.")
    keep(signed, "host m", block={"type": "thinking", "signature": "t"})
    other = function_call_item("add", "{}", "c2")
    keep(other, "host m", call={"extra": 2})
    user = {"role": "user", "content": "Hi"}
    for turn in ([thought, call], [call], [signed, message_item("Hi"), other], [message_item("")]):
        shown = seal_items(turn)
        assert "provider_data" not in json.dumps(shown)
        assert unseal_items([user, *shown, user]) == [user, *turn, user]
    assert unseal_items("Hi") == "Hi" and unseal_items([5]) == [5]


def test_what_an_endpoint_leaves_out_or_calls_otherwise_is_mended_for_clients() -> None:
    odd: JsonObject = {
        "output": [
            {"type": "message", "role": "assistant", "content": "Hi"},
            {"type": "function_call", "name": "add", "arguments": "{}"},
            {"type": "reasoning"},
        ],
        "temperature": None,
        "service_tier": "on_demand",
        "status": "incomplete",
    }
    whole = complete(odd, {"reasoning": {"effort": "low"}, "text": {"verbosity": "low"}})
    check(whole)
    assert (whole["temperature"], whole["service_tier"]) == (1.0, "default")
    assert whole["reasoning"] == {"effort": "low", "summary": None}
    assert whole["text"] == {"format": {"type": "text"}, "verbosity": "low"}
    assert whole["completed_at"] is None


def test_peers_and_lines_get_no_constant_fields() -> None:
    model = ScriptedModel(["Hi"])
    response = asyncio.run(model.answer("/v1/responses", b'{"input": "Hi"}'))
    assert "frequency_penalty" not in response and "completed_at" not in response


@pytest.mark.parametrize("key", ["previous_response_id", "conversation"])
def test_a_state_that_a_server_does_not_keep_is_refused_by_name(
    server: tuple[str, Using], key: str
) -> None:
    name, use = server
    asked = {"model": "policy", "input": ASKED, key: "unknown_1"}
    status, reply = use(lambda client: client.post("/v1/responses", asked))
    assert 400 <= status < 500 and key in json.dumps(reply["error"]), (name, reply)


def test_tokens_of_the_input_are_counted(server: tuple[str, Using]) -> None:
    name, use = server

    async def work(client: Client) -> Any:
        asked = {"model": "policy", "input": ASKED * 9, "stream": False}
        user = {"role": "user", "content": ASKED * 9}
        message = {"model": "policy", "messages": [user]}
        return (
            await client.post("/v1/responses/input_tokens", asked),
            await client.post("/v1/messages/count_tokens", message),
        )

    (status, counted), (other_status, other) = use(work)
    if name.endswith("chat_completions") or name == "vllm_model":
        # there is a simulated model behind vllm_model, which has no /tokenize
        assert (status, other_status) == (404, 404) and "counts no tokens" in str(counted)
        return
    assert (status, other_status) == (200, 200), (counted, other)
    assert counted == {"object": "response.input_tokens", "input_tokens": other["input_tokens"]}
    assert counted["input_tokens"] > 20


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("api", ["responses", "chat_completions", "anthropic_model"])
def test_an_unknown_field_reaches_an_endpoint_that_is_not_ours(path: str, api: str) -> None:
    answer: JsonObject = {
        "responses": make_response("m", [message_item("Hi")], None),
        "chat_completions": {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]},
        "anthropic_model": {"content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn"},
    }[api]
    endpoint = Endpoint(gives(answer))

    async def server(stack: AsyncExitStack) -> Model:
        url = await stack.enter_async_context(listening(endpoint))
        if api == "anthropic_model":
            return made(api, anthropic_base_url=url, anthropic_model="m")
        return made("openai_model", openai_base_url=url, openai_model="m", upstream_api=api)

    said = (
        {"input": "Hi"}
        if path == "/v1/responses"
        else {"messages": [{"role": "user", "content": "Hi"}]}
    )
    asked = {**said, "max_tokens": 9} if path == "/v1/messages" else said
    tomorrow = {"a_param_of_tomorrow": {"deep": [1]}}
    status, _ = through(server, lambda client: client.post(path, {**asked, **tomorrow}))
    assert status == 200
    assert endpoint.bodies[0]["a_param_of_tomorrow"] == {"deep": [1]}


# use_previous_response_id


class Storing:
    """An endpoint that stores its responses, and calls a tool before it answers."""

    def __init__(self, calls: int = 3) -> None:
        self.asked: list[JsonObject] = []
        self.stored: dict[str, list[JsonObject]] = {}
        self.calls, self.held_at, self.is_held = calls, 0, threading.Event()

    async def answer(self, request: Any) -> Any:
        asked = json.loads(await request.read())
        self.asked.append(asked)
        before = asked.get("previous_response_id")
        if before is not None and before not in self.stored:
            message = f"Previous response with id '{before}' not found."
            error = {"message": message, "code": "previous_response_not_found"}
            return aiohttp.web.json_response({"error": error}, status=400)
        items = [*self.stored.get(before or "", []), *asked["input"]]
        turn = len(function_calls(items))
        if self.held_at and turn == self.held_at:
            self.is_held.set()
            await asyncio.sleep(HANG_S)
        call = function_call_item("add", '{"a": 4, "b": 9}')
        output = [call] if turn < self.calls else [message_item("It is 13.")]
        response = make_response("m", output, None)
        self.stored[response["id"]] = [*items, *output]
        return aiohttp.web.json_response(response)


def at(url: str) -> Any:
    where = {"openai_base_url": url, "openai_model": "m", "use_previous_response_id": True}
    return made("openai_model", **where)


async def converse(model: Any, session: Session, turns: int = 4) -> list[JsonObject]:
    items: list[JsonObject] = [{"role": "user", "content": ASKED}]
    for _ in range(turns):
        response = await asks({"input": items, "tools": TOOLS}, session)(model)
        calls = function_calls(response["output"])
        results = [function_call_output(each["call_id"], "13") for each in calls]
        items = [*items, *response["output"], *results]
    return items


def test_only_new_items_travel() -> None:
    endpoint = Storing()
    items = with_model(endpoint, lambda model: converse(model, Session()), at)
    assert [len(each["input"]) for each in endpoint.asked] == [1, 1, 1, 1]
    ids = [each.get("previous_response_id") for each in endpoint.asked]
    assert ids == [None, *list(endpoint.stored)[:3]]
    assert list(endpoint.stored.values())[-1] == items


def test_another_session_and_a_forgotten_response_get_the_whole_conversation() -> None:
    endpoint, session = Storing(), Session()

    async def use(model: Any) -> None:
        items = await converse(model, session, 2)
        await asks({"input": items}, Session())(model)  # as after a kill
        endpoint.stored.clear()
        await asks({"input": items}, session)(model)

    with_model(endpoint, use, at)
    sizes = [(len(each["input"]), "previous_response_id" in each) for each in endpoint.asked]
    assert sizes == [(1, False), (1, True), (5, False), (1, True), (5, False)]
    assert session.stats["repaired"] == [
        "a stored response that the endpoint no longer has → the whole conversation"
    ]


def test_a_run_that_is_killed_sends_the_whole_conversation_again(tmp_path: Path) -> None:
    endpoint = Storing(9)
    row = {"responses_create_params": {"input": ASKED}, "expected_answer": 13}
    write_jsonl(tmp_path / "tasks.jsonl", [row])
    with running(endpoint) as url:
        words = [
            str(Path(sys.executable).with_name("ng_collect_rollouts")),
            "+config_paths=[resources_servers/calculator/configs/calculator.yaml,"
            "responses_api_models/openai_model/configs/openai_model.yaml]",
            *(f"policy_base_url={url}", "policy_api_key=the-key-of-m", "policy_model_name=m"),
            "++policy_model.responses_api_models.openai_model.use_previous_response_id=true",
            "+agent_name=calculator_simple_agent",
            f"+input_jsonl_fpath={tmp_path / 'tasks.jsonl'}",
            f"+output_jsonl_fpath={tmp_path / 'rollouts.jsonl'}",
        ]
        endpoint.held_at = 8
        with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            assert endpoint.is_held.wait(HANG_S)
            process.send_signal(signal.SIGKILL)
        endpoint.held_at, before = 0, len(endpoint.asked)
        subprocess.run(words, cwd=ROOT, check=True, timeout=HANG_S, stdout=subprocess.DEVNULL)
    first, *later = endpoint.asked[before:]
    assert all(len(each["input"]) == 1 for each in [*endpoint.asked[:before], *later])
    assert "previous_response_id" not in first and len(first["input"]) > 10
    [line] = read_jsonl(tmp_path / "rollouts.jsonl")
    assert line["reward"] == 1.0 and line["rollout"]["resumed_turns"] > 0


@pytest.mark.parametrize("change", ["an item", "store", "own id"])
def test_a_conversation_that_is_not_the_stored_one_is_sent_as_it_is(change: str) -> None:
    endpoint, session = Storing(), Session()

    async def use(model: Any) -> None:
        items = await converse(model, session, 1)
        more: JsonObject = {}
        if change == "an item":
            items[0] = {"role": "user", "content": "Something else."}
        elif change == "store":
            more = {"store": False}
        else:
            more = {"previous_response_id": next(iter(endpoint.stored))}
        await asks({"input": items, **more}, session)(model)

    with_model(endpoint, use, at)
    last = endpoint.asked[-1]
    assert len(last["input"]) == 3
    assert ("previous_response_id" in last) == (change == "own id")


def test_a_rollout_adds_to_no_conversation_of_an_endpoint() -> None:
    endpoint, asked = Storing(), {"input": [], "conversation": "conv_1"}
    with pytest.raises(TaskError, match="conversation: each request of a rollout would add to it"):
        with_model(endpoint, asks(asked, Session()), at)
    with_model(endpoint, asks(asked), at)
    assert endpoint.asked[0]["conversation"] == "conv_1"


def test_vllm_s_responses_know_no_conversation() -> None:
    def server(url: str) -> Any:
        return made("vllm_model", model_name="m", base_url=url, upstream_api="responses")

    with pytest.raises(TaskError, match="conversation: vLLM keeps no conversations"):
        with_model(Storing(), asks({"input": "Hi", "conversation": "c"}), server)


def test_an_endpoint_of_chat_completions_cannot_store() -> None:
    with pytest.raises(ValueError, match="use_previous_response_id"):
        made(
            "openai_model",
            openai_base_url="http://h.test/v1",
            openai_model="m",
            upstream_api="chat_completions",
            use_previous_response_id=True,
        )
