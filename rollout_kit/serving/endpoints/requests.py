"""How a row becomes the body of a request to one endpoint, in whichever API the endpoint speaks.

Also the request itself, and what comes back for it.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ...errors import TaskError
from ...session import current_session
from ...types import JsonObject
from ..transport.conversation import Piece
from ..transport.http import Reply
from .chat import RAW, MaxTokensField, ReasoningField, sound_calls, to_chat
from .provider_data import untag
from .raw import raw_text, to_completion
from .refusals import parse_json

Api = Literal["responses", "chat_completions", "messages"]


@dataclass(frozen=True, slots=True)
class RequestForm:
    """What the configuration says about requests; it is the same for all rows."""

    api: Api
    lowest: JsonObject
    """Parameters for rows that do not set them, such as `model`."""
    delivery: JsonObject = field(default_factory=dict)
    """How the answer is to come; rows cannot change it. Raw texts are sent without it."""
    not_sent: tuple[str, ...] = (RAW,)
    max_tokens_field: MaxTokensField = "max_completion_tokens"
    reasoning_field: ReasoningField | None = None
    """Name of the reasoning of earlier turns in a chat; None: it is not sent."""
    drops_reasoning: bool = False

    def model(self, row: JsonObject, extra: JsonObject) -> str:
        """The model that a row asks for."""
        return str(extra.get("model") or row.get("model") or self.lowest["model"])

    def body(self, row: JsonObject, extra: JsonObject, origin: str) -> JsonObject:
        """The body for what `read_row` returned. `origin` names the endpoint for provider data."""
        delivery = self.delivery
        if isinstance(items := row.get("input"), list):
            row["input"] = self._prepare(items)
        if (text := raw_text(row)) is not None:
            row, delivery = to_completion(row, text), {}
        elif self.api == "chat_completions":
            row = to_chat(
                row,
                reasoning_field=self.reasoning_field,
                max_tokens_field=self.max_tokens_field,
                endpoint=origin,
            )
        elif isinstance(row.get("input"), list):
            row["input"] = list(untag(row["input"], origin))
        for key in self.not_sent:
            row.pop(key, None)
        return {**self.lowest, **row, **extra, **delivery}

    def change(self, items: list[Any], origin: str) -> list[Any]:
        """Items as a Responses endpoint may see them; each is changed by itself."""
        return list(untag(self._prepare(items), origin))

    def _prepare(self, items: list[Any]) -> list[Any]:
        if self.drops_reasoning:
            items = [item for item in items if item.get("type") != "reasoning"]
        return sound_calls(items)


def read_row(params: Mapping[str, Any]) -> tuple[JsonObject, JsonObject]:
    """A copy of create params without those that are null, and their `metadata.extra_body`."""
    row = {key: value for key, value in params.items() if value is not None}
    return row, extra_body(row)


def extra_body(row: JsonObject) -> JsonObject:
    """Remove `metadata.extra_body` from `row` and return it; NeMo Gym's rows add parameters so."""
    metadata = row.get("metadata")
    if not isinstance(metadata, dict) or "extra_body" not in metadata:
        return {}
    rest = {key: value for key, value in metadata.items() if key != "extra_body"}
    row.pop("metadata")
    if rest:
        row["metadata"] = rest
    extra = parse_json(metadata["extra_body"])
    if not isinstance(extra, dict):
        raise TaskError(
            "metadata.extra_body must be the JSON text of an object, "
            f"not {metadata['extra_body']!r:.80}"
        )
    return extra


@dataclass(slots=True)
class Request:
    """One request: the row's params, and the bytes that are sent, or pieces of them."""

    params: Mapping[str, Any]
    model: str
    origin: str
    """What names the endpoint for `provider_data`."""
    raw: bytes | list[Piece]
    is_completion: bool
    """Whether the model continues one text; such answers are never streamed."""

    @property
    def row(self) -> Hashable:
        """The row that it serves, or the request itself."""
        session = current_session()
        if session and session.rollout:
            return session.rollout[0]
        return self.joined

    @property
    def joined(self) -> bytes:
        """The bytes that are sent."""
        return self.raw if isinstance(self.raw, bytes) else b"".join(self.raw)

    def place(self, url: str) -> str:
        """What errors call the endpoint that was asked at this URL."""
        return url


@dataclass(slots=True)
class Received:
    """What came back for a request."""

    url: str
    headers: Mapping[str, str]
    """Those of the request."""
    sent_at: float
    """Time of the loop."""
    reply: Reply
    payload: Any
    is_streamed: bool

    @property
    def is_answer(self) -> bool:
        """Whether the endpoint meant to answer."""
        payload = self.payload
        return self.reply.status == 200 and not (isinstance(payload, dict) and payload.get("error"))
