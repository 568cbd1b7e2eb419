"""When two items are the same: for the tree of calls, and for replies of the record.

In the tree, an item is another one if its texts, its name, its arguments or its ids differ. After a
restart, a request is answered from the record if it is the same but for what programs make anew:
ids, dates, times, durations, temporary paths and ports.
"""

import re
from typing import Any

import orjson

from ...responses import Item, content_texts

DIGEST_BYTES = 16

VOLATILE = re.compile(
    rb"(?P<id>\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b)"
    rb"|(?P<label>\b(?:ID|Id|id)[:=] ?[0-9a-f]{4,64}\b)"
    rb"|(?P<temporary>/(?:var/)?tmp/[\w.+-]+)"
    rb"|(?P<date>\b\d{4}-\d\d-\d\d"
    rb"(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?)"
    rb"|(?P<day>\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6},? [ \w]{1,14}\d{1,4}\b)"
    rb"|(?P<month>\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6} {1,2}\d{1,2}\b)"
    rb"|(?P<time>\b\d{1,2}:\d\d:\d\d(?:[.,]\d{1,9})?)|(?P<clock>\b\d\d:\d\d\b)"
    rb"|(?P<duration>\b\d{1,7}(?:\.\d{1,9})? ?(?:s|ms|us|seconds|sec)\b)"
    rb"|(?P<port>\b(?:127\.0\.0\.1|localhost):\d{1,5}(?:/r/\w{1,64})?)"
    rb"|(?P<epoch>\b1[6-9]\d{8}(?:\d{3})?(?:\.\d{1,9})?\b)"
    rb"|(?P<hex>\b[0-9a-f]{24,64}\b)"
)
"""What may differ. No part of the pattern repeats another one that repeats, so matching takes time
that is proportional to the text."""


def key_of_item(item: Item) -> bytes:
    """What an item says; empty if it does not count, as reasoning, which few programs send back."""
    kind = item.get("type", "message")
    if kind == "reasoning":
        return b""
    if kind == "message":
        role = item.get("role")
        text = _text(item.get("content"))
        if role == "assistant":
            return _encode("assistant", text.strip()) if text.strip() else b""
        return _encode("system" if role == "developer" else role, text)
    if kind == "function_call":
        said = _arguments(item.get("arguments"))
        return _encode("call", item.get("call_id"), item.get("name"), said)
    if kind == "function_call_output":
        return _encode("output", item.get("call_id"), _text(item.get("output")))
    return _encode({name: value for name, value in item.items() if name not in ("id", "status")})


def without_volatile(key: bytes) -> bytes:
    """The key of an item, without what a program makes anew each time."""
    return VOLATILE.sub(_name, key)


def _name(found: re.Match[bytes]) -> bytes:
    return b"<%b>" % (found.lastgroup or "").encode()


def _encode(*parts: Any) -> bytes:
    return orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = content_texts(content)
    if len(texts) == len(content):
        return "".join(texts)
    return orjson.dumps(content, option=orjson.OPT_SORT_KEYS).decode()


def _arguments(given: Any) -> Any:
    """The arguments of a call, whatever their white space and the order of their names."""
    try:
        return orjson.loads(given or "{}")
    except (orjson.JSONDecodeError, TypeError):
        return given
