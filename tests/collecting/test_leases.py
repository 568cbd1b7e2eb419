"""The book of leases: shares, lost workers, late results, calls that come twice."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from support import outcomes_of

from benchmarks.cluster import simulate
from rollout_kit.api.testing import run_virtual
from rollout_kit.collecting.cluster.exchange import Exchange
from rollout_kit.collecting.cluster.leases import Dismissed, Lease, Leases, NotAskedFor
from rollout_kit.collecting.cluster.messages import (
    decode_leases,
    decode_outcome,
    encode_leases,
    read_message,
    write_event,
    write_message,
)
from rollout_kit.collecting.cluster.worker import GATHER_S, DriverClient, LeasedWork
from rollout_kit.collecting.schedule import Attempts, Schedule
from rollout_kit.collecting.slot import Place, Slot
from rollout_kit.errors import ModelError, OutputError, PeerLost, RolloutError
from rollout_kit.store.columns import Columns
from rollout_kit.store.index import RecordMaker
from rollout_kit.store.journal import NoJournal
from rollout_kit.store.lines import dump_line, info_of
from rollout_kit.types import Attempt, Failure, Key, Outcome, Rollout, StoredTurn, Task, Unverified


class NotedPlace(Place):
    """A place that notes what it is asked for."""

    __slots__ = ("asked",)

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def hand_out(self, unverified: Unverified) -> None:
        self.asked.append("hand_out")

    def store_turn(self, turn: StoredTurn) -> None:
        self.asked.append("store_turn")

    def free(self) -> None:
        self.asked.append("free")


def attempt_at(number: int) -> Attempt:
    key = Key(f"t{number}", "agent", "", 0)
    return Attempt(key, Task(f"t{number}", number, number + 1, "agent", {"n": number}))


def as_it_is(found: Outcome | PeerLost | None) -> Outcome | None:
    if isinstance(found, PeerLost):
        raise found
    return found


def line_of(attempt: Attempt | None) -> dict[str, Any]:
    assert attempt is not None
    key = attempt.key
    head = {"task_id": key.task_id, "rollout_index": key.rollout_index}
    return {"agent_ref": {"name": key.agent}, "rollout": head, "response": {}, "reward": 1.0}


def done(lease: Lease) -> dict[str, Any]:
    line = line_of(lease.attempt)
    event = write_event(lease.number, Rollout(info_of(line), line))
    [found] = read_message(write_message(b'{"call":1}', [event]))["events"]
    return {**found, "spent": [1, 10, 0.5, 0, 0], "limited_s": 0.0}


def parked(lease: Lease) -> dict[str, Any]:
    about = {"line": line_of(lease.attempt), "verifier": "", "error": None}
    return {"lease": lease.number, "kind": "parked", **about}


class Bench:
    """Leases, and attempts that wait for their outcome."""

    def __init__(self, num_attempts: int) -> None:
        self.now, self.said = 0.0, list[str]()
        self.leases = Leases(lambda: self.now, 10.0, self.said.append)
        self.slots = [Slot(NotedPlace()) for _ in range(num_attempts)]
        self.tasks = [
            self.leases.lease(attempt_at(number), slot, as_it_is)
            for number, slot in enumerate(self.slots)
        ]

    async def settled(self) -> list[Outcome]:
        return await asyncio.gather(*self.tasks)


def with_bench(number: int, test: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        bench = Bench(number)
        await asyncio.sleep(0)
        await test(bench)

    run_virtual(main())


def keys(leases: list[Lease]) -> list[str]:
    return [lease.attempt.key.task_id for lease in leases if lease.attempt]


def test_each_worker_gets_its_share_and_a_slower_one_keeps_no_other_waiting() -> None:
    async def test(bench: Bench) -> None:
        first, second = bench.leases.join("a", "worker 1"), bench.leases.join("b", "worker 2")
        mine, theirs = bench.leases.grant(first, 1000), bench.leases.grant(second, 1000)
        assert (len(mine), len(theirs)) == (4, 4)
        assert not bench.leases.grant(first, 1000)
        bench.leases.take(first, map(done, mine))
        bench.leases.take(second, map(done, theirs))
        assert {outcome.key.task_id for outcome in await bench.settled()} == {
            f"t{number}" for number in range(8)
        }
        assert bench.slots[0].ledger.spent.tokens == 10

    with_bench(8, test)


def test_workers_that_still_start_have_their_share_kept_for_a_while() -> None:
    async def test(bench: Bench) -> None:
        bench.leases.num_expected = 2
        first = bench.leases.join("a", "worker 1")
        assert len(bench.leases.grant(first, 1000)) == 4
        bench.now = 9.0
        assert not bench.leases.grant(first, 1000)
        bench.now = 11.0
        assert len(bench.leases.grant(first, 1000)) == 4
        for task in bench.tasks:
            task.cancel()

    with_bench(8, test)


def test_what_a_lost_worker_held_goes_first_to_another() -> None:
    async def test(bench: Bench) -> None:
        lost = bench.leases.join("a", "worker 1")
        held = bench.leases.grant(lost, 3)
        bench.leases.lose("a", "was killed")
        assert "worker 1 is lost, it was killed: 3 rollouts in flight" in bench.said[-1]
        other = bench.leases.join("b", "worker 2")
        assert keys(bench.leases.grant(other, 4)) == [*keys(held), "t3"]
        assert bench.leases.num_again == 3
        with pytest.raises(Dismissed):  # its last call was still waiting for an answer
            bench.leases.grant(lost, 4)
        for task in bench.tasks:
            task.cancel()

    with_bench(5, test)


def test_a_response_and_turns_of_a_lost_worker_are_handed_on() -> None:
    async def test(bench: Bench) -> None:
        lost = bench.leases.join("a", "worker 1")
        one, two = bench.leases.grant(lost, 2)
        turn = {"lease": two.number, "kind": "turn", "content": {"request": "r"}}
        freed = {"lease": one.number, "kind": "freed"}
        bench.leases.take(lost, [parked(one), freed, turn])
        place = bench.slots[0].place
        assert isinstance(place, NotedPlace) and place.asked == ["hand_out", "free"]
        bench.leases.lose("a", "was killed")
        first, second = bench.leases.grant(bench.leases.join("b", "worker 2"), 2)
        assert first.attempt and first.attempt.stored == line_of(one.attempt)
        assert second.attempt and second.attempt.turns == ({"request": "r"},)
        for task in bench.tasks:
            task.cancel()

    with_bench(2, test)


def test_a_silent_worker_is_lost_and_its_late_result_is_taken() -> None:
    async def test(bench: Bench) -> None:
        silent = bench.leases.join("a", "worker 1")
        other = bench.leases.join("b", "worker 2")
        [lease] = bench.leases.grant(silent, 1)
        for bench.now in (4.0, 8.0, 12.0):
            bench.leases.hear("b", "worker 2")
            bench.leases.lose_silent()
        assert list(bench.leases.members) == ["b"]
        assert bench.leases.grant(other, 1) == [lease]
        back, is_anew = bench.leases.hear("a", "worker 1")
        assert is_anew
        bench.leases.take(back, [done(lease)])
        assert isinstance((await bench.settled())[0], Rollout)
        assert other.recalled == [lease.number] and not other.held
        bench.leases.take(other, [done(lease)])  # it comes twice, and counts once

    with_bench(1, test)


def test_a_driver_that_stood_still_loses_no_worker() -> None:
    async def test(bench: Bench) -> None:
        bench.leases.join("a", "worker 1")
        bench.leases.lose_silent()
        bench.now = 1000.0
        bench.leases.lose_silent()
        assert "a" in bench.leases.members

    with_bench(0, test)


@pytest.mark.parametrize(("is_dead", "most"), [(True, 3), (False, 10)])
def test_an_attempt_that_ends_worker_after_worker_is_a_failure(is_dead: bool, most: int) -> None:
    async def test(bench: Bench) -> None:
        for number in range(most):
            holder = bench.leases.join(f"{number}", f"worker {number}")
            assert len(bench.leases.grant(holder, 1)) == 1
            bench.leases.lose(f"{number}", "was killed", for_good=is_dead)
        with pytest.raises(PeerLost, match=f"{most} workers were lost"):
            await bench.tasks[0]

    with_bench(1, test)


def test_what_kills_workers_is_found_and_others_survive() -> None:
    async def test(bench: Bench) -> None:
        for number in range(20):
            holder = bench.leases.join(f"{number}", f"worker {number}")
            while leases := bench.leases.grant(holder, 1000):
                if "t7" in keys(leases):
                    bench.leases.lose(f"{number}", "was killed")
                    break
                bench.leases.take(holder, map(done, leases))
                await asyncio.sleep(0)
        results = await asyncio.gather(*bench.tasks, return_exceptions=True)
        assert [at for at, each in enumerate(results) if isinstance(each, PeerLost)] == [7]

    with_bench(200, test)


def test_a_worker_whose_event_loop_is_blocked_is_named_and_kept() -> None:
    async def test(bench: Bench) -> None:
        blocked = bench.leases.join("a", "worker 1")
        bench.leases.grant(blocked, 1)
        for bench.now in (4.0, 8.0, 12.0, 16.0):
            bench.leases.feel("a")
            bench.leases.lose_silent()
        assert len(bench.said) == 1 and "worker 1 lives, but something blocks" in bench.said[0]
        assert "a" in bench.leases.members and blocked.held
        for bench.now in (20.0, 24.0, 28.0):
            bench.leases.lose_silent()
        assert "a" not in bench.leases.members
        bench.tasks[0].cancel()

    with_bench(1, test)


def test_a_worker_that_was_believed_lost_ends_nothing_of_another() -> None:
    async def test(bench: Bench) -> None:
        bench.leases.join("a", "worker 1")
        other = bench.leases.join("b", "worker 2")
        bench.leases.lose("a", "was silent", for_good=False)
        [lease] = bench.leases.grant(other, 1)
        back, _ = bench.leases.hear("a", "worker 1")
        stale = [{"lease": lease.number, "kind": kind} for kind in ("freed", "cancelled")]
        turn = {"lease": lease.number, "kind": "turn", "content": {"request": "r"}}
        bench.leases.take(back, [*stale, turn])
        place = bench.slots[0].place
        assert isinstance(place, NotedPlace) and not place.asked
        assert other.held and lease.attempt and not lease.attempt.turns
        bench.leases.take(other, [done(lease)])
        assert isinstance((await bench.settled())[0], Rollout)

    with_bench(1, test)


def test_what_an_attempt_has_reached_and_spent_is_known_when_it_is_withdrawn() -> None:
    async def test(bench: Bench) -> None:
        holder = bench.leases.join("a", "worker 1")
        one, two = bench.leases.grant(holder, 2)
        turn = {"lease": two.number, "kind": "turn", "content": {"request": "r"}}
        spent = {"spent": [1, 10, 0.5, 0, 0]}
        bench.leases.take(holder, [{**parked(one), **spent}, {**turn, **spent}])
        for task in bench.tasks:
            task.cancel()
        await asyncio.sleep(0)
        more = {"kind": "cancelled", "spent": [1, 5, 0.25, 0, 0]}
        bench.leases.take(holder, [{"lease": each.number, **more} for each in (one, two)])
        await asyncio.gather(*bench.tasks, return_exceptions=True)
        first, second = bench.slots
        assert first.attempt and first.attempt.stored == line_of(one.attempt)
        assert second.turns == [{"request": "r"}]
        assert [slot.ledger.spent.usd for slot in bench.slots] == [0.75, 0.75]

    with_bench(2, test)


def test_a_cancelled_attempt_is_called_back_and_its_response_is_kept() -> None:
    async def test(bench: Bench) -> None:
        holder = bench.leases.join("a", "worker 1")
        [lease] = bench.leases.grant(holder, 1)
        bench.tasks[0].cancel()
        await asyncio.sleep(0)
        assert holder.recalled == [lease.number]
        unverified = {**parked(lease), "kind": "unverified"}
        bench.leases.take(holder, [{**unverified, "spent": [0, 0, 0, 0, 0], "limited_s": 0}])
        assert isinstance((await bench.settled())[0], Unverified)

    with_bench(1, test)


@pytest.mark.parametrize("is_held", [False, True])
def test_a_cancelled_attempt_without_a_response_ends(is_held: bool) -> None:
    async def test(bench: Bench) -> None:
        holder = bench.leases.join("a", "worker 1")
        if is_held:
            bench.leases.grant(holder, 1)
        bench.tasks[0].cancel()
        await asyncio.gather(*bench.tasks, return_exceptions=True)
        assert bench.tasks[0].cancelled() and not holder.held and not bench.leases.num_waiting

    with_bench(1, test)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_cancelled_attempt_is_not_waited_for_in_vain(is_lost: bool) -> None:
    async def test(bench: Bench) -> None:
        holder = bench.leases.join("a", "worker 1")
        bench.leases.grant(holder, 1)
        [attempt] = bench.tasks
        attempt.cancel()
        assert not attempt.done()
        if is_lost:
            bench.leases.lose("a", "was killed")
        else:
            attempt.cancel()
        assert attempt.cancelled() and not bench.leases.num_waiting

    with_bench(1, test)


def test_an_outcome_that_cannot_be_kept_is_the_error_of_its_attempt() -> None:
    async def test(bench: Bench) -> None:
        def keep(found: Outcome | PeerLost | None) -> Outcome:
            raise OutputError("the disk is full")

        holder = bench.leases.join("a", "worker 1")
        attempt = bench.leases.lease(attempt_at(0), Slot(), keep)
        bench.leases.take(holder, map(done, bench.leases.grant(holder, 1)))
        with pytest.raises(OutputError, match="the disk is full"):
            await attempt

    with_bench(0, test)


def test_an_unknown_lease_is_refused() -> None:
    async def test(bench: Bench) -> None:
        holder = bench.leases.join("a", "worker 1")
        with pytest.raises(NotAskedFor):
            bench.leases.take(holder, [{"lease": 99, "kind": "freed"}])

    with_bench(0, test)


def test_a_call_that_comes_again_gets_the_same_leases() -> None:
    async def test(bench: Bench) -> None:
        exchange = Exchange(bench.leases, {}, lambda text, **fields: None)
        bench.leases.join("a", "worker 1")
        asked = {"worker": "a", "title": "worker 1", "channel": "wait", "call": 1, "load": []}
        asked |= {"want": 2, "wait_s": 3.0, "events": []}
        first, again = await exchange.exchange(asked), await exchange.exchange(asked)
        assert first == again
        assert [each["lease"] for each in orjson.loads(first)["leases"]] == [1, 2]
        more = orjson.loads(await exchange.exchange({**asked, "call": 2}))
        assert [each["lease"] for each in more["leases"]] == [3, 4]
        for task in bench.tasks:
            task.cancel()

    with_bench(4, test)


def test_a_worker_waits_until_there_is_something_to_do() -> None:
    async def test(bench: Bench) -> None:
        exchange = Exchange(bench.leases, {}, lambda text, **fields: None)
        bench.leases.join("a", "worker 1")
        asked = {"worker": "a", "title": "worker 1", "channel": "wait", "call": 1, "load": []}
        asked |= {"want": 9, "wait_s": 60.0, "events": []}
        waiting = asyncio.create_task(exchange.exchange(asked))
        await asyncio.sleep(1)
        assert not waiting.done()
        late = bench.leases.lease(attempt_at(0), Slot(), as_it_is)
        reply = orjson.loads(await waiting)
        assert len(reply["leases"]) == 1
        late.cancel()

    with_bench(0, test)


def test_a_worker_whose_leases_come_in_another_reply_is_not_woken() -> None:
    async def test(bench: Bench) -> None:
        exchange = Exchange(bench.leases, {}, lambda text, **fields: None)
        member = bench.leases.join("a", "worker 1")
        asked = {"worker": "a", "title": "worker 1", "channel": "wait", "call": 1, "load": []}
        asked |= {"want": 9, "wait_s": 60.0, "events": []}
        waiting = asyncio.create_task(exchange.exchange(asked))
        await asyncio.sleep(1)
        lease = bench.leases.lease(attempt_at(0), Slot(), as_it_is)
        assert bench.leases.grant(member, 9) == [lease]
        await asyncio.sleep(1)
        assert not waiting.done()
        waiting.cancel()

    with_bench(0, test)


@pytest.mark.parametrize("num_leases", [1, 2])
def test_a_worker_with_nothing_left_to_do_brings_what_it_has_at_once(num_leases: int) -> None:
    brought = asyncio.Event()

    async def post(url: str, raw: bytes, **about: Any) -> Any:
        brought.set()
        nothing = {"leases": [], "recalled": [], "regained": []}
        return SimpleNamespace(status=200, raw=orjson.dumps({"anew": 0, "gather_s": 0, **nothing}))

    async def run(attempt: Attempt, slot: Slot) -> Outcome:
        await asyncio.sleep(attempt.task.task_index)
        return Failure(attempt.key, 0, RolloutError("no"))

    async def main() -> float:
        given = {"url": "", "worker": "a", "title": "worker 1", "ticket": ""}
        client: Any = SimpleNamespace(post=post)
        runner: Any = run
        driver, work = DriverClient(client, given), LeasedWork(runner, runner)
        leases = encode_leases((number, attempt_at(number)) for number in range(num_leases))
        work.take({"anew": False, "recalled": [], "regained": [], **leases})
        bringing = asyncio.create_task(driver.bring(work))
        await brought.wait()
        bringing.cancel()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(0.0 if num_leases == 1 else GATHER_S)


@pytest.mark.parametrize(("number", "gather_s"), [(2, 0.001), (100, 0.05), (4000, 0.5)])
def test_the_more_workers_there_are_the_longer_each_gathers(number: int, gather_s: float) -> None:
    async def test(bench: Bench) -> None:
        exchange = Exchange(bench.leases, {}, lambda text, **fields: None)
        for at in range(number):
            bench.leases.join(f"{at}", f"worker {at}")
        asked = {"worker": "0", "title": "worker 0", "channel": "wait", "call": 1, "load": []}
        reply = await exchange.exchange({**asked, "want": 1, "wait_s": 0.0, "events": []})
        assert orjson.loads(reply)["gather_s"] == gather_s

    with_bench(0, test)


def test_with_many_workers_the_next_lease_comes_in_the_reply_to_an_outcome() -> None:
    async def main() -> float:
        found = await simulate(num_workers=50, num_attempts=5_000, num_repeats=8, num_lost=0)
        return found["rollouts"] / found["exchanges"]

    # each worker ends 16 rollouts a second, and brings what 25 ms gather
    assert run_virtual(main()) > 1.2


def outcomes() -> list[Outcome]:
    key = Key("t", "agent", "arm=a", 3)
    line = line_of(attempt_at(0))
    error = ModelError("refused", server="policy", status=429, body="slow", retry_after_s=2.0)
    return [
        Rollout(info_of(line), line),
        decode_outcome({"kind": "unverified", "line": line, "verifier": "v", "error": None}, key),
        Failure(key, 4, error, [{"message": "refused"}], 0.25, settings="s", verifier="v"),
    ]


@pytest.mark.parametrize("outcome", outcomes(), ids=lambda found: type(found).__name__)
def test_outcomes_arrive_as_they_were(outcome: Outcome) -> None:
    message = write_message(b'{"call":1}', [write_event(7, outcome, spent=[0])])
    [event] = read_message(message)["events"]
    assert event["lease"] == 7 and event["spent"] == [0]
    found = decode_outcome(event, outcome.key)
    if isinstance(outcome, Rollout):
        assert isinstance(found, Rollout)
        assert (found.info, found.line) == (outcome.info, outcome.line)
        assert found.raw == dump_line(outcome.line) and "response" not in found.head
    elif isinstance(outcome, Failure):
        assert isinstance(found, Failure)
        assert isinstance(found.error, ModelError) and isinstance(outcome.error, RolloutError)
        assert found.error.to_wire() == outcome.error.to_wire()
        assert found.attempts == outcome.attempts and found.key == outcome.key
    else:
        assert found == outcome


@pytest.mark.parametrize(
    "rest",
    [b"", b"{}", b'{"a":1}\n{}\n', b"{\n}\n", b"\n{}"],
    ids=["none", "cut", "two", "torn", "late"],
)
def test_a_rollout_that_is_not_one_line_is_refused(rest: bytes) -> None:
    size = max(3, len(rest))
    head = b'{"events":[{"lease":1,"kind":"rollout","packed":0,"size":%d}]}\n' % size
    with pytest.raises(ValueError, match="not one line"):
        read_message(head + rest)


def test_a_worker_packs_what_the_driver_s_index_says_of_a_rollout() -> None:
    line = line_of(attempt_at(0))
    line["rollout"] |= {"task_id": "00c0ffee00c0ffee", "num_turns": 3, "scores": ["said"]}
    line["said"] = "yes"
    event = write_event(7, Rollout(info_of(line), line))
    [found] = read_message(write_message(b'{"call":1}', [event]))["events"]
    arrived = decode_outcome(found, info_of(line).key)
    assert isinstance(arrived, Rollout) and isinstance(arrived.raw, bytes) and arrived.figures
    parsed = RecordMaker(Columns(), "rollout").make(10, arrived.raw)
    assert parsed and parsed.is_plain
    content = parsed.content, True
    assert RecordMaker(Columns(), "rollout").make_own(10, arrived.raw, arrived) == content
    with pytest.raises(ValueError, match="figures"):
        read_message(write_message(b'{"call":1}', [event])[: 10 - len(event.more)])


def test_attempts_arrive_as_they_were() -> None:
    given = Attempt(
        Key("t", "agent", "arm=a", 3),
        Task("t", 1, 2, "agent", {"responses_create_params": {"input": "x"}}, 5),
        stored={"response": {}},
        number=2,
        regenerated=True,
        turns=[{"request": "r"}],
        arm={"id": "a"},
    )
    again, call = given._replace(number=1, turns=[], arm=None), {"server": "s", "body": None}
    leases = [(1, given), (2, again), (3, attempt_at(1)), (4, call)]
    message = encode_leases(leases)
    assert len(message["tasks"]) == 2, "that of several attempts once"
    found = list(decode_leases(orjson.loads(orjson.dumps(message))))
    assert [(n, each) for n, each in found if n != 2] == [leases[0], *leases[2:]]
    assert found[1][1] == again._replace(turns=())


def test_the_outcomes_of_a_message_are_written_together_in_the_next_turn_of_the_loop() -> None:
    written: list[list[str]] = []

    class Sink(NoJournal):
        def append_all(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
            written.append([each.key.task_id for each in outcomes])
            return outcomes

    async def test(bench: Bench) -> None:
        def begin(attempt: Attempt, slot: Slot) -> Lease:
            return bench.leases.lease(attempt, slot, as_it_is)

        source = Attempts(iter([attempt_at(number) for number in range(4)]))
        schedule = Schedule(source, begin, Sink(), lambda: 4)
        outcomes = outcomes_of(schedule)
        first = asyncio.ensure_future(anext(outcomes))
        await schedule.begun.wait()
        member = bench.leases.join("a", "worker 1")
        leases = bench.leases.grant(member, 1000)
        bench.leases.take(member, map(done, leases[:3]))
        assert not written
        await asyncio.sleep(0)
        assert [len(each) for each in written] == [3]
        assert isinstance(await first, Rollout)
        await outcomes.aclose()

    with_bench(0, test)
