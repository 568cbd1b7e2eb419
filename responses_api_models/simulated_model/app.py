"""A simulated model: it answers without a GPU or cost, with configured delays and faults.

Behind `openai_model` it is the endpoint, including faults on the wire. As a model server it raises
the errors that `openai_model` would raise. It has its own HTTP server, which needs little CPU, so
that benchmarks do not measure it.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from rollout_kit.errors import ConfigError, ModelError, RolloutError
from rollout_kit.serving.model import CHAT, RESPONSES, Model
from rollout_kit.serving.service import Demands, get, post
from rollout_kit.serving.transport.access import Accepted, Access
from rollout_kit.serving.transport.bare_http import listening
from rollout_kit.session import Spent
from rollout_kit.types import JsonObject

from . import bodies
from .asked import read
from .commands import CommandScript
from .config import SimulatedModelConfig
from .endpoint import Endpoint
from .script import Script
from .simulation import Decision, Simulation
from .stats import Stats

COUNTING = frozenset(
    {"rate_limit", "faults", "endpoint_port", "max_concurrent_requests", "refuse_above"}
)
"""Settings by which one answer depends on other requests."""

LOOPBACK = "127.0.0.1"

HANG_S = 86_400.0
"""Longer than any time limit."""


class SimulatedModel(Model):
    Config = SimulatedModelConfig
    is_own = True
    config: SimulatedModelConfig
    simulation: Simulation

    def __init__(self, config: SimulatedModelConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        self.stats = Stats(config.model_name, config.max_concurrent_requests)
        self._stack = AsyncExitStack()

    @classmethod
    def demands(cls, settings: JsonObject) -> Demands:
        """Its limits and faults count requests, so with any of these all workers share one."""
        counts = COUNTING & {name for name, value in settings.items() if value is not None}
        return Demands(per_worker=not counts)

    async def start(self) -> None:
        config, path = self.config, self.config.script_jsonl_fpath
        script: Script | CommandScript | None = None
        if path and config.answer == "commands":
            script = CommandScript.read(path, config.last_command)
        elif path:
            script = Script.read(path, config.answer_template)
        self.simulation = Simulation(self.config, script)
        if self.config.endpoint_port:
            sock = shared_socket(self.config.endpoint_port)
            await self._stack.enter_async_context(self.serving(sock))

    async def stop(self) -> None:
        await self._stack.aclose()

    @asynccontextmanager
    async def serving(
        self, sock: socket.socket, run_id: str = "", token: Accepted = ""
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

    async def count_input(self, params: JsonObject) -> int:
        return read(RESPONSES, params).prompt_tokens

    @get("/stats")
    async def report(self) -> JsonObject:
        """Statistics of requests and answers."""
        return self.stats.report(asyncio.get_running_loop().time())

    @post("/reset_stats")
    async def reset_stats(self) -> JsonObject:
        """Reset the statistics; answers, faults, limits and schedules are unaffected."""
        self.stats.reset()
        return {}

    @get("/metrics")
    async def metrics(self) -> str:
        """vLLM's main metrics in the format of Prometheus."""
        return self.stats.metrics()

    def load_figures(self) -> JsonObject:
        return {
            "running": self.stats.running,
            "waiting": self.stats.waiting,
            "throttled": False,
            "num_429": self.stats.by_status["429"],
            **(limit.paces() if (limit := self.config.rate_limit) else {}),
            "server_load": self.stats.in_flight,
            **self.stats.engine_figures(),
        }

    def count(self, decision: Decision, first_token_s: float, whole_s: float) -> None:
        """Count a complete answer."""
        assert decision.answer
        reason = "length" if decision.answer.is_cut else "stop"
        self.stats.answered(decision.asked.prompt_tokens, decision.answer.num_tokens, reason)
        self.stats.first_token_s.add(first_token_s)
        self.stats.whole_s.add(whole_s)

    def spent_on(self, decision: Decision) -> Spent:
        """The usage of an answer to a peer, which is counted."""
        assert decision.answer
        self.count_answer(decision.end_s)
        spent, usage = Spent(), bodies.usage(decision.asked, decision.answer)
        self.bill({"usage": usage}, spent)
        return spent

    async def _perform(self, dialect: str, params: JsonObject) -> JsonObject:
        """Answer a caller in this process; faults are raised as errors."""
        loop = asyncio.get_running_loop()
        self.stats.begin(dialect, loop.time())
        outcome, fault = "abandoned", ""
        try:
            decision = self.simulation.decide(dialect, params, loop.time(), self.stats.in_flight)
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
    """A socket on a port that several processes may bind; the kernel distributes connections."""
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
