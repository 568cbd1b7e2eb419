"""The pace of requests, against an endpoint with buckets of its own, under a virtual clock."""

import asyncio
import random
from itertools import product

import pytest

from rollout_kit.api.testing import run_virtual
from rollout_kit.serving.endpoints.rate_limit import HEADROOM, Allowances, RequestQueue
from rollout_kit.serving.registry import load

load("responses_api_models", "simulated_model")
from responses_api_models.simulated_model.config import RateLimit  # noqa: E402
from responses_api_models.simulated_model.limits import Limiter  # noqa: E402


class Endpoint:
    """Takes `latency_s`, and refuses what its buckets do not hold."""

    def __init__(self, latency_s: float = 1.0, tells: bool = True, **limit: float) -> None:
        self.limiter = Limiter(RateLimit(**limit))
        self.latency_s, self.tells = latency_s, tells
        self.random = random.Random(0)
        self.passed: list[float] = []
        self.refused: list[float] = []
        self.running = self.most = 0

    async def ask(self, tokens: int) -> tuple[float | None, dict[str, str]]:
        """Seconds to wait, None where it was answered; and the headers."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self.random.uniform(0.001, 0.01))
        short = self.limiter.take(tokens, loop.time())
        headers = dict(self.limiter.headers()) if self.tells else {}
        if short:
            self.refused.append(loop.time())
            return short[1], headers
        self.passed.append(loop.time())
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.latency_s)
        self.running -= 1
        return None, headers


async def sent_through(turns: RequestQueue, endpoint: Endpoint, tokens: int = 100) -> int:
    """One request, until it is answered; how often it was sent."""
    loop, number, times = asyncio.get_running_loop(), turns.number(), 0
    while True:
        times += 1
        expected = await turns.wait(number)
        sent_at = loop.time()
        wait_s, headers = await endpoint.ask(tokens)
        turns.allowances.read_headers(loop.time(), headers)
        if wait_s is None:
            turns.allowances.record_answer(loop.time(), expected, tokens)
            return times
        turns.allowances.record_refusal(loop.time(), sent_at, wait_s)


def rate_of(endpoint: Endpoint, parallel: int, minutes: float, **configured: float) -> float:
    """Requests a minute that passed in the last half of so many minutes."""

    async def main() -> None:
        turns = RequestQueue(Allowances(dict(configured)))

        async def worker() -> None:
            while True:
                await sent_through(turns, endpoint)

        workers = [asyncio.create_task(worker()) for _ in range(parallel)]
        await asyncio.sleep(60 * minutes)
        for each in workers:
            each.cancel()

    run_virtual(main())
    return sum(at > 30 * minutes for at in endpoint.passed) / (minutes / 2)


@pytest.mark.parametrize(
    ("per_minute", "parallel"),
    [
        *product((60, 500), (1, 8, 1000)),
        *((5000, 1), (5000, 8), pytest.param(5000, 1000, marks=pytest.mark.slow)),
    ],
)
def test_a_limit_that_is_told_is_used_and_hardly_ever_run_into(
    per_minute: float, parallel: int
) -> None:
    endpoint = Endpoint(requests_per_minute=per_minute)
    rate = rate_of(endpoint, parallel, 10)
    possible = min(per_minute, parallel * 60 / endpoint.latency_s)
    assert rate >= 0.9 * possible
    in_the_first_second = sum(at < 1 for at in endpoint.refused)
    assert len(endpoint.refused) - in_the_first_second < 0.02 * len(endpoint.passed)


def test_a_limit_of_tokens() -> None:
    endpoint = Endpoint(tokens_per_minute=30_000)  # 300 requests of 100 tokens
    assert 270 <= rate_of(endpoint, 32, 10) <= 300
    assert len(endpoint.refused) < 0.02 * len(endpoint.passed)


@pytest.mark.parametrize("burst_s", [1, 60])
def test_a_limit_that_is_not_told_is_learned_from_refusals(burst_s: float) -> None:
    endpoint = Endpoint(tells=False, requests_per_minute=500, burst_s=burst_s)
    assert rate_of(endpoint, 32, 20) >= 0.85 * 500
    late = sum(at > 600 for at in endpoint.refused), sum(at > 600 for at in endpoint.passed)
    assert late[0] < 0.05 * late[1]


def test_refusals_that_have_nothing_to_do_with_the_pace_do_not_bring_it_to_nothing() -> None:
    class Moody(Endpoint):
        async def ask(self, tokens: int) -> tuple[float | None, dict[str, str]]:
            if self.random.random() < 0.05:
                return 0.1, {}
            return await super().ask(tokens)

    endpoint = Moody(tells=False, requests_per_minute=1e9)
    assert rate_of(endpoint, 16, 60) > 0.2 * 16 * 60


def test_a_configured_limit_holds_though_the_endpoint_allows_more() -> None:
    endpoint = Endpoint(requests_per_minute=5000)
    assert rate_of(endpoint, 64, 10, requests=300) == pytest.approx(300 * HEADROOM, rel=0.02)
    assert endpoint.refused == []


def test_a_refusal_holds_up_everybody_to_the_millisecond() -> None:
    async def main() -> list[float]:
        loop, turns = asyncio.get_running_loop(), RequestQueue(Allowances())
        await turns.wait(turns.number())
        turns.allowances.record_refusal(loop.time(), 0.0, 1.234)

        async def one() -> float:
            await turns.wait(turns.number())
            return loop.time()

        return await asyncio.gather(*(one() for _ in range(3)))

    first, *_ = run_virtual(main())
    assert first == pytest.approx(1.234, abs=0.002)


def test_first_come_first_served_and_who_was_refused_keeps_its_place() -> None:
    async def main() -> list[str]:
        turns = RequestQueue(Allowances({"requests": 60.0}))
        order: list[str] = []

        async def one(name: str, number: int) -> None:
            await turns.wait(number)
            order.append(name)

        early = turns.number()
        tasks = [asyncio.create_task(one(str(each), turns.number())) for each in range(4)]
        await asyncio.sleep(0.1)
        tasks.append(asyncio.create_task(one("early", early)))
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return order

    assert run_virtual(main()) == ["0", "early", "1", "3"]


def test_refusals_of_the_same_moment_count_once() -> None:
    allowances = Allowances()
    for _ in range(100):
        allowances.send(0.0)
    for _ in range(50):
        allowances.record_refusal(0.5, 0.0, None)
    assert allowances.paused_until == 1.5
    allowances.send(1.6)
    allowances.record_refusal(1.7, 1.6, None)
    assert allowances.paused_until == pytest.approx(3.7)


class Groq:
    """Takes `per_minute` requests, at a steady pace or in each minute; its headers count a day."""

    def __init__(self, per_minute: int, *, is_steady: bool) -> None:
        self.limiter = Limiter(RateLimit(requests_per_minute=per_minute, burst_s=60))
        self.per_minute, self.is_steady = per_minute, is_steady
        self.minute, self.left = -1, 0
        self.asked = self.taken = 0

    def ask(self, now: float) -> float | None:
        """Seconds to wait; None if it takes the request."""
        self.asked += 1
        if self.is_steady:
            short = self.limiter.take(1, now)
            wait_s = short[1] if short else None
        else:
            if int(now // 60) != self.minute:
                self.minute, self.left = int(now // 60), self.per_minute
            wait_s = None if self.left else 60 - now % 60
            self.left = max(0, self.left - 1)
        self.taken += wait_s is None
        return wait_s

    def headers(self) -> dict[str, str]:
        return {
            "x-ratelimit-limit-requests": "14400",
            "x-ratelimit-remaining-requests": str(14400 - self.taken),
            "x-ratelimit-reset-requests": f"{self.taken * 6 // 60}m{self.taken * 6 % 60}.56s",
        }


@pytest.mark.parametrize("is_steady", [True, False])
@pytest.mark.parametrize("tells_pause", [True, False])
def test_a_limit_of_a_day_is_not_taken_for_one_of_a_minute(
    is_steady: bool, tells_pause: bool
) -> None:
    endpoint = Groq(30, is_steady=is_steady)

    async def main() -> float:
        turns, loop = RequestQueue(Allowances()), asyncio.get_running_loop()
        free = asyncio.Semaphore(32)

        async def one() -> None:
            async with free:
                number = turns.number()
                while True:
                    expected, sent_at = await turns.wait(number), loop.time()
                    await asyncio.sleep(0.2)
                    wait_s = endpoint.ask(loop.time())
                    turns.allowances.read_headers(loop.time(), endpoint.headers())
                    if wait_s is None:
                        await asyncio.sleep(1)
                        return turns.allowances.record_answer(loop.time(), expected, 100)
                    told = wait_s if tells_pause else None
                    turns.allowances.record_refusal(loop.time(), sent_at, told)

        began = loop.time()
        await asyncio.gather(*(one() for _ in range(240)))
        return loop.time() - began

    took_s = run_virtual(main())
    assert took_s < 1.15 * (240 - 30) * 2 + 60
    assert endpoint.asked < (1.3 if tells_pause else 2.5) * 240


def test_a_limit_without_the_time_of_its_reset_is_not_believed() -> None:
    allowances = Allowances()
    allowances.read_headers(0.0, {"x-ratelimit-limit-requests": "60"})
    assert not allowances.is_limited
    allowances.read_headers(
        0.0, {"x-ratelimit-limit-requests": "60", "x-ratelimit-reset-requests": "1s"}
    )
    assert allowances.paces() == {"requests_per_minute": HEADROOM * 60}
