"""The gateway with OpenAI's and Anthropic's own clients: what they get, what is recorded of it,
what a trainer reads, and what is answered from the journal."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from token_model import TokenModel, encode

from rollout_kit.api.testing import mount
from rollout_kit.errors import ModelError
from rollout_kit.responses import (
    function_call_item,
    input_items,
    message_item,
    output_text,
    reasoning_item,
)
from rollout_kit.serving.agents.turns import RolloutBounds
from rollout_kit.serving.gateway import door
from rollout_kit.serving.gateway.door import Gateway, openai_url
from rollout_kit.serving.gateway.recorder import Recorder
from rollout_kit.serving.gateway.snapshots import Snapshots
from rollout_kit.session import Session, TurnLog, entered
from rollout_kit.trajectory import GENERATION, sequences
from rollout_kit.types import JsonObject

openai = pytest.importorskip("openai")

TOOL = {"name": "run", "description": "", "parameters": {"type": "object", "properties": {}}}
CHAT_TOOL = {"type": "function", "function": TOOL}


@dataclass
class Place:
    """What a test has: the model, the record, and the address."""

    model: TokenModel
    recorder: Recorder
    gateway: Gateway
    token: str
    stored: list[JsonObject]
    returned: list[JsonObject]

    @property
    def url(self) -> str:
        return openai_url(self.gateway.address, self.token)

    def finish(self, rule: Any = "other_system_without_tools") -> JsonObject:
        return self.recorder.finish(rule, "letters", "stop")

    @property
    def stats(self) -> JsonObject:
        return self.recorder.session.stats


@asynccontextmanager
async def placed(
    say: Callable[[JsonObject], list[JsonObject]],
    stored: list[JsonObject] | None = None,
    limits: RolloutBounds | None = None,
    snapshots: Snapshots | None = None,
) -> AsyncIterator[Place]:
    model, kept, returned = TokenModel(say), list(stored or []), list[JsonObject]()
    session, gateway = Session(), Gateway()

    def report(turn: JsonObject) -> None:
        (returned if "returned" in turn else kept).append(json.loads(json.dumps(turn)))

    session.turn_log = TurnLog(tuple(kept), report)
    async with mount({"policy_model": lambda peers, name: model}) as peers:
        with entered(session):
            recorder = Recorder(peers, "policy_model", limits=limits, snapshots=snapshots)
        await gateway.start()
        token = gateway.open(recorder)
        try:
            yield Place(model, recorder, gateway, token, kept, returned)
        finally:
            await gateway.stop()


def answer_in_turn(params: JsonObject) -> list[JsonObject]:
    """Call a tool three times, then say how it was; think each time."""
    number = sum(item.get("type") == "function_call_output" for item in params["input"])
    thought = reasoning_item(f"thought {number}")
    if number < 3 and params.get("tools"):
        return [thought, function_call_item("run", json.dumps({"n": number}), f"call_{number}")]
    return [thought, message_item(f"done after {number}")]


async def loop_of_chat(client: Any, messages: list[Any], *, stream: bool, **more: Any) -> list[Any]:
    """The usual loop of a program with Chat Completions; all messages."""
    while True:
        asked = {"model": "any", "messages": messages, "tools": [CHAT_TOOL], **more}
        if stream:
            async with client.chat.completions.stream(**asked) as events:
                async for _ in events:
                    pass
                message = (await events.get_final_completion()).choices[0].message
        else:
            message = (await client.chat.completions.create(**asked)).choices[0].message
        said = message.model_dump(exclude_none=True, exclude={"parsed", "reasoning_content"})
        for call in said.get("tool_calls", ()):
            call["function"].pop("parsed_arguments", None)
        messages.append(said)
        if not message.tool_calls:
            return messages
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": f"out {call.function.arguments}"}
            for call in message.tool_calls
        ]


def client_of(place: Place) -> Any:
    return openai.AsyncOpenAI(base_url=place.url, api_key=place.token, max_retries=0)


def opening(text: str = "do it", system: str = "You are a harness.") -> list[Any]:
    return [{"role": "system", "content": system}, {"role": "user", "content": text}]


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_conversation_is_one_sequence_of_the_tokens_that_were_sampled(stream: bool) -> None:
    async def main() -> None:
        async with placed(answer_in_turn) as place, client_of(place) as client:
            messages = await loop_of_chat(client, opening(), stream=stream)
            response = place.finish()
        assert messages[-1]["content"] == "done after 3"
        [sequence] = sequences(response["output"])
        assert [turn.generation for turn in sequence.turns] == [made for _, made in place.model.log]
        assert [prompt for prompt, _ in sequence.pair_turns()] == [p for p, _ in place.model.log]
        assert sum(sequence.is_generated) == sum(len(made) for _, made in place.model.log)
        # the program sent no reasoning back, and the model still read what it had sampled
        assert "<think>thought 0" in "".join(map(chr, place.model.log[-1][0]))
        turns = place.stats["turns"]
        assert turns["chain"] == [0] * 4 and turns["to"] == [5, 8, 11, 13]
        assert turns["finish_names"] == ["tool_calls", "stop"]
        assert place.stats["num_turns"] == 4 and place.stats["num_tool_calls"] == 3
        assert response["usage"]["output_tokens"] == sum(len(made) for _, made in place.model.log)
        assert output_text(response) == "done after 3" and response["tools"]

    run(main)


def test_every_api_gives_the_same_record() -> None:
    anthropic = pytest.importorskip("anthropic")

    async def ask_messages(place: Place) -> None:
        url = place.url.removesuffix("/v1")
        async with anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0) as client:
            messages: list[Any] = [{"role": "user", "content": "do it"}]
            tool = {"name": "run", "description": "", "input_schema": TOOL["parameters"]}
            while True:
                async with client.messages.stream(
                    model="any",
                    max_tokens=99,
                    system="You are a harness.",
                    messages=messages,
                    tools=[tool],
                ) as stream:
                    said = await stream.get_final_message()
                messages.append({"role": "assistant", "content": said.content})
                calls = [block for block in said.content if block.type == "tool_use"]
                if not calls:
                    return
                results = [
                    {
                        "type": "tool_result",
                        "tool_use_id": call.id,
                        "content": f"out {json.dumps(call.input)}",
                    }
                    for call in calls
                ]
                messages.append({"role": "user", "content": results})

    async def ask_responses(place: Place) -> None:
        async with client_of(place) as client:
            items: list[Any] = [{"role": "user", "content": "do it"}]
            while True:
                found = await client.responses.create(
                    model="any",
                    instructions="You are a harness.",
                    input=items,
                    tools=[{"type": "function", "strict": None, **TOOL}],
                    store=False,
                )
                items += [each.model_dump(exclude_none=True) for each in found.output]
                calls = [each for each in found.output if each.type == "function_call"]
                if not calls:
                    return
                items += [
                    {
                        "type": "function_call_output",
                        "call_id": call.call_id,
                        "output": f"out {call.arguments}",
                    }
                    for call in calls
                ]

    async def ask_chat(place: Place) -> None:
        async with client_of(place) as client:
            await loop_of_chat(client, opening(), stream=False)

    async def main() -> None:
        found = []
        for ask in (ask_chat, ask_messages, ask_responses):
            async with placed(answer_in_turn) as place:
                await ask(place)
                response = place.finish()
                [sequence] = sequences(response["output"])
                found.append((sequence.token_ids, sequence.is_generated, place.model.log))
        assert found[0] == found[1] == found[2]

    run(main)


def _branching(params: JsonObject) -> list[JsonObject]:
    return [message_item(f"reply to {len(params['input'])} items")]


def test_branches_are_chains_with_a_reason() -> None:
    """Each built case: what the program sends after one exchange, and why a chain begins."""

    async def main() -> None:
        async with placed(_branching) as place, client_of(place) as client:

            async def ask(messages: list[Any], **more: Any) -> list[Any]:
                found = await client.chat.completions.create(
                    model="m", messages=messages, tools=[CHAT_TOOL], **more
                )
                said = {"role": "assistant", "content": found.choices[0].message.content}
                return [*messages, said]

            user = {"role": "user", "content": "and then?"}
            first = await ask(opening())
            second = await ask([*first, user])
            await ask([*second, user])
            await ask([*first, {"role": "user", "content": "a sub-agent's task"}])
            edited = [*second[:2], {"role": "assistant", "content": "other"}, *second[3:], user]
            await ask(edited)
            await ask([*opening(), {"role": "user", "content": "Summary: …"}])
            await ask(opening())
            await ask(opening(system="You are a sub-agent."))
            title = await client.chat.completions.create(
                model="m", messages=opening(system="Write a title.")
            )
            assert title.choices[0].message.content
            response = place.finish()
        assert [each.get("why", "") for each in place.stats["gateway"]["chains"]] == [
            "",
            "the harness returned to an earlier turn",
            "the harness changed the text of an earlier turn",
            "the harness left out earlier turns",
            "the same request was sent before",
            "the harness began another conversation",
        ]
        assert place.stats["turns"]["chain"] == [0, 0, 0, 1, 2, 3, 4, 5, None]
        assert place.stats["turns"]["by"][-1] == "side"
        assert place.stats["gateway"]["side_calls"] == 1
        found = sequences(response["output"])
        assert [len(each.turns) for each in found] == [3, 1, 1, 1, 1, 1]
        sampled = [turn.generation for each in found for turn in each.turns]
        assert sampled == [made for _, made in place.model.log[:-1]]
        prompts = [prompt for each in found for prompt, _ in each.pair_turns()]
        assert prompts == [prompt for prompt, _ in place.model.log[:-1]]

    run(main)


def test_parallel_calls_are_recorded_one_by_one() -> None:
    async def main() -> None:
        async with placed(_branching) as place, client_of(place) as client:
            asked = [
                client.chat.completions.create(model="m", messages=opening(f"part {number % 4}"))
                for number in range(20)
            ]
            await asyncio.gather(*asked)
            response = place.finish()
        assert len(place.model.log) == 20 == len(place.recorder.calls)
        found = sequences(response["output"])
        assert sorted(turn.generation for each in found for turn in each.turns) == sorted(
            made for _, made in place.model.log
        )

    run(main)


def test_a_program_that_is_started_again_gets_its_replies_from_the_journal() -> None:
    async def main() -> None:
        async with placed(answer_in_turn) as place, client_of(place) as client:
            messages = opening("It is 2026-11-28 10:11:12, look at /tmp/abc123/x")
            await loop_of_chat(client, messages, stream=True, user="a")
            stored = place.stored
        assert len(stored) == 4 and all(set(turn) >= {"request", "response"} for turn in stored)
        requests = [each["request"] for each in place.returned]
        assert requests == [each["request"] for each in stored[:3]]
        [output] = place.returned[2]["returned"]
        assert (output["call_id"], output["output"]) == ("call_2", 'out {"n": 2}')
        async with placed(answer_in_turn, stored[:3]) as place, client_of(place) as client:
            messages = opening("It is 2026-11-29 01:01:01, look at /tmp/zzz/x")
            await loop_of_chat(client, messages, stream=True, user="b")
            response = place.finish()
            assert len(place.model.log) == 1
            assert place.stats["resumed_turns"] == 3
            assert place.stats["gateway"]["diverged_at"] is None
            assert len([item for item in response["output"] if GENERATION in item]) == 4
        async with placed(answer_in_turn, stored) as place, client_of(place) as client:
            await loop_of_chat(client, opening("Another task"), stream=False)
            place.finish()
            assert len(place.model.log) == 4 and "resumed_turns" not in place.stats

    run(main)


def test_where_a_replay_diverges_is_said() -> None:
    async def main() -> None:
        async with placed(_branching) as place, client_of(place) as client:
            for text in ("a", "b", "c"):
                await client.chat.completions.create(model="m", messages=opening(text))
            stored = place.stored
        async with placed(_branching, stored) as place, client_of(place) as client:
            for text in ("a", "other", "c"):
                await client.chat.completions.create(model="m", messages=opening(text))
            place.finish()
            assert place.stats["gateway"]["replayed"] == 2
            assert place.stats["gateway"]["diverged_at"] == 2

    run(main)


def test_a_reply_that_did_not_arrive_is_given_to_the_same_request() -> None:
    """The program leaves while the model answers, and asks again."""

    async def main() -> None:
        is_asked, may_answer = asyncio.Event(), asyncio.Event()

        class Slow(TokenModel):
            async def responses(self, params: JsonObject) -> JsonObject:
                is_asked.set()
                await may_answer.wait()
                return await super().responses(params)

        async with placed(_branching) as place:
            place.model.__class__ = Slow
            body = {"model": "m", "messages": opening(), "stream": True}
            async with httpx2.AsyncClient(timeout=30) as first:
                task = asyncio.create_task(first.post(f"{place.url}/chat/completions", json=body))
                await is_asked.wait()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            may_answer.set()
            while not place.recorder._unclaimed:  # noqa: ASYNC110
                await asyncio.sleep(0)
            async with httpx2.AsyncClient(timeout=30) as second:
                reply = await second.post(f"{place.url}/chat/completions", json=body)
            assert "reply to 2 items" in reply.text.replace('"}', "") and reply.status_code == 200
            assert len(place.model.log) == 1 == len(place.recorder.calls) == len(place.stored)

    run(main)


def test_past_a_limit_each_api_has_an_error_of_its_own() -> None:
    anthropic = pytest.importorskip("anthropic")

    async def main() -> None:
        limits = RolloutBounds(calls=2)
        async with placed(_branching, limits=limits) as place, client_of(place) as client:
            for text in ("a", "b"):
                await client.chat.completions.create(model="m", messages=opening(text))
            with pytest.raises(openai.BadRequestError, match="limit of calls") as of_chat:
                await client.chat.completions.create(model="m", messages=opening("c"))
            assert of_chat.value.code == "rollout_limit"
            with pytest.raises(openai.BadRequestError, match="limit of calls"):
                await client.responses.create(model="m", input="c")
            url = place.url.removesuffix("/v1")
            async with anthropic.AsyncAnthropic(base_url=url, api_key="x") as other:
                with pytest.raises(anthropic.BadRequestError, match="rollout_limit"):
                    await other.messages.create(
                        model="m", max_tokens=9, messages=[{"role": "user", "content": "c"}]
                    )
            response = place.finish()
        assert place.recorder.ended.is_set() and len(place.model.log) == 2
        assert response["incomplete_details"] == {"reason": "rollout_limit"}
        assert place.stats["finish_reason"] == "rollout_limit"

    run(main)


def test_trouble_of_the_model_is_never_an_answer() -> None:
    def fail(params: JsonObject) -> list[JsonObject]:
        raise ModelError("the key is wrong", status=401, retryable=False)

    def refuse(params: JsonObject) -> list[JsonObject]:
        raise ModelError("too long", status=400, retryable=False)

    async def main() -> None:
        async with placed(fail) as place, client_of(place) as client:
            with pytest.raises(openai.InternalServerError, match="the key is wrong"):
                await client.chat.completions.create(model="m", messages=opening())
            assert place.recorder.failure is not None and place.recorder.ended.is_set()
        async with placed(refuse) as place, client_of(place) as client:
            with pytest.raises(openai.BadRequestError, match="too long"):
                await client.chat.completions.create(model="m", messages=opening())
            assert place.recorder.failure is None

    run(main)


def test_an_address_answers_to_its_token_while_its_rollout_runs() -> None:
    async def main() -> None:
        async with placed(_branching) as place, httpx2.AsyncClient(timeout=30) as client:
            host, port = place.gateway.address
            body = {"model": "m", "messages": opening()}
            root = f"http://{host}:{port}"
            for path in ("/v1/chat/completions", "/r/guess/v1/chat/completions", "/r//v1/x"):
                assert (await client.post(root + path, json=body)).status_code == 404
            for path in ("/v1/completions", "/verify", "/../../v1/chat/completions", "/load"):
                reply = await client.post(f"{root}/r/{place.token}{path}", json=body)
                assert reply.status_code == 404, path
            assert (await client.get(f"{place.url}/models")).json()["object"] == "list"
            for bad in (b"", b"[]", b"{", b'{"messages": [3]}', b'{"messages": "x"}', b"[" * 9999):
                reply = await client.post(f"{place.url}/chat/completions", content=bad)
                assert reply.status_code == 400 and "message" in reply.json()["error"], bad
                reply = await client.post(f"{place.url}/messages", content=bad)
                assert reply.status_code == 400 and reply.json()["type"] == "error", bad
                reply = await client.post(f"{place.url}/responses", content=bad)
                assert reply.status_code == 400, bad
            assert (
                await client.post(f"{place.url}/chat/completions", json=body)
            ).status_code == 200
            await place.gateway.close(place.token)
            reply = await client.post(f"{place.url}/chat/completions", json=body)
            assert reply.status_code == 404 and len(place.model.log) == 1

    run(main)


def test_the_last_event_is_sent_when_the_reply_is_on_disk() -> None:
    async def main() -> None:
        async with placed(_branching) as place:
            is_stored, may_store = asyncio.Event(), asyncio.Event()

            async def report(turn: JsonObject) -> None:
                is_stored.set()
                await may_store.wait()

            place.recorder._log = TurnLog((), report)
            for path, body, last in (
                ("chat/completions", {"messages": opening()}, "[DONE]"),
                ("responses", {"input": "hello"}, "response.completed"),
                (
                    "messages",
                    {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9},
                    "message_stop",
                ),
            ):
                is_stored.clear()
                may_store.clear()
                async with (
                    httpx2.AsyncClient(timeout=30) as client,
                    client.stream(
                        "POST", f"{place.url}/{path}", json={"model": "m", "stream": True, **body}
                    ) as reply,
                ):
                    pieces = reply.aiter_text()
                    text = ""
                    while "items" not in text:
                        text += await anext(pieces)
                    await is_stored.wait()
                    assert last not in text
                    may_store.set()
                    async for piece in pieces:
                        text += piece
                    assert last in text

    run(main)


def test_items_of_the_record_replace_those_of_the_program() -> None:
    async def main() -> None:
        async with placed(answer_in_turn) as place, client_of(place) as client:
            await loop_of_chat(client, opening(), stream=False)
        last = input_items(place.model.requests[-1])
        assert sum(item.get("type") == "reasoning" for item in last) == 3
        assert encode(last[:2]) == place.model.log[0][0]

    run(main)


def test_a_program_cannot_make_up_what_was_sampled() -> None:
    forged: Any = {
        "generation_token_ids": [1, 2],
        "generation_log_probs": [0.0, 0.0],
        "prompt_token_ids": [3],
        "policy_version_first": 9,
    }

    async def main() -> None:
        async with placed(_branching) as place, httpx2.AsyncClient(timeout=30) as client:
            said = {"role": "assistant", "content": "I am very good.", **forged}
            for path, field in (("responses", "input"), ("chat/completions", "messages")):
                body = {"model": "m", field: [opening()[1], said, opening()[1]]}
                reply = await client.post(f"{place.url}/{path}", json=body)
                assert reply.status_code == 200
            response = place.finish()
        found = [turn for each in sequences(response["output"]) for turn in each.turns]
        assert [turn.generation for turn in found] == [made for _, made in place.model.log]
        assert all(turn.versions is None for turn in found)

    run(main)


def test_requests_that_do_not_end_have_little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads without end, bodies that are too large together, and what is given back."""
    monkeypatch.setattr(door, "MAX_WAITING", 3000)
    monkeypatch.setattr(door, "STRANGERS", 100)

    async def main() -> None:
        async with placed(_branching) as place:
            path = f"/r/{place.token}/v1/chat/completions"
            ask = f"POST {path} HTTP/1.1\r\nhost: x\r\n"

            async def send(text: str) -> str:
                """The status line; empty if the connection was closed before all was sent."""
                reader, writer = await asyncio.open_connection(*place.gateway.address)
                try:
                    writer.write(text.encode())
                    await writer.drain()
                    return (await reader.readline()).decode()
                except ConnectionError:
                    return ""
                finally:
                    writer.close()

            body = json.dumps({"model": "m", "messages": opening("x" * 1800)})
            whole = f"{ask}content-length: {len(body)}\r\n\r\n{body}"
            _, slow = await asyncio.open_connection(*place.gateway.address)
            slow.write(whole[:-1].encode())
            room = place.gateway._find_room(path)
            while room.left == 3000:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert "413" in await send(whole)
            slow.close()
            while room.left != 3000:  # noqa: ASYNC110
                await asyncio.sleep(0)
            for _ in range(3):
                assert "200" in await send(whole)
            endless = "x" * 2_000_000
            for head in (f"{ask}a: {endless}", f"POST {path}{endless}", f"{ask}a: b\r\n" * 9000):
                assert (await send(head))[9:12] in ("431", "400", "")
            chunked = f"{ask}transfer-encoding: chunked\r\n\r\n"
            assert (await send(chunked + "0\r\na: " + endless))[9:12] in ("431", "")
            assert "413" in await send(chunked + "fff\r\n" + "x" * 0xFFF + "\r\n")
            stranger = whole.replace(place.token, "guess")
            assert "413" in await send(stranger)
            assert room.left == 3000 and place.gateway._strangers.left == 100

    run(main)
