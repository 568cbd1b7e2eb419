"""Send one turn to one vLLM server, and interpret its refusals."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson

from rollout_kit.errors import ModelError, PeerError, PeerTimeout, PeerUnreachable, summary
from rollout_kit.responses import CUT_OFF, FILTERED
from rollout_kit.rl.suffix import Restart
from rollout_kit.serving.endpoints.provider_data import origin_of, tag
from rollout_kit.serving.endpoints.raw import as_chat, raw_text
from rollout_kit.serving.endpoints.refusals import (
    incomplete_response,
    is_context_overflow,
    is_filtered,
    read_reply,
    read_response,
    wait_s,
)
from rollout_kit.serving.endpoints.replies import UnknownFinishes
from rollout_kit.serving.model import ScoreRequest
from rollout_kit.serving.transport.http import HttpClient, Reply
from rollout_kit.trajectory import RESTART, Versions, span_versions, stamp_tokens
from rollout_kit.types import JsonObject

from . import token_in, turns
from .adapted import adapt
from .config import VllmModelConfig
from .distribution import Distributions
from .endpoints import Endpoint, Endpoints
from .following import Replicas
from .gate import UNLIMITED_S, Gate
from .resuming import ABORT, ABORT_S, Resuming, Way
from .weights import label_of

log = logging.getLogger(__name__)

PATHS = {"chat_completions": "/v1/chat/completions", "responses": "/v1/responses"}

COMPLETIONS = "/v1/completions"

THROTTLED_S = 1.0
"""Time for which a 429 counts as throttling if vLLM names none."""

OF_LENGTH = frozenset(
    {"input", "input_tokens", "max_tokens", "max_completion_tokens", "max_output_tokens"}
)
"""Parameters that vLLM names in an error if the context is too short; older releases name none."""

OF_PROMPT = ("model", "prompt", "messages", "tools", "chat_template", "chat_template_kwargs")


class Asking:
    """Sends requests to `endpoints` over `http`, and tracks their load and context length."""

    def __init__(
        self,
        config: VllmModelConfig,
        name: str,
        http: HttpClient,
        headers: Mapping[str, str],
        endpoints: Endpoints,
        gate: Gate,
        replicas: Replicas | None = None,
    ) -> None:
        self.gate, self._replicas = gate, replicas
        self._idle = asyncio.Event()
        self._idle.set()
        self._config, self._name = config, name
        self._http, self._headers, self._endpoints = http, headers, endpoints
        self.running = self.num_429 = 0
        self._throttled_until = 0.0
        self._drawn = Distributions()
        self._reasoning = not config.drop_input_reasoning_items
        self._lowest: JsonObject = {"model": config.served_name, **config.extra_body}
        if config.chat_template_kwargs:
            self._lowest["chat_template_kwargs"] = config.chat_template_kwargs
        if config.return_token_ids:
            self._lowest["return_token_ids"] = True
        self._adapts = bool(
            config.sampling_overrides
            or config.continue_final_assistant_message
            or config.use_completions_api
            or config.preserve_reasoning_in_assistant_content
        )
        self._told: set[str] = set()
        url = next(iter(config.urls), "http://vllm")
        self._origin, self._finishes = origin_of(url, config.served_name), UnknownFinishes(name)
        self.resuming = Resuming()

    @property
    def is_throttled(self) -> bool:
        return time.monotonic() < self._throttled_until

    def asked(self, params: JsonObject) -> turns.Asked:
        """The request for `params`; TaskError if vLLM does not support them."""
        if self._replicas and self._replicas.mode == "lora_dir" and self._replicas.in_use.version:
            version = self._replicas.in_use.version
            lowest = {**self._lowest, "model": label_of(version)}
            return replace(self._build(params, lowest), version=version)
        return self._build(params, self._lowest)

    def _build(self, params: JsonObject, lowest: JsonObject) -> turns.Asked:
        params = adapt(params, self._config) if self._adapts else params
        if (text := raw_text(params)) is not None:
            return turns.continue_text(params, text, lowest)
        if self._config.upstream_api == "responses":
            return turns.pass_on(params, lowest, reasoning=self._reasoning, origin=self._origin)
        return turns.asked(params, lowest, reasoning=self._reasoning, origin=self._origin)

    async def answer(self, endpoint: Endpoint, asked: turns.Asked, ends: float) -> JsonObject:
        """The response; ModelError if vLLM refuses or does not answer. `ends` is the deadline on
        the monotonic clock."""
        endpoint.in_flight += 1
        endpoint.num_requests += 1
        self.running += 1
        self._idle.clear()
        spoiled = endpoint.num_spoiled
        asked.spans.clear()
        asked.token_versions.clear()
        try:
            if asked.wants_token_ids:
                response = await self._with_token_ids(endpoint, asked, ends)
            else:
                response = await self._ask_text(endpoint, asked, ends)
        finally:
            endpoint.in_flight -= 1
            self.running -= 1
            if not self.running:
                self._idle.set()
        if endpoint.num_spoiled != spoiled:
            why = f"an update of the weights failed at {endpoint.url} during the request"
            raise ModelError(why, status=503, retryable=True)
        self._finishes.look(response)
        if versions := span_versions(asked.spans):
            versions.stamp(response["output"])
        stamp_tokens(response["output"], asked.token_versions)
        return response

    async def score(self, endpoint: Endpoint, asked: ScoreRequest, ends: float) -> list[float]:
        """The log-prob of each token after the first; vLLM computes them at temperature 1."""
        in_use = self._replicas.in_use.version if self._replicas else None
        if asked.version not in (None, in_use):
            what = f"version {asked.version} of the weights is over"
            raise ModelError(what, status=412, retryable=False)
        if asked.temperature not in (0, 1):
            raise ModelError("vLLM scores at temperature 1 only", status=400, retryable=False)
        body = {"model": self._config.served_name, "prompt": asked.token_ids, "max_tokens": 1}
        raw = orjson.dumps({**body, "prompt_logprobs": 0})
        reply = await self._send(endpoint, COMPLETIONS, raw, ends)
        told = read_reply(reply.raw)
        if reply.status != 200 or not isinstance(told, dict) or not told.get("choices"):
            raise await self._handle_refusal(endpoint, reply)
        scores = told["choices"][0]["prompt_logprobs"][1:]
        pairs = zip(asked.token_ids[1:], scores, strict=True)
        return [score[str(token)]["logprob"] for token, score in pairs]

    @asynccontextmanager
    async def using(self, asked: turns.Asked) -> AsyncIterator[None]:
        """Context of one request: its adapter stays loaded."""
        if self._replicas is None or not asked.version:
            yield
            return
        self._replicas.begin(asked.version)
        try:
            yield
        finally:
            await self._replicas.end(asked.version)

    async def drain(self) -> None:
        """Return when no request is in flight."""
        await self._idle.wait()

    async def _ask_text(
        self, endpoint: Endpoint, asked: turns.Asked, ends: float, **told: Any
    ) -> JsonObject:
        """Ask with the conversation as text; `told` are arguments of `turns.answer`."""
        context = endpoint.max_model_len
        if context and (asked.max_tokens or 0) > context:
            asked = asked.shorten(context)
        path = COMPLETIONS if asked.is_completion else PATHS[self._config.upstream_api]
        reply = await self._sample(endpoint, path, asked.raw, ends, asked)
        payload = read_reply(reply.raw)
        if reply.status == 200 and isinstance(payload, dict) and not payload.get("error"):
            return self._response(payload, asked, **told)
        if is_filtered(reply.status, payload):
            return incomplete_response(FILTERED, asked.params, self._config.served_name)
        if not _may_be_of_length(reply, payload):
            raise await self._handle_refusal(endpoint, reply)
        room = await self._room(endpoint, asked, ends)
        if room is not None and 0 < room < (asked.max_tokens or 0):
            return await self._ask_text(endpoint, asked.shorten(room), ends, **told)
        if room == 0 or is_context_overflow(reply.status, payload):
            return incomplete_response(CUT_OFF, asked.params, self._config.served_name)
        raise await self._handle_refusal(endpoint, reply)

    def _response(self, payload: JsonObject, asked: turns.Asked, **told: Any) -> JsonObject:
        if asked.is_completion:
            return turns.answer(as_chat(payload), asked, self._config.served_name, **told)
        if self._config.upstream_api == "chat_completions":
            return turns.answer(payload, asked, self._config.served_name, **told)
        response = read_response(payload)
        tag(response["output"], asked.origin)
        return response

    async def _with_token_ids(
        self, endpoint: Endpoint, asked: turns.Asked, ends: float
    ) -> JsonObject:
        async def ask(path: str, body: JsonObject) -> Reply:
            if path == token_in.GENERATE:
                return await self._sample_tokens(endpoint, body, ends, asked)
            return await self._send(endpoint, path, orjson.dumps(body), ends)

        drawn = await self._drawn.of(endpoint.url, asked.body["model"], ask)
        told = {"temperature": drawn.temperature, "restart": asked.restart}
        for turn in asked.ways():
            try:
                made = await token_in.completion(turn, ask)
                known = asked.partial and asked.partial.versions
                asked.token_versions.extend(known or self._read_versions(made["choices"][0], asked))
                return turns.answer(made, asked, self._config.served_name, **told)
            except token_in.Refused as refused:
                return await self._overflowed_or_refused(endpoint, asked, refused, ends)
            except Restart as why:
                if turn is asked.later:
                    told["restart"] = str(why)
                else:
                    self._warn(f"a turn that is stopped is made again: {why}")
        response = await self._ask_text(endpoint, asked, ends, **told)
        for item in response["output"][-1:]:
            if why := item.get(RESTART):
                self._warn(f"a later turn's prompt is rendered anew: {why}")
        return response

    def _warn(self, what: str) -> None:
        """Say it once."""
        if what not in self._told:
            self._told.add(what)
            log.warning("%s: %s", self._name, what)

    async def _sample_tokens(
        self, endpoint: Endpoint, body: JsonObject, ends: float, asked: turns.Asked
    ) -> Reply:
        """The reply to a request by token ids, with what the turn had before it was stopped."""

        async def sample(body: JsonObject) -> Reply:
            return await self._sample(endpoint, token_in.GENERATE, orjson.dumps(body), ends, asked)

        async def abort(body: JsonObject) -> None:
            url, raw = f"{endpoint.url}{ABORT}", orjson.dumps(body)
            await self._http.post(url, raw, headers=self._headers, timeout_s=ABORT_S)

        if asked.partial is None:
            return await sample(body)
        way = Way(sample, abort, lambda choice: self._read_versions(choice, asked))
        return await self.resuming.sample(body, asked.partial, way)

    def _read_versions(self, choice: JsonObject, asked: turns.Asked) -> list[int | None]:
        seen = asked.spans[-1] if asked.spans else None
        return self._replicas.read_versions(choice, seen) if self._replicas else []

    async def _overflowed_or_refused(
        self, endpoint: Endpoint, asked: turns.Asked, refused: token_in.Refused, ends: float
    ) -> JsonObject:
        if refused.reply.status == 400 and not endpoint.max_model_len:
            await self._room(endpoint, asked, ends)
        if 0 < endpoint.max_model_len <= refused.num_prompt_tokens:
            return incomplete_response(CUT_OFF, asked.params, self._config.served_name)
        raise await self._handle_refusal(endpoint, refused.reply)

    async def _room(self, endpoint: Endpoint, asked: turns.Asked, ends: float) -> int | None:
        """Tokens of the context that the conversation leaves free; None if unknown."""
        chat = asked.body
        if not asked.is_completion:
            chat = turns.body(
                asked.params, self._lowest, reasoning=self._reasoning, origin=self._origin
            )
        prompt = {key: chat[key] for key in OF_PROMPT if key in chat}
        reply = await self._send(endpoint, "/tokenize", orjson.dumps(prompt), ends)
        told = read_reply(reply.raw)
        if reply.status != 200 or not isinstance(told, dict) or not told.get("max_model_len"):
            return None
        endpoint.max_model_len = told["max_model_len"]
        return max(0, endpoint.max_model_len - told["count"])

    async def _sample(
        self, endpoint: Endpoint, path: str, raw: bytes, ends: float, asked: turns.Asked
    ) -> Reply:
        """Send a request that samples tokens. Where versions are known, it is salted with its own:
        cached keys and values of other weights are never used."""
        if (replicas := self._replicas) is None:
            return await self._send(endpoint, path, raw, ends)
        await self.gate.wait()
        if replicas.mode == "lora_dir":
            reply = await self._send(endpoint, path, raw, ends)
            asked.spans.append(Versions(asked.version, asked.version))
            return reply
        first = await replicas.observe(endpoint)
        if first is not None:
            raw = b'{"cache_salt":"' + label_of(first).encode() + b'",' + raw[1:]
        reply = await self._send(endpoint, path, raw, ends)
        last = await replicas.observe(endpoint)
        if first is not None and last is not None:
            asked.spans.append(Versions(first, last))
        return reply

    async def _send(self, endpoint: Endpoint, path: str, raw: bytes, ends: float) -> Reply:
        """The reply; a retryable ModelError if there is none. A turn can safely be sent twice."""
        try:
            await self.gate.wait()
            left = max(ends - self.gate.now(), 0.001)
            url = f"{endpoint.url}{path}"
            with self.gate.limit(left, url):
                return await self._http.post(url, raw, headers=self._headers, timeout_s=UNLIMITED_S)
        except PeerError as error:
            endpoint.num_failed += 1
            if isinstance(error, PeerUnreachable):
                self._endpoints.eject(endpoint, error.message)
            elif not error.retryable:  # it answered
                raise ModelError(error.message, status=error.status, retryable=False) from error
            elif not isinstance(error, PeerTimeout):
                await self._endpoints.suspect(endpoint, error.message)
            raise ModelError(error.message, status=error.status, retryable=True) from error

    async def _handle_refusal(self, endpoint: Endpoint, reply: Reply) -> ModelError:
        endpoint.num_failed += 1
        if reply.status >= 500:
            await self._endpoints.suspect(endpoint, f"answered {reply.status}")
        return self._refusal(endpoint, read_reply(reply.raw), reply)

    def _refusal(self, endpoint: Endpoint, payload: Any, reply: Reply) -> ModelError:
        status, text = reply.status, reply.text()
        said = summary(payload, text)
        retry_after_s = wait_s(reply, payload)
        if status == 429:
            self.num_429 += 1
            pause_s = THROTTLED_S if retry_after_s is None else retry_after_s
            self._throttled_until = max(self._throttled_until, time.monotonic() + pause_s)
        return ModelError(
            f"vLLM at {endpoint.url} answered {status}: {said}",
            status=502 if status == 200 else status,
            body=text,
            retryable=status in (200, 408, 409, 425, 429) or status >= 500,
            retry_after_s=retry_after_s,
        )


def _may_be_of_length(reply: Reply, payload: Any) -> bool:
    """Whether the context may be too short for the request; `_room` then measures it."""
    error = payload.get("error") if isinstance(payload, dict) else None
    if reply.status != 400 or not isinstance(error, dict):
        return is_context_overflow(reply.status, payload)
    return error.get("param") is None or error["param"] in OF_LENGTH
