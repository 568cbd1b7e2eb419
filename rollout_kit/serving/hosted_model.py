"""Base of model servers that ask an OpenAI-compatible endpoint.

The endpoint may speak Responses or Chat Completions, streamed or not. Transient failures are
retried within one time limit for the whole request. All others become a ModelError with the
endpoint's own status and message. An infrastructure failure is never returned as an answer.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import orjson

from ..errors import (
    THROTTLED,
    ConfigError,
    ModelError,
    PeerError,
    PeerLost,
    PeerUnreachable,
    RolloutError,
    TaskError,
    on_one_line,
)
from ..responses import total_tokens
from ..session import Session, current_session, note_repair
from ..time_limit import running_loop
from ..types import JsonObject
from .batches.batch_keys import BatchKeys
from .batches.desk import BatchDesk, BatchResult
from .batches.offers import Offer, find_offer
from .batches.provider import Provider
from .batches.run_batch import RunBatch
from .endpoints.assembly import ASSEMBLIES, Assembly
from .endpoints.chat import RAW
from .endpoints.continuing import (
    FORGOTTEN,
    NO_CONVERSATION,
    StoredConversation,
    is_forgotten,
    may_continue,
    with_items,
)
from .endpoints.counting import counter_of, read_count
from .endpoints.keys import EndpointConfig as EndpointConfig
from .endpoints.keys import HostedModelConfig as HostedModelConfig
from .endpoints.outage import GONE, Outage
from .endpoints.patience import FirstOfTask, Throttling, Waited, lose_to_outage
from .endpoints.prices import BATCH, FLEX, Tariff
from .endpoints.provider_data import origin_of, tag
from .endpoints.rate_limit import HEADER_PREFIX, Allowances, RequestQueue
from .endpoints.raw import PATH as COMPLETION_PATH
from .endpoints.raw import as_chat
from .endpoints.refusals import (
    QUOTED,
    describe_no_json,
    incomplete_by_refusal,
    incomplete_response,
    is_stream,
    read_refusal,
    read_response,
    take_reply,
)
from .endpoints.replies import UnknownFinishes, from_chat
from .endpoints.requests import Received, Request, RequestForm, read_row
from .model import RESPONSES, Model
from .transport.connection import Headers
from .transport.conversation import PLACE, Piece, RequestReader, SplitRequest
from .transport.http import HttpClient, Reply
from .transport.loop import step
from .transport.places import ModelPlaces
from .transport.retry import MODEL_REQUEST, retry
from .transport.wire import Route

__all__ = ["PATHS", "EndpointConfig", "HostedModel", "HostedModelConfig", "Received", "Request"]

PATHS = {
    "responses": "/responses",
    "chat_completions": "/chat/completions",
    "messages": "/messages",
}

ANSWER_TIMEOUT_S = 10.0
"""Time in which an endpoint that is up answers a plain GET."""

SHARE_THROTTLED = 0.5
"""Share of `request_timeout_s` that one request waits for a rate limit. Then its caller asks again,
because it may not wait longer for one reply."""

LONG = 64 << 10
"""Bytes of items from which a request is sent in pieces. To join fewer costs next to nothing."""

DELIVERY_PARAMS = ("stream", "stream_options")
"""Params about the delivery of an answer: the server decides them, not the row."""


class HostedModel(Model):
    """A subclass provides the endpoint's `url`, the credentials (`headers`) and the
    `model_name`. If its endpoint is asked in a way of its own, it overrides `request_form` or
    `request` (what is sent), `ask` (how one try goes), `post` (how bytes are sent), `limit_headers`
    (its rate limits), `note_failure` (what a failure says about the endpoint), `response` (what an
    answer is) or `now`."""

    Config = HostedModelConfig
    config: HostedModelConfig

    def __init__(self, config: HostedModelConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        self._free = ModelPlaces(num) if (num := config.max_concurrent_requests) else None
        self._policy = replace(
            MODEL_REQUEST, max_tries=config.max_tries, deadline_s=config.request_timeout_s
        )
        self._http: HttpClient | None = None
        # to read a field of a configuration takes several times as long
        self._timeout_s = config.request_timeout_s
        self._open = self._running = self._num_429 = 0
        allowed = {"requests": config.requests_per_minute, "tokens": config.tokens_per_minute}
        self._queue = RequestQueue(Allowances(allowed))
        self._outage, self._throttling = Outage(name, self._answers), Throttling(name)
        self._finishes = UnknownFinishes(name)
        self._offer = self._find_offer()
        leads = getattr(config, "lead_repeats", False) or (self._offer and not self._offer.cache)
        self._leading = FirstOfTask() if leads else None
        self._continues = bool(getattr(config, "use_previous_response_id", False))
        self.form = self.request_form()
        self._is_chat = self.form.api == "chat_completions"
        self._is_streaming = bool(self.form.delivery.get("stream"))
        if isinstance(config, BatchKeys) and (config.batch or self._has_batches()):
            if config.max_cost_usd is not None:
                raise ConfigError(
                    f"{name}: max_cost_usd: the cost of a batch is known when it has ended: leave"
                    " it out, and limit the run with +max_cost_usd"
                )
            terms = config.batch_terms(name)
            self.desk = BatchDesk(name, terms, self._connect_batches)

    def url(self, model: str) -> str:
        """The URL for requests to this model."""
        raise NotImplementedError

    def _look_up(self, model: str) -> Tariff | None:
        tariff = super()._look_up(model)
        return tariff if self.desk is None else self.desk.price(tariff)

    def _find_offer(self) -> Offer | None:
        """What makes requests cheaper, if that is to be chosen for each."""
        if not (isinstance(self.config, BatchKeys) and self.config.cheapest):
            return None
        return find_offer(self.config, super()._look_up(self.model_name()))

    def _has_batches(self) -> bool:
        return self._offer is not None and not self._offer.batch

    def describe(self) -> JsonObject:
        found = super().describe()
        return found if self._offer is None else {**found, "cheapest": self._offer.to_json()}

    def _choose_tier(self, session: Session | None) -> str:
        """The service tier of a request, if its session may have another one than the usual."""
        if session is None or self._offer is None or (self.desk and session.ticket):
            return ""
        return FLEX if session.tier == FLEX and not self._offer.flex else ""

    async def headers(self) -> Mapping[str, str]:
        """The headers with the credentials."""
        raise NotImplementedError

    async def renew_headers(self, headers: Mapping[str, str]) -> bool:
        """Replace credentials that the endpoint refused; return whether there are others."""
        return False

    def _connect_batches(self) -> Provider:
        if (folder := self.config.batch_files) is None:
            return self.connect_batches()
        if self.form.api not in ("responses", "chat_completions"):
            raise ConfigError(f"{self.name}: batch_files: vLLM's run-batch has no {self.form.api}")
        return RunBatch(folder, f"/v1{PATHS[self.form.api]}", self.model_name())

    def connect_batches(self) -> Provider:
        """How the provider is asked for batches; ConfigError if that is not possible."""
        raise ConfigError(f"{self.name}: no batches are known for this server: leave out batch")

    def request_form(self) -> RequestForm:
        """How requests are written; called once."""
        config, is_chat = self.config, self.config.upstream_api == "chat_completions"
        tier = {"service_tier": config.service_tier} if config.service_tier else {}
        delivery: JsonObject = {"stream": True} if config.stream else {}
        if is_chat:  # some endpoints stream unless they are told not to
            options = {"stream_options": {"include_usage": True}} if config.stream else {}
            delivery = {"stream": config.stream, **options}
        for key in config.unsupported_params:
            delivery.pop(key, None)
        return RequestForm(
            config.upstream_api,
            {"model": self.model_name(), **tier, **config.extra_body},
            delivery,
            not_sent=(*DELIVERY_PARAMS, RAW, *config.unsupported_params),
            max_tokens_field=config.max_tokens_field,
            drops_reasoning=config.drop_input_reasoning_items,
        )

    async def start(self) -> None:
        if self.desk is not None:
            self.desk.connect()
        network = self.config.network()
        self._http = HttpClient(max_reply_mb=self.config.max_reply_mb, network=network)

    async def stop(self) -> None:
        if self.desk is not None:
            await self.desk.stop()
        if self._http:
            await self._http.close()

    def load_figures(self) -> JsonObject:
        return {
            "running": self._running,
            "waiting": self._open - self._running,
            "throttled": self._queue.is_throttled(),
            "num_429": self._num_429,
            **self._queue.allowances.paces(),
            **(self.desk.figures() if self.desk else {}),
            **({"endpoints_down": 1} if self._outage.is_on else {}),
        }

    @cached_property
    def takes_pieces(self) -> bool:
        """Whether requests are read in pieces. Subclasses may look at all items."""
        own, base = type(self), HostedModel
        looks = own.responses, own.handle, own.request
        return looks == (base.responses, base.handle, base.request)

    def _parse(self, route: Route, raw: bytes | SplitRequest) -> Any:
        """A request; if it continues the last one of its session, with new items only."""
        session = current_session()
        if session is None or route.path != RESPONSES or not self.takes_pieces:
            return super()._parse(route, bytes(raw))
        return session.conversations.setdefault(self.name, RequestReader()).read(raw)

    def _conversation_of(self, params: JsonObject) -> RequestReader | None:
        """What has read these params, if it has kept all of their items."""
        session = current_session()
        found = session.conversations.get(self.name) if session else None
        has_read = found and found.asked and found.asked.request is params
        return found if has_read else None

    async def responses(self, params: JsonObject) -> JsonObject:
        session = current_session()
        if session and params.get("conversation") is not None:
            raise TaskError(NO_CONVERSATION, status=400)
        if self.desk and session and session.ticket:
            asked, response = self.request(params), None
            if not asked.is_completion:
                read = partial(self._read_result, asked)
                response = await self.desk.ask(session, asked.model, asked.joined, read)
            return response or await self.in_slot(lambda: self.send(asked))
        if self._continues and session and may_continue(params):
            kept = session.conversations.setdefault(f"{self.name} stored", StoredConversation())
            return await self.in_slot(lambda: self._continue(params, kept))
        return await self.in_slot(lambda: self.send(self.request(params)))

    def _read_result(self, asked: Request, found: BatchResult) -> JsonObject:
        """The response that a batch has given, at its price."""
        reply = Reply(found.status, Headers([]), b"")
        received = Received(self.url(asked.model), {}, 0.0, reply, found.payload, False)
        if received.is_answer:
            response = self._read_answer(asked, received)
            self._finishes.look(response)
            return {**response, "service_tier": BATCH}
        if reason := incomplete_by_refusal(found.status, found.payload):
            return incomplete_response(reason, asked.params, asked.model)
        place = asked.place(received.url)
        raise read_refusal(found.payload, received.url, reply, asked.model, f"{place}, by batch,")

    async def _continue(self, params: JsonObject, kept: StoredConversation) -> JsonObject:
        """Send what the endpoint has not stored yet, or all if it has stored nothing."""
        sent = self._conversation_of(params)
        params = with_items(sent.read_whole() if sent else params)
        new, response_id = kept.shorten(params), kept.response_id
        if new is not None:
            try:
                return kept.note(params, await self.send(self.request(new)))
            except ModelError as error:
                if not is_forgotten(error, response_id):
                    raise
                note_repair(FORGOTTEN)
        return kept.note(params, await self.send(self.request(params)))

    async def in_slot(self, work: Callable[[], Awaitable[JsonObject]]) -> JsonObject:
        """Do the work for a request when fewer than `max_concurrent_requests` are at work."""
        self._open += 1
        try:
            if self._free is None:
                return await work()
            async with self._free.hold():
                # a refused request keeps its slot: another in its place would be refused as well
                return await work()
        finally:
            self._open -= 1

    async def send(self, asked: Request, *, is_led: bool = False) -> JsonObject:
        """Send a request until it is answered. Nearly all are answered at once, and do without the
        closures and coroutines that retries and outages need."""
        if self._leading is not None and not is_led and (task := self._task()):
            async with self._leading.following(task):
                return await self.send(asked, is_led=True)
        clock = Waited(self.now, self._timeout_s * SHARE_THROTTLED, self._queue)
        await clock.wait_turn()
        began = clock()
        if self._outage.is_on:
            return await self._send_patiently(asked, clock, began, None)
        try:
            return await self.ask(asked, self._timeout_s, clock)
        except RolloutError as error:
            failed = error
        return await self._send_patiently(asked, clock, began, failed)

    async def _send_patiently(
        self, asked: Request, clock: Waited, began: float, failed: RolloutError | None
    ) -> JsonObject:
        """Send a request until it is answered, or may not be sent again. `failed` is the error of
        its first try, which `began` then; without it, the request has its turn."""
        has_turn = failed is None

        def left() -> float:
            return max(began + self._timeout_s - clock(), 0.001)

        async def send() -> JsonObject:
            nonlocal has_turn
            if not has_turn:
                await clock.wait_turn()
            has_turn = False
            return await self.ask(asked, left(), clock)

        try:
            return await self._outage.call(send, left, lose_to_outage, failed)
        except RolloutError as error:
            first = error, began
        try_once = partial(self._outage.call, send, left, lose_to_outage)
        return await retry(try_once, self._policy, clock=clock, on_retry=clock.lose, first=first)

    async def count_input(self, params: JsonObject) -> int:
        counter, (row, extra) = counter_of(self.form.api), read_row(params)
        model, path = self.form.model(row, extra), PATHS[self.form.api]
        url = self.url(model)
        body = self.form.body(row, extra, origin_of(url, model))
        asked = Request(params, model, "", orjson.dumps(counter.select(body)), False)
        count = partial(self._count, asked, url.replace(path, f"{path}{counter.path}"))
        return await retry(count, self._policy)

    async def _count(self, asked: Request, url: str) -> int:
        headers, sent_at = await self.headers(), running_loop().time()
        try:
            reply = await self.post(url, asked.raw, headers, self._timeout_s)
        except PeerError as error:
            raise await self.lose(asked, error) from error
        received = Received(url, headers, sent_at, reply, take_reply(reply), False)
        if not received.is_answer:
            raise await self.refuse(asked, received)
        return read_count(received.payload, url)

    def _task(self) -> str:
        """The task whose rollout asks; empty if it is none."""
        session = current_session()
        return session.rollout[0] if session and session.rollout else ""

    def _hear(self, clock: Waited) -> None:
        """Note that a piece of an answer has come."""
        clock.hear()
        if self._leading is not None:
            self._leading.begin(self._task())

    def now(self) -> float:
        """The time that limits of requests are measured with; it may stand still."""
        return running_loop().time()

    def request(self, params: JsonObject) -> Request:
        """The request for a row. The row replaces configured values, its `extra_body` both."""
        row, extra = read_row(params)
        if self._leading is not None and self.form.api != "messages" and (task := self._task()):
            row.setdefault("prompt_cache_key", task)
        if tier := self._choose_tier(current_session()):
            row.setdefault("service_tier", tier)
        model = self.form.model(row, extra)
        origin, is_completion = origin_of(self.url(model), model), bool(row.get(RAW))
        items: list[Piece] = []
        if (sent := self._conversation_of(params)) is not None:
            if self.form.api == "responses" and not is_completion:
                items = sent.make(partial(self.form.change, origin=origin), origin)
                row["input"] = orjson.Fragment(PLACE)
            else:
                row["input"] = sent.read_whole()["input"]
        raw = orjson.dumps(self.form.body(row, extra, origin))
        before, has_items, after = raw.partition(PLACE)
        sent_as: bytes | list[Piece] = raw
        if has_items:
            sent_as = [before, *items, after]
            if sum(map(len, items)) < LONG:
                sent_as = b"".join(sent_as)
        return Request(params, model, origin, sent_as, is_completion)

    async def ask(self, asked: Request, timeout_s: float, clock: Waited) -> JsonObject:
        """Send a request once; its response, or a ModelError."""
        url = self.url(asked.model)
        if asked.is_completion:
            url = url.replace(PATHS[self.form.api], COMPLETION_PATH)
        return await self.read(asked, await self.exchange(asked, url, timeout_s, clock), clock)

    async def exchange(self, asked: Request, url: str, timeout_s: float, clock: Waited) -> Received:
        """What comes back for a request that is sent once; ModelError if nothing does."""
        now, assembly = running_loop().time, None
        if self._is_streaming and not asked.is_completion:
            clock.begin()
            assembly = self._assembly(partial(self._hear, clock))
        headers, sent_at = await self.headers(), now()
        try:
            arrived = assembly.feed if assembly else None
            reply = await self.post(url, asked.raw, headers, timeout_s, arrived)
        except PeerError as error:
            if assembly is None or assembly.whole(is_broken=True) is None:
                raise await self.lose(asked, error) from error
            reply = Reply(200, Headers([]), b"")  # the answer was complete before the failure
        await step
        if reply.status not in GONE:
            self._outage.record_answer(sent_at)
        if is_stream(reply) and not asked.is_completion:  # though none was asked for
            assembly = self._assembly()
            assembly.feed(reply.raw)
        streamed = assembly is not None and assembly.has_begun
        payload = assembly.whole() if assembly and streamed else take_reply(reply)
        self._queue.allowances.read_headers(now(), self.limit_headers(reply.headers))
        return Received(url, headers, sent_at, reply, payload, streamed)

    def limit_headers(self, headers: Headers) -> Mapping[str, str]:
        """The headers of a reply that name the endpoint's limits, as OpenAI spells them."""
        return headers.starting_with(HEADER_PREFIX)

    async def post(
        self,
        url: str,
        raw: bytes | list[Piece],
        headers: Mapping[str, str],
        timeout_s: float,
        arrived: Callable[[bytes], None] | None = None,
    ) -> Reply:
        """The reply to bytes that are sent once; PeerError if none comes."""
        assert self._http, "start() opens the connection pool"
        self._running += 1
        try:
            return await self._http.post(
                url, raw, headers=headers, timeout_s=timeout_s, arrived=arrived
            )
        finally:
            self._running -= 1

    async def read(self, asked: Request, received: Received, clock: Waited) -> JsonObject:
        """The response in what came back; an empty one to a row that is refused for what it says;
        ModelError for other refusals."""
        if received.is_answer:
            response = self._read_answer(asked, received)
            self.count_tokens(response, clock)
            return response
        if reason := incomplete_by_refusal(received.reply.status, received.payload):
            return incomplete_response(reason, asked.params, asked.model)
        raise await self.refuse(asked, received)

    def count_tokens(self, response: JsonObject, clock: Waited) -> None:
        """Count an answer for the rate limits."""
        used = total_tokens(response)
        self._queue.allowances.record_answer(running_loop().time(), clock.expected, used)
        self._throttling.record_answer()
        self._finishes.look(response)

    async def lose(self, asked: Request, cause: PeerError) -> ModelError:
        """The error of a request without a reply."""
        error = ModelError(cause.message, status=cause.status, retryable=cause.retryable)
        await self.note_failure(asked, error, cause)
        return error

    async def refuse(self, asked: Request, received: Received) -> ModelError:
        """The error of a refusal."""
        reply = received.reply
        place = asked.place(received.url)
        error = read_refusal(received.payload, received.url, reply, asked.model, place)
        await self.note_failure(asked, error, reply)
        if error.status == 401 and await self.renew_headers(received.headers):
            error.retryable = True
        elif error.status in THROTTLED and error.retryable:
            self._num_429 += 1
            if session := current_session():
                session.spent.throttled += 1
            now = running_loop().time()
            self._queue.allowances.record_refusal(now, received.sent_at, error.retry_after_s)
            self._throttling.record_refusal(error, now)
        return error

    async def note_failure(
        self, asked: Request, error: ModelError, cause: PeerError | Reply
    ) -> None:
        """Learn about the endpoint from a request that failed: its reply was `cause`, or there was
        none because of it."""
        is_gone = isinstance(cause, Reply) and cause.status in GONE
        if is_gone or isinstance(cause, PeerUnreachable | PeerLost):
            is_sent = not isinstance(cause, PeerUnreachable)
            self._outage.record_failure(error, asked.row, is_sent=is_sent)

    def _assembly(self, heard: Callable[[], None] = lambda: None) -> Assembly:
        return ASSEMBLIES[self.form.api](heard)

    async def _answers(self) -> bool:
        """Whether the endpoint answers a request that carries no row."""
        assert self._http, "start() opens the connection pool"
        try:
            url, headers = self.url(self.model_name()), await self.headers()
            reply = await self._http.get(url, headers=headers, timeout_s=ANSWER_TIMEOUT_S)
        except PeerError:
            return False
        return reply.status not in GONE

    def _read_answer(self, asked: Request, received: Received) -> JsonObject:
        answered = f"{asked.place(received.url)} answered 200"
        if received.payload is None:
            text = received.reply.text()
            what = describe_no_json(text)
            if received.is_streamed:
                what = "a stream that ended before its answer was whole"
            raise ModelError(f"{answered}: {what}", body=text, retryable=True)
        try:
            return self.response(asked, received.payload)
        except ModelError as error:
            begins = f"; it begins with {on_one_line(error.body, QUOTED)}" if error.body else ""
            error.message = f"{answered}: {error.message}{begins}"
            raise

    def response(self, asked: Request, payload: Any) -> JsonObject:
        """The response that the endpoint's JSON is; ModelError if it is none."""
        if self._is_chat or asked.is_completion:
            completion = as_chat(payload) if asked.is_completion else payload
            return from_chat(completion, {"model": asked.model, **asked.params}, asked.origin)
        response = read_response(payload)
        tag(response["output"], asked.origin)
        return response
