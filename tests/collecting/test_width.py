"""How fast a run becomes as wide as its model allows, and what that costs in refusals: whole runs
under a virtual clock."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hosted import through_openai_model
from support import Desk
from virtual_time import VirtualTime

from rollout_kit.api.testing import making
from rollout_kit.serving import registry
from rollout_kit.serving.resources_server import ResourcesServer, tool
from rollout_kit.types import JsonObject

SimulatedModel = registry.load("responses_api_models", "simulated_model")

LOOK_S = 0.25


class Looks(ResourcesServer):
    reverify = "stateless"

    @tool
    async def look(self) -> str:
        """Look."""
        return "seen"

    async def verify(self, task: JsonObject, response: JsonObject) -> float:
        return 1.0


class Wide:
    """A collection whose requests in flight are looked at all the time."""

    def __init__(self, desk: Desk, time: VirtualTime) -> None:
        self.desk, self.time = desk, time
        self.seen: list[tuple[float, int]] = []
        desk.verifier = making(Looks)

    def collect(
        self, rollouts: int, parallel: str, *, hosted: JsonObject | None = None, **model: Any
    ) -> JsonObject:
        """The metrics of a run; `hosted` are keys of an `openai_model` in front of the model."""
        config = SimulatedModel.Config.model_validate({"answer": "text", **model})
        self.model = SimulatedModel(config, None, "policy_model")
        rows = [{"responses_create_params": {"input": f"{number}"}} for number in range(rollouts)]
        assert self.time.run(self._run(rows, parallel, hosted)) == 0
        assert len(self.desk.lines()) == rollouts
        return self.desk.metrics()

    async def _run(self, rows: list[JsonObject], parallel: str, hosted: JsonObject | None) -> int:
        look = asyncio.create_task(self._look())
        try:
            async with AsyncExitStack() as stack:
                self.desk.model = self.model
                if hosted is not None:
                    front = through_openai_model(self.model, **hosted)
                    self.desk.model = await stack.enter_async_context(front)
                return await self.desk.collect(rows, num_samples_in_parallel=parallel)
        finally:
            look.cancel()

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            self.seen.append((loop.time() - began, self.model.stats.in_flight))
            await asyncio.sleep(LOOK_S)

    def reached(self, wanted: float) -> float:
        """When so many were in flight for the first time."""
        return next(at for at, number in self.seen if number >= wanted)

    @property
    def refused(self) -> int:
        return self.model.stats.by_status["429"]


@pytest.fixture
def wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wide:
    return Wide(Desk(tmp_path), VirtualTime(monkeypatch))


TURNS: list[Any] = [
    pytest.param({"latency_s": 20.0}, id="1 turn"),
    pytest.param({"latency_s": 1.0, "num_tool_turns": 19}, id="20 turns"),
]


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize(
    ("parallel", "model"),
    [("4-256-1024", {}), ("auto", {"max_concurrent_requests": 256})],
)
def test_a_start_or_a_capacity_that_is_known_is_full_within_one_rollout(
    wide: Wide, parallel: str, model: JsonObject, turns: JsonObject
) -> None:
    wide.collect(600, parallel, **turns, **model)
    assert wide.reached(0.95 * 256) <= 25


@pytest.mark.parametrize("turns", TURNS)
def test_with_nothing_known_ten_requests_durations_are_enough(
    wide: Wide, turns: JsonObject
) -> None:
    wide.collect(1000, "auto", **turns)
    assert wide.reached(0.95 * 256) <= 10 * turns["latency_s"]


@pytest.mark.parametrize("hosted", [None, {}], ids=["direct", "hosted"])
def test_an_endpoint_that_holds_less_refuses_few(wide: Wide, hosted: JsonObject | None) -> None:
    wide.collect(2000, "auto", hosted=hosted, latency_s=20.0, refuse_above=64)
    assert wide.refused <= 0.05 * 2000
    assert wide.reached(0.95 * 64) <= 200


@pytest.mark.parametrize("hosted", [None, {}], ids=["direct", "hosted"])
@pytest.mark.parametrize("turns", TURNS)
def test_a_start_that_is_too_much_closes(
    wide: Wide, hosted: JsonObject | None, turns: JsonObject
) -> None:
    found = wide.collect(600, "4-256-1024", hosted=hosted, **turns, refuse_above=64)
    first = next(change for change in found["parallelism"]["changes"] if change[2] <= 70)
    assert first[0] <= 2 * turns["latency_s"]
