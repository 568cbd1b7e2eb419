"""A reward model behind vLLM: `/classify`, `/score` and `/pooling`, asked for raw scores.

Requests and replies are those of vLLM's `entrypoints/pooling`. `use_activation: false` asks for the
scores before sigmoid or softmax; vLLM knows it since 0.11.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from math import isfinite
from typing import Any, Literal

import orjson

from ...errors import RolloutError, VerifyError, on_one_line
from ...reading import parse_line
from ...types import JsonObject
from ..transport.access import bearer
from ..transport.http import HttpClient, Reply
from ..transport.loop import gather_all
from ..transport.retry import JUDGE_CALL, retry
from .classifier import Text

Api = Literal["classify", "score", "pooling"]

TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


@dataclass(slots=True)
class PoolingEndpoint:
    """The model at `url`, which is vLLM's address without a route."""

    url: str
    api: Api
    model_name: str | None
    api_key: str
    timeout_s: float
    truncates: bool
    _client: HttpClient = field(default_factory=HttpClient)

    async def close(self) -> None:
        await self._client.close()

    async def score(self, texts: Sequence[Text]) -> list[list[float]]:
        """The raw scores of each text, one for each class. VerifyError without them."""
        if isinstance(texts[0], list):  # a request has one conversation
            bodies = [{"messages": text} for text in texts]
        elif isinstance(texts[0], tuple):
            first, second = zip(*texts, strict=True)
            bodies = [{"text_1": list(first), "text_2": list(second)}]
        else:
            bodies = [{"input": list(texts)}]
        number = 1 if len(bodies) == len(texts) else len(texts)
        found = await gather_all(map(self._ask, bodies, repeat(number)))
        return [scores for part in found for scores in part]

    async def _ask(self, body: JsonObject, number: int) -> list[list[float]]:
        """The scores of one request, of so many texts."""
        asked: JsonObject = {**body, "use_activation": False}
        if self.model_name is not None:
            asked["model"] = self.model_name
        if self.truncates:
            asked["truncate_prompt_tokens"] = -1
        if self.api == "pooling":
            asked["task"] = "classify"
        try:
            reply = await retry(partial(self._post, orjson.dumps(asked)), JUDGE_CALL)
        except VerifyError:
            raise
        except RolloutError as error:
            raise self._refuse(f"gave no score: {error.message}", is_final=False) from error
        data = (parse_line(reply.raw) or {}).get("data")
        try:
            scores = [self._read(each) for each in sorted(data, key=lambda one: one["index"])]  # type: ignore[arg-type]
        except (TypeError, KeyError, ValueError) as error:
            raise self._refuse(f"gave no score that can be read: {error!r}", reply) from None
        if len(scores) != number:
            raise self._refuse(f"gave {len(scores)} scores of {number} texts", reply)
        return scores

    async def _post(self, raw: bytes) -> Reply:
        headers = bearer(self.api_key or None)
        url = f"{self.url.rstrip('/')}/{self.api}"
        reply = await self._client.post(url, raw, headers=headers, timeout_s=self.timeout_s)
        if reply.status != 200:
            said = on_one_line(reply.text(), 500)
            is_final = reply.status not in TRANSIENT
            raise self._refuse(f"answered {reply.status}: {said}", reply, is_final=is_final)
        return reply

    def _read(self, entry: Mapping[str, Any]) -> list[float]:
        """The scores of an entry of `data`; ValueError, TypeError or KeyError if it has none."""
        key = {"classify": "probs", "score": "score", "pooling": "data"}[self.api]
        found = entry[key]
        scores = [float(each) for each in (found if isinstance(found, list) else [found])]
        if not scores or not all(map(isfinite, scores)):
            raise ValueError(f"{key} is {found!r:.100}")
        return scores

    def _refuse(
        self, why: str, reply: Reply | None = None, *, is_final: bool = True
    ) -> VerifyError:
        # without a status: with that of a final error the row would count as refused
        body = reply.text() if reply else ""
        what = f"the reward model at {self.url}/{self.api} {why}"
        return VerifyError(what, body=body, retryable=not is_final)
