"""Replies of many kinds: each becomes an answer that says what it is, or a failure that is retried.
Never a whole answer that its sender has marked as failed."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from aiohttp import web
from hosted import CHAT, RESPONSE, Endpoint, asks, events_of, gives, refuses, streams, with_model

from rollout_kit.errors import ModelError
from rollout_kit.responses import function_call_item, function_calls, output_text
from rollout_kit.serving.endpoints.assembly import CompletionAssembly
from rollout_kit.serving.endpoints.chat import MALFORMED
from rollout_kit.serving.endpoints.replies import from_chat
from rollout_kit.serving.registry import load
from rollout_kit.session import Session
from rollout_kit.types import JsonObject

OpenAIModel = load("responses_api_models", "openai_model")
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}

WHOLE = ["stop", "STOP", "end_turn", "eos", "tool_calls", "tool_use", "function_call"]
CUT = ["length", "max_tokens", "MAX_TOKENS", "model_length", "max_output_tokens"]
FILTERED = ["content_filter", "SAFETY", "sensitive", "refusal", "RECITATION", "PROHIBITED_CONTENT"]
FAILED = ["error", "insufficient_system_resource", "network_error", "abort", None]
UNKNOWN = ["OTHER", "MALFORMED_FUNCTION_CALL", "repetition"]


def model_at(url: str, **settings: Any) -> Any:
    given = {"openai_base_url": f"{url}/v1", "openai_model": "m", **settings}
    config = OpenAIModel.Config.model_validate({"upstream_api": "chat_completions", **given})
    peers: Any = None
    return OpenAIModel(config, peers, "policy_model")


def ask(endpoint: Endpoint, session: Session | None = None, **settings: Any) -> Any:
    params: JsonObject = {"input": "Hi", **settings.pop("params", {})}
    return with_model(endpoint, asks(params, session), lambda url: model_at(url, **settings))


@dataclass
class Case:
    """A reply, and what must become of it."""

    message: JsonObject
    reason: str | None
    text: str
    calls: list[tuple[str, str]]
    thought: str
    error: JsonObject = field(default_factory=dict)

    @property
    def wanted(self) -> str | None:
        """The reason of an incomplete response; None for a whole one; `failed` for none."""
        if self.error or self.reason in FAILED:
            return "failed"
        if self.reason in CUT or self.reason in FILTERED:
            return "max_output_tokens" if self.reason in CUT else "content_filter"
        return self.reason if self.reason in UNKNOWN else None

    @property
    def completion(self) -> JsonObject:
        choice = {"index": 0, "message": self.message, "finish_reason": self.reason, **self.error}
        return {"id": "x", "created": 1, "model": "m", "choices": [choice], "usage": USAGE}

    def check(self, response: JsonObject) -> None:
        details = response["incomplete_details"]
        assert (details and details["reason"]) == self.wanted
        assert response["status"] == ("incomplete" if self.wanted else "completed")
        assert output_text(response) == self.text
        calls = [(call["name"], call["arguments"]) for call in function_calls(response["output"])]
        assert calls == self.calls
        thoughts = [item for item in response["output"] if item["type"] == "reasoning"]
        assert (
            "".join(part["text"] for item in thoughts for part in item["summary"]) == self.thought
        )


def parts_of(text: str, chance: random.Random) -> Any:
    """A text in one of the shapes that a content has."""
    half = len(text) // 2
    two = [{"type": "text", "text": text[:half]}, {"type": "text", "text": text[half:]}]
    shapes = [text, two, [text[:half], text[half:]], [two[:1], [two[1]]], [{"text": text}]]
    return chance.choice(shapes)


def case_of(chance: random.Random) -> Case:
    """Any reply."""
    message: JsonObject = {"role": "assistant"}
    text = chance.choice(["", "Yes.", "A word, " * 9, "The tag `</think>` ends it.", "ä→\u2028𝄞"])
    message["content"] = parts_of(text, chance) if text else chance.choice([None, ""])
    thought = chance.choice(["", "", "Hm.\n\nSo: "])
    if thought:
        name = chance.choice(["reasoning_content", "reasoning", "parts"])
        if name == "parts":
            part = {"type": "thinking", "thinking": [{"type": "text", "text": thought}]}
            message["content"] = [part, {"type": "text", "text": text}]
        else:
            shapes = [thought, [{"type": "text", "text": thought}], {"content": thought}]
            message[name] = chance.choice(shapes)
    calls = []
    if chance.random() < 0.4:
        arguments = ['{"a": 1}', "{}", '{"a": 17,}', " ", '{}""', '{"b": "' + "x" * 40 + '"}']
        calls = [(chance.choice(["add", "sub"]), chance.choice(arguments)) for _ in range(2)]
        message["tool_calls"] = [
            {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": given}}
            for n, (name, given) in enumerate(calls)
        ]
    reason = chance.choice(chance.choice([WHOLE, WHOLE, CUT, FILTERED, FAILED, UNKNOWN]))
    is_error = chance.random() < 0.05
    error = {"error": {"message": "upstream broke", "code": 502}} if is_error else {}
    return Case(message, reason, text, calls, thought, error)


def chunks_of(case: Case, chance: random.Random) -> list[JsonObject]:
    """The reply in the chunks of a stream, cut and numbered in many ways."""
    deltas: list[JsonObject] = [{"role": "assistant", "content": ""}]
    for name, value in case.message.items():
        if name in ("role", "tool_calls") or value is None:
            continue
        if isinstance(value, str):
            size = chance.choice([1, 3, 100])
            deltas += [{name: value[at : at + size]} for at in range(0, len(value), size)]
        else:
            deltas.append({name: value})
    style = chance.choice(["indexed", "same", "none", "null", "from 1", "id in each"])
    for n, call in enumerate(case.message.get("tool_calls", ())):
        index = {"indexed": {"index": n}, "same": {"index": 0}, "none": {}, "null": {"index": None}}
        place = index.get(style, {"index": n + 1})
        deltas.append({"tool_calls": [{**place, **call, "function": {**call["function"]}}]})
        given = call["function"]["arguments"]
        if given.strip() and chance.random() < 0.7:
            deltas[-1]["tool_calls"][0]["function"]["arguments"] = given[:3]
            again = {"id": f"{call['id']}-{n}"} if style == "id in each" else {}
            rest = [given[3:5], given[5:]]
            deltas += [
                {"tool_calls": [{**place, **again, "function": {"arguments": piece}}]}
                for piece in rest
            ]
    chunks: list[JsonObject] = [{"choices": [{"index": 0, "delta": each}]} for each in deltas]
    if case.reason is not None or case.error:
        end = {"index": 0, "delta": {}, "finish_reason": case.reason, **case.error}
        chunks.append({"choices": [end]})
    if chance.random() < 0.5:
        chunks.append({"choices": [], "usage": USAGE})
    return chunks


def stream_of(case: Case, chance: random.Random) -> list[bytes]:
    events = [b"data: " + orjson.dumps(each) for each in chunks_of(case, chance)]
    if chance.random() < 0.5:
        events.append(b"data: [DONE]")
    ends = b"\r\n\r\n" if chance.random() < 0.3 else b"\n\n"
    raw = ends.join(events) + chance.choice([ends, b"", b"\n"])
    size = chance.choice([7, 50, 10_000])
    return [raw[at : at + size] for at in range(0, len(raw), size)]


def test_ten_thousand_replies_are_answers_that_say_what_they_are_or_failures() -> None:
    chance = random.Random(20)
    cases = [case_of(chance) for _ in range(10_000)]
    pieces = [stream_of(case, chance) if chance.random() < 0.5 else None for case in cases]
    sent = iter(zip(cases, pieces, strict=True))
    asked = 0

    async def reply(request: web.Request) -> Any:
        nonlocal asked
        asked += 1
        case, stream = next(sent)
        return await (gives(case.completion) if stream is None else streams(stream))(request)

    async def use(model: Any) -> None:
        for case in cases:
            try:
                response = await model.responses({"input": "Hi"})
            except ModelError as error:
                assert case.wanted == "failed" and error.retryable, (case, error)
            else:
                assert case.wanted != "failed", (case, response)
                case.check(response)

    with_model(Endpoint(reply), use, lambda url: model_at(url, max_tries=1))
    assert asked == len(cases)


def test_an_unknown_finish_reason_is_kept_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    case = Case({"role": "assistant", "content": "Hi"}, "repetition", "Hi", [], "")
    endpoint = Endpoint(gives(case.completion))

    async def use(model: Any) -> None:
        for _ in range(3):
            case.check(await model.responses({"input": "Hi"}))

    with_model(endpoint, use, model_at)
    [said] = [each for each in caplog.messages if "repetition" in each]
    assert said.startswith("policy_model: ") and "unknown" in said


def test_a_call_that_ends_at_the_limit_is_cut_off() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1'}}
    case = Case({"content": None, "tool_calls": [call]}, "tool_calls", "", [], "")
    for limit, reason in ((5, "max_output_tokens"), (6, None)):
        response = from_chat(case.completion, {"max_output_tokens": limit})
        assert (response["incomplete_details"] or {}).get("reason") == reason


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"code": "content_filter", "message": "filtered"}, 400),
        ({"code": "x", "innererror": {"code": "ResponsibleAIPolicyViolation"}}, 400),
        ({"type": "content_filter", "message": "high risk"}, 400),
        ({"code": "data_inspection_failed"}, 400),
        ({"message": "Content Exists Risk", "type": "invalid_request_error"}, 400),
        ({"code": 403, "message": "flagged", "metadata": {"reasons": ["violence"]}}, 403),
    ],
)
def test_a_filter_s_refusal_is_a_verdict_about_the_row(error: JsonObject, status: int) -> None:
    endpoint = Endpoint(refuses(status, **{"message": "no", **error}))
    response = ask(endpoint)
    assert response["incomplete_details"] == {"reason": "content_filter"}
    assert len(endpoint.bodies) == 1


def test_a_refusal_that_is_about_the_request_is_an_error() -> None:
    with pytest.raises(ModelError, match="not allowed"):
        ask(Endpoint(refuses(403, "not allowed", metadata={"reasons": []})))


@pytest.mark.parametrize(
    ("text", "thought"),
    [
        ("The tag </think> closes a thought.", ""),
        ("Write `</think>` at its end.", ""),
        ("Use <think>this</think> form.", ""),
        ("It is: </think>\nthat is all", ""),
        ("```\n</think>\n```", ""),
        ("Hm.</think>Yes.", "Hm."),
        ("Hm.\n</think>\n\nYes.", "Hm."),
        ("<think>Hm. `</think>Yes.", "Hm. `"),
    ],
)
def test_only_a_thought_at_the_start_is_a_thought(text: str, thought: str) -> None:
    message = {"role": "assistant", "content": text}
    response = from_chat(Case(message, "stop", "", [], "").completion, {})
    assert output_text(response) == ("Yes." if thought else text)
    thoughts = [item for item in response["output"] if item["type"] == "reasoning"]
    assert [part["text"] for item in thoughts for part in item["summary"]] == [thought] * bool(
        thought
    )


def test_an_old_function_call_is_a_call() -> None:
    message = {"content": None, "function_call": {"name": "add", "arguments": "{}"}}
    response = from_chat(Case(message, "function_call", "", [], "").completion, {})
    assert [call["name"] for call in function_calls(response["output"])] == ["add"]


def test_an_answer_without_any_text_is_an_error_that_is_not_paid_twice() -> None:
    message = {"content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
    endpoint = Endpoint(gives(Case(message, "stop", "", [], "").completion))
    with pytest.raises(ModelError, match="image_url") as caught:
        ask(endpoint)
    assert len(endpoint.bodies) == 1 and not caught.value.retryable


def sent(arguments: Any) -> list[str]:
    """The arguments of an earlier call as both APIs get them."""
    params = {"input": [function_call_item("add", arguments, "c")]}
    chat, own = Endpoint(gives(CHAT)), Endpoint(gives(RESPONSE))
    ask(chat, params=params)
    ask(own, params=params, upstream_api="responses")
    [message] = chat.bodies[0]["messages"]
    [item] = own.bodies[0]["input"]
    return [message["tool_calls"][0]["function"]["arguments"], item["arguments"]]


@pytest.mark.parametrize("raw", ['{"a": 17,}', '{}""', "[1]", "x"])
def test_malformed_arguments_go_to_servers_as_an_object_that_says_so(raw: str) -> None:
    assert [orjson.loads(each) for each in sent(raw)] == [{MALFORMED: raw}] * 2


@pytest.mark.parametrize("raw", ["", " ", None])
def test_blank_arguments_are_none(raw: Any) -> None:
    assert sent(raw) == ["{}", "{}"]


def test_log_probs_of_a_chat_endpoint_are_asked_for_and_kept() -> None:
    listed = [{"token": "Hi", "logprob": -0.5, "bytes": None, "top_logprobs": []}]
    made = Case({"content": "Hi"}, "stop", "Hi", [], "").completion
    made["choices"][0]["logprobs"] = {"content": listed}
    endpoint = Endpoint(gives(made))
    answer = ask(endpoint, params={"include": ["message.output_text.logprobs"]})
    assert endpoint.bodies[0]["logprobs"] is True
    assert answer["output"][0]["content"][0]["logprobs"] == listed


def test_usage_of_other_spellings_counts() -> None:
    usage = {"prompt_tokens": 7.0, "completion_tokens": "5", "prompt_cache_hit_tokens": 4}
    made = Case({"content": "Hi"}, "stop", "Hi", [], "").completion
    counted = from_chat({**made, "usage": {**usage, "cost": 0.25}}, {})["usage"]
    assert (counted["input_tokens"], counted["output_tokens"]) == (7, 5)
    assert counted["input_tokens_details"]["cached_tokens"] == 4 and counted["cost"] == 0.25


def test_the_cost_that_an_endpoint_names_is_the_cost() -> None:
    made = Case({"content": "Hi"}, "stop", "Hi", [], "").completion
    made["usage"] = {**USAGE, "cost": 0.25}
    for prices, cost in ((None, 0.25), ({"input": 1.0, "output": 1.0}, 12e-6)):
        session = Session()
        ask(Endpoint(gives(made)), session, **({"prices": prices} if prices else {}))
        assert session.spent.cost_usd == pytest.approx(cost)


@pytest.mark.parametrize("api", ["chat_completions", "responses"])
def test_a_stream_that_nobody_asked_for_is_read(api: str) -> None:
    answer = ask(Endpoint(streams(events_of(RESPONSE, api))), upstream_api=api)
    assert output_text(answer) == "Hi"


def test_an_error_event_with_a_text_is_the_error() -> None:
    events = [b"event: error\ndata: the backend has gone\n\n"]
    with pytest.raises(ModelError, match="the backend has gone") as caught:
        ask(Endpoint(streams(events)), stream=True, max_tries=1)
    assert caught.value.retryable


def pieces(*calls: JsonObject) -> Callable[[], list[Any]]:
    def assembled() -> list[Any]:
        assembly = CompletionAssembly()
        for call in calls:
            delta = {"choices": [{"delta": {"tool_calls": [call]}}]}
            assembly.feed(b"data: " + orjson.dumps(delta) + b"\n\n")
        assembly.feed(b'data: {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}\n\n')
        whole = assembly.whole() or {}
        return [
            (call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in whole["choices"][0]["message"]["tool_calls"]
        ]

    return assembled


def of(name: str | None = None, arguments: str = "", **call: Any) -> JsonObject:
    named = {} if name is None else {"name": name}
    return {**call, "function": {**named, "arguments": arguments}}


@pytest.mark.parametrize(
    ("assembled", "calls"),
    [
        (
            pieces(
                of("a", '{"x"', index=0, id="1"), of("b", '{"y"', index=0, id="2"), of(None, ":1}")
            ),
            [("1", "a", '{"x"'), ("2", "b", '{"y":1}')],
        ),
        (
            pieces(of("a", "{}", index=0, id="1"), of("b", "{", id="2"), of(None, "}", index=None)),
            [("1", "a", "{}"), ("2", "b", "{}")],
        ),
        (pieces(of(None, "", index=0, id="1"), of("a", "{}", index=0)), [("1", "a", "{}")]),
        (
            pieces(of("a", "{", index=0, id="1"), of(None, "}", index=0, id="other")),
            [("1", "a", "{}")],
        ),
        (
            pieces(of("a", '{"n":1}', index=0), of("a", '{"n":2}', index=0)),
            [(None, "a", '{"n":1}'), (None, "a", '{"n":2}')],
        ),
        (pieces(of("get_", "", index=0), of("time", "{}", index=0)), [(None, "get_time", "{}")]),
        (
            pieces(of("a", "{", index=0, id="1"), of("a", "}", index=0, id="1")),
            [("1", "a", "{}")],
        ),
    ],
)
def test_fragments_of_calls_find_their_call(
    assembled: Callable[[], list[Any]], calls: list[Any]
) -> None:
    assert assembled() == calls


def test_a_thought_that_is_not_stored_names_the_remedy() -> None:
    said = "Item with id 'rs_1' not found. Items are not persisted when `store` is set to false."
    with pytest.raises(ModelError, match=r"reasoning\.encrypted_content") as caught:
        ask(Endpoint(refuses(404, said)), upstream_api="responses")
    assert "upstream_api" not in caught.value.message


@pytest.mark.parametrize(
    ("path", "said", "is_hinted"),
    [
        ("", "Not Found", True),
        ("/api", "Not Found", True),
        ("/v1", "Not Found", False),
        ("/v1beta/openai", "Not Found", False),
        ("", "The model 'm' does not exist.", False),
    ],
)
@pytest.mark.parametrize("upstream_api", ["responses", "chat_completions"])
def test_an_address_without_a_version_is_told_apart(
    path: str, said: str, is_hinted: bool, upstream_api: str
) -> None:
    endpoint = Endpoint(refuses(404, said))

    def model(url: str) -> Any:
        return model_at(url, openai_base_url=url + path, upstream_api=upstream_api)

    with pytest.raises(ModelError) as caught:
        with_model(endpoint, asks({"input": "Hi"}, None), model)
    assert ("the address has no version" in caught.value.message) == is_hinted
    is_about_chat = upstream_api == "responses" and not is_hinted and "model" not in said
    assert ("chat_completions" in caught.value.message) == is_about_chat


def test_a_filter_that_leaves_no_message_is_a_verdict_about_the_row() -> None:
    choice = {"index": 0, "finish_reason": "content_filter"}
    response = from_chat({"model": "m", "choices": [choice]}, {})
    assert response["incomplete_details"] == {"reason": "content_filter"}
    with pytest.raises(ModelError, match="no message"):
        from_chat({"model": "m", "choices": [{**choice, "finish_reason": "stop"}]}, {})
