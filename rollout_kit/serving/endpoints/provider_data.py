"""What an endpoint attaches to a turn, and must get back unchanged with the next request.

Thinking endpoints refuse a conversation, or get worse in silence, without their signatures and
encrypted thoughts. What has no place of its own in an item is kept in its field `provider_data`:

    {"endpoint": "api.example.com gemini",   whose it is: host and family of the model
     "text_in": ["reasoning_content"],       fields that had the text of this reasoning item
     "message": {"reasoning_details": […]},  other fields of the assistant message
     "call": {"extra_content": {…}},         other fields of this tool call
     "block": {"signature": "…"},            other fields of this block of Anthropic's Messages
     "blocks": [{…}]}                        the blocks that this message was made of

`message` and `text_in` are on the first item of a turn. Another endpoint never gets any of it.
A client that speaks Chat Completions or Messages sends its own copy, without `endpoint`.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import orjson

from ...responses import ENCRYPTED, PROVIDER_DATA, Item, as_object, reasoning_texts
from ...session import note_repair
from ...types import JsonObject

LEFT_OUT = "provider data of another endpoint → left out"

OF_MESSAGE = frozenset(
    {"role", "content", "tool_calls", "function_call", "refusal", "annotations", "audio"}
)
"""Fields of an assistant message in Chat Completions that have a place in our items."""

OF_CALL, OF_FUNCTION = frozenset({"id", "type", "function", "index"}), ("name", "arguments")

THINKING_BLOCKS = "thinking_blocks"
"""Field of a message in Chat Completions with the thoughts of Anthropic's Messages, as LiteLLM has
it."""

SEALED = "rollout_kit:"
"""Start of a signature in Messages that holds provider data."""


@lru_cache(maxsize=256)
def origin_of(url: str, model: str) -> str:
    """What names an endpoint: its host and the family of its model."""
    name = model.rpartition("/")[2].lower()
    family = re.match("[a-z]+", name)
    return f"{urlsplit(url).netloc.rpartition('@')[2]} {family[0] if family else name}"


def find_attached(fields: Mapping[str, Any], known: Iterable[str]) -> JsonObject:
    """The fields that have a value and are not known."""
    return {
        name: value
        for name, value in fields.items()
        if name not in known and value is not None and value not in ("", [], {})
    }


def call_data(call: Mapping[str, Any]) -> JsonObject:
    """What an endpoint has attached to one tool call of Chat Completions."""
    data = find_attached(call, OF_CALL)
    if of_function := find_attached(as_object(call.get("function")), OF_FUNCTION):
        data["function"] = of_function
    return data


def put_call_data(call: JsonObject, data: Mapping[str, Any]) -> None:
    """Put it back onto the call."""
    call |= {name: value for name, value in data.items() if name != "function"}
    call["function"] |= data.get("function") or {}


def put_message_data(message: JsonObject, data: Mapping[str, Any], thought: str) -> None:
    """Put back what belongs to a message, but for a content: clients know it as a text."""
    message |= dict.fromkeys(data.get("text_in") or (), thought)
    for name, value in (data.get("message") or {}).items():
        if name != "content":
            message[name] = value


def keep(item: Item, endpoint: str, **data: Any) -> None:
    """Keep on an item what is not empty."""
    if found := {name: value for name, value in data.items() if value}:
        named = {"endpoint": endpoint} if endpoint else {}
        item[PROVIDER_DATA] = {**named, **item.get(PROVIDER_DATA, {}), **found}


def data_for(item: Item, endpoint: str) -> JsonObject:
    """The provider data of an item that this endpoint may see; `endpoint` is empty for readers
    that get none."""
    data = item.get(PROVIDER_DATA)
    if not endpoint or not isinstance(data, dict) or not _is_of(data, endpoint):
        return {}
    return data


def _is_of(data: Mapping[str, Any], endpoint: str) -> bool:
    """Whether provider data belongs to this endpoint; the line says so if it does not."""
    if data.get("endpoint", endpoint) == endpoint:
        return True
    note_repair(LEFT_OUT)
    return False


def tag(output: Iterable[Item], endpoint: str) -> None:
    """Note on the items of a Responses endpoint whose encrypted thoughts they hold."""
    for item in output:
        if item.get(ENCRYPTED):
            item[PROVIDER_DATA] = {"endpoint": endpoint}


def untag(items: Iterable[Any], endpoint: str) -> Iterator[Any]:
    """The items as a Responses endpoint may see them."""
    for item in items:
        if not isinstance(item, dict) or PROVIDER_DATA not in item:
            yield item
        # no other endpoint knows a thought that only its own can decrypt
        elif _is_of(as_object(item[PROVIDER_DATA]), endpoint) or not item.get(ENCRYPTED):
            yield {name: value for name, value in item.items() if name != PROVIDER_DATA}


def seal(output: Iterable[Item], *, with_thoughts: bool = True) -> str:
    """All provider data of a turn as one text that a client keeps as the signature of a thought;
    empty if there is none. `with_thoughts`: also the encrypted ones, which some clients know."""
    origin, message = "", dict[str, Any]()
    calls: list[tuple[str, Any]] = []
    thoughts: list[Item] = []
    for item in output:
        data = as_object(item.get(PROVIDER_DATA))
        origin = data.get("endpoint", origin)
        message |= {name: data[name] for name in ("text_in", "message") if name in data}
        if "call" in data:
            calls.append((str(item.get("call_id")), data["call"]))
        if item.get(ENCRYPTED) and with_thoughts:
            thoughts.append(item)
    if not (message or calls or thoughts):
        return ""
    sealed = {"endpoint": origin, "data": message, "calls": calls, "thoughts": thoughts}
    return SEALED + base64.b64encode(orjson.dumps(sealed)).decode()


def find_block(item: Item, data: Mapping[str, Any]) -> JsonObject | None:
    """The block of Anthropic's Messages that a reasoning item was made of; None if it was not."""
    block = data.get("block")
    if not isinstance(block, dict) or item.get("type") != "reasoning":
        return None
    if block.get("type") != "thinking":
        return block
    texts = reasoning_texts(item)
    return {"thinking": "".join(texts), **block}


def seal_thought(item: Item) -> str:
    """Such an item as one text; empty if it is another. It is sealed alone, since its place among
    the other blocks matters."""
    if find_block(item, as_object(item.get(PROVIDER_DATA))) is None:
        return ""
    return SEALED + base64.b64encode(orjson.dumps({"item": item})).decode()


def unseal_thought(signature: Any) -> Item | None:
    """The item that `seal_thought` has put in; None if the signature is another's."""
    item = unseal(signature).get("item")
    return item if isinstance(item, dict) else None


def unseal(signature: Any) -> JsonObject:
    """What `seal` has put in; empty if the signature is another's."""
    if not isinstance(signature, str) or not signature.startswith(SEALED):
        return {}
    try:
        found = orjson.loads(base64.b64decode(signature.removeprefix(SEALED), validate=True))
    except (binascii.Error, orjson.JSONDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def unpack(items: list[Item], sealed: Iterable[JsonObject]) -> list[Item]:
    """The items of a turn with what was sealed for them."""
    thoughts: list[Item] = []
    for found in sealed:
        thoughts += found.get("thoughts") or ()
        origin, data = str(found.get("endpoint") or ""), as_object(found.get("data"))
        calls = list(found.get("calls") or ())  # in order, as some endpoints repeat an id
        for item in items:
            if calls and calls[0][0] == str(item.get("call_id")):
                keep(item, origin, call=calls.pop(0)[1])
        if items:
            keep(items[0], origin, **data)
    if thoughts:  # as they came, in place of what the client shows of them
        items = [*thoughts, *(item for item in items if item.get("type") != "reasoning")]
    return items
