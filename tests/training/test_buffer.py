"""The experience buffer: every backend keeps the same rules."""

import asyncio
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import orjson
import pytest
from buffers import KINDS, REDIS, Pass, group, make_buffer, ray_cluster, redis_server
from claims import assert_written
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from starlette.applications import Starlette
from support import HANG_S
from virtual_time import VirtualTime

from rollout_kit.errors import ConfigError, OutputError, PeerError, PeerUnreachable
from rollout_kit.rl import (
    Buffer,
    BufferedGroup,
    BufferPolicy,
    ExperienceBuffer,
    MemoryBuffer,
    open_buffer,
    serve_buffer,
)
from rollout_kit.rl.buffer import redis_streams
from rollout_kit.rl.buffer.owners import LeaseOwner
from rollout_kit.rl.buffer.redis_streams import RedisBuffer
from rollout_kit.rl.buffer.remote import BadMessage, answer
from rollout_kit.serving.sockets import bound_socket, url_of
from rollout_kit.serving.transport.app import served
from rollout_kit.serving.transport.http import HttpClient
from rollout_kit.store.groups.members import HeldLine

VISIBLE_S = RESERVED_S = 1000.0


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not REDIS:
        yield ""
        return
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with ray_cluster() if "ray" in KINDS else nullcontext():
        yield


class Known:
    """What the model knows of a group."""

    def __init__(self, version: int | None, uses: int) -> None:
        self.version, self.uses = version, uses
        self.lease: str | None = None
        self.due = 0.0
        self.deliveries = 0


class Machine(RuleBasedStateMachine):
    """A model beside the buffer: the state of every key, and of every ticket. It does not know in
    which order groups come."""

    kind: str
    folder: Path
    redis_url: str

    @initialize(
        capacity=st.integers(1, 6),
        staleness=st.none() | st.integers(0, 2),
        batch=st.integers(1, 3),
        on_full=st.sampled_from(["block", "reject", "drop_oldest"]),
        consume=st.integers(1, 2),
        max_deliveries=st.integers(1, 3),
    )
    def begin(self, **policy: Any) -> None:
        if policy["staleness"] is None:
            policy["batch"] = None
        else:
            policy["batch"] = max(policy["batch"], policy["consume"])
        self.policy = BufferPolicy(**policy, visibility_s=VISIBLE_S, reserve_s=RESERVED_S)
        self.runner, self.stack = asyncio.Runner(), AsyncExitStack()
        made = make_buffer(self.kind, self.folder, self.redis_url, **self.policy.model_dump())
        self.buffer, self.wait = self.run(self.stack.enter_async_context(made))
        self.clients = [self.buffer]
        self.now = 0.0
        self.version: int | None = None
        self.base = self.acked = self.num_keys = 0
        self.tickets: dict[str, float] = {}
        self.here: dict[str, Known] = {}
        self.left: dict[str, str] = {}
        self.leases: list[str] = ["no lease"]
        self.dropped: Counter[str] = Counter()

    def run(self, work: Any) -> Any:
        async def wait() -> Any:
            return await work

        return self.runner.run(wait())

    def is_stale(self, version: int | None) -> bool:
        bound = self.policy.staleness
        return None not in (bound, version, self.version) and version < self.version - bound  # type: ignore[operator]

    def leave(self, key: str, reason: str) -> None:
        self.here.pop(key, None)
        assert key not in self.left
        self.left[key] = reason
        if reason != "acked":
            self.dropped[reason] += 1

    def room(self) -> int:
        policy = self.policy
        room = policy.capacity - len(self.here) - len(self.tickets)
        if policy.staleness is not None and policy.batch is not None:
            version = self.base if self.version is None else self.version
            allowed = (policy.staleness + version - self.base + 1) * policy.batch
            used = self.acked + sum(each.uses for each in self.here.values())
            room = min(room, (allowed - used) // policy.consume - len(self.tickets))
        return max(0, room)

    @rule(number=st.integers(1, 4), owner=st.sampled_from(["", "a", "ab"]))
    def reserve(self, number: int, owner: str) -> None:
        self.tickets = {each: due for each, due in self.tickets.items() if due > self.now}
        expected = min(number, self.room())
        found = self.run(self.buffer.reserve(number, owner=owner))
        assert len(set(found)) == len(found) == expected
        self.tickets |= dict.fromkeys(found, self.now + RESERVED_S)

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.tickets)))
        self.run(self.buffer.release([ticket]))
        del self.tickets[ticket]

    @rule(owner=st.sampled_from(["a", "ab"]))
    def release_all_of_an_owner(self, owner: str) -> None:
        self.run(self.buffer.release(owner=owner))
        self.tickets = {
            each: due for each, due in self.tickets.items() if not each.startswith(f"{owner}:")
        }

    @rule(data=st.data(), behind=st.integers(0, 3), is_new=st.sampled_from([True, True, False]))
    def put(self, data: st.DataObject, behind: int, is_new: bool) -> None:
        ticket = data.draw(st.sampled_from(["", *sorted(self.tickets)]))
        self.num_keys += is_new
        key = f"k{self.num_keys}" if is_new else f"k{data.draw(st.integers(0, self.num_keys))}"
        version = None if self.version is None else max(0, self.version - behind)
        due = self.tickets.pop(ticket, None)
        made = group(key, version_first=version, version_last=version)
        found = self.run(self.buffer.put(made, ticket=ticket, timeout_s=0))
        if key in self.here or key in self.left:
            assert found == "duplicate"
        elif self.is_stale(version):
            assert found == "stale"
            self.leave(key, "stale")
        else:
            waiting = [each for each, known in self.here.items() if known.lease is None]
            while self.policy.on_full == "drop_oldest" and waiting and self.is_full():
                self.leave(waiting.pop(0), "full")
            if self.is_full():
                assert found == "full"
                self.dropped["full"] += self.policy.on_full != "block"
                if due is not None:
                    self.tickets[ticket] = due
            else:
                assert found == "ok"
                self.here[key] = Known(version, self.policy.consume)

    def is_full(self) -> bool:
        return len(self.here) + len(self.tickets) >= self.policy.capacity

    @rule(number=st.integers(1, 3), at_least=st.integers(1, 3))
    def get(self, number: int, at_least: int) -> None:
        at_least = min(number, at_least, self.policy.most_at_once)
        found = self.run(self.buffer.get(number, at_least=at_least, timeout_s=0))
        free = []
        for key, known in list(self.here.items()):
            if known.lease is None or known.lease == "free" or known.due <= self.now:
                if known.lease is not None and known.deliveries >= self.policy.max_deliveries:
                    self.leave(key, "dead")
                elif self.is_stale(known.version):
                    self.leave(key, "stale")
                else:
                    free.append(key)
        if len(free) < at_least:
            assert found is None
            return
        assert found is not None and found.version == self.version
        keys = [each.key for each in found.groups]
        assert len(set(keys)) == len(keys) == min(number, len(free)) and set(keys) <= set(free)
        again = [key for key in keys if self.here[key].lease is not None]
        waiting = [key for key in free if self.here[key].lease is None]
        assert keys[len(again) :] == waiting[: len(keys) - len(again)]
        assert found.lease not in self.leases
        self.leases.append(found.lease)
        for each in found.groups:
            known = self.here[each.key]
            known.lease, known.due = found.lease, self.now + VISIBLE_S
            known.deliveries += 1
            assert each.rewards == [1.0, 0.0] and each.version_first == known.version

    def held(self, lease: str) -> list[str]:
        return [key for key, known in self.here.items() if known.lease == lease]

    def draw_held(self, data: st.DataObject) -> tuple[str, list[str] | None, list[str]]:
        """A lease, the keys to name, and those that count."""
        lease = data.draw(st.sampled_from(self.leases))
        keys = data.draw(st.none() | st.lists(st.sampled_from([*self.here, "other"]), unique=True))
        held = self.held(lease)
        return lease, keys, held if keys is None else [key for key in held if key in keys]

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        lease, keys, counts = self.draw_held(data)
        found = self.run(self.buffer.ack(lease, keys))
        assert sorted(found) == sorted(counts)
        for key in found:
            known = self.here.pop(key)
            self.acked += 1
            known.uses -= 1
            if known.uses:
                known.lease, known.deliveries = None, 0
                self.here[key] = known
            else:
                self.leave(key, "acked")

    @rule(data=st.data(), requeue=st.booleans())
    def nack(self, data: st.DataObject, requeue: bool) -> None:
        lease, keys, counts = self.draw_held(data)
        found = self.run(self.buffer.nack(lease, keys, requeue=requeue))
        assert sorted(found) == sorted(counts)
        for key in found:
            if requeue:
                self.here[key].lease = "free"
            else:
                self.leave(key, "nacked")

    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from([*self.leases, *sorted(self.tickets)]))
        found = self.run(self.buffer.extend(lease))
        if lease in self.tickets:
            self.tickets[lease] = self.now + RESERVED_S
            assert found == 1
        else:
            assert found == len(self.held(lease))
            for key in self.held(lease):
                self.here[key].due = self.now + VISIBLE_S

    @rule(step=st.sampled_from([0, 1, 1, 1, 2, -1]))
    def set_version(self, step: int) -> None:
        version = 3 if self.version is None else max(0, self.version + step)
        self.run(self.buffer.set_version(version))
        if self.version is None or version < self.version:
            self.base, self.acked = version, 0
        self.version = version

    @rule(seconds=st.sampled_from([400.0, 1100.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.run(self.wait(seconds))
        self.now += seconds

    @rule()
    def open_again(self) -> None:
        """What a spool holds is there again; leases and tickets are not. In Redis another client
        goes on, which has missed what this one did, or has just come."""
        if self.kind == "redis":
            self.clients.append(self.clients.pop(0))
            if len(self.clients) < 3:
                name = self.buffer._stem[1:-1].partition(":")[2]
                more = self.run(RedisBuffer.open(self.redis_url, name, {}))
                self.stack.push_async_callback(more.close)
                self.clients.append(more)
            self.buffer = self.clients[-1]
        if self.kind != "spool":
            return
        old = self.buffer
        self.run(old.close())
        self.buffer = MemoryBuffer(self.policy, spool=old._spool.path, clock=old.clock)
        self.stack.push_async_callback(self.buffer.close)
        self.tickets, held = {}, [key for key, each in self.here.items() if each.lease is not None]
        order = [*sorted(held, key=list(old.shelf.held).index)]
        order += [key for key in self.here if key not in held]
        self.here = {key: self.here[key] for key in order}
        for known in self.here.values():
            known.lease, known.deliveries = None, 0

    @invariant()
    def agrees(self) -> None:
        """Nothing is lost, nothing leaves twice, no bound is exceeded."""
        if not hasattr(self, "buffer"):
            return
        stats = self.run(self.buffer.stats())
        assert stats["waiting"] + stats["leased"] == len(self.here)
        assert stats["waiting"] == sum(each.lease is None for each in self.here.values())
        assert stats["waiting"] + stats["leased"] <= self.policy.capacity
        assert stats["dropped"] == +self.dropped
        settled = self.run(self.buffer.list_settled())
        assert {each.key: each.reason for each in settled} == self.left
        assert len(settled) == len(self.left)
        assert stats["version"] == self.version

    async def check_contents(self) -> None:
        """Redis holds those of the groups that are there, and no others."""
        for client in [*self.clients, *self.clients]:
            await client.stats()
        buffer = self.buffer
        assert await buffer._client.hlen(buffer._groups) == len(self.here)

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            if self.kind == "redis":
                self.run(self.check_contents())
            self.runner.run(self.stack.aclose())
            self.runner.close()


@pytest.mark.parametrize("kind", KINDS)
def test_every_backend_agrees_with_a_model(
    kind: str, tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_streams, "MIN_LOG", 5)

    class Mine(Machine):
        pass

    Mine.kind, Mine.folder, Mine.redis_url = kind, tmp_path, redis_url
    examples = {"memory": 60, "spool": 40, "redis": 40}.get(kind, 15)
    run_state_machine_as_test(
        Mine, settings=settings(max_examples=examples, stateful_step_count=40, deadline=None)
    )


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def run_with(kind: str, folder: Path, redis_url: str, work: Any, **policy: Any) -> None:
    """Run `work(buffer, wait)` with a new buffer."""

    async def main() -> None:
        async with make_buffer(kind, folder, redis_url, **policy) as (buffer, wait):
            await work(buffer, wait)

    asyncio.run(main())


def test_calls_wait_for_room_and_for_groups(kind: str, tmp_path: Path, redis_url: str) -> None:
    async def work(buffer: Buffer, wait: Pass) -> None:
        getting = asyncio.create_task(buffer.get(2))
        assert await buffer.put(group("a")) == "ok"
        assert await buffer.put(group("b")) == "ok"
        batch = await getting
        assert batch is not None and [each.key for each in batch.groups] == ["a", "b"]
        putting = asyncio.create_task(buffer.put(group("c")))
        assert await buffer.put(group("d"), timeout_s=0) == "full"
        assert await buffer.ack(batch.lease) == ["a", "b"]
        assert await putting == "ok"
        assert await buffer.get(2, timeout_s=0) is None
        await buffer.finish()
        last = await buffer.get(2)
        assert last is not None and [each.key for each in last.groups] == ["c"]
        assert await buffer.reserve() == []
        await buffer.ack(last.lease)
        assert await buffer.get(1) is None

    run_with(kind, tmp_path, redis_url, work, capacity=2)


def test_groups_come_back_as_they_were_put(kind: str, tmp_path: Path, redis_url: str) -> None:
    async def work(buffer: Buffer, wait: Pass) -> None:
        lines = [{"reward": 0.5, "response": {"output": []}, "text": "é\n"}, {"reward": None}]
        made = BufferedGroup("task:0", lines, [1.5, None], 3, 4)
        await buffer.put(made)
        batch = await buffer.get(1)
        assert batch is not None and batch.groups == [made]

    run_with(kind, tmp_path, redis_url, work)


def test_the_figures_of_a_step_are_told(kind: str, tmp_path: Path, redis_url: str) -> None:
    async def work(buffer: Buffer, wait: Pass) -> None:
        assert (await buffer.stats())["figures"] == {}
        await buffer.set_version(1, {"kl/mean": 0.25, "policy/entropy": math.nan})
        figures = (await buffer.stats())["figures"]
        assert figures["kl/mean"] == 0.25
        assert (odd := figures["policy/entropy"]) is None or math.isnan(odd)
        await buffer.set_version(2)
        assert (await buffer.stats())["figures"] == {}

    run_with(kind, tmp_path, redis_url, work)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("zero_variance", group("a", (1.0, 1.0))),
        ("zero_variance", BufferedGroup("a", [{"reward": 1.0}, {}])),
        ("truncated", BufferedGroup("a", [{"reward": 1, "response": {"status": "incomplete"}}])),
        ("non_finite", group("a", (float("nan"), 1.0))),
        (
            "non_finite",
            BufferedGroup("a", [{"response": {"output": [{"generation_log_probs": [None]}]}}]),
        ),
    ],
)
def test_a_filter_drops_a_group_and_counts_it(
    name: str, made: BufferedGroup, tmp_path: Path, redis_url: str
) -> None:
    async def work(buffer: Buffer, wait: Pass) -> None:
        [ticket] = await buffer.reserve()
        assert await buffer.put(made, ticket=ticket) == name
        assert await buffer.put(made) == "duplicate"
        assert await buffer.put(group("b")) == "ok"
        stats = await buffer.stats()
        assert stats["dropped"] == {name: 1} and stats["waiting"] == 1 and not stats["reserved"]
        assert [each.reason for each in await buffer.list_settled()] == [name]

    for kind in ("memory", *(["redis"] if redis_url else [])):
        run_with(kind, tmp_path, redis_url, work, filters=[name])


def test_bytes_are_bounded(kind: str, tmp_path: Path, redis_url: str) -> None:
    size = len(group("k1").encode())

    async def work(buffer: Buffer, wait: Pass) -> None:
        found = [await buffer.put(group(f"k{each}"), timeout_s=0) for each in range(3)]
        assert found == ["ok", "ok", "full"]
        assert await buffer.put(group("large" * 100)) == "too_large"
        assert (await buffer.stats())["bytes"] == 2 * size

    run_with(kind, tmp_path, redis_url, work, capacity_bytes=2 * size + 10)


def test_any_language_can_speak_to_it_over_http(tmp_path: Path) -> None:
    async def main() -> None:
        memory = MemoryBuffer(BufferPolicy(batch=1, staleness=0))
        client = HttpClient()

        async def ask(route: str, body: str) -> Any:
            reply = await client.post(f"{url}/{route}", body.encode())
            return reply.status, json.loads(reply.raw)

        async with serve_buffer(memory) as url:
            put = '{"group": {"key": "a", "rollouts": [{"reward": 1}], "version_first": 0}}'
            assert await ask("put", put) == (200, {"result": "ok"})
            assert await ask("set_version", '{"version": 0}') == (200, {})
            status, found = await ask("get", '{"number": 1, "wait_s": 20}')
            assert found["batch"]["groups"][0]["rewards"] == [1]
            assert_written("docs/rl.md", '{"batch"', found)
            lease = found["batch"]["lease"]
            assert await ask("ack", json.dumps({"lease": lease})) == (200, {"keys": ["a"]})
            assert await ask("set_version", '{"version": 1}') == (200, {})
            assert (await ask("stats", "{}"))[1]["acked"] == 1
            for route, body in [
                ("put", "{}"),
                ("put", '{"group": {"key": "b", "rollouts": [1]}}'),
                ("put", '{"group": {"key": "b", "rollouts": [{}], "rewards": [1, 2]}}'),
                ("put", '{"group": {"key": "b", "rollouts": [{}], "version_first": 1e30}}'),
                ("set_version", f'{{"version": {10**30}}}'),
                ("get", '{"number": -1}'),
                ("get", '{"numbr": 1}'),
                ("got", "{}"),
                ("ack", "["),
            ]:
                status, found = await ask(route, body)
                assert status == 422 and found["error"]["message"].startswith(f"/{route}: ")
            assert (await ask("stats", "{}"))[1]["version"] == 1
        await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("more", [{}, {"rollouts": [{"reward": 1}]}])
def test_a_client_cannot_have_a_file_read(
    more: dict[str, Any], tmp_path: Path, redis_url: str
) -> None:
    """Neither where it puts a group nor where the group is handed out."""
    path, secret = tmp_path / "secret.json", b'{"reward": 1, "secret": "x"}'
    path.write_bytes(secret)
    place = HeldLine.of(path, 0, secret)
    asked = orjson.dumps({"group": {"key": "a", "places": [list(place)], **more}})

    async def main(kind: str) -> None:
        async with make_buffer(kind, tmp_path, redis_url) as (buffer, _):
            if not more:
                with pytest.raises(BadMessage, match="a group has a text `key` and a list `roll"):
                    await answer(buffer, "put", asked)
                return
            await answer(buffer, "put", asked)
            batch = await buffer.get(1)
            assert batch is not None and batch.groups[0].rollouts == [{"reward": 1}]

    for kind in ("memory", *(["redis"] if redis_url else [])):
        asyncio.run(main(kind))


def test_a_consumer_that_leaves_takes_no_batch_with_it() -> None:
    async def main() -> None:
        memory = MemoryBuffer()
        async with serve_buffer(memory) as url, await open_buffer(url) as client:
            getting = asyncio.create_task(client.get(1))
            while not memory._waiting:  # noqa: ASYNC110
                await asyncio.sleep(0)
            getting.cancel()
            await asyncio.gather(getting, return_exceptions=True)
            while memory._waiting:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await memory.put(group("a"))
            assert (await memory.stats())["leased"] == 0

    asyncio.run(main())


def test_a_spool_survives_a_torn_line_and_has_one_owner(tmp_path: Path) -> None:
    path = tmp_path / "spool"

    async def main() -> None:
        url = f"memory:?spool={path}&batch=2&staleness=0"
        first = await open_buffer(url)
        await first.put(group("a"))
        await first.put(group("b"))
        with pytest.raises(OutputError, match="another process has this spool open"):
            await open_buffer(url)
        await first.close()
        path.write_bytes(path.read_bytes()[:-9])
        async with await open_buffer(url) as again:
            assert await again.put(group("a")) == "duplicate"
            assert await again.put(group("b")) == "ok"

    asyncio.run(main())


def test_a_group_that_a_full_disk_did_not_take_is_not_confirmed_by_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = tmp_path / "spool", os.write

    def write_half(file: int, raw: bytes) -> int:
        return write(file, raw[: len(raw) // 2])

    async def main() -> None:
        async with await open_buffer(f"memory:?spool={path}") as buffer:
            with monkeypatch.context() as patch:
                patch.setattr(os, "write", write_half)
                with pytest.raises(OutputError, match="the disk is full"):
                    await buffer.put(group("a"))
            assert await buffer.put(group("a")) == "duplicate"
            await buffer.put(group("b"))
        async with await open_buffer(f"memory:?spool={path}") as again:
            assert [each.key for each in (await again.get(2)).groups] == ["a", "b"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("kafka://x", "buffer=kafka://x: there are memory, "),
        ("memory:?capacty=3", "buffer=memory: capacty: "),
        ("memory:?capacity=0", "buffer=memory: capacity: "),
        ("memory:?staleness=1", "^buffer=memory: staleness: add batch"),
        ("memory:?batch=4", "^buffer=memory: batch: add staleness, how many steps old"),
        ("memory:?over_provision=0.5", "^buffer=memory: over_provision: add batch and"),
        ("memory:?batch=1&staleness=0&consume=2", "^buffer=memory: consume: a step of 1 leaves no"),
        ("memory:batch=4&staleness=0", "buffer=memory:batch=4.*: settings follow a [?], as in mem"),
        ("memory:?batch=4&batch=5&staleness=0", "buffer=memory: batch is given more than once"),
        ("memory:?batch&staleness=0", "buffer=memory: batch: expected an int"),
        ("redis://localhost:1/0/x?order=random", "redis:.*order=random"),
        ("memory:?filters=odd", "buffer=memory: filters"),
    ],
)
def test_a_url_that_is_wrong_is_refused_in_a_line(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        asyncio.run(open_buffer(url))


def test_a_server_that_is_no_buffer_is_told() -> None:
    async def main() -> None:
        sock = bound_socket("127.0.0.1", 0)
        async with served(Starlette(), sock):
            with pytest.raises(PeerError, match="/policy: no buffer answers here"):
                await open_buffer(url_of(sock))

    asyncio.run(main())


def test_a_buffer_keeps_the_policy_of_its_first_opener(redis_url: str) -> None:
    async def main(url: str) -> None:
        async with await open_buffer(f"{url}?batch=4&staleness=1") as first:
            async with await open_buffer(url) as other:
                assert other.policy == first.policy
            with pytest.raises(ConfigError, match="exists with batch=4, not 8"):
                await open_buffer(f"{url}?batch=8&staleness=1")
            await first.clear()  # type: ignore[attr-defined]

    async def over_http() -> None:
        async with serve_buffer(MemoryBuffer(BufferPolicy(batch=4, staleness=1))) as url:
            with pytest.raises(ConfigError, match="exists with batch=4, not 8"):
                await open_buffer(f"{url}?batch=8&staleness=1")

    asyncio.run(over_http())
    if redis_url:
        asyncio.run(main(redis_url))


@pytest.mark.skipif(not REDIS, reason="needs redis-server and the package redis")
def test_a_buffer_that_redis_has_lost_can_be_opened_again(redis_url: str) -> None:
    """What a trainer says to it meanwhile leaves nothing there."""

    async def main() -> None:
        lost = await open_buffer(f"{redis_url}?capacity=3")
        await lost.put(group("a"))
        await lost.clear()  # type: ignore[attr-defined]
        for call in (
            lambda: lost.set_version(3),
            lambda: lost.finish(),
            lambda: lost.put(group("b")),
            lambda: lost.reserve(),
            lambda: lost.get(1),
            lambda: lost.ack("lease"),
            lambda: lost.extend("lease"),
            lambda: lost.list_settled(),
            lambda: lost.stats(),
        ):
            with pytest.raises(PeerUnreachable, match="is not in Redis any more") as caught:
                await call()
            assert not caught.value.retryable
        async with lost, await open_buffer(f"{redis_url}?capacity=2") as again:
            assert await again.put(group("a")) == "ok" and await again.reserve(9)
            stats = await again.stats()
            assert (stats["waiting"], stats["reserved"], stats["version"]) == (1, 1, None)
            await again.clear()  # type: ignore[attr-defined]

    asyncio.run(main())


def test_a_batch_that_never_comes_is_an_error() -> None:
    """The buffer lets eight groups wait until the trainer has used some."""

    async def main() -> None:
        memory = MemoryBuffer(BufferPolicy(batch=4, staleness=1))
        async with serve_buffer(memory) as url, await open_buffer(url) as client:
            for buffer in (memory, client):
                with pytest.raises(ConfigError, match=r"get\(32\): .*batch=4.* at most 8 wait"):
                    await buffer.get(32)
            with pytest.raises(PeerError, match=r"/get: get\(32\)"):
                await client._ask("get", number=32)
            await memory.put(group("a"))
            found = await client.get(32, at_least=1)
            assert found and len(found) == 1
        with pytest.raises(ConfigError, match="at most 2 wait"):
            await MemoryBuffer(BufferPolicy(capacity=2)).get(3)

    asyncio.run(main())


def test_each_order_hands_out_its_own() -> None:
    async def main(order: str) -> list[str]:
        buffer = MemoryBuffer(BufferPolicy.parse({"order": order}))
        for key, version in [("a", 1), ("b", 3), ("c", 2)]:
            await buffer.put(group(key, version_first=version))
        batch = await buffer.get(3)
        assert batch is not None
        return [each.key for each in batch.groups]

    assert asyncio.run(main("fifo")) == ["a", "b", "c"]
    assert asyncio.run(main("freshest")) == ["b", "c", "a"]
    assert sorted(asyncio.run(main("random"))) == ["a", "b", "c"]


@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.chaos)])
@pytest.mark.parametrize("kind", ["http", *KINDS[3:]])
def test_killed_producers_and_consumers_lose_and_repeat_nothing(
    kind: str, kills: int, tmp_path: Path, redis_url: str
) -> None:
    """Each group is acknowledged once, whatever is killed; there is never more than fits."""
    policy = {"capacity": 8, "batch": 4, "staleness": 1000, "visibility_s": 0.3, "reserve_s": 0.3}
    policy["max_deliveries"] = 1000
    number = 20 * kills
    roles = [
        ("produce", "p", str(number)),
        ("produce", "q", str(number)),
        ("consume",),
        ("consume",),
    ]

    async def main() -> None:
        async with AsyncExitStack() as stack:
            if kind == "http":
                buffer: Buffer = MemoryBuffer(BufferPolicy.parse(policy))
                url = await stack.enter_async_context(serve_buffer(buffer))
            else:
                url = redis_url if kind == "redis" else f"ray://{gcs_address()}/killed-{kills}"
                buffer = await open_buffer(url, **policy)
                stack.push_async_callback(buffer.close)
                stack.push_async_callback(buffer.clear)  # type: ignore[attr-defined]
            running = [start(role, url) for role in roles]
            try:
                for kill in range(1, kills + 1):
                    await reach(buffer, 2 * number * kill // (kills + 1))
                    which = kill % len(roles)
                    running[which].kill()
                    running[which].wait()
                    running[which] = start(roles[which], url)
                await reach(buffer, 2 * number)
            finally:
                for process in running:
                    process.kill()
                    process.wait()
            settled = await buffer.list_settled(number=10 * number)
        assert Counter(each.reason for each in settled) == {"acked": 2 * number}
        assert {each.key for each in settled} == {f"{n}:{i}" for n in "pq" for i in range(number)}

    def gcs_address() -> str:
        import ray

        return ray.get_runtime_context().gcs_address

    def start(role: tuple[str, ...], url: str) -> "subprocess.Popen[bytes]":
        script = Path(__file__).parents[1] / "helpers/buffer_client.py"
        return subprocess.Popen([sys.executable, str(script), role[0], url, *role[1:]])

    async def reach(buffer: Buffer, number: int) -> None:
        give_up = time.monotonic() + HANG_S
        while (stats := await buffer.stats())["acked"] < number:
            assert stats["waiting"] + stats["leased"] + stats["reserved"] <= policy["capacity"]
            assert time.monotonic() < give_up, stats
            await asyncio.sleep(0.01)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["http", *KINDS[3:]])
def test_a_consumer_that_is_killed_and_started_again_goes_on_with_its_groups(
    kind: str, tmp_path: Path, redis_url: str
) -> None:
    """Ten times in a row, though leases last for 600 s and groups are handed out five times at
    most. Groups of a consumer that lives stay with it."""
    with ExitStack() as left:

        def start(url: str) -> "subprocess.Popen[str]":
            script = Path(__file__).parents[1] / "helpers/buffer_client.py"
            words = [sys.executable, str(script), "hold", url]
            process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            left.enter_context(process)
            left.callback(process.kill)
            return process

        async def read(process: "subprocess.Popen[str]") -> str:
            assert process.stdout
            async with asyncio.timeout(HANG_S):
                return await asyncio.to_thread(process.stdout.readline)

        async def main() -> None:
            async with AsyncExitStack() as stack:
                if kind == "http":
                    buffer: Buffer = MemoryBuffer()
                    url = await stack.enter_async_context(serve_buffer(buffer))
                else:
                    url = redis_url if kind == "redis" else "ray:///killed-trainer"
                    buffer = await open_buffer(url)
                    stack.push_async_callback(buffer.close)
                    stack.push_async_callback(buffer.clear)  # type: ignore[attr-defined]
                for key in "abcd":
                    await buffer.put(group(key))
                trainer, other = start(url), None
                assert await read(trainer) == "a b\n"
                other = start(url)
                assert await read(other) == "c d\n"
                for _ in range(10):
                    assert await buffer.get(1, timeout_s=0) is None  # both live
                    trainer.kill()  # its entry in the table of processes stays
                    trainer = start(url)
                    assert await read(trainer) == "a b\n"
                stats = await buffer.stats()
                assert sorted(stats["owners"].values()) == [2, 2] and not stats["dropped"]

        asyncio.run(main())


def test_the_groups_of_an_owner_come_back_as_if_they_had_not_been_handed_out(
    kind: str, tmp_path: Path, redis_url: str
) -> None:
    async def work(buffer: Buffer, wait: Pass) -> None:
        await buffer.put(group("a"))
        await buffer.put(group("b"))
        for _ in range(7):
            mine = await buffer.get(1, owner="me")
            other = await buffer.get(1, owner="me:2")
            assert mine and other and await buffer.get(1, timeout_s=0) is None
            assert (await buffer.stats())["owners"] == {"me": 1, "me:2": 1}
            await buffer.release(owner="me")
            assert await buffer.extend(other.lease) == 1
            assert await buffer.ack(mine.lease) == []
            again = await buffer.get(2, at_least=1, owner="me")
            assert again and [each.key for each in again.groups] == [mine.groups[0].key]
            await buffer.release(owner="me")
            await buffer.release(owner="me:2")

    run_with(kind, tmp_path, redis_url, work)


def test_a_named_consumer_takes_over_what_it_held_on_another_machine() -> None:
    async def main() -> None:
        memory = MemoryBuffer()
        async with serve_buffer(memory) as url:
            for key in "ab":
                await memory.put(group(key))
            before = LeaseOwner("trainer", "a-host/boot/1", 7, "99", "1")
            assert await memory.get(2, owner=str(before))
            async with await open_buffer(url, owner="another") as client:
                assert await client.get(1, timeout_s=0) is None
            async with await open_buffer(url, owner="trainer") as client:
                found = await client.get(2, timeout_s=0)
            assert found and [each.key for each in found.groups] == ["a", "b"]
            [now] = (await memory.stats())["owners"]
            assert LeaseOwner.parse(now) == client.owner

    asyncio.run(main())


def test_a_consumer_that_ends_with_an_error_gives_its_groups_back() -> None:
    async def main() -> None:
        memory = MemoryBuffer()
        async with serve_buffer(memory) as url:
            await memory.put(group("a"))
            with pytest.raises(ZeroDivisionError):
                async with await open_buffer(url) as client:
                    assert await client.get(1)
                    raise ZeroDivisionError
            assert await memory.get(1, timeout_s=0)

    asyncio.run(main())


def test_a_consumer_that_waits_is_told_who_holds_the_groups(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        memory = MemoryBuffer()
        await memory.put(group("a"))
        await memory.get(1, owner=str(LeaseOwner("", "a-host/boot/1", 7, "99", "1")))
        assert await memory.get(1, timeout_s=12) is None

    VirtualTime(monkeypatch).run(main())
    [said] = [each.getMessage() for each in caplog.records if "waiting" in each.getMessage()][:1]
    assert "1 by process 7 of a-host are being used" in said and "600 s" in said


def test_the_buffer_of_the_documents() -> None:
    buffer = ExperienceBuffer(max_size=2)
    for number in range(3):
        buffer.add([number], [number, 9], float(number), [-0.1], [-0.2])
    assert [each["reward"] for each in buffer.buffer] == [1.0, 2.0]
    drawn = buffer.sample(50)
    assert len(drawn) == 50 and {each["reward"] for each in drawn} == {1.0, 2.0}
    names = ["prompt_ids", "response_ids", "reward", "old_log_prob", "ref_log_prob"]
    assert list(drawn[0]) == names
    buffer.clear()
    assert len(buffer) == 0
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(1)
