"""Which values are secret, and how they are kept out of everything that is shown or written.

A value is secret by its key. It is then masked by value wherever it turns up, since it may have
been interpolated into a URL or quoted in an endpoint's error.
"""

import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, TypeVar

MASK = "****"

MIN_LINE = 8
"""A shorter line of a secret of many lines tells little, and may be any word."""

MIN_NUMBER = 100_000
"""A smaller number is no secret, and turns up everywhere."""

MIN_LENGTH = 4
"""A shorter secret is no secret, and masking it by value would riddle every text with stars."""

SECRET_KEY = re.compile(
    r"(api_?keys?|access_key|secret|password|passwd|authorization|(^|_)token)$", re.IGNORECASE
)

URL_PASSWORD = re.compile(r"\w://[^/\s:@]*:([^/\s@]+)@")
"""What stands between a user's name and the host."""

TOKENIZER_KEY = re.compile(
    r"(bos|eos|pad|unk|sep|cls|mask|stop|start|end|image|video|audio)_token$", re.IGNORECASE
)
"""Tokens of a vocabulary, which guard nothing."""

PLACEHOLDERS = frozenset({"dummy", "empty", "fake", "none", "null", "test", "unused"})
"""Keys that people give an endpoint that asks for none: ordinary words, not masked in text."""

Shown = TypeVar("Shown")


def is_secret_key(key: str) -> bool:
    return bool(SECRET_KEY.search(key)) and not TOKENIZER_KEY.search(key)


def secret_values(tree: Any) -> frozenset[str]:
    """Every text under a secret key, long enough to be masked by value."""
    return frozenset(
        text
        for found in _secrets(tree, False)
        for text in _parts(found)
        if len(text) >= MIN_LENGTH and text.lower() not in PLACEHOLDERS and "${" not in text
    )


def _parts(secret: str) -> Iterator[str]:
    """It as a whole, and what of it may turn up alone."""
    yield secret
    if secret.startswith("Bearer "):
        yield secret.removeprefix("Bearer ")
    lines = secret.splitlines()
    if len(lines) > 1:  # a log shows line by line
        yield from (line for line in lines if len(line) >= MIN_LINE and "-----" not in line)


def mask(shown: Shown, secrets: Iterable[str] = ()) -> Shown:
    """A copy with secrets replaced: in any text by value, in mappings by key too."""
    return _mask_text(shown, _pattern(frozenset(secrets)))


@lru_cache(maxsize=64)
def _pattern(secrets: frozenset[str]) -> re.Pattern[str] | None:
    """Every spelling of them; kept, as each line of a log asks for it."""
    spelled = {
        form
        for secret in secrets
        for form in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1])
    }
    # the longest first: one secret may contain another
    pattern = "|".join(re.escape(form) for form in sorted(spelled, key=len, reverse=True) if form)
    return re.compile(pattern) if pattern else None


def _secrets(tree: Any, is_secret: bool) -> Iterator[str]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _secrets(value, is_secret or is_secret_key(str(key)))
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _secrets(value, is_secret)
    elif isinstance(tree, str):
        yield from [tree] if is_secret else URL_PASSWORD.findall(tree)
    elif is_secret and isinstance(tree, int) and abs(tree) >= MIN_NUMBER:
        yield str(tree)


def _mask_text(shown: Any, pattern: re.Pattern[str] | None) -> Any:
    if isinstance(shown, str):
        return pattern.sub(MASK, shown) if pattern else shown
    if isinstance(shown, dict):
        return {
            _mask_text(key, pattern): _mask_match(value)
            if is_secret_key(str(key))
            else _mask_text(value, pattern)
            for key, value in shown.items()
        }
    if isinstance(shown, list | tuple):
        return type(shown)(_mask_text(value, pattern) for value in shown)
    return shown


def _mask_match(value: Any) -> Any:
    """What stands for a secret: null and empty stay visible, so that a missing one can be seen."""
    if isinstance(value, dict):
        return {key: _mask_match(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_mask_match(item) for item in value]
    return value if value is None or value == "" or isinstance(value, bool) else MASK
