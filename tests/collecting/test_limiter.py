"""The limit that adapts itself, against endpoints with a hidden limit or capacity, under a virtual
clock, through the schedule that obeys it."""

import asyncio
import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import begin_by, made, outcomes_of, slow
from test_rate_limit import Endpoint, sent_through

from rollout_kit.api.testing import run_virtual
from rollout_kit.collecting.pacing.limiter import Adaptive, Fixed, limiter_of
from rollout_kit.collecting.schedule import Attempts, Schedule
from rollout_kit.collecting.slot import Slot
from rollout_kit.config.keys import Parallelism
from rollout_kit.serving.endpoints.rate_limit import Allowances, RequestQueue
from rollout_kit.store.journal import NoJournal
from rollout_kit.types import Attempt, JsonObject, Key, Rollout, Task

TASK = Task("0" * 16, 0, 1, "agent", {})


KEY = Key("0" * 16, "agent", "", 0)
DONE = Rollout(*made(KEY))
"""Every outcome: the limiter does not look into it."""


def attempts() -> Iterator[Attempt]:
    while True:
        yield Attempt(KEY, TASK)


class Run:
    """A schedule under an adaptive limit; each attempt is one request."""

    def __init__(self, limiter: Adaptive, endpoint: Endpoint) -> None:
        self.limiter, self.endpoint = limiter, endpoint
        self.queue = RequestQueue(Allowances())
        self.open = self.sent = 0
        self.limits: list[tuple[float, int]] = []

    async def attempt(self, attempt: Attempt, slot: Slot) -> Rollout:
        loop = asyncio.get_running_loop()
        self.open += 1
        in_flight = self.open
        waited = loop.time()
        times = await sent_through(self.queue, self.endpoint)
        self.sent += times
        self.limiter.record_time(loop.time(), in_flight, loop.time() - waited - self.lost(waited))
        self.open -= 1
        return DONE

    def lost(self, began: float) -> float:
        """What the rate limit took is not the model's."""
        took = asyncio.get_running_loop().time() - began
        return max(0.0, took - self.endpoint.latency_s - 0.01) if self.throttled else 0.0

    @property
    def throttled(self) -> bool:
        return bool(self.queue.allowances.buckets)

    async def watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(1)
            running = self.endpoint.running
            load = {"running": running, "waiting": self.open - running}
            load["throttled"] = self.queue.is_throttled()
            self.limiter.record_load(loop.time(), load)
            self.limits.append((loop.time(), self.limiter()))

    async def drive(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        cpu_time = itertools.count(0.0, 0.001).__next__  # a millisecond from look to look
        schedule = Schedule(
            Attempts(attempts()),
            begin_by(self.attempt),
            NoJournal(),
            self.limiter,
            cpu_time=cpu_time,
        )
        watch = asyncio.create_task(self.watch())
        outcomes = outcomes_of(schedule)
        try:
            async for _ in outcomes:
                before = schedule.in_flight + 1
                self.limiter.record_outcomes(loop.time(), 1, before, overloaded=False)
                if loop.time() > seconds:
                    break
        finally:
            await outcomes.aclose()
            watch.cancel()

    def settled(self, after: float) -> float:
        return mean(limit for at, limit in self.limits if at > after)


def auto() -> Adaptive:
    """As `num_samples_in_parallel=auto` makes it."""
    return Adaptive(1, 8, 4000, seeks=True)


def beginning_at(start: int) -> Callable[[], Adaptive]:
    return partial(Adaptive, 1, start, 4000)


STARTS = [slow(beginning_at(1)), auto]
"""Beginnings of the search; from below it takes minutes of simulated time more."""


@pytest.mark.parametrize("make", STARTS)
@pytest.mark.parametrize("per_minute", [60, 500, slow(5000)])
def test_a_hidden_rate_is_reached_with_hardly_a_refusal(
    per_minute: float, make: Callable[[], Adaptive]
) -> None:
    endpoint = Endpoint(requests_per_minute=per_minute, burst_s=2)
    run = Run(make(), endpoint)
    seconds = 1200 if per_minute < 5000 else 240
    run_virtual(run.drive(seconds))
    assert len(endpoint.passed) >= 0.9 * per_minute * seconds / 60
    assert len(endpoint.refused) < 0.02 * run.sent
    assert run.settled(seconds / 2) < 4 * max(8, per_minute / 60 * endpoint.latency_s)


def test_a_hidden_limit_of_tokens() -> None:
    endpoint = Endpoint(tokens_per_minute=50_000, burst_s=2)
    run = Run(auto(), endpoint)
    run_virtual(run.drive(1200))
    assert len(endpoint.passed) >= 0.9 * 500 * 20
    assert len(endpoint.refused) < 0.02 * run.sent


class Busy(Endpoint):
    """Works on `capacity` at a time; the rest queue."""

    def __init__(self, capacity: int, sigma: float = 0.0) -> None:
        super().__init__(requests_per_minute=1e9)
        self.places, self.sigma = asyncio.Semaphore(capacity), sigma
        self.tells = False

    async def ask(self, tokens: int) -> tuple[float | None, dict[str, str]]:
        self.running += 1
        async with self.places:
            await asyncio.sleep(self.random.lognormvariate(0, self.sigma))
        self.running -= 1
        self.passed.append(asyncio.get_running_loop().time())
        return None, {}


@pytest.mark.parametrize("make", [*STARTS, beginning_at(1000)])
@pytest.mark.parametrize(
    ("capacity", "sigma"), [(20, 0.0), (20, 0.5), slow(100, 0.0), slow(100, 0.5)]
)
def test_a_hidden_capacity_is_found(
    capacity: int, sigma: float, make: Callable[[], Adaptive]
) -> None:
    endpoint = Busy(capacity, sigma)
    run = Run(make(), endpoint)
    run_virtual(run.drive(900))
    assert run.settled(450) == pytest.approx(capacity, rel=0.25), [*map(str, run.limiter.changes)]
    best = 450 * capacity / math.exp(sigma**2 / 2)
    assert sum(at > 450 for at in endpoint.passed) >= 0.9 * best


class ManyTurns(Run):
    """Each attempt is three requests, with a tool's two seconds after each."""

    async def attempt(self, attempt: Attempt, slot: Slot) -> Rollout:
        loop = asyncio.get_running_loop()
        self.open += 1
        in_flight, began = self.open, loop.time()
        for turn in range(3):
            await self.endpoint.ask(100)
            if turn == 0:
                self.limiter.record_time(loop.time(), in_flight, loop.time() - began)
            await asyncio.sleep(2)
        self.open -= 1
        return DONE


@pytest.mark.parametrize("make", [beginning_at(1), auto])
def test_agents_with_many_turns_keep_the_model_busy_and_no_more(
    make: Callable[[], Adaptive],
) -> None:
    endpoint = Busy(20, 0.3)
    run = ManyTurns(make(), endpoint)
    run_virtual(run.drive(1200))
    best = 600 * 20 / math.exp(0.3**2 / 2)
    assert sum(at > 600 for at in endpoint.passed) >= 0.9 * best
    assert run.settled(600) < 1.25 * 20 * 3, "three times as many rollouts as calls"


class Soft(Endpoint):
    """Each that is being answered slows down all the others, as a server without a queue does."""

    async def ask(self, tokens: int) -> tuple[float | None, dict[str, str]]:
        self.running += 1
        await asyncio.sleep((1 + 0.02 * self.running) * self.random.lognormvariate(0, 0.3))
        self.running -= 1
        self.passed.append(asyncio.get_running_loop().time())
        return None, {}


@pytest.mark.parametrize("make", [auto, slow(beginning_at(1)), slow(beginning_at(1000))])
def test_a_server_that_slows_down_softly_is_not_starved(make: Callable[[], Adaptive]) -> None:
    endpoint = Soft(requests_per_minute=1e9)
    run = Run(make(), endpoint)
    run_virtual(run.drive(900))
    best = 450 / 0.02 / math.exp(0.3**2 / 2)
    late = sum(at > 450 for at in endpoint.passed)
    assert late >= 0.8 * best, [*map(str, run.limiter.changes)]
    assert run.settled(450) < 1000, "most of the gain is had long before"


@pytest.mark.slow
def test_more_is_found_where_the_model_bears_more_later() -> None:
    endpoint = Busy(20)
    run = Run(Adaptive(1, 32, 4000), endpoint)

    async def main() -> None:
        asyncio.get_running_loop().call_later(
            600, lambda: [endpoint.places.release() for _ in range(60)]
        )
        await run.drive(2400)

    run_virtual(main())
    assert run.settled(1800) == pytest.approx(80, rel=0.25)


def test_vllm_s_figures_decide_where_there_are_any() -> None:
    limiter = Adaptive(4, 100, 1000)
    limiter.limit = 96.0
    limiter._reported = 96
    for second in range(10):
        limiter.record_load(second, {"running": 96, "kv_cache": 0.96, "engine_running": 96})
    assert limiter() == 76 and str(limiter.changes[-1]) == "96→76: kv cache 0.96"
    limiter.record_load(29, {"running": 70, "kv_cache": 0.5, "preemptions": 3})
    assert limiter() == 76, "those of the time before do not count"
    limiter.record_load(31, {"running": 70, "kv_cache": 0.5, "preemptions": 5})
    assert limiter() == 61 and "2 preemptions" in str(limiter.changes[-1])
    limiter.record_load(60, {"kv_cache": 0.9, "engine_waiting": 0})
    for _ in range(500):
        limiter.record_outcomes(60, 1, 61, overloaded=False)
    assert limiter() == 61, "a cache that is nearly full holds the limit where it is"


def test_a_rollout_that_was_refused_cuts_once_for_each_time() -> None:
    limiter = Adaptive(1, 64, 64)
    limiter.limit = 64.0
    for second in range(10):
        limiter.record_outcomes(second, 1, 64, overloaded=True)
    assert limiter() == 51


class Watched:
    """A limiter that is shown a load a second, with what is in flight."""

    def __init__(self, start: int) -> None:
        self.limiter, self.now, self.refused = Adaptive(1, start, 4000), 0.0, 0

    def load(self, refused: int = 0, **figures: float) -> int:
        self.refused += refused
        self.limiter.record_load(self.now, {"num_429": self.refused, **figures})
        self.now += 1
        return self.limiter()


def test_refusals_cut_to_what_is_held_and_what_was_begun_before_counts_once() -> None:
    run = Watched(256)
    run.load(in_flight=256, running=256)
    run.now += 10
    run.load(in_flight=256, running=64)
    assert run.load(100, in_flight=256, running=64) == 156
    assert run.load(92, in_flight=256, running=64) == 64
    for _ in range(20):
        assert run.load(64, in_flight=200, running=64) == 64


def test_an_endpoint_that_refuses_in_any_case_does_not_bring_the_limit_to_nothing() -> None:
    run = Watched(100)
    run.load(in_flight=100, running=100)
    for _ in range(3000):
        limit = run.load(2, in_flight=run.limiter(), running=run.limiter() - 5)
    assert 80 <= limit < 100


def test_more_is_tried_again_later_and_later() -> None:
    run, limits = Watched(64), []
    run.load(in_flight=64, running=64)
    for _ in range(2000):
        in_flight = run.limiter()
        run.limiter.record_outcomes(run.now, 3, in_flight, overloaded=False)
        limits.append(run.load(max(0, in_flight - 64), in_flight=in_flight, running=64))
    tries = [at for at, (one, other) in enumerate(itertools.pairwise(limits)) if one < other]
    pauses = [after - before for before, after in itertools.pairwise(tries)]
    long = [pause for pause in pauses if pause > 20]
    assert 4 <= len(long) <= 7 and long == sorted(long), long
    assert max(limits) <= 1.1 * 64


def test_an_engine_s_queue_cuts_to_what_runs_once_it_is_not_being_read() -> None:
    run = Watched(1000)
    queue: JsonObject = {"kv_cache": 0.5, "in_flight": 1000}
    assert run.load(**queue, engine_running=0, engine_waiting=1000) == 1000
    assert run.load(**queue, engine_running=100, engine_waiting=900) == 1000
    assert run.load(**queue, engine_running=256, engine_waiting=744) == 1000, "it is being read"
    run.now += 2
    assert run.load(**queue, engine_running=256, engine_waiting=744) == 281
    run.now += 20
    assert run.load(**queue, engine_running=256, engine_waiting=744) == 281, (
        "they were begun before"
    )


def test_an_endpoint_that_is_away_holds_the_limit() -> None:
    limiter = auto()
    for now in range(20):
        load = {"in_flight": 8, "answered": 8 * now, "answered_s": 8.0 * now, "endpoints_down": 1}
        limiter.record_load(now, load)
    assert limiter() == 8 and not limiter.is_opening


def test_answers_that_take_twice_as_long_end_the_doubling() -> None:
    limiter, answered, answered_s = auto(), 0.0, 0.0
    for quarter in range(400):
        each_s = max(1.0, limiter() / 20)  # twenty at a time
        answered += limiter() / each_s / 4
        answered_s += limiter() / 4
        load = {"in_flight": limiter(), "answered": answered, "answered_s": answered_s}
        limiter.record_load(quarter / 4, load)
    assert not limiter.is_opening and 40 <= limiter() <= 64


def test_a_start_that_is_given_is_where_it_starts() -> None:
    assert Adaptive(1, 1000, 4000)() == 1000


def test_without_one_the_limit_doubles_with_each_turnover() -> None:
    limiter, turnovers = auto(), 0
    while limiter() < 1000:
        turnovers += 1
        for _ in range(limiter()):
            limiter.record_outcomes(turnovers, 1, limiter(), overloaded=False)
    assert turnovers == 7


def test_a_run_with_little_in_flight_does_not_grow() -> None:
    limiter = Adaptive(1, 8, 1000)
    for second in range(1000):
        limiter.record_outcomes(second, 1, 4, overloaded=False)
    assert limiter() == 8 and not limiter.changes


events = st.one_of(
    st.tuples(st.just("outcome"), st.integers(0, 2000), st.booleans()),
    st.tuples(st.just("time"), st.integers(1, 2000), st.floats(0, 100)),
    st.tuples(st.just("load"), st.integers(0, 500), st.floats(0, 1)),
)


@given(st.integers(1, 8), st.integers(0, 90), st.integers(0, 900), st.lists(events, max_size=300))
def test_the_limit_stays_between_its_bounds(floor, more, most, happened) -> None:
    limiter = Adaptive(floor, floor + more, floor + more + most)
    for now, (kind, number, value) in enumerate(happened):
        if kind == "outcome":
            limiter.record_outcomes(now, 1, number, overloaded=value)
        elif kind == "time":
            limiter.record_time(now, number, value)
        else:
            load = {"running": number, "waiting": 2 * number, "throttled": value > 0.5}
            limiter.record_load(now, load | {"kv_cache": value, "preemptions": number})
        assert floor <= limiter() <= floor + more + most
    assert all(each.before != each.after for each in limiter.changes)


def test_what_can_be_asked_for() -> None:
    assert limiter_of(Parallelism.parse(7)) == Fixed(7)
    assert isinstance(limiter_of(Parallelism.parse("auto")), Adaptive)
    limiter = limiter_of(Parallelism.parse("4-16-100"))
    assert isinstance(limiter, Adaptive)
    assert (limiter.floor, limiter.start, limiter.ceiling) == (4, 16, 100)
    for asked in (7, "auto", "4-16-100"):
        assert Parallelism.parse(asked).spell() == asked
    for wrong in (0, "many", "1-2", "8-4-16", "0-1-2", "1-2-x", None, True, 1.5):
        with pytest.raises(ValueError, match=r"at least|give a number"):
            Parallelism.parse(wrong)
