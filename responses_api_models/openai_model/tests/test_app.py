import asyncio
import time
from email.utils import formatdate

import orjson
import pytest
from aiohttp import web
from hosted import (
    CHAT,
    HI,
    RESPONSE,
    Endpoint,
    aborts,
    asks,
    breaks_off,
    events_of,
    gives,
    hangs,
    refuses,
    stops_halfway,
    streams,
    with_model,
)
from openai.types.responses import Response

from rollout_kit.errors import ModelError, TaskError
from rollout_kit.responses import reasoning_item
from rollout_kit.serving.registry import load
from rollout_kit.session import Session

OpenAIModel = load("responses_api_models", "openai_model")

NOW = 1_800_000_000


def at(base="/v1", scheme="http", **settings):
    """A model, given the URL of its endpoint."""

    def make(url):
        url = url.replace("http", scheme, 1)
        config = OpenAIModel.Config(openai_base_url=url + base, openai_model="policy", **settings)
        return OpenAIModel(config, None, "policy_model")

    return make


def ask(endpoint, params=None, session=None, **settings):
    return with_model(endpoint, asks(params, session), at(**settings))


def timed(endpoint, session=None, **settings):
    """The answer or the ModelError, and after how many seconds of the virtual clock it came."""

    async def use(model):
        now = asyncio.get_running_loop().time
        began = now()
        try:
            found = await asks(session=session)(model)
        except ModelError as error:
            found = error
        return found, now() - began

    return with_model(endpoint, use, at(**settings))


def chat(endpoint, params=None, **settings):
    return ask(endpoint, params, upstream_api="chat_completions", **settings)


def test_a_responses_endpoints_answer_is_passed_on_untouched():
    endpoint = Endpoint(gives(RESPONSE))
    answer = ask(endpoint, {**HI, "temperature": 0.5, "model": "other", "top_p": None})
    assert answer == RESPONSE
    assert endpoint.bodies == [{"input": "Hi", "temperature": 0.5, "model": "other"}]


@pytest.mark.parametrize(
    "base, path",
    [
        ("/v1", "/v1/responses"),
        ("/v1/", "/v1/responses"),
        ("", "/responses"),
        ("/a", "/a/responses"),
    ],
)
def test_the_base_url_is_used_as_given(base, path):
    endpoint = Endpoint(gives(RESPONSE))
    ask(endpoint, base=base)
    assert endpoint.paths == [path]


def test_key_and_headers_are_sent():
    endpoint = Endpoint(gives(RESPONSE))
    ask(endpoint, openai_api_key="secret", openai_default_headers={"x-team": "rl"})
    assert endpoint.headers[0]["authorization"] == "Bearer secret"
    assert endpoint.headers[0]["x-team"] == "rl"


def test_who_is_billed_is_told_and_which_tier():
    endpoint = Endpoint(gives(RESPONSE))
    billed = {"openai_organization": "org-1", "openai_project": "proj_1"}
    ask(endpoint, service_tier="flex", **billed)
    ask(endpoint, {**HI, "service_tier": "scale"}, service_tier="flex")
    assert endpoint.headers[0]["OpenAI-Organization"] == "org-1"
    assert endpoint.headers[0]["OpenAI-Project"] == "proj_1"
    assert [body["service_tier"] for body in endpoint.bodies] == ["flex", "scale"]


def test_what_the_endpoint_does_not_take_is_not_sent():
    endpoint = Endpoint(gives(CHAT))
    params = {**HI, "max_output_tokens": 5, "seed": 7, "temperature": 0.5, "stream": True}
    chat(endpoint, params, unsupported_params=["seed"], max_tokens_field="max_tokens")
    assert endpoint.bodies[0].keys() == {
        *("model", "messages", "max_tokens", "temperature", "stream")
    }


def test_without_a_key_there_is_no_authorization():
    endpoint = Endpoint(gives(RESPONSE))
    ask(endpoint)
    assert "authorization" not in endpoint.headers[0]


def test_the_row_wins_over_extra_body_and_its_own_extra_body_over_both():
    endpoint = Endpoint(gives(RESPONSE))
    extra = orjson.dumps({"seed": 7, "top_k": 1}).decode()
    ask(
        endpoint,
        {**HI, "temperature": 0.5, "top_k": 3, "metadata": {"extra_body": extra, "a": "b"}},
        extra_body={"temperature": 1, "top_p": 0.9, "top_k": 2},
    )
    assert endpoint.bodies == [
        {
            "input": "Hi",
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 1,
            "seed": 7,
            "metadata": {"a": "b"},
            "model": "policy",
        }
    ]


@pytest.mark.parametrize("text", ["{", "[1]", 3])
def test_an_extra_body_that_is_no_json_object_is_the_rows_mistake(text):
    with pytest.raises(TaskError, match="extra_body"):
        ask(Endpoint(gives(RESPONSE)), {**HI, "metadata": {"extra_body": text}})


def test_reasoning_items_are_dropped_where_asked():
    items = [{"role": "user", "content": "Hi"}, reasoning_item("Hm.")]
    for drop, count in ((False, 2), (True, 1)):
        endpoint = Endpoint(gives(RESPONSE))
        ask(endpoint, {"input": items}, drop_input_reasoning_items=drop)
        assert len(endpoint.bodies[0]["input"]) == count


def test_a_chat_endpoint_gives_a_response():
    endpoint = Endpoint(gives(CHAT))
    answer = chat(endpoint, {**HI, "max_output_tokens": 5})
    Response.model_validate(answer)
    assert answer["output"][0]["content"][0]["text"] == "Hi"
    assert endpoint.paths == ["/v1/chat/completions"]
    assert endpoint.bodies == [
        {
            "model": "policy",
            "messages": [{"role": "user", "content": "Hi"}],
            "max_completion_tokens": 5,
            "stream": False,
        }
    ]


def test_tools_travel_through_a_chat_endpoint():
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    first = {**CHAT, "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}]}
    tool = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}
    endpoint = Endpoint(gives(first), gives(CHAT))

    async def use(model):
        params = {"input": [{"role": "user", "content": "Add."}], "tools": [tool]}
        turn = await model.responses(params)
        output = {"type": "function_call_output", "call_id": "c1", "output": "3"}
        params = {**params, "input": [*params["input"], *turn["output"], output]}
        return turn, await model.responses(params)

    turn, answer = with_model(endpoint, use, at(upstream_api="chat_completions"))
    Response.model_validate(turn)
    assert [(item["name"], item["call_id"]) for item in turn["output"]] == [("add", "c1")]
    assert answer["output"][0]["type"] == "message"
    assert endpoint.bodies[0]["tools"][0]["function"]["name"] == "add"
    assert endpoint.bodies[1]["messages"][1:] == [
        message,
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ]


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_a_transient_refusal_is_tried_again(status):
    endpoint = Endpoint(gives({}, status, retry_after="0"), gives(RESPONSE))
    session = Session()
    assert ask(endpoint, session=session) == RESPONSE
    assert list(session.stats) == ["rate_limit_s" if status in (429, 529) else "retry_s"]
    assert len(endpoint.bodies) == 2 and endpoint.bodies[0] == endpoint.bodies[1]


@pytest.mark.parametrize("trouble", [breaks_off, stops_halfway, gives(b'{"output": [')])
def test_a_reply_that_breaks_off_is_tried_again(trouble):
    endpoint = Endpoint(trouble, gives(RESPONSE))
    session = Session()
    assert ask(endpoint, session=session) == RESPONSE
    assert session.stats["retry_s"] > 0


@pytest.mark.parametrize(
    "status, says_terminal", [(400, True), (401, False), (404, False), (422, True)]
)
def test_any_other_refusal_is_final_and_keeps_status_message_and_body(status, says_terminal):
    endpoint = Endpoint(refuses(status, "temperature: too hot", param="temperature"))
    with pytest.raises(ModelError, match="temperature: too hot") as caught:
        ask(endpoint)
    error = caught.value
    assert (error.status, error.server, error.retryable) == (status, "policy_model", False)
    assert error.terminal is says_terminal and '"param":"temperature"' in error.body
    assert len(endpoint.bodies) == 1


def test_an_encrypted_url_of_a_plain_endpoint_fails_at_once_and_says_why():
    error, took_s = timed(Endpoint(gives(RESPONSE)), scheme="https")
    assert "does not speak TLS: is it an http:// URL?" in error.message
    assert not error.retryable and took_s < 0.4


def test_the_last_error_rises_after_max_tries():
    endpoint = Endpoint(refuses(503, "overloaded"))
    with pytest.raises(ModelError, match="overloaded") as caught:
        ask(endpoint, max_tries=2)
    assert (caught.value.status, caught.value.retryable, len(endpoint.bodies)) == (503, True, 2)


@pytest.mark.parametrize("named", ["2", formatdate(NOW + 2, usegmt=True)], ids=["seconds", "date"])
def test_retry_after_is_waited_for(named, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: NOW)
    endpoint = Endpoint(gives({}, 429, retry_after=named), gives(RESPONSE))
    session = Session()
    response, took_s = timed(endpoint, session)
    assert 2 <= session.stats["rate_limit_s"] <= took_s
    assert response == RESPONSE


def test_a_named_time_beyond_the_limit_is_not_waited_for():
    endpoint = Endpoint(gives({}, 429, retry_after="3600"))
    error, took_s = timed(endpoint, request_timeout_s=5)
    assert took_s < 3
    assert (error.retry_after_s, len(endpoint.bodies)) == (3600, 1)


def test_a_hanging_endpoint_ends_at_the_limit():
    error, took_s = timed(Endpoint(hangs), request_timeout_s=20)
    assert "did not answer" in error.message and 20 <= took_s < 21
    assert (error.status, error.retryable) == (504, True)
    error, _ = timed(Endpoint(hangs), request_timeout_s=19.987)
    assert error.message.endswith("did not answer within 20 s")


def test_an_endpoint_that_nobody_listens_at_is_the_models_error():
    async def run():
        config = OpenAIModel.Config(
            openai_base_url="http://127.0.0.1:1/v1", openai_model="m", max_tries=1
        )
        model = OpenAIModel(config, None, "policy_model")
        await model.start()
        try:
            await model.handle("/v1/responses", b'{"input": "Hi"}')
        finally:
            await model.stop()

    with pytest.raises(ModelError, match="cannot connect") as caught:
        asyncio.run(run())
    assert caught.value.retryable


@pytest.mark.parametrize(
    "reply", [b"<html>", b"", b"null", b"[]", b"{}", {"output": None}, {"error": {"message": "x"}}]
)
@pytest.mark.parametrize("upstream_api", ["responses", "chat_completions"])
def test_garbage_with_status_200_is_an_error_that_may_pass(upstream_api, reply):
    with pytest.raises(ModelError) as caught:
        ask(Endpoint(gives(reply)), upstream_api=upstream_api, max_tries=1)
    assert caught.value.retryable and caught.value.server == "policy_model"


PENDING = "a response without its answer, as its status is 'queued': leave out 'background'"

MESSAGE = {"type": "message", "role": "assistant"}

NO_ANSWERS = [
    ({"output": [None]}, "an item of its 'output' is no object"),
    ({"output": [{**MESSAGE, "content": 5}]}, "a message of its 'output' is no text"),
    ({"output": [{**MESSAGE, "content": [None]}]}, "a message of its 'output' is no text"),
    (
        {"output": [{**MESSAGE, "content": [{"type": "output_text", "text": 5}]}]},
        "a message of its 'output' is no text",
    ),
    (
        {"output": [{"type": "function_call", "name": None}]},
        "one of its function calls has no name",
    ),
    ({"output": [], "status": "queued"}, PENDING),
    ({"output": [], "status": "failed"}, "as its status is 'failed'"),
    (CHAT, "needs upstream_api: chat_completions"),
    ({"detail": "x" * 9000}, 'it begins with {"detail":"xxx'),
]


@pytest.mark.parametrize("reply, what", NO_ANSWERS)
def test_a_response_without_an_answer_is_described_and_no_answer(reply, what):
    with pytest.raises(ModelError) as caught:
        ask(Endpoint(gives(reply)), max_tries=1)
    message = caught.value.message
    assert "/v1/responses answered 200: " in message and what in message and len(message) < 400
    assert caught.value.retryable is (what is not PENDING) and not caught.value.terminal


def test_a_reply_of_a_chat_endpoint_that_is_none_is_described():
    with pytest.raises(ModelError) as caught:
        chat(Endpoint(gives({"detail": "x"})), max_tries=1)
    told = 'answered 200: not a chat completion: it has no choices; it begins with {"detail":"x"}'
    assert caught.value.message.endswith(told)


@pytest.mark.parametrize(
    "odd, kept",
    [
        ({"usage": [1]}, {"usage": None}),
        ({"usage": "many"}, {"usage": None}),
        ({"usage": {"total_tokens": "x", "cost": 1}}, {"usage": {"cost": 1}}),
        ({"usage": {"total_tokens": "3"}}, {"usage": {"total_tokens": 3}}),
        ({"usage": {"input_tokens_details": 5}}, {"usage": {}}),
        (
            {"usage": {"output_tokens_details": {"reasoning_tokens": [1], "other": 2}}},
            {"usage": {"output_tokens_details": {"other": 2}}},
        ),
        ({"incomplete_details": "long"}, {"incomplete_details": {"reason": "long"}}),
    ],
)
def test_a_field_of_a_wrong_type_costs_no_answer(odd, kept):
    session = Session()
    answer = ask(Endpoint(gives({**RESPONSE, **odd})), session=session)
    assert answer == {**RESPONSE, **kept} and session.stats["repaired"]


@pytest.mark.parametrize("status", [200, 500])
def test_a_page_cannot_steer_the_terminal(status):
    with pytest.raises(ModelError) as caught:
        ask(Endpoint(gives(b"\x1b[31mred\x07\x9b \r\n" + b"x" * 9000, status)), max_tries=1)
    assert "red" in caught.value.message and caught.value.message.isprintable()
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    "refusal",
    [
        refuses(400, "too long", code="context_length_exceeded"),
        refuses(400, "too long", param="input_tokens", code=400),
        gives({"object": "error", "message": "x", "param": "input_tokens", "code": 400}, 400),
    ],
)
def test_an_input_beyond_the_context_is_an_incomplete_response(refusal):
    answer = ask(Endpoint(refusal), {**HI, "tool_choice": None})
    Response.model_validate(answer)
    assert (answer["status"], answer["output"]) == ("incomplete", [])
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize("status", [400, 500])
def test_words_about_the_context_alone_are_no_overflow(status):
    message = "max_tokens exceeds the maximum context length"
    with pytest.raises(ModelError, match="max_tokens"):
        ask(Endpoint(refuses(status, message, param="max_tokens")), max_tries=1)


def test_never_more_requests_run_than_allowed_and_the_load_tells():
    gate = {"now": 0, "most": 0}

    async def slow(request):
        gate["now"] += 1
        gate["most"] = max(gate["most"], gate["now"])
        await asyncio.sleep(0.1)
        gate["now"] -= 1
        return web.json_response(RESPONSE)

    async def use(model):
        calls = [asyncio.create_task(model.responses(HI)) for _ in range(6)]
        await asyncio.sleep(0.05)
        during = await model.handle("/load", b"")
        await asyncio.gather(*calls)
        return during, await model.handle("/load", b"")

    during, after = with_model(Endpoint(slow), use, at(max_concurrent_requests=2))
    assert gate["most"] == 2
    assert (during["running"], during["waiting"]) == (2, 4)
    assert after == {"running": 0, "waiting": 0, "throttled": False, "num_429": 0}


def test_the_wait_for_a_turn_is_not_the_requests_time():
    async def slow(request):
        await asyncio.sleep(0.3)
        return web.json_response(RESPONSE)

    async def use(model):
        return await asyncio.gather(*(model.responses(HI) for _ in range(4)))

    options = {"max_concurrent_requests": 1, "request_timeout_s": 0.8}
    assert with_model(Endpoint(slow), use, at(**options)) == [RESPONSE] * 4


def test_the_load_counts_what_the_endpoint_throttles():
    async def use(model):
        call = asyncio.create_task(model.responses(HI))
        await asyncio.sleep(0.2)
        during = await model.load()
        await call
        return during, await model.load()

    endpoint = Endpoint(gives({}, 429, retry_after="0.5"), gives(RESPONSE))
    during, after = with_model(endpoint, use, at())
    pace = {"requests_per_minute": pytest.approx(during["requests_per_minute"])}
    assert during == {"running": 0, "waiting": 1, "throttled": True, "num_429": 1, **pace}
    assert after == {"running": 0, "waiting": 0, "throttled": False, "num_429": 1, **pace}


def test_where_the_endpoint_is_does_not_change_what_is_generated():
    config = OpenAIModel.Config(
        openai_base_url="http://x/v1",
        openai_api_key="secret",
        openai_model="m",
        extra_body={"top_k": 1},
        upstream_api="chat_completions",
        max_tries=9,
    )
    model = OpenAIModel(config, None, "policy_model")
    assert model.describe()["settings"] == {
        "openai_model": "m",
        "extra_body": {"top_k": 1},
        "upstream_api": "chat_completions",
    }
    assert model.model_name() == "m" and "secret" not in repr(config)


# --- streamed to us

BOTH_APIS = pytest.mark.parametrize("upstream_api", ["responses", "chat_completions"])


@BOTH_APIS
def test_a_streamed_answer_is_the_answer_usage_included(upstream_api):
    endpoint = Endpoint(streams(events_of(RESPONSE, upstream_api)))
    answer = ask(endpoint, stream=True, upstream_api=upstream_api)
    Response.model_validate(answer)
    assert answer["output"][0]["content"] == RESPONSE["output"][0]["content"]
    assert answer["usage"] == RESPONSE["usage"]
    assert endpoint.bodies[0]["stream"] is True
    is_chat = upstream_api == "chat_completions"
    assert ("stream_options" in endpoint.bodies[0]) is is_chat
    if not is_chat:
        assert answer == RESPONSE


@BOTH_APIS
def test_an_endpoint_that_streams_nothing_is_understood_all_the_same(upstream_api):
    whole = RESPONSE if upstream_api == "responses" else CHAT
    answer = ask(Endpoint(gives(whole)), stream=True, upstream_api=upstream_api)
    assert answer["output"][0]["content"][0]["text"] == "Hi"


@BOTH_APIS
@pytest.mark.parametrize("then", [aborts, None], ids=["broken off", "ended"])
def test_a_stream_that_is_cut_is_asked_for_again(upstream_api, then):
    events = events_of(RESPONSE, upstream_api)
    begun = events[: 3 if then else 2]  # a lost connection may have lost the usage
    endpoint = Endpoint(streams(begun, then=then), streams(events))
    session = Session()
    answer = ask(endpoint, session=session, stream=True, upstream_api=upstream_api)
    assert session.stats["retry_s"] > 0 and len(endpoint.bodies) == 2
    assert answer["output"][0]["content"][0]["text"] == "Hi"


@BOTH_APIS
def test_a_stream_that_is_always_cut_is_an_error_and_never_half_an_answer(upstream_api):
    endpoint = Endpoint(streams(events_of(RESPONSE, upstream_api)[:-3]))
    with pytest.raises(ModelError, match="ended before its answer was whole") as caught:
        ask(endpoint, stream=True, upstream_api=upstream_api, max_tries=2)
    assert caught.value.retryable and len(endpoint.bodies) == 2


@BOTH_APIS
def test_a_stream_may_take_longer_than_a_request_but_not_fall_silent(upstream_api):
    events = events_of(RESPONSE, upstream_api)
    slow = streams(events, pause_s=1.5 / len(events))
    options = {"stream": True, "upstream_api": upstream_api, "request_timeout_s": 1, "max_tries": 2}
    answer = ask(Endpoint(slow), **options)
    assert answer["output"][0]["content"][0]["text"] == "Hi"
    silent = Endpoint(streams(events[:2], then=hangs), streams(events))
    with pytest.raises(ModelError, match="fell silent for") as caught:
        ask(silent, **options)
    assert (caught.value.status, caught.value.retryable) == (504, True)


@BOTH_APIS
def test_an_answer_that_is_whole_is_kept_whatever_befalls_its_connection(upstream_api):
    endpoint = Endpoint(streams(events_of(RESPONSE, upstream_api), then=hangs))
    answer = ask(endpoint, stream=True, upstream_api=upstream_api, request_timeout_s=0.5)
    assert answer["usage"] == RESPONSE["usage"] and len(endpoint.bodies) == 1


def test_a_long_stream_that_breaks_off_late_is_tried_again_all_the_same():
    events = events_of(RESPONSE, "responses")
    broken = streams(events[:-1], pause_s=1.5 / len(events), then=aborts)
    endpoint = Endpoint(broken, streams(events))
    answer = ask(endpoint, stream=True, request_timeout_s=1)
    assert len(endpoint.bodies) == 2 and answer["output"] == RESPONSE["output"]


def failing(code, message="no"):
    failed = {**RESPONSE, "status": "failed", "output": [], "error": {"code": code}}
    failed["error"]["message"] = message
    event = {"type": "response.failed", "response": failed}
    return streams([b"data: " + orjson.dumps(event) + b"\n\n"])


def test_an_input_beyond_the_context_may_be_told_in_a_stream():
    answer = ask(Endpoint(failing("context_length_exceeded")), stream=True)
    assert (answer["status"], answer["output"]) == ("incomplete", [])


@pytest.mark.parametrize(
    "code, status, retryable",
    [("server_error", 502, True), ("rate_limit_exceeded", 429, True), (400, 400, False)],
)
def test_a_refusal_in_a_stream_is_what_it_would_be_without(code, status, retryable):
    with pytest.raises(ModelError, match="answered 200: it broke") as caught:
        ask(Endpoint(failing(code, "it broke")), stream=True, max_tries=1)
    assert (caught.value.status, caught.value.retryable) == (status, retryable)


def test_an_unknown_model_is_named_where_the_endpoint_does_not():
    with pytest.raises(ModelError, match=r"Not Found \(asked for the model 'policy'\)"):
        ask(Endpoint(refuses(404, "Not Found")))


def test_google_s_refusals_are_read_and_a_wrong_key_is_no_row_s_fault():
    told = {"code": 400, "message": "API key not valid.\nPass a valid one.", "status": "INVALID"}
    told["details"] = [{"@type": "ErrorInfo", "reason": "API_KEY_INVALID"}, {"locale": "en"}]
    with pytest.raises(ModelError, match=r"API key not valid\. Pass a valid one\.") as caught:
        ask(Endpoint(gives([{"error": told}], 400)))
    assert caught.value.status == 401 and not caught.value.terminal


def test_an_empty_account_is_no_row_s_fault_either():
    with pytest.raises(ModelError, match="insufficient credits") as caught:
        ask(Endpoint(refuses(402, "insufficient credits", code=402)))
    assert not caught.value.retryable and not caught.value.terminal


RAW = {"input": "Q: 1+1\nA:", "raw_prompt": True, "max_output_tokens": 5, "temperature": 0.5}
CONTINUED = {
    "model": "policy",
    "choices": [{"index": 0, "text": " <think>2</think>3", "finish_reason": "length"}],
    "usage": {"prompt_tokens": 6, "completion_tokens": 5, "total_tokens": 11},
}


@pytest.mark.parametrize("api", ["responses", "chat_completions"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_raw_prompt_is_sent_to_the_completions(api, stream):
    endpoint = Endpoint(gives(CONTINUED))
    answer = ask(endpoint, RAW, upstream_api=api, stream=stream)
    assert endpoint.paths == ["/v1/completions"]
    assert endpoint.bodies == [
        {"model": "policy", "prompt": "Q: 1+1\nA:", "max_tokens": 5, "temperature": 0.5}
    ]
    [item] = answer["output"]
    assert item["content"][0]["text"] == " <think>2</think>3"  # nothing is interpreted
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["usage"]["total_tokens"] == 11


def test_a_row_that_wants_no_raw_prompt_says_so_to_nobody():
    for api, answer in (("responses", RESPONSE), ("chat_completions", CHAT)):
        endpoint = Endpoint(gives(answer))
        ask(endpoint, {**HI, "raw_prompt": False}, upstream_api=api)
        assert "raw_prompt" not in endpoint.bodies[0]


def test_a_raw_prompt_with_more_than_one_text_is_refused_before_it_is_sent():
    endpoint = Endpoint(gives(CONTINUED))
    several = [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]
    for more in ({"input": several}, {"tools": [{"type": "function", "name": "f"}]}):
        with pytest.raises(TaskError, match="raw_prompt: "):
            ask(endpoint, {**RAW, **more})
    assert endpoint.bodies == []


def test_an_answer_that_is_no_completion_is_named():
    endpoint = Endpoint(gives(CHAT))
    with pytest.raises(ModelError, match="not a completion: it has no text"):
        ask(endpoint, RAW, max_tries=1)
