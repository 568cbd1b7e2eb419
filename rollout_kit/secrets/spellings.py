"""Finds and masks secrets in a text, in every spelling and where they were cut off."""

import base64
import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import takewhile
from urllib.parse import quote, quote_plus

from .decoding import EVERY, ORDINARY, Span, decode, read_windows
from .finding import MIN_LENGTH

MASK = "****"

MIN_PART = 8
"""Fewer characters of a secret that was cut off, or in Base64, are not recognized."""

UNUSUAL = re.compile(r"[^ -~]|[\"'\\]|%[\da-fA-F]{2}|&#?\w+;")
"""What a secret holds that other escapes stand for, or that is an escape itself."""


class Spellings:
    """Every spelling of some secrets. Where a text was cut off, `share` of a spelling is enough."""

    def __init__(self, secrets: frozenset[str], share: float) -> None:
        # longest first, because one secret may contain another
        self._forms = sorted({form for one in secrets for form in _spell(one)}, key=len)[::-1]
        pattern = "|".join(map(re.escape, self._forms))
        self._pattern = re.compile(pattern) if pattern else None
        # a part is longer than the mask, so that masking it always shortens the text and ends
        sizes = {
            form: max(MIN_PART, int(len(form) * share))
            for form in self._forms
            if len(form) >= MIN_PART
        }
        self._starts = {form[:size]: form for form, size in sizes.items()}
        self._ends = {form[-size:]: form for form, size in sizes.items()}
        is_unusual = any(map(UNUSUAL.search, secrets))
        self._escapes = EVERY if is_unusual else ORDINARY

    def may_occur_in(self, text: str) -> bool:
        return (
            any(part in text for part in self._starts)
            or any(part in text for part in self._ends)
            or any(True for _ in self._find_escaped(text))
        )

    def mask(self, text: str) -> str:
        if self._pattern is None or len(text) < MIN_LENGTH:
            return text
        if spans := [*self._find_escaped(text)]:
            text = _mask_spans(text, spans)
        text = self._pattern.sub(MASK, text)
        for part, form in self._starts.items():
            while (start := text.find(part)) >= 0:
                text = text[:start] + MASK + text[start + _num_equal(text[start:], form) :]
        for part, form in self._ends.items():
            while (start := text.find(part)) >= 0:
                end = start + len(part)
                text = text[: end - _num_equal(text[end - 1 :: -1], form[::-1])] + MASK + text[end:]
        return text

    def _find_escaped(self, text: str) -> Iterator[Span]:
        """The parts of a text that say a secret once they are decoded."""
        for offset, part in read_windows(text):
            for reading in decode(part, self._escapes):
                for found in self._find(reading.text):
                    start, end = reading.locate(*found)
                    yield offset + start, offset + end

    def _find(self, text: str) -> Iterator[Span]:
        """The secrets, or what is left of them, as they are."""
        if self._pattern is None:
            return
        yield from (found.span() for found in self._pattern.finditer(text))
        for part, form in self._starts.items():
            for start in _places(part, text):
                yield start, start + _num_equal(text[start : start + len(form)], form)
        for part, form in self._ends.items():
            for start in _places(part, text):
                end = start + len(part)
                said = text[max(0, end - len(form)) : end]
                yield end - _num_equal(said[::-1], form[::-1]), end


def _places(part: str, text: str) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def _mask_spans(text: str, spans: Iterable[Span]) -> str:
    """The text with one mask for each group of parts that overlap."""
    pieces, done = list[str](), 0
    for start, end in sorted(spans):
        if start >= done:
            pieces += [text[done:start], MASK]
        done = max(done, end)
    return "".join([*pieces, text[done:]])


def _num_equal(text: str, form: str) -> int:
    """Number of characters at the start that are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, form, strict=False)))


@lru_cache(maxsize=64)
def spellings(secrets: frozenset[str], share: float = 0.0) -> Spellings:
    """Cached because every line of a log needs them."""
    return Spellings(secrets, share)


def _spell(secret: str) -> Iterator[str]:
    """The secret as Python, JSON (also inside other JSON), a URL and Base64 spell it, and what
    decoding makes of it."""
    in_json = json.dumps(secret)[1:-1]
    yield from (secret, repr(secret)[1:-1], in_json, json.dumps(in_json)[1:-1])
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    raw = secret.encode("utf-8", "surrogatepass")
    for form in (quote(raw), quote(raw, safe=""), quote_plus(raw)):
        yield form
        yield re.sub("%..", lambda code: code[0].lower(), form)
    for before in range(3):  # the bytes before it decide how Base64 groups those of the secret
        coded = base64.b64encode(bytes(before) + raw).decode()
        core = coded[-(-before * 8 // 6) : (before + len(raw)) * 8 // 6]
        if len(core) >= MIN_PART:
            yield core
            yield core.translate(str.maketrans("+/", "-_"))
    yield secret.replace(" ", "+")
    # a secret may hold escapes itself
    yield from (
        reading.text for reading in decode(secret, EVERY) if len(reading.text) >= MIN_LENGTH
    )
