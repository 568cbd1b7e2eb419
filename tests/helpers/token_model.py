"""A model whose tokens are letters, for tests of what is recorded of its calls."""

import asyncio
from collections.abc import Callable
from typing import Any

from rollout_kit.responses import content_texts, input_items, make_response
from rollout_kit.serving.model import Model
from rollout_kit.trajectory import (
    GENERATION,
    LOG_PROBS,
    PROMPT,
    SUFFIX,
    TokenSequence,
    prompt_fields,
    sequences,
)
from rollout_kit.types import JsonObject

END = 7
"""The token that ends a turn."""


def write(item: JsonObject) -> str:
    kind = item.get("type", "message")
    if kind == "function_call":
        return f"<call>{item['name']}{item['arguments']}"
    if kind == "function_call_output":
        return f"<output>{''.join(content_texts(item['output']))}"
    if kind == "reasoning":
        return f"<think>{''.join(content_texts(item['summary']))}"
    return f"<{item['role']}>{''.join(content_texts(item['content']))}"


def encode(items: list[JsonObject]) -> list[int]:
    return [ord(letter) for letter in "".join(map(write, items))]


class TokenModel(Model):
    """`say` gives the items of a reply. `log` has the prompt and the generation of each call."""

    is_own = True

    def __init__(self, say: Callable[[JsonObject], list[JsonObject]], **_: Any) -> None:
        super().__init__()
        self.say = say
        self.log: list[tuple[list[int], list[int]]] = []
        self.requests: list[JsonObject] = []

    async def responses(self, params: JsonObject) -> JsonObject:
        await asyncio.sleep(0)
        items = input_items(params)
        self.requests.append(params)
        places = [at for at, item in enumerate(items) if GENERATION in item]
        before: TokenSequence | None = sequences(items)[-1] if places else None
        rest = encode(items[places[-1] + 1 :]) if places else encode(items)
        prompt = [*(before.token_ids if before else []), *rest]
        output = self.say(params)
        generated = [*encode(output), END]
        output[-1] |= prompt_fields(prompt, before, "")
        output[-1] |= {GENERATION: generated, LOG_PROBS: [-0.5] * len(generated)}
        self.log.append((prompt, generated))
        usage = {
            "input_tokens": len(prompt),
            "output_tokens": len(generated),
            "total_tokens": len(prompt) + len(generated),
        }
        return make_response("letters", output, usage)


__all__ = ["PROMPT", "SUFFIX", "TokenModel", "encode"]
