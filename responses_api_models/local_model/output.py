"""What was generated, as items of a response."""

from typing import TYPE_CHECKING

from rollout_kit.responses import Item, message_item
from rollout_kit.rl.conversation import ContinuedPrompt
from rollout_kit.serving.endpoints.chat import RAW
from rollout_kit.trajectory import (
    GENERATION,
    LOG_PROBS,
    STOPPED_BY,
    TEMPERATURE,
    prompt_fields,
)
from rollout_kit.types import JsonObject

from .chat import output_items

if TYPE_CHECKING:
    from .engine import Generated
    from .tokenizer import ChatTokenizer


def make_output(
    params: JsonObject,
    asked: ContinuedPrompt,
    generated: "Generated",
    tokenizer: "ChatTokenizer",
    *,
    temperature: float | None,
) -> list[Item]:
    """The generated items; none if the prompt left no room, as with vLLM. With token ids if there
    is a `temperature`, which they were sampled at."""
    if not generated.token_ids:
        return []
    said = tokenizer.text(generated.token_ids)
    items = [message_item(said)] if params.get(RAW) else output_items(said)
    if generated.finish_reason == "length":
        items[-1]["status"] = "incomplete"
    # by token only if the generation is nothing but the text
    if _wants_logprobs(params) and [item["type"] for item in items] == ["message"]:
        items[0]["content"][0]["logprobs"] = _logprobs(generated, tokenizer)
    if temperature is not None:
        items[-1] |= {
            **prompt_fields(asked.prompt, asked.before, asked.restart),
            GENERATION: list(generated.token_ids),
            LOG_PROBS: list(generated.log_probs),
            TEMPERATURE: temperature,
            **({STOPPED_BY: "length"} if generated.finish_reason == "length" else {}),
        }
    return items


def _logprobs(generated: "Generated", tokenizer: "ChatTokenizer") -> list[JsonObject]:
    ends = 1 if generated.finish_reason == "stop" else 0
    texts = [tokenizer.token_text(token_id) for token_id in generated.token_ids]
    pairs = list(zip(texts, generated.log_probs, strict=True))
    return [
        {"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": []}
        for text, value in pairs[: len(pairs) - ends]
    ]


def _wants_logprobs(params: JsonObject) -> bool:
    return "message.output_text.logprobs" in (params.get("include") or ())
