"""One run of an audit, in a process of its own: `python -m rollout_kit.authoring.audit_child`.

Standard input is the plan as JSON. A line of JSON is appended to its `results` before and after
each verdict, so that what hangs is known by name when this process has to be killed.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import RawIOBase
from pathlib import Path
from time import perf_counter

import orjson

from ..errors import RolloutError
from ..responses import function_calls
from ..serving import registry
from ..serving.agent import open_session
from ..serving.tools import arguments_of, is_callable, refusal_text
from ..store.lines import scores_of
from ..time_limit import within
from ..transport.http import HttpClient
from ..transport.peers import Http, Local, Peers, Transport
from ..types import JsonObject, finite_reward
from .audit_run import ONCE_S

TICK_S = 0.01
"""How often the loop is asked whether it is held up."""


def main() -> None:
    plan = orjson.loads(sys.stdin.buffer.read())
    with Path(plan["results"]).open("ab", buffering=0) as results:
        asyncio.run(_audited(plan, results))  # not uvloop: no hook is told what that connects to


async def _audited(plan: JsonObject, results: RawIOBase) -> None:
    async with _verifier(plan) as (peers, about):
        run = _Run(peers, plan, about.get("reverify", "never"), results)
        run.write({"about": about})
        for step in plan["script"]:
            await run.step(step)
        run.write({"finished": True})


@asynccontextmanager
async def _verifier(plan: JsonObject) -> AsyncIterator[tuple[Peers, JsonObject]]:
    """The verifier in this process, or where its URL says; whatever it refers to by URL."""
    name, client = plan["verifier"]["name"], HttpClient()
    transports: dict[str, Transport] = {
        other: Http(other, urls, client) for other, urls in plan["urls"].items()
    }
    peers, service = Peers(transports), None
    try:
        if name not in transports:
            cls = registry.load("resources_servers", plan["verifier"]["implementation"])
            service = cls(cls.Config.model_validate(plan["verifier"]["settings"]), peers, name)
            transports[name] = Local(service, round_trip=True)
            await service.start()
        measured = sorted(getattr(service, "measured", ()))
        yield peers, {**await peers.describe(name), "measured": measured}
    finally:
        if service:
            await service.stop()
        await client.close()


class _Run:
    def __init__(self, peers: Peers, plan: JsonObject, reverify: str, results: RawIOBase) -> None:
        self.peers = peers
        self.name = plan["verifier"]["name"]
        self.timeout_s = plan["timeout_s"]
        self.cases = plan["cases"]
        self.has_state = reverify != "stateless"
        self.results = results
        self.slow: set[int] = set()
        self.loop_held = _LoopHeld()

    async def step(self, step: JsonObject) -> None:
        """The verdicts on the step's cases, begun in its order; none again that took long."""
        places = asyncio.Semaphore(step["at_once"])
        cases = [number for number in step["cases"] if number not in self.slow]

        async def verdict(number: int) -> None:
            async with places:
                self.write({"begun": number, "step": step["name"]})
                self.loop_held.most_s = 0.0
                found = await self._found(**self.cases[number])
                await asyncio.sleep(0)  # the ticker's turn
                held_s = self.loop_held.most_s
                if step["at_once"] == 1 and found["verify_s"] > ONCE_S:
                    self.slow.add(number)
                self.write({"case": number, "step": step["name"], "held_s": held_s, **found})

        await asyncio.gather(*map(verdict, cases))

    def write(self, line: JsonObject) -> None:
        self.results.write(orjson.dumps(line, default=repr) + b"\n")

    async def _found(self, row: JsonObject, response: JsonObject) -> JsonObject:
        """The verdict's own fields and its time, or what was raised instead."""
        began = perf_counter()
        try:
            with within(self.timeout_s):
                async with open_session(self.peers, self.name):
                    await self._call("/seed_session", row)
                    for call in function_calls(response["output"]) if self.has_state else ():
                        await self._tool(call)
                    request, began = {**row, "response": response}, perf_counter()
                    verdict = await self._call("/verify", request)
                    took = perf_counter() - began
            reward = finite_reward(verdict.get("reward"))
            return {"reward": reward, "scores": scores_of(request, verdict), "verify_s": took}
        except TimeoutError:
            return {"error": f"no verdict within {self.timeout_s:g} s", "verify_s": self.timeout_s}
        except RolloutError as error:
            return {"error": f"{error}", "verify_s": perf_counter() - began}

    async def _call(self, path: str, body: JsonObject) -> JsonObject:
        return await self.peers.call(self.name, path, body, dict)

    async def _tool(self, call: JsonObject) -> None:
        """As the policy would have called it; what it says is the policy's to read."""
        name = str(call.get("name"))
        try:
            if is_callable(name):
                await self.peers.call(self.name, f"/{name}", arguments_of(call), str)
        except RolloutError as error:
            if refusal_text(error) is None:
                raise


class _LoopHeld:
    """`most_s`: the longest time since it was set to 0 in which the event loop ran nothing else."""

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
