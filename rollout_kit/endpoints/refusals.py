"""OpenAI-compatible endpoints: parameters that rows add to a request, and the meaning of
refusals."""

import re
import time
from collections.abc import Mapping
from typing import Any

import orjson

from ..errors import ModelError, TaskError, on_one_line, summary
from ..responses import make_response, mend_usage, quote_json
from ..session import note_repair
from ..transport.http import Reply
from ..transport.retry import retry_after_s
from ..transport.wire import read_json
from ..types import JsonObject

CHAT_ONLY = (
    "an endpoint that has Chat Completions only needs upstream_api: chat_completions, as in"
    " responses_api_models/openai_model/configs/openai_model_chat.yaml"
)
"""What a 404 of the path of Responses often means, unless it is about the model."""

QUOTED = 100
"""Characters quoted of a body that is no JSON."""

PENDING, FAILED = ("queued", "in_progress"), ("failed", "cancelled")
"""Values of `status` in a response that has no answer."""

NAMES_MODEL = re.compile("model|deployment", re.IGNORECASE)


def parse_json(raw: Any) -> Any:
    """The JSON value; None if `raw` is not JSON."""
    try:
        return orjson.loads(raw)
    except (orjson.JSONDecodeError, TypeError):
        return None


def read_reply(raw: bytes) -> Any:
    """The JSON value of a reply, mended if it is not strict JSON; None if it is not JSON."""
    try:
        return read_json(raw)
    except ValueError:
        return None


def take_reply(reply: Reply) -> Any:
    """The same; of the bytes, only the start is kept for errors."""
    payload = read_reply(reply.raw)
    reply.shorten()
    return payload


def describe_no_json(text: str) -> str:
    """What a body is that should be a JSON object; a page that is no JSON at all is quoted."""
    if not text.strip():
        return "an empty body"
    if text.lstrip()[0] in "{[":
        return "not JSON, perhaps cut off"
    return f"no JSON object, but {on_one_line(text, QUOTED)}"


def read_response(payload: Any) -> JsonObject:
    """The Responses object in a reply. Its `usage` and `incomplete_details` are left out where they
    have a wrong type. ModelError if it is no answer."""
    if (flaw := _find_flaw(payload)) is not None:
        text = quote_json(payload)
        # an answer that is still to come would be paid for again
        is_pending = isinstance(payload, dict) and payload.get("status") in PENDING
        raise ModelError(flaw, body=text, retryable=not is_pending)
    usage = payload.get("usage")
    mended = None if usage is None else mend_usage(usage)
    if mended is not usage and mended != usage:
        note_repair("usage that is none → left out")
        payload = {**payload, "usage": mended}
    details = payload.get("incomplete_details")
    if details is not None and not isinstance(details, dict):
        note_repair("incomplete_details that are no object → text")
        payload = {**payload, "incomplete_details": {"reason": str(details)}}
    return payload


def _find_flaw(payload: Any) -> str | None:
    """What keeps a reply from being an answer."""
    found = payload if isinstance(payload, dict) else {}
    if not isinstance(output := found.get("output"), list):
        if "choices" in found:
            return f"a chat completion and no response; {CHAT_ONLY}"
        return "no response, as it has no list 'output'"
    if (status := found.get("status")) in PENDING:
        return f"a response without its answer, as its status is '{status}': leave out 'background'"
    if status in FAILED:
        return f"a response without an answer, as its status is '{status}'"
    for item in output:
        if (flaw := _find_item_flaw(item)) is not None:
            return flaw
    return None


def _find_item_flaw(item: Any) -> str | None:
    if not isinstance(item, dict):
        return "no response, as an item of its 'output' is no object"
    kind = item.get("type")
    if kind == "function_call" and not isinstance(item.get("name"), str):
        return "no response, as one of its function calls has no name"
    if kind == "message" and not _is_readable(item.get("content")):
        return "no response, as a message of its 'output' is no text"
    return None


def _is_readable(content: Any) -> bool:
    """Whether the content of a message is a text, or parts that have a text where they must."""
    if not isinstance(content, list):
        return content is None or isinstance(content, str)
    for part in content:
        if not isinstance(part, dict):
            return False
        if part.get("type") == "output_text":
            text = part.get("text")
            if text is not None and not isinstance(text, str):
                return False
    return True


def extra_body(row: JsonObject) -> JsonObject:
    """Remove `metadata.extra_body` from `row` and return it; NeMo Gym's rows add parameters so."""
    metadata = row.get("metadata")
    if not isinstance(metadata, dict) or "extra_body" not in metadata:
        return {}
    rest = {key: value for key, value in metadata.items() if key != "extra_body"}
    row.pop("metadata")
    if rest:
        row["metadata"] = rest
    extra = parse_json(metadata["extra_body"])
    if not isinstance(extra, dict):
        raise TaskError(
            "metadata.extra_body must be the JSON text of an object, "
            f"not {metadata['extra_body']!r:.80}"
        )
    return extra


def is_context_overflow(status: int, payload: Any) -> bool:
    """Whether the input is longer than the model's context, by the fields that OpenAI and vLLM set.

    The message is not used: errors about parameters may contain the same words.
    """
    inner = payload.get("error", payload) if isinstance(payload, dict) else None
    if not isinstance(inner, dict):
        return False
    is_vllms = status == 400 and inner.get("param") == "input_tokens"
    return inner.get("code") == "context_length_exceeded" or is_vllms


def overflow_response(params: Mapping[str, Any], model: str) -> JsonObject:
    """The empty response to an input that fills the whole context."""
    given = {key: value for key, value in params.items() if value is not None}
    named = str(given.get("model") or model)
    return make_response(named, [], None, incomplete_reason="max_output_tokens", params=given)


def is_wrong_key(payload: Any) -> bool:
    """Whether Google refused the key: it answers 400, as for an invalid request."""
    told = payload[0] if isinstance(payload, list) and payload else payload
    inner = told.get("error") if isinstance(told, dict) else None
    details = inner.get("details") if isinstance(inner, dict) else None
    return isinstance(details, list) and any(
        isinstance(each, dict) and each.get("reason") == "API_KEY_INVALID" for each in details
    )


def read_status(payload: Any) -> int:
    """The status of an error that came with HTTP status 200, as errors in a stream do."""
    inner = payload.get("error") if isinstance(payload, dict) else None
    code = inner.get("code") if isinstance(inner, dict) else None
    if code == "rate_limit_exceeded":
        return 429
    return code if isinstance(code, int) and 400 <= code <= 599 else 502


def is_out_of_money(payload: Any) -> bool:
    """Whether a 429 of OpenAI says that the account's quota is used up; waiting does not help."""
    inner = payload.get("error") if isinstance(payload, dict) else None
    if not isinstance(inner, dict):
        return False
    return "insufficient_quota" in (inner.get("code"), inner.get("type"))


def wait_s(reply: Reply) -> float | None:
    """The pause (s) that a refusal asks for, by `retry-after-ms` or `retry-after`."""
    milliseconds = reply.headers.get("retry-after-ms")
    if milliseconds.isdigit():
        return int(milliseconds) / 1000
    return retry_after_s(reply.headers.get("retry-after"), time.time())


def read_refusal(payload: Any, url: str, reply: Reply, model: str) -> ModelError:
    """The error of an answer that is none, asked of `url` for a model."""
    status = read_status(payload) if reply.status == 200 else reply.status
    if is_wrong_key(payload):
        status = 401
    text = reply.text() or (quote_json(payload) if payload else "")
    said = summary(payload, text)
    if 300 <= status < 400 and (target := reply.headers.get("location")):
        said = f"redirects to {target}; configure the address that answers"
    if status == 404 and model not in said:
        said = f"{said} (asked for the model '{model}')"
    if status in (404, 405) and not ("/completions" in url or NAMES_MODEL.search(text)):
        said += f"; {CHAT_ONLY}"
    return ModelError(
        f"{url} answered {reply.status}: {said}",
        status=status,
        body=text,
        retryable=not is_out_of_money(payload)
        and (status in (408, 409, 425, 429) or status >= 500),
        retry_after_s=wait_s(reply),
    )
