"""Which values are secret, and how to mask them.

A value is secret if its key names a secret. It is masked by value in every text, because it may
have been interpolated into a URL or quoted in an error.
"""

import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, TypeVar

MASK = "****"

MIN_LINE = 8
"""Shorter lines of a secret with several lines are not masked: they may be ordinary words."""

MIN_NUMBER = 100_000
"""Smaller numbers are not masked: they occur everywhere."""

MIN_LENGTH = 4
"""Shorter secrets are not masked: they would occur in most texts."""

SECRET_KEY = re.compile(
    r"(api_?keys?|access_key|secret|password|passwd|authorization|(^|_)token)$", re.IGNORECASE
)

URL_PASSWORD = re.compile(r"\w://[^/\s:@]*:([^/\s@]+)@")
"""The password between user name and host."""

TOKENIZER_KEY = re.compile(
    r"(bos|eos|pad|unk|sep|cls|mask|stop|start|end|image|video|audio)_token$", re.IGNORECASE
)
"""Keys of a vocabulary's special tokens, which are no secrets."""

PLACEHOLDERS = frozenset({"dummy", "empty", "fake", "none", "null", "test", "unused"})
"""API keys for endpoints that need none. They are ordinary words, so they are not masked."""

Shown = TypeVar("Shown")


def is_secret_key(key: str) -> bool:
    return bool(SECRET_KEY.search(key)) and not TOKENIZER_KEY.search(key)


def secret_values(tree: Any) -> frozenset[str]:
    """Every text below a secret key that is long enough to be masked by value."""
    return frozenset(
        text
        for found in _secrets(tree, False)
        for text in _parts(found)
        if len(text) >= MIN_LENGTH and text.lower() not in PLACEHOLDERS and "${" not in text
    )


def _parts(secret: str) -> Iterator[str]:
    """The secret, and the parts of it that may occur alone."""
    yield secret
    if secret.startswith("Bearer "):
        yield secret.removeprefix("Bearer ")
    lines = secret.splitlines()
    if len(lines) > 1:  # logs are masked line by line
        yield from (line for line in lines if len(line) >= MIN_LINE and "-----" not in line)


def mask(shown: Shown, secrets: Iterable[str] = ()) -> Shown:
    """A copy with the secrets replaced: by value in any text, and by key in mappings."""
    return _mask_text(shown, _pattern(frozenset(secrets)))


@lru_cache(maxsize=64)
def _pattern(secrets: frozenset[str]) -> re.Pattern[str] | None:
    """A pattern for every spelling of the secrets; cached because every line of a log needs it."""
    spelled = {
        form
        for secret in secrets
        for form in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1])
    }
    # longest first, because one secret may contain another
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
    """A secret value, masked; null and empty stay visible, so that a missing secret shows."""
    if isinstance(value, dict):
        return {key: _mask_match(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_mask_match(item) for item in value]
    return value if value is None or value == "" or isinstance(value, bool) else MASK
