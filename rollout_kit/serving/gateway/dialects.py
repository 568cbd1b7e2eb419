"""The APIs that programs speak, and how each says what ours says.

A dialect reads a request as items and create params, writes a response as its own reply, and knows
which of its last events say that a reply is whole.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from ...errors import TaskError
from ...responses import Item, input_items, new_id
from ...trajectory import TOKEN_FIELDS, VERSION_FIRST, VERSION_LAST
from ...types import JsonObject
from ..endpoints import completions, messages
from ..endpoints.events import completion_events, response_events
from ..endpoints.open_responses import complete

UNSEEN = TOKEN_FIELDS | {VERSION_FIRST, VERSION_LAST, "provider_data"}
"""Fields of items that a program does not get. It need not send them back: its next request gets
the items of the record."""

OF_DELIVERY = frozenset(
    {
        *("model", "stream", "stream_options", "store", "background", "user", "service_tier"),
        *("metadata", "client_metadata", "prompt_cache_key", "prompt_cache_retention"),
        *("safety_identifier", "include", "context_management"),
    }
)
"""Fields of a request that say nothing about what is generated. The run chooses the model."""

KINDS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
"""Status → the type of an error in the words of both providers."""


class ReadRequest(NamedTuple):
    """`opening` are the items that stand outside of the list that grows."""

    opening: list[Item]
    items: list[Item]
    params: JsonObject


@dataclass(frozen=True, slots=True)
class Dialect:
    """`field` is the list of a request that grows from call to call."""

    field: str
    read: Callable[[JsonObject], ReadRequest]
    write: Callable[[JsonObject, JsonObject], JsonObject]
    """A response to a request → the reply."""
    list_events: Callable[[JsonObject, JsonObject], list[bytes]]
    """A reply to a request → its events."""
    num_held: Callable[[JsonObject], int]
    """How many events at the end say that the reply is whole."""
    read_reply: Callable[[JsonObject], list[Item]]
    """The items that a program sends back for a reply."""
    write_error: Callable[[int, str, str], JsonObject]
    """The error of a status, with its message and code."""


def _shown(response: JsonObject) -> JsonObject:
    """The response as programs get it."""
    output = [
        {name: value for name, value in item.items() if name not in UNSEEN}
        for item in response["output"]
    ]
    return {**response, "output": output}


def _read_chat(request: JsonObject) -> ReadRequest:
    params = completions.as_params(request)
    return ReadRequest([], params.pop("input"), params)


def _write_chat(response: JsonObject, request: JsonObject) -> JsonObject:
    return completions.as_completion(_shown(response))


def _wants_usage(request: JsonObject) -> bool:
    options = request.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))


def _chat_events(reply: JsonObject, request: JsonObject) -> list[bytes]:
    return completion_events(reply, usage=_wants_usage(request))


def _read_chat_reply(reply: JsonObject) -> list[Item]:
    message = reply["choices"][0]["message"]
    return completions.as_params({"messages": [message]})["input"]


def _openai_error(status: int, message: str, code: str) -> JsonObject:
    kind = KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code or None}}


def _read_messages(request: JsonObject) -> ReadRequest:
    params = messages.as_params(request)
    items = params.pop("input")
    num_opening = 1 if items and items[0].get("role") == "system" else 0
    return ReadRequest(items[:num_opening], items[num_opening:], params)


def _write_message(response: JsonObject, request: JsonObject) -> JsonObject:
    return messages.as_message(_shown(response))


def _read_message_reply(reply: JsonObject) -> list[Item]:
    said = {"role": "assistant", "content": reply["content"]}
    return messages.as_params({"messages": [said]})["input"]


def _anthropic_error(status: int, message: str, code: str) -> JsonObject:
    kind = KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    named = f"{code}: {message}" if code else message
    return {"type": "error", "error": {"type": kind, "message": named}}


def _read_responses(request: JsonObject) -> ReadRequest:
    for name in ("conversation", "previous_response_id"):
        if request.get(name) is not None:
            raise TaskError(f"{name}: nothing is stored here: send all items", status=400)
    params = {name: value for name, value in request.items() if value is not None}
    is_given = isinstance(params.get("input"), str | list)
    items: list[Any] = input_items(params) if is_given else [None]
    params.pop("input", None)
    if not all(isinstance(item, dict) for item in items):
        raise TaskError("input: must be a text or a list of items", status=400)
    said = params.pop("instructions", None)
    return ReadRequest([{"role": "system", "content": said}] if said else [], items, params)


def _write_response(response: JsonObject, request: JsonObject) -> JsonObject:
    known = {name: value for name, value in request.items() if value is not None}
    made = complete(_shown(response), known)
    return {**made, "id": new_id("resp")}  # a reply of the record may be sent twice


def _response_events(reply: JsonObject, request: JsonObject) -> list[bytes]:
    return response_events(reply)


CHAT_COMPLETIONS = Dialect(
    "messages",
    _read_chat,
    _write_chat,
    _chat_events,
    lambda request: 3 if _wants_usage(request) else 2,
    _read_chat_reply,
    _openai_error,
)

RESPONSES_API = Dialect(
    "input",
    _read_responses,
    _write_response,
    _response_events,
    lambda request: 1,
    lambda reply: reply["output"],
    _openai_error,
)

MESSAGES_API = Dialect(
    "messages",
    _read_messages,
    _write_message,
    lambda reply, request: messages.message_events(reply),
    lambda request: 2,
    _read_message_reply,
    _anthropic_error,
)

DIALECTS: Mapping[str, Dialect] = {
    "/v1/chat/completions": CHAT_COMPLETIONS,
    "/v1/responses": RESPONSES_API,
    "/v1/messages": MESSAGES_API,
}


def dialect_of(path: str) -> Dialect:
    """The dialect whose errors a caller of `path` understands."""
    return MESSAGES_API if path.startswith("/v1/messages") else CHAT_COMPLETIONS


def encode_error(dialect: Dialect, status: int, message: str, code: str = "") -> bytes:
    return orjson.dumps(dialect.write_error(status, message, code))


def keep_params(params: Mapping[str, Any]) -> JsonObject:
    """What of a request says how to generate."""
    return {name: value for name, value in params.items() if name not in OF_DELIVERY}
