"""What a running collection shows: its snapshot, and what it costs."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from support import Bench, asked, row
from virtual_time import VirtualTime

from rollout_kit.commands.collect import open_work
from rollout_kit.commands.progress import Progress
from rollout_kit.commands.run import make_run
from rollout_kit.config.keys.commands import CollectConfig
from rollout_kit.config.load import Config
from rollout_kit.errors import ModelError
from rollout_kit.launch.reach import Servers
from rollout_kit.live.snapshot import Snapshot
from rollout_kit.live.watcher import Watcher
from rollout_kit.testing import ScriptedModel
from rollout_kit.types import JsonObject


class Watched:
    """Collects through a watcher, whose snapshots it keeps."""

    def __init__(self) -> None:
        self.seen: list[Snapshot] = []
        self.watcher: Watcher

    async def collect(
        self, servers: Servers, config: Config[CollectConfig], argv: Sequence[str], progress: Any
    ) -> int:
        async with open_work(servers, config, argv) as work, work.collection(progress) as found:
            run = make_run(found, servers.ends, Progress(out=progress.out, err=progress.err))
            self.watcher = Watcher(run)
            self.watcher.readers.append(self.seen.append)
            self.watcher.begin()
            async for _ in run.outcomes():
                pass
            self.watcher.end()
            return 0


class SlowModel(ScriptedModel):
    """Refuses question 3, takes its time for question 7, and answers every other one wrongly."""

    def __init__(self) -> None:
        super().__init__(self._say)

    async def responses(self, params: JsonObject) -> JsonObject:
        await asyncio.sleep(40 if asked(params) == "7" else 1)
        return await super().responses(params)

    def _say(self, params: JsonObject) -> str:
        question = asked(params)
        if question == "3":
            raise ModelError("no such question", status=422)
        return question if int(question) % 2 else "wrong"


def test_a_snapshot_shows_what_the_run_knows(bench: Bench, monkeypatch: Any) -> None:
    watched = Watched()
    bench.model = SlowModel()
    rows = [row(str(number)) for number in range(20)]
    VirtualTime(monkeypatch).run(
        bench.collect(rows, through=watched.collect, num_samples_in_parallel=4)
    )
    last, during = watched.seen[-1], watched.seen[-3]
    assert (during.state, last.state) == ("running", "ended")
    assert [each.number for each in watched.seen] == list(range(1, len(watched.seen) + 1))
    for each in watched.seen:
        counts = each.counts
        parts = (counts.done, counts.failed, counts.unverified, counts.in_flight, counts.parked)
        assert sum(parts) + (counts.owed or 0) == counts.planned == 20
    assert (last.counts.done, last.counts.failed, last.counts.in_flight) == (19, 1, 0)
    assert last.reward and (last.reward.number, last.reward.value) == (19, 9 / 19)
    assert last.reward.low and last.reward.high
    assert last.reward.low < last.reward.value < last.reward.high
    [failure] = last.failures
    assert (failure.name, failure.number) == ("ModelError", 1)
    assert "no such question" in failure.message
    [waiting] = during.slowest
    assert waiting.stage == "echo_agent /v1/responses" and waiting.seconds > 20
    assert during.stages == {"echo_agent /v1/responses": 1}
    assert [part.name for part in last.agents] == ["echo_agent"] and not last.arms
    assert last.tail[0].status == "verified" and len(last.tail) == 20
    assert {each.status for each in last.tail} == {"verified", "failed"}
    assert (last.parallel.limit, last.parallel.ceiling) == (4, 4)
    assert json.loads(watched.watcher.raw)["counts"]["done"] == 19


def test_one_snapshot_a_second_whatever_is_read(bench: Bench, monkeypatch: Any) -> None:
    watched = Watched()
    bench.model = SlowModel()
    rows = [row(str(number)) for number in range(20)]
    clock = VirtualTime(monkeypatch)
    clock.run(bench.collect(rows, through=watched.collect, num_samples_in_parallel=4))
    passed = watched.seen[-1].elapsed_s
    assert passed > 40 and len(watched.seen) <= passed + 2
    taken = watched.watcher.num_taken
    assert len({watched.watcher.raw for _ in range(100)}) == 1
    assert watched.watcher.num_taken == taken


def test_a_dear_snapshot_is_taken_the_more_rarely(bench: Bench, monkeypatch: Any) -> None:
    watched = Watched()
    bench.model = SlowModel()
    clock = VirtualTime(monkeypatch)
    watched.seen = Dear(clock)
    rows = [row(str(number)) for number in range(20)]
    clock.run(bench.collect(rows, through=watched.collect, num_samples_in_parallel=4))
    assert len(watched.seen) <= 2 + watched.seen[-1].elapsed_s / 20


class Dear(list[Snapshot]):
    """A reader that takes a tenth of a second for each snapshot."""

    def __init__(self, clock: VirtualTime) -> None:
        super().__init__()
        self._clock = clock

    def append(self, snapshot: Snapshot) -> None:
        super().append(snapshot)
        self._clock.burn(0.1)
