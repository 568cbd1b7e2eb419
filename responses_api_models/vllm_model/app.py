"""A model served by vLLM: start vLLM from its own options, or use servers that run already.

vLLM is always another process. If it dies, it is restarted, and requests that were lost are sent
again, to another replica if there is one.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from rollout_kit.rl.partial import PartialTurns, name_request
from rollout_kit.rl.weights.follower import Follower
from rollout_kit.serving.endpoints.patience import record_lost_time
from rollout_kit.serving.model import Model, ScoreRequest, host_of
from rollout_kit.serving.service import Demands, get, post
from rollout_kit.serving.transport.http import HttpClient
from rollout_kit.serving.transport.loop import cancel_all, gather_all
from rollout_kit.serving.transport.retry import MODEL_REQUEST, retry
from rollout_kit.serving.weights import find_folder, find_in_hub
from rollout_kit.session import current_session
from rollout_kit.types import JsonObject

from .asking import Asking
from .config import READY_S, VllmModelConfig
from .endpoints import Endpoint, Endpoints
from .engine import Engine
from .following import Observer, Replicas
from .gate import Gate
from .metrics import SEQUENCES
from .options import adapter_names, adapter_places
from .replicas import replicas
from .turns import Asked
from .weights import Replica

MARGIN_S = 30.0
"""Added to vLLM's time to load: time for this server to start and to report a failure."""


class VllmModel(Model):
    Config = VllmModelConfig
    is_own = True
    names_weights: ClassVar[frozenset[str]] = frozenset({"model"})
    config: VllmModelConfig
    follower: Follower | None = None

    def __init__(self, config: VllmModelConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        key = config.api_key
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        limit = config.max_concurrent_requests
        self._free = asyncio.Semaphore(limit) if limit else None
        self._policy = replace(
            MODEL_REQUEST, max_tries=config.max_tries, deadline_s=config.request_timeout_s
        )
        self._engines: list[Engine] = []
        self._supervising: list[asyncio.Task[None]] = []
        self._http: HttpClient | None = None
        self._endpoints: Endpoints | None = None
        self._asking: Asking | None = None
        self._gate = Gate()
        self._replicas: Replicas | None = None
        self._open = 0
        self._context = 0
        """Context length; 0 before it was looked up, −1 if it is unknown."""
        self._partial_turns = PartialTurns() if config.resume_turns else None

    @classmethod
    def demands(cls, settings: JsonObject) -> Demands:
        if settings.get("base_url"):
            return Demands()
        return Demands(True, settings.get("ready_timeout_s", READY_S) + MARGIN_S)

    def hosts(self) -> list[str]:
        return [*map(host_of, self.config.urls)]

    async def start(self) -> None:
        config = self.config
        self._http = http = HttpClient(max_reply_mb=config.max_reply_mb)
        await self.identify()
        if not config.urls:
            # the first time this asks vLLM for its options, which takes seconds
            self._engines = await asyncio.to_thread(replicas, config, self.name, http)
            await gather_all(engine.load() for engine in self._engines)
            if not self._weights:  # vLLM may have downloaded them just now
                await self.identify()
        urls = config.urls or [engine.url for engine in self._engines]
        self._endpoints = endpoints = Endpoints(urls, http, self._headers, self._hopeless)
        endpoints.start()
        self._replicas = self._control(endpoints, http)
        self._asking = Asking(
            config, self.name, http, self._headers, endpoints, self._gate, self._replicas
        )
        self._supervising = [
            asyncio.create_task(self._keep(engine, endpoint))
            for engine, endpoint in zip(self._engines, endpoints.all, strict=False)
        ]
        if self.follower:
            endpoints.admit = self._replicas.admit
            await self.follower.start()

    def _control(self, endpoints: Endpoints, http: HttpClient) -> Replicas:
        """The replicas as one whose weights change, and what follows the trainer."""
        sync = self.config.weight_sync
        replicas = Replicas(
            sync.mode if sync else None,
            endpoints,
            self._gate,
            lambda url: Replica(url, http, self._headers),
            self._find_weights(),
        )
        if sync and sync.mode == "external":
            self.follower = Observer(sync, self.name, replicas)
        elif sync:
            self.follower = Follower(sync, self.name, replicas.use, replicas.check)
        return replicas

    async def score_tokens(self, asked: ScoreRequest) -> JsonObject:
        assert self._asking and self._endpoints
        left_s = self.config.request_timeout_s
        endpoint = await self._endpoints.choose(None, left_s)
        return {"log_probs": await self._asking.score(endpoint, asked, self._gate.now() + left_s)}

    @post("/sleep")
    async def sleep(self, asked: JsonObject) -> JsonObject:
        """Let requests end, then have vLLM release its memory; later requests wait for it."""
        assert self._replicas and self._asking
        await self._replicas.sleep(int(asked.get("level", 1)), self._asking.drain)
        return {"asleep": True}

    @post("/wake_up")
    async def wake_up(self, asked: JsonObject) -> JsonObject:
        """End a sleep."""
        assert self._replicas
        await self._replicas.wake()
        return {"asleep": False}

    def _find_weights(self) -> Path | None:
        """The folder of the model's weights, if they are on this machine."""
        config = self.config
        place = find_folder(config.model)
        if place is None and not config.urls:
            place = find_in_hub(config.model, config.get("revision"))
        return place

    async def identify(self) -> None:
        if (place := self._find_weights()) and not self.config.weight_sync:
            await self.identify_weights(place, *adapter_places(self.config.lora_modules))

    async def stop(self) -> None:
        if self.follower:
            await self.follower.stop()
        if self._asking:
            await self._asking.resuming.close()
        await cancel_all(self._supervising)
        await asyncio.gather(*(engine.stop() for engine in self._engines))
        if self._endpoints:
            await self._endpoints.stop()
        if self._http:
            await self._http.close()

    def model_name(self) -> str:
        return self.config.model

    def model_names(self) -> list[str]:
        return [self.config.model, *adapter_names(self.config.lora_modules)]

    def load_figures(self) -> JsonObject:
        endpoints, asking = self._endpoints, self._asking
        running = asking.running if asking else 0
        down = [each for each in endpoints.all if each.ejected_for] if endpoints else []
        return {
            "running": running,
            "waiting": self._open - running,
            "throttled": bool(asking and asking.is_throttled),
            "num_429": asking.num_429 if asking else 0,
            **(endpoints.figures() if endpoints else {}),
            **(self._partial_turns.figures() if self._partial_turns else {}),
            **({"endpoints_down": len(down)} if down else {}),
            **({"vllm_restarts": sum(e.restarts for e in self._engines)} if self._engines else {}),
        }

    @get("/load")
    async def load(self) -> JsonObject:
        """The same with what the engines hold, and the figures of each endpoint."""
        if (endpoints := self._endpoints) is None:
            return {**await super().load(), "endpoints": []}
        capacity = endpoints.capacity()
        if not self._context and capacity.num_engines:
            given = self.config.get("max_model_len")
            self._context = given if isinstance(given, int) else await endpoints.context() or -1
        most = self.config.get("max_num_seqs") or SEQUENCES
        return {
            **await super().load(),
            **capacity.figures(most, max(0, self._context)),
            "endpoints": [each.to_json() for each in endpoints.all],
        }

    async def responses(self, params: JsonObject) -> JsonObject:
        request = name_request(params) if self._partial_turns else ""
        await self.wait_for_version(params)
        with self._gate.serving():
            return await self._respond(params, request)

    async def _respond(self, params: JsonObject, request: str) -> JsonObject:
        assert self._asking, "start() makes it"
        session = current_session()
        session_id = session.id if session else None
        self._open += 1
        try:
            async with self._free or nullcontext():
                await self._gate.wait()
                asked = self._asking.asked(params)
                ends = self._gate.now() + self.config.request_timeout_s
                async with self._asking.using(asked):
                    with self._resumed(asked, request) as turn:
                        return await retry(
                            lambda: self._try(turn, session_id, ends),
                            self._policy,
                            clock=self._gate.now,
                            on_retry=record_lost_time,
                        )
        finally:
            self._open -= 1

    @contextmanager
    def _resumed(self, asked: Asked, request: str) -> Iterator[Asked]:
        """Context of a turn, with the tokens that it has from a request that was stopped."""
        if self._partial_turns is None or not asked.wants_token_ids:
            yield asked
            return
        with self._partial_turns.resume(request) as turn:
            yield replace(asked, partial=turn)

    async def _try(self, asked: Asked, session: str | None, ends: float) -> JsonObject:
        assert self._endpoints and self._asking
        endpoint = await self._endpoints.choose(session, max(ends - self._gate.now(), 0.001))
        return await self._asking.answer(endpoint, asked, ends)

    async def _keep(self, engine: Engine, endpoint: Endpoint) -> None:
        endpoints = self._endpoints
        assert endpoints
        await engine.keep(lambda: endpoints.eject(endpoint, "vLLM died, and is started again"))
        endpoints.wake()  # requests that wait for this engine must fail

    def _hopeless(self) -> str:
        every = [engine.given_up for engine in self._engines]
        return every[0] if every and all(every) else ""
