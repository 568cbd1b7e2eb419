"""Raw completions: one text that the model continues, without a chat template.

The create param `raw_prompt` asks for it; the input is the text. So it passes every agent and
server unchanged, and only the model server needs to know. An endpoint answers under `/completions`,
in a form of its own.
"""

from collections.abc import Mapping
from typing import Any

from ...errors import ModelError, TaskError
from ...responses import content_texts, input_items, output_text, quote_json
from ...types import JsonObject
from .chat import LOGPROBS, RAW
from .completions import finish_reason

PATH = "/completions"

NOT_SENT = frozenset(
    {"input", RAW, "include", "truncation", "background", "max_tool_calls", "metadata", "text"}
    | {"tool_choice", "parallel_tool_calls", "reasoning", "max_output_tokens", "top_logprobs"}
    | {"chat_template_kwargs", "instructions", "tools", "stream", "stream_options"}
)

REFUSED = ("suffix", "echo", "best_of", "stream")


def raw_text(params: Mapping[str, Any]) -> str | None:
    """The text to continue; None if the request is a chat. TaskError if the input is more than one
    text."""
    if not params.get(RAW):
        return None
    items = input_items(params)
    is_one = len(items) == 1 and items[0].get("type", "message") == "message"
    if not is_one or items[0].get("role") != "user":
        raise _error("the input must be one text: a raw completion has a single turn")
    if params.get("instructions"):
        raise _error("has no instructions: write them into the prompt")
    if params.get("tools"):
        raise _error("a raw completion cannot call tools")
    return "".join(content_texts(items[0].get("content")))


def to_completion(params: Mapping[str, Any], text: str) -> JsonObject:
    """Responses create params as a request to `/completions`."""
    given = {key: value for key, value in params.items() if value is not None}
    if (given.get("text") or {}).get("format", {"type": "text"}) != {"type": "text"}:
        raise _error("text.format is for chats")
    body = {key: value for key, value in given.items() if key not in NOT_SENT}
    body["prompt"] = text
    if "max_output_tokens" in given:
        body["max_tokens"] = given["max_output_tokens"]
    if "top_logprobs" in given or LOGPROBS in given.get("include", ()):
        body["logprobs"] = given.get("top_logprobs", 0)
    return body


def as_chat(completion: Any) -> Any:
    """The answer of `/completions` in the form of a chat completion; ModelError if it is none."""
    choices = completion.get("choices") if isinstance(completion, dict) else None
    choices = choices if isinstance(choices, list) else []
    choice = choices[0] if choices else None
    if not isinstance(choice, dict) or not isinstance(choice.get("text"), str):
        body = quote_json(completion)
        raise ModelError("not a completion: it has no text", body=body, retryable=True)
    told = choice.get("logprobs") or {}
    pairs = zip(told.get("tokens") or (), told.get("token_logprobs") or (), strict=False)
    content = [{"token": token, "logprob": value} for token, value in pairs]
    message = {"role": "assistant", "content": choice["text"]}
    return {
        **completion,
        "prompt_token_ids": choice.get("prompt_token_ids") or completion.get("prompt_token_ids"),
        "choices": [{**choice, "message": message, "logprobs": {"content": content}}, *choices[1:]],
    }


def read_request(request: Mapping[str, Any]) -> JsonObject:
    """A request to `/completions` as create params; TaskError if they cannot express it."""
    given = {key: value for key, value in request.items() if value is not None}
    prompt = given.pop("prompt", None)
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise TaskError("prompt: must be one text", status=400)
    if given.pop("n", 1) != 1:
        raise TaskError("n: there is one choice; ask several times for several", status=400)
    for name in REFUSED:
        if given.pop(name, None):
            raise TaskError(f"{name}: is not known here", status=400)
    if "max_tokens" in given:
        given["max_output_tokens"] = given.pop("max_tokens")
    if given.pop("logprobs", None) is not None:
        given["include"] = [LOGPROBS]
    return {**given, "input": prompt, RAW: True}


def answer_request(response: Mapping[str, Any]) -> JsonObject:
    """A response as the answer of `/completions`."""
    usage = response.get("usage") or {}
    read, written = usage.get("input_tokens") or 0, usage.get("output_tokens") or 0
    choice: JsonObject = {
        "index": 0,
        "text": output_text(response),
        "logprobs": None,
        "finish_reason": finish_reason(response) or "stop",
    }
    last = response["output"][-1] if response["output"] else {}
    if "generation_token_ids" in last:  # with vLLM's names
        ids = last["generation_token_ids"]
        choice |= {"prompt_token_ids": last.get("prompt_token_ids"), "token_ids": ids}
        choice["logprobs"] = {
            "tokens": [f"token_id:{each}" for each in ids],
            "token_logprobs": last.get("generation_log_probs"),
        }
    return {
        "id": f"cmpl-{response.get('id', '')}",
        "object": "text_completion",
        "created": int(response.get("created_at") or 0),
        "model": response.get("model") or "",
        "choices": [choice],
        "usage": {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": usage.get("total_tokens") or read + written,
        },
    }


def _error(what: str) -> TaskError:
    return TaskError(f"{RAW}: {what}", status=400)
