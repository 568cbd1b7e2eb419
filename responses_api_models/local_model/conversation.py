"""The conversation of a request as token ids: a turn that this model sampled stays as it was."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollout_kit.responses import Item, content_texts, input_items, is_of_model, message_item
from rollout_kit.rl.conversation import ContinuedPrompt, continue_turns
from rollout_kit.rl.suffix import Restart
from rollout_kit.serving.endpoints.raw import raw_text
from rollout_kit.trajectory import GENERATION
from rollout_kit.types import JsonObject

from .chat import chat_messages, output_items, template_tools

if TYPE_CHECKING:
    from .tokenizer import ChatTokenizer


def read_conversation(
    params: Mapping[str, Any], tokenizer: "ChatTokenizer", ends: Collection[int]
) -> ContinuedPrompt:
    """A text as it is, or a conversation by the chat template; `ends` are the tokens that end a
    turn. TaskError for what the template cannot show."""
    if (text := raw_text(params)) is not None:
        return ContinuedPrompt(tokenizer.raw_prompt(text))

    def render(shown: list[Item], opens: bool = True) -> list[int]:
        messages = chat_messages({**params, "input": shown})
        return tokenizer.prompt(messages, template_tools(params), opens=opens)

    chat_messages(params)  # a request that cannot be read is refused for what it says
    items = input_items(params)
    if not any(GENERATION in item for item in items):
        return ContinuedPrompt(render(items))
    try:
        found = continue_turns(_say_again(items, tokenizer), render, ends)
    except Restart as error:
        return ContinuedPrompt(render(items), None, str(error))
    return replace(found, prompt=render(items)) if found.restart else found


def _say_again(items: list[Item], tokenizer: "ChatTokenizer") -> list[Item]:
    """The items, with one message in place of each turn whose tokens are known: the text that was
    sampled. The items of a turn may say the same in another spelling."""
    found: list[Item] = []
    for item in items:
        found.append(item)
        if GENERATION not in item:
            continue
        text = tokenizer.text(item[GENERATION])
        said = output_items(text)
        own = found[-len(said) :]
        if not all(map(is_of_model, own)) or [*map(_describe, own)] != [*map(_describe, said)]:
            raise Restart("the text of an earlier turn is not what was sampled")
        del found[-len(said) :]
        tokens = {name: value for name, value in item.items() if name not in ("content", "type")}
        found.append({**tokens, **message_item(text)})
    return found


def _describe(item: JsonObject) -> tuple[Any, ...]:
    kind = item.get("type", "message")
    if kind == "function_call":
        return kind, item.get("name"), item.get("arguments")
    return kind, "".join(content_texts(item.get("content")))
