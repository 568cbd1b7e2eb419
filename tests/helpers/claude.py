"""Anthropic's Messages API as the real one behaves: it refuses a conversation that is not as it has
sent it, counts what its cache holds, and is overloaded at times."""

import asyncio
import hashlib
import json
import threading
from collections.abc import Callable, Iterator

import orjson
from aiohttp import web
from support import HANG_S

from rollout_kit.types import JsonObject

KNOWN = {
    *("model", "messages", "system", "max_tokens", "tools", "tool_choice", "temperature", "top_p"),
    *("top_k", "stop_sequences", "thinking", "output_config", "metadata", "service_tier"),
    *("stream", "cache_control", "inference_geo"),
}

COUNTED = {"model", "messages", "system", "tools", "tool_choice", "thinking", "output_config"}
"""What a request that counts tokens may have."""

CHARS = 4
"""Characters of JSON that make a token."""

LOOKBACK = 20

SMALLEST = 1024
"""Tokens of the shortest prefix that is cached."""


class Refused(Exception):
    def __init__(self, status: int, kind: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.headers = status, kind, headers


def invalid(message: str) -> Refused:
    return Refused(400, "invalid_request_error", message)


def size_of(block: JsonObject) -> int:
    bare = {name: value for name, value in block.items() if name != "cache_control"}
    return len(json.dumps(bare)) // CHARS


def count_input(asked: JsonObject) -> int:
    if unknown := sorted(asked.keys() - COUNTED):
        raise invalid(f"{unknown[0]}: Extra inputs are not permitted")
    return sum(map(size_of, [*asked.get("tools", ()), *asked["messages"]]))


class Cache:
    """Prefixes that requests have marked."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def read(self, request: JsonObject) -> tuple[int, int, int]:
        """Tokens that are read from it, written to it, and neither."""
        system = request.get("system") or []
        blocks = [*(request.get("tools") or []), *(system if isinstance(system, list) else [])]
        for message in request["messages"]:
            blocks += message["content"] if isinstance(message["content"], list) else [message]
        digest, sums, digests, marks = hashlib.sha256(), [0], [""], []
        for number, block in enumerate(blocks, 1):
            bare = {name: value for name, value in block.items() if name != "cache_control"}
            digest.update(json.dumps(bare, sort_keys=True).encode())
            digests.append(digest.hexdigest())
            sums.append(sums[-1] + size_of(block))
            if "cache_control" in block:
                marks.append(number)
        found = 0
        for mark in marks:
            for number in range(mark, max(0, mark - LOOKBACK), -1):
                if digests[number] in self._known:
                    found = max(found, number)
                    break
        kept = [mark for mark in marks if sums[mark] >= SMALLEST]
        self._known |= {digests[mark] for mark in kept}
        last = max([found, *kept])
        return sums[found], sums[last] - sums[found], sums[-1] - sums[last]


class Claude:
    """`say(turn, request)` gives the blocks of a turn, the first of which is number 1."""

    def __init__(
        self,
        say: Callable[[int, JsonObject], list[JsonObject]],
        *,
        streams: bool = False,
        key: str = "a-key-of-a-provider",
        output_tokens: int = 20,
    ) -> None:
        self.say, self.streams, self.key = say, streams, key
        self.requests: list[JsonObject] = []
        self.refused: list[str] = []
        self.usages: list[JsonObject] = []
        self.troubles: list[Refused] = []
        """Raised by the next requests, one each."""
        self.held_at = 0
        self.is_held = threading.Event()
        self.stop_reason: str | None = None
        self._output_tokens = output_tokens
        self._cache = Cache()
        self._turns: dict[str, list[JsonObject]] = {}
        """Signature → the turn that it came with."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method != "POST":
            return web.Response(status=405)
        asked = orjson.loads(await request.read())
        try:
            if request.path == "/v1/messages/count_tokens":
                return web.json_response({"input_tokens": count_input(asked)})
            if request.path != "/v1/messages":
                raise Refused(404, "not_found_error", "Not found")
            self._check_headers(request)
            self.requests.append(asked)
            if self.troubles:
                raise self.troubles.pop(0)
            self._check(asked)
            turn = 1 + sum(each["role"] == "assistant" for each in asked["messages"])
            if turn == self.held_at:
                self.is_held.set()
                await asyncio.sleep(HANG_S)
            return await self._reply(request, self._message(asked, turn))
        except Refused as error:
            if error.status == 400:
                self.refused.append(str(error))
            told = {"type": error.kind, "message": str(error)}
            body = {"type": "error", "error": told, "request_id": "req_1"}
            headers = {name.replace("_", "-"): text for name, text in error.headers.items()}
            return web.json_response(body, status=error.status, headers=headers)

    def _message(self, asked: JsonObject, turn: int) -> JsonObject:
        content = self.say(turn, asked)
        for block in content:
            if signature := block.get("signature") or block.get("data"):
                self._turns[signature] = content
        read, written, rest = self._cache.read(asked)
        usage = {
            "input_tokens": rest,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": written,
            "cache_creation": {
                "ephemeral_5m_input_tokens": written,
                "ephemeral_1h_input_tokens": 0,
            },
            "output_tokens": self._output_tokens,
            "service_tier": "standard",
        }
        self.usages.append(usage)
        calls = any(block["type"] == "tool_use" for block in content)
        return {
            "id": f"msg_{len(self.requests)}",
            "type": "message",
            "role": "assistant",
            "model": asked["model"],
            "content": content,
            "stop_reason": self.stop_reason or ("tool_use" if calls else "end_turn"),
            "stop_sequence": None,
            "usage": usage,
        }

    async def _reply(self, request: web.Request, message: JsonObject) -> web.StreamResponse:
        asked = self.requests[-1]
        if not asked.get("stream"):
            return web.json_response(message)
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        for event in events_of(message):
            await reply.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        return reply

    def _check_headers(self, request: web.Request) -> None:
        if request.headers.get("x-api-key") != self.key:
            raise Refused(401, "authentication_error", "invalid x-api-key")
        if not request.headers.get("anthropic-version"):
            raise invalid("anthropic-version: header is required")

    def _check(self, asked: JsonObject) -> None:
        if unknown := sorted(asked.keys() - KNOWN):
            raise invalid(f"{unknown[0]}: Extra inputs are not permitted")
        if not isinstance(asked.get("max_tokens"), int):
            raise invalid("max_tokens: Field required")
        budget = (asked.get("thinking") or {}).get("budget_tokens")
        if budget is not None and not 1024 <= budget < asked["max_tokens"]:
            raise invalid("`max_tokens` must be greater than `thinking.budget_tokens`")
        raw = json.dumps(asked)
        if raw.count('"cache_control"') > 4:
            raise invalid("A maximum of 4 blocks with cache_control may be provided.")
        if not asked["messages"] or asked["messages"][0]["role"] != "user":
            raise invalid('messages: first message must use the "user" role')
        called: list[str] = []
        seen: set[str] = set()
        for number, message in enumerate(asked["messages"]):
            blocks = message["content"]
            if isinstance(blocks, str):
                blocks = [{"type": "text", "text": blocks}]
            if not blocks:
                raise invalid(f"messages.{number}: content must not be empty")
            for block in blocks:
                self._check_block(block, message["role"])
            self._check_results(blocks, called, number)
            called = [each["id"] for each in blocks if each["type"] == "tool_use"]
            if len({*called, *seen}) != len(called) + len(seen):
                raise invalid("messages: `tool_use` ids must be unique")
            seen |= {*called}
            if message["role"] == "assistant":
                self._check_turn(blocks, number)
        if called:
            raise invalid("`tool_use` ids were found without `tool_result` blocks after")

    def _check_block(self, block: JsonObject, role: str) -> None:
        kind = block["type"]
        if kind == "text" and not block["text"].strip():
            raise invalid("messages: text content blocks must contain non-whitespace text")
        if "cache_control" in block and kind in ("thinking", "redacted_thinking"):
            raise invalid("cache_control cannot be set for thinking blocks")
        of_assistant = kind in ("thinking", "redacted_thinking", "tool_use")
        if (of_assistant and role != "assistant") or (kind == "tool_result" and role != "user"):
            raise invalid(f"messages: `{kind}` blocks cannot be in `{role}` messages")

    def _check_results(self, blocks: list[JsonObject], called: list[str], number: int) -> None:
        kinds = [block["type"] for block in blocks]
        results = [each["tool_use_id"] for each in blocks if each["type"] == "tool_result"]
        if sorted(results) != sorted(called):
            what = "unexpected `tool_use_id`" if set(results) - set(called) else "`tool_use` ids"
            raise invalid(f"messages.{number}: {what} found in `tool_result` blocks: {results}")
        if kinds[: len(results)].count("tool_result") != len(results):
            raise invalid(f"messages.{number}: `tool_result` blocks must come first")

    def _check_turn(self, blocks: list[JsonObject], number: int) -> None:
        bare = [{k: v for k, v in block.items() if k != "cache_control"} for block in blocks]
        signed = [each for each in bare if each["type"] in ("thinking", "redacted_thinking")]
        for block in signed:
            signature = block.get("signature") or block.get("data")
            if signature not in self._turns:
                raise invalid(f"messages.{number}: Invalid `signature` in `thinking` block")
            if block not in self._turns[signature]:
                raise invalid(f"messages.{number}: `thinking` blocks cannot be modified")
            if bare != self._turns[signature]:
                raise invalid(f"messages.{number}: the blocks are not in the order of the answer")
        is_turn = any(each["type"] == "tool_use" for each in bare)
        if is_turn and self._turns and not signed:
            raise invalid(f"messages.{number}: Expected `thinking`, but found `tool_use`")


def events_of(message: JsonObject) -> Iterator[JsonObject]:
    """The events of a streamed message, with each text in two pieces."""
    usage = {**message["usage"], "output_tokens": 1}
    begun = {**message, "content": [], "stop_reason": None, "usage": usage}
    yield {"type": "message_start", "message": begun}
    yield {"type": "ping"}
    for index, block in enumerate(message["content"]):
        at = {"index": index}
        empty, deltas = dict(block), list[JsonObject]()
        for name, kind in (("text", "text_delta"), ("thinking", "thinking_delta")):
            if name in block:
                empty[name] = ""
                half = len(block[name]) // 2
                deltas += [
                    {"type": kind, name: piece}
                    for piece in (block[name][:half], block[name][half:])
                ]
        if "signature" in block:
            empty["signature"] = ""
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        if block["type"] == "tool_use":
            empty["input"], text = {}, json.dumps(block["input"])
            deltas += [
                {"type": "input_json_delta", "partial_json": piece}
                for piece in ("", text[:5], text[5:])
            ]
        yield {"type": "content_block_start", **at, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", **at, "delta": delta}
        yield {"type": "content_block_stop", **at}
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    used = {"output_tokens": message["usage"]["output_tokens"]}
    yield {"type": "message_delta", "delta": end, "usage": used}
    yield {"type": "message_stop"}
