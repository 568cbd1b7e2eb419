"""Hosted endpoints in trouble: each ends as it should, in one readable line."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
from support import Bench, asked, row

from rollout_kit.api.testing import making, run_virtual, text_response
from rollout_kit.errors import PeerLost, PeerUnreachable, StopRun
from rollout_kit.serving import registry
from rollout_kit.serving.endpoints.outage import Outage
from rollout_kit.serving.transport.connection import Headers, Reply
from rollout_kit.serving.transport.peers import Peers

LATENCY_S = 2.0

Answer = Callable[[dict[str, Any], float], Reply]
"""Of a request's body, at a time; it raises where nobody is there."""

OPENAI = {"openai_base_url": "https://api.example/v1", "openai_api_key": "sk-planted-0123"}
AZURE = {"azure_endpoint": "https://x.openai.azure.com", "api_key": "sk-planted-0123"}


class Line:
    """Stands in for the network under a virtual clock."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.num_asked = 0

    async def post(self, url: str, raw: bytes, **options: Any) -> Reply:
        self.num_asked += 1
        reply = self.answer(orjson.loads(raw), asyncio.get_running_loop().time())
        await asyncio.sleep(LATENCY_S)
        return reply

    async def get(self, url: str, **options: Any) -> Reply:
        """Asked without a row."""
        return self.answer({"input": [{"content": ""}]}, asyncio.get_running_loop().time())

    async def close(self) -> None:
        pass


def behind(line: Line, kind: str = "openai_model", **settings: Any) -> Any:
    given = {**OPENAI, "openai_model": "gpt"} if kind == "openai_model" else AZURE
    server: Any = registry.load("responses_api_models", kind)
    model = making(server, **given, **settings)(Peers({}), "policy_model")

    async def start() -> None:
        model._http = line

    model.start = start
    return model


def says(body: dict[str, Any]) -> Reply:
    return Reply(200, Headers([]), orjson.dumps(text_response(asked(body))))


def refuses(status: int, message: str, **fields: Any) -> Reply:
    return Reply(status, Headers([]), orjson.dumps({"error": {"message": message, **fields}}))


def nobody() -> Reply:
    raise PeerUnreachable("cannot connect to https://api.example/v1/responses: Connection refused")


def rows(number: int) -> list[Any]:
    return [row(f"q{each}") for each in range(number)]


def stopped(bench: Bench, model: Any, **keys: Any) -> str:
    """The first line of what stops the run."""
    bench.model = model
    with pytest.raises(StopRun) as caught:
        run_virtual(bench.collect(rows(200), **keys))
    return str(caught.value).splitlines()[0]


@pytest.mark.parametrize("parallel", [1, 8, 64])
@pytest.mark.parametrize("gone", [nobody, lambda: refuses(503, "no upstream")], ids=["gone", "503"])
def test_an_endpoint_that_is_gone_for_two_minutes_costs_time_and_no_rollout(
    bench: Bench, caplog: pytest.LogCaptureFixture, gone: Callable[[], Reply], parallel: int
) -> None:
    line = Line(lambda body, now: gone() if 31 <= now < 151 else says(body))
    bench.model = behind(line)
    number = 20 * parallel
    with caplog.at_level(logging.WARNING):
        assert run_virtual(bench.collect(rows(number), num_samples_in_parallel=parallel)) == 0
    assert len(bench.keys()) == len(set(bench.keys())) == number
    assert not bench.lines("failures")
    assert line.num_asked <= number + parallel + 30  # it is not run down meanwhile
    told = [record.message for record in caplog.records]
    assert len(told) == 2 and "policy_model is down; waiting until it answers: " in told[0]
    assert "policy_model answers again, after 1" in told[1]


def test_an_endpoint_that_is_gone_for_hours_is_given_up_in_the_end(bench: Bench) -> None:
    line = Line(lambda body, now: nobody() if now >= 31 else says(body))
    bench.model = behind(line)
    keys: dict[str, Any] = {"num_samples_in_parallel": 4, "rollout_timeout_s": 1800}
    assert run_virtual(bench.collect(rows(70), **keys)) == 2
    failures = bench.lines("failures")
    assert len(bench.lines()) + len(failures) == 70 and failures
    assert all("cannot connect" in each["failure"]["message"] for each in failures)
    assert not any(each["failure"]["terminal"] for each in failures)


def test_a_hiccup_is_no_outage(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    # two of sixteen: even those of two rounds that end together, at eight in flight, are too few
    line = Line(lambda body, now: nobody() if line.num_asked % 16 < 2 else says(body))
    bench.model = behind(line, max_tries=20)
    assert run_virtual(bench.collect(rows(60), num_samples_in_parallel=8)) == 0
    assert not caplog.records


def test_an_endpoint_that_is_down_at_the_start_stops_the_run_after_the_first_wave(
    bench: Bench,
) -> None:
    line = Line(lambda body, now: nobody())
    said = stopped(bench, behind(line), num_samples_in_parallel=16)
    assert "the first 20 rollouts all failed, the last one with: policy_model: cannot conn" in said
    assert not bench.lines()


@pytest.mark.parametrize(
    "kind, refusal, words",
    [
        (
            "openai_model",
            refuses(401, "Incorrect API key provided: sk-planted-0123.", code="invalid_api_key"),
            "refused with 401: policy_model: https://api.example/v1/responses answered 401:"
            " Incorrect API key provided: ****.",
        ),
        (
            "openai_model",
            refuses(404, "The model `gpt` does not exist or you do not have access to it."),
            "refused with 404: policy_model: https://api.example/v1/responses answered 404:"
            " The model `gpt` does not exist or you do not have access to it.",
        ),
        (
            "azure_openai_model",
            refuses(404, "The API deployment for this resource does not exist.", code="Deploy…"),
            "refused with 404: policy_model: https://x.openai.azure.com/openai/v1/responses"
            " answered 404: The API deployment for this resource does not exist."
            " (asked for the model 'mine')",
        ),
        (
            "openai_model",
            refuses(402, "Insufficient credits"),
            "refused with 402: policy_model: https://api.example/v1/responses answered 402:"
            " Insufficient credits",
        ),
    ],
    ids=["wrong key", "wrong model", "unknown deployment", "no money"],
)
def test_a_set_up_that_is_wrong_stops_the_run_at_once_in_the_service_s_words(
    bench: Bench, kind: str, refusal: Reply, words: str
) -> None:
    line = Line(lambda body, now: refusal)
    settings = {"azure_deployment": "mine"} if kind == "azure_openai_model" else {}
    said = stopped(bench, behind(line, kind, **settings), num_samples_in_parallel=4)
    assert said == f"stopped: the first requests are {words}"
    assert line.num_asked <= 8 and not bench.lines()
    told = [each["failure"] for each in bench.lines("failures")]
    assert told and not any(each["terminal"] for each in told)
    assert "sk-planted-0123" not in str(told)


def test_inputs_beyond_the_context_are_incomplete_rollouts_and_the_others_go_on(
    bench: Bench,
) -> None:
    def answer(body: dict[str, Any], now: float) -> Reply:
        if asked(body).endswith("00"):
            return refuses(400, "too long", code="context_length_exceeded", param="input")
        return says(body)

    bench.model = behind(Line(answer))
    questions = [row(f"q{number}") for number in range(1, 401)]
    assert run_virtual(bench.collect(questions, num_samples_in_parallel=32)) == 0
    cut = [each for each in bench.lines() if each["response"]["status"] == "incomplete"]
    assert sorted(asked(each["responses_create_params"]) for each in cut) == [
        f"q{number}00" for number in range(1, 5)
    ]
    assert {each["rollout"]["finish_reason"] for each in cut} == {"max_output_tokens"}
    assert all(each["reward"] == 0 for each in cut) and len(bench.lines()) == 400


def dropped() -> Reply:
    raise PeerLost("https://api.example/v1/responses broke off: the server closed the connection")


POISON = [dropped, lambda: refuses(502, "bad gateway"), lambda: refuses(504, "too late")]


@pytest.mark.parametrize("fails", POISON, ids=["dropped", "502", "504"])
@pytest.mark.parametrize("parallel", [1, 8])
@pytest.mark.parametrize("repeats", [1, 6])
def test_one_row_that_always_fails_is_no_outage(
    bench: Bench, fails: Callable[[], Reply], parallel: int, repeats: int
) -> None:
    line = Line(lambda body, now: fails() if asked(body) == "q9" else says(body))
    bench.model = behind(line)
    keys = {"num_samples_in_parallel": parallel, "num_repeats": repeats}
    assert run_virtual(bench.collect(rows(10), **keys)) == 2
    assert len(bench.lines()) == 9 * repeats
    assert line.num_asked == (9 + 12) * repeats, "four tries in each of three attempts"


def test_an_outage_that_drops_connections_is_seen_by_several_rows(bench: Bench) -> None:
    line = Line(lambda body, now: dropped() if 31 <= now < 151 else says(body))
    bench.model = behind(line)
    assert run_virtual(bench.collect(rows(160), num_samples_in_parallel=8)) == 0
    assert line.num_asked <= 160 + 8 + 30


@pytest.mark.parametrize("left_s", [1, 5, 14, 600])
def test_a_caller_with_little_time_asks_an_endpoint_that_has_come_back(left_s: float) -> None:
    async def scenario() -> str:
        down = PeerUnreachable("nothing listens")
        outage = Outage("policy_model", answers=lambda: asyncio.sleep(0, False))
        now = asyncio.get_running_loop().time

        async def fails() -> str:
            outage.record_failure(down, "a", is_sent=False)
            raise down

        async def succeeds() -> str:
            outage.record_answer(now())
            return "text"

        def calls(work: Callable[[], Awaitable[str]], left_s: float) -> Awaitable[str]:
            return outage.call(work, lambda: left_s, lambda lost_s: None)

        await succeeds()
        for _ in range(4):
            with pytest.raises(PeerUnreachable):
                await calls(fails, 0)
        with pytest.raises(PeerUnreachable):
            await calls(fails, 300)  # the pauses grow to 15 s meanwhile
        assert outage.is_on
        return await calls(succeeds, left_s)

    assert run_virtual(scenario()) == "text"


THROTTLES = {"retry-after": "1"}


def throttled(**headers: str) -> Reply:
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Reply(429, Headers(pairs), b'{"error": {"message": "slow down"}}')


@pytest.mark.parametrize("headers", [THROTTLES, {}], ids=["Retry-After", "no word"])
def test_throttling_uses_up_no_attempt(bench: Bench, headers: dict[str, str]) -> None:
    """100 requests a minute, in the first second of each 0.6 s; everything else is a 429."""
    passed = 0

    def answer(body: dict[str, Any], now: float) -> Reply:
        nonlocal passed
        if passed > now / 0.6:
            return throttled(**headers)
        passed += 1
        return says(body)

    bench.model = behind(Line(answer), max_tries=1)
    keys = {"num_samples_in_parallel": 64, "max_attempts": 1}
    assert run_virtual(bench.collect(rows(200), **keys)) == 0
    assert len(bench.lines()) == 200


def test_an_endpoint_that_only_throttles_is_bounded_by_the_rollout_s_time(bench: Bench) -> None:
    """Longer than the limit of one request: only `rollout_timeout_s` ends it."""
    line = Line(lambda body, now: says(body) if now > 3000 else throttled(**THROTTLES))
    bench.model = behind(line)
    assert run_virtual(bench.collect(rows(8), request_timeout_s=600)) == 0
    line = Line(lambda body, now: throttled(**THROTTLES))
    bench.model = behind(line)
    assert run_virtual(bench.collect(rows(9), rollout_timeout_s=1200)) == 2
    [failure] = bench.lines("failures")
    assert failure["failure"]["elapsed_s"] <= 1200
    told = r"/v1/responses; waits for a rate limit took 1\d\d\d s$"
    assert re.search(told, failure["failure"]["message"])
    assert line.num_asked <= 1300


@pytest.mark.parametrize(
    ("headers", "expected"),
    [({"Retry-After": "40"}, "; it asks to wait for 40 s"), ({}, "answered 429: slow down")],
)
def test_an_endpoint_that_only_throttles_is_reported(
    bench: Bench, caplog: pytest.LogCaptureFixture, headers: dict[str, str], expected: str
) -> None:
    bench.model = behind(Line(lambda body, now: throttled(**headers)))
    assert run_virtual(bench.collect(rows(2), rollout_timeout_s=300)) == 2
    reports = [line for line in caplog.messages if "the rate limit lets no request pass" in line]
    assert 2 <= len(reports) <= 5
    assert all(report.endswith(expected) for report in reports)


def test_a_rate_limit_that_lets_requests_pass_is_not_reported(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    turns = iter(range(1000))
    bench.model = behind(
        Line(lambda body, now: throttled(**THROTTLES) if next(turns) % 2 else says(body))
    )
    assert run_virtual(bench.collect(rows(60), num_samples_in_parallel=1)) == 0
    assert not [line for line in caplog.messages if "lets no request pass" in line]


NO_RESPONSES = {
    "an empty body": Reply(200, Headers([]), b" "),
    "no JSON object, but <html> <h1>Login</h1>": Reply(
        200, Headers([]), b"<html>\n<h1>Login</h1>" + b"." * 1000
    ),
    "answered 302: redirects to https://login/; configure the address": Reply(
        302, Headers([(b"Location", b"https://login/")]), b""
    ),
}


@pytest.mark.parametrize("expected", NO_RESPONSES)
def test_a_reply_that_is_no_response_is_described(bench: Bench, expected: str) -> None:
    bench.model = behind(Line(lambda body, now: NO_RESPONSES[expected]), max_tries=1)
    assert run_virtual(bench.collect([row("q")], max_attempts=1)) == 2
    [failure] = bench.lines("failures")
    assert expected in failure["failure"]["message"]
    assert len(failure["failure"]["message"]) < 250


def test_turns_are_kept_while_the_endpoint_throttles(bench: Bench) -> None:
    """A model server gives up waiting after half its time; the agent asks for the same turn."""
    line = Line(lambda body, now: says(body) if not 1 < now < 2000 else throttled(**THROTTLES))
    bench.model = behind(line)
    assert run_virtual(bench.collect(rows(4), num_samples_in_parallel=1)) == 0
    assert {each["rollout"]["attempt"] for each in bench.lines()} == {1}
