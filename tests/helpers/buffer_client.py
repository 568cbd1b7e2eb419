"""A producer or a consumer of a buffer in a process of its own, to be killed at any time.

`python buffer_client.py produce URL NAME NUMBER`, `consume URL` or `hold URL`.
"""

import asyncio
import sys

from buffers import group

from rollout_kit.rl import Buffer, open_buffer


async def produce(buffer: Buffer, name: str, number: int) -> None:
    """Put the same groups in the same order each time; those that are there already change
    nothing."""
    for each in range(number):
        while not (tickets := await buffer.reserve(1)):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await buffer.put(group(f"{name}:{each}"), ticket=tickets[0])


async def consume(buffer: Buffer) -> None:
    while batch := await buffer.get(2, at_least=1):
        assert len({each.key for each in batch.groups}) == len(batch)
        await buffer.ack(batch.lease)


async def hold(buffer: Buffer) -> None:
    """Train on two groups for ever."""
    batch = await buffer.get(2)
    assert batch
    sys.stdout.write(" ".join(each.key for each in batch.groups) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


async def main(what: str, url: str, *words: str) -> None:
    async with await open_buffer(url) as buffer:
        if what == "produce":
            await produce(buffer, words[0], int(words[1]))
        elif what == "consume":
            await consume(buffer)
        else:
            await hold(buffer)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
