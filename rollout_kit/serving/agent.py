"""Base of agents: the loop that turns a task into a response, and the steps around it.

The steps are seed_session, respond, verify and close_session. The collector takes them itself, so
that it can store a response before it is verified; `/run` takes all of them for other clients.
"""

import time
from contextlib import suppress
from typing import Any, ClassVar

from ..errors import PeerError, RolloutError, TaskError
from ..responses import sum_usage
from ..session import LOST_TIMES, Session, Spent, current_session, entered
from ..time_limit import within
from ..transport.peers import Peers
from ..transport.retry import TURN, retry
from ..types import JsonObject
from .service import ServerConfig, ServerRef, Service, post

CLOSE_TIMEOUT_S = 5.0
"""Time limit of close_session: the rollout does not need its result."""


class AgentConfig(ServerConfig):
    """Keys of every agent."""

    resources_server: ServerRef | None = None
    model_server: ServerRef | None = None


class open_session(entered):
    """Context with a new session for one attempt at `rollout` (task id, index). The session is
    always closed at the end.

    The usage of its model calls is added to `spent`. Both default to those of the outer session.
    """

    __slots__ = ("_peers", "_resources", "session")

    def __init__(
        self,
        peers: Peers,
        resources: str,
        rollout: tuple[str, int] | None = None,
        spent: Spent | None = None,
    ) -> None:
        if (outside := current_session()) is not None:
            rollout, spent = rollout or outside.rollout, spent or outside.spent
        self.session = Session.of(rollout, spent)
        super().__init__(self.session)
        self._peers, self._resources = peers, resources

    async def __aenter__(self) -> Session:
        self.__enter__()
        return self.session

    async def __aexit__(self, *_: object) -> None:
        try:
            with suppress(RolloutError, TimeoutError), within(CLOSE_TIMEOUT_S):
                await self._peers.call(self._resources, "/close_session", {}, dict)
        finally:
            self.__exit__()


class Agent(Service):
    """Subclasses write `respond`. A subclass that overrides `run` is opaque: the collector calls
    `/run` instead of taking the steps."""

    kind: ClassVar[str] = "responses_api_agents"
    Config: ClassVar[type[ServerConfig]] = AgentConfig

    @property
    def resources(self) -> str:
        return self.config.resources_server.name

    @property
    def model(self) -> str:
        return self.config.model_server.name

    @post("/v1/responses")
    async def respond(self, params: JsonObject) -> JsonObject:
        """The response of a whole rollout: `output` holds the items of all turns, `usage` is their
        sum."""
        raise NotImplementedError

    @post("/run")
    async def run(self, row: JsonObject) -> JsonObject:
        """The verified row; the row with `response` and `verify_error` if there is no verdict."""
        params = row.get("responses_create_params")
        if not isinstance(params, dict):
            raise TaskError("the row has no responses_create_params")
        async with open_session(self.peers, self.resources):
            try:
                await self.peers.call(self.resources, "/seed_session", row, dict)
            except TaskError as error:
                without_tools = {**params, "tools": []}  # there is no session to call them in
                response = await self.respond(without_tools)
                return {**row, "response": response, "verify_error": str(error)}
            response = await self.respond(params)
            answered = {**row, "response": response}
            try:
                return await self.peers.call(self.resources, "/verify", answered, dict)
            except RolloutError as error:
                return {**answered, "verify_error": str(error)}

    def describe(self) -> JsonObject:
        refs = {
            "resources_server": getattr(self.config.resources_server, "name", None),
            "model_server": getattr(self.config.model_server, "name", None),
        }
        return {**super().describe(), **refs, "opaque": type(self).run is not Agent.run}


class Turns:
    """The model calls of one rollout, one after the other, and their statistics.

    The agent adds its tool calls to `num_calls` and their seconds to `tool_s`.
    """

    def __init__(self, peers: Peers, model: str) -> None:
        self.num_calls = 0
        self.tool_s = 0.0
        self._peers, self._model = peers, model
        self._model_s = self._first_s = 0.0
        self._usages: list[Any] = []
        self._session = current_session() or Session()
        self._lost_s = dict.fromkeys(LOST_TIMES, 0.0)

    async def ask(self, request: JsonObject) -> JsonObject:
        """Return the response of the next turn; retry as TURN says."""
        began, lost_before = time.perf_counter(), self._session.lost_s
        response = await retry(lambda: self._ask_once(request), TURN)
        seconds = time.perf_counter() - began
        for name, total in self._session.lost_s.items():
            self._lost_s[name] += total - lost_before[name]
            seconds -= total - lost_before[name]
        self._model_s += max(0.0, seconds)
        if not self._usages:
            self._first_s = self._model_s
        self._usages.append(response.get("usage"))
        return response

    async def _ask_once(self, request: JsonObject) -> JsonObject:
        response = await self._peers.call(self._model, "/v1/responses", request, dict)
        if not isinstance(response.get("output"), list):
            raise PeerError("answered without an 'output' list", server=self._model, retryable=True)
        return response

    def finish(self, last: JsonObject, output: list[JsonObject], finish_reason: str) -> JsonObject:
        """Put the statistics into the session; return the response of the whole rollout: the last
        turn's, with every item and the sum of usage."""
        stats = {
            "num_turns": len(self._usages),
            "num_tool_calls": self.num_calls,
            "model_s": self._model_s,
            "tool_s": self.tool_s,
            "finish_reason": finish_reason,
        }
        if len(self._usages) > 1:
            stats["first_turn_s"] = self._first_s
        for name in LOST_TIMES:  # of the turns only, without those of models that tools called
            self._session.stats.pop(name, None)
        stats |= {name: seconds for name, seconds in self._lost_s.items() if seconds}
        self._session.stats |= stats
        return {**last, "output": output, "usage": sum_usage(self._usages)}
