"""Replies and rows that are not quite JSON: kept as far as they can be, paid once, and named."""

import asyncio
import gzip
from typing import Any

import orjson
import pytest
from aiohttp import web
from hosted import Endpoint, asks, with_model
from support import Bench, asked, row
from test_endpoint_trouble import Line, behind

from rollout_kit.api.testing import Over, making, mount, run_virtual, text_response
from rollout_kit.errors import ConfigError, ModelError
from rollout_kit.serving import registry
from rollout_kit.serving.agent import Agent
from rollout_kit.serving.endpoints.assembly import CompletionAssembly, ResponseAssembly
from rollout_kit.serving.endpoints.completions import as_completion
from rollout_kit.serving.endpoints.events import completion_events, response_events
from rollout_kit.serving.transport.connection import Headers, Reply
from rollout_kit.serving.transport.peers import Peers
from rollout_kit.session import Session, entered
from rollout_kit.types import JsonObject


def nest(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


ODD = {
    "number that is not finite → null": (b'"ODD"', b"[NaN, -Infinity, 1e999, %s]" % (b"9" * 5000)),
    "lone surrogate → U+FFFD": (b"said ", b"said \\ud800 \\udfff "),
    "invalid UTF-8 → U+FFFD": (b"said ", b"said \xff\xc3( "),
    "control character in a text": (b"said ", b"said \x01\n "),
    "more than 100 levels → text": (b'"ODD"', nest(300)),
    "more than 100 levels → text ": (b'"ODD"', nest(180)),
    "more than 100 levels → text  ": (b'"ODD"', nest(5_000)),
}


def distort(what: str, text: str) -> bytes:
    """A response with a text and an odd part."""
    response = {**text_response(f"said {text}"), "metadata": {"odd": "ODD"}}
    return orjson.dumps(response).replace(*ODD[what])


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("over", ["local", "round_trip"])
def test_an_odd_reply_is_kept_paid_once_and_named(bench: Bench, what: str, over: Over) -> None:
    line = Line(lambda body, now: Reply(200, Headers([]), distort(what, asked(body))))
    bench.model, bench.collects_over = behind(line), over
    rows = [row(f"q{number}", expected="x") for number in range(3)]
    assert run_virtual(bench.collect(rows)) == 0
    assert line.num_asked == 3
    for found in bench.lines():
        assert found["rollout"]["repaired"] == [what.strip()]
        text = found["response"]["output"][0]["content"][0]["text"]
        assert text.startswith("said ") and text.endswith(asked(found["responses_create_params"]))
    assert run_virtual(bench.collect()) == 0
    assert line.num_asked == 3


@pytest.mark.parametrize("text", ["plain", "\\ufffd"])
def test_a_byte_order_mark_is_left_out(bench: Bench, text: str) -> None:
    raw = b"\xef\xbb\xbf" + orjson.dumps(text_response(text))
    bench.model = behind(Line(lambda body, now: Reply(200, Headers([]), raw)))
    assert run_virtual(bench.collect([row("q")])) == 0
    [found] = bench.lines()
    assert found["rollout"]["repaired"] == ["byte order mark → left out"]


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("api", ["responses", "chat_completions"])
def test_an_odd_event_is_kept_too(what: str, api: str) -> None:
    response = {**text_response("said it"), "metadata": {"odd": "ODD"}}
    if api == "responses":
        events, assembly = response_events(response), ResponseAssembly()
    else:
        completion = {**as_completion(response), "odd": "ODD"}
        events, assembly = completion_events(completion, usage=True), CompletionAssembly()
        events[0] = events[0].replace(b'{"id"', b'{"odd":"ODD","id"')
    with entered(session := Session()):
        for event in events:
            # an event is one line: a raw line break would end it
            assembly.feed(event.replace(ODD[what][0], ODD[what][1].replace(b"\n", b"\x02")))
    assert assembly.whole() is not None
    assert session.stats["repaired"] == [what.strip()]


def test_a_foreign_agent_s_odd_reply_is_kept_too() -> None:
    class Foreign(Agent):
        async def answer(self, path: str, raw: bytes) -> Any:
            if path != "/run":
                return await super().answer(path, raw)
            response = orjson.dumps(text_response("hm"))
            return b'{"reward": 1.0, "score": NaN, "response": ' + response + b"}"

    async def main() -> JsonObject:
        async with mount({"it": making(Foreign)}, "http") as peers:
            return await peers.call("it", "/run", {}, dict)

    with entered(session := Session()):
        reply = asyncio.run(main())
    assert reply["score"] is None and reply["reward"] == 1.0
    assert session.stats["repaired"] == ["number that is not finite → null"]


def test_what_is_no_json_at_all_is_still_no_answer(bench: Bench) -> None:
    line = Line(lambda body, now: Reply(200, Headers([]), b'{"output": [' + nest(200)))
    bench.model = behind(line)
    assert run_virtual(bench.collect([row("q")])) == 2
    assert "not JSON, perhaps cut off" in bench.lines("failures")[0]["failure"]["message"]


ROWS: dict[str, bytes] = {
    "nested too deeply": b'{"responses_create_params":{"input":"x"},"expected":"x","deep":%s}'
    % nest(300),
    "nested too deeply: a row may have 170 levels": b'{"responses_create_params":{"input":"x"},'
    b'"expected":"x","deep":%s}' % nest(180),
    "not JSON: depth limit": nest(5_000),
    "not JSON: unexpected character": b'{"responses_create_params":{"input":"x"},"t":NaN}',
    "not JSON: no low surrogate": b'{"responses_create_params":{"input":"\\ud800"}}',
    "not JSON: str is not valid UTF-8": b'{"responses_create_params":{"input":"\xff"}}',
}


@pytest.mark.parametrize("why", ROWS)
def test_an_odd_row_is_named_and_the_others_are_collected(bench: Bench, why: str) -> None:
    tasks = bench.folder / "tasks.jsonl"
    tasks.write_bytes(orjson.dumps(row("a")) + b"\n" + ROWS[why] + b"\n" + orjson.dumps(row("b")))
    assert run_virtual(bench.collect()) == 2
    assert len(bench.lines()) == 2
    [failure] = bench.lines("failures")
    assert failure["line"] == 2 and failure["failure"]["message"].startswith(why)
    assert f"tasks.jsonl:2: {why}" in bench.out.getvalue()
    with pytest.raises(ConfigError, match=r"tasks.jsonl:2: "):
        run_virtual(bench.collect(strict_input=True))


@pytest.mark.parametrize("levels", [100, 160])
def test_a_row_with_many_levels_is_collected(bench: Bench, levels: int) -> None:
    rows = [row("a", deep=orjson.loads(nest(levels)), reward=orjson.loads(nest(levels)))]
    assert run_virtual(bench.collect(rows)) == 0
    assert run_virtual(bench.collect()) == 0
    assert len(bench.lines()) == 1


def test_a_reply_that_is_too_large_is_asked_for_once() -> None:
    """By the request, the agent and the run: one clear error, no retry, and no memory."""
    large = gzip.compress(b'{"output": [' + b" " * 3_000_000 + b"]}")
    asked: list[str] = []

    async def reply(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(body=large, headers={"content-encoding": "gzip"})

    async def ask(model: Any) -> None:
        with pytest.raises(ModelError, match="more than max_reply_mb=2") as raised:
            await asks()(model)
        assert not raised.value.retryable and not raised.value.terminal

    make = registry.load("responses_api_models", "openai_model")

    def model(url: str) -> Any:
        keys = {"openai_base_url": url, "openai_model": "m", "openai_api_key": "k"}
        return making(make, **keys, max_reply_mb=2)(Peers({}), "policy_model")

    with_model(Endpoint(reply), ask, model, run=asyncio.run)
    assert len(asked) == 1
