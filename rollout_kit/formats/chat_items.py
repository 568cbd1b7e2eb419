"""Chat messages as items of the Responses API."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from ..responses import (
    Item,
    content_texts,
    function_call_item,
    function_call_output,
    message_item,
    reasoning_item,
)
from ..serving.endpoints.completions import read_part, read_tool
from ..serving.endpoints.replies import REASONING
from ..types import JsonObject
from .foreign import Damaged

OF_MESSAGE = frozenset(
    {"role", "content", "tool_calls", "tool_call_id", "refusal", "name", "type", *REASONING}
)


@dataclass(slots=True)
class Items:
    """Items of a conversation, and what of it they cannot hold."""

    items: list[Item] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """For each message, the number of items up to its last one."""
    roles: list[str] = field(default_factory=list)
    """Of each message."""
    unread: list[JsonObject] = field(default_factory=list)
    """The rest of messages, each with its `message`, from 0."""

    def add(self, message: Any) -> None:
        """Add a chat message; Damaged if it is none."""
        if not isinstance(message, dict) or not isinstance(role := message.get("role"), str):
            raise Damaged("a message has no role")
        before = len(self.unread)
        if role == "assistant":
            self._add_answer(message)
        elif role == "tool":
            output = self._content(message.get("content"))
            self.items.append(function_call_output(str(message.get("tool_call_id") or ""), output))
        else:
            content = self._content(message.get("content"))
            self.items.append({"type": "message", "role": role, "content": content})
        for name in message.keys() - OF_MESSAGE:
            self._keep(name, message[name])
        for each in self.unread[before:]:
            each["message"] = len(self.ends)
        self.ends.append(len(self.items))
        self.roles.append(role)

    def end_of_turn(self, at: int) -> int:
        """The number of items up to the last output of the tools that a message calls."""
        while at + 1 < len(self.roles) and self.roles[at + 1] == "tool":
            at += 1
        return self.ends[at]

    def _add_answer(self, message: Mapping[str, Any]) -> None:
        thoughts = [message[name] for name in REASONING if isinstance(message.get(name), str)]
        if thoughts and thoughts[0]:
            self.items.append(reasoning_item(thoughts[0]))
        for name in REASONING:
            if name in message and not isinstance(message[name], str):
                self._keep(name, message[name])
        calls = message.get("tool_calls") or []
        content = self._content(message.get("content"))
        parts = content if isinstance(content, list) else []
        text = "".join(content_texts(content))
        for part in parts:
            if part["type"] != "input_text":
                self._keep("part", part)
        if refusal := message.get("refusal"):
            item = message_item("")
            item["content"] = [{"type": "refusal", "refusal": str(refusal)}]
            self.items.append(item)
        elif text or not calls:
            self.items.append(message_item(text))
        for call in calls:
            self.items.append(_call(call))

    def _content(self, content: Any) -> Any:
        """The content as text or as a list of parts of the Responses API."""
        if content is None or isinstance(content, str):
            return content or ""
        if not isinstance(content, list):
            raise Damaged("the content of a message is neither text nor a list")
        return [part for each in content if (part := self._part(each)) is not None]

    def _part(self, part: Any) -> JsonObject | None:
        match part:
            case str():
                return {"type": "input_text", "text": part}
            case {"type": "input_text" | "output_text", "text": str(text)}:
                return {"type": "input_text", "text": text}
            case {"type": "image_url" | "input_image", "image_url": str(url)}:
                detail = part.get("detail") or "auto"
                return {"type": "input_image", "image_url": url, "detail": detail}
            case {"type": "image_url", "image_url": {"url": str(), **more}}:
                return {"detail": "auto", **more, **(read_part(part) or {})}
            case {"type": "input_file"}:
                return part
            case (
                {"type": "text", "text": str()}
                | {"type": "input_audio"}
                | {"type": "file", "file": dict()}
            ):
                return read_part(part)
        self._keep("part", part)
        return None

    def _keep(self, name: str, value: Any) -> None:
        if value not in (None, "", [], {}):
            self.unread.append({"message": len(self.ends), name: value})


def read_messages(messages: Iterable[Any]) -> Items:
    """The items of chat messages; Damaged if one of them is none."""
    found = Items()
    for message in messages:
        found.add(message)
    return found


def _call(call: Any) -> Item:
    own = call if isinstance(call, dict) else {}
    function = own.get("function")
    told = function if isinstance(function, dict) else own
    name = told.get("name") if isinstance(function, dict) or function is None else function
    if not isinstance(name, str):
        raise Damaged("a tool call names no function")
    return function_call_item(name, as_text(told.get("arguments", {})), own.get("id"))


def as_text(value: Any) -> str:
    """Texts as they are, all else as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def as_tools(tools: Any) -> list[JsonObject]:
    """Tool definitions of Chat, or bare ones, as those of the Responses API."""
    return [
        {"strict": None, **found}
        if (found := read_tool(each)) is not None
        else {"type": "function", **each}
        for each in (tools if isinstance(tools, list) else [])
        if isinstance(each, dict)
    ]
