"""A model that is simulated: it answers without a GPU or a bill, as slowly and as badly as asked.

Behind `openai_model` it is the endpoint, faults on the wire included; as a model server itself it
raises what `openai_model` would make of each. It writes HTTP itself: what rehearses others must
never be what is measured.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from rollout_kit.errors import ConfigError, ModelError, RolloutError
from rollout_kit.serving.model import CHAT, RESPONSES, Model
from rollout_kit.serving.service import get, post
from rollout_kit.session import Spent
from rollout_kit.transport.access import Access
from rollout_kit.types import JsonObject

from . import bodies
from .config import SimulatedModelConfig
from .endpoint import Endpoint
from .script import Script
from .simulation import Decision, Simulation
from .stats import Stats
from .wire import listening

LOOPBACK = "127.0.0.1"

HANG_S = 86_400.0
"""Longer than anybody waits."""


class SimulatedModel(Model):
    Config = SimulatedModelConfig
    is_own = True
    config: SimulatedModelConfig
    simulation: Simulation

    def __init__(self, config: SimulatedModelConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        self.stats = Stats(config.model_name, config.max_concurrent_requests)
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        path = self.config.script_jsonl_fpath
        script = Script.read(path, self.config.answer_template) if path else None
        self.simulation = Simulation(self.config, script)
        if self.config.endpoint_port:
            sock = shared_socket(self.config.endpoint_port)
            await self._stack.enter_async_context(self.serving(sock))

    async def stop(self) -> None:
        await self._stack.aclose()

    @asynccontextmanager
    async def serving(
        self, sock: socket.socket, run_id: str = "", token: str = ""
    ) -> AsyncIterator[None]:
        endpoint = Endpoint(self, Access.to(sock, token), run_id)
        async with listening(endpoint.answer, sock):
            yield

    def model_name(self) -> str:
        return self.config.model_name

    async def responses(self, params: JsonObject) -> JsonObject:
        return await self._perform(RESPONSES, params)

    async def chat_completions(self, params: JsonObject) -> JsonObject:
        return await self._perform(CHAT, params)

    @get("/stats")
    async def report(self) -> JsonObject:
        """What came in, what went out, and how much of it at once."""
        return self.stats.report(asyncio.get_running_loop().time())

    @post("/reset_stats")
    async def reset_stats(self) -> JsonObject:
        """Count from here on; answers, faults, limits and schedules go on as they were."""
        self.stats.reset()
        return {}

    @get("/metrics")
    async def metrics(self) -> str:
        """vLLM's main figures, as Prometheus reads them."""
        return self.stats.metrics()

    def load_figures(self) -> JsonObject:
        return {
            "running": self.stats.running,
            "waiting": self.stats.waiting,
            "throttled": False,
            "num_429": self.stats.by_status["429"],
            "server_load": self.stats.in_flight,
            **self.stats.engine_figures(),
        }

    def count(self, decision: Decision, first_token_s: float, whole_s: float) -> None:
        """An answer that is given whole."""
        assert decision.answer
        reason = "length" if decision.answer.is_cut else "stop"
        self.stats.answered(decision.asked.prompt_tokens, decision.answer.num_tokens, reason)
        self.stats.first_token_s.add(first_token_s)
        self.stats.whole_s.add(whole_s)

    def spent_on(self, decision: Decision) -> Spent:
        """What a peer is told of an answer."""
        assert decision.answer
        spent, usage = Spent(), bodies.usage(decision.asked, decision.answer)
        self.bill({"usage": usage}, spent)
        return spent

    async def _perform(self, dialect: str, params: JsonObject) -> JsonObject:
        """For a caller in this process, whom a fault reaches as an error."""
        loop = asyncio.get_running_loop()
        self.stats.begin(dialect, loop.time())
        outcome, fault = "abandoned", ""
        try:
            decision = self.simulation.decide(dialect, params, loop.time())
            fault = str(decision.fault.kind) if decision.fault else ""
            await self._pass(decision)
            answer = self._outcome(decision)
            outcome = "200"
            return answer
        except RolloutError as error:
            outcome = str(error.status)
            raise
        finally:
            self.stats.end(loop.time(), outcome, fault)

    async def _pass(self, decision: Decision) -> None:
        kind = decision.fault.kind if decision.fault else None
        extra_s = {"hang": HANG_S, "slow_drip": getattr(decision.fault, "duration_s", 0.0)}
        if wait_s := decision.end_s + extra_s.get(str(kind), 0.0):
            await asyncio.sleep(wait_s)

    def _outcome(self, decision: Decision) -> JsonObject:
        if decision.refusal:
            if decision.refusal.is_overflow:
                return bodies.overflow_response(decision.asked, self.model_name())
            raise decision.refusal.error()
        if not decision.is_answered:
            assert decision.fault
            raise ModelError(f"simulated fault: {decision.fault.kind}", retryable=True)
        assert decision.answer
        self.count(decision, decision.first_s, decision.end_s)
        return bodies.whole(decision.asked, decision.answer, self.model_name())


def shared_socket(port: int) -> socket.socket:
    """A socket for which the kernel shares connections out among all that bind the same port."""
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((LOOPBACK, port))
        sock.listen()
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"endpoint_port {port}: cannot listen there: {error.strerror}; choose another"
        ) from None
    return sock
