"""Base of agents: the loop that turns a task into a response, and the five steps around it.

seed_session → respond → (response in hand) → verify → close_session. The collector drives the same
steps itself, so that a response is safe before its verdict is asked for; `/run` serves whoever
asks.
"""

from contextlib import suppress
from typing import ClassVar

from ..errors import RolloutError, TaskError
from ..session import Session, Spent, current_session, entered
from ..time_limit import within
from ..transport.peers import Peers
from ..types import STATS, JsonObject
from .service import ServerConfig, ServerRef, Service, post

CLOSE_TIMEOUT_S = 5.0
"""Closing a session is a courtesy to the server: a rollout does not wait longer for it."""


class AgentConfig(ServerConfig):
    """What every agent may be given."""

    resources_server: ServerRef | None = None
    model_server: ServerRef | None = None


class open_session(entered):
    """A fresh session for one attempt at a rollout (task id, index): every call inside belongs to
    it; closed whatever happens. What its model calls use is added to `spent`. What is not given is
    that of the session outside."""

    __slots__ = ("_peers", "_resources")

    def __init__(
        self,
        peers: Peers,
        resources: str,
        rollout: tuple[str, int] | None = None,
        spent: Spent | None = None,
    ) -> None:
        if (outside := current_session()) is not None:
            rollout, spent = rollout or outside.rollout, spent or outside.spent
        super().__init__(Session.of(rollout, spent))
        self._peers, self._resources = peers, resources

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        try:
            with suppress(RolloutError, TimeoutError), within(CLOSE_TIMEOUT_S):
                await self._peers.call(self._resources, "/close_session", {}, dict)
        finally:
            self.__exit__()


class Agent(Service):
    """Subclasses write `respond`. One that overrides `run` is opaque: the collector only calls
    `/run`."""

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
        """The response of a whole rollout: `output` holds every item of every turn, `usage` their
        sum."""
        raise NotImplementedError

    @post("/run")
    async def run(self, row: JsonObject) -> JsonObject:
        """A verified row; or the row with its `response` and `verify_error` when there is no
        verdict."""
        params = row.get("responses_create_params")
        if not isinstance(params, dict):
            raise TaskError("the row has no responses_create_params")
        async with open_session(self.peers, self.resources):
            try:
                await self.peers.call(self.resources, "/seed_session", row, dict)
            except TaskError as error:
                without_tools = {**params, "tools": []}  # there is no session to call them in
                response = await self._plain(without_tools)
                return {**row, "response": response, "verify_error": str(error)}
            response = await self._plain(params)
            answered = {**row, "response": response}
            try:
                return await self.peers.call(self.resources, "/verify", answered, dict)
            except RolloutError as error:
                return {**answered, "verify_error": str(error)}

    async def _plain(self, params: JsonObject) -> JsonObject:
        response = await self.respond(params)
        response.pop(STATS, None)
        return response

    def describe(self) -> JsonObject:
        refs = {
            "resources_server": getattr(self.config.resources_server, "name", None),
            "model_server": getattr(self.config.model_server, "name", None),
        }
        return {**super().describe(), **refs, "opaque": type(self).run is not Agent.run}
