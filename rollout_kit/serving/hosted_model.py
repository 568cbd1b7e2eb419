"""Base of model servers that ask an OpenAI-compatible endpoint.

The endpoint may speak Responses or Chat Completions, streamed or not. Transient failures are
retried within one time limit for the whole request. All others become a ModelError with the
endpoint's own status and message. An infrastructure failure is never returned as an answer.
"""

import asyncio
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

import orjson
from pydantic import ConfigDict, Field

from ..errors import (
    THROTTLED,
    ModelError,
    PeerError,
    PeerLost,
    PeerUnreachable,
    RolloutError,
    on_one_line,
)
from ..responses import total_tokens
from ..session import current_session
from ..time_limit import running_loop
from ..types import JsonObject
from .endpoints.addresses import HeaderValue
from .endpoints.assembly import Assembly, CompletionAssembly, ResponseAssembly
from .endpoints.chat import RAW, MaxTokensField, sound_calls, to_chat
from .endpoints.outage import GONE, Outage
from .endpoints.patience import Throttling, Waited, lose_to_outage
from .endpoints.provider_data import origin_of, tag, untag
from .endpoints.rate_limit import HEADER_PREFIX, Allowances, RequestQueue
from .endpoints.raw import PATH as COMPLETION_PATH
from .endpoints.raw import as_chat, raw_text, to_completion
from .endpoints.refusals import (
    QUOTED,
    describe_no_json,
    extra_body,
    incomplete_by_refusal,
    incomplete_response,
    is_stream,
    read_refusal,
    read_response,
    take_reply,
)
from .endpoints.replies import UnknownFinishes, from_chat
from .model import RESPONSES, Model, ModelConfig
from .service import OPERATIONAL
from .transport.connection import Headers
from .transport.conversation import PLACE, Asked, Piece, Receiver
from .transport.http import MAX_REPLY_MB, HttpClient, Reply
from .transport.loop import step
from .transport.retry import MODEL_REQUEST, retry
from .transport.wire import Route

PATHS = {"responses": "/responses", "chat_completions": "/chat/completions"}

ANSWER_TIMEOUT_S = 10.0
"""Time in which an endpoint that is up answers a plain GET."""

SHARE_THROTTLED = 0.5
"""Share of `request_timeout_s` that one request waits for a rate limit. Then its caller asks again,
because it may not wait longer for one reply."""

DELIVERY_PARAMS = ("stream", "stream_options")
"""Params about the delivery of an answer: the server decides them, not the row."""


class HostedModelConfig(ModelConfig):
    # pydantic before 2.10 reserves every name that begins with model_
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    openai_default_headers: dict[str, HeaderValue] = Field(
        {}, repr=False, json_schema_extra=OPERATIONAL, description="Added to every request."
    )
    extra_body: JsonObject = Field({}, description="Parameters for rows that do not set them.")
    service_tier: str | None = Field(
        None,
        json_schema_extra=OPERATIONAL,
        description="auto, default, flex, priority or scale, for rows that do not set it.",
    )
    unsupported_params: list[str] = Field(
        [], description="Parameters that the endpoint rejects; they are not sent."
    )
    drop_input_reasoning_items: bool = Field(
        False, description="Send earlier turns to the model without their reasoning items."
    )
    upstream_api: Literal["responses", "chat_completions"] = Field(
        "responses", description="The API that the endpoint speaks."
    )
    max_tokens_field: MaxTokensField = Field(
        "max_completion_tokens",
        description="Name of the token limit in the endpoint's Chat Completions.",
    )
    stream: bool = Field(
        False,
        json_schema_extra=OPERATIONAL,
        description="Ask for streamed answers, so that no gateway times out during a long one.",
    )
    request_timeout_s: float = Field(
        600.0,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="Time limit of a request with all tries and pauses, without the wait for a rate"
        " limit and without the time in which a streamed answer arrives.",
    )
    max_reply_mb: float = Field(
        MAX_REPLY_MB,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="Largest reply of the endpoint in megabytes, decompressed.",
    )
    max_tries: int = Field(
        4,
        ge=1,
        json_schema_extra=OPERATIONAL,
        description="Tries of a request that fails with 408, 409, 429, 5xx or a lost connection.",
    )


class HostedModel(Model):
    """A subclass provides the endpoint's `url`, the credentials (`headers`) and the
    `model_name`."""

    Config = HostedModelConfig
    config: HostedModelConfig

    def __init__(self, config: HostedModelConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        self._free = asyncio.Semaphore(num) if (num := config.max_concurrent_requests) else None
        self._policy = replace(
            MODEL_REQUEST, max_tries=config.max_tries, deadline_s=config.request_timeout_s
        )
        self._http: HttpClient | None = None
        # what each request needs; to read a field of a configuration takes several times as long
        self._timeout_s, self._is_streaming = config.request_timeout_s, config.stream
        self._drops_reasoning = config.drop_input_reasoning_items
        self._open = self._running = self._num_429 = 0
        allowed = {"requests": config.requests_per_minute, "tokens": config.tokens_per_minute}
        self._queue = RequestQueue(Allowances(allowed))
        self._outage, self._throttling = Outage(name, self._answers), Throttling(name)
        self._is_chat = config.upstream_api == "chat_completions"
        self._not_sent = (*DELIVERY_PARAMS, RAW, *config.unsupported_params)
        self._lowest: JsonObject = {"model": self.model_name()}
        if config.service_tier:
            self._lowest["service_tier"] = config.service_tier
        self._lowest |= config.extra_body
        self._delivery: JsonObject = {"stream": True} if config.stream else {}
        if self._is_chat:  # some endpoints stream unless they are told not to
            options = {"stream_options": {"include_usage": True}} if config.stream else {}
            self._delivery = {"stream": config.stream, **options}
        for key in config.unsupported_params:
            self._delivery.pop(key, None)
        self._finishes = UnknownFinishes(name)

    def url(self, model: str) -> str:
        """The URL for requests to this model."""
        raise NotImplementedError

    async def headers(self) -> Mapping[str, str]:
        """The headers with the credentials."""
        raise NotImplementedError

    async def renew_headers(self, headers: Mapping[str, str]) -> bool:
        """Replace credentials that the endpoint refused; return whether there are others."""
        return False

    async def start(self) -> None:
        self._http = HttpClient(max_reply_mb=self.config.max_reply_mb)

    async def stop(self) -> None:
        if self._http:
            await self._http.close()

    def load_figures(self) -> JsonObject:
        return {
            "running": self._running,
            "waiting": self._open - self._running,
            "throttled": self._queue.is_throttled(),
            "num_429": self._num_429,
            **self._queue.allowances.paces(),
            **({"endpoints_down": 1} if self._outage.is_on else {}),
        }

    @cached_property
    def takes_pieces(self) -> bool:
        """Whether requests are read in pieces. Subclasses may look at all items."""
        own = type(self)
        return own.responses is HostedModel.responses and own.handle is HostedModel.handle

    def _parse(self, route: Route, raw: bytes | Asked) -> Any:
        """A request; if it continues the last one of its session, with new items only."""
        session = current_session()
        if session is None or route.path != RESPONSES or not self.takes_pieces:
            return super()._parse(route, bytes(raw))
        return session.conversations.setdefault(self.name, Receiver()).read(raw)

    async def responses(self, params: JsonObject) -> JsonObject:
        asked = self._request(params)
        self._open += 1
        try:
            if self._free is None:
                return await self._send(asked)
            async with self._free:
                # a refused request keeps its slot: another in its place would be refused as well
                return await self._send(asked)
        finally:
            self._open -= 1

    async def _send(self, asked: "_Request") -> JsonObject:
        """Send a request; nearly always once."""
        now = running_loop().time
        clock = Waited(now, self._timeout_s * SHARE_THROTTLED, self._queue)
        if (expected := self._queue.send_now(now())) is None:
            expected = await clock.wait_turn()
        began = clock()
        if self._outage.is_on:
            return await self._send_patiently(asked, clock, began, expected=expected)
        try:
            return await self._try(asked, self._timeout_s, expected, clock)
        except RolloutError as error:
            failed = error
        return await self._send_patiently(asked, clock, began, failed=failed)

    async def _send_patiently(
        self,
        asked: "_Request",
        clock: Waited,
        began: float,
        *,
        expected: float | None = None,
        failed: RolloutError | None = None,
    ) -> JsonObject:
        """Send a request until it is answered, or may not be sent again. `failed` is the error of
        its first try, which `began` then; else `expected` belongs to the first one."""

        def left() -> float:
            return max(began + self._timeout_s - clock(), 0.001)

        async def send() -> JsonObject:
            nonlocal expected
            tokens, expected = expected, None
            if tokens is None:
                tokens = await clock.wait_turn()
            return await self._try(asked, left(), tokens, clock)

        try:
            return await self._outage.call(send, left, lose_to_outage, failed)
        except RolloutError as error:
            first = error, began
        try_once = partial(self._outage.call, send, left, lose_to_outage)
        return await retry(try_once, self._policy, clock=clock, on_retry=clock.lose, first=first)

    def _request(self, params: JsonObject) -> "_Request":
        """The request. The row replaces configured values, the row's `extra_body` both."""
        session = current_session()
        sent = session.conversations.get(self.name) if session else None
        if sent is not None and (sent.asked is None or sent.asked.request is not params):
            sent = None  # that of another request
        row = {key: value for key, value in params.items() if value is not None}
        extra = extra_body(row)
        model = str({**self._lowest, **row, **extra}["model"])
        origin, delivery = origin_of(self.url(model), model), self._delivery
        items: list[Piece] | None = None
        if isinstance(row.get("input"), list):
            if sent is None or self._is_chat or RAW in row:
                row["input"] = self._prepare((sent.read_whole() if sent else row)["input"])
            else:
                items = sent.make(partial(self._change, origin=origin), origin)
                row["input"] = orjson.Fragment(PLACE)
        if (text := raw_text(row)) is not None:
            row, delivery = to_completion(row, text), {}
        elif self._is_chat:
            field = self.config.max_tokens_field
            row = to_chat(row, max_tokens_field=field, endpoint=origin)
        elif items is None and isinstance(row.get("input"), list):
            row["input"] = list(untag(row["input"], origin))
        for key in self._not_sent:
            row.pop(key, None)
        raw = orjson.dumps({**self._lowest, **row, **extra, **delivery})
        before, has_place, after = raw.partition(PLACE)
        sent_as: list[Piece] = [before, *items, after] if items and has_place else [raw]
        return _Request(params, model, origin, sent_as, text is not None)

    def _prepare(self, items: list[Any]) -> list[Any]:
        """The items as an endpoint may see them, but for provider data."""
        if self._drops_reasoning:
            items = [item for item in items if item.get("type") != "reasoning"]
        return sound_calls(items)

    def _change(self, items: list[Any], origin: str) -> list[Any]:
        """The items as a Responses endpoint may see them."""
        return list(untag(self._prepare(items), origin))

    async def _try(
        self, asked: "_Request", timeout_s: float, expected: float, clock: Waited
    ) -> JsonObject:
        """Send the request once; `expected` are the tokens that the queue reserved for it."""
        assert self._http, "start() opens the connection pool"
        allowances, now, assembly = self._queue.allowances, clock.now, None
        if self._is_streaming and not asked.is_completion:
            clock.begin()
            assembly = self._assembly(clock.hear)
        url, headers = self.url(asked.model), await self.headers()
        if asked.is_completion:
            url = url.replace(PATHS[self.config.upstream_api], COMPLETION_PATH)
        sent_at = now()
        self._running += 1
        try:
            reply = await self._http.post(
                url,
                asked.pieces,
                headers=headers,
                timeout_s=timeout_s,
                arrived=assembly.feed if assembly else None,
            )
        except PeerError as error:
            if assembly is None or assembly.whole(is_broken=True) is None:
                failed = ModelError(error.message, status=error.status, retryable=error.retryable)
                if isinstance(error, PeerUnreachable | PeerLost):
                    is_sent = isinstance(error, PeerLost)
                    self._outage.record_failure(failed, asked.row, is_sent=is_sent)
                raise failed from error
            reply = Reply(200, Headers([]), b"")  # the answer was complete before the failure
        finally:
            self._running -= 1
        await step
        if reply.status not in GONE:
            self._outage.record_answer(sent_at)
        if is_stream(reply) and not asked.is_completion:  # though none was asked for
            assembly = self._assembly()
            assembly.feed(reply.raw)
        streamed = assembly is not None and assembly.has_begun
        payload = assembly.whole() if assembly and streamed else take_reply(reply)
        allowances.read_headers(now(), reply.headers.starting_with(HEADER_PREFIX))
        if reply.status == 200 and not (isinstance(payload, dict) and payload.get("error")):
            response = self._answer(payload, url, reply, asked, streamed)
            allowances.record_answer(now(), expected, total_tokens(response))
            self._throttling.record_answer()
            return response
        if reason := incomplete_by_refusal(reply.status, payload):
            return incomplete_response(reason, asked.params, self.model_name())
        error = read_refusal(payload, url, reply, asked.model)
        if reply.status in GONE:
            self._outage.record_failure(error, asked.row, is_sent=True)
        if error.status == 401 and await self.renew_headers(headers):
            error.retryable = True
        elif error.status in THROTTLED and error.retryable:
            self._num_429 += 1
            if session := current_session():
                session.spent.throttled += 1
            allowances.record_refusal(now(), sent_at, error.retry_after_s)
            self._throttling.record_refusal(error, now())
        raise error

    def _assembly(self, heard: Callable[[], None] = lambda: None) -> Assembly:
        return (CompletionAssembly if self._is_chat else ResponseAssembly)(heard)

    async def _answers(self) -> bool:
        """Whether the endpoint answers a request that carries no row."""
        assert self._http, "start() opens the connection pool"
        try:
            url, headers = self.url(self.model_name()), await self.headers()
            reply = await self._http.get(url, headers=headers, timeout_s=ANSWER_TIMEOUT_S)
        except PeerError:
            return False
        return reply.status not in GONE

    def _answer(
        self, payload: Any, url: str, reply: Reply, asked: "_Request", streamed: bool
    ) -> JsonObject:
        if payload is None:
            what = describe_no_json(reply.text())
            if streamed:
                what = "a stream that ended before its answer was whole"
            raise ModelError(f"{url} answered 200: {what}", body=reply.text(), retryable=True)
        try:
            if not (self._is_chat or asked.is_completion):
                response = read_response(payload)
                tag(response["output"], asked.origin)
            else:
                completion = as_chat(payload) if asked.is_completion else payload
                given = {"model": self.model_name(), **asked.params}
                response = from_chat(completion, given, asked.origin)
            self._finishes.look(response)
            return response
        except ModelError as error:
            begins = on_one_line(error.body, QUOTED)
            error.message = f"{url} answered 200: {error.message}; it begins with {begins}"
            raise


@dataclass(slots=True)
class _Request:
    """A request: the row's params, and the bytes that are sent."""

    params: JsonObject
    model: str
    origin: str
    """What names the endpoint for `provider_data`."""
    pieces: list[Piece]
    """What is sent."""
    is_completion: bool
    """Whether the model continues one text; such answers are never streamed."""

    @property
    def row(self) -> Hashable:
        """The row that it serves, or the request itself."""
        session = current_session()
        return session.rollout[0] if session and session.rollout else id(self)
