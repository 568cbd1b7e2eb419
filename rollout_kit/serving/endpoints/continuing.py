"""Conversations that an endpoint of the Responses API has stored: only new items are sent.

What is known of a conversation lives in its session. So an attempt that starts again, and a run
that is resumed after a kill, send the whole conversation, and need nothing that may be gone.
"""

from dataclasses import dataclass, field

import orjson

from ...errors import ModelError
from ...responses import Item, input_items
from ...types import JsonObject

ID = "previous_response_id"

FORGOTTEN = "a stored response that the endpoint no longer has → the whole conversation"

NO_CONVERSATION = (
    "conversation: each request of a rollout would add to it, also one that is sent again; give"
    " the items themselves, or previous_response_id"
)

SERVER_STATE = (ID, "conversation")
"""Params with which a row says itself where it continues."""


@dataclass(slots=True)
class StoredConversation:
    """The items that the endpoint has stored, and the id of the response that they end with."""

    response_id: str = ""
    items: list[Item] = field(default_factory=list)
    size: int = 0
    """About how many bytes it keeps."""

    def shorten(self, params: JsonObject) -> JsonObject | None:
        """The params with what the endpoint has not stored; None if it has stored nothing of it."""
        items, known = params["input"], len(self.items)
        if not self.response_id or known >= len(items) or items[:known] != self.items:
            return None
        return {**params, "input": items[known:], ID: self.response_id}

    def note(self, params: JsonObject, response: JsonObject) -> JsonObject:
        """Note what the endpoint has stored with this response, and return it."""
        is_stored = response.get("store") is not False and bool(response["output"])
        self.response_id = str(response.get("id") or "") if is_stored else ""
        self.items = [*params["input"], *response["output"]] if is_stored else []
        self.size = len(orjson.dumps(self.items))
        return response


def may_continue(params: JsonObject) -> bool:
    """Whether the endpoint stores this request, and the row leaves it to us what is sent."""
    is_own = any(params.get(name) is not None for name in SERVER_STATE)
    return params.get("store") is not False and not is_own


def with_items(params: JsonObject) -> JsonObject:
    """The params with their input as a list."""
    return {**params, "input": input_items(params)}


def is_forgotten(error: ModelError, response_id: str) -> bool:
    """Whether the endpoint no longer has the response that a request continues."""
    said = f"{error.message} {error.body}"
    return error.status in (400, 404) and (response_id in said or ID in said)
