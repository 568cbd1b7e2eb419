"""Any OpenAI-compatible endpoint as the model: Responses as it is, or Chat Completions translated.

What is transient is tried again within one time limit for the whole request; what is not becomes a
ModelError with the endpoint's own status and words. An infrastructure failure is never an answer.
"""

import asyncio
from contextlib import nullcontext
from typing import Any, Literal

import orjson
from pydantic import ConfigDict, Field

from rollout_kit.chat import from_chat, to_chat
from rollout_kit.config.secrets import MASK
from rollout_kit.errors import THROTTLED, ModelError, PeerError, summary
from rollout_kit.http import HttpClient, Reply
from rollout_kit.model import Lost, Model, ModelConfig
from rollout_kit.rate_limit import TOLD, Allowances, Turns
from rollout_kit.retry import RetryPolicy, retried
from rollout_kit.service import OPERATIONAL
from rollout_kit.types import JsonObject
from rollout_kit.upstream import (
    extra_body,
    is_context_overflow,
    is_out_of_money,
    overflowed,
    parsed,
    wait_s,
)

PATHS = {"responses": "/responses", "chat_completions": "/chat/completions"}


class OpenAIModelConfig(ModelConfig):
    model_config = ConfigDict(extra="forbid")

    openai_base_url: str = Field(
        pattern="^https?://",
        json_schema_extra=OPERATIONAL,
        description="The endpoint, most often ending in /v1.",
    )
    openai_api_key: str = Field(
        "", repr=False, json_schema_extra=OPERATIONAL, description="Sent as a bearer token."
    )
    openai_model: str = Field(
        description="The model's name at the endpoint, where the create params name no other."
    )
    openai_default_headers: dict[str, str] = Field(
        {}, repr=False, json_schema_extra=OPERATIONAL, description="Added to every request."
    )
    extra_body: JsonObject = Field({}, description="Parameters for rows that do not set them.")
    drop_input_reasoning_items: bool = Field(
        False, description="Leave reasoning items out of what is sent back to the model."
    )
    upstream_api: Literal["responses", "chat_completions"] = Field(
        "responses", description="The API that the endpoint speaks."
    )
    request_timeout_s: float = Field(
        600.0,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="Most time for a request once it has its turn, all tries and pauses included.",
    )
    max_tries: int = Field(
        4,
        ge=1,
        json_schema_extra=OPERATIONAL,
        description="Tries of a request that fails with 408, 409, 429, 5xx or its connection.",
    )


class OpenAIModel(Model):
    """The model behind an OpenAI-compatible endpoint."""

    Config = OpenAIModelConfig

    def __init__(self, config: OpenAIModelConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        self._url = config.openai_base_url.rstrip("/") + PATHS[config.upstream_api]
        key = config.openai_api_key
        self._headers = {
            **({"authorization": f"Bearer {key}"} if key else {}),
            **config.openai_default_headers,
        }
        limit = config.max_concurrent_requests
        self._free = asyncio.Semaphore(limit) if limit else None
        self._policy = RetryPolicy(config.max_tries, deadline_s=config.request_timeout_s)
        self._http: HttpClient | None = None
        self._open = self._running = self._num_429 = 0
        allowed = {"requests": config.requests_per_minute, "tokens": config.tokens_per_minute}
        self._turns = Turns(Allowances(allowed))

    async def start(self) -> None:
        self._http = HttpClient()

    async def stop(self) -> None:
        if self._http:
            await self._http.close()

    def model_name(self) -> str:
        return self.config.openai_model

    def load_figures(self) -> JsonObject:
        return {
            "running": self._running,
            "waiting": self._open - self._running,
            "throttled": self._turns.is_throttled(),
            "num_429": self._num_429,
        }

    async def responses(self, params: JsonObject) -> JsonObject:
        raw = orjson.dumps(self._body(params))
        self._open += 1
        try:
            # a request that is turned away keeps its slot: another in its place would be, too
            async with self._free or nullcontext():
                return await self._answered(raw, params)
        finally:
            self._open -= 1

    async def _answered(self, raw: bytes, params: JsonObject) -> JsonObject:
        now, lost, number = asyncio.get_running_loop().time, Lost(), self._turns.number()
        is_held_up, came = self._turns.is_held_up(), now()
        turns = [await self._turns.come(number)]
        began = now()
        if is_held_up:
            lost.rate_limit_s = began - came

        async def one_try() -> JsonObject:
            expected = turns.pop() if turns else await self._turns.come(number)
            left = max(began + self.config.request_timeout_s - now(), 0.001)
            return await self._try(raw, params, left, expected)

        return lost.told(await retried(one_try, self._policy, clock=now, lost=lost.add))

    def _body(self, params: JsonObject) -> JsonObject:
        """What is sent: the configured `extra_body`, over it the row, over that the row's own."""
        row = {key: value for key, value in params.items() if value is not None}
        row.pop("stream", None)
        extra = extra_body(row)
        if self.config.drop_input_reasoning_items and isinstance(row.get("input"), list):
            row["input"] = [item for item in row["input"] if item.get("type") != "reasoning"]
        if self.config.upstream_api == "chat_completions":
            row = to_chat(row)
        return {"model": self.config.openai_model, **self.config.extra_body, **row, **extra}

    async def _try(
        self, raw: bytes, params: JsonObject, timeout_s: float, expected: float
    ) -> JsonObject:
        """`expected`: the tokens that the request was let go for."""
        allowances, now = self._turns.allowances, asyncio.get_running_loop().time
        sent_at = now()
        self._running += 1
        try:
            reply = await self._client.post(
                self._url, raw, headers=self._headers, timeout_s=timeout_s
            )
        except PeerError as error:
            raise ModelError(
                error.message, status=error.status, retryable=error.retryable
            ) from error
        finally:
            self._running -= 1
        payload = parsed(reply.raw)
        allowances.told(now(), reply.headers.starting_with(TOLD))
        if reply.status == 200:
            response = self._answer(payload, reply, params)
            used = (response.get("usage") or {}).get("total_tokens") or 0
            allowances.answered(now(), expected, used)
            return response
        if is_context_overflow(reply.status, payload):
            return overflowed(params, self.config.openai_model)
        error = self._refusal(payload, reply)
        if error.status in THROTTLED and error.retryable:
            self._num_429 += 1
            allowances.refused(now(), sent_at, error.retry_after_s)
        raise error

    def _answer(self, payload: Any, reply: Reply, params: JsonObject) -> JsonObject:
        error = payload.get("error") if isinstance(payload, dict) else None
        if error or payload is None:
            what = summary(payload, reply.text()) if error else "not JSON, perhaps cut off"
            raise ModelError(f"{self._url} answered 200: {what}", body=reply.text(), retryable=True)
        if self.config.upstream_api == "chat_completions":
            return from_chat(payload, {"model": self.config.openai_model, **params})
        if not (isinstance(payload, dict) and isinstance(payload.get("output"), list)):
            what = "no response, as it has no list 'output'"
            raise ModelError(f"{self._url} answered 200: {what}", body=reply.text(), retryable=True)
        return payload

    def _refusal(self, payload: Any, reply: Reply) -> ModelError:
        status, text = reply.status, self._without_key(reply.text())
        return ModelError(
            f"{self._url} answered {status}: {self._without_key(summary(payload, text))}",
            status=status,
            body=text,
            retryable=not is_out_of_money(payload)
            and (status in (408, 409, 425, 429) or status >= 500),
            retry_after_s=wait_s(reply),
        )

    def _without_key(self, text: str) -> str:
        """An endpoint that repeats the key in its refusal must not put it into our files."""
        key = self.config.openai_api_key
        return text.replace(key, MASK) if len(key) >= 4 else text

    @property
    def _client(self) -> HttpClient:
        assert self._http, "start() opens the connection pool"
        return self._http
