"""The prompt of a turn as token ids. It continues the sampled tokens of earlier turns; the chat
template says what is between them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rollout_kit.errors import TaskError
from rollout_kit.responses import Item, content_texts, input_items
from rollout_kit.rl.adapters.engine import TrainerEngine
from rollout_kit.rl.suffix import Restart, align, rest_behind
from rollout_kit.serving.endpoints.chat import to_chat
from rollout_kit.serving.endpoints.raw import raw_text
from rollout_kit.trajectory import GENERATION, TokenSequence, sequences
from rollout_kit.types import JsonObject

TEXT_PARTS = frozenset({"text", "input_text", "output_text"})


@dataclass(frozen=True, slots=True)
class Conversation:
    """The prompt, the earlier turns whose tokens are known, and why it does not continue them."""

    prompt: list[int]
    before: TokenSequence | None = None
    restart: str = ""


def read_conversation(params: JsonObject, engine: TrainerEngine) -> Conversation:
    """TaskError if the params hold what no chat template can show."""
    if (text := raw_text(params)) is not None:
        return Conversation(engine.encode(text))
    items = input_items(params)
    whole = _render(params, items, engine)
    sampled = [number for number, item in enumerate(items) if GENERATION in item]
    if not sampled:
        return Conversation(whole)
    before = sequences(items)[-1]
    if not before.turns[-1].is_ended:
        return Conversation(whole, before, "the turn before was cut off")
    until_last = _render(params, items[: sampled[-1] + 1], engine, opens=False)
    # many templates write <think> into the generation prompt and omit it from earlier turns
    opening = rest_behind(whole, _render(params, items, engine, opens=False))
    why = Restart()
    for omitted in ([], opening):
        try:
            found = align(before.turns, whole, until_last, omitted)
            return Conversation(before.token_ids + found.rest, before)
        except Restart as error:
            why = error
    return Conversation(whole, before, str(why))


def _render(
    params: JsonObject, items: list[Item], engine: TrainerEngine, *, opens: bool = True
) -> list[int]:
    body = to_chat({**params, "input": items}, reasoning_field="reasoning_content")
    tools = () if params.get("tool_choice") == "none" else body.get("tools") or ()
    return engine.render(list(_spell(body["messages"])), list(_plain(tools)), opens=opens)


def _spell(messages: Iterable[JsonObject]) -> Iterator[JsonObject]:
    """Messages as templates for text know them."""
    for message in messages:
        role = "system" if message["role"] == "developer" else message["role"]
        yield {**message, "role": role, "content": _text(message.get("content"))}


def _text(content: Any) -> str:
    for part in content if isinstance(content, list) else ():
        if part.get("type") not in TEXT_PARTS:
            raise TaskError(f"content part '{part.get('type')}' is not text", status=400)
    return "".join(content_texts(content))


def _plain(tools: Iterable[Mapping[str, Any]]) -> Iterator[JsonObject]:
    """Tools without `strict`, which is not for the model."""
    for tool in tools:
        function = {key: value for key, value in tool["function"].items() if key != "strict"}
        yield {**tool, "function": function}
