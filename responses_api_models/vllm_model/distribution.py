"""What a vLLM samples from, where that cannot be seen from a request: the temperature that it takes
when none is given, and whether its log-probs are those of the distribution that was sampled from.

Both are found by asking it, once, and only where token ids are wanted.
"""

import asyncio
import logging
from dataclasses import dataclass

from rollout_kit.endpoints.refusals import parse_json
from rollout_kit.errors import ModelError
from rollout_kit.transport.http import Reply
from rollout_kit.types import JsonObject

from .token_in import RENDER, Ask

log = logging.getLogger(__name__)

RAW = (
    "%s gives raw log-probs: those before temperature, top-k and top-p, not those that tokens are"
    " sampled from. Start it with --logprobs-mode processed_logprobs"
)


@dataclass(frozen=True, slots=True)
class Distribution:
    temperature: float | None = None
    """Of requests that name none; None where it is not known."""


class Distributions:
    """Of each vLLM, by its URL and the model's name."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], asyncio.Task[Distribution]] = {}

    async def of(self, url: str, model: str, ask: Ask) -> Distribution:
        """Asked for once, however many wait for it; of one that does not answer nothing is known,
        and it is asked again."""
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
    # of one candidate, what is sampled from says that it is certain
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
