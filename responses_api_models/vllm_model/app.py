"""A model served by vLLM: start vLLM from its own options, or use servers that run already.

vLLM is always another process. If it dies, it is restarted, and requests that were lost are sent
again, to another replica if there is one.
"""

import asyncio
from pathlib import Path
from typing import Any, ClassVar

from rollout_kit.rl.weights.follower import Follower
from rollout_kit.serving.model import host_of
from rollout_kit.serving.service import Demands, get, post
from rollout_kit.serving.transport.http import HttpClient
from rollout_kit.serving.transport.loop import cancel_all, gather_all
from rollout_kit.serving.weights import find_folder, find_in_hub
from rollout_kit.types import JsonObject

from .asking import VllmClient
from .config import READY_S, VllmModelConfig
from .endpoints import Endpoint, Endpoints
from .engine import Engine
from .following import Observer, Replicas
from .metrics import SEQUENCES
from .options import adapter_names, adapter_places
from .replicas import replicas
from .weights import Replica

MARGIN_S = 30.0
"""Added to vLLM's time to load: time for this server to start and to report a failure."""


class VllmModel(VllmClient):
    Config = VllmModelConfig
    is_own = True
    names_weights: ClassVar[frozenset[str]] = frozenset({"model"})
    config: VllmModelConfig
    follower: Follower | None = None

    def __init__(self, config: VllmModelConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        self._engines: list[Engine] = []
        self._supervising: list[asyncio.Task[None]] = []
        self._context = 0
        """Context length; 0 before it was looked up, −1 if it is unknown."""

    @classmethod
    def demands(cls, settings: JsonObject) -> Demands:
        if settings.get("base_url"):
            return Demands()
        return Demands(True, settings.get("ready_timeout_s", READY_S) + MARGIN_S)

    def hosts(self) -> list[str]:
        return [*map(host_of, self.config.urls)]

    def model_name(self) -> str:
        return self.config.model

    def model_names(self) -> list[str]:
        return [self.config.model, *adapter_names(self.config.lora_modules)]

    async def start(self) -> None:
        await super().start()
        assert self._http
        config, http = self.config, self._http
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

    async def _keep(self, engine: Engine, endpoint: Endpoint) -> None:
        endpoints = self._endpoints
        assert endpoints
        await engine.keep(lambda: endpoints.eject(endpoint, "vLLM died, and is started again"))
        endpoints.wake()  # requests that wait for this engine must fail

    def _hopeless(self) -> str:
        every = [engine.given_up for engine in self._engines]
        return every[0] if every and all(every) else ""

    async def stop(self) -> None:
        if self.follower:
            await self.follower.stop()
        await self._resuming.close()
        await cancel_all(self._supervising)
        await asyncio.gather(*(engine.stop() for engine in self._engines))
        if self._endpoints:
            await self._endpoints.stop()
        await super().stop()

    @post("/sleep")
    async def sleep(self, asked: JsonObject) -> JsonObject:
        """Let requests end, then have vLLM release its memory; later requests wait for it."""
        assert self._replicas
        await self._replicas.sleep(int(asked.get("level", 1)))
        return {"asleep": True}

    @post("/wake_up")
    async def wake_up(self, asked: JsonObject) -> JsonObject:
        """End a sleep."""
        assert self._replicas
        await self._replicas.wake()
        return {"asleep": False}

    def load_figures(self) -> JsonObject:
        endpoints = self._endpoints
        down = [each for each in endpoints.all if each.ejected_for] if endpoints else []
        return {
            **super().load_figures(),
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
