"""Base of model servers: the Responses API of one model.

OpenAI's and Anthropic's clients can use it too: it also speaks Chat Completions and Messages, and
streams complete answers.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol
from urllib.parse import unquote, urlsplit

import orjson
from pydantic import BaseModel, ConfigDict, Field

from ..errors import ModelError, RolloutError
from ..responses import total_tokens
from ..session import Spent, current_session
from ..time_limit import holding, running_loop
from ..trajectory import VERSION_FIRST, VERSION_LAST
from ..types import JsonObject
from .endpoints import messages, raw
from .endpoints.completions import as_completion, as_params
from .endpoints.events import completion_events, response_events
from .endpoints.open_responses import complete, may_be_sealed, unseal_items
from .endpoints.prices import FREE, CostLimit, Prices, Tariff, read_cost, tariff_of
from .service import OPERATIONAL, ServerConfig, Service, get, post
from .transport.wire import EventStream
from .weights import digest_of

if TYPE_CHECKING:
    from .batches.desk import BatchDesk
    from .transport.peers import Peers

VERSION_HEADER = "x-policy-version"
"""Header of a reply: the version of the weights that wrote its last token."""

REQUIRE_VERSION = "require_version"
"""Create param for on-policy rollouts; it is no setting of what is generated."""

VERSION_TIMEOUT_S = 600.0
"""Time in which a required version must come, before the request counts as failed."""

RESPONSES, CHAT, COMPLETIONS = "/v1/responses", "/v1/chat/completions", "/v1/completions"
MESSAGES = "/v1/messages"
COUNT, COUNT_MESSAGES = f"{RESPONSES}/input_tokens", f"{MESSAGES}/count_tokens"
ANSWERING = frozenset({RESPONSES, CHAT, COMPLETIONS, MESSAGES})
MODELS = "/v1/models"
LIMIT = "max_output_tokens"
OF_MODEL = f"{MODELS}/"


class ScoreRequest(BaseModel):
    """Tokens to score: with the version of the weights in use, or with the one that is named."""

    model_config = ConfigDict(extra="forbid")

    token_ids: list[int] = Field(min_length=1)
    temperature: float = Field(default=1.0, ge=0)
    version: int | None = None


class BatchesRequest(BaseModel):
    """Which batches a caller waits for, and whether they are to end."""

    model_config = ConfigDict(extra="forbid")

    ids: list[str] = []
    cancel: bool = False


class WeightFollower(Protocol):
    """What changes the weights of a model server while it runs; see `rl.weights`."""

    version: int

    async def look(self) -> None:
        """Put newer weights to use, if there are any."""
        ...

    async def wait_for(self, version: int, timeout_s: float) -> None:
        """Wait until this version is in use; ModelError if it is over or does not come."""
        ...

    def figures(self) -> JsonObject:
        """What is known about updates."""
        ...


class ModelConfig(ServerConfig):
    """Keys of every model server.

    Example:

        class EchoConfig(rk.ModelConfig):
            prefix: str = ""
    """

    max_concurrent_requests: int | None = Field(
        default=None,
        ge=1,
        json_schema_extra=OPERATIONAL,
        description="Maximum number of concurrent requests to the model.",
    )
    requests_per_minute: float | None = Field(
        default=None,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="Maximum number of requests per minute. The endpoint's own limit applies too.",
    )
    tokens_per_minute: float | None = Field(
        default=None,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="Maximum number of input and output tokens per minute.",
    )
    max_cost_usd: float | None = Field(
        default=None,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="US dollars that the server may spend while it runs, for example as a judge."
        " After that it refuses requests.",
    )
    prices: Prices | None = Field(
        default=None,
        json_schema_extra=OPERATIONAL,
        description="US dollars per million tokens. Default: from the price table.",
    )


class Model(Service):
    """Subclasses write `responses`. Token ids and log-probs, if requested and known, are fields of
    the last output item of each turn; see `trajectory`.

    Example:

        class Four(rk.Model):
            async def responses(self, params):
                return rk.make_response("four", [rk.message_item("4")], {})


        await rk.collect(rows, model=Four, environment="string_match")
    """

    kind: ClassVar[str] = "responses_api_models"
    Config: ClassVar[type[ServerConfig]] = ModelConfig
    is_own: ClassVar[bool] = False
    """Whether the model runs on the user's own machines: without `prices` its answers are free."""

    names_weights: ClassVar[frozenset[str]] = frozenset()
    """Settings that say where the weights are; their digest, or their source, replaces them."""

    follower: WeightFollower | None = None

    desk: "BatchDesk | None" = None
    """Gathers requests into batches, if the server does that."""

    def __init__(self, config: Any = None, peers: "Peers | None" = None, name: str = "") -> None:
        super().__init__(config, peers, name)
        self._tariffs: dict[str, Tariff | None] = {}
        self._weights = ""
        self._num_answered = 0
        self._answered_s = 0.0
        most = self.config.get("max_cost_usd")
        self._cost_limit = None if most is None else CostLimit(most)

    async def identify(self) -> None:
        """Find out which weights the model has, without starting it. ConfigError or OSError if they
        cannot be read."""

    async def identify_weights(self, *paths: Path) -> None:
        """Identify the model by the contents of these folders; call it just before they are
        loaded, because they may be replaced later."""
        self._weights = await asyncio.to_thread(digest_of, paths)

    def generation_settings(self) -> JsonObject:
        settings = super().generation_settings()
        source = self.weight_source
        if source is None and not self._weights:
            return settings
        rest = {name: each for name, each in settings.items() if name not in self.names_weights}
        return {**rest, **({"weight_sync": source} if source else {"weights": self._weights})}

    @property
    def weight_source(self) -> JsonObject | None:
        """Where the weights come from while the server runs; None if they do not change."""
        sync = getattr(self.config, "weight_sync", None)
        return sync.source() if sync else None

    async def handle(self, path: str, raw: bytes) -> Any:
        """Answer one request; bill it to its session, if any. Only clients without a session can
        have a stream."""
        if self._cost_limit is not None and path in ANSWERING:
            return await self._handle_within(self._cost_limit, path, raw)
        return await self._handle(path, raw)

    async def _handle_within(self, limit: CostLimit, path: str, raw: bytes) -> Any:
        """Answer one request if the limit leaves room for its cost."""
        if path != RESPONSES or (current_session() is None and b'"stream' in raw):
            raise ModelError(
                f"max_cost_usd: only requests to {RESPONSES} without a stream can be counted: ask"
                " there, or leave out max_cost_usd",
                status=400,
                retryable=False,
            )
        async with limit.hold() as spent:
            reply = await self._handle(path, raw)
            self.bill(reply, spent)
            return reply

    async def _handle(self, path: str, raw: bytes) -> Any:
        session = current_session()
        if path.startswith(OF_MODEL):
            return self._model_entry(unquote(path.removeprefix(OF_MODEL)))
        if session is None and path in (RESPONSES, CHAT, MESSAGES) and b'"stream' in raw:
            return await self._answer_client(path, raw)
        if session is None:
            return await super().handle(path, raw)
        now = running_loop().time
        began = now()
        reply = await super().handle(path, raw)
        if path in ANSWERING:
            self.count_answer(now() - began)
            if path == RESPONSES and isinstance(reply, dict):
                self.bill(reply, session.spent)
        return reply

    def count_answer(self, seconds: float) -> None:
        """Count an answer to a peer for `/load`."""
        self._num_answered += 1
        self._answered_s += seconds

    async def answer_client(self, path: str, raw: bytes) -> Any:
        """Answer a client of others. Its response has every field that the standard requires."""
        asked: Any = None
        if path == RESPONSES:
            with suppress(orjson.JSONDecodeError):
                asked = orjson.loads(raw)
        if not isinstance(asked, dict):
            return await self.answer(path, raw)
        wants_stream, _ = asked.pop("stream", None), asked.pop("stream_options", None)
        if "input" in asked and may_be_sealed(raw):
            asked["input"] = unseal_items(asked["input"])
            raw = orjson.dumps(asked)
        elif b'"stream' in raw:
            raw = orjson.dumps(asked)
        answer = await self.answer(path, raw)
        own = {name: getattr(self.config, name, None) for name in ("temperature", LIMIT)}
        known = {name: value for name, value in asked.items() if value is not None}
        whole = complete(answer, {**own, **known})
        return EventStream.of(response_events(whole)) if wants_stream else whole

    @post(RESPONSES)
    async def responses(self, params: JsonObject) -> JsonObject:
        """The response to one set of create params; ModelError if the model refuses."""
        raise NotImplementedError

    @post(CHAT)
    async def chat_completions(self, params: JsonObject) -> JsonObject:
        """The reply to a Chat Completions request."""
        response = self._mask_reply(await self.responses(as_params(params)))
        return as_completion(response) | _versions(response)

    @post(COMPLETIONS)
    async def completions(self, params: JsonObject) -> JsonObject:
        """The reply to a raw text that the model continues; never as a stream."""
        response = await self.responses(raw.read_request(params))
        return raw.answer_request(response) | _versions(response)

    @post(MESSAGES)
    async def messages(self, params: JsonObject) -> JsonObject:
        """The reply to a request of Anthropic's Messages API."""
        # provider data is packed for the client, and could not be masked there
        response = self._mask_reply(await self.responses(self.read_messages(params)))
        return messages.as_message(response)

    @post(COUNT)
    async def count_response_input(self, params: JsonObject) -> JsonObject:
        """The number of tokens of a request's input, without an answer to it."""
        counted = await self.count_input(params)
        return {"object": "response.input_tokens", "input_tokens": counted}

    @post(COUNT_MESSAGES)
    async def count_message_input(self, params: JsonObject) -> JsonObject:
        """The same for a request of Anthropic's Messages API."""
        return {"input_tokens": await self.count_input(self.read_messages(params))}

    async def count_input(self, params: JsonObject) -> int:
        """The number of tokens of a request's input; ModelError if this model cannot count."""
        raise ModelError("this server cannot count tokens", status=404, retryable=False)

    def read_messages(self, params: JsonObject) -> JsonObject:
        """A request of Anthropic's Messages API as create params."""
        return messages.as_params(params)

    @get("/weight_version")
    async def weight_version(self) -> JsonObject:
        """The `version` of the weights in use; null if this server does not know it."""
        figures = self.follower.figures() if self.follower else {}
        return {"version": self.policy_version, **figures}

    @post("/load_weights")
    async def load_weights(self, asked: JsonObject) -> JsonObject:
        """Look for new weights now; the reply of `/weight_version` after that."""
        if self.follower is None:
            raise ModelError("the server has no weight_sync", status=404, retryable=False)
        await self.follower.look()
        return await self.weight_version()

    @property
    def policy_version(self) -> int | None:
        """The version of the weights that answer the next request; None if it is unknown."""
        return self.follower.version if self.follower else None

    async def wait_for_version(self, params: JsonObject) -> None:
        """Wait until the version is in use that `require_version` in the create params names, and
        remove that name. No time limit of those who wait for this request ends meanwhile."""
        wanted = params.pop(REQUIRE_VERSION, None)
        if wanted is None:
            return
        if self.follower is None or type(wanted) is not int:
            what = "must be a whole number" if self.follower else "this server has no weight_sync"
            raise ModelError(f"{REQUIRE_VERSION}: {what}", status=400, retryable=False)
        session, is_to_come = current_session(), self.follower.version < wanted
        with holding(session.limits if session and is_to_come else ()):
            await self.follower.wait_for(wanted, VERSION_TIMEOUT_S)

    def reply_headers(self, reply: Any) -> Mapping[str, str]:
        version = self.policy_version
        if isinstance(reply, dict):
            version = (_versions(reply) or reply).get(VERSION_LAST, version)
        return {} if version is None else {VERSION_HEADER: str(version)}

    @post("/batches")
    async def batches(self, asked: BatchesRequest) -> JsonObject:
        """`settled`: those of the batches `ids` that nothing waits for any longer. With `cancel`,
        the provider is asked to end all."""
        if self.desk is None:
            return {"settled": asked.ids, "cancelled": 0}
        number = await self.desk.cancel() if asked.cancel else 0
        return {"settled": self.desk.find_settled(asked.ids), "cancelled": number}

    @post("/score_tokens")
    async def score_tokens(self, asked: ScoreRequest) -> JsonObject:
        """`log_probs`: of each token after the first, given those before it."""
        raise ModelError("this server cannot score tokens", status=404, retryable=False)

    @get("/load")
    async def load(self) -> JsonObject:
        """The `load_figures` of the model, and what was `answered` so far, in `answered_s`."""
        if not self._num_answered:
            return self.load_figures()
        answered = {"answered": self._num_answered, "answered_s": round(self._answered_s, 3)}
        return {**self.load_figures(), **answered}

    def load_figures(self) -> JsonObject:
        """Requests `running` and `waiting`, whether `throttled`, 429s so far; vLLM's own figures,
        if known: `kv_cache`, `engine_running`, `engine_waiting`, `preemptions` so far; what it
        holds: `max_sequences`, `kv_cache_tokens`, `max_model_len`, `output_tokens_each`."""
        return {"running": 0, "waiting": 0, "throttled": False, "num_429": 0}

    @get(MODELS)
    async def models(self) -> JsonObject:
        """The names that a request's `model` may have, in the OpenAI list format."""
        return {"object": "list", "data": [_entry(name) for name in self.model_names()]}

    def build_app(self, run_id: str = "") -> Any:
        """The app with `GET /v1/models/<name>`, which OpenAI's clients use to look up a model."""
        from starlette.requests import Request
        from starlette.responses import JSONResponse

        async def retrieved(request: Request) -> JSONResponse:
            try:
                return JSONResponse(await self.answer(request.url.path, b""))
            except RolloutError as error:
                return JSONResponse(error.to_wire(), error.status)

        app = super().build_app(run_id)
        app.add_route(f"{OF_MODEL}{{name:path}}", retrieved)
        return app

    def _model_entry(self, name: str) -> JsonObject:
        known = self.model_names()
        if name not in known:
            message = f"no model is called '{name}'; there is: {', '.join(known)}"
            raise ModelError(message, status=404, server=self.name)
        return _entry(name)

    def model_names(self) -> list[str]:
        return [self.model_name()]

    def model_name(self) -> str:
        """The model that is used unless the create params name another."""
        return self.name

    def endpoint(self) -> str:
        """The URL by which the price table recognizes the provider; empty if there is none."""
        return ""

    def hosts(self) -> list[str]:
        """The hosts that requests go to, with their ports; none if the model runs here."""
        return [host_of(url)] if (url := self.endpoint()) else []

    def bill(self, response: JsonObject, spent: Spent) -> None:
        """Add the usage of a response to `spent`. Without `usage` its cost is unknown."""
        tariff, tokens = self._tariff(response.get("model") or self.model_name()), 0
        cost = standard = 0.0 if tariff is FREE or not response.get("output") else None
        if cost is None and getattr(self.config, "prices", None) is None:
            cost = read_cost(response.get("usage"))
        try:
            tokens = total_tokens(response)
            if tariff and tokens and cost is None:
                cost = tariff.cost(response["usage"], response.get("service_tier"))
            if tariff and tokens and standard is None:
                standard = tariff.standard_cost(response["usage"])
        except (AttributeError, TypeError):  # the usage has an unknown form
            cost = standard = None
        spent.call(tokens, cost, standard)

    def _tariff(self, model: str) -> Tariff | None:
        """The tariff of a model, looked up once; that of the configured model if the name is
        unknown."""
        known = self._tariffs
        if model not in known:
            known[model] = self._look_up(model) or self._look_up(self.model_name())
        return known[model]

    def _look_up(self, model: str) -> Tariff | None:
        given = getattr(self.config, "prices", None)
        if given is None and self.is_own:
            return FREE
        return tariff_of(given, model, self.endpoint())

    def describe(self) -> JsonObject:
        """The description; `prices` is the tariff, if it is known."""
        tariff = self._tariff(self.model_name())
        prices = {"prices": tariff.to_json()} if tariff else {}
        known: JsonObject = {"model": self.model_name(), "hosts": self.hosts()}
        if self.desk is not None:
            known["batch"] = self.desk.describe()
        return {**super().describe(), **known, **prices}

    async def _answer_client(self, path: str, raw: bytes) -> Any:
        """Answer a client without a session, as a stream if the request asks for one. The stream is
        made of the complete answer, so that retries, rate limits and token ids keep working."""
        asked: Any = None
        with suppress(orjson.JSONDecodeError):
            asked = orjson.loads(raw)
        if not isinstance(asked, dict):
            return await super().handle(path, raw)
        wants_stream, options = asked.pop("stream", None), asked.pop("stream_options", None)
        # masked here, as a stream would cut secrets into pieces
        answer = self._mask_reply(await super().handle(path, orjson.dumps(asked)))
        if not wants_stream:
            return answer
        if path == RESPONSES:
            return EventStream.of(response_events(answer))
        if path == MESSAGES:
            return EventStream.of(messages.message_events(answer))
        wants_usage = isinstance(options, dict) and bool(options.get("include_usage"))
        return EventStream.of(completion_events(answer, usage=wants_usage))


def host_of(url: str) -> str:
    """The host of a URL and its port, without what stands before an @."""
    return urlsplit(url).netloc.rpartition("@")[2]


def _versions(response: Mapping[str, Any]) -> JsonObject:
    """The fields with the policy's versions in a response of one turn."""
    last = next(iter((response.get("output") or ())[-1:]), {})
    return {name: last[name] for name in (VERSION_FIRST, VERSION_LAST) if name in last}


def _entry(name: str) -> JsonObject:
    return {"id": name, "object": "model", "created": 0, "owned_by": "rollout_kit"}
