"""Base of agents: the loop that turns a task into a response, and the steps around it.

The steps are seed_session, respond, verify and close_session. The collector takes them itself, so
that it can store a response before it is verified; `/run` takes all of them for other clients.
"""

import time
from contextlib import suppress
from functools import cached_property, partial
from statistics import fmean, median, stdev
from types import CoroutineType
from typing import Any, ClassVar, Literal

import orjson
from pydantic import Field

from ..errors import THROTTLED, BatchPending, PeerError, RolloutError, TaskError
from ..items import track
from ..responses import function_calls, sum_usage, without_provider_data
from ..session import LOST_TIMES, TURNS, WAITS, BatchTicket, Session, current_session, entered
from ..time_limit import running_loop, within
from ..trajectory import ModelCall, pack_turns, versions_of
from ..types import JsonObject
from .endpoints.events import response_events
from .service import ServerConfig, ServerRef, Service, post
from .transport.conversation import LENGTH_OF_OLD, Digests, RequestWriter, SplitRequest, old_digest
from .transport.peers import Peers
from .transport.retry import TURN, retry
from .transport.wire import EventStream, parse_object

CLOSE_TIMEOUT_S = 5.0
"""Time limit of close_session: the rollout does not need its result."""

SHORT_S, SHORT_TURNS = 0.5, 6
"""A rollout that takes less time and fewer turns stores none of them: it costs little to make
again, and would notice the 40 µs that storing a turn takes."""


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


class Turns:
    """The model calls of one rollout, one after the other, and their statistics.

    The agent adds its tool calls to `num_calls` and their seconds to `tool_s`.

    Where the turns of an interrupted attempt are stored, a request that is equal to a stored one
    gets its response, without a model call. So the agent makes the same turns again up to there,
    with its tool calls in the new session. A tool that answers otherwise makes another request. No
    agent needs code of its own to continue.
    """

    def __init__(self, peers: Peers, model: str) -> None:
        self.num_calls = 0
        self.tool_s = 0.0
        self._peers, self._model = peers, model
        self._usages: list[Any] = []
        self._calls: list[ModelCall] = []
        """The calls so far, without where they end and the time of their tools."""
        self._costs: JsonObject = {}
        """Of the last call, in US dollars."""
        self._starts: list[tuple[int | None, float]] = []
        """Of each call: items in its request, and the time of all tools before it."""
        self._tries = 0
        self._session = current_session() or Session()
        self._lost_s: dict[str, float] = {}
        self._lost_before = 0.0
        # recorded calls are their own store, and would lack what is not sent again
        self._log = None if peers.is_taped else self._session.turn_log
        self._session.turn_log = None
        self._began = time.perf_counter()
        self._digests = Digests()
        self._stored: dict[str, list[JsonObject]] = {}
        for turn in self._log.stored if self._log else ():
            self._stored.setdefault(turn["request"], []).append(turn["response"])
        self._unstored: list[tuple[SplitRequest | bytes, JsonObject]] = []
        """Requests, and their turns."""
        self._writer = RequestWriter()
        self._num_resumed = 0

    async def ask(self, request: JsonObject) -> JsonObject:
        """Return the response of the next turn; retry as TURN says."""
        items, asked = request.get("input"), self._writer.write(request)
        start = len(items) if isinstance(items, list) else None, self.tool_s
        if self._stored and (known := self._find_stored(asked)):
            self._num_resumed += 1
            self._usages.append(known[0].get("usage"))
            self._calls.append(_call_of(known[0]))
            self._starts.append(start)
            self._keep_session()
            return known.pop(0)
        if self._unstored:
            await self._store()
        response = await self._ask_model(asked)
        self._starts.append(start)
        if len(self._usages) > 1:  # a short rollout encodes its items again
            response = {**response, "output": list(map(track, response["output"]))}
        if self._log is not None:
            turn = {"response": response, **self._costs}
            self._unstored.append((asked, turn))
            if function_calls(response["output"]):
                await self._store()  # the tools may take long
        return response

    def _find_stored(self, asked: SplitRequest | bytes) -> list[JsonObject] | None:
        """The stored responses to a request."""
        known = self._stored.get(self._digests.of(asked))
        if known is None and any(len(name) == LENGTH_OF_OLD for name in self._stored):
            known = self._stored.get(old_digest(bytes(asked)))
        return known

    async def _store(self) -> None:
        """Store the turns that are not stored yet, unless the rollout may be a short one."""
        is_short = len(self._usages) < SHORT_TURNS and time.perf_counter() - self._began < SHORT_S
        if self._log is None or is_short:
            return
        while self._unstored:
            asked, turn = self._unstored.pop(0)
            await self._report({"request": self._digests.of(asked), **turn})

    async def _ask_model(self, request: SplitRequest | bytes) -> JsonObject:
        began, began_at = time.perf_counter(), running_loop().time()
        lost_before, spent = self._session.lost_s, self._session.spent
        usd, unpriced = spent.usd, spent.unpriced
        standard, unlisted = spent.standard_usd, spent.unlisted
        self._lost_before, self._tries = sum(lost_before), 1
        try:
            response = await self._ask_once(request)
        except RolloutError as error:
            first = error, began_at
            again = partial(self._ask_once, request)
            response = await retry(again, TURN, on_retry=self._lose, first=first)
        seconds, lost = time.perf_counter() - began, self._session.lost_s
        waited_s = sum(lost) - sum(lost_before)
        if lost != lost_before:
            for name, before, after in zip(LOST_TIMES, lost_before, lost, strict=True):
                self._lost_s[name] = self._lost_s.get(name, 0.0) + after - before
                seconds -= after - before
        self._keep_session()
        self._usages.append(response.get("usage"))
        self._costs = {
            "cost_usd": None if spent.unpriced > unpriced else spent.usd - usd,
            "standard_usd": None if spent.unlisted > unlisted else spent.standard_usd - standard,
        }
        self._calls.append(
            _call_of(
                response,
                start_s=began - self._began,
                model_s=max(0.0, seconds),
                waited_s=waited_s,
                tries=self._tries,
                cost_usd=self._costs["cost_usd"],
            )
        )
        return response

    def _lose(self, error: RolloutError, seconds: float) -> None:
        """Record the time of a try that failed and of its pause, unless the model server did."""
        self._tries += 1
        lost = sum(self._session.lost_s)
        name = "rate_limit_s" if error.status in THROTTLED else "retry_s"
        self._session.lose(name, max(0.0, seconds - (lost - self._lost_before)))
        self._lost_before = sum(self._session.lost_s)

    async def _ask_once(self, request: SplitRequest | bytes) -> JsonObject:
        ticket = self._session.ticket
        if ticket is not None and self._calls:
            return await self._ask_in_place(request, ticket)
        return await self._ask_server(request)

    def _keep_session(self) -> None:
        """From now on nothing of this session may be put aside, as its tools are called."""
        if (ticket := self._session.ticket) is not None:
            self._session.ticket = ticket._replace(waits=True)

    async def _ask_in_place(self, request: SplitRequest | bytes, ticket: BatchTicket) -> JsonObject:
        """Ask for a later turn, which may wait for a batch. The session goes on meanwhile: its
        tools have been called."""
        self._session.ticket = ticket._replace(waits=False)
        try:
            return await self._ask_server(request)
        except BatchPending:
            self._keep_session()
            await self._report({WAITS: True})
            try:
                return await self._ask_server(request)
            finally:
                await self._report({WAITS: False})
        finally:
            self._keep_session()

    async def _report(self, event: JsonObject) -> None:
        reported = self._log.report(event) if self._log else None
        if reported is not None:
            await reported

    async def _ask_server(self, request: SplitRequest | bytes) -> JsonObject:
        response = await self._peers.call(self._model, "/v1/responses", request, dict)
        if not isinstance(response.get("output"), list):
            raise PeerError("answered without an 'output' list", server=self._model, retryable=True)
        return response

    def finish(self, last: JsonObject, output: list[JsonObject], finish_reason: str) -> JsonObject:
        """Put the statistics into the session; return the response of the whole rollout: the last
        turn's, with every item and the sum of usage."""
        model_s = [call.model_s for call in self._calls if call.model_s is not None]
        stats: JsonObject = {
            "num_turns": len(self._calls),
            "num_tool_calls": self.num_calls,
            "model_s": sum(model_s, 0.0),
            "tool_s": self.tool_s,
            "finish_reason": finish_reason,
        }
        if turns := pack_turns(self._end_calls(len(output))):
            stats[TURNS] = turns
        if self._num_resumed:
            stats["resumed_turns"] = self._num_resumed
        elif len(model_s) > 1:
            stats["first_turn_s"] = model_s[0]
        for name in LOST_TIMES:  # of the turns only, without those of models that tools called
            self._session.stats.pop(name, None)
        stats |= {name: seconds for name, seconds in self._lost_s.items() if seconds}
        self._session.stats |= stats
        return {**last, "output": output, "usage": sum_usage(self._usages)}

    def _end_calls(self, num_items: int) -> list[ModelCall]:
        """The calls, each with where it ends in the output and the time of its tools."""
        first = self._starts[0][0] if self._starts else None
        ends = [*self._starts[1:], (None if first is None else first + num_items, self.tool_s)]
        return [
            ModelCall(
                None if first is None or number is None else number - first,
                call.start_s,
                call.model_s,
                tools_s - before_s,
                *call[4:],
            )
            for call, (_, before_s), (number, tools_s) in zip(
                self._calls, self._starts, ends, strict=True
            )
        ]


def _call_of(response: JsonObject, **known: Any) -> ModelCall:
    """What a response tells of the call, and what is `known` besides."""
    usage = response.get("usage")
    used: JsonObject = usage if isinstance(usage, dict) else {}
    details = used.get("input_tokens_details")
    incomplete = response.get("incomplete_details")
    versions = versions_of(response["output"])
    if isinstance(incomplete, dict):
        finish = str(incomplete.get("reason") or "incomplete")
    else:
        finish = "tool_calls" if function_calls(response["output"]) else "stop"
    return ModelCall(
        input=used.get("input_tokens"),
        cached=details.get("cached_tokens") if isinstance(details, dict) else None,
        output=used.get("output_tokens"),
        finish=finish,
        version=versions.last if versions else None,
        chain=0,
        **known,
    )
