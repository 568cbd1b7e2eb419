"""The items of a conversation as the messages of Anthropic's API.

All items of a turn become one message of the assistant, with its blocks in the order in which the
endpoint sent them. The outputs of its calls are the first blocks of the user's message after it.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import orjson

from rollout_kit.responses import PROVIDER_DATA, Item, as_object, content_texts
from rollout_kit.serving.endpoints.chat import sound_arguments
from rollout_kit.serving.endpoints.completions import bad_request
from rollout_kit.serving.endpoints.provider_data import THINKING_BLOCKS, data_for, find_block
from rollout_kit.session import note_repair
from rollout_kit.types import JsonObject

from .thinking import version_of

SYSTEM_SINCE = (4, 8)
"""First version that takes a system message after the first turn."""

AS_USER = "a system message after the first turn → a message of the user"

UNSIGNED = "reasoning without a signature of this endpoint → left out"

BAD_IN_ID = re.compile(r"[^a-zA-Z0-9_-]")
"""What the ids of calls must not contain."""

DATA_URL = re.compile(r"data:([^;,]+);base64,", re.IGNORECASE)


class Conversation:
    """Builds the messages. `endpoint` names who gets them, for provider data."""

    def __init__(self, endpoint: str, model: str) -> None:
        self._endpoint = endpoint
        version = version_of(model)
        self._takes_system = "claude" in model.lower() and (
            version is None or version >= SYSTEM_SINCE
        )
        self._system: list[JsonObject] = []
        self._messages: list[JsonObject] = []
        self._called, self._answered = Counter[str](), Counter[str]()

    def finish(self) -> tuple[list[JsonObject], list[JsonObject]]:
        """The blocks of the system prompt, and the messages."""
        for message in self._messages:
            if message["role"] == "user":  # the endpoint wants results first
                message["content"].sort(key=lambda block: block["type"] != "tool_result")
        if not self._messages:
            raise bad_request("input: the Messages API wants a message of the user")
        if self._messages[0]["role"] != "user":
            raise bad_request("input: the Messages API wants the user's message first")
        return self._system, self._messages

    def add_system(self, content: Any) -> None:
        """Add instructions, which stand before all messages."""
        blocks = [{"type": "text", "text": text} for text in content_texts(content) if text.strip()]
        if not self._messages:
            self._system += blocks
        elif self._takes_system:
            self._put("system", *blocks)
        else:
            note_repair(AS_USER)
            self._put("user", *blocks)

    def add(self, item: Item) -> None:
        """Add an item of the input."""
        match item.get("type", "message"):
            case "message" if item.get("role") == "assistant":
                self._put("assistant", *self._said(item))
            case "message" if item.get("role") in ("system", "developer"):
                self.add_system(item.get("content"))
            case "message":
                self._put("user", *_parts(item.get("content")))
            case "function_call":
                self._put("assistant", self._call(item))
            case "function_call_output":
                self._put("user", self._result(item))
            case "reasoning":
                self._put("assistant", *self._thought(item))
            case other:
                raise bad_request(f"input: the Messages API cannot take a '{other}' item")

    def _put(self, role: str, *blocks: JsonObject) -> None:
        """Add blocks to the last message if it is of this role, else to a new one."""
        if not blocks:
            return
        if not self._messages or self._messages[-1]["role"] != role:
            self._messages.append({"role": role, "content": []})
        self._messages[-1]["content"] += blocks

    def _said(self, item: Item) -> list[JsonObject]:
        data = data_for(item, self._endpoint)
        carried = _find_thoughts(data)
        if "blocks" in data:
            return [*carried, *data["blocks"]]
        content = item.get("content")
        parts = [] if isinstance(content, str) else content or []
        texts = [*content_texts(content), *(part.get("refusal") for part in parts)]
        said = [{"type": "text", "text": text} for text in texts if text and text.strip()]
        return [*carried, *said]

    def _call(self, item: Item) -> JsonObject:
        data = data_for(item, self._endpoint)
        for block in _find_thoughts(data):
            self._put("assistant", block)
        block = {
            "type": "tool_use",
            "id": self._id(item, self._called),
            "name": item.get("name"),
            "input": orjson.loads(sound_arguments(item.get("arguments"))),
        }
        return {**block, **data.get("block", {})}

    def _result(self, item: Item) -> JsonObject:
        output = item.get("output")
        content = output if isinstance(output, str) else list(_parts(output))
        result = {"type": "tool_result", "tool_use_id": self._id(item, self._answered)}
        return {**result, "content": content} if content else result

    def _id(self, item: Item, seen: Counter[str]) -> str:
        """The id of a call as the endpoint takes it. Some endpoints give several calls one id: the
        nth of them has the nth result."""
        name = BAD_IN_ID.sub("_", str(item.get("call_id") or "")) or "call"
        seen[name] += 1
        return name if seen[name] == 1 else f"{name}_{seen[name]}"

    def _thought(self, item: Item) -> list[JsonObject]:
        """The blocks of a reasoning item. Without a signature of this endpoint there are none."""
        data = data_for(item, self._endpoint)
        if (block := find_block(item, data)) is not None:
            return [block]
        blocks = _find_thoughts(data)
        if not blocks and (data or PROVIDER_DATA not in item):
            note_repair(UNSIGNED)
        return blocks


def _find_thoughts(data: JsonObject) -> list[JsonObject]:
    """The thoughts that a client of Chat Completions has sent back with a message."""
    found = (data.get("message") or {}).get(THINKING_BLOCKS)
    return found if isinstance(found, list) else []


def _parts(content: Any) -> Iterator[JsonObject]:
    """The blocks of a user's content, or of a tool's output."""
    if isinstance(content, str):
        content = [{"type": "input_text", "text": content}]
    for part in content or ():
        match as_object(part).get("type"):
            case "input_text" | "output_text" | "text":
                text = str(part.get("text") or "")
                if text.strip():  # the endpoint refuses blanks
                    yield {"type": "text", "text": text}
            case "input_image":
                yield {"type": "image", "source": _source(part, "image_url", "an image")}
            case "image_url":
                url = (part.get("image_url") or {}).get("url")
                yield {"type": "image", "source": _source({"url": url}, "url", "an image")}
            case "input_file":
                yield _document(part)
            case "image" | "document" | "search_result":
                yield part  # already in the form of this API
            case other:
                raise bad_request(f"input: the Messages API cannot take a '{other}' part")


def _source(part: JsonObject, name: str, what: str) -> JsonObject:
    """Where an image or a document is: in the request, at a URL, or in the endpoint's files."""
    url = part.get(name)
    if isinstance(url, str) and (data := DATA_URL.match(url)):
        return {"type": "base64", "media_type": data[1], "data": url[data.end() :]}
    if isinstance(url, str) and url:
        return {"type": "url", "url": url}
    if part.get("file_id"):
        return {"type": "file", "file_id": part["file_id"]}
    raise bad_request(f"input: the Messages API needs {what}'s {name} or file_id")


def _document(part: JsonObject) -> JsonObject:
    name = "file_url" if part.get("file_url") else "file_data"
    given = part.get(name)
    if name == "file_data" and isinstance(given, str) and not DATA_URL.match(given):
        raise bad_request("input: file_data must be a data URL, data:application/pdf;base64,…")
    title = {"title": part["filename"]} if part.get("filename") else {}
    return {"type": "document", "source": _source(part, name, "a file"), **title}
