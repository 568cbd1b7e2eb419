"""Answers as events, and events as answers: what goes in comes out, or nothing does."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from rollout_kit.responses import function_call_item, make_response, message_item, reasoning_item
from rollout_kit.serving.endpoints.assembly import CompletionAssembly, ResponseAssembly
from rollout_kit.serving.endpoints.completions import as_completion
from rollout_kit.serving.endpoints.events import DONE, completion_events, response_events

USAGE = {"input_tokens": 7, "output_tokens": 5, "total_tokens": 12}
REFUSED = {**message_item(""), "content": [{"type": "refusal", "refusal": "I will not. " * 9}]}
RESPONSES = [
    make_response("m", [message_item("Hi, " * 30)], USAGE),
    make_response("m", [], USAGE, incomplete_reason="max_output_tokens"),
    make_response("m", [REFUSED], USAGE),
    make_response(
        "m",
        [
            reasoning_item("Hm. " * 20),
            message_item("Adding."),
            function_call_item("add", '{"a": 1, "b": "' + "x" * 50 + '"}', "c1"),
            function_call_item("add", "{}", "c2"),
        ],
        USAGE,
    ),
]


def assembled(kind, raw, size=1 << 20):
    assembly = kind()
    for start in range(0, len(raw), size):
        assembly.feed(raw[start : start + size])
    return assembly.whole()


def chunks_of(*deltas, reason="stop"):
    said = [{"choices": [{"index": 0, "delta": each}]} for each in deltas]
    said.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    return b"".join(b"data: %b\n\n" % orjson.dumps(each) for each in said) + DONE


def message_of(*deltas):
    whole = assembled(CompletionAssembly, chunks_of(*deltas))
    assert whole
    return whole["choices"][0]["message"]


@pytest.mark.parametrize("response", RESPONSES)
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_a_response_survives_its_stream_in_pieces_of_any_size(response, size):
    raw = b"".join(response_events(response))
    assert assembled(ResponseAssembly, raw, size) == response
    assert assembled(ResponseAssembly, raw.replace(b"\n", b"\r\n"), size) == response


@pytest.mark.parametrize("response", RESPONSES)
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_a_completion_survives_its_stream_in_pieces_of_any_size(response, size):
    completion = as_completion(response)
    raw = b"".join(completion_events(completion, usage=True))
    [choice] = assembled(CompletionAssembly, raw, size)["choices"]
    told = {key: value for key, value in choice["message"].items() if value is not None}
    wanted = completion["choices"][0]["message"]
    assert told == {key: value for key, value in wanted.items() if value not in (None, "")}
    assert choice["finish_reason"] == completion["choices"][0]["finish_reason"]
    assert assembled(CompletionAssembly, raw, size)["usage"] == completion["usage"]


@given(st.data())
@pytest.mark.parametrize("kind", [ResponseAssembly, CompletionAssembly])
def test_a_stream_that_is_cut_anywhere_is_whole_or_nothing(kind, data):
    response = data.draw(st.sampled_from(RESPONSES))
    if kind is ResponseAssembly:
        raw = b"".join(response_events(response))
    else:
        raw = b"".join(completion_events(as_completion(response), usage=False))
    whole = assembled(kind, raw)
    assert assembled(kind, raw[: data.draw(st.integers(0, len(raw)))]) in (None, whole)


@pytest.mark.parametrize("response", RESPONSES)
def test_every_event_is_one_that_openai_s_client_knows(response):
    adapter = TypeAdapter(ResponseStreamEvent)
    for raw in response_events(response):
        data = orjson.loads(raw.partition(b"data: ")[2])
        event = adapter.validate_python(data)
        assert event.type == data["type"]
    *chunks, done = completion_events(as_completion(response), usage=True)
    for raw in chunks:
        ChatCompletionChunk.model_validate(orjson.loads(raw.removeprefix(b"data: ")))
    assert done == b"data: [DONE]\n\n"


def test_log_probs_and_token_ids_come_in_pieces_too():
    entries = [{"token": each, "logprob": -1.0, "bytes": None, "top_logprobs": []} for each in "ab"]
    choices = [
        {"delta": {"content": "a"}, "logprobs": {"content": entries[:1]}, "token_ids": [1]},
        {"delta": {"content": "b"}, "logprobs": {"content": entries[1:]}, "token_ids": [2]},
        {"delta": {}, "finish_reason": "stop"},
    ]
    raw = b"".join(b"data:%b\n\n" % orjson.dumps({"choices": [each]}) for each in choices)
    [choice] = assembled(CompletionAssembly, raw + DONE)["choices"]
    assert choice["logprobs"] == {"content": entries} and choice["token_ids"] == [1, 2]


def test_calls_that_are_all_numbered_alike_are_told_apart_by_their_ids():
    calls = [
        {"index": 0, "id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for name in ("a", "b")
    ]
    message = message_of(*({"tool_calls": [call]} for call in calls))
    assert [call["id"] for call in message["tool_calls"]] == ["a", "b"]


def test_a_call_s_arguments_are_added_up_though_its_id_is_repeated():
    first = {"index": 1, "id": "c", "function": {"name": "add", "arguments": '{"a"'}}
    more = {"index": 1, "id": "c", "function": {"arguments": ": 1}"}}
    [call] = message_of({"tool_calls": [first]}, {"tool_calls": [more]})["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}


def test_items_left_out_at_the_end_are_those_that_came_before():
    response = RESPONSES[3]
    events = response_events(response)
    told = orjson.loads(events[-1].partition(b"data: ")[2])
    told["response"]["output"] = []
    raw = b"".join([*events[:-1], b"data: " + orjson.dumps(told) + b"\n\n"])
    assert assembled(ResponseAssembly, raw)["output"] == response["output"]


@pytest.mark.parametrize("kind", [ResponseAssembly, CompletionAssembly])
@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "code": "server_error", "message": "it broke"},
        {"error": {"code": 502, "message": "it broke"}, "choices": []},
        {"type": "response.failed", "response": {"error": {"message": "it broke"}, "output": []}},
    ],
)
def test_an_error_in_the_middle_is_the_whole(kind, event):
    if kind is CompletionAssembly and "error" not in event:
        return
    raw = b": a comment\n\nevent: x\ndata: " + orjson.dumps(event) + b"\n\n"
    assert assembled(kind, raw)["error"]["message"] == "it broke"


@pytest.mark.parametrize("kind", [ResponseAssembly, CompletionAssembly])
@pytest.mark.parametrize("data", [b"{", b"5", b'{"choices": 3, "type": "response.completed"}'])
def test_what_cannot_be_read_is_nothing(kind, data):
    raw = b"data: " + data + b"\n\n" + b"".join(response_events(RESPONSES[0])) + chunks_of()
    assert assembled(kind, raw) is None


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "a word, " * 8},
        {"tool_calls": [{"index": 0, "function": {"arguments": "a word, " * 8}}]},
    ],
)
def test_a_long_answer_of_many_pieces_is_whole(delta: dict[str, object]) -> None:
    """It took hours when each piece copied all before it."""
    assembly, number = CompletionAssembly(), 200_000
    event = b"data: " + orjson.dumps({"id": "x", "choices": [{"index": 0, "delta": delta}]})
    for _ in range(number):
        assembly.feed(event + b"\n\n")
    end = {"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    assembly.feed(b"data: " + orjson.dumps(end) + b"\n\ndata: [DONE]\n\n")
    whole = assembly.whole() or {}
    message = whole["choices"][0]["message"]
    said = message["content"] or message["tool_calls"][0]["function"]["arguments"]
    assert said == "a word, " * 8 * number
