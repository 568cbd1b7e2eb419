"""The parts of a request, in either API, that determine its answer."""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from rollout_kit.errors import TaskError
from rollout_kit.responses import content_texts, input_items
from rollout_kit.serving.endpoints.chat import SERVER_SIDE
from rollout_kit.serving.model import CHAT, RESPONSES
from rollout_kit.types import JsonObject

CHARS_PER_TOKEN = 4
"""Approximate value of English text."""

DELIVERY = frozenset({"model", "stream", "stream_options"})
"""Keys that affect only the delivery of an answer."""


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    parameters: JsonObject


@dataclass(frozen=True, slots=True)
class Asked:
    """`users` are the user's texts in order, `num_turns` counts the turns that called tools, and
    `digest` identifies the whole content."""

    body: JsonObject
    dialect: str
    digest: bytes
    prompt: str
    users: tuple[str, ...]
    tools: tuple[Tool, ...]
    num_turns: int
    max_tokens: int | None
    schema: JsonObject | None = None
    """What the answer must be: a JSON schema. None if it may be any text."""

    @property
    def question(self) -> str:
        return "\n".join(self.users)

    @property
    def last_user_text(self) -> str:
        return self.users[-1] if self.users else ""

    @property
    def prompt_tokens(self) -> int:
        return num_tokens(self.prompt)


def num_tokens(text: str) -> int:
    return -(-len(text) // CHARS_PER_TOKEN)


def read(dialect: str, body: JsonObject) -> Asked:
    """Parse a request; TaskError if it is invalid in this API."""
    try:
        return (_read_responses if dialect == RESPONSES else _read_chat)(body)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TaskError(
            f"this is no {dialect} request: {type(error).__name__}: {error}", status=400
        ) from None


def _read_responses(body: JsonObject) -> Asked:
    if not isinstance(body.get("input"), str | list):
        raise TypeError(f"input must be a string or a list, got {body.get('input')!r:.80}")
    for name in SERVER_SIDE:
        if body.get(name) is not None:
            raise TaskError(f"{name}: a simulated model stores no responses", status=400)
    users: list[str] = []
    texts: list[str] = [body["instructions"]] if body.get("instructions") else []
    num_turns, is_calling = 0, False
    for item in input_items(body):
        kind = item.get("type", "message")
        if kind == "function_call":
            num_turns += not is_calling
            texts.append(item["arguments"])
        elif kind == "function_call_output":
            texts += content_texts(item["output"])
        elif kind == "message":
            said = "".join(content_texts(item.get("content")))
            texts.append(said)
            if item.get("role") == "user":
                users.append(said)
        is_calling = kind == "function_call"
    return Asked(
        body=body,
        dialect=RESPONSES,
        digest=digest_of(body),
        prompt="\n".join(texts),
        users=tuple(users),
        tools=tuple(Tool(each["name"], each.get("parameters") or {}) for each in _offered(body)),
        num_turns=num_turns,
        max_tokens=_limit(body.get("max_output_tokens")),
        schema=_schema((body.get("text") or {}).get("format"), "schema"),
    )


def _read_chat(body: JsonObject) -> Asked:
    if not isinstance(body.get("messages"), list):
        raise TypeError(f"messages must be a list, got {body.get('messages')!r:.80}")
    if body.get("n", 1) != 1:
        raise ValueError("n: a simulated model gives one choice")
    users: list[str] = []
    texts: list[str] = []
    num_turns = 0
    for message in body["messages"]:
        said = "".join(content_texts(message.get("content")))
        texts.append(said)
        if message["role"] == "user":
            users.append(said)
        if calls := message.get("tool_calls"):
            num_turns += 1
            texts += [call["function"]["arguments"] for call in calls]
    functions = (tool["function"] for tool in _offered(body))
    return Asked(
        body=body,
        dialect=CHAT,
        digest=digest_of(body),
        prompt="\n".join(texts),
        users=tuple(users),
        tools=tuple(Tool(each["name"], each.get("parameters") or {}) for each in functions),
        num_turns=num_turns,
        max_tokens=_limit(body.get("max_completion_tokens") or body.get("max_tokens")),
        schema=_schema(body.get("response_format"), "json_schema", "schema"),
    )


def _offered(body: JsonObject) -> Iterator[JsonObject]:
    """The function tools of the request."""
    if body.get("tool_choice") != "none":
        yield from (tool for tool in body.get("tools") or () if tool.get("type") == "function")


def _schema(form: JsonObject | None, *path: str) -> JsonObject | None:
    """The schema at `path` in the format that a request wants; any object for `json_object`."""
    match (form or {}).get("type", "text"):
        case "text":
            return None
        case "json_object":
            return {"type": "object"}
        case "json_schema":
            found: Any = form
            for name in path:
                found = found[name]
            if not isinstance(found, dict):
                raise TypeError(f"schema must be an object, got {found!r:.80}")
            return found
        case other:
            raise ValueError(f"no format is called {other!r:.80}")


def _limit(given: Any) -> int | None:
    if given is not None and (type(given) is not int or given < 1):
        raise ValueError(f"the most output tokens must be a number from 1, got {given!r:.80}")
    return given


def digest_of(body: JsonObject) -> bytes:
    content = {key: value for key, value in body.items() if key not in DELIVERY}
    return blake2b(orjson.dumps(content, option=orjson.OPT_SORT_KEYS), digest_size=16).digest()
