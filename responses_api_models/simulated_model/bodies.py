"""An answer in the words of either API: whole, or as the events of a stream."""

import time
from collections.abc import Iterator

import orjson

from rollout_kit.responses import Item, function_call_item, make_response, message_item
from rollout_kit.types import JsonObject

from .answers import Answer, TokenIds
from .asked import CHARS_PER_TOKEN, CHAT, Asked

TOKENS_PER_EVENT = 8
"""Of a streamed answer."""


def whole(asked: Asked, answer: Answer, model: str) -> JsonObject:
    return (_completion if asked.dialect == CHAT else response)(asked, answer, model)


def events(asked: Asked, answer: Answer, model: str) -> list[bytes]:
    """Server-sent events, the first of which is there at the first token."""
    if asked.dialect == CHAT:
        chunks = [_sse(chunk) for chunk in _chunks(asked, answer, model)]
        return [*chunks, b"data: [DONE]\n\n"]
    return [
        _sse({"type": kind, "sequence_number": number, **fields}, kind)
        for number, (kind, fields) in enumerate(_response_events(asked, answer, model))
    ]


def _sse(data: JsonObject, event: str = "") -> bytes:
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + orjson.dumps(data) + b"\n\n"


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
    usage = {"input_tokens": asked.prompt_tokens, "output_tokens": answer.num_tokens}
    usage["total_tokens"] = sum(usage.values())
    made = make_response(model, items, usage, incomplete_reason=reason, params=asked.body)
    return {**made, "id": f"resp_{answer.id}"}


def _response_events(asked: Asked, answer: Answer, model: str) -> Iterator[tuple[str, JsonObject]]:
    done = response(asked, answer, model)
    begun = {**done, "output": [], "status": "in_progress", "usage": None}
    begun["incomplete_details"] = None
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for index, item in enumerate(done["output"]):
        at = {"output_index": index}
        opened = {**item, "status": "in_progress"}
        if item["type"] == "message":
            yield "response.output_item.added", {**at, "item": {**opened, "content": []}}
            yield from _text_events(item, at)
        else:
            yield "response.output_item.added", {**at, "item": {**opened, "arguments": ""}}
            at_item = {**at, "item_id": item["id"]}
            for piece in _pieces(item["arguments"]):
                yield "response.function_call_arguments.delta", {**at_item, "delta": piece}
            said = {"name": item["name"], "arguments": item["arguments"]}
            yield "response.function_call_arguments.done", {**at_item, **said}
        yield "response.output_item.done", {**at, "item": item}
    yield f"response.{done['status']}", {"response": done}


def _text_events(item: Item, at: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    at = {**at, "item_id": item["id"], "content_index": 0}
    part = item["content"][0]
    yield "response.content_part.added", {**at, "part": {**part, "text": ""}}
    for piece in _pieces(part["text"]):
        yield "response.output_text.delta", {**at, "delta": piece, "logprobs": []}
    yield "response.output_text.done", {**at, "text": part["text"], "logprobs": []}
    yield "response.content_part.done", {**at, "part": part}


def _pieces(text: str) -> list[str]:
    size = TOKENS_PER_EVENT * CHARS_PER_TOKEN
    return [text[start : start + size] for start in range(0, len(text), size)]


def _completion(asked: Asked, answer: Answer, model: str) -> JsonObject:
    message: JsonObject = {"role": "assistant", "content": answer.text or None, "refusal": None}
    if answer.calls:
        message["tool_calls"] = _tool_calls(answer)
    else:
        message["content"] = answer.text
    choice: JsonObject = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": finish_reason(answer),
    }
    made: JsonObject = {
        **_chat_head(answer, model, "chat.completion"),
        "choices": [choice],
        "usage": _chat_usage(asked, answer),
    }
    if ids := answer.token_ids:  # where vLLM has them
        made["prompt_token_ids"] = ids.prompt
        choice |= {"token_ids": ids.generated, "logprobs": _logprobs(ids)}
    return made


def _chunks(asked: Asked, answer: Answer, model: str) -> Iterator[JsonObject]:
    head = _chat_head(answer, model, "chat.completion.chunk")

    def chunk(delta: JsonObject, reason: str | None = None) -> JsonObject:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {**head, "choices": [choice]}

    ids = answer.token_ids
    prompt = {"prompt_token_ids": ids.prompt} if ids else {}
    yield {**chunk({"role": "assistant", "content": ""}), **prompt}
    for piece in _pieces(answer.text):
        yield chunk({"content": piece})
    for index, call in enumerate(_tool_calls(answer)):
        yield chunk({"tool_calls": [{"index": index, **call}]})
    last = chunk({}, finish_reason(answer))
    if ids:
        last["choices"][0] |= {"token_ids": ids.generated, "logprobs": _logprobs(ids)}
    yield last
    if (asked.body.get("stream_options") or {}).get("include_usage"):
        yield {**head, "choices": [], "usage": _chat_usage(asked, answer)}


def _chat_head(answer: Answer, model: str, kind: str) -> JsonObject:
    created = int(time.time())
    return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": created, "model": model}


def _tool_calls(answer: Answer) -> list[JsonObject]:
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in answer.calls
    ]


def finish_reason(answer: Answer) -> str:
    if answer.is_cut:
        return "length"
    return "tool_calls" if answer.calls else "stop"


def _chat_usage(asked: Asked, answer: Answer) -> JsonObject:
    read, written = asked.prompt_tokens, answer.num_tokens
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
    }


def _logprobs(ids: TokenIds) -> JsonObject:
    pairs = zip(ids.generated, ids.log_probs, strict=True)
    content = [
        {"token": f"token_id:{token}", "logprob": value, "bytes": None, "top_logprobs": []}
        for token, value in pairs
    ]
    return {"content": content}


def overflowed(asked: Asked, model: str) -> JsonObject:
    """What a model server answers where its endpoint says that the prompt is too long."""
    return make_response(model, [], None, incomplete_reason="max_output_tokens", params=asked.body)
