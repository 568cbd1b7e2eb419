"""A worker, `python -m rollout_kit.collecting.cluster.worker`: it leases attempts, makes them with
servers of its own, and sends what comes of them.

The first line of standard input says where the driver is. The worker decides nothing: how many
attempts it has in flight, when one may start again and when all is over is up to the driver. It
ends with its standard input, or when the driver no longer answers.
"""

import asyncio
import itertools
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from time import perf_counter, sleep
from typing import Any
from urllib.parse import urlsplit

import orjson

from ...errors import PeerError, RolloutError, RolloutKitError
from ...launch.serve import FromParent, die_with_parent, start_services, take_everything_down
from ...serving.transport import loop
from ...serving.transport.access import bearer
from ...serving.transport.encoding import encode_reply
from ...serving.transport.http import HttpClient
from ...serving.transport.peers import Peers
from ...session import Session, Spent, entered
from ...store.lines import refuse_line
from ...types import Attempt, JsonObject, PutAside, StoredTurn, Unverified
from ..agents import AgentPlan
from ..pacing.bill import Ledger
from ..pacing.probe import LoopProbe
from ..rollout import Runner
from ..slot import Place, Slot
from ..steps import RolloutLimits
from .messages import (
    Event,
    decode_leases,
    encode_error,
    encode_spent,
    encode_unverified,
    write_event,
    write_message,
)

log = logging.getLogger(__name__)

JOIN, READY, EXCHANGE, ALIVE = "/join", "/ready", "/exchange", "/alive"

GONE = 410
"""Status of a reply to a worker that is to end."""

WANT = 1 << 20
"""The driver bounds what a worker gets."""

WAIT_S = 3.0
"""How long the driver may wait for something to do; it knows by these calls that a worker lives."""

GATHER_S = 0.01
"""Time for which events gather before they are sent, unless the driver asks for longer."""

SENT_AT_ONCE, BYTES_AT_ONCE = 256, 8 << 20
"""Bounds of one message: events, and bytes."""

MISSING_S = 10.0
"""A driver that has not answered for this long is gone."""

PAUSE_S = 0.3
"""Pause before another try to reach the driver."""


class Gone(Exception):
    """The driver has ended the worker, or is gone itself."""


class LeasedWork:
    """The attempts that this worker has in flight, and its events that the driver does not have."""

    def __init__(self, runner: Runner, peers: Peers) -> None:
        self.events: list[Event] = []
        self.has_events, self.is_idle = asyncio.Event(), asyncio.Event()
        self.epoch = 0
        """How often the driver has given everything to others."""
        self._runner, self._peers = runner, peers
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._regaining: dict[int, asyncio.Future[bool]] = {}

    def take(self, reply: JsonObject) -> None:
        """What the driver asks for."""
        if reply["anew"]:  # it has given everything to others
            self.epoch += 1
            tasks, self._tasks = self._tasks, {}
            for task in tasks.values():
                task.cancel()
        for number in reply["recalled"]:
            self._cancel(number)
        for number, is_granted in reply["regained"]:
            if (waiting := self._regaining.pop(number, None)) and not waiting.done():
                waiting.set_result(is_granted)
        for number, given in decode_leases(reply):
            self.is_idle.clear()
            is_attempt = isinstance(given, Attempt)
            work = self._attempt(number, given) if is_attempt else self._call(number, given)
            self._tasks[number] = task = asyncio.create_task(work)
            task.add_done_callback(partial(self._forget, number))

    def _forget(self, number: int, task: "asyncio.Task[None]") -> None:
        if self._tasks.get(number) is task:
            del self._tasks[number]
            if not self._tasks:
                self.is_idle.set()

    def _cancel(self, number: int) -> None:
        if (task := self._tasks.get(number)) is not None:
            task.cancel()

    def tell(self, number: int, kind: str, **fields: Any) -> None:
        """Have the driver know of an event; TypeError if it is not JSON."""
        self._report(Event(orjson.dumps({"lease": number, "kind": kind, **fields})))

    def _report(self, event: Event) -> None:
        self.events.append(event)
        self.has_events.set()

    async def regain(self, number: int) -> bool:
        self._regaining[number] = asyncio.get_running_loop().create_future()
        self.tell(number, "regain")
        return await self._regaining[number]

    async def _attempt(self, number: int, attempt: Attempt) -> None:
        place = LeasedPlace(self, number)
        slot, began = Slot(place, place.ledger), perf_counter()
        try:
            outcome = await self._runner(attempt, slot)
        except asyncio.CancelledError:
            place.tell("cancelled")
            raise
        assert not isinstance(outcome, PutAside), "a plan with workers has no batches"
        ended = perf_counter() if place.freed_at is None else place.freed_at
        about = {
            "spent": place.spent_since(),
            "limited_s": slot.ledger.limited_s,
            "worked_s": ended - began,
        }
        try:
            self._report(write_event(number, outcome, **about))
        except TypeError as error:
            self._report(write_event(number, refuse_line(outcome, error), **about))

    async def _call(self, number: int, call: JsonObject) -> None:
        session, body = Session(), call["body"]
        try:
            with entered(session):
                transport = self._peers.transport(call["server"])
                raw = None if body is None else body.encode()
                answer = await transport.send(call["path"], raw)
                reply = {"body": encode_reply(answer, call["server"], call["path"]).decode()}
        except RolloutError as error:
            reply = {"error": encode_error(error)}
        spent = encode_spent(session.spent)
        self.tell(number, "reply", **reply, spent=spent, stats=session.stats)


class LeasedPlace(Place):
    """A place that the driver keeps."""

    __slots__ = ("_epoch", "_lease", "_told", "_work", "ledger")

    def __init__(self, work: LeasedWork, lease: int) -> None:
        super().__init__(lease)
        self.ledger = Ledger()
        self._work, self._lease = work, lease
        self._told, self._epoch = encode_spent(Spent()), work.epoch

    def tell(self, kind: str, **fields: Any) -> None:
        if kind == "parked" or self._epoch == self._work.epoch:  # else it is another's place now
            self._work.tell(self._lease, kind, spent=self.spent_since(), **fields)

    def spent_since(self) -> list[float]:
        """What was spent since the driver was told last."""
        told, self._told = self._told, encode_spent(self.ledger.spent)
        return [now - before for now, before in zip(self._told, told, strict=True)]

    def hand_out(self, unverified: Unverified) -> None:
        self.tell("parked", **encode_unverified(unverified))

    def store_turn(self, turn: StoredTurn) -> None:
        self.tell("turn", content=turn.content)

    def free(self) -> None:
        self.freed_at = perf_counter()
        self.tell("freed")

    async def regain(self) -> bool:
        if is_granted := await self._work.regain(self._lease):
            self.freed_at = None
        return is_granted


class DriverClient:
    """The calls to the driver: one that waits for work, and one at a time that brings events."""

    def __init__(self, client: HttpClient, given: JsonObject) -> None:
        self._client, self._url = client, given["url"]
        self._headers: dict[str, str] = {}
        self._last_call = 0
        self._about = {"worker": given["worker"], "title": given["title"], "pid": os.getpid()}
        self._ticket = given["ticket"]
        self._probe = LoopProbe()
        self._gather_s = GATHER_S

    async def join(self) -> JsonObject:
        """What the worker needs to start its servers; the token among it is used from now on."""
        plan: JsonObject = {}
        while not plan:  # the driver may still be starting its own servers
            plan = await self.ask(JOIN, orjson.dumps({**self._about, "ticket": self._ticket}))
        self._headers = bearer(plan["token_of_driver"])
        return plan

    async def be_ready(self) -> None:
        """From now on the driver has work for this worker."""
        await self.ask(READY, orjson.dumps(self._about))
        threading.Thread(target=self._give_signs, name="signs of life", daemon=True).start()

    def _give_signs(self) -> None:
        """Tell the driver that the process lives, even while its event loop is blocked."""
        where, head = urlsplit(self._url), {"content-type": "application/json", **self._headers}
        while True:
            connection = HTTPConnection(where.hostname or "", where.port, timeout=WAIT_S)
            with closing(connection), suppress(OSError, HTTPException):
                connection.request("POST", ALIVE, orjson.dumps(self._about), head)
                connection.getresponse()
            sleep(WAIT_S)

    async def watch_load(self) -> None:
        await self._probe.watch()

    async def wait_for_work(self, work: LeasedWork) -> None:
        while True:
            work.take(await self._call("wait", WAIT_S, ()))

    async def bring(self, work: LeasedWork) -> None:
        while True:
            await work.has_events.wait()
            if len(work.events) < SENT_AT_ONCE:
                with suppress(TimeoutError):  # unless nothing more can come
                    async with asyncio.timeout(self._gather_s):
                        await work.is_idle.wait()
            while events := _first(work.events):
                reply = await self._call("bring", 0.0, events)
                del work.events[: len(events)]
                self._gather_s = max(GATHER_S, reply["gather_s"])
                work.take(reply)
            work.has_events.clear()

    async def _call(self, channel: str, wait_s: float, events: Sequence[Event]) -> JsonObject:
        self._last_call += 1
        about: JsonObject = {
            **self._about,
            "channel": channel,
            "call": self._last_call,
            "want": WANT,
            "wait_s": wait_s,
            "load": self._probe.figures(),
        }
        return await self.ask(EXCHANGE, write_message(orjson.dumps(about), events))

    async def ask(self, path: str, raw: bytes) -> JsonObject:
        """The driver's reply; Gone if it does not answer any more, or refuses.

        A message that got no reply is sent again: by the number of the call the driver knows it.
        """
        running = asyncio.get_running_loop()
        began = running.time()
        while True:
            try:
                reply = await self._client.post(
                    f"{self._url}{path}", raw, headers=self._headers, timeout_s=MISSING_S
                )
            except PeerError as error:
                if running.time() - began >= MISSING_S:
                    raise Gone(f"the driver does not answer: {error}") from None
                await asyncio.sleep(PAUSE_S)
                continue
            if reply.status == GONE:
                raise Gone(reply.text()[:300])
            if reply.status != 200:
                raise Gone(f"the driver answered {reply.status}: {reply.text()[:300]}")
            return orjson.loads(reply.raw)


def _first(events: list[Event]) -> list[Event]:
    """The events of the next message."""
    sizes = itertools.accumulate(event.size for event in events[:SENT_AT_ONCE])
    return events[: max(1, sum(size <= BYTES_AT_ONCE for size in sizes))]


def main() -> None:
    die_with_parent()
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    given = orjson.loads(sys.stdin.buffer.readline())
    try:
        loop.run(_work(given))
    except RolloutKitError as error:
        sys.exit(f"error: {error}")


async def _work(given: JsonObject) -> None:
    ended, running = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        running.add_signal_handler(number, ended.set)
    running.add_reader(sys.stdin.fileno(), FromParent(ended).read)
    working = asyncio.create_task(_exchange(given))
    waiting = asyncio.create_task(ended.wait())
    await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if working.done() and (error := working.exception()) is not None:
        if not isinstance(error, Gone):
            raise error
        log.warning("this worker ends: %s", error)
    take_everything_down()


async def _exchange(given: JsonObject) -> None:
    client = HttpClient(max_reply_mb=1 << 16)
    driver = DriverClient(client, given)
    async with AsyncExitStack() as stack:
        plan = await driver.join()
        _, peers = await start_services(plan, stack)
        agents = {name: AgentPlan(**each) for name, each in plan["agents"].items()}
        runner = Runner(peers, agents, RolloutLimits(**plan["limits"]))
        work = LeasedWork(runner, peers)
        await driver.be_ready()
        await asyncio.gather(driver.wait_for_work(work), driver.bring(work), driver.watch_load())


if __name__ == "__main__":
    main()
