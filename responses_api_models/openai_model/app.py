"""Any OpenAI-compatible endpoint as the model: Responses as it is, or Chat Completions translated.

What is transient is tried again within one time limit for the whole request; what is not becomes a
ModelError with the endpoint's own status and words. An infrastructure failure is never an answer.
"""

import asyncio
import time
from contextlib import nullcontext
from typing import Any, Literal

import orjson
from pydantic import ConfigDict, Field

from rollout_kit.chat import from_chat, to_chat
from rollout_kit.config.secrets import MASK
from rollout_kit.errors import ModelError, PeerError, TaskError, summary
from rollout_kit.http import HttpClient, Reply
from rollout_kit.model import Lost, Model, ModelConfig
from rollout_kit.responses import make_response
from rollout_kit.retry import RetryPolicy, retried, retry_after_s
from rollout_kit.service import OPERATIONAL
from rollout_kit.types import JsonObject

PATHS = {"responses": "/responses", "chat_completions": "/chat/completions"}

THROTTLED_S = 1.0
"""How long a 429 counts as being throttled where the endpoint does not say."""


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
        self._throttled_until = 0.0

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
            "throttled": time.monotonic() < self._throttled_until,
            "num_429": self._num_429,
        }

    async def responses(self, params: JsonObject) -> JsonObject:
        raw = orjson.dumps(self._body(params))
        self._open += 1
        try:
            # a request that is turned away keeps its slot: another in its place would be, too
            async with self._free or nullcontext():
                ends = time.monotonic() + self.config.request_timeout_s
                lost = Lost()
                response = await retried(
                    lambda: self._try(raw, params, ends), self._policy, lost=lost.add
                )
                return lost.told(response)
        finally:
            self._open -= 1

    def _body(self, params: JsonObject) -> JsonObject:
        """What is sent: the configured `extra_body`, over it the row, over that the row's own."""
        row = {key: value for key, value in params.items() if value is not None}
        row.pop("stream", None)
        extra = _extra_body(row)
        if self.config.drop_input_reasoning_items and isinstance(row.get("input"), list):
            row["input"] = [item for item in row["input"] if item.get("type") != "reasoning"]
        if self.config.upstream_api == "chat_completions":
            row = to_chat(row)
        return {"model": self.config.openai_model, **self.config.extra_body, **row, **extra}

    async def _try(self, raw: bytes, params: JsonObject, ends: float) -> JsonObject:
        left = max(ends - time.monotonic(), 0.001)
        self._running += 1
        try:
            reply = await self._client.post(self._url, raw, headers=self._headers, timeout_s=left)
        except PeerError as error:
            raise ModelError(
                error.message, status=error.status, retryable=error.retryable
            ) from error
        finally:
            self._running -= 1
        payload = _parsed(reply.raw)
        if reply.status == 200:
            return self._answer(payload, reply, params)
        if _is_context_overflow(reply.status, payload):
            return make_response(
                params.get("model") or self.config.openai_model,
                [],
                None,
                incomplete_reason="max_output_tokens",
                params={key: value for key, value in params.items() if value is not None},
            )
        raise self._refusal(payload, reply)

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
        wait_s = retry_after_s(reply.headers.get("Retry-After"), time.time())
        if status == 429:
            self._num_429 += 1
            until = time.monotonic() + (THROTTLED_S if wait_s is None else wait_s)
            self._throttled_until = max(self._throttled_until, until)
        return ModelError(
            f"{self._url} answered {status}: {self._without_key(summary(payload, text))}",
            status=status,
            body=text,
            retryable=status in (408, 409, 425, 429) or status >= 500,
            retry_after_s=wait_s,
        )

    def _without_key(self, text: str) -> str:
        """An endpoint that repeats the key in its refusal must not put it into our files."""
        key = self.config.openai_api_key
        return text.replace(key, MASK) if len(key) >= 4 else text

    @property
    def _client(self) -> HttpClient:
        assert self._http, "start() opens the connection pool"
        return self._http


def _extra_body(row: JsonObject) -> JsonObject:
    """Take `metadata.extra_body`, NeMo Gym's way for a row to add parameters, out of `row`."""
    metadata = row.get("metadata")
    if not isinstance(metadata, dict) or "extra_body" not in metadata:
        return {}
    rest = {key: value for key, value in metadata.items() if key != "extra_body"}
    row.pop("metadata")
    if rest:
        row["metadata"] = rest
    extra = _parsed(metadata["extra_body"])
    if not isinstance(extra, dict):
        raise TaskError(
            "metadata.extra_body must be the JSON text of an object, "
            f"not {metadata['extra_body']!r:.80}"
        )
    return extra


def _parsed(raw: Any) -> Any:
    """JSON as a value; None where it is not JSON."""
    try:
        return orjson.loads(raw)
    except (orjson.JSONDecodeError, TypeError):
        return None


def _is_context_overflow(status: int, payload: Any) -> bool:
    """Whether the input is longer than the model's context, by the fields that OpenAI and vLLM set.

    Never by words in the message, which a mistake in a parameter may use as well.
    """
    inner = payload.get("error", payload) if isinstance(payload, dict) else None
    if not isinstance(inner, dict):
        return False
    is_vllms = status == 400 and inner.get("param") == "input_tokens"
    return inner.get("code") == "context_length_exceeded" or is_vllms
