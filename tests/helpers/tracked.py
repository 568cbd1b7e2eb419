"""A collection that a test holds until its tracker has got something."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support import HANG_S, Bench, eventually

from rollout_kit.api.testing import ScriptedModel
from rollout_kit.collecting.trackers import tracking
from rollout_kit.types import JsonObject

NUM_FREE = 6
"""Rollouts that end before the test says so."""


class HeldModel(ScriptedModel):
    """Answers the first requests at once, and the others when `go` is set."""

    def __init__(self) -> None:
        super().__init__(lambda params: params["input"][-1]["content"])
        self.go = threading.Event()

    async def responses(self, params: JsonObject) -> JsonObject:
        if len(self.calls) >= NUM_FREE:
            async with asyncio.timeout(HANG_S):
                while not self.go.is_set():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        return await super().responses(params)


@contextmanager
def meanwhile(model: HeldModel, act: Callable[[], Any]) -> Iterator[None]:
    """Do something in a thread while the collection is held, then let it go."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            failed.append(error)
        finally:
            model.go.set()

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()
    if failed:
        raise failed[0]


def collect_held(
    bench: Bench, rows: list[Any], act: Callable[[], Any], *, wait_s: float = HANG_S, **keys: Any
) -> str:
    """Collect every row; `act` runs after the first ones. Returns what people were told. The run
    waits for its trackers for up to `wait_s`."""
    model = bench.model = HeldModel()
    with pytest.MonkeyPatch.context() as patched, meanwhile(model, act):
        patched.setattr(tracking, "WAIT_S", wait_s)
        status = asyncio.run(bench.collect(rows, num_samples_in_parallel=1, **keys))
    said = bench.out.getvalue()
    assert status == 0, said
    eventually(lambda: len(bench.lines()) == len(rows))
    return said
