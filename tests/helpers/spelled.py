"""A model whose turns have token ids: one token a word, in a template that a test can read.

The prompt of a turn is the words of all items. What the model says is generated; everything else,
a user's words among it, is prompt.
"""

from collections.abc import Callable, Sequence
from typing import Any

from rollout_kit.api.testing import ScriptedModel, text_response
from rollout_kit.responses import content_texts
from rollout_kit.trajectory import GENERATION, LOG_PROBS, prompt_fields, sequences

Item = dict[str, Any]

WORDS: dict[str, int] = {}


def encode(words: Sequence[str]) -> list[int]:
    return [WORDS.setdefault(word, len(WORDS)) for word in words]


def decode(ids: Sequence[int]) -> list[str]:
    names = list(WORDS)
    return [names[id] for id in ids]


def words_of(item: Item) -> list[str]:
    """The words of an item, as the template shows them."""
    if item.get("type") == "function_call":
        return ["<call>", item["name"], item["arguments"]]
    if item.get("type") == "function_call_output":
        return ["<output>", *item["output"].split()]
    if item.get("type") == "reasoning":
        return ["<assistant>", *item["summary"][0]["text"].split()]
    return [f"<{item['role']}>", *" ".join(content_texts(item["content"])).split()]


class SpelledModel(ScriptedModel):
    """Answers as `answer` says, with token ids."""

    def __init__(self, answer: Callable[[Item], Any]) -> None:
        super().__init__(lambda params: _spell(params, answer(params)))


def _spell(params: Item, said: Any) -> Item:
    response = text_response(said) if isinstance(said, str) else said
    prompt = [word for item in params["input"] for word in words_of(item)]
    found = sequences(params["input"])
    words = [word for item in response["output"] for word in words_of(item)]
    fields = prompt_fields(encode(prompt), found[-1] if found else None, "edited" if found else "")
    last = {
        **response["output"][-1],
        **fields,
        GENERATION: encode(words),
        LOG_PROBS: [-0.5] * len(words),
    }
    usage = {"input_tokens": len(prompt), "output_tokens": len(words)}
    usage["total_tokens"] = len(prompt) + len(words)
    return {**response, "output": [*response["output"][:-1], last], "usage": usage}
