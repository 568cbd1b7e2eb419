"""The driver's answers to its workers, over HTTP."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, fields

import orjson
from starlette.types import Receive, Scope, Send

from ...errors import ConfigError
from ...serving.transport.access import send_json
from ...serving.transport.app import read_body
from ...types import JsonObject, Say
from ..agents import AgentPlan
from ..steps import RolloutLimits
from .leases import Dismissed, Holder, Leases, NotAskedFor
from .messages import encode_leases, read_message
from .worker import ALIVE, EXCHANGE, GONE, JOIN, READY, WAIT_S

OF_MEMBERS = (READY, EXCHANGE, ALIVE)
"""Routes that need the token; a worker gets it by joining."""


class Exchange:
    """Answers the calls of workers. `plan` is what each needs to start its servers; `token` is what
    it shows from then on."""

    def __init__(
        self, leases: Leases, plan: JsonObject, say: Say, url: str = "", token: str = ""
    ) -> None:
        self._leases, self._say, self._url = leases, say, url
        self._plan = {**plan, "token_of_driver": token}
        self._tickets: dict[str, str] = {}
        self._welcome = b""
        self._has_begun = asyncio.Event()
        self._calls: dict[tuple[str, str], Call] = {}
        self._routes: dict[str, Callable[[JsonObject], Awaitable[bytes]]] = {
            JOIN: self._join,
            READY: self._greet,
            EXCHANGE: self.exchange,
            ALIVE: self._feel,
        }

    def invite(self, title: str) -> JsonObject:
        """What a new worker needs to reach the driver. Its ticket is void once it is ready."""
        worker, ticket = secrets.token_hex(8), secrets.token_urlsafe(32)
        self._tickets[worker] = ticket
        return {"url": self._url, "ticket": ticket, "worker": worker, "title": title}

    def begin(self, agents: Mapping[str, AgentPlan], limits: RolloutLimits) -> None:
        """From now on workers learn how each agent makes its rollouts, once and for all."""
        own = {each.name: getattr(limits, each.name) for each in fields(limits)}
        plans = {name: asdict(plan) for name, plan in agents.items()}
        welcome = orjson.dumps({**self._plan, "agents": plans, "limits": own})
        if self._has_begun.is_set() and welcome != self._welcome:
            raise ConfigError(
                "the workers were started for a run with other settings or limits: start the"
                " servers again for this one"
            )
        self._welcome = welcome
        self._has_begun.set()

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI app; each request has a JSON object."""
        raw, answer = await read_body(receive), self._routes.get(scope["path"])
        try:
            if answer is None:
                status, reply = 404, b'{"detail":"Not Found"}'
            else:
                status, reply = 200, await answer(read_message(raw))
        except Dismissed as error:
            status, reply = GONE, orjson.dumps({"detail": str(error)})
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, NotAskedFor) as error:
            reason = f"{type(error).__name__}: {error}"
            status, reply = 422, orjson.dumps({"detail": reason})
        await send_json(send, status, reply)

    async def _join(self, asked: JsonObject) -> bytes:
        ticket = self._tickets.get(asked["worker"], "")
        if not (ticket and secrets.compare_digest(ticket, asked["ticket"])):
            raise Dismissed("the ticket is not valid, or no longer")
        try:
            async with asyncio.timeout(WAIT_S):
                await self._has_begun.wait()
        except TimeoutError:
            return b"{}"  # the worker asks again
        return self._welcome

    async def _greet(self, asked: JsonObject) -> bytes:
        if self._tickets.pop(asked["worker"], None) is None:
            return b"{}"  # it asks again
        self._leases.join(asked["worker"], asked["title"])
        self._say(f"{asked['title']} is ready (pid {asked['pid']})")
        return b"{}"

    async def _feel(self, asked: JsonObject) -> bytes:
        self._leases.feel(asked["worker"])
        return b"{}"

    async def exchange(self, asked: JsonObject) -> bytes:
        """Take events and grant leases. A call that comes again gets the reply of its first."""
        known = (asked["worker"], asked["channel"])
        last = self._calls.get(known)
        if last is not None and last.number == asked["call"]:
            return await last.reply
        reply = asyncio.get_running_loop().create_future()
        self._calls[known] = Call(asked["call"], reply)
        try:
            found = await self._answer(asked)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                reply.cancel()
            else:
                reply.set_exception(error)
                reply.exception()  # it counts as seen if the call does not come again
            raise
        reply.set_result(found)
        return found

    async def _answer(self, asked: JsonObject) -> bytes:
        member, is_anew = self._leases.hear(asked["worker"], asked["title"])
        self._leases.note_load(asked["worker"], asked["load"])
        self._leases.take(member, asked["events"])
        gather_s = min(MOST_GATHER_S, GATHER_S_OF_EACH * len(self._leases.members))
        if asked["events"]:
            await asyncio.sleep(0)  # the outcomes are written, before the worker forgets them
            await asyncio.sleep(0)  # the run begins attempts, whose leases are in this reply
        found = self._leases.grant(member, asked["want"])
        if asked["wait_s"] and not (found or is_anew or member.recalled or member.regained):
            await _wait(member, asked["wait_s"])
            found = self._leases.grant(member, asked["want"])
        recalled, member.recalled = member.recalled, []
        regained, member.regained = member.regained, []
        return orjson.dumps(
            {
                "anew": is_anew,
                **encode_leases((each.number, each.attempt or each.call or {}) for each in found),
                "recalled": recalled,
                "regained": regained,
                "gather_s": gather_s,
            }
        )


GATHER_S_OF_EACH, MOST_GATHER_S = 0.0005, 0.5
"""Seconds for which each worker gathers its events, for each worker there is; a message costs the
driver more than a rollout in it, so all workers together send 2,000 a second at most."""


@dataclass(slots=True)
class Call:
    """The last call of a worker on one channel."""

    number: int
    reply: "asyncio.Future[bytes]"


async def _wait(member: Holder, seconds: float) -> None:
    """Until there is something for the worker, or the time is over."""
    waiting = member.waiting = asyncio.get_running_loop().create_future()
    timer = asyncio.get_running_loop().call_later(seconds, member.wake)
    try:
        await waiting
    finally:
        timer.cancel()
        if member.waiting is waiting:
            member.waiting = None
