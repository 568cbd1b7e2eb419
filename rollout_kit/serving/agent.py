"""Base of agents: the loop that turns a task into a response, and the steps around it.

The steps are seed_session, respond, verify and close_session. The collector takes them itself, so
that it can store a response before it is verified; `/run` takes all of them for other clients.
"""

from contextlib import suppress
from functools import cached_property
from statistics import fmean, median, stdev
from types import CoroutineType
from typing import Any, ClassVar, Literal

import orjson
from pydantic import Field

from ..errors import RolloutError, TaskError
from ..responses import without_provider_data
from ..session import Session, current_session, entered
from ..time_limit import within
from ..types import JsonObject
from .agents.turns import Turns as Turns
from .endpoints.events import response_events
from .service import ServerConfig, ServerRef, Service, post
from .transport.peers import Peers
from .transport.wire import EventStream, parse_object

CLOSE_TIMEOUT_S = 5.0
"""Time limit of close_session: the rollout does not need its result."""


class AgentConfig(ServerConfig):
    """Keys of every agent: the servers that it asks.

    Example:

        class PatientConfig(rk.AgentConfig):
            max_turns: int = 3
    """

    resources_server: ServerRef | None = Field(
        None, description="The resources server, with the tools and the verifier."
    )
    model_server: ServerRef | None = Field(None, description="The model server.")


OneCall = Literal["always", "without_tools", ""]
"""When a rollout is one call of the model; empty if that is not known before."""


class open_session(entered):
    """Context with a session, by default a new one for the rollout of the outer session. It is
    always closed at the end, unless the server keeps nothing in sessions.

    The usage of its model calls is added to the outer session's.
    """

    __slots__ = ("_closes", "_peers", "_resources", "session")

    def __init__(
        self,
        peers: Peers,
        resources: str,
        session: Session | None = None,
        *,
        closes: bool = True,
    ) -> None:
        outside = current_session()
        self.session = session or Session.of(
            outside and outside.rollout, outside and outside.spent, "", outside and outside.limits
        )
        if outside is not None and session is None:
            self.session.ticket, self.session.tier = outside.ticket, outside.tier
        super().__init__(self.session)
        self._peers, self._resources, self._closes = peers, resources, closes

    async def __aenter__(self) -> Session:
        self.__enter__()
        return self.session

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._closes:
                with suppress(RolloutError, TimeoutError), within(CLOSE_TIMEOUT_S):
                    await self._peers.call(self._resources, "/close_session", {}, dict)
        finally:
            self.__exit__()


class Agent(Service):
    """Subclasses write `respond`. A subclass that overrides `run` is opaque: the collector calls
    `/run` instead of taking the steps, because a foreign harness brings its own verdict.

    Example:

        class AsksOnce(rk.Agent):
            async def respond(self, params):
                return await self.peers.call(self.model, "/v1/responses", params, dict)


        def verify(task, response):
            return 1.0


        async with rk.servers(agents=AsksOnce, model=lambda p: "4", verify=verify) as servers:
            await rk.collect(rows, servers=servers)
    """

    kind: ClassVar[str] = "responses_api_agents"
    Config: ClassVar[type[ServerConfig]] = AgentConfig

    one_call: OneCall = ""
    """With +cheapest=true, rollouts that are one call go into batches."""

    @cached_property
    def resources(self) -> str:
        return self.config.resources_server.name

    @cached_property
    def model(self) -> str:
        return self.config.model_server.name

    def handle(self, path: str, raw: bytes) -> "CoroutineType[Any, Any, Any]":
        """Answer one request. A client without a session can have a response as a stream of
        OpenAI's events, once it is complete."""
        if path == "/v1/responses" and current_session() is None and b'"stream"' in raw:
            return self._answer_client(path, raw)
        return super().handle(path, raw)

    async def _answer_client(self, path: str, raw: bytes) -> Any:
        params = parse_object(raw)
        wants_stream = params.pop("stream", False)
        answer = self._mask_reply(await super().handle(path, orjson.dumps(params)))
        return EventStream.of(response_events(answer)) if wants_stream else answer

    def begin_turns(self) -> Turns:
        """The turns of a new rollout, within the `rollout_limits` of a Config that has them."""
        return Turns(self.peers, self.model, self.config.get("rollout_limits"))

    @post("/aggregate_metrics")
    async def aggregate_metrics(self, body: JsonObject) -> JsonObject:
        """Means and the like of verified rows, as NeMo Gym's collector asks for them."""
        rows = body.get("verify_responses")
        if not isinstance(rows, list):
            raise TaskError("verify_responses: must be a list of rows", status=400)
        groups: dict[Any, list[JsonObject]] = {}
        for row in rows:
            groups.setdefault(row.get("_ng_task_index"), []).append(row)
        whole = _figures(rows)
        return {
            "agent_metrics": whole,
            "key_metrics": {name: whole[name] for name in whole if name.startswith("mean/")},
            "group_level_metrics": [
                {"_ng_task_index": index, "num_rollouts": len(own), **_figures(own)}
                for index, own in groups.items()
            ],
        }

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
            asked = {**row, "response": without_provider_data(response)}
            try:
                verified = await self.peers.call(self.resources, "/verify", asked, dict)
                return {**verified, "response": response}
            except RolloutError as error:
                return {**answered, "verify_error": str(error)}

    def describe(self) -> JsonObject:
        refs = {
            "resources_server": getattr(self.config.resources_server, "name", None),
            "model_server": getattr(self.config.model_server, "name", None),
        }
        own: JsonObject = {"opaque": type(self).run is not Agent.run, "reports_turns": True}
        if self.one_call:
            own["one_call"] = self.one_call
        return {**super().describe(), **refs, **own}


def _figures(rows: list[JsonObject]) -> JsonObject:
    """Mean, bounds, median and deviation of every number that rows have at the top."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(value, int | float) and not name.startswith("_"):
                found.setdefault(name, []).append(float(value))
    kinds = {"mean": fmean, "max": max, "min": min, "median": median, "std": _deviation}
    return {f"{kind}/{name}": of(found[name]) for name in found for kind, of in kinds.items()}


def _deviation(values: list[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0
