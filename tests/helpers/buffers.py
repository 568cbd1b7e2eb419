"""Buffers of every kind for tests, each with a clock that the test moves."""

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest

from rollout_kit.rl import (
    Buffer,
    BufferedGroup,
    BufferPolicy,
    MemoryBuffer,
    open_buffer,
    serve_buffer,
)
from rollout_kit.rl.buffer.ray_actor import Keeper, RayBuffer
from rollout_kit.rl.buffer.redis_streams import RedisBuffer

REDIS = shutil.which("redis-server") if find_spec("redis") else None

KINDS = [
    "memory",
    "spool",
    "http",
    pytest.param(
        "redis",
        marks=pytest.mark.skipif(not REDIS, reason="needs redis-server and the package redis"),
    ),
    *(["ray"] if find_spec("ray") else []),
]
"""`make test-ray` has Ray."""


RAY_AUTH = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "ab" * 32}
"""On Linux Ray listens on all interfaces."""


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """A Redis server of our own, as a URL."""
    sock = folder / "redis.sock"
    words = ["--port", "0", "--unixsocket", str(sock), "--save", "", "--daemonize", "no"]
    process = subprocess.Popen([str(REDIS), *words], cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        while "ready to accept" not in (line := process.stdout.readline()).lower():
            assert line, "redis-server has ended"
        yield f"unix://{sock}"
    finally:
        process.kill()
        process.communicate()


@contextmanager
def ray_cluster() -> Iterator[None]:
    """A Ray cluster of this machine alone."""
    here = Path(__file__).parent
    os.environ["PYTHONPATH"] = f"{here.parent / 'training'}{os.pathsep}{here}"  # for the actor
    os.environ |= RAY_AUTH
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        yield
    finally:
        ray.shutdown()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class TimedKeeper(Keeper):
    """An actor that is used again, as starting one takes long."""

    async def begin(self, policy: dict[str, Any]) -> None:
        self._clock = Clock()
        self._buffer = MemoryBuffer(BufferPolicy.parse(policy), clock=self._clock)

    async def wait(self, seconds: float) -> None:
        self._clock.now += seconds


Pass = Callable[[float], Any]
"""Lets so many seconds pass."""


@asynccontextmanager
async def make_buffer(
    kind: str, folder: Path, redis_url: str = "", **policy: Any
) -> AsyncIterator[tuple[Buffer, Pass]]:
    """An empty buffer, and what moves its clock."""
    clock = Clock()

    async def wait(seconds: float) -> None:
        clock.now += seconds

    if kind == "redis":
        name = uuid4().hex
        found = await RedisBuffer.open(redis_url, name, policy)
        try:
            yield found, lambda seconds: _age(found, seconds)
        finally:
            await found.clear()
            await found.close()
    elif kind == "ray":
        import ray

        actor = (
            ray.remote(TimedKeeper)
            .options(name="timed", get_if_exists=True, lifetime="detached", num_cpus=0)
            .remote({})
        )
        await actor.begin.remote(policy)
        buffer = RayBuffer(ray, actor)
        await buffer.connect(policy, "ray")
        yield buffer, lambda seconds: actor.wait.remote(seconds)
    else:
        spool = folder / f"{uuid4().hex}.spool" if kind == "spool" else None
        async with MemoryBuffer(BufferPolicy.parse(policy), spool=spool, clock=clock) as memory:
            if kind != "http":
                yield memory, wait
                return
            async with serve_buffer(memory) as url, await open_buffer(url) as client:
                yield client, wait


async def _age(buffer: RedisBuffer, seconds: float) -> None:
    """Make the leases and tickets of a buffer in Redis older: no later entry has an earlier time
    than one that has this effect on nothing."""
    await buffer._look()
    place = f"{int((buffer._now + seconds) * 1000)}-0"
    raw = orjson.dumps(["aged", "extend", {"lease": "no lease"}])
    await buffer._client.xadd(buffer._stream, {b"": raw}, id=place)


def group(key: str, rewards: tuple[float, ...] = (1.0, 0.0), **more: Any) -> BufferedGroup:
    lines = [{"reward": reward, "response": {"output": []}} for reward in rewards]
    return BufferedGroup(key, lines, **more)
