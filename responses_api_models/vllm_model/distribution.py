"""The distribution that a vLLM server samples from: its default temperature, and whether its
log-probs belong to that distribution.

Both are found by one request to each server, only if token ids are requested.
"""

import asyncio
import logging
from dataclasses import dataclass

from rollout_kit.errors import ModelError
from rollout_kit.serving.endpoints.refusals import parse_json
from rollout_kit.serving.transport.http import Reply
from rollout_kit.types import JsonObject

from .token_in import RENDER, Ask

log = logging.getLogger(__name__)

RAW = (
    "%s returns raw log-probs, from before temperature, top-k and top-p, not those of the sampled"
    " distribution. Start it with --logprobs-mode processed_logprobs"
)


@dataclass(frozen=True, slots=True)
class Distribution:
    temperature: float | None = None
    """Temperature of requests that name none; None if unknown."""


class Distributions:
    """The distribution of each vLLM server, by its URL and the model's name."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], asyncio.Task[Distribution]] = {}

    async def of(self, url: str, model: str, ask: Ask) -> Distribution:
        """Ask once for all callers that wait. A failed request is repeated by the next caller."""
        key = (url, model)
        if key not in self._found:
            self._found[key] = asyncio.create_task(_found(url, model, ask))
        try:
            return await asyncio.shield(self._found[key])
        except ModelError:
            self._found.pop(key, None)
            return Distribution()


async def _found(url: str, model: str, ask: Ask) -> Distribution:
    messages = [{"role": "user", "content": "?"}]
    rendered = _object(await ask(RENDER, {"model": model, "messages": messages}))
    # with one candidate, the sampled distribution gives it the probability 1
    only = {"prompt": "?", "max_tokens": 1, "top_k": 1, "temperature": 1.0, "logprobs": 0}
    told = _object(await ask("/v1/completions", {"model": model, **only}))
    for choice in told.get("choices") or ():
        log_probs = (choice.get("logprobs") or {}).get("token_logprobs") or [0.0]
        if log_probs[0] < 0:
            log.warning(RAW, url)
    if "sampling_params" not in rendered:
        return Distribution()
    return Distribution(rendered["sampling_params"].get("temperature", 1.0))


def _object(reply: Reply) -> JsonObject:
    payload = parse_json(reply.raw)
    return payload if reply.status == 200 and isinstance(payload, dict) else {}
