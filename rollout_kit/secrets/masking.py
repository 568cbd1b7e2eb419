"""Replaces secrets in texts and trees."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, TypeVar

from .finding import has_secrets, is_open, is_secret_key
from .spellings import MASK, Spellings, spellings

MIN_ECHO = 8
"""Shorter secrets are not masked in what a model says: they may be ordinary words."""

ECHO_SHARE = 0.5
"""Smaller parts of a secret are not masked in what a model says."""

Shown = TypeVar("Shown")


def mask(shown: Shown, secrets: Iterable[str] = ()) -> Shown:
    """A copy with the secrets replaced: by value in any text, and by key in mappings."""
    return _mask_tree(shown, spellings(frozenset(secrets)), by_key=True)


def echoes(raw: str, secrets: frozenset[str]) -> bool:
    """Whether a reply as JSON text may contain one of the longer secrets."""
    return spellings(_longer(secrets), ECHO_SHARE).may_occur_in(raw)


def mask_echo(said: Shown, secrets: frozenset[str]) -> Shown:
    """A copy of what a model or tool said, with the longer secrets replaced by value."""
    return _mask_tree(said, spellings(_longer(secrets), ECHO_SHARE), by_key=False)


@lru_cache(maxsize=64)
def _longer(secrets: frozenset[str]) -> frozenset[str]:
    return frozenset(secret for secret in secrets if len(secret) >= MIN_ECHO)


def _mask_tree(shown: Any, secrets: Spellings, *, by_key: bool) -> Any:
    if isinstance(shown, str):
        return secrets.mask(shown)
    if isinstance(shown, dict):
        return {
            _mask_tree(key, secrets, by_key=by_key): _mask_value(key, value, secrets, by_key=by_key)
            for key, value in shown.items()
        }
    if isinstance(shown, list | tuple):
        return type(shown)(_mask_tree(value, secrets, by_key=by_key) for value in shown)
    return shown


def _mask_value(key: Any, value: Any, secrets: Spellings, *, by_key: bool) -> Any:
    if by_key and is_secret_key(str(key)):
        return _mask_match(value)
    if by_key and isinstance(value, dict) and has_secrets(key):
        return {name: item if is_open(name) else _mask_match(item) for name, item in value.items()}
    return _mask_tree(value, secrets, by_key=by_key)


def _mask_match(value: Any) -> Any:
    """A secret value, masked; null and empty stay visible, so that a missing secret shows."""
    if isinstance(value, dict):
        return {key: _mask_match(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_mask_match(item) for item in value]
    return value if value is None or value == "" or isinstance(value, bool) else MASK
