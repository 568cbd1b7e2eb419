"""The simulated model on real sockets: as an endpoint, behind `openai_model`, and as a peer."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import orjson
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response
from support import HANG_S
from virtual_time import run_linked

from rollout_kit.api.testing import OVERS, making, mount
from rollout_kit.errors import ConfigError, ModelError, PeerTimeout, RolloutError, TaskError
from rollout_kit.serving.registry import load
from rollout_kit.serving.sockets import bound_socket
from rollout_kit.serving.transport.http import HttpClient
from rollout_kit.serving.transport.peers import Peers
from rollout_kit.session import HEADER, Session, entered

SimulatedModel = load("responses_api_models", "simulated_model")
OpenAIModel = load("responses_api_models", "openai_model")

HI = {"input": [{"role": "user", "content": "Hi there, how are you today? " * 5}]}
MESSAGES = [{"role": "user", "content": "Hi there, how are you today? " * 5}]
TOOL = {"type": "function", "name": "add", "parameters": {"properties": {"a": {"type": "integer"}}}}
JSON = {"content-type": "application/json"}


@asynccontextmanager
async def listening(host="127.0.0.1", token="", **settings):
    """The model, and the port on which it answers."""
    model = making(SimulatedModel, **settings)(Peers({}), "policy_model")
    await model.start()
    sock = bound_socket(host, 0)
    try:
        async with model.serving(sock, "run", token):
            yield model, sock.getsockname()[1]
    finally:
        await model.stop()


def with_sdk(use, **settings):
    """`use(client)` with OpenAI's own client at the endpoint."""

    async def main():
        async with (
            listening(**settings) as (_, port),
            AsyncOpenAI(
                base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0
            ) as client,
        ):
            return await use(client)

    return asyncio.run(main())


def asked(*requests, **settings):
    """(status, headers, body) of each (method, path, body, headers), and the model."""

    async def main():
        async with listening(**settings) as (model, port), aiohttp.ClientSession() as client:
            found = []
            for method, path, body, headers in requests:
                url, data = f"http://127.0.0.1:{port}{path}", body and json.dumps(body)
                async with client.request(method, url, data=data, headers=headers) as reply:
                    found.append((reply.status, reply.headers, await reply.read()))
            return found, model

    return asyncio.run(main())


def post(body=HI, path="/v1/responses", **headers):
    return "POST", path, body, {**JSON, **headers}


def get(path, **headers):
    return "GET", path, None, headers


def raw_exchange(sent, **settings):
    """All bytes that come back for `sent`, until the other side ends; and the model."""

    async def main():
        async with listening(**settings) as (model, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            try:
                return await asyncio.wait_for(reader.read(), HANG_S), model
            finally:
                writer.close()

    return asyncio.run(main())


def raw_request(body=HI, version="1.1", extra="connection: close\r\n"):
    text = json.dumps(body)
    head = f"POST /v1/responses HTTP/{version}\r\nhost: 127.0.0.1\r\n{extra}"
    head += f"content-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
    return (head + text).encode()


# --- with OpenAI's client


def test_openai_s_client_gets_responses_whole_and_streamed_alike():
    async def use(client):
        whole = await client.responses.create(model="m", input=HI["input"])
        stream = await client.responses.create(model="m", input=HI["input"], stream=True)
        return whole, [event async for event in stream]

    whole, events = with_sdk(use)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text == HI["input"][0]["content"] and len(deltas) > 2
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output_text == whole.output_text
    assert whole.usage.input_tokens == 37 and whole.model == "simulated"


def test_openai_s_client_gets_completions_whole_and_streamed_alike():
    async def use(client):
        create = client.chat.completions.create
        whole = await create(model="m", messages=MESSAGES)
        options = {"include_usage": True}
        stream = await create(model="m", messages=MESSAGES, stream=True, stream_options=options)
        return whole, [chunk async for chunk in stream]

    whole, chunks = with_sdk(use)
    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert said == whole.choices[0].message.content == MESSAGES[0]["content"]
    assert chunks[-1].usage == whole.usage and chunks[-2].choices[0].finish_reason == "stop"


def test_openai_s_client_gets_tool_calls_in_both_dialects_whole_and_streamed():
    async def use(client):
        chat_tool = {"type": "function", "function": {"name": "add", **TOOL}}
        chat_tool["function"].pop("type")
        given = {"model": "m", "messages": MESSAGES, "tools": [chat_tool]}
        chat = await client.chat.completions.create(**given)
        stream = await client.chat.completions.create(**given, stream=True)
        deltas = [c.choices[0].delta.tool_calls async for c in stream]
        [[streamed]] = [each for each in deltas if each]
        given = {"model": "m", "input": HI["input"], "tools": [TOOL]}
        response = await client.responses.create(**given)
        events = [e async for e in await client.responses.create(**given, stream=True)]
        return chat.choices[0], streamed, response.output, events

    choice, streamed, [item], events = with_sdk(use, num_tool_turns=1)
    [call] = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls" and call.function.name == "add"
    assert streamed.function == call.function or streamed.function.name == "add"
    assert item.type == "function_call" and isinstance(json.loads(item.arguments)["a"], int)
    [done] = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert json.loads(done.arguments).keys() == {"a"}
    assert events[-1].response.output[0].call_id


def test_openai_s_client_lists_the_model_and_reads_its_refusals():
    async def use(client):
        [model] = [each async for each in client.models.list()]
        try:
            await client.responses.create(model="m", input="Hi")
        except Exception as error:
            return model.id, error
        raise AssertionError("was let in")

    name, error = with_sdk(use, model_name="toy", faults=[{"kind": 429, "retry_after_s": 1.5}])
    assert name == "toy" and type(error).__name__ == "RateLimitError"
    assert error.code == "rate_limit_exceeded"
    assert error.response.headers["retry-after"] == "2"
    assert error.response.headers["retry-after-ms"] == "1500"


def test_a_hidden_limit_shows_in_openai_s_headers():
    found, _ = asked(post(), post(), rate_limit={"requests_per_minute": 60, "burst_s": 1})
    (first, headers, _), (second, refused, body) = found
    assert (first, second) == (200, 429)
    assert headers["x-ratelimit-limit-requests"] == "60"
    assert refused["x-ratelimit-remaining-requests"] == "0" and refused["retry-after"] == "1"
    assert json.loads(body)["error"]["type"] == "requests"


def test_vllm_s_token_ids_come_with_a_completion():
    given = {"messages": MESSAGES, "return_token_ids": True}
    [(_, _, body)], _ = asked(post(given, "/v1/chat/completions"))
    completion = json.loads(body)
    [choice] = completion["choices"]
    assert len(completion["prompt_token_ids"]) == completion["usage"]["prompt_tokens"]
    assert len(choice["token_ids"]) == completion["usage"]["completion_tokens"]
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"])


# --- as a model server


def called(over, params, **settings):
    async def main():
        async with mount({"policy_model": making(SimulatedModel, **settings)}, over) as peers:
            with entered(Session()):
                return await peers.call("policy_model", "/v1/responses", params, dict)

    return asyncio.run(main())


def test_a_peer_gets_the_same_answer_over_every_transport():
    params = {**HI, "tools": [TOOL], "return_token_ids": True}
    found = [called(over, params, output_tokens=30) for over in OVERS]
    for response in found:
        Response.model_validate(response)
        response.pop("created_at")
    assert found[0] == found[1] == found[2]
    assert len(found[0]["output"][0]["generation_log_probs"]) == 37


@pytest.mark.parametrize(
    ("fault", "kind", "status", "retry_after_s"),
    [
        ({"kind": 429, "retry_after_s": 1.5}, ModelError, 429, 1.5),
        ({"kind": 500}, ModelError, 500, None),
        ({"kind": 503, "retry_after_s": 2}, ModelError, 503, 2),
    ],
)
@pytest.mark.parametrize("over", OVERS)
def test_a_peer_gets_the_same_refusal_over_every_transport(
    over, fault, kind, status, retry_after_s
):
    with pytest.raises(RolloutError) as caught:
        called(over, HI, faults=[fault])
    error = caught.value
    assert type(error) is kind and error.server == "policy_model" and error.retryable
    assert (error.status, error.retry_after_s) == (status, retry_after_s)


@pytest.mark.parametrize("over", OVERS)
def test_a_peer_s_mistake_and_a_prompt_too_long_are_what_they_are_elsewhere(over):
    with pytest.raises(TaskError, match="input must be") as caught:
        called(over, {"input": 3})
    assert caught.value.status == 400 and caught.value.server == "policy_model"
    response = called(over, HI, max_context_tokens=5)
    assert response["output"] == []
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


WIRE_FAULTS = ["reset", "half_body", "garbage", "wrong_content_type"]


@pytest.mark.parametrize("kind", WIRE_FAULTS)
@pytest.mark.parametrize("over", OVERS)
def test_a_fault_on_the_wire_is_an_error_for_a_peer_too(over, kind):
    with pytest.raises(RolloutError) as caught:
        called(over, HI, faults=[{"kind": kind}])
    assert caught.value.retryable


# --- behind openai_model


def behind(*, upstream_api="responses", request_timeout_s=20, max_tries=1, **settings):
    """The response that `openai_model` makes of the endpoint's, and the endpoint."""

    async def main():
        async with listening(**settings) as (endpoint, port):
            model = making(
                OpenAIModel,
                openai_base_url=f"http://127.0.0.1:{port}/v1",
                openai_model="m",
                upstream_api=upstream_api,
                max_tries=max_tries,
                request_timeout_s=request_timeout_s,
            )(Peers({}), "policy_model")
            await model.start()
            try:
                return await model.answer("/v1/responses", orjson.dumps(HI)), endpoint
            finally:
                await model.stop()

    return asyncio.run(main())


@pytest.mark.parametrize("upstream_api", ["responses", "chat_completions"])
@pytest.mark.parametrize("kind", [429, 500, 503, *WIRE_FAULTS])
def test_a_fault_is_a_retryable_model_error_behind_openai_model(kind, upstream_api):
    with pytest.raises(ModelError) as caught:
        behind(faults=[{"kind": kind}], upstream_api=upstream_api)
    assert caught.value.retryable
    if isinstance(kind, int):
        assert caught.value.status == kind


@pytest.mark.parametrize("upstream_api", ["responses", "chat_completions"])
def test_openai_model_gets_past_a_fault_that_passes(upstream_api):
    faults = [{"kind": kind, "to_request": number} for number, kind in enumerate(WIRE_FAULTS, 1)]
    response, endpoint = behind(faults=faults[:2], max_tries=4, upstream_api=upstream_api)
    Response.model_validate(response)
    assert response["output"][0]["content"][0]["text"] == HI["input"][0]["content"]
    assert endpoint.stats.num_requests == 3
    assert endpoint.stats.by_fault == {"reset": 1, "half_body": 1}


def test_a_context_overflow_is_an_incomplete_response_behind_openai_model():
    response, _ = behind(faults=[{"kind": "context_overflow"}])
    assert response["output"] == [] and response["status"] == "incomplete"


def test_a_slow_drip_arrives_and_a_hang_does_not():
    response, endpoint = behind(faults=[{"kind": "slow_drip", "duration_s": 0.2}])
    assert response["output"] and endpoint.stats.by_fault == {"slow_drip": 1}
    with pytest.raises(ModelError) as caught:
        behind(faults=[{"kind": "hang"}], request_timeout_s=0.3)
    assert caught.value.status == 504


# --- on the wire


def test_a_reset_breaks_the_connection():
    with pytest.raises(ConnectionResetError):
        raw_exchange(raw_request(), faults=[{"kind": "reset"}])


def test_half_a_body_is_less_than_was_announced():
    came, _ = raw_exchange(raw_request(extra=""), faults=[{"kind": "half_body"}])
    head, _, body = came.partition(b"\r\n\r\n")
    length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
    assert len(body) == length // 2


@pytest.mark.parametrize(
    ("kind", "is_whole"), [("half_body", False), ("garbage", True), ("slow_drip", True)]
)
def test_a_stream_is_spoilt_in_the_middle(kind, is_whole):
    fault = {"kind": kind, "duration_s": 0.2}
    came, _ = raw_exchange(raw_request({**HI, "stream": True}), faults=[fault])
    assert b"response.output_text.delta" in came
    assert came.endswith(b"0\r\n\r\n") == is_whole
    assert (b"response.completed" in came) == (kind == "slow_drip")


def test_a_stream_with_time_between_its_tokens_comes_in_pieces():
    async def main():
        settings = {"output_tokens": 64, "per_output_token_s": 0.005}
        async with listening(**settings) as (_, port), aiohttp.ClientSession() as client:
            url = f"http://127.0.0.1:{port}/v1/responses"
            async with client.post(url, json={**HI, "stream": True}) as reply:
                return [piece async for piece, _ in reply.content.iter_chunks()]

    assert len(asyncio.run(main())) > 5


def test_pipelined_requests_are_answered_in_turn():
    bodies = [{"input": f"Question {number}"} for number in range(40)]
    sent = b"".join(raw_request(body, extra="") for body in bodies)
    came, _ = raw_exchange(sent + raw_request({"input": "last"}), latency_s=0.001)
    places = [came.find(f"Question {number}".encode()) for number in range(40)]
    assert places == sorted(places) and min(places) > 0 and came.count(b"200 OK") == 41


def test_chunked_requests_expectations_and_old_clients_are_understood():
    text = json.dumps(HI).encode()
    head = b"POST /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    end = b"connection: close\r\n\r\n"
    chunked = b"transfer-encoding: chunked\r\n" + end + b"%x\r\n%b\r\n0\r\n\r\n" % (len(text), text)
    came, _ = raw_exchange(head + chunked)
    assert b"200 OK" in came and b"how are you" in came
    expecting = b"expect: 100-continue\r\ncontent-length: %d\r\n" % len(text)
    came, _ = raw_exchange(head + expecting + end + text)
    assert came.startswith(b"HTTP/1.1 100 Continue") and b"how are you" in came
    came, _ = raw_exchange(raw_request(version="1.0", extra=""))
    assert b"how are you" in came


def test_what_is_no_http_is_refused_and_closed():
    came, _ = raw_exchange(b"what is this\r\n\r\n")
    assert came.startswith(b"HTTP/1.1 400")


def test_a_body_that_is_no_json_is_a_bad_request():
    sent = raw_request().replace(b'{"input"', b'["input"')
    came, _ = raw_exchange(sent)
    assert b"400 Bad Request" in came and b"not JSON" in came


# --- who is let in, and what is told


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (post(), 200),
        (post(host="localhost:1"), 200),
        (post(host="evil.example"), 403),
        (get("/stats", host="evil.example"), 403),
        (("POST", "/v1/responses", HI, {"content-type": "text/plain"}), 415),
        (("POST", "/reset_stats", {}, {"content-type": "text/plain"}), 415),
        (get("/nope"), 404),
        (get("/reset_stats"), 405),
        (("HEAD", "/health", None, {}), 405),
        (post(path="/health"), 404),
        (("PUT", "/v1/responses", HI, JSON), 405),
    ],
)
def test_a_web_page_is_not_let_in(request_, status):
    [(found, _, body)], _ = asked(request_)
    assert found == status, body


def test_other_machines_show_the_token():
    key = {"authorization": "Bearer a-token"}
    settings = {"host": "0.0.0.0", "token": "a-token"}
    requests = post(), post(**key), get("/stats"), get("/health"), get("/health", **key)
    found, _ = asked(*requests, **settings)
    assert [status for status, _, _ in found] == [401, 200, 401, 200, 200]
    assert json.loads(found[3][2]) == {"status": "ok", "run_id": "run"}
    assert json.loads(found[4][2])["server"]["model"] == "simulated"


def test_stats_count_what_came_and_can_begin_anew():
    faults = [{"kind": 429, "from_request": 2, "to_request": 2}]
    faults += [{"kind": 500, "from_request": 3, "to_request": 3}]
    chat = post({"messages": MESSAGES}, "/v1/chat/completions")
    others = get("/stats"), get("/metrics"), get("/load"), post({}, "/reset_stats"), get("/stats")
    found, _ = asked(post(), post(), post(), chat, *others, faults=faults)
    (_, _, stats), (_, headers, metrics), (_, _, load), _, (_, _, anew) = found[4:]
    stats = json.loads(stats)
    assert stats["requests"] == 4 and stats["num_429"] == 1
    assert stats["by_path"] == {"/v1/responses": 3, "/v1/chat/completions": 1}
    assert stats["by_status"] == {"200": 2, "429": 1, "500": 1}
    assert stats["by_fault"] == {"429": 1, "500": 1}
    assert stats["in_flight"]["now"] == 0 and stats["in_flight"]["peak"] == 1
    assert stats["tokens"] == {"prompt": 74, "generated": 74}
    assert 0 <= stats["last_at"] - stats["first_at"] < 60
    assert headers["content-type"].startswith("text/plain")
    labels = 'engine="0",model_name="simulated"'
    lines = metrics.decode().splitlines()
    assert f"vllm:generation_tokens_total{{{labels}}} 74" in lines
    assert f'vllm:request_success_total{{{labels},finished_reason="stop"}} 2' in lines
    assert f"vllm:e2e_request_latency_seconds_count{{{labels}}} 2" in lines
    assert json.loads(load) == {
        "running": 0,
        "waiting": 0,
        "throttled": False,
        "num_429": 1,
        "server_load": 0,
    }
    assert json.loads(anew)["requests"] == 0


def test_requests_beyond_the_capacity_wait_and_one_that_is_left_is_seen():
    async def main():
        settings = {"latency_s": 0.2, "max_concurrent_requests": 2}
        client = HttpClient()
        async with listening(**settings) as (model, port):
            url = f"http://127.0.0.1:{port}/v1/responses"

            async def ask(seconds):
                reply = await client.post(url, json.dumps(HI).encode(), timeout_s=seconds)
                return reply.status

            began = asyncio.get_running_loop().time()
            asks = [ask(30) for _ in range(8)]
            asks.append(ask(0.4))
            statuses = await asyncio.gather(*asks, return_exceptions=True)
            took_s = asyncio.get_running_loop().time() - began
            while model.stats.in_flight:  # noqa: ASYNC110  who left may not have been seen yet
                await asyncio.sleep(0.01)
            await client.close()
            return statuses, took_s, model.stats

    statuses, took_s, stats = run_linked(main())
    assert statuses[:8] == [200] * 8 and isinstance(statuses[8], PeerTimeout)
    assert 0.79 <= took_s < 1
    assert stats.peak > 2 and stats.by_status == {"200": 8, "abandoned": 1}


def test_a_request_in_flight_is_answered_when_the_server_stops():
    async def main():
        async with aiohttp.ClientSession() as client:
            async with listening(latency_s=0.2) as (model, port):
                url = f"http://127.0.0.1:{port}/v1/responses"
                asking = asyncio.create_task(_text(client, url))
                while not model.stats.in_flight:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            return await asking

    assert b"how are you" in asyncio.run(main())


async def _text(client, url):
    async with client.post(url, json=HI) as reply:
        return await reply.read()


def test_workers_share_one_more_port_and_a_taken_one_is_named():
    async def main():
        with bound_socket("127.0.0.1", 0) as free:
            port = free.getsockname()[1]
        workers = [
            making(SimulatedModel, endpoint_port=port)(Peers({}), "policy_model") for _ in range(2)
        ]
        for worker in workers:
            await worker.start()
        try:
            for _ in range(100):
                async with aiohttp.ClientSession() as client:
                    await _text(client, f"http://127.0.0.1:{port}/v1/responses")
        finally:
            for worker in workers:
                await worker.stop()
        with bound_socket("127.0.0.1", 0) as taken:
            config = {"endpoint_port": taken.getsockname()[1]}
            with pytest.raises(ConfigError, match="cannot listen there"):
                await making(SimulatedModel, **config)(Peers({}), "policy_model").start()
        return [worker.stats.num_requests for worker in workers]

    counts = asyncio.run(main())
    assert sum(counts) == 100 and min(counts) > 0


def test_the_session_s_header_is_what_tells_a_peer_from_a_client():
    fault = {"kind": 429, "retry_after_s": 3}
    found, _ = asked(post(), post(**{HEADER: "s"}), faults=[fault])
    client, peer = (json.loads(body)["error"] for _, _, body in found)
    assert client["type"] == "requests" and client["code"] == "rate_limit_exceeded"
    assert peer["type"] == "ModelError" and peer["retry_after_s"] == 3
