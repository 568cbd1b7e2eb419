"""The process of one audit run: `python -m rollout_kit.authoring.audit_child`.

Reads the plan as a line of JSON from standard input. Appends a line of JSON to the plan's `results`
before and after each verdict, so that the parent knows which case hangs if it has to kill this
process.
"""

import asyncio
import gc
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import RawIOBase
from pathlib import Path
from time import perf_counter

import orjson

from ..errors import RolloutError
from ..responses import list_calls
from ..serving import registry
from ..serving.agent import open_session
from ..serving.functions import FunctionModel
from ..serving.rollout_verdicts import finite_reward
from ..serving.tools import arguments_of, is_callable, refusal_text
from ..serving.transport.http import HttpClient
from ..serving.transport.peers import Http, Local, Peers, Transport
from ..serving.transport.wire import scores_of
from ..time_limit import within
from ..types import JsonObject
from .audit_run import ONCE_S
from .gaming.obedient_judge import reply_obediently

TICK_S = 0.01
"""Interval of the timer that detects a blocked event loop."""


def main() -> None:
    plan = orjson.loads(sys.stdin.buffer.readline())
    with Path(os.devnull).open("rb") as nothing:  # programs that it starts must not wait for input
        os.dup2(nothing.fileno(), sys.stdin.fileno())
    with Path(plan["results"]).open("ab", buffering=0) as results:
        asyncio.run(_play(plan, results))  # not uvloop: audit hooks do not see its connections
    gc.freeze()  # Python need not look for garbage before it ends


async def _play(plan: JsonObject, results: RawIOBase) -> None:
    async with _connect(plan) as (peers, about):
        run = _Run(peers, plan, about.get("reverify", "never"), results)
        run.write({"about": about})
        for step in plan["script"]:
            await run.step(step)
        run.write({"finished": True})


@asynccontextmanager
async def _connect(plan: JsonObject) -> AsyncIterator[tuple[Peers, JsonObject]]:
    """Connect to the verifier, in this process or by URL, and to the servers it refers to."""
    name, client = plan["verifier"]["name"], HttpClient()
    transports: dict[str, Transport] = {
        other: Http(other, urls, client) for other, urls in plan["urls"].items()
    }
    peers, service = Peers(transports), None
    for judge in plan["obedient"]:
        model = FunctionModel(reply_obediently, peers, judge)
        transports[judge] = Local(model, round_trip=True)
    try:
        if name not in transports:
            cls = registry.load("resources_servers", plan["verifier"]["implementation"])
            service = cls(cls.Config.model_validate(plan["verifier"]["settings"]), peers, name)
            transports[name] = Local(service, round_trip=True)
            await service.start()
        measured = sorted(getattr(service, "measured", ()))
        tools = [tool.schema for tool in getattr(service, "tools", {}).values()]
        yield peers, {**await peers.describe(name), "measured": measured, "tools": tools}
    finally:
        if service:
            await service.stop()
        await client.close()


MAX_REPLY_CHARS = 20_000
"""Longer replies of tools are cut."""


class _Run:
    def __init__(self, peers: Peers, plan: JsonObject, reverify: str, results: RawIOBase) -> None:
        self.peers = peers
        self.name = plan["verifier"]["name"]
        self.timeout_s = plan["timeout_s"]
        self.cases = plan["cases"]
        self.has_state = reverify != "stateless"
        self.calls_tools = self.has_state
        self.results = results
        self.slow: set[int] = set()
        self.loop_held = _LoopHeld()

    async def step(self, step: JsonObject) -> None:
        """Verify the cases in order; skip cases that were slow in an earlier step, and those for
        which no time is left."""
        end = perf_counter() + (step["budget_s"] or float("inf"))
        places = asyncio.Semaphore(step["at_once"])
        self.calls_tools = self.has_state or step["calls_tools"]
        cases = [number for number in step["cases"] if number not in self.slow]

        async def verdict(number: int) -> None:
            async with places:
                if perf_counter() > end:
                    return
                self.write({"begun": number, "step": step["name"]})
                self.loop_held.most_s = 0.0
                found = await self._verify(**self.cases[number])
                await asyncio.sleep(0)  # lets the timer run
                held_s = self.loop_held.most_s
                if step["at_once"] == 1 and found["verify_s"] > ONCE_S:
                    self.slow.add(number)
                self.write({"case": number, "step": step["name"], "held_s": held_s, **found})

        await asyncio.gather(*map(verdict, cases))

    def write(self, line: JsonObject) -> None:
        self.results.write(orjson.dumps(line, default=repr) + b"\n")

    async def _verify(self, row: JsonObject, response: JsonObject) -> JsonObject:
        """Return the verdict's fields and duration, or the error, and the replies of tools."""
        replies = list[str]()
        return {**await self._play_session(row, response, replies), "replies": replies}

    async def _play_session(
        self, row: JsonObject, response: JsonObject, replies: list[str]
    ) -> JsonObject:
        began, is_verified = perf_counter(), False
        try:
            with within(self.timeout_s):
                async with open_session(self.peers, self.name):
                    await self._call("/seed_session", row)
                    await asyncio.sleep(0)  # sessions at the same time take turns
                    for call in list_calls(response["output"]) if self.calls_tools else ():
                        replies.append(await self._tool(call))
                        await asyncio.sleep(0)
                    request = {**row, "response": response}
                    began, is_verified = perf_counter(), True
                    verdict = await self._call("/verify", request)
                    took = perf_counter() - began
            reward = finite_reward(verdict.get("reward"))
            return {"reward": reward, "scores": scores_of(request, verdict), "verify_s": took}
        except TimeoutError:
            why, limit_s = f"no verdict within {self.timeout_s:g} s", self.timeout_s
            return {"error": why, "verify_s": limit_s, "tools_hung": not is_verified}
        except RolloutError as error:
            return {"error": f"{error}", "verify_s": perf_counter() - began}

    async def _call(self, path: str, body: JsonObject) -> JsonObject:
        return await self.peers.call(self.name, path, body, dict)

    async def _tool(self, call: JsonObject) -> str:
        """Call the tool as an agent does; return the start of its output. Ignore errors meant for
        the model."""
        name = str(call.get("name"))
        try:
            if is_callable(name):
                reply = await self.peers.call(self.name, f"/{name}", arguments_of(call), str)
                return reply[:MAX_REPLY_CHARS]
        except RolloutError as error:
            if refusal_text(error) is None:
                raise
        return ""


class _LoopHeld:
    """Measures in `most_s` how long the event loop was blocked since `most_s` was set to 0."""

    def __init__(self) -> None:
        self.most_s = 0.0
        self._turn_at = perf_counter()
        self._tick()

    def _tick(self) -> None:
        now = perf_counter()
        self.most_s = max(self.most_s, now - self._turn_at - TICK_S)
        self._turn_at = now
        asyncio.get_running_loop().call_later(TICK_S, self._tick)


if __name__ == "__main__":
    main()
