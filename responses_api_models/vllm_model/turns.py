"""One turn, as vLLM is asked for it and as it answers."""

from collections.abc import Mapping
from typing import Any

import orjson

from rollout_kit.chat import from_chat, to_chat
from rollout_kit.errors import ModelError, TaskError
from rollout_kit.responses import make_response
from rollout_kit.types import JsonObject

LOGPROBS = "message.output_text.logprobs"
"""In `include`: log-probs beside the text."""


def body(params: Mapping[str, Any], lowest: JsonObject, *, reasoning: bool) -> JsonObject:
    """The chat request: `lowest`, over it the row, over that the row's `metadata.extra_body`.

    `reasoning` gives the reasoning of earlier turns back; what of it counts its template knows.
    """
    row = {key: value for key, value in params.items() if value is not None}
    wants_token_ids = row.pop("return_token_ids", lowest.get("return_token_ids", False))
    wants_logprobs = wants_token_ids or LOGPROBS in row.get("include", ())
    extra = _extra_body(row)
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


def overflowed(params: Mapping[str, Any], model: str) -> JsonObject:
    """The response where the input leaves no room for one."""
    given = {key: value for key, value in params.items() if value is not None}
    return make_response(
        str(given.get("model") or model),
        [],
        None,
        incomplete_reason="max_output_tokens",
        params=given,
    )


def is_context_overflow(status: int, payload: Any) -> bool:
    """By the field that vLLM sets, never by words, which a mistake in a parameter may use too."""
    error = payload.get("error", payload) if isinstance(payload, dict) else None
    return isinstance(error, dict) and status == 400 and error.get("param") == "input_tokens"


def parsed(raw: Any) -> Any:
    """JSON as a value; None where it is not JSON."""
    try:
        return orjson.loads(raw)
    except (orjson.JSONDecodeError, TypeError):
        return None


def _extra_body(row: JsonObject) -> JsonObject:
    """Take `metadata.extra_body`, NeMo Gym's way for a row to add parameters, out of `row`."""
    metadata = row.get("metadata")
    if not isinstance(metadata, dict) or "extra_body" not in metadata:
        return {}
    row["metadata"] = {key: value for key, value in metadata.items() if key != "extra_body"}
    if not row["metadata"]:
        del row["metadata"]
    extra = parsed(metadata["extra_body"])
    if not isinstance(extra, dict):
        raise TaskError(
            "metadata.extra_body must be the JSON text of an object, "
            f"not {metadata['extra_body']!r:.80}"
        )
    return extra
