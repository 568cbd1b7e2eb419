"""The meaning of what OpenAI-compatible endpoints reply: answers, refusals and pauses."""

import re
import time
from collections.abc import Mapping
from typing import Any

import orjson

from ...errors import ModelError, on_one_line, summary
from ...responses import CUT_OFF, FILTERED, as_object, make_response, mend_usage, quote_json
from ...session import note_repair
from ...types import JsonObject
from ..transport.http import Reply
from ..transport.retry import retry_after_s
from ..transport.wire import read_json

CHAT_ONLY = (
    "an endpoint that has Chat Completions only needs upstream_api: chat_completions, as in"
    " responses_api_models/openai_model/configs/openai_model_chat.yaml"
)
"""What a 404 of the path of Responses often means, unless it is about the model."""

VERSION = re.compile(r"/v\d\w*(/|$)|/openai/")
"""Of the path of an endpoint's address; Azure's old paths have none."""

NO_VERSION = "the address has no version: most endpoints need one, as in https://<host>/v1"

QUOTED = 100
"""Characters quoted of a body that is no JSON."""

PENDING, FAILED = ("queued", "in_progress"), ("failed", "cancelled", "error", "expired")
"""Values of `status` in a response that has no answer."""

FILTER_CODES = frozenset(
    {
        "content_filter",
        "content_policy_violation",
        "ResponsibleAIPolicyViolation",
        "data_inspection_failed",
        "DataInspectionFailed",
        "1301",
    }
)
"""Codes and types of errors about the content of a row."""

FILTER_MESSAGES = ("Content Exists Risk", "Output blocked by content filtering policy")
"""What DeepSeek and Anthropic say of such a row, without a code."""

TOO_LONG = re.compile(r"prompt is too long: \d+ tokens > \d+ maximum", re.ASCII)
"""What Anthropic says of an input that exceeds the context; it sets no code."""

IN_STREAM = (200,)
"""Status of a stream in which an error came."""

STATUSES = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "overloaded_error": 529,
    "timeout_error": 504,
    "api_error": 500,
}
"""Code or type of an error in a stream → its status."""

UNITS_S = {
    "ms": 0.001,
    **dict.fromkeys(("", "s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
DURATION = re.compile(
    r"(\d{1,9}(?:\.\d{1,9})?) ?(ms|s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?|h(?:ours?)?|d(?:ays?)?|)",
    re.IGNORECASE | re.ASCII,
)
TRY_AGAIN = re.compile(
    r"(?:try again|retry|wait)\b[^.;\d]{0,40}((?: ?\d{1,9}(?:\.\d{1,9})? ?[a-z]{1,7})+)",
    re.IGNORECASE | re.ASCII,
)
"""A pause in words: "Please try again in 2m59.56s"."""

OF_ITEM = re.compile(r"\bItem with id\b|\bItems are not persisted\b")
"""What OpenAI says of an item of an earlier turn that it has not stored."""

NOT_STORED = (
    "an endpoint that stores nothing needs its own thoughts back: add include:"
    " [reasoning.encrypted_content] to responses_create_params"
)

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


def is_stream(reply: Reply) -> bool:
    """Whether the body is a stream of events that has arrived as a whole."""
    if reply.raw[:1] in (b"{", b"[", b""):
        return False
    return reply.headers.get("content-type").startswith("text/event-stream")


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
        note_repair("odd token counts → read as numbers or left out")
        payload = {**payload, "usage": mended}
    details = payload.get("incomplete_details")
    if details is not None and not isinstance(details, dict):
        note_repair("incomplete_details that are no object → text")
        payload = {**payload, "incomplete_details": {"reason": str(details)}}
    elif payload.get("status") == "incomplete" and not (details and details.get("reason")):
        payload = {**payload, "incomplete_details": {"reason": "incomplete"}}
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


def is_context_overflow(status: int, payload: Any) -> bool:
    """Whether the input is longer than the model's context, by the fields that OpenAI and vLLM set,
    and by Anthropic's whole message.

    Other messages are not used: errors about parameters may contain the same words.
    """
    inner = payload.get("error", payload) if isinstance(payload, dict) else None
    if not isinstance(inner, dict):
        return False
    if status in (*IN_STREAM, 400) and TOO_LONG.fullmatch(str(inner.get("message"))):
        return True
    is_vllms = status == 400 and inner.get("param") == "input_tokens"
    return inner.get("code") == "context_length_exceeded" or is_vllms


def is_filtered(status: int, payload: Any) -> bool:
    """Whether a filter refused the row, by the codes of OpenAI, Azure, Moonshot, Alibaba, Zhipu
    and OpenRouter, and by the words of DeepSeek and Anthropic."""
    inner = payload.get("error", payload) if isinstance(payload, dict) else None
    if not isinstance(inner, dict) or not (status in IN_STREAM or 400 <= status < 500):
        return False
    deeper = (as_object(inner.get(name)) for name in ("innererror", "metadata"))
    codes = {str(each.get(name)) for each in (inner, *deeper) for name in ("code", "type")}
    is_moderated = status == 403 and bool(as_object(inner.get("metadata")).get("reasons"))
    return bool(codes & FILTER_CODES) or is_moderated or inner.get("message") in FILTER_MESSAGES


def incomplete_by_refusal(status: int, payload: Any) -> str | None:
    """Why a refusal is a verdict about the row, and not about the request: the
    `incomplete_details.reason` of its empty response."""
    if is_context_overflow(status, payload):
        return CUT_OFF
    return FILTERED if is_filtered(status, payload) else None


def incomplete_response(reason: str, params: Mapping[str, Any], model: str) -> JsonObject:
    """The empty response to a row that the model does not answer."""
    given = {key: value for key, value in params.items() if value is not None}
    named = str(given.get("model") or model)
    return make_response(named, [], None, incomplete_reason=reason, params=given)


def is_wrong_key(payload: Any) -> bool:
    """Whether Google refused the key: it answers 400, as for an invalid request."""
    inner = as_object(_first(payload)).get("error")
    details = inner.get("details") if isinstance(inner, dict) else None
    return isinstance(details, list) and any(
        isinstance(each, dict) and each.get("reason") == "API_KEY_INVALID" for each in details
    )


def read_status(payload: Any) -> int:
    """The status of an error that came with HTTP status 200, as errors in a stream do."""
    inner = payload.get("error") if isinstance(payload, dict) else None
    if not isinstance(inner, dict):
        return 502
    code = inner.get("code")
    if isinstance(code, int) and 400 <= code <= 599:
        return code
    named = map(str, (code, inner.get("type")))
    return next((STATUSES[name] for name in named if name in STATUSES), 502)


def is_out_of_money(payload: Any) -> bool:
    """Whether a 429 of OpenAI says that the account's quota is used up; waiting does not help."""
    inner = payload.get("error") if isinstance(payload, dict) else None
    if not isinstance(inner, dict):
        return False
    return "insufficient_quota" in (inner.get("code"), inner.get("type"))


def wait_s(reply: Reply, payload: Any) -> float | None:
    """The pause (s) that a refusal asks for: by `retry-after-ms` or `retry-after`, else in its
    body, as Google's `retryDelay` or in words."""
    milliseconds = retry_after_s(reply.headers.get("retry-after-ms"), time.time())
    if milliseconds is not None:
        return milliseconds / 1000
    told = retry_after_s(reply.headers.get("retry-after"), time.time())
    return _told_pause_s(payload) if told is None else told


def _told_pause_s(payload: Any) -> float | None:
    inner = as_object(_first(payload)).get("error")
    details = as_object(inner).get("details")
    for each in details if isinstance(details, list) else ():
        if (seconds := duration_s(str(as_object(each).get("retryDelay") or ""))) is not None:
            return seconds
    said = summary(payload, "")
    asked = TRY_AGAIN.search(said)
    return duration_s(asked[1].replace(" ", "")) if asked else None


def duration_s(text: str) -> float | None:
    """Seconds of a duration such as `2m59.56s`, `120ms`, `6 seconds` or `3`; None if it is
    none."""
    parts = list(DURATION.finditer(text))
    if not parts or "".join(part[0] for part in parts) != text:
        return None
    return sum(float(part[1]) * UNITS_S[part[2].lower()] for part in parts)


def _first(payload: Any) -> Any:
    """An error; Google's are lists of one."""
    return payload[0] if isinstance(payload, list) and payload else payload


def read_refusal(payload: Any, url: str, reply: Reply, model: str, place: str) -> ModelError:
    """The error of an answer that is none, asked of `url` for a model. `place` is what its text
    calls that endpoint."""
    status = read_status(payload) if reply.status == 200 else reply.status
    if is_wrong_key(payload):
        status = 401
    text = reply.text() or (quote_json(payload) if payload else "")
    said = summary(payload, text)
    if 300 <= status < 400 and (target := reply.headers.get("location")):
        said = f"redirects to {target}; configure the address that answers"
    if status == 404 and OF_ITEM.search(text):
        said += f"; {NOT_STORED}"
    elif status == 404 and model not in said:
        said = f"{said} (asked for the model '{model}')"
    is_other = "/completions" in url or "/messages" in url
    is_of_path = not (is_other or NAMES_MODEL.search(text) or OF_ITEM.search(text))
    if status in (404, 405) and is_of_path:
        said += f"; {CHAT_ONLY if VERSION.search(url) else NO_VERSION}"
    elif status in (404, 405) and not (NAMES_MODEL.search(text) or VERSION.search(url)):
        said += f"; {NO_VERSION}"
    return ModelError(
        f"{place} answered {reply.status}: {said}",
        status=status,
        body=text,
        retryable=not is_out_of_money(payload)
        and (status in (408, 409, 425, 429) or status >= 500),
        retry_after_s=wait_s(reply, payload),
    )
