"""A turn that goes on from the tokens that earlier requests for it have sampled.

A request that is stopped ends in vLLM too, which then tells its tokens so far; and a trainer may
end all requests for an update of the weights (`/pause?mode=abort`). Either way the turn goes on by
token ids, behind its prompt and the tokens that it has.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from secrets import token_hex

import orjson

from rollout_kit.errors import RolloutError
from rollout_kit.rl.partial import PartialTurn
from rollout_kit.serving.endpoints.refusals import read_reply
from rollout_kit.serving.transport.connection import Headers
from rollout_kit.serving.transport.http import Reply
from rollout_kit.serving.transport.loop import cancel_all
from rollout_kit.types import JsonObject

log = logging.getLogger(__name__)

ABORT = "/inference/v1/abort_requests"

PREFIX = "generate-tokens-"
"""What vLLM puts in front of the `request_id` of a request by token ids."""

ABORT_S = 10.0
"""Time in which vLLM must end a request and tell its tokens."""

STATEFUL = frozenset(
    {
        "stop",
        "bad_words",
        "min_tokens",
        "presence_penalty",
        "frequency_penalty",
        "structured_outputs",
        "thinking_token_budget",
    }
)
"""Sampling parameters that look at all tokens of a turn: behind a part of them, vLLM would sample
from another distribution."""

Sample = Callable[[JsonObject], Awaitable[Reply]]
"""The body of a request by token ids → vLLM's reply."""

Abort = Callable[[JsonObject], Awaitable[object]]
"""Sends the body of a request to abort others."""

ReadVersions = Callable[[JsonObject], list[int | None]]
"""A choice of a reply → the version of each of its tokens."""


@dataclass(frozen=True, slots=True)
class Way:
    """How one vLLM is asked."""

    sample: Sample
    abort: Abort
    read_versions: ReadVersions


class Resuming:
    """Samples turns, each from where it was stopped."""

    def __init__(self) -> None:
        self._ending: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        await cancel_all(self._ending)

    async def sample(self, body: JsonObject, turn: PartialTurn, way: Way) -> Reply:
        """A reply with all tokens of the turn; vLLM's own if that has no tokens."""
        if turn.ending is not None:
            await asyncio.wait([turn.ending])
        turn.begin(body["token_ids"])
        sampling = {name: value for name, value in body["sampling_params"].items() if value}
        limit = sampling.get("max_tokens")
        while (last := turn.last_reply) is None:
            if not STATEFUL.isdisjoint(sampling):
                turn.clear()
                reply = await way.sample(body)
            else:
                reply = await self._sample_rest(_rest_of(body, turn), turn, way)
            if not _take(turn, reply, way):
                return reply
            if limit and len(turn.token_ids) >= limit and turn.last_reply is None:
                turn.last_reply = {"choices": [{"index": 0, "finish_reason": "length"}]}
        return Reply(200, Headers([]), orjson.dumps(_join_reply(last, turn)))

    async def _sample_rest(self, body: JsonObject, turn: PartialTurn, way: Way) -> Reply:
        """Sample; if this is cancelled, the turn receives the tokens that there are by then."""
        name = token_hex(8)
        sampling = asyncio.ensure_future(way.sample({**body, "request_id": name}))
        try:
            return await asyncio.shield(sampling)
        except asyncio.CancelledError:
            turn.ending = asyncio.create_task(_end(PREFIX + name, sampling, turn, way))
            self._ending.add(turn.ending)
            turn.ending.add_done_callback(self._ending.discard)
            raise


async def _end(name: str, sampling: "asyncio.Future[Reply]", turn: PartialTurn, way: Way) -> None:
    """Have vLLM end a request, and take what it has sampled."""
    try:
        async with asyncio.timeout(ABORT_S):
            await way.abort({"request_ids": [name]})
            _take(turn, await sampling, way)
    except (TimeoutError, RolloutError) as error:
        log.info("a stopped turn's tokens are lost: %s", error)
    finally:
        turn.ending = None
        await cancel_all([sampling])


def _rest_of(body: JsonObject, turn: PartialTurn) -> JsonObject:
    """The request for what follows the tokens of a turn."""
    if not turn.token_ids:
        return body
    sampling = turn.rest_of(body["sampling_params"])
    return {**body, "token_ids": body["token_ids"] + turn.token_ids, "sampling_params": sampling}


def _take(turn: PartialTurn, reply: Reply, way: Way) -> bool:
    """Add the tokens of a reply to a turn; False if it has none."""
    told = read_reply(reply.raw)
    if reply.status != 200 or not isinstance(told, dict) or not told.get("choices"):
        return False
    choice = told["choices"][0]
    token_ids = choice.get("token_ids") or []
    content = (choice.get("logprobs") or {}).get("content") or []
    if len(content) != len(token_ids):
        return False
    log_probs = [each["logprob"] for each in content]
    turn.add(list(zip(token_ids, log_probs, strict=True)), way.read_versions(choice))
    if choice.get("finish_reason") != "abort":
        turn.last_reply = told
    return True


def _join_reply(last: JsonObject, turn: PartialTurn) -> JsonObject:
    """The last reply, as if it had all tokens of the turn."""
    pairs = zip(turn.token_ids, turn.log_probs, strict=True)
    content = [{"token_id": token_id, "logprob": log_prob} for token_id, log_prob in pairs]
    told = {"token_ids": turn.token_ids, "logprobs": {"content": content}}
    sizes = len(turn.prompt), len(turn.token_ids)
    usage = {"prompt_tokens": sizes[0], "completion_tokens": sizes[1], "total_tokens": sum(sizes)}
    return {**last, "choices": [{**last["choices"][0], **told}], "usage": usage}
