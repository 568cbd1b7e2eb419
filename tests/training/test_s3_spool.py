"""A buffer whose spool is in a bucket: a real S3 server, kills, and two processes at once."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from buffers import group
from s3_server import BUCKET, serve_s3

from rollout_kit.errors import ConfigError, OutputError
from rollout_kit.rl import open_buffer
from rollout_kit.rl.bucket import BucketError, S3Bucket
from rollout_kit.rl.buffer import bucket_spool

numbers = count()


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    with serve_s3() as client:
        yield client


@pytest.fixture
def spool(s3: Any) -> str:
    return f"s3://{BUCKET}/spool_{next(numbers)}"


def open_it(spool: str) -> Any:
    return open_buffer(f"memory:?spool={spool}&consume=2")


def count_objects(s3: Any, spool: str) -> int:
    path = spool.removeprefix(f"s3://{BUCKET}/")
    return s3.list_objects_v2(Bucket=BUCKET, Prefix=f"{path}/")["KeyCount"]


def test_a_buffer_continues_on_another_machine(s3: Any, spool: str) -> None:
    async def main() -> None:
        first = await open_it(spool)
        for key in "abcd":
            assert await first.put(group(key)) == "ok"
        await first.set_version(4)
        for _ in range(3):
            batch = await first.get(1)
            assert await first.ack(batch.lease) == [batch.groups[0].key]
        handed_out = await first.get(1)
        second = await open_it(spool)  # the first machine is gone
        found = await second.stats()
        assert (found["put"], found["acked"], found["version"]) == (4, 3, 4)
        assert (found["waiting"], found["leased"]) == (4, 0)
        assert await second.put(group("a")) == "duplicate"
        batch = await second.get(4)
        assert handed_out.groups[0].key in {each.key for each in batch.groups}
        assert batch.groups[0].rollouts == group("x").rollouts
        assert len(await second.ack(batch.lease)) == 4
        third = await open_it(spool)  # three groups were used twice, one once
        assert [each.key for each in (await third.get(4, at_least=1)).groups] == ["d"]

    asyncio.run(main())


def test_the_process_that_opened_it_last_writes_and_the_other_one_fails(spool: str) -> None:
    async def main() -> None:
        first = await open_it(spool)
        await first.put(group("a"))
        second = await open_it(spool)
        await second.put(group("b"))
        for _ in range(2):
            with pytest.raises(OutputError, match="another process has opened this spool"):
                await first.put(group("c"))
        await second.put(group("d"))
        third = await open_it(spool)
        assert {each.key for each in (await third.get(3)).groups} == {"a", "b", "d"}

    asyncio.run(main())


KILLED_BUFFER = """
import asyncio, os, signal, sys
from rollout_kit.rl import open_buffer, BufferedGroup
from rollout_kit.rl.bucket import S3Bucket
create, left = S3Bucket.create, int(sys.argv[2])
def create_or_die(self, name, raw):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return create(self, name, raw)
async def main():
    buffer = await open_buffer(f"memory:?spool={sys.argv[1]}")
    S3Bucket.create = create_or_die
    for key in "abcd":
        await buffer.put(BufferedGroup(key, [{"reward": 1.0}]))
        print(f"put {key}", flush=True)
    batch = await buffer.get(2)
    await buffer.ack(batch.lease)
    print("acked", flush=True)
asyncio.run(main())
"""


@pytest.mark.parametrize("kill_at", [1, 3, 5, 6])
def test_what_was_confirmed_before_a_kill_is_there_after_it(spool: str, kill_at: int) -> None:
    command = [sys.executable, "-c", KILLED_BUFFER, spool, str(kill_at)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    put = [line[-1] for line in ended.stdout.splitlines() if line.startswith("put")]
    assert len(put) == min(kill_at - 1, 4)

    async def main() -> None:
        again = await open_buffer(f"memory:?spool={spool}")
        found = await again.stats()
        num_acked = max(0, kill_at - 5)  # each group is one write
        assert (found["put"], found["acked"]) == (len(put), num_acked)
        assert found["waiting"] == len(put) - num_acked

    asyncio.run(main())


def test_old_objects_are_removed(s3: Any, spool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_spool, "MAX_OBJECTS", 5)

    async def main() -> None:
        buffer = await open_it(spool)
        for number in range(12):
            await buffer.put(group(f"{number}"))
            assert count_objects(s3, spool) <= 6
        again = await open_it(spool)
        assert count_objects(s3, spool) == 1
        assert [each.key for each in (await again.get(12)).groups] == [*map(str, range(12))]

    asyncio.run(main())


@pytest.mark.parametrize("is_written", [True, False])
def test_a_write_that_fails_is_made_good_by_the_next_one(
    spool: str, is_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the bucket has it and only the reply was lost."""
    create = S3Bucket.create

    def lose_reply(bucket: S3Bucket, name: str, raw: bytes) -> bool:
        if is_written:
            create(bucket, name, raw)
        raise BucketError(f"{bucket.url} cannot be written: connection lost")

    async def main() -> None:
        buffer = await open_it(spool)
        with monkeypatch.context() as patch:
            patch.setattr(S3Bucket, "create", lose_reply)
            with pytest.raises(OutputError, match="cannot be written: connection lost"):
                await buffer.put(group("a"))
            with pytest.raises(OutputError, match="connection lost"):
                await buffer.put(group("a"))  # and not "duplicate"
        assert await buffer.put(group("a")) == "duplicate"
        assert await buffer.put(group("b")) == "ok"
        again = await open_it(spool)
        assert {each.key for each in (await again.get(2)).groups} == {"a", "b"}

    asyncio.run(main())


def test_a_server_that_replaces_objects_is_refused() -> None:
    ignores = pytest.raises(ConfigError, match="this server ignores If-None-Match")
    with serve_s3(is_safe=False), ignores:
        asyncio.run(open_it(f"s3://{BUCKET}/spool"))


def test_a_bucket_is_no_buffer() -> None:
    with pytest.raises(ConfigError, match=r"buffer=s3://b/run\?batch=3: .*memory:\?spool=s3://b/r"):
        asyncio.run(open_buffer("s3://b/run?batch=3"))
    with pytest.raises(ConfigError, match="spool=gs://b/run: this is a folder, or s3://bucket"):
        asyncio.run(open_buffer("memory:?spool=gs://b/run"))
