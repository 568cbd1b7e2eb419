"""The conversation of a request as token ids, in the trainer's chat template."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from rollout_kit.errors import TaskError
from rollout_kit.responses import Item, content_texts, input_items
from rollout_kit.rl.adapters.engine import TrainerEngine
from rollout_kit.rl.conversation import ContinuedPrompt, continue_turns
from rollout_kit.serving.endpoints.chat import to_chat
from rollout_kit.serving.endpoints.raw import raw_text
from rollout_kit.types import JsonObject

TEXT_PARTS = frozenset({"text", "input_text", "output_text"})


def read_conversation(params: JsonObject, engine: TrainerEngine) -> ContinuedPrompt:
    """TaskError if the params hold what no chat template can show."""
    if (text := raw_text(params)) is not None:
        return ContinuedPrompt(engine.encode(text))
    return continue_turns(input_items(params), partial(_render, params, engine))


def _render(params: JsonObject, engine: TrainerEngine, items: list[Item], opens: bool) -> list[int]:
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
