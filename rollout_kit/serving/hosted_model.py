"""A model behind somebody else's OpenAI-compatible endpoint: Responses as it is, or Chat
Completions translated, whole or streamed.

What is transient is tried again within one time limit for the whole request; what is not becomes a
ModelError with the endpoint's own status and words. An infrastructure failure is never an answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import orjson
from pydantic import ConfigDict, Field

from ..endpoints.chat import MaxTokensField, from_chat, to_chat
from ..endpoints.events import Assembly, CompletionAssembly, ResponseAssembly
from ..endpoints.outage import GONE, Outage
from ..endpoints.rate_limit import TOLD, Allowances, RequestQueue
from ..endpoints.refusals import (
    extra_body,
    is_context_overflow,
    is_out_of_money,
    is_wrong_key,
    overflowed,
    parsed,
    status_told,
    wait_s,
    without_secrets,
)
from ..errors import THROTTLED, ModelError, PeerError, PeerLost, PeerUnreachable, summary
from ..session import current_session
from ..transport.connection import Headers
from ..transport.http import HttpClient, Reply
from ..transport.retry import MODEL_REQUEST, retry
from ..types import JsonObject
from .model import Model, ModelConfig, record_lost_time
from .service import OPERATIONAL

PATHS = {"responses": "/responses", "chat_completions": "/chat/completions"}

HOW_IT_COMES = ("stream", "stream_options")
"""Params that say how an answer is delivered; that is settled here, and not by the row."""


class HostedModelConfig(ModelConfig):
    # pydantic before 2.10 reserves every name that begins with model_
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    openai_default_headers: dict[str, str] = Field(
        {}, repr=False, json_schema_extra=OPERATIONAL, description="Added to every request."
    )
    extra_body: JsonObject = Field({}, description="Parameters for rows that do not set them.")
    service_tier: str | None = Field(
        None,
        json_schema_extra=OPERATIONAL,
        description="auto, default, flex, priority or scale; a row's own wins.",
    )
    unsupported_params: list[str] = Field(
        [], description="Parameters that the endpoint does not take: they are not sent."
    )
    drop_input_reasoning_items: bool = Field(
        False, description="Leave reasoning items out of what is sent back to the model."
    )
    upstream_api: Literal["responses", "chat_completions"] = Field(
        "responses", description="The API that the endpoint speaks."
    )
    max_tokens_field: MaxTokensField = Field(
        "max_completion_tokens", description="What its Chat Completions call the most tokens."
    )
    stream: bool = Field(
        False,
        json_schema_extra=OPERATIONAL,
        description="Have answers streamed, so that no gateway takes a long one for dead.",
    )
    request_timeout_s: float = Field(
        600.0,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="Most time for a request once it has its turn, all tries and pauses included;"
        " the time in which a streamed answer comes does not count.",
    )
    max_tries: int = Field(
        4,
        ge=1,
        json_schema_extra=OPERATIONAL,
        description="Tries of a request that fails with 408, 409, 429, 5xx or its connection.",
    )


class HostedModel(Model):
    """Base of the servers that ask a hosted model. A subclass says where it is (`url`), who asks
    (`headers`), and what it is called (`model_name`)."""

    Config = HostedModelConfig
    config: HostedModelConfig

    def __init__(self, config: HostedModelConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        limit = config.max_concurrent_requests
        self._free = asyncio.Semaphore(limit) if limit else None
        self._policy = replace(
            MODEL_REQUEST, max_tries=config.max_tries, deadline_s=config.request_timeout_s
        )
        self._http: HttpClient | None = None
        self._open = self._running = self._num_429 = 0
        allowed = {"requests": config.requests_per_minute, "tokens": config.tokens_per_minute}
        self._queue = RequestQueue(Allowances(allowed))
        self._outage = Outage(name)
        self._is_chat = config.upstream_api == "chat_completions"
        self._not_sent = (*HOW_IT_COMES, *config.unsupported_params)
        self._lowest: JsonObject = {"model": self.model_name()}
        if config.service_tier:
            self._lowest["service_tier"] = config.service_tier
        self._lowest |= config.extra_body
        self._delivery: JsonObject = {"stream": True} if config.stream else {}
        if config.stream and self._is_chat:
            self._delivery["stream_options"] = {"include_usage": True}

    def url(self, model: str) -> str:
        """Where requests for this model go."""
        raise NotImplementedError

    async def headers(self) -> Mapping[str, str]:
        """Who asks."""
        raise NotImplementedError

    def secrets(self) -> Iterable[str]:
        """What must not be seen in an endpoint's words."""
        return ()

    async def renewed(self, headers: Mapping[str, str]) -> bool:
        """Whether there is another proof of who asks, now that this one has been refused."""
        return False

    async def start(self) -> None:
        self._http = HttpClient()

    async def stop(self) -> None:
        if self._http:
            await self._http.close()

    def load_figures(self) -> JsonObject:
        return {
            "running": self._running,
            "waiting": self._open - self._running,
            "throttled": self._queue.is_throttled(),
            "num_429": self._num_429,
            **({"endpoints_down": 1} if self._outage.is_on else {}),
        }

    async def responses(self, params: JsonObject) -> JsonObject:
        body = self._body(params)
        asked = _Asked(params, str(body["model"]), orjson.dumps(body))
        self._open += 1
        try:
            # a request that is turned away keeps its slot: another in its place would be, too
            async with self._free or nullcontext():
                return await self._answered(asked)
        finally:
            self._open -= 1

    async def _answered(self, asked: "_Asked") -> JsonObject:
        now, number = asyncio.get_running_loop().time, self._queue.number()
        is_held_up, came = self._queue.is_held_up(), now()
        turns = [await self._queue.come(number)]
        if is_held_up and (session := current_session()):
            session.lose("rate_limit_s", now() - came)
        clock = _Waited(now) if self.config.stream else now
        began = clock()

        def left() -> float:
            return max(began + self.config.request_timeout_s - clock(), 0.001)

        async def sent() -> JsonObject:
            expected = turns.pop() if turns else await self._queue.come(number)
            assembly = self._assembly(clock) if isinstance(clock, _Waited) else None
            return await self._try(asked, left(), expected, assembly)

        def one_try() -> Awaitable[JsonObject]:
            return self._outage.through(sent, left, partial(record_lost_time, None))

        return await retry(one_try, self._policy, clock=clock, on_retry=record_lost_time)

    def _assembly(self, waited: "_Waited") -> Assembly:
        waited.begin()
        return (CompletionAssembly if self._is_chat else ResponseAssembly)(waited.heard)

    def _body(self, params: JsonObject) -> JsonObject:
        """What is sent: the configured `extra_body`, over it the row, over that the row's own."""
        row = {key: value for key, value in params.items() if value is not None}
        extra = extra_body(row)
        if self.config.drop_input_reasoning_items and isinstance(row.get("input"), list):
            row["input"] = [item for item in row["input"] if item.get("type") != "reasoning"]
        if self._is_chat:
            row = to_chat(row, max_tokens_field=self.config.max_tokens_field)
        for key in self._not_sent:
            row.pop(key, None)
        return {**self._lowest, **row, **extra, **self._delivery}

    async def _try(
        self, asked: "_Asked", timeout_s: float, expected: float, assembly: Assembly | None
    ) -> JsonObject:
        """`expected`: the tokens that the request was let go for."""
        assert self._http, "start() opens the connection pool"
        allowances, now = self._queue.allowances, asyncio.get_running_loop().time
        url, headers = self.url(asked.model), await self.headers()
        sent_at = now()
        self._running += 1
        try:
            reply = await self._http.post(
                url,
                asked.raw,
                headers=headers,
                timeout_s=timeout_s,
                arrived=assembly.feed if assembly else None,
            )
        except PeerError as error:
            if assembly is None or assembly.whole() is None:
                failed = ModelError(error.message, status=error.status, retryable=error.retryable)
                if isinstance(error, PeerUnreachable | PeerLost):
                    self._outage.failed(failed)
                raise failed from error
            reply = Reply(200, Headers([]), b"")  # the whole answer was there before it broke off
        finally:
            self._running -= 1
        if reply.status not in GONE:
            self._outage.answered(sent_at)
        streamed = assembly is not None and assembly.has_begun
        payload = assembly.whole() if assembly and streamed else parsed(reply.raw)
        allowances.told(now(), reply.headers.starting_with(TOLD))
        if reply.status == 200 and not (isinstance(payload, dict) and payload.get("error")):
            response = self._answer(payload, url, reply, asked.params, streamed)
            used = (response.get("usage") or {}).get("total_tokens") or 0
            allowances.answered(now(), expected, used)
            return response
        if is_context_overflow(reply.status, payload):
            return overflowed(asked.params, self.model_name())
        error = self._refusal(payload, url, reply, asked.model)
        if reply.status in GONE:
            self._outage.failed(error)
        if error.status == 401 and await self.renewed(headers):
            error.retryable = True
        elif error.status in THROTTLED and error.retryable:
            self._num_429 += 1
            allowances.refused(now(), sent_at, error.retry_after_s)
        raise error

    def _answer(
        self, payload: Any, url: str, reply: Reply, params: JsonObject, streamed: bool
    ) -> JsonObject:
        what = "no response, as it has no list 'output'"
        if payload is None:
            what = "not JSON, perhaps cut off"
            if streamed:
                what = "a stream that ended before its answer was whole"
        elif self._is_chat:
            return from_chat(payload, {"model": self.model_name(), **params})
        elif isinstance(payload, dict) and isinstance(payload.get("output"), list):
            return payload
        raise ModelError(f"{url} answered 200: {what}", body=reply.text(), retryable=True)

    def _refusal(self, payload: Any, url: str, reply: Reply, model: str) -> ModelError:
        status = status_told(payload) if reply.status == 200 else reply.status
        if is_wrong_key(payload):
            status = 401
        text = reply.text() or (orjson.dumps(payload).decode() if payload else "")
        text = without_secrets(text, self.secrets())
        said = without_secrets(summary(payload, text), self.secrets())
        if status == 404 and model not in said:
            said = f"{said} (asked for the model '{model}')"
        return ModelError(
            f"{url} answered {reply.status}: {said}",
            status=status,
            body=text,
            retryable=not is_out_of_money(payload)
            and (status in (408, 409, 425, 429) or status >= 500),
            retry_after_s=wait_s(reply),
        )


@dataclass(slots=True)
class _Asked:
    """A request as the row means it and as it is sent."""

    params: JsonObject
    model: str
    raw: bytes


class _Waited:
    """A clock that stands still while an answer comes: it tells how long one waits for nothing."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._came_s = 0.0
        self._heard_at: float | None = None

    def __call__(self) -> float:
        return self._now() - self._came_s

    def begin(self) -> None:
        """Another try, of which nothing has come."""
        self._heard_at = None

    def heard(self) -> None:
        at = self._now()
        if self._heard_at is not None:
            self._came_s += at - self._heard_at
        self._heard_at = at
