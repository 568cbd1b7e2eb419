"""A trainer that uses a number of batches, each for a step."""

import asyncio
from typing import Any

from support import Bench

from rollout_kit.rl import BufferPolicy, MemoryBuffer, serve_buffer


def use_groups(
    bench: Bench, policy: BufferPolicy, steps: int, *rows: Any, **keys: Any
) -> tuple[int, list[Any]]:
    """Collect until the trainer has used so many batches; the exit status, and its groups."""
    seen: list[Any] = []

    async def train(buffer: MemoryBuffer) -> None:
        first = (await buffer.stats())["version"] or 0
        for step in range(steps):
            found = await buffer.get(policy.batch)
            assert found is not None
            seen.extend(found.groups)
            await buffer.ack(found.lease)
            await buffer.set_version(first + step + 1)
        await buffer.finish()

    async def main() -> int:
        buffer = MemoryBuffer(policy)
        async with serve_buffer(buffer) as url:
            training = asyncio.create_task(train(buffer))
            status = await bench.collect(*rows, buffer=url, **keys)
            await training
        return status

    return asyncio.run(main()), seen
