"""The vLLM servers of a model, and which of them are healthy. `routing` chooses one.

A server that fails is left out until it is healthy again. Requests wait while all are left out.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from rollout_kit.errors import ModelError, PeerError
from rollout_kit.serving.transport.http import HttpClient
from rollout_kit.serving.transport.loop import cancel_all
from rollout_kit.serving.transport.retry import VLLM_PROBE, delay_s
from rollout_kit.session import Session
from rollout_kit.time_limit import within
from rollout_kit.types import JsonObject

from . import metrics
from .routing import Routing

PROBE_TIMEOUT_S = 5.0

METRICS_S = 1.0
"""Pause between requests for the metrics of a busy server."""


@dataclass(slots=True, eq=False)
class Endpoint:
    """One vLLM server. `url` has no `/v1`."""

    url: str
    in_flight: int = 0
    num_requests: int = 0
    num_failed: int = 0
    ejected_for: str = ""
    """Why the server is left out; empty while it is healthy."""
    figures: dict[str, float] = field(default_factory=dict)
    capacity: metrics.Capacity = metrics.UNKNOWN
    max_model_len: int = 0
    """Context length, if it was needed already."""
    is_suspect: bool = False
    """Whether its weights are unknown, because an update failed."""
    num_spoiled: int = 0
    """Updates that failed here: answers that were in flight then may mix weights."""

    def to_json(self) -> JsonObject:
        return {
            "url": self.url,
            "up": not self.ejected_for,
            "in_flight": self.in_flight,
            "requests": self.num_requests,
            "failed": self.num_failed,
            **({"why": self.ejected_for} if self.ejected_for else {}),
            **self.figures,
        }


class Endpoints:
    """All servers of one model. `hopeless` returns why waiting is useless, or an empty text."""

    def __init__(
        self,
        urls: list[str],
        http: HttpClient,
        headers: Mapping[str, str],
        hopeless: Callable[[], str] = lambda: "",
    ) -> None:
        self.all = [Endpoint(url.rstrip("/").removesuffix("/v1")) for url in urls]
        self._http = http
        self._headers = headers
        self._hopeless = hopeless
        self.admit: Callable[[Endpoint], Awaitable[bool]] | None = None
        """Prepares a server that is healthy again; False leaves it out."""
        self._routing = Routing[Endpoint]()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._keep(self._poll_metrics())

    async def stop(self) -> None:
        await cancel_all(self._tasks)

    async def choose(self, session: Session | None, timeout_s: float) -> Endpoint:
        """The server for the next request; ModelError if none is healthy in time."""
        name = session.id if session else None
        task = session.rollout[0] if session and session.rollout else None
        try:
            with within(timeout_s):
                while (endpoint := self._routing.choose(self.well(), name, task)) is None:
                    if why := self._hopeless():
                        raise ModelError(why, status=503, retryable=False)
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            why = "; ".join(f"{each.url}: {each.ejected_for}" for each in self.all)
            raise ModelError(f"no vLLM answers ({why})", status=503, retryable=True) from None
        return endpoint

    def eject(self, endpoint: Endpoint, why: str) -> None:
        """Leave the server out until it answers its health check."""
        if not endpoint.ejected_for:
            endpoint.ejected_for = why
            endpoint.figures = {}
            self._keep(self._probe(endpoint))

    async def suspect(self, endpoint: Endpoint, why: str) -> None:
        """Leave the server out after a failure, unless it answers its health check."""
        if not endpoint.ejected_for and not await self._is_well(endpoint):
            self.eject(endpoint, why)

    def well(self) -> list[Endpoint]:
        return [each for each in self.all if not each.ejected_for]

    def wake(self) -> None:
        """Let waiting requests check again."""
        self._changed.set()

    def figures(self) -> JsonObject:
        """The sums of the engines' metrics; of the KV cache, the highest use."""
        told = [each.figures for each in self.all if each.figures]
        if not told:
            return {}
        names = {name for each in told for name in each}
        added = {name: sum(each.get(name, 0) for each in told) for name in sorted(names)}
        whole: JsonObject = {name: int(value) for name, value in added.items()}
        if "kv_cache" in names:
            whole["kv_cache"] = round(max(each.get("kv_cache", 0.0) for each in told), 4)
        return whole

    def capacity(self) -> metrics.Capacity:
        """What the engines of all healthy servers hold."""
        return sum((each.capacity for each in self.well()), metrics.UNKNOWN)

    async def context(self) -> int:
        """Context length of the model, as its servers list it; 0 if none tells it."""
        for endpoint in self.well():
            try:
                reply = await self._http.get(
                    f"{endpoint.url}/v1/models", headers=self._headers, timeout_s=PROBE_TIMEOUT_S
                )
                entries = orjson.loads(reply.raw)["data"]
                lengths = [int(each.get("max_model_len") or 0) for each in entries]
            except (PeerError, ValueError, KeyError, TypeError, AttributeError):
                continue
            return max(lengths, default=0)
        return 0

    async def _probe(self, endpoint: Endpoint) -> None:
        for tries in itertools.count(1):
            await asyncio.sleep(delay_s(VLLM_PROBE, tries))
            if await self._is_well(endpoint) and (not self.admit or await self.admit(endpoint)):
                endpoint.ejected_for = ""
                self.wake()
                return

    async def _is_well(self, endpoint: Endpoint) -> bool:
        try:
            reply = await self._http.get(
                f"{endpoint.url}/health", headers=self._headers, timeout_s=PROBE_TIMEOUT_S
            )
        except PeerError:
            return False
        return reply.status == 200

    async def _poll_metrics(self) -> None:
        """Read the metrics of busy servers, and once more when a server is idle again."""
        was_busy: set[Endpoint] = set(self.all)
        while True:
            busy = {each for each in self.all if each.in_flight and not each.ejected_for}
            for endpoint in busy | {each for each in was_busy if not each.ejected_for}:
                try:
                    reply = await self._http.get(
                        f"{endpoint.url}/metrics", headers=self._headers, timeout_s=PROBE_TIMEOUT_S
                    )
                except PeerError:
                    continue  # failing requests show whether the server is healthy
                if reply.status == 200 and not endpoint.ejected_for:
                    text = reply.raw.decode("utf-8", "replace")
                    endpoint.figures = metrics.read(text)
                    endpoint.capacity = metrics.read_capacity(text)
            was_busy = busy
            await asyncio.sleep(METRICS_S)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
