"""What an endpoint attaches to a turn goes back to it: endpoints that refuse a conversation without
it, as the real ones do."""

import asyncio
import base64
import io
import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from command import as_function
from hosted import Endpoint, asks, gives, running, with_model
from kill_counts import TURNS, count_command, run_through_a_kill, verify_again
from support import HANG_S, config_of, read_jsonl, row, write_jsonl

from rollout_kit.analysis.view.dataset import Dataset
from rollout_kit.analysis.view.rollouts import Reader
from rollout_kit.api.testing import ScriptedModel, making, mount
from rollout_kit.commands.collect_rollouts import collect_through
from rollout_kit.commands.progress import Progress
from rollout_kit.errors import RolloutError
from rollout_kit.launch.reach import Servers
from rollout_kit.responses import (
    function_call_item,
    function_call_output,
    make_response,
    message_item,
)
from rollout_kit.serving.endpoints.completions import as_completion, as_params
from rollout_kit.serving.endpoints.events import completion_events, response_events
from rollout_kit.serving.endpoints.messages import as_message, message_events
from rollout_kit.serving.endpoints.messages import as_params as params_of_messages
from rollout_kit.serving.endpoints.provider_data import LEFT_OUT, origin_of
from rollout_kit.serving.registry import load
from rollout_kit.serving.resources_server import ResourcesServer
from rollout_kit.session import Session
from rollout_kit.types import JsonObject, VerifyRequest, VerifyResponse

export = as_function("ng_export")

ROOT = Path(__file__).resolve().parents[2]
OpenAIModel = load("responses_api_models", "openai_model")
HELD_AT = 8
"""The turn whose request waits while the test kills the collector."""


def signature(turn: int) -> str:
    return base64.b64encode(f"signature of turn {turn} +/=".encode() * 3).decode()


def think(message: JsonObject, turn: int) -> None:
    message["reasoning_content"] = f"Thought {turn}:\n\n  add one. "


def sign_call(message: JsonObject, turn: int) -> None:
    for call in message.get("tool_calls", ()):
        call["extra_content"] = {"google": {"thought_signature": signature(turn)}}


def detail(message: JsonObject, turn: int) -> None:
    message["reasoning"] = f"Thought {turn}"
    message["reasoning_details"] = [
        {"type": "reasoning.text", "text": f"Thought {turn}", "index": 0, "signature": None},
        {"type": "reasoning.encrypted", "data": signature(turn), "index": 1, "format": "x-v1"},
    ]


def think_nothing(message: JsonObject, turn: int) -> None:
    message["reasoning_content"] = ""


def think_in_parts(message: JsonObject, turn: int) -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": f"Thought {turn}"}]}
    said = message.get("content")
    message["content"] = [thought, *([{"type": "text", "text": said}] if said else [])]


PROVIDERS: dict[str, Callable[[JsonObject, int], None]] = {
    "deepseek": think,
    "moonshot": think_nothing,
    "gemini": sign_call,
    "openrouter": detail,
    "mistral": think_in_parts,
}


def message_of(attach: Callable[[JsonObject, int], None], turn: int) -> JsonObject:
    """The assistant message of a turn: it adds one, until it says the sum."""
    message: JsonObject = {"role": "assistant", "content": None}
    if turn < TURNS:
        arguments = json.dumps({"a": turn, "b": 1})
        call = {"id": f"c{turn}", "type": "function"}
        message["tool_calls"] = [{**call, "function": {"name": "add", "arguments": arguments}}]
    else:
        message["content"] = f"It is {TURNS}."
    attach(message, turn)
    return message


class Provider:
    """A Chat Completions endpoint that compares each earlier turn with what it has sent."""

    def __init__(self, attach: Callable[[JsonObject, int], None], streams: bool = False) -> None:
        self.attach, self.streams = attach, streams
        self.refused: list[Any] = []
        self.num_requests = 0
        self.holds, self.is_held = False, threading.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked = orjson.loads(await request.read())
        self.num_requests += 1
        earlier = [each for each in asked["messages"] if each["role"] == "assistant"]
        for turn, message in enumerate(earlier, 1):
            if message != message_of(self.attach, turn):
                self.refused.append(message)
                error = {"message": "what was attached to this message is missing", "code": 400}
                return web.json_response({"error": error}, status=400)
        turn = len(earlier) + 1
        if self.holds and turn == HELD_AT:
            self.is_held.set()
            await asyncio.sleep(HANG_S)
        message = message_of(self.attach, turn)
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": "tool_calls" if "tool_calls" in message else "stop",
        }
        usage = {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
        made = {"id": "x", "created": 1, "model": asked["model"], "choices": [choice]}
        if not self.streams:
            return web.json_response({**made, "usage": usage})
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        for event in completion_events({**made, "usage": usage}, usage=True):
            await reply.write(event)
        return reply


def command(folder: Path, url: str, *words: str) -> list[str]:
    where = [f"policy_base_url={url}/v1", "policy_api_key=a-key-of-a-provider"]
    where += ["policy_model_name=thinker-3"]
    model = "responses_api_models/openai_model/configs/openai_model_chat.yaml"
    return count_command(folder, model, *where, *words)


@pytest.mark.parametrize(
    ("name", "streams"),
    [*((name, False) for name in PROVIDERS), ("openrouter", True), ("gemini", True)],
)
def test_ten_turns_pass_at_an_endpoint_that_wants_all_back_though_killed(
    tmp_path: Path, name: str, streams: bool
) -> None:
    provider = Provider(PROVIDERS[name], streams)
    stream = f"++policy_model.responses_api_models.openai_model.stream={str(streams).lower()}"
    with running(provider) as url:
        words = command(tmp_path, url, stream)
        provider.holds = True
        release = partial(setattr, provider, "holds", False)
        lines = run_through_a_kill(tmp_path, words, provider.is_held, release)
    assert not provider.refused
    verify_again(tmp_path, lines)


def at(**settings: Any) -> Callable[[str], Any]:
    def make(url: str) -> Any:
        given = {"openai_base_url": f"{url}/v1", "openai_model": "m-1", **settings}
        peers: Any = None
        return OpenAIModel(OpenAIModel.Config.model_validate(given), peers, "policy_model")

    return make


def chat(
    endpoint: Endpoint, params: JsonObject, session: Session | None = None, **more: Any
) -> Any:
    make = at(upstream_api="chat_completions", **more)
    return with_model(endpoint, asks(params, session), make)


def completion(message: JsonObject, reason: str = "tool_calls") -> JsonObject:
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return {"model": "m-1", "choices": [choice], "usage": {"prompt_tokens": 1}}


@pytest.mark.parametrize("name", PROVIDERS)
def test_another_endpoint_gets_nothing_of_it_and_the_line_says_so(name: str) -> None:
    first = Endpoint(gives(completion(message_of(PROVIDERS[name], 1))))
    answer = chat(first, {"input": "Hi"})
    result = function_call_output("c1", "2")
    session, second = Session(), Endpoint(gives(completion(message_of(PROVIDERS[name], 2))))
    chat(second, {"input": [*answer["output"], result]}, session, openai_model="other-2")
    *_, message, _ = second.bodies[0]["messages"]
    assert message.keys() == {"role", "content", "tool_calls"}
    assert message["tool_calls"][0].keys() == {"id", "type", "function"}
    assert session.stats["repaired"] == [LEFT_OUT]


def test_the_family_of_a_model_shares_its_data() -> None:
    one = origin_of("https://api.example.com/v1/chat/completions", "google/Gemini-3-pro")
    assert one == origin_of("https://key@api.example.com/x", "gemini-3.5-flash")
    assert one != origin_of("https://api.example.com/v1", "gpt-5")


def test_a_secret_in_it_fails_the_request() -> None:
    message = {"role": "assistant", "content": "Hi", "signature": "xx the-secret-key-1 xx"}
    with pytest.raises(RolloutError, match="contains a secret") as caught:
        chat(
            Endpoint(gives(completion(message))), {"input": "Hi"}, openai_api_key="the-secret-key-1"
        )
    assert not caught.value.retryable and "the-secret-key-1" not in str(caught.value)


def test_a_secret_beside_it_is_masked_and_it_stays_as_it_is() -> None:
    message = {"role": "assistant", "content": "the-secret-key-1", "signature": "of the endpoint"}
    answer = chat(
        Endpoint(gives(completion(message))), {"input": "Hi"}, openai_api_key="the-secret-key-1"
    )
    [item] = answer["output"]
    assert "the-secret-key-1" not in json.dumps(answer)
    assert item["provider_data"]["message"] == {"signature": "of the endpoint"}


@pytest.mark.parametrize("name", ["deepseek", "gemini", "openrouter"])
@pytest.mark.parametrize("api", ["chat", "messages"])
def test_clients_of_other_apis_carry_it_too(name: str, api: str) -> None:
    message = message_of(PROVIDERS[name], 1)
    endpoint = Endpoint(gives(completion(message)))

    async def use(model: Any) -> None:
        ask = model.chat_completions if api == "chat" else model.messages
        user = {"role": "user", "content": "Hi"}
        limit = {} if api == "chat" else {"max_tokens": 9}
        reply = await ask({"messages": [user], **limit})
        if api == "chat":
            said = [reply["choices"][0]["message"]]
            said.append({"role": "tool", "tool_call_id": "c1", "content": "2"})
        else:
            said = [{"role": "assistant", "content": reply["content"]}]
            result = {"type": "tool_result", "tool_use_id": "c1", "content": "2"}
            said.append({"role": "user", "content": [result]})
        await ask({"messages": [user, *said], **limit})

    with_model(endpoint, use, at(upstream_api="chat_completions"))
    sent = endpoint.bodies[1]["messages"][1]
    arguments = sent["tool_calls"][0]["function"]
    arguments["arguments"] = json.dumps(json.loads(arguments["arguments"]))
    assert {key: sent[key] for key in message} == message


ENCRYPTED = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": signature(1)}


def test_encrypted_thoughts_of_a_responses_endpoint_go_back_to_it_alone() -> None:
    call = function_call_item("add", "{}", "c1")
    endpoint = Endpoint(gives(make_response("m-1", [ENCRYPTED, call], None)))

    async def use(model: Any) -> Any:
        first = await model.responses({"input": "Hi"})
        await model.responses({"input": [*first["output"], function_call_output("c1", "2")]})
        return first

    first = with_model(endpoint, use, at())
    assert endpoint.bodies[1]["input"][:2] == [ENCRYPTED, call]
    session, other = Session(), Endpoint(gives(make_response("m-1", [], None)))
    with_model(other, asks({"input": first["output"]}, session), at(openai_model="other-2"))
    assert other.bodies[0]["input"] == [call]
    assert session.stats["repaired"] == [LEFT_OUT]


def test_a_client_of_messages_carries_encrypted_thoughts() -> None:
    response = make_response("m", [ENCRYPTED, function_call_item("add", "{}", "c1")], None)
    message = as_message(response)
    assert b"".join(message_events(message)).count(b"redacted_thinking") == 1
    params = params_of_messages(
        {"messages": [{"role": "assistant", "content": message["content"]}]}
    )
    assert params["input"][0] == ENCRYPTED


def test_what_a_client_attaches_itself_survives_a_stream() -> None:
    for name, attach in PROVIDERS.items():
        if name in ("mistral", "moonshot"):
            continue
        message = message_of(attach, 1)
        params = as_params({"messages": [message]})
        response = make_response("m", params["input"], None)
        raw = b"".join(completion_events(as_completion(response), usage=False))
        assert signature(1).encode() in raw or b"Thought 1" in raw
        assert response_events(response)


def test_a_verifier_gets_none_of_it_and_the_line_keeps_all(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Checker(ResourcesServer):
        async def verify(self, body: VerifyRequest) -> VerifyResponse:
            seen.append(body.model_dump()["response"]["output"])
            return body.scored(1.0)

    thought = {**ENCRYPTED, "provider_data": {"endpoint": "e m", "message": {"x": signature(1)}}}
    response = make_response("m", [thought, message_item("Hi")], None)
    simple = load("responses_api_agents", "simple_agent")
    wiring = {"resources_server": {"name": "checker"}, "model_server": {"name": "policy_model"}}
    servers = {
        "policy_model": lambda peers, name: ScriptedModel(lambda params: response),
        "checker": making(Checker),
        "agent": making(simple, **wiring),
    }
    write_jsonl(tmp_path / "tasks.jsonl", [row("Hi?")])

    async def main() -> JsonObject:
        async with mount(servers) as peers:
            reached = Servers(peers, ["agent"], {}, {})
            progress = Progress(out=io.StringIO(), err=io.StringIO())
            await collect_through(reached, config_of(tmp_path), ["+the=command"], progress)
            return await peers.call("agent", "/run", row("Hi?"), dict)

    verified = asyncio.run(main())
    [line] = read_jsonl(tmp_path / "rollouts.jsonl")
    for output in (line["response"]["output"], verified["response"]["output"]):
        assert output[0] == thought
    assert len(seen) == 2
    assert not any({"provider_data", "encrypted_content"} & item.keys() for [item, _] in seen)
    dataset = Dataset([str(tmp_path / "rollouts.jsonl")], is_kept=False)
    dataset.update()
    reader = Reader(dataset)
    assert signature(1) not in json.dumps(reader.rollout(0)) + reader.raw(0)[1].decode()
    for name in ("trl_sft", "trl_prompt_completion", "otlp", "grouped"):
        exported = tmp_path / f"{name}.jsonl"
        words = [str(tmp_path / "rollouts.jsonl"), f"+format={name}", f"+output_fpath={exported}"]
        with pytest.raises(SystemExit) as ended:
            export(words)
        assert not ended.value.code
        assert exported.read_text() and signature(1) not in exported.read_text()
