"""How a model server asks vLLM: a hosted model whose endpoint has replicas, token ids, and weights
that change.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import orjson

from rollout_kit.errors import ModelError, PeerError, PeerTimeout, PeerUnreachable
from rollout_kit.responses import CUT_OFF
from rollout_kit.rl.partial import PartialTurns, name_request
from rollout_kit.rl.suffix import Restart
from rollout_kit.serving.endpoints.patience import Waited
from rollout_kit.serving.endpoints.provider_data import origin_of
from rollout_kit.serving.endpoints.raw import PATH as COMPLETION_PATH
from rollout_kit.serving.endpoints.raw import as_chat
from rollout_kit.serving.endpoints.refusals import (
    incomplete_response,
    is_context_overflow,
    is_filtered,
    read_reply,
)
from rollout_kit.serving.endpoints.requests import RequestForm
from rollout_kit.serving.hosted_model import PATHS, HostedModel, Received, Request
from rollout_kit.serving.model import ScoreRequest
from rollout_kit.serving.transport.http import Reply
from rollout_kit.session import current_session
from rollout_kit.time_limit import running_loop
from rollout_kit.trajectory import RESTART, Versions, span_versions, stamp_tokens
from rollout_kit.types import JsonObject

from . import token_in
from .adapted import adapt
from .config import VllmModelConfig
from .distribution import Distributions
from .endpoints import Endpoints
from .following import Replicas
from .gate import UNLIMITED_S, Gate
from .resuming import ABORT, ABORT_S, Resuming, Way
from .turns import KWARGS, TOKEN_IDS, Turn, make_turn, read_answer, write
from .weights import label_of

log = logging.getLogger(__name__)

T = TypeVar("T")

OF_LENGTH = frozenset(
    {"input", "input_tokens", "max_tokens", "max_completion_tokens", "max_output_tokens"}
)
"""Parameters that vLLM names in an error if the context is too short; older releases name none."""

OF_PROMPT = ("model", "prompt", "messages", "tools", "chat_template", "chat_template_kwargs")


class VllmClient(HostedModel):
    """What is asked, how one try goes, and what an answer or a failure means. `app` starts and
    stops what it asks."""

    config: VllmModelConfig

    def __init__(self, config: VllmModelConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        key = config.api_key
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._endpoints: Endpoints | None = None
        self._gate = Gate()
        self._replicas: Replicas | None = None
        self._partial_turns = PartialTurns() if config.resume_turns else None
        self._resuming, self._drawn = Resuming(), Distributions()
        self._origin = origin_of(next(iter(config.urls), "http://vllm"), config.served_name)
        self._warned: set[str] = set()

    async def responses(self, params: JsonObject) -> JsonObject:
        name = name_request(params) if self._partial_turns else ""
        await self.wait_for_version(params)
        with self._gate.serving():
            return await self.in_slot(lambda: self._respond(params, name))

    async def _respond(self, params: JsonObject, name: str) -> JsonObject:
        """The response. Its adapter stays loaded meanwhile, and a turn that was stopped under this
        name goes on."""
        assert self._replicas, "start() makes them"
        await self._gate.wait()
        turn = self.request(params)
        async with AsyncExitStack() as stack:
            if turn.version:
                await stack.enter_async_context(self._replicas.using(turn.version))
            if self._partial_turns and turn.wants_token_ids:
                turn.partial = stack.enter_context(self._partial_turns.resume(name))
            return await self.send(turn)

    def now(self) -> float:
        return self._gate.now()

    async def headers(self) -> Mapping[str, str]:
        return self._headers

    def request_form(self) -> RequestForm:
        config = self.config
        kwargs = {KWARGS: config.chat_template_kwargs} if config.chat_template_kwargs else {}
        token_ids = {TOKEN_IDS: True} if config.return_token_ids else {}
        return RequestForm(
            config.upstream_api,
            {"model": config.served_name, **config.extra_body, **kwargs, **token_ids},
            max_tokens_field="max_tokens",  # vLLM before 0.6.4 has no max_completion_tokens
            reasoning_field=config.reasoning_field,
            drops_reasoning=config.drop_input_reasoning_items,
        )

    def request(self, params: JsonObject) -> Turn:
        """The turn for create params; TaskError if vLLM does not support them."""
        params, replicas = adapt(params, self.config), self._replicas
        if replicas and replicas.mode == "lora_dir" and (version := replicas.in_use.version):
            lowest = {**self.form.lowest, "model": label_of(version)}
            turn = make_turn(params, replace(self.form, lowest=lowest), self._origin)
            turn.version = version
            return turn
        return make_turn(params, self.form, self._origin)

    async def ask(self, asked: Request, timeout_s: float, clock: Waited) -> JsonObject:
        assert isinstance(asked, Turn)
        turn = await self._begin(asked, timeout_s)
        endpoint, spoiled = turn.endpoint, turn.endpoint.num_spoiled
        endpoint.in_flight += 1
        endpoint.num_requests += 1
        self._running += 1
        try:
            asked_by = self._ask_tokens if turn.wants_token_ids else self._ask_text
            response = await asked_by(turn, clock)
        finally:
            endpoint.in_flight -= 1
            self._running -= 1
        if endpoint.num_spoiled != spoiled:
            why = f"an update of the weights failed at {endpoint.url} during the request"
            raise ModelError(why, status=503, retryable=True)
        if versions := span_versions(turn.spans):
            versions.stamp(response["output"])
        stamp_tokens(response["output"], turn.token_versions)
        return response

    async def _begin(self, turn: Turn, timeout_s: float) -> Turn:
        """One try of a turn, at the vLLM that has its prefix."""
        assert self._endpoints, "start() makes them"
        ends = self.now() + timeout_s
        endpoint = await self._endpoints.choose(current_session(), timeout_s)
        sent_at = running_loop().time()
        return replace(
            turn, endpoint=endpoint, ends=ends, sent_at=sent_at, spans=[], token_versions=[]
        )

    async def post(
        self,
        url: str,
        raw: bytes,
        headers: Mapping[str, str],
        timeout_s: float,
        arrived: Callable[[bytes], None] | None = None,
    ) -> Reply:
        assert self._http
        await self._gate.wait()
        with self._gate.limit(timeout_s, url):
            return await self._http.post(
                url, raw, headers=headers, timeout_s=UNLIMITED_S, arrived=arrived
            )

    async def note_failure(
        self, asked: Request, error: ModelError, cause: PeerError | Reply
    ) -> None:
        assert isinstance(asked, Turn) and self._endpoints
        endpoint, endpoints = asked.endpoint, self._endpoints
        endpoint.num_failed += 1
        if isinstance(cause, PeerUnreachable):
            endpoints.eject(endpoint, cause.message)
        elif isinstance(cause, Reply):
            if cause.status >= 500:
                await endpoints.suspect(endpoint, f"answered {cause.status}")
        elif cause.retryable and not isinstance(cause, PeerTimeout):
            await endpoints.suspect(endpoint, cause.message)

    def response(self, asked: Request, payload: Any) -> JsonObject:
        assert isinstance(asked, Turn)
        if asked.is_completion:
            return read_answer(as_chat(payload), asked)
        return read_answer(payload, asked) if self._is_chat else super().response(asked, payload)

    async def _ask_text(self, turn: Turn, clock: Waited) -> JsonObject:
        """Ask with the conversation as text."""
        context = turn.endpoint.max_model_len
        if context and (turn.max_tokens or 0) > context:
            turn = turn.shorten(context)
        path = COMPLETION_PATH if turn.is_completion else PATHS[self.form.api]
        url = f"{turn.endpoint.url}/v1{path}"

        async def send(raw: bytes) -> Received:
            return await self.exchange(replace(turn, raw=raw), url, self._left(turn), clock)

        received = await self._sample(turn, turn.raw, send)
        if _may_be_of_length(received):
            room = await self._room(turn)
            if room is not None and 0 < room < (turn.max_tokens or 0):
                return await self._ask_text(turn.shorten(room), clock)
            if room == 0:
                return incomplete_response(CUT_OFF, turn.params, turn.model)
        return await self.read(turn, received, clock)

    async def _ask_tokens(self, turn: Turn, clock: Waited) -> JsonObject:
        async def ask(path: str, body: JsonObject) -> Reply:
            if path == token_in.GENERATE:
                return await self._sample_tokens(turn, body)
            return await self._call(turn, path, body)

        turn.temperature = (await self._drawn.of(turn.endpoint.url, turn.model, ask)).temperature
        for way in turn.ways():
            try:
                made = await token_in.completion(way, ask)
                known = turn.partial and turn.partial.versions
                turn.token_versions += known or self._read_versions(made["choices"][0], turn)
                response = read_answer(made, turn)
                self.count_tokens(response, clock)
                return response
            except token_in.Refused as refused:
                return await self._answer_refusal(turn, refused)
            except Restart as why:
                if way is turn.later:
                    turn.restart = str(why)
                else:
                    self._warn(f"a turn that is stopped is made again: {why}")
        response = await self._ask_text(turn, clock)
        for item in response["output"][-1:]:
            if why := item.get(RESTART):
                self._warn(f"a later turn's prompt is rendered anew: {why}")
        return response

    def _warn(self, what: str) -> None:
        """Say it once."""
        if what not in self._warned:
            self._warned.add(what)
            log.warning("%s: %s", self.name, what)

    async def _sample_tokens(self, turn: Turn, body: JsonObject) -> Reply:
        """The reply to a request by token ids, with what the turn had before it was stopped."""

        async def sample(body: JsonObject) -> Reply:
            send = partial(self._call, turn, token_in.GENERATE)
            return await self._sample(turn, orjson.dumps(body), send)

        async def abort(body: JsonObject) -> None:
            assert self._http
            url, raw = f"{turn.endpoint.url}{ABORT}", orjson.dumps(body)
            await self._http.post(url, raw, headers=self._headers, timeout_s=ABORT_S)

        if turn.partial is None:
            return await sample(body)
        way = Way(sample, abort, lambda choice: self._read_versions(choice, turn))
        return await self._resuming.sample(body, turn.partial, way)

    def _read_versions(self, choice: JsonObject, turn: Turn) -> list[int | None]:
        assert self._replicas
        return self._replicas.read_versions(choice, turn.spans[-1] if turn.spans else None)

    async def _sample(self, turn: Turn, raw: bytes, send: Callable[[bytes], Awaitable[T]]) -> T:
        """What `send` returns for a request that samples tokens. Where versions are known, it is
        salted with its own: cached keys and values of other weights are never used."""
        assert self._replicas
        await self._gate.wait()
        if self._replicas.mode == "lora_dir":
            received = await send(raw)
            turn.spans.append(Versions(turn.version, turn.version))
            return received
        first = await self._replicas.observe(turn.endpoint)
        if first is not None:
            raw = b'{"cache_salt":"' + label_of(first).encode() + b'",' + raw[1:]
        received = await send(raw)
        last = await self._replicas.observe(turn.endpoint)
        if first is not None and last is not None:
            turn.spans.append(Versions(first, last))
        return received

    async def _answer_refusal(self, turn: Turn, refused: token_in.Refused) -> JsonObject:
        endpoint = turn.endpoint
        if refused.reply.status == 400 and not endpoint.max_model_len:
            await self._room(turn)
        if 0 < endpoint.max_model_len <= refused.num_prompt_tokens:
            return incomplete_response(CUT_OFF, turn.params, turn.model)
        raise await self._make_refusal(turn, refused.reply)

    async def _room(self, turn: Turn) -> int | None:
        """Tokens of the context that the conversation leaves free; None if unknown."""
        told = await self._tokenize(turn)
        if told is None or not told.get("max_model_len"):
            return None
        turn.endpoint.max_model_len = told["max_model_len"]
        return max(0, told["max_model_len"] - told["count"])

    async def count_input(self, params: JsonObject) -> int:
        turn = await self._begin(self.request(params), self._timeout_s)
        if (told := await self._tokenize(turn)) is None:
            what = f"vLLM at {turn.endpoint.url} counts no tokens: it has no /tokenize"
            raise ModelError(what, status=404, retryable=False)
        return told["count"]

    async def _tokenize(self, turn: Turn) -> JsonObject | None:
        """What vLLM says of the length of a conversation; None if it says nothing."""
        chat = turn.body
        if not (self._is_chat or turn.is_completion):  # vLLM renders no responses
            of_chats = replace(self.form, api="chat_completions")
            chat = write(turn.params, of_chats, turn.origin)
        prompt = {key: chat[key] for key in OF_PROMPT if key in chat}
        reply = await self._call(turn, "/tokenize", prompt)
        told = read_reply(reply.raw)
        is_known = reply.status == 200 and isinstance(told, dict) and "count" in told
        return told if is_known else None

    async def score_tokens(self, asked: ScoreRequest) -> JsonObject:
        """vLLM computes log-probs at temperature 1."""
        in_use = self._replicas.in_use.version if self._replicas else None
        if asked.version not in (None, in_use):
            what = f"version {asked.version} of the weights is over"
            raise ModelError(what, status=412, retryable=False)
        if asked.temperature not in (0, 1):
            raise ModelError("vLLM scores at temperature 1 only", status=400, retryable=False)
        model = self.config.served_name
        body = {"model": model, "prompt": asked.token_ids, "max_tokens": 1, "prompt_logprobs": 0}
        turn = await self._begin(Turn({}, model, "", b"", True, body), self._timeout_s)
        reply = await self._call(turn, f"/v1{COMPLETION_PATH}", body)
        told = read_reply(reply.raw)
        if reply.status != 200 or not isinstance(told, dict) or not told.get("choices"):
            raise await self._make_refusal(turn, reply)
        scores = told["choices"][0]["prompt_logprobs"][1:]
        pairs = zip(asked.token_ids[1:], scores, strict=True)
        return {"log_probs": [score[str(token)]["logprob"] for token, score in pairs]}

    async def _call(self, turn: Turn, path: str, body: JsonObject | bytes) -> Reply:
        """The reply of the turn's vLLM, whatever its status; ModelError if there is none."""
        raw = body if isinstance(body, bytes) else orjson.dumps(body)
        url = f"{turn.endpoint.url}{path}"
        try:
            return await self.post(url, raw, self._headers, self._left(turn))
        except PeerError as error:
            raise await self.lose(turn, error) from error

    async def _make_refusal(self, turn: Turn, reply: Reply) -> ModelError:
        payload, url = read_reply(reply.raw), turn.endpoint.url
        return await self.refuse(turn, Received(url, {}, turn.sent_at, reply, payload, False))

    def _left(self, turn: Turn) -> float:
        """Seconds that a try of a turn still has."""
        return max(turn.ends - self.now(), 0.001)


def _may_be_of_length(received: Received) -> bool:
    """Whether the context may be too short for the request; `_room` then measures it."""
    status, payload = received.reply.status, received.payload
    if received.is_answer or is_filtered(status, payload):
        return False
    error = payload.get("error") if isinstance(payload, dict) else None
    if status != 400 or not isinstance(error, dict):
        return is_context_overflow(status, payload)
    return error.get("param") is None or error["param"] in OF_LENGTH
