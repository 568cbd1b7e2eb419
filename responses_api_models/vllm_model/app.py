"""A model served by vLLM: one that is started here, from its own options, or ones that run already.

vLLM is always another process. Its death costs time: it is started again, and a request that it
took along is asked for again, of another replica if there is one.
"""

import asyncio
import time
from contextlib import nullcontext
from typing import Any

import orjson

from rollout_kit.config.secrets import MASK
from rollout_kit.errors import (
    ModelError,
    PeerError,
    PeerTimeout,
    PeerUnreachable,
    summary,
)
from rollout_kit.http import HttpClient, Reply
from rollout_kit.model import Lost, Model
from rollout_kit.retry import RetryPolicy, retried
from rollout_kit.service import Demands, get
from rollout_kit.session import current_session
from rollout_kit.types import JsonObject
from rollout_kit.upstream import is_context_overflow, overflowed, parsed, wait_s

from . import turns
from .config import READY_S, VllmModelConfig
from .endpoints import Endpoint, Endpoints
from .engine import Engine
from .replicas import replicas

MARGIN_S = 30.0
"""On top of the time that vLLM has to load: for this server to start, and to say what it was."""

THROTTLED_S = 1.0
"""How long a 429 counts as being throttled where vLLM does not say."""


class VllmModel(Model):
    Config = VllmModelConfig
    config: VllmModelConfig

    def __init__(self, config: VllmModelConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        key = config.api_key
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        limit = config.max_concurrent_requests
        self._free = asyncio.Semaphore(limit) if limit else None
        self._policy = RetryPolicy(config.max_tries, deadline_s=config.request_timeout_s)
        self._lowest: JsonObject = {"model": config.served_name, **config.extra_body}
        if config.chat_template_kwargs:
            self._lowest["chat_template_kwargs"] = config.chat_template_kwargs
        if config.return_token_ids:
            self._lowest["return_token_ids"] = True
        self._engines: list[Engine] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._http: HttpClient | None = None
        self._endpoints: Endpoints | None = None
        self._open = self._running = self._num_429 = 0
        self._throttled_until = 0.0

    @classmethod
    def demands(cls, settings: JsonObject) -> Demands:
        if settings.get("base_url"):
            return Demands()
        return Demands(True, settings.get("ready_timeout_s", READY_S) + MARGIN_S)

    async def start(self) -> None:
        config = self.config
        self._http = http = HttpClient()
        if not config.urls:
            self._engines = replicas(config, self.name, http)
            await _all(engine.start() for engine in self._engines)
        urls = config.urls or [engine.url for engine in self._engines]
        self._endpoints = endpoints = Endpoints(urls, http, self._headers, self._hopeless)
        endpoints.start()
        self._keepers = [
            asyncio.create_task(self._kept(engine, endpoint))
            for engine, endpoint in zip(self._engines, endpoints.all, strict=False)
        ]

    async def stop(self) -> None:
        for task in self._keepers:
            task.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*(engine.stop() for engine in self._engines))
        if self._endpoints:
            await self._endpoints.stop()
        if self._http:
            await self._http.close()

    def model_name(self) -> str:
        return self.config.model

    def load_figures(self) -> JsonObject:
        endpoints = self._endpoints
        down = [each for each in endpoints.all if each.ejected_for] if endpoints else []
        return {
            "running": self._running,
            "waiting": self._open - self._running,
            "throttled": time.monotonic() < self._throttled_until,
            "num_429": self._num_429,
            **(endpoints.figures() if endpoints else {}),
            **({"endpoints_down": len(down)} if down else {}),
            **({"vllm_restarts": sum(e.restarts for e in self._engines)} if self._engines else {}),
        }

    @get("/load")
    async def load(self) -> JsonObject:
        """`load_figures`, and each endpoint's own."""
        told = [each.told() for each in self._endpoints.all] if self._endpoints else []
        return {**self.load_figures(), "endpoints": told}

    async def responses(self, params: JsonObject) -> JsonObject:
        body = turns.body(
            params, self._lowest, reasoning=not self.config.drop_input_reasoning_items
        )
        raw = orjson.dumps(body)
        session = current_session()
        session_id = session.id if session else None
        self._open += 1
        try:
            async with self._free or nullcontext():
                ends = time.monotonic() + self.config.request_timeout_s
                lost = Lost()
                response = await retried(
                    lambda: self._try(raw, params, session_id, ends), self._policy, lost=lost.add
                )
                return lost.told(response)
        finally:
            self._open -= 1

    async def _try(
        self, raw: bytes, params: JsonObject, session: str | None, ends: float
    ) -> JsonObject:
        assert self._endpoints, "start() finds them"
        endpoint = await self._endpoints.chosen(session, max(ends - time.monotonic(), 0.001))
        reply = await self._sent(endpoint, raw, ends)
        payload = parsed(reply.raw)
        if reply.status == 200 and isinstance(payload, dict) and not payload.get("error"):
            return turns.answer(payload, params, self.config.served_name)
        if is_context_overflow(reply.status, payload):
            return overflowed(params, self.config.served_name)
        endpoint.num_failed += 1
        if reply.status >= 500:
            await self._endpoints.suspect(endpoint, f"answered {reply.status}")
        raise self._refusal(endpoint, payload, reply)

    async def _sent(self, endpoint: Endpoint, raw: bytes, ends: float) -> Reply:
        """The reply; a ModelError that may pass where there is none: nothing but time is lost by
        asking for a turn twice."""
        assert self._http and self._endpoints
        url = f"{endpoint.url}/v1/chat/completions"
        endpoint.in_flight += 1
        endpoint.num_requests += 1
        self._running += 1
        try:
            left = max(ends - time.monotonic(), 0.001)
            return await self._http.post(url, raw, headers=self._headers, timeout_s=left)
        except PeerError as error:
            endpoint.num_failed += 1
            if isinstance(error, PeerUnreachable):
                self._endpoints.eject(endpoint, error.message)
            elif not isinstance(error, PeerTimeout):
                await self._endpoints.suspect(endpoint, error.message)
            raise ModelError(error.message, status=error.status, retryable=True) from error
        finally:
            endpoint.in_flight -= 1
            self._running -= 1

    def _refusal(self, endpoint: Endpoint, payload: Any, reply: Reply) -> ModelError:
        status, text = reply.status, reply.text()
        said = summary(payload, text)
        if self.config.api_key and len(self.config.api_key) >= 4:
            text, said = (each.replace(self.config.api_key, MASK) for each in (text, said))
        if status == 429:
            self._num_429 += 1
            until = time.monotonic() + (THROTTLED_S if wait_s is None else wait_s)
            self._throttled_until = max(self._throttled_until, until)
        return ModelError(
            f"vLLM at {endpoint.url} answered {status}: {said}",
            status=502 if status == 200 else status,
            body=text,
            retryable=status in (200, 408, 409, 425, 429) or status >= 500,
            retry_after_s=wait_s(reply),
        )

    async def _kept(self, engine: Engine, endpoint: Endpoint) -> None:
        assert self._endpoints
        endpoints = self._endpoints
        await engine.keep(lambda: endpoints.eject(endpoint, "vLLM died, and is started again"))
        endpoints.wake()  # those who wait for it should not

    def _hopeless(self) -> str:
        if not self._engines or not all(engine.given_up for engine in self._engines):
            return ""
        return f"vLLM is not started any more: {self._engines[0].given_up}"


async def _all(starts: Any) -> None:
    """All of them; the first error once the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in starts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
