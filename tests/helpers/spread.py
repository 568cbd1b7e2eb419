"""Workers of a collection inside this process: the driver, the leases and the messages are the real
ones, and only HTTP and the processes are missing. So a test can have a virtual clock."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import orjson

from rollout_kit.collecting.agents import AgentPlan
from rollout_kit.collecting.cluster.driver import OnWorkers, make_leased_runner
from rollout_kit.collecting.cluster.exchange import Exchange
from rollout_kit.collecting.cluster.leases import Leases
from rollout_kit.collecting.cluster.worker import READY, DriverClient, LeasedWork
from rollout_kit.collecting.rollout import Runner
from rollout_kit.collecting.steps import RolloutLimits
from rollout_kit.commands.collect_rollouts import collect_through
from rollout_kit.launch.reach import Servers
from rollout_kit.serving.transport.loop import cancel_all
from rollout_kit.serving.transport.peers import Local

ONCE = "policy_model"
"""The server that runs once, beside the driver."""


class Reply(NamedTuple):
    status: int
    raw: bytes

    def text(self) -> str:
        return self.raw.decode()


class NoHttp:
    """Brings a worker's messages to the driver."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def post(self, url: str, raw: bytes, **_: Any) -> Reply:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": raw, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "path": "/" + url.rpartition("/")[2], "headers": []}
        await self._exchange.app(scope, receive, send)
        return Reply(sent[0]["status"], b"".join(each.get("body", b"") for each in sent[1:]))


@asynccontextmanager
async def spread(servers: Servers, num_workers: int = 2) -> AsyncIterator[Servers]:
    """Context with workers that run the attempts, and all servers but `policy_model`."""
    loop = asyncio.get_running_loop()
    leases = Leases(loop.time)
    exchange = Exchange(leases, {}, lambda text, **fields: None)
    own = {
        name: OnWorkers(way.service, leases)
        for name, way in servers.peers._transports.items()
        if name != ONCE and isinstance(way, Local)
    }
    leases.num_expected = num_workers

    async def work(number: int) -> None:
        driver = DriverClient(NoHttp(exchange), exchange.invite(f"worker {number}"))  # pyright: ignore[reportArgumentType]
        plan = await driver.join()
        agents = {name: AgentPlan(**each) for name, each in plan["agents"].items()}
        runner = Runner(servers.peers, agents, RolloutLimits(**plan["limits"]))
        work = LeasedWork(runner, servers.peers)
        await driver.ask(READY, orjson.dumps(driver._about))
        await asyncio.gather(driver.wait_for_work(work), driver.bring(work))

    workers = {asyncio.create_task(work(number)) for number in range(num_workers)}
    make_runner = partial(make_leased_runner, exchange, leases)
    try:
        yield replace(servers, peers=servers.peers.with_others(own), make_runner=make_runner)
    finally:
        leases.dismiss_all()
        await cancel_all(workers)


async def collect_spread(servers: Servers, config: Any, argv: Any, progress: Any) -> int:
    """`collect_through` with two workers."""
    async with spread(servers) as found:
        return await collect_through(found, config, argv, progress)
