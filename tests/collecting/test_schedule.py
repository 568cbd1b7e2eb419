"""The scheduler's promises, for any limit, any durations and any parking."""

import asyncio
import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import begin_by, made, outcomes_of

from rollout_kit.api.testing import run_virtual
from rollout_kit.collecting.schedule import END, PAUSE, WAVE, Attempts, End, Later, Schedule
from rollout_kit.collecting.slot import Slot
from rollout_kit.errors import OutputError
from rollout_kit.types import Attempt, Key, Outcome, Rollout, StoredTurn, Task, Unverified


class Keep:
    """A sink that is a function."""

    def __init__(self, keep: Callable[[Outcome], Outcome] = lambda outcome: outcome) -> None:
        self._keep = keep

    def append_all(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        return list(map(self._keep, outcomes))

    def append_turn(self, turn: StoredTurn) -> None:
        raise AssertionError("no turn is stored here")


def attempts(number: int) -> list[Attempt]:
    keys = [Key(f"{index}", "agent", "", 0) for index in range(number)]
    return [Attempt(key, Task(key.task_id, 0, 0, "agent", {})) for key in keys]


@given(
    durations=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), max_size=30),
    limit=st.integers(1, 8),
    max_parked=st.integers(0, 4),
)
def test_never_more_than_the_limit_and_always_as_many_and_each_once(
    durations: list[tuple[int, int]], limit: int, max_parked: int
) -> None:
    peak = 0
    finished: list[str] = []

    async def run(attempt: Attempt, slot: Slot) -> Outcome:
        nonlocal peak
        peak = max(peak, schedule.in_flight)
        seconds, num_parkings = durations[int(attempt.key.task_id)]
        await asyncio.sleep(seconds)
        for number in range(num_parkings):
            if number:
                assert await slot.regain()
                peak = max(peak, schedule.in_flight)
            slot.park(Unverified(*made(attempt.key)))
            await asyncio.sleep(seconds)
        return Rollout(*made(attempt.key))

    async def main() -> None:
        async for outcome in outcomes_of(schedule):
            if isinstance(outcome, Rollout):
                finished.append(outcome.key.task_id)  # noqa: PERF401

    schedule = Schedule(
        Attempts(iter(attempts(len(durations)))),
        begin_by(run),
        Keep(),
        lambda: limit,
        max_parked=max_parked,
    )
    run_virtual(main())
    assert sorted(finished, key=int) == [str(index) for index in range(len(durations))]
    assert peak <= limit
    if durations:
        assert peak == min(limit, len(durations)) or any(parks for _, parks in durations)


def test_a_limit_that_grows_is_used_at_the_next_completion() -> None:
    limit, peaks = 1, []

    async def run(attempt: Attempt, slot: Slot) -> Outcome:
        peaks.append(schedule.in_flight)
        await asyncio.sleep(1)
        return Rollout(*made(attempt.key))

    async def main() -> None:
        nonlocal limit
        async for _ in outcomes_of(schedule):
            limit = 3

    schedule = Schedule(Attempts(iter(attempts(7))), begin_by(run), Keep(), lambda: limit)
    run_virtual(main())
    assert max(peaks) == 3


def test_stopping_lets_what_runs_finish_and_cancelling_does_not() -> None:
    async def run(attempt: Attempt, slot: Slot) -> Outcome:
        await asyncio.sleep(int(attempt.key.task_id) + 1)
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            slot.park(Unverified(*made(attempt.key)))
            raise
        return Rollout(*made(attempt.key))

    async def main(after_s: float, *, cancel: bool) -> list[Outcome]:
        schedule = Schedule(Attempts(iter(attempts(9))), begin_by(run), Keep(), lambda: 3)
        end = schedule.cancel if cancel else schedule.stop
        asyncio.get_running_loop().call_later(after_s, end)
        return [outcome async for outcome in outcomes_of(schedule)]

    drained = run_virtual(main(50, cancel=False))
    assert [type(each) for each in drained] == [Rollout] * 3
    cut = run_virtual(main(50, cancel=True))
    assert [type(each) for each in cut] == [Unverified] * 3


def test_nobody_regains_a_place_once_the_run_is_stopping() -> None:
    answers = []

    async def run(attempt: Attempt, slot: Slot) -> Outcome:
        slot.park(Unverified(*made(attempt.key)))
        await asyncio.sleep(1 + int(attempt.key.task_id))
        answers.append(await slot.regain())
        await asyncio.sleep(100)
        return Rollout(*made(attempt.key))

    async def main() -> None:
        schedule = Schedule(Attempts(iter(attempts(3))), begin_by(run), Keep(), lambda: 1)
        asyncio.get_running_loop().call_later(2.5, schedule.stop)
        async for _ in outcomes_of(schedule):
            pass

    run_virtual(main())
    assert answers == [True, False, False]


def test_an_unexpected_exception_is_raised_and_the_others_end() -> None:
    ended = []

    async def run(attempt: Attempt, slot: Slot) -> Outcome:
        try:
            await asyncio.sleep(int(attempt.key.task_id))
            raise ZeroDivisionError
        finally:
            ended.append(attempt.key.task_id)

    async def main() -> None:
        schedule = Schedule(Attempts(iter(attempts(4))), begin_by(run), Keep(), lambda: 4)
        async for _ in outcomes_of(schedule):
            pass

    try:
        run_virtual(main())
    except ZeroDivisionError:
        assert sorted(ended) == ["0", "1", "2", "3"]
    else:
        raise AssertionError("the bug was swallowed")


def test_outcomes_that_end_together_are_kept_before_anything_else_happens() -> None:
    order: list[str] = []

    async def run(attempt: Attempt, slot: Slot) -> Outcome:
        await asyncio.sleep(1)
        slot.keep(Unverified(*made(attempt.key)))
        order.append(f"ends {attempt.key.task_id}")
        return Rollout(*made(attempt.key))

    def keep(outcome: Outcome) -> Outcome:
        order.append(f"{type(outcome).__name__} {outcome.key.task_id}")
        return outcome

    async def main() -> None:
        async for outcome in outcomes_of(schedule):
            name = type(outcome).__name__
            order.append(f"seen {name}")

    class Noted(Keep):
        def append_all(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
            kept = super().append_all(outcomes)
            if isinstance(kept[0], Rollout):
                order.append(f"{len(kept)} written")
            return kept

    schedule = Schedule(Attempts(iter(attempts(3))), begin_by(run), Noted(keep), lambda: 3)
    run_virtual(main())
    assert order[:6] == [
        step.format(number) for number in range(3) for step in ("Unverified {}", "ends {}")
    ]
    kept = ["Rollout 0", "Rollout 1", "Rollout 2", "3 written"]
    assert [each for each in order[6:] if each != "seen Unverified"] == [
        *kept,
        *["seen Rollout"] * 3,
    ]


def test_outcomes_that_cannot_be_kept_end_the_run() -> None:
    async def run(attempt: Attempt, slot: Slot) -> Outcome:
        return Rollout(*made(attempt.key))

    def keep(outcome: Outcome) -> Outcome:
        raise OutputError("the disk is full")

    schedule = Schedule(Attempts(iter(attempts(3))), begin_by(run), Keep(keep), lambda: 3)

    async def main() -> None:
        async for _ in outcomes_of(schedule):
            raise AssertionError("nothing is on disk")

    with pytest.raises(OutputError, match="the disk is full"):
        run_virtual(main())


@pytest.mark.parametrize("after", range(4))
def test_an_attempt_that_is_cancelled_as_it_ends_is_kept_or_has_not_ended(after: int) -> None:
    ended: list[str] = []
    kept: list[str] = []

    async def run(attempt: Attempt, slot: Slot) -> Outcome:
        await asyncio.sleep(0)
        ended.append(attempt.key.task_id)
        return Rollout(*made(attempt.key))

    def keep(outcome: Outcome) -> Outcome:
        kept.append(outcome.key.task_id)
        return outcome

    schedule = Schedule(Attempts(iter(attempts(3))), begin_by(run), Keep(keep), lambda: 3)

    async def main() -> None:
        async def cancel_second() -> None:
            await schedule.begun.wait()
            second = list(schedule.slots)[1]
            for _ in range(after):
                await asyncio.sleep(0)
            second.cancel()

        cancelling = asyncio.create_task(cancel_second())
        async for _ in outcomes_of(schedule):
            pass
        await cancelling

    run_virtual(main())
    assert sorted(kept) == sorted(ended) and len(kept) >= 2


@pytest.mark.parametrize("parks", [True, False])
def test_what_cannot_be_kept_ends_the_run(parks: bool) -> None:
    async def run(attempt: Attempt, slot: Slot) -> Outcome:
        if parks:
            slot.park(Unverified(*made(attempt.key)))
            await asyncio.sleep(100)
        return Rollout(*made(attempt.key))

    def keep(outcome: Outcome) -> Outcome:
        raise OutputError("the disk is full")

    async def main() -> None:
        outcomes = outcomes_of(schedule)
        try:
            async for _ in outcomes:
                pass
        finally:
            await outcomes.aclose()

    schedule = Schedule(Attempts(iter(attempts(3))), begin_by(run), Keep(keep), lambda: 3)
    with pytest.raises(OutputError, match="the disk is full"):
        run_virtual(main())


def test_places_are_filled_in_waves_and_what_ends_is_replaced_at_once() -> None:
    async def main() -> list[int]:
        release = asyncio.Event()

        async def run(attempt: Attempt, slot: Slot) -> Rollout:
            if int(attempt.key.task_id) >= 3:
                await release.wait()
            return Rollout(*made(attempt.key))

        schedule = Schedule(Attempts(iter(attempts(1000))), begin_by(run), Keep(), lambda: 100)
        seen = []

        async def watch() -> None:
            while schedule.in_flight < 100:
                seen.append(schedule.in_flight)
                await asyncio.sleep(0)
            release.set()

        watching = asyncio.create_task(watch())
        done = [outcome async for outcome in outcomes_of(schedule)]
        await watching
        assert len(done) == 1000
        return seen

    seen = asyncio.run(main())
    steps = [after - before for before, after in itertools.pairwise(seen)]
    assert max(steps) <= WAVE and {WAVE - 3, WAVE, 2 * WAVE} & set(seen)


def test_the_pause_after_a_wave_counts_the_work_of_its_attempts() -> None:
    async def main() -> list[float]:
        loop, cpu_s, began = asyncio.get_running_loop(), 0.0, list[float]()

        async def run(attempt: Attempt, slot: Slot) -> Rollout:
            nonlocal cpu_s
            began.append(loop.time())
            cpu_s += 0.003
            await asyncio.sleep(1)
            return Rollout(*made(attempt.key))

        schedule = Schedule(
            Attempts(iter(attempts(2 * WAVE))),
            begin_by(run),
            Keep(),
            lambda: 2 * WAVE,
            cpu_time=lambda: cpu_s,
        )
        assert len([outcome async for outcome in outcomes_of(schedule)]) == 2 * WAVE
        return began

    began = run_virtual(main())
    assert began[WAVE] - began[0] == pytest.approx(PAUSE * WAVE * 0.003)


def test_a_source_that_answers_later_is_asked_again_once_it_is_ready() -> None:
    class Leases:
        """Hands out one attempt each time that `ready` is set."""

        def __init__(self) -> None:
            self.ready, self.waiting, self.num_asked = asyncio.Event(), attempts(3), 0

        def next(self) -> Attempt | Later | End:
            self.num_asked += 1
            if not self.waiting:
                return END
            if not self.ready.is_set():
                return Later(self.ready)
            self.ready.clear()
            return self.waiting.pop()

    async def run(attempt: Attempt, slot: Slot) -> Outcome:
        return Rollout(*made(attempt.key))

    async def main() -> tuple[int, int]:
        leases = Leases()
        loop = asyncio.get_running_loop()
        for second in range(3):
            loop.call_later(100 * second + 50, leases.ready.set)
        schedule = Schedule(leases, begin_by(run), Keep(), lambda: 8)
        return len([outcome async for outcome in outcomes_of(schedule)]), leases.num_asked

    number, num_asked = run_virtual(main())
    assert number == 3 and num_asked < 20, "waiting costs nothing"
