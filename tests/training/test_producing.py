"""A collection that feeds a buffer: epochs, admission, acks, and a buffer that was lost."""

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from buffers import REDIS, redis_server
from command import as_function
from support import HANG_S, Bench, asked, eventually, read_jsonl, row
from virtual_time import VirtualTime

import rollout_kit as rk
from rollout_kit import rl
from rollout_kit.analysis.metrics.tally import Tally
from rollout_kit.api.testing import ScriptedModel, making
from rollout_kit.collecting import run
from rollout_kit.collecting.live.snapshot import Snapshot
from rollout_kit.collecting.trackers.scalars import only_numbers
from rollout_kit.collecting.trackers.tracking import Tracking
from rollout_kit.errors import ConfigError, OutputError
from rollout_kit.rl import BufferPolicy, MemoryBuffer, open_buffer, serve_buffer
from rollout_kit.rl.buffer.group import Settled
from rollout_kit.rl.buffer.shelf import Shelf
from rollout_kit.rl.partial import name_request
from rollout_kit.rl.producing import producer
from rollout_kit.rl.producing.gauges import TrainerGauges
from rollout_kit.serving.resources_server import ResourcesServer
from rollout_kit.store.lines import find_encoded
from rollout_kit.store.scope import parse_scope
from rollout_kit.types import JsonObject

simulate_trainer = as_function("ng_simulate_trainer")

ROOT = Path(__file__).resolve().parents[2]

ROWS = [row(text) for text in "abc"]


async def train(
    buffer: MemoryBuffer, batch: int, steps: int, seen: list[Any], figures: Any = None
) -> None:
    """Take so many batches, one version each, and need nothing more."""
    for step in range(steps):
        found = await buffer.get(batch)
        assert found is not None and len(found) == batch
        seen.append((step, found.groups))
        await buffer.ack(found.lease)
        await buffer.set_version(step + 1, figures)
    await buffer.finish()


def feed(
    bench: Bench, policy: BufferPolicy, steps: int = 0, figures: Any = None, **keys: Any
) -> list[Any]:
    """Collect into a buffer while a trainer takes `steps` batches of it; returns them."""
    seen: list[Any] = []

    async def main() -> None:
        buffer = MemoryBuffer(policy)
        async with serve_buffer(buffer) as url:
            training = asyncio.create_task(train(buffer, policy.batch or 1, steps, seen, figures))
            bench.status = await bench.collect(ROWS, buffer=url, **keys)  # type: ignore[attr-defined]
            bench.stats = await buffer.stats()  # type: ignore[attr-defined]
            if steps:
                await training
            training.cancel()

    asyncio.run(main())
    return seen


def check_groups(bench: Bench, seen: list[Any]) -> list[Any]:
    """Five batches of two whole groups, each of two rollouts, none twice; returns the groups."""
    groups = [group for _, found in seen for group in found]
    assert len(groups) == 10 == len({group.key for group in groups})
    for group in groups:
        assert [line["_ng_rollout_index"] for line in group.rollouts] == [0, 1]
        assert group.rewards == [1.0, 1.0]
    assert bench.status == 0  # type: ignore[attr-defined]
    return groups


def test_groups_reach_a_trainer_epoch_after_epoch(bench: Bench) -> None:
    seen = feed(bench, BufferPolicy(batch=2, staleness=1), steps=5, epochs=None, num_repeats=2)
    groups = check_groups(bench, seen)
    epochs = Counter(parse_scope(line["rollout"].get("scope", "")).epoch for line in bench.lines())
    assert epochs[None] == epochs[1] == epochs[2] == 6
    acked = [line for line in bench.lines("acks") if line["reason"] == "acked"]
    assert {line["key"] for line in acked} == {group.key for group in groups}
    assert len(acked) == 10


def test_the_figures_of_a_trainer_reach_page_and_trackers_and_pass_thresholds() -> None:
    said: list[str] = []
    tally = Tally()
    gauges = TrainerGauges(tally, lambda text, **fields: said.append(text))
    shelf = Shelf(BufferPolicy(), lambda: 0.0)
    gauges.take(shelf.stats())
    assert tally.gauges["buffer/waiting"] == 0 and "policy/version" not in tally.gauges
    for step in (1, 1, 2, 3, 4, 4):
        shelf.set_version(step)
        shelf.figures = {"policy/entropy": None if step == 2 else 0.001, "kl/mean": 0.1}
        gauges.take(shelf.stats())
    assert tally.gauges["kl/mean"] == 0.1 and tally.gauges["policy/version"] == 4
    nan, low = tally.alarms
    assert len(said) == 2 and nan.startswith("step 2: policy/entropy is nan")
    assert low.startswith("step 4: policy/entropy is 0.001, below 0.01 in 3 batches")


def test_a_page_shows_what_the_trainer_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Snapshot] = []
    monkeypatch.setattr(Tracking, "read", lambda self, snapshot: seen.append(snapshot))
    policy = BufferPolicy(batch=2, staleness=0)  # the last step begins after the version before it
    feed(bench, policy, steps=3, figures={"kl/mean": 0.5}, epochs=None)
    told = seen[-1].gauges
    assert told["kl/mean"] == 0.5 and told["policy/version"] >= 2
    assert only_numbers(told) == told and orjson.loads(orjson.dumps(seen[-1]))["gauges"] == told


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_no_group_begins_before_it_may(bench: Bench, staleness: int) -> None:
    """At most (staleness + version + 1) × batch groups have ever begun."""
    begun: list[str] = []
    seen: list[Any] = []

    async def main() -> None:
        buffer = MemoryBuffer(BufferPolicy(batch=2, staleness=staleness))

        def answer(params: dict[str, Any]) -> str:
            begun.append(asked(params))
            allowed = (staleness + (buffer.shelf.version or 0) + 1) * 2
            assert len(begun) <= allowed
            return asked(params)

        bench.model = ScriptedModel(answer)
        async with serve_buffer(buffer) as url:
            training = asyncio.create_task(train(buffer, 2, 4, seen))
            assert await bench.collect(ROWS, buffer=url, epochs=None) == 0
            await training

    asyncio.run(main())
    for step, groups in seen:
        assert all(step - (group.version_first or 0) <= staleness for group in groups)


def test_a_straggler_is_stopped_when_the_step_has_enough_and_goes_on_in_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "STEP_EVERY_S", 0.01)
    begun: list[str] = []
    requests: list[str] = []
    seen: list[Any] = []

    class Slow(ScriptedModel):
        async def responses(self, params: dict[str, Any]) -> dict[str, Any]:
            begun.append(asked(params))
            requests.append(name_request(params))
            if begun.count("a") == 1 and asked(params) == "a":
                try:
                    await asyncio.Event().wait()  # it never comes
                finally:
                    stopped.set()
            return await super().responses(params)

    async def main() -> None:
        buffer = MemoryBuffer(BufferPolicy(batch=1, staleness=1, over_provision=1.0))

        async def train_late() -> None:
            await stopped.wait()
            await train(buffer, 1, 3, seen)

        async with serve_buffer(buffer) as url:
            training = asyncio.create_task(train_late())
            assert await bench.collect(ROWS, buffer=url) == 0
            await training

    stopped, bench.model = asyncio.Event(), Slow(asked)
    asyncio.run(main())
    assert begun == ["a", "b", "c", "a"]
    assert requests[0] == requests[3] and len(set(requests)) == 3 and all(requests)
    assert len({group.key for _, found in seen for group in found}) == 3
    said = (
        "1 rollout stopped at a full step; their output tokens: mean 1, p50 1, p95 1; of the others"
    )
    assert said in bench.out.getvalue()


def test_a_slow_trainer_is_the_bottleneck(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        buffer = MemoryBuffer(BufferPolicy(batch=1, staleness=0, visibility_s=1e6, reserve_s=1e6))

        async def train_slowly() -> None:
            for step in range(3):
                found = await buffer.get(1)
                assert found
                await asyncio.sleep(5)
                await buffer.ack(found.lease)
                await buffer.set_version(step + 1)
            await buffer.finish()

        async with serve_buffer(buffer) as url:
            training = asyncio.create_task(train_slowly())
            assert await bench.collect(ROWS, buffer=url) == 0
            await training

    bench.model = ScriptedModel(asked, delay_s=0.5)
    VirtualTime(monkeypatch).run(main())
    assert bench.metrics()["bottleneck"]["name"] == "trainer"


def collect_until_said(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    before: Callable[[MemoryBuffer], Awaitable[object]],
    after: Callable[[MemoryBuffer], Awaitable[object]],
) -> None:
    """Collect for a trainer that begins once the run has said what it waits for."""
    monkeypatch.setattr(run, "QUIET_S", 0.0)
    monkeypatch.setattr(run, "TICK_S", 0.01)

    async def main() -> None:
        buffer = MemoryBuffer(BufferPolicy(batch=1, staleness=0))

        async def train_late() -> None:
            await before(buffer)
            while said not in bench.out.getvalue():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await after(buffer)
            await train(buffer, 1, 3, [])

        async with serve_buffer(buffer) as url:
            training = asyncio.create_task(train_late())
            assert await bench.collect(ROWS, buffer=url) == 0
            await training

    asyncio.run(main())


def test_a_silent_minute_names_the_trainer(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(buffer: MemoryBuffer) -> None:
        pass

    said = "in flight and waiting: 1 for the trainer to make room in the buffer"
    collect_until_said(bench, monkeypatch, said, nothing, nothing)


def test_a_silent_minute_tells_that_the_trainer_holds_the_groups(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed, say, on another machine."""

    async def hold(buffer: MemoryBuffer) -> None:
        assert await buffer.get(1, owner="killed")

    async def give_back(buffer: MemoryBuffer) -> None:
        await buffer.release(owner="killed")

    said = "waiting: 1 for the trainer to acknowledge 1 group that it was handed out"
    collect_until_said(bench, monkeypatch, said, hold, give_back)


def test_the_longest_tasks_of_the_epoch_before_come_first(bench: Bench) -> None:
    begun: list[str] = []

    def answer(params: dict[str, Any]) -> str:
        begun.append(asked(params))
        return "word " * {"a": 1, "b": 3, "c": 2}[asked(params)]

    bench.model = ScriptedModel(answer)
    keys = {"num_samples_in_parallel": 1, "longest_first": True}
    assert asyncio.run(bench.collect(ROWS, epochs=2, **keys)) == 0
    assert begun == ["a", "b", "c", "b", "c", "a"]


def test_a_program_collects_into_a_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    demo = ROOT / "responses_api_models/local_model/data/demo.jsonl"
    Path("tasks.jsonl").write_text("".join(demo.read_text().splitlines(keepends=True)[:3]))
    seen: list[Any] = []

    async def main() -> rl.Buffer:
        async with rk.servers("configs/demo.yaml") as servers:
            buffer = MemoryBuffer(BufferPolicy(batch=3, staleness=0))
            training = asyncio.create_task(train(buffer, 3, 2, seen))
            run = rl.collect(servers, "tasks.jsonl", buffer=buffer, output="r.jsonl", num_repeats=2)
            async for outcome in run:
                assert isinstance(outcome, rk.Rollout)
            await training
        return buffer

    asyncio.run(main())
    assert [len(found) for _, found in seen] == [3, 3]
    acked = read_jsonl(Path("r.d/acks.jsonl"))
    assert {line["key"] for line in acked} == {each.key for _, found in seen for each in found}
    with pytest.raises(ConfigError, match=r"epochs: .* give it to rollout_kit.rl.collect"):
        rk.collect(None, "tasks.jsonl", epochs=2)  # type: ignore[arg-type]
    for keys, why in [
        ({"epochs": "x"}, "^epochs: "),
        ({}, "buffer: .* await open_buffer.'memory'"),
    ]:
        with pytest.raises(ConfigError, match=why):
            rl.collect(None, "t.jsonl", buffer="memory", output="r.jsonl", **keys)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not list: each epoch reads them again"):
        buffer = MemoryBuffer(BufferPolicy(batch=3, staleness=0))
        rl.collect(None, ROWS, buffer=buffer, output="r.jsonl")  # type: ignore[arg-type]


GROUPED = """
from rollout_kit import ResourcesServer, VerifyRequest, VerifyResponse


class Grouped(ResourcesServer):
    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        return body.scored(0.0)

    async def verify_group(self, task: dict, members: list) -> list[float]:
        return [float(slot + 1) for slot, _ in enumerate(members)]
"""

GROUPED_YAML = """
config_paths: [responses_api_models/simulated_model/configs/simulated_model.yaml]
grouped: {resources_servers: {grouped: {}}}
grouped_agent:
  responses_api_agents:
    simple_agent:
      resources_server: {type: resources_servers, name: grouped}
      model_server: {type: responses_api_models, name: policy_model}
"""


def test_groups_are_scored_and_put_while_the_program_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program takes the last outcome when all groups are scored."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "resources_servers/grouped").mkdir(parents=True)
    (tmp_path / "resources_servers/grouped/app.py").write_text(GROUPED)
    Path("grouped.yaml").write_text(GROUPED_YAML)
    Path("tasks.jsonl").write_text("".join(json.dumps(each) + "\n" for each in ROWS))
    scores, seen = Path("r.d/groups.jsonl"), list[Any]()

    async def main() -> None:
        async with rk.servers("grouped.yaml") as servers:
            buffer = MemoryBuffer(BufferPolicy(batch=3, staleness=0))
            training = asyncio.create_task(train(buffer, 3, 1, seen))
            run = rl.collect(servers, "tasks.jsonl", buffer=buffer, output="r.jsonl", num_repeats=2)
            number = 0
            async for outcome in run:
                assert isinstance(outcome, rk.Rollout) and find_encoded(outcome) is None
                number += 1
                if number == 5:
                    await asyncio.to_thread(eventually, lambda: len(read_jsonl(scores)) == 3)
            await training
            assert [each.rewards for _, found in seen for each in found] == [[1.0, 2.0]] * 3

    asyncio.run(asyncio.wait_for(main(), HANG_S))


class Slots(ResourcesServer):
    """A rollout has a reward by its group alone: the number of its slot."""

    async def verify_group(self, task: JsonObject, members: list[Any]) -> list[float]:
        return [float(slot + 1) for slot, _ in enumerate(members)]


def test_scored_groups_that_an_earlier_run_began_are_put_with_their_scores(bench: Bench) -> None:
    """Those whose score is on disk, and those that are scored in this run, which has no end."""
    bench.verifier = making(Slots)
    assert asyncio.run(bench.collect(ROWS[:1], num_repeats=2)) == 0
    assert asyncio.run(bench.collect(ROWS, num_repeats=1)) == 0
    seen = feed(bench, BufferPolicy(batch=3, staleness=0), steps=2, num_repeats=2, epochs=None)
    assert bench.status == 0  # type: ignore[attr-defined]
    assert [group.rewards for group in seen[0][1]] == [[1.0, 2.0]] * 3
    assert not any("epoch" in group.key for group in seen[0][1])


def test_a_group_that_is_dropped_at_its_deadline_gives_its_place_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Patient(ScriptedModel):
        async def responses(self, params: JsonObject) -> JsonObject:
            await asyncio.sleep(4 if asked(params) == "a" and not params["seed"] else 0.5)
            return await super().responses(params)

    async def main() -> None:
        buffer = MemoryBuffer(BufferPolicy(batch=1, staleness=0, reserve_s=1e6))
        async with serve_buffer(buffer) as url:
            training = asyncio.create_task(train(buffer, 1, 2, seen))
            await bench.collect(ROWS, buffer=url, **keys)
            await training
            assert (await buffer.stats())["reserved"] == 0

    seen: list[Any] = []
    bench.verifier, bench.model = making(Slots), Patient(asked)
    keys = {"num_repeats": 2, "num_repeats_add_seed": True, "num_samples_in_parallel": 2}
    keys |= {"incomplete_groups": "drop", "group_deadline_s": 2}
    VirtualTime(monkeypatch).run(main())
    assert [[asked_of(group) for group in found] for _, found in seen] == [["b"], ["c"]]


def asked_of(group: Any) -> str:
    return asked(group.rollouts[0]["responses_create_params"])


def test_groups_that_wait_for_room_do_not_hold_up_those_that_have_a_place(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All places are given to groups that an earlier run began. More finished groups wait than are
    held in memory."""
    monkeypatch.setattr(producer, "MAX_PUTTING", 1)
    rows = [row(text) for text in "abcde"]
    assert asyncio.run(bench.collect(rows[:3], num_repeats=2)) == 0
    assert asyncio.run(bench.collect(rows, num_repeats=1)) == 0
    seen: list[Any] = []

    class Full(MemoryBuffer):
        async def reserve(self, number: int = 1, *, owner: str = "") -> list[str]:
            found = await super().reserve(number, owner=owner)
            given.extend(found)
            if len(given) == 2:
                is_full.set()
            return found

        async def put(self, group: Any, *, ticket: str = "", timeout_s: float | None = None) -> str:
            await is_full.wait()
            return await super().put(group, ticket=ticket, timeout_s=timeout_s)

    async def main() -> None:
        buffer = Full(BufferPolicy(capacity=2, reserve_s=1e6))
        async with serve_buffer(buffer) as url:
            training = asyncio.create_task(take_all(buffer))
            assert await bench.collect(rows, buffer=url, num_repeats=2) == 0
            await training

    async def take_all(buffer: MemoryBuffer) -> None:
        while len(seen) < 5:
            batch = await buffer.get(1)
            assert batch is not None
            seen.extend(map(asked_of, batch.groups))
            await buffer.ack(batch.lease)

    given, is_full = list[str](), asyncio.Event()
    asyncio.run(asyncio.wait_for(main(), HANG_S))
    assert sorted(seen) == list("abcde") and seen[0] in "de"


@pytest.mark.parametrize("epochs", [None, 3])
def test_the_metrics_hold_all_epochs(bench: Bench, epochs: int | None) -> None:
    seen = feed(bench, BufferPolicy(batch=3, staleness=0), steps=3, epochs=epochs)
    assert len(seen) == 3
    metrics, number = bench.metrics(), len(bench.lines())
    assert metrics["reward"] == 1.0 and metrics["counts"]["rollouts"] == number >= 9


def test_epochs_are_planned_one_by_one_and_continued(bench: Bench) -> None:
    assert asyncio.run(bench.collect(ROWS)) == 0
    assert asyncio.run(bench.collect(ROWS, epochs=2, limit=2)) == 0
    assert "epoch 2 of 2" in bench.out.getvalue()
    assert asyncio.run(bench.collect(ROWS, epochs=3)) == 0
    assert Counter(asked(line["responses_create_params"]) for line in bench.lines()) == {
        "a": 3,
        "b": 3,
        "c": 3,
    }
    assert asyncio.run(bench.collect(ROWS, epochs=3)) == 0
    assert len(bench.lines()) == 9


def test_a_lost_buffer_is_filled_from_the_output_and_the_acks(bench: Bench) -> None:
    first = feed(bench, BufferPolicy(batch=2, staleness=9), steps=1)
    [(_, groups)] = first
    used = {group.key for group in groups}
    asyncio.run(bench.collect(ROWS))  # what the trainer's end had left undone
    second = feed(bench, BufferPolicy(batch=1, staleness=9), steps=1)
    [(_, [left])] = second
    assert left.key not in used and left.rewards == [1.0]
    assert len(bench.lines()) == 3
    assert len({line["key"] for line in bench.lines("acks")}) == 3


def test_each_used_group_is_journalled_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the last groups wait for room, and the buffer answers slowly."""

    class Slow(MemoryBuffer):
        async def list_settled(self, after: str = "", number: int = 1000) -> list[Settled]:
            found = await super().list_settled(after, number)
            await asyncio.sleep(0.7)
            return found

    async def main() -> None:
        assert await bench.collect(ROWS) == 0
        buffer = Slow(BufferPolicy(capacity=1, visibility_s=1e6))

        async def train_slowly() -> None:
            for _ in ROWS:
                batch = await buffer.get(1)
                assert batch is not None
                await asyncio.sleep(10)
                await buffer.ack(batch.lease)

        async with serve_buffer(buffer) as url:
            training = asyncio.create_task(train_slowly())
            while len(bench.lines("acks")) < len(ROWS):
                assert await bench.collect(ROWS, buffer=url) == 0
            await training

    VirtualTime(monkeypatch).run(main())
    assert len({line["key"] for line in bench.lines("acks")}) == len(bench.lines("acks")) == 3


def test_a_group_with_a_failed_member_gives_its_place_back(bench: Bench) -> None:
    def answer(params: dict[str, Any]) -> str:
        if asked(params) == "b":
            raise ConfigError("no answer to b")
        return asked(params)

    bench.model = ScriptedModel(answer)
    policy = BufferPolicy(batch=1, staleness=0, capacity=1)
    seen = feed(bench, policy, steps=2, stop_early=False, max_attempts=1)
    assert {each.key.split(":")[1] for _, [each] in seen} == {"echo_agent"}
    assert bench.stats["reserved"] == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("keys", [{"buffer": "memry"}, {"epochs": 0}, {"buffer_port": 3}])
def test_odd_keys_are_refused(bench: Bench, keys: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, ValueError)):
        asyncio.run(bench.collect(ROWS, **keys))


def test_the_simulated_trainer_takes_steps(bench: Bench, capsys: Any) -> None:
    """As a command, over HTTP, against a collection without end."""

    async def main() -> int:
        buffer = MemoryBuffer(BufferPolicy(batch=2, staleness=1))
        async with serve_buffer(buffer) as url:
            collecting = asyncio.create_task(bench.collect(ROWS, buffer=url, epochs=None))
            words = [f"+buffer={url}", "+steps=4", "+step_s=0", "+json=true"]
            with pytest.raises(SystemExit) as ended:
                await asyncio.to_thread(simulate_trainer, words)
            return await collecting or ended.value.code

    assert asyncio.run(main()) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["steps"], found["groups"], found["lost"]) == (4, 8, 0)
    assert set(found["staleness"]) <= {"0", "1"}
    assert found["buffer"]["acked"] == 8


@pytest.mark.skipif(not REDIS, reason="needs redis-server and the package redis")
@pytest.mark.parametrize("kills", [1, pytest.param(30, marks=pytest.mark.chaos)])
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_killed_collection_loses_and_repeats_no_group(
    is_lost: bool, kills: int, tmp_path: Path
) -> None:
    """Each group is acknowledged once; also if Redis is emptied while the collection is away, as
    soon as the acks were journalled."""
    number, used = 30 * (kills + 1), Counter[str]()
    policy = {"batch": 2, "staleness": 1000, "capacity": 6, "visibility_s": 1000}
    script = Path(__file__).parents[1] / "helpers/buffer_collector.py"

    async def main(url: str) -> None:
        def start() -> "subprocess.Popen[bytes]":
            words = [sys.executable, str(script), str(tmp_path), url, str(number)]
            return subprocess.Popen(words, stdout=subprocess.DEVNULL)

        buffer, collector = await open_buffer(url, **policy), start()
        try:
            for part in range(1, kills + 2):
                while sum(used.values()) < number * part // (kills + 1):
                    batch = await buffer.get(1, timeout_s=HANG_S)
                    assert batch is not None
                    used.update(await buffer.ack(batch.lease))
                    assert (await buffer.stats())["leased"] == 0
                if part > kills:
                    break
                if is_lost:
                    await reach(lambda: len(read_jsonl(acks)) >= sum(used.values()))
                collector.kill()
                collector.wait()
                if is_lost:
                    await buffer.clear()
                    buffer = await renew(buffer, url)
                collector = start()
            assert collector.wait(HANG_S) == 0
            collector = start()  # it fetches the acks since the end of the last one
            assert collector.wait(HANG_S) == 0
        finally:
            collector.kill()
            collector.wait()
            await buffer.close()

    async def renew(buffer: Any, url: str) -> Any:
        await buffer.close()
        return await open_buffer(url, **policy)

    async def reach(holds: Any) -> None:
        give_up = time.monotonic() + HANG_S
        while not acks.exists() or not holds():
            assert time.monotonic() < give_up
            await asyncio.sleep(0.05)

    acks = tmp_path / "rollouts.d/acks.jsonl"
    with redis_server(tmp_path) as url:
        asyncio.run(main(url))
    assert len(used) == number and set(used.values()) == {1}
    assert len(read_jsonl(tmp_path / "rollouts.jsonl")) == 2 * number
    assert Counter(line["reason"] for line in read_jsonl(acks)) == {"acked": number}


@pytest.mark.skipif(not REDIS, reason="needs redis-server and the package redis")
def test_a_buffer_that_vanishes_ends_the_run_in_a_line(bench: Bench, tmp_path: Path) -> None:
    async def main(url: str) -> None:
        async with await open_buffer(url, batch=1, staleness=1000, capacity=2) as buffer:
            collecting = asyncio.create_task(bench.collect(ROWS, buffer=url, epochs=None))
            assert await buffer.get(2) is not None
            await buffer.clear()  # type: ignore[attr-defined]
            with pytest.raises(OutputError, match=r"not in Redis any more.*the same command goes"):
                await collecting

    with redis_server(tmp_path) as url:
        asyncio.run(main(url))


@pytest.mark.skipif(not REDIS, reason="needs redis-server and the package redis")
def test_large_groups_are_references_into_the_output(bench: Bench, tmp_path: Path) -> None:
    """Also those of earlier runs; one whose file cannot be read any more is given back."""
    bench.model = ScriptedModel(lambda params: asked(params) * 9_000)
    output = tmp_path / "rollouts.jsonl"

    async def main(url: str) -> None:
        assert await bench.collect(ROWS[:1], num_repeats=2) == 0
        assert await bench.collect(ROWS, buffer=f"{url}?reference_bytes=9000", num_repeats=2) == 0
        async with await open_buffer(url) as buffer:
            assert (stats := await buffer.stats())["put"] == 3 and stats["bytes"] < 3 * 700
            batch = await buffer.get(3)
            assert batch
            kept = [line for group in batch.groups for line in group.rollouts]
            in_order = sorted(
                kept, key=lambda line: (line["_ng_task_index"], line["_ng_rollout_index"])
            )
            assert in_order == sorted(
                bench.lines(), key=lambda line: (line["_ng_task_index"], line["_ng_rollout_index"])
            )
            await buffer.nack(batch.lease)
            raw = output.read_bytes()
            output.write_bytes(b" " + raw)
            with pytest.raises(ConfigError, match="the file was changed; share this folder"):
                await buffer.get(1)
            output.unlink()
            with pytest.raises(ConfigError, match=r"rollouts.jsonl .* No such file .* reference_"):
                await buffer.get(1)
            output.write_bytes(raw)
            assert len(await buffer.get(3) or ()) == 3

    with redis_server(tmp_path) as url:
        asyncio.run(main(url))


@pytest.mark.skipif(not REDIS, reason="needs redis-server and the package redis")
def test_small_groups_stay_in_redis_and_only_redis_refers(bench: Bench, tmp_path: Path) -> None:
    async def main(url: str) -> None:
        assert await bench.collect(ROWS, buffer=f"{url}?reference_bytes=90000") == 0
        (tmp_path / "rollouts.jsonl").unlink()
        async with await open_buffer(url) as buffer:
            assert len(await buffer.get(3) or ()) == 3

    with redis_server(tmp_path) as url:
        asyncio.run(main(url))
    with pytest.raises(ConfigError, match="only Redis keeps references"):
        asyncio.run(open_buffer("memory:?reference_bytes=1"))


def test_a_group_that_an_earlier_run_began_is_put_during_the_run(bench: Bench) -> None:
    """Not only at its end, which an endless one has not."""
    assert asyncio.run(bench.collect(ROWS, num_repeats=1)) == 0
    policy = BufferPolicy(batch=3, staleness=0)
    seen = feed(bench, policy, steps=2, num_repeats=2, epochs=None)
    first = {group.key: len(group.rollouts) for group in seen[0][1]}
    assert set(first.values()) == {2} and not any("epoch" in key for key in first)
