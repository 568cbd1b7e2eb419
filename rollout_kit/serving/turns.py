"""An agent's turns with its model: one asked for after the other, and what they took."""

import time
from dataclasses import dataclass, field
from typing import Any

from ..errors import PeerError, PeerLost
from ..responses import sum_usage
from ..transport.peers import Peers
from ..types import STATS, JsonObject

MODEL_RETRIES = 2
"""Times that one turn is asked for again after its model server died over it."""

LOST = ("rate_limit_s", "retry_s")
"""What a model server tells of a turn's time that was not the model's: waits because it is limited,
tries that failed."""


@dataclass(slots=True)
class Turns:
    """`model_s` is the model's own time, `tool_s` that of whatever answered it."""

    peers: Peers
    model: str
    num_calls: int = 0
    model_s: float = 0.0
    tool_s: float = 0.0
    _first_s: float = 0.0
    _usages: list[Any] = field(default_factory=list)
    _lost: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LOST, 0.0))

    async def ask(self, request: JsonObject) -> JsonObject:
        """The next turn's response. A model server that died is asked again once it is back: unlike
        a tool's, its work may be done twice, and the turns so far are kept."""
        began = time.perf_counter()
        response = await self._asked(request)
        self.model_s += max(0.0, time.perf_counter() - began - self._lost_in(response))
        if not self._usages:
            self._first_s = self.model_s
        self._usages.append(response.get("usage"))
        return response

    def whole(self, last: JsonObject, output: list[JsonObject], finish_reason: str) -> JsonObject:
        """The response of all turns: the last one's, with every item and the sum of usage."""
        stats = {
            "num_turns": len(self._usages),
            "num_tool_calls": self.num_calls,
            "model_s": self.model_s,
            "tool_s": self.tool_s,
            "finish_reason": finish_reason,
        }
        if len(self._usages) > 1:
            stats["first_turn_s"] = self._first_s
        stats |= {name: seconds for name, seconds in self._lost.items() if seconds}
        return {**last, "output": output, "usage": sum_usage(self._usages), STATS: stats}

    async def _asked(self, request: JsonObject) -> JsonObject:
        for _ in range(MODEL_RETRIES):
            try:
                return await self._once(request)
            except PeerLost:
                continue
        return await self._once(request)

    async def _once(self, request: JsonObject) -> JsonObject:
        response = await self.peers.call(self.model, "/v1/responses", request, dict)
        if not isinstance(response.get("output"), list):
            raise PeerError("answered without an 'output' list", server=self.model, retryable=True)
        return response

    def _lost_in(self, response: JsonObject) -> float:
        """How much of a turn was not the model's, as its server tells; added to the rest."""
        stats = response.get(STATS)
        if not isinstance(stats, dict):
            return 0.0
        told = {name: stats.get(name) for name in LOST}
        found = {name: each for name, each in told.items() if isinstance(each, int | float)}
        for name, seconds in found.items():
            self._lost[name] += seconds
        return sum(found.values())
