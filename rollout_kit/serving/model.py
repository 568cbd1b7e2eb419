"""Base of model servers: the Responses-API front of one model.

OpenAI's own clients are served as well: Chat Completions, and streams of an answer that is whole.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote

import orjson
from pydantic import Field

from ..endpoints.completions import as_completion, as_params
from ..endpoints.events import completion_events, response_events
from ..endpoints.prices import FREE, Prices, Tariff, tariff_of
from ..errors import THROTTLED, ModelError, RolloutError
from ..responses import total_tokens
from ..session import Spent, current_session
from ..transport.wire import EventStream
from ..types import JsonObject
from .service import OPERATIONAL, ServerConfig, Service, get, post

if TYPE_CHECKING:
    from ..transport.peers import Peers

RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"
MODELS = "/v1/models"


class ModelConfig(ServerConfig):
    """What every model server may be given."""

    max_concurrent_requests: int | None = Field(
        None, ge=1, json_schema_extra=OPERATIONAL, description="Most requests at the model at once."
    )
    requests_per_minute: float | None = Field(
        None,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="Most requests in a minute, where the endpoint tells none or less is wanted.",
    )
    tokens_per_minute: float | None = Field(
        None, gt=0, json_schema_extra=OPERATIONAL, description="The same for tokens, in and out."
    )
    prices: Prices | None = Field(
        None,
        json_schema_extra=OPERATIONAL,
        description="US dollars per million tokens; the price table's where not given.",
    )


def record_lost_time(error: RolloutError | None, seconds: float) -> None:
    """Add time that was not the model's to the session's statistics: time lost to `error`, or to
    an endpoint that is down (None)."""
    if session := current_session():
        is_limited = error is not None and error.status in THROTTLED
        session.lose("rate_limit_s" if is_limited else "retry_s", seconds)


class Model(Service):
    """Answer `POST /v1/responses`. Token ids and log-probs, where asked for and known, travel on
    the last output item of each turn, as `trajectory` says."""

    kind: ClassVar[str] = "responses_api_models"
    Config: ClassVar[type[ServerConfig]] = ModelConfig
    is_own: ClassVar[bool] = False
    """It runs on machines of one's own: where no `prices` are given, its answers cost nothing."""

    def __init__(self, config: Any, peers: "Peers", name: str) -> None:
        super().__init__(config, peers, name)
        self._tariffs: dict[str, Tariff | None] = {}

    async def handle(self, path: str, raw: bytes) -> Any:
        """A peer's answer is billed to its session. A client that belongs to none may ask for a
        stream."""
        session = current_session()
        if path.startswith(MODELS + "/"):
            return self._retrieved(unquote(path[len(MODELS) + 1 :]))
        if session is None and path in (RESPONSES, CHAT) and b'"stream' in raw:
            return await self._delivered(path, raw)
        reply = await super().handle(path, raw)
        if session is not None and path == RESPONSES and isinstance(reply, dict):
            self.bill(reply, session.spent)
        return reply

    @post(RESPONSES)
    async def responses(self, params: JsonObject) -> JsonObject:
        """The response to one set of create params; ModelError where the model refuses."""
        raise NotImplementedError

    @post(CHAT)
    async def chat_completions(self, params: JsonObject) -> JsonObject:
        """The same question in the words of Chat Completions, and the same answer."""
        return as_completion(await self.responses(as_params(params)))

    @get("/load")
    async def load(self) -> JsonObject:
        """How busy the model is, as `load_figures` says."""
        return self.load_figures()

    def load_figures(self) -> JsonObject:
        """`running` and `waiting` requests, `throttled` now, 429s so far; and, where vLLM's own
        figures are known, `kv_cache`, `engine_running`, `engine_waiting`, `preemptions` so far."""
        return {"running": 0, "waiting": 0, "throttled": False, "num_429": 0}

    @get(MODELS)
    async def models(self) -> JsonObject:
        """The names that a request's `model` may have, in the OpenAI list format."""
        return {"object": "list", "data": [_listed(name) for name in self.model_names()]}

    def build_app(self, run_id: str = "") -> Any:
        """With `GET /v1/models/<name>` beside the routes: OpenAI's clients ask for one model so."""
        from starlette.requests import Request
        from starlette.responses import JSONResponse

        async def retrieved(request: Request) -> JSONResponse:
            try:
                return JSONResponse(await self.answer(request.url.path, b""))
            except RolloutError as error:
                return JSONResponse(error.to_wire(), error.status)

        app = super().build_app(run_id)
        app.add_route(MODELS + "/{name:path}", retrieved)
        return app

    def _retrieved(self, name: str) -> JsonObject:
        known = self.model_names()
        if name not in known:
            message = f"no model is called '{name}'; there is: {', '.join(known)}"
            raise ModelError(message, status=404, server=self.name)
        return _listed(name)

    def model_names(self) -> list[str]:
        return [self.model_name()]

    def model_name(self) -> str:
        """The model that answers unless the create params name another."""
        return self.name

    def endpoint(self) -> str:
        """The URL under which a price table may know who bills the answers."""
        return ""

    def bill(self, response: JsonObject, spent: Spent) -> None:
        """Add what a response has used to `spent`. An answer without its usage costs nobody knows
        what."""
        tariff, tokens = self._tariff(response.get("model") or self.model_name()), 0
        cost = 0.0 if tariff is FREE or not response.get("output") else None
        try:
            tokens = total_tokens(response)
            if tariff and tokens and cost is None:
                cost = tariff.cost(response["usage"], response.get("service_tier"))
        except (AttributeError, TypeError):  # a usage that cannot be read
            cost = None
        spent.call(tokens, cost)

    def _tariff(self, model: str) -> Tariff | None:
        """What the model of that name costs here; looked up once. One that only its endpoint knows
        by that name is taken for the configured one."""
        known = self._tariffs
        if model not in known:
            known[model] = self._looked_up(model) or self._looked_up(self.model_name())
        return known[model]

    def _looked_up(self, model: str) -> Tariff | None:
        given = getattr(self.config, "prices", None)
        if given is None and self.is_own:
            return FREE
        return tariff_of(given, model, self.endpoint())

    def describe(self) -> JsonObject:
        """`prices`: the tariff, where it is known."""
        tariff = self._tariff(self.model_name())
        prices = {"prices": tariff.to_json()} if tariff else {}
        return {**super().describe(), "model": self.model_name(), **prices}

    async def _delivered(self, path: str, raw: bytes) -> Any:
        """The answer as the request wants it: how it comes is no concern of the model."""
        asked: Any = None
        with suppress(orjson.JSONDecodeError):
            asked = orjson.loads(raw)
        if not isinstance(asked, dict):
            return await super().handle(path, raw)
        wants_stream, options = asked.pop("stream", None), asked.pop("stream_options", None)
        answer = await super().handle(path, orjson.dumps(asked))
        if not wants_stream:
            return answer
        if path == RESPONSES:
            return EventStream.of(response_events(answer))
        wants_usage = isinstance(options, dict) and bool(options.get("include_usage"))
        return EventStream.of(completion_events(answer, usage=wants_usage))


def _listed(name: str) -> JsonObject:
    return {"id": name, "object": "model", "created": 0, "owned_by": "rollout_kit"}
