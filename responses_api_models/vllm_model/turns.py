"""One turn, as vLLM is asked for it and as it answers."""

from collections.abc import Mapping
from typing import Any

from rollout_kit.chat import from_chat, to_chat
from rollout_kit.errors import ModelError
from rollout_kit.types import JsonObject
from rollout_kit.upstream import extra_body

LOGPROBS = "message.output_text.logprobs"
"""In `include`: log-probs beside the text."""


def body(params: Mapping[str, Any], lowest: JsonObject, *, reasoning: bool) -> JsonObject:
    """The chat request: `lowest`, over it the row, over that the row's `metadata.extra_body`.

    `reasoning` gives the reasoning of earlier turns back; what of it counts its template knows.
    """
    row = {key: value for key, value in params.items() if value is not None}
    wants_token_ids = row.pop("return_token_ids", lowest.get("return_token_ids", False))
    wants_logprobs = wants_token_ids or LOGPROBS in row.get("include", ())
    extra = extra_body(row)
    made = {**lowest, **to_chat(row, reasoning_field="reasoning" if reasoning else None), **extra}
    made["messages"] = with_system(made["messages"])
    if "chat_template_kwargs" in lowest:
        given = made.get("chat_template_kwargs")
        given = given if isinstance(given, dict) else {}
        made["chat_template_kwargs"] = {**lowest["chat_template_kwargs"], **given}
    made.pop("return_token_ids", None)
    if wants_token_ids:
        made["return_token_ids"] = True
    if wants_logprobs:
        made["logprobs"] = True
    return made


def with_system(messages: list[JsonObject]) -> list[JsonObject]:
    """The developer's words as the system's, and all that begin the conversation as one message:
    most chat templates know no more."""
    named = [
        {**each, "role": "system"} if each.get("role") == "developer" else each for each in messages
    ]
    num_first = next((n for n, each in enumerate(named) if each["role"] != "system"), len(named))
    first = named[:num_first]
    if num_first < 2 or not all(isinstance(each["content"], str) for each in first):
        return named
    joined = {"role": "system", "content": "\n\n".join(each["content"] for each in first)}
    return [joined, *named[num_first:]]


def answer(completion: Any, params: Mapping[str, Any], model: str) -> JsonObject:
    """The response to `params`, token ids and log-probs included where vLLM gave them."""
    response = from_chat(completion, {"model": model, **params})
    choice = completion["choices"][0]
    output = response["output"]
    given = (choice.get("logprobs") or {}).get("content") or []
    if LOGPROBS in (params.get("include") or ()) and [i["type"] for i in output] == ["message"]:
        output[0]["content"][0]["logprobs"] = given
    if (generated := choice.get("token_ids")) is not None:
        log_probs = [each["logprob"] for each in given]
        if len(log_probs) != len(generated):
            what = f"{len(generated)} token ids and {len(log_probs)} log-probs"
            raise ModelError(f"vLLM answered with {what}", retryable=True)
        if output:
            output[-1] |= {
                "prompt_token_ids": completion.get("prompt_token_ids"),
                "generation_token_ids": generated,
                "generation_log_probs": log_probs,
            }
    return response
