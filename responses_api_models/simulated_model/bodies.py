"""An answer in the form of either API, complete or as the events of a stream."""

from rollout_kit.responses import Item, function_call_item, make_response, message_item
from rollout_kit.serving.endpoints.completions import as_completion
from rollout_kit.serving.endpoints.events import completion_events, response_events
from rollout_kit.serving.endpoints.open_responses import complete
from rollout_kit.serving.model import CHAT
from rollout_kit.types import JsonObject

from .answers import Answer
from .asked import Asked


def whole(asked: Asked, answer: Answer, model: str, *, in_full: bool = False) -> JsonObject:
    """The answer; a response has all fields of the standard if it is given `in_full`."""
    made = response(asked, answer, model)
    if asked.dialect == CHAT:
        return as_completion(made)
    return complete(made, asked.body) if in_full else made


def events(asked: Asked, answer: Answer, model: str, *, in_full: bool = False) -> list[bytes]:
    """Server-sent events; the first one is due at the first token."""
    made = whole(asked, answer, model, in_full=in_full)
    if asked.dialect == CHAT:
        told = bool((asked.body.get("stream_options") or {}).get("include_usage"))
        return completion_events(made, usage=told)
    return response_events(made)


def response(asked: Asked, answer: Answer, model: str) -> JsonObject:
    """A Responses-API object."""
    items: list[Item] = []
    if answer.text or not answer.calls:
        status = "incomplete" if answer.is_cut else "completed"
        items.append({**message_item(answer.text), "id": f"msg_{answer.id}", "status": status})
    items += [
        {**function_call_item(call.name, call.arguments, call.id), "id": f"fc_{call.id}"}
        for call in answer.calls
    ]
    if ids := answer.token_ids:
        items[-1] |= {
            "prompt_token_ids": ids.prompt,
            "generation_token_ids": ids.generated,
            "generation_log_probs": ids.log_probs,
        }
    reason = "max_output_tokens" if answer.is_cut else None
    used = usage(asked, answer)
    made = make_response(model, items, used, incomplete_reason=reason, params=asked.body)
    return {**made, "id": f"resp_{answer.id}"}


def usage(asked: Asked, answer: Answer) -> dict[str, int]:
    """The usage of a response."""
    read, written = asked.prompt_tokens, answer.num_tokens
    return {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}


def overflow_response(asked: Asked, model: str) -> JsonObject:
    """The response of a model server to a prompt that is too long."""
    return make_response(model, [], None, incomplete_reason="max_output_tokens", params=asked.body)
