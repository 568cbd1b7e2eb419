"""A workload with a price: 70 % of the tasks are one call, 30 % ten calls behind a prompt of 4,000
tokens. The endpoints of OpenAI and Anthropic are imitated with their caches.

Four characters are a token. Of each task it is drawn how often it is solved, from Beta(0.5, 0.5).
"""

import json
import random
from collections import Counter
from typing import NamedTuple

from batches import Imitation
from claude import CHARS, Cache, size_of

from rollout_kit.api.testing import call_response, text_response
from rollout_kit.responses import output_text
from rollout_kit.serving.resources_server import ResourcesServer, tool
from rollout_kit.types import JsonObject, VerifyRequest, VerifyResponse

REPEATS, TURNS = 8, 10
PROMPT, PREFIX = 600, 4_000
"""Input tokens of a task with one call, and of the beginning of one with ten."""

SAID, SEEN = 40, 160
"""Tokens that a turn adds: those that the model says, and those that the tool does."""

ANSWER = 300
"""Output tokens of a task with one call."""


class PriceList(NamedTuple):
    """US dollars per million tokens, and whose endpoint it is."""

    prices: JsonObject
    server: str = "openai_model"


OPENAI = PriceList(
    {"input": 1.25, "cached_input": 0.125, "output": 10.0, "factors": {"batch": 0.5, "flex": 0.5}}
)
ANTHROPIC = PriceList(
    {
        "input": 3.0,
        "cached_input": 0.3,
        "cache_write": 3.75,
        "output": 15.0,
        "factors": {"batch": 0.5},
    },
    "anthropic_model",
)
BATCH_ONLY = PriceList({"input": 1.0, "output": 4.0, "factors": {"batch": 0.5}})


def make_rows(number: int) -> list[JsonObject]:
    """So many tasks, of each ten seven with one call."""
    return [_make_row(each, has_turns=each % 10 >= 7) for each in range(number)]


def _make_row(number: int, *, has_turns: bool) -> JsonObject:
    name, size = f"task {number}", PREFIX if has_turns else PROMPT
    text = f"{name}: ".ljust(size * CHARS - 100, "abcdefgh ijkl mnop "[number % 8])
    params: JsonObject = {"input": [{"role": "user", "content": text}]}
    return {"responses_create_params": params if has_turns else {**params, "tools": []}}


class Solving(ResourcesServer):
    """Says whether the answer is right; its tool says a little."""

    reverify = "never"

    @tool
    async def look(self) -> str:
        return "seen " * (SEEN * CHARS // 5)

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        return body.scored(float(output_text(body.response) == "right"))


class Provider:
    """What a model says, and what is counted of it. `naive_usd` is what all requests would cost at
    the standard price without a cache."""

    def __init__(self, found: Imitation, given: PriceList, *, has_cache: bool = True) -> None:
        self._is_anthropic = given.server == "anthropic_model"
        self._prices, self._has_cache = given.prices, has_cache
        self._drawn = Counter[str]()
        self._known = set[int]()
        self._marked = Cache()
        self.naive_usd = 0.0
        found.answer, found.answer_at_once = self._by_batch, self._at_once

    def _by_batch(self, body: JsonObject) -> JsonObject:
        return self._message(body, 0, 0) if self._is_anthropic else self._response(body, 0)

    def _at_once(self, body: JsonObject) -> JsonObject:
        if self._is_anthropic:
            read, written, _ = self._marked.read(_as_blocks(body))
            return self._message(body, read, written)
        return self._response(body, self._read(body) if self._has_cache else 0)

    def _read(self, body: JsonObject) -> int:
        """Tokens of the longest beginning that an earlier request had, in steps of 128 from 1,024
        on."""
        text, found = "".join(map(json.dumps, body["input"])), 0
        for size in range(1_024, len(text) // CHARS, 128):
            name = hash(text[: size * CHARS])
            found = size if name in self._known else found
            self._known.add(name)
        return found

    def _solve(self, text: str) -> str:
        task = text.partition(":")[0]
        rate = random.Random(task).betavariate(0.5, 0.5)
        self._drawn[task] += 1
        is_right = random.Random(f"{task} {self._drawn[task]}").random() < rate
        return "right" if is_right else "wrong"

    def _count(self, size: int, said: int) -> None:
        of = self._prices
        self.naive_usd += (size * of["input"] + said * of["output"]) / 1e6

    def _response(self, body: JsonObject, cached: int) -> JsonObject:
        items = body["input"]
        number = sum(each.get("type") == "function_call_output" for each in items)
        calls = bool(body.get("tools")) and number < TURNS - 1
        said = SAID if body.get("tools") else ANSWER
        size = sum(len(json.dumps(each)) for each in items) // CHARS
        self._count(size, said)
        made = call_response(("look", "{}")) if calls else None
        return {
            **(made or text_response(self._solve(items[0]["content"]))),
            "service_tier": body.get("service_tier") or "default",
            "usage": {
                "input_tokens": size,
                "input_tokens_details": {"cached_tokens": min(cached, size)},
                "output_tokens": said,
                "total_tokens": size + said,
            },
        }

    def _message(self, body: JsonObject, read: int, written: int) -> JsonObject:
        messages = body["messages"]
        blocks = [each for message in messages for each in _blocks_of(message)]
        number = sum(each["type"] == "tool_result" for each in blocks)
        calls = bool(body.get("tools")) and number < TURNS - 1
        said = SAID if body.get("tools") else ANSWER
        size = sum(map(size_of, [*body.get("tools", ()), *blocks]))
        self._count(size, said)
        text = {"type": "text", "text": "" if calls else self._solve(blocks[0]["text"])}
        use = {"type": "tool_use", "id": f"call_{number}", "name": "look", "input": {}}
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": [use if calls else text],
            "stop_reason": "tool_use" if calls else "end_turn",
            "stop_sequence": None,
            "usage": {
                "input_tokens": size - read - written,
                "cache_read_input_tokens": read,
                "cache_creation_input_tokens": written,
                "output_tokens": said,
            },
        }


def _blocks_of(message: JsonObject) -> list[JsonObject]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _as_blocks(body: JsonObject) -> JsonObject:
    messages = [{**each, "content": _blocks_of(each)} for each in body["messages"]]
    return {**body, "messages": messages}
