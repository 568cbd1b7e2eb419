"""What a run with a limit that adapts itself asks of its model servers, and tells."""

import asyncio
import io
import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from snapshots import snapshot
from virtual_time import run_linked

from rollout_kit.api.testing import Over, ScriptedModel, mount, run_virtual
from rollout_kit.collecting.live.figures import parts_of
from rollout_kit.collecting.pacing.limiter import Adaptive
from rollout_kit.collecting.pacing.watch import SAY_EVERY_S, Watch, add_loads, load_of_server
from rollout_kit.commands.progress import Progress, fields_of
from rollout_kit.serving.service import get
from rollout_kit.serving.sockets import bound_socket, url_of
from rollout_kit.serving.transport.http import HttpClient
from rollout_kit.serving.transport.peers import Http, Peers
from rollout_kit.types import JsonObject


class Loaded(ScriptedModel):
    def __init__(self, figures: Any, name: str = "policy_model") -> None:
        super().__init__(["unused"], name=name)
        self.figures, self.num_asked = figures, 0

    @get("/load")
    async def load(self) -> JsonObject:
        self.num_asked += 1
        if isinstance(self.figures, Exception):
            raise self.figures
        if self.figures == "hang":
            await asyncio.sleep(1000)
        return self.figures


class Seen(Adaptive):
    """Keeps what it is told."""

    def record_load(self, now: float, load: Any) -> None:
        self.loads = [*getattr(self, "loads", []), dict(load)]


def watch_of(peers: Peers, *models: str, as_json: bool = False) -> tuple[Watch, Progress]:
    progress = Progress(as_json=as_json, out=io.StringIO(), err=io.StringIO())
    ask = partial(peers.call_each, path="/load")
    every_s = 0.0 if as_json else SAY_EVERY_S
    watch = Watch(Seen(1, 4, 64), models, ask, progress.say, every_s)
    return watch, progress


async def watched(watch: Watch, seconds: float = 2.5) -> list[JsonObject]:
    task = asyncio.create_task(watch.watch())
    await asyncio.sleep(seconds)
    assert not task.done(), "nothing that a server does ends it"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return watch.limiter.loads  # type: ignore[attr-defined]


def test_a_model_server_is_asked_once_a_second_over_every_transport(over: Over) -> None:
    model = Loaded({"running": 3, "waiting": 1, "throttled": True, "name": "no number"})

    async def main() -> list[JsonObject]:
        async with mount({"policy_model": lambda peers, name: model}, over) as peers:
            return await watched(watch_of(peers, "policy_model")[0])

    loads = run_linked(main())
    assert loads[-1] == {"running": 3, "waiting": 1, "throttled": True}
    assert 2 <= len(loads) <= 3


@pytest.mark.parametrize("answer", [ValueError("is broken"), "hang", ["a", "list"]])
def test_a_server_that_does_not_tell_does_no_harm(answer: Any) -> None:
    models = {"good": Loaded({"running": 1}), "bad": Loaded(answer)}

    async def main() -> list[JsonObject]:
        servers = {name: lambda peers, _, each=each: each for name, each in models.items()}
        async with mount(servers) as peers:
            return await watched(watch_of(peers, *models)[0], 30)

    assert run_virtual(main())[-1] == {"running": 1}


def test_a_server_that_is_silent_for_a_moment_keeps_its_load() -> None:
    model = Loaded({"running": 1, "preemptions": 7})

    async def main() -> list[JsonObject]:
        async with mount({"policy_model": lambda peers, name: model}) as peers:
            asyncio.get_running_loop().call_later(
                3.5, lambda: setattr(model, "figures", TimeoutError())
            )
            return await watched(watch_of(peers, "policy_model")[0], 8)

    loads = run_virtual(main())
    assert loads[-1] == loads[0] == {"running": 1, "preemptions": 7}


def test_every_worker_of_a_server_is_asked() -> None:
    async def main() -> list[Any]:
        client = HttpClient()
        workers = [Loaded({"running": number}) for number in (2, 5)]
        socks = [bound_socket("127.0.0.1", 0) for _ in workers]
        try:
            async with workers[0].serving(socks[0]), workers[1].serving(socks[1]):
                transport = Http("policy_model", [url_of(sock) for sock in socks], client)
                return await Peers({"policy_model": transport}).call_each("policy_model", "/load")
        finally:
            await client.close()

    assert asyncio.run(main()) == [{"running": 2}, {"running": 5}]


def test_figures_of_workers_and_servers_add_up_and_those_of_an_engine_count_once() -> None:
    worker = {"running": 2, "kv_cache": 0.5, "engine_running": 9, "preemptions": 1}
    one = load_of_server([worker, {**worker, "running": 3, "kv_cache": 0.6}])
    assert one == {"running": 5, "kv_cache": 0.6, "engine_running": 9, "preemptions": 1}
    both = add_loads([one, {"running": 1, "throttled": True, "kv_cache": 0.2, "preemptions": 4}])
    assert both["running"] == 6 and both["preemptions"] == 5
    assert both["kv_cache"] == 0.6 and both["throttled"]
    assert add_loads([]) == {}


def test_people_get_a_line_now_and_then_and_programs_every_change() -> None:
    told = {}
    for as_json in (False, True):
        watch, progress = watch_of(Peers({}), as_json=as_json)
        watch.limiter._begin(0.0)
        for second in range(40):
            watch.limiter.limit = 30.0 + second
            watch.limiter._report(second, "why not")
            watch.report(second)
        told[as_json] = progress.out.getvalue().splitlines()  # type: ignore[attr-defined]
    assert told[False][:2] == [
        "parallelism 4→30: why not",
        "parallelism 30→40: why not (the last of 10 changes)",
    ]
    assert len(told[False]) == 4
    events = [json.loads(each) for each in told[True]]
    assert len(events) == 40
    assert events[1] == {
        "event": "parallelism",
        "at": 1.0,
        "before": 30,
        "after": 31,
        "why": "why not",
    }


def test_a_change_after_the_last_load_is_told_when_the_run_ends() -> None:
    watch, progress = watch_of(Peers({}), as_json=True)

    async def main() -> None:
        task = asyncio.create_task(watch.watch())
        await asyncio.sleep(0.5)
        watch.limiter.limit = 30.0
        watch.limiter._report(0.5, "why not")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_virtual(main())
    told = [json.loads(each) for each in progress.out.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert [each["after"] for each in told] == [30]


def test_the_progress_line_shows_a_limit_that_moves() -> None:
    fixed = snapshot(counts={"in_flight": 96}, parallel={"limit": 96, "floor": 96, "ceiling": 96})
    assert parts_of(fixed)["in_flight"] == "in flight=96" and "limit" not in fields_of(fixed)
    moving = replace(fixed, parallel=replace(fixed.parallel, limit=128, ceiling=256))
    assert parts_of(moving)["in_flight"] == "in flight=96/128" and fields_of(moving)["limit"] == 128
