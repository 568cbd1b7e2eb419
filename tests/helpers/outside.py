"""A collection of 1,000 rollouts, reached from outside while it runs, as by another process."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from support import Bench, asked, row

from rollout_kit.api.testing import ScriptedModel
from rollout_kit.collecting.live import client, place
from rollout_kit.collecting.live.schema import encode
from rollout_kit.commands.collect_rollouts import collect_through
from rollout_kit.types import JsonObject

NUMBER = 1000

ROWS = [row(str(number)) for number in range(NUMBER)]

KEYS = sorted((str(number), 0) for number in range(NUMBER))


def ask(note: place.Note, asked: Any, timeout_s: float = client.ASK_S) -> JsonObject:
    """The reply of a collection as it travels. Any JSON can be sent."""
    return json.loads(encode(client.ask(note, asked, timeout_s)))


class HeldModel(ScriptedModel):
    """Answers at once, but the second half of the questions only once it is let go."""

    def __init__(self) -> None:
        super().__init__(asked)
        self.let_go = asyncio.Event()

    async def responses(self, params: JsonObject) -> JsonObject:
        if int(asked(params)) >= NUMBER // 2:
            await self.let_go.wait()
        return await super().responses(params)


def collect_outside(
    bench: Bench,
    act: Callable[[place.Note], Any],
    number: int = NUMBER,
    connect: Callable[[place.Note], Any] | None = None,
    **more: Any,
) -> Any:
    """Collect by the command, while `act` reaches it from a thread, as another process does.
    `connect` is called before, between two steps of the event loop."""
    bench.model = HeldModel()
    found: list[Any] = []

    async def through(*arguments: Any) -> int:
        async def watch() -> None:
            while not (notes := list(place.read_notes())):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            try:
                if connect:
                    connect(notes[-1])
                found.append(await asyncio.to_thread(act, notes[-1]))
            except BaseException:  # the run may be paused, and would wait for ever
                await asyncio.to_thread(ask, notes[-1], {"steer": {"stop": "now"}})
                raise
            finally:
                bench.model.let_go.set()

        watching = asyncio.create_task(watch())
        status = await collect_through(*arguments)
        await watching
        return status

    keys: dict[str, Any] = {"through": through, "num_samples_in_parallel": 50, **more}
    asyncio.run(bench.collect(ROWS[:number], **keys))
    return found[0]
