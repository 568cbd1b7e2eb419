"""Which values of a configuration are secret, by their keys and by what they look like."""

import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

MIN_LINE = 8
"""Shorter lines of a secret with several lines are not masked: they may be ordinary words."""

MIN_NUMBER = 100_000
"""Smaller numbers are not masked: they occur everywhere."""

MIN_LENGTH = 4
"""Shorter secrets are not masked: they would occur in most texts."""

SECRET_KEY = re.compile(
    r"(api_?keys?|(access|account|encryption|master|private|shared|signing|subscription)_key"
    r"|secrets?|secret_key|password|passwd|passphrase|authorization|connection_string"
    r"|(^|_)(token|cookie|credentials?|pwd|pw))$"
)
"""Keys of secrets, in words."""

SECRET_MAPPING = re.compile(r"(^|_)(headers|auth|cookies|credentials)$")
"""Keys of mappings and lists whose every value is secret, in words."""

WORD_END = re.compile(r"(?<=[a-z\d])(?=[A-Z])|[-. ]")

OPEN_NAMES = frozenset(
    {
        *("accept", "accept-encoding", "accept-language", "content-type", "user-agent"),
        *("anthropic-beta", "anthropic-version", "openai-beta", "http-referer", "x-title"),
        *("api-version", "version", "deployment", "model"),
    }
)
"""Headers and query parameters that are no secrets."""

URL = re.compile(r"\w+://[^\s\"'<>]+")

TOKENIZER_KEY = re.compile(
    r"(bos|eos|pad|unk|sep|cls|mask|stop|start|end|image|video|audio)_token$"
)
"""Keys of a vocabulary's special tokens, which are no secrets."""

OPEN_KEY = re.compile(
    r"(^|_)(model|deployment|version|dataset|path|paths|dir|folder|file|host)(_name|_id)?$",
    re.IGNORECASE,
)
"""Keys of `env.yaml` that name a model, a place or a version."""

PLAIN_VALUE = re.compile(
    r"(~|\.{1,2})?(/[\w.@ -]+)+/?|\w+://.*|[\d.:,e+-]+|(localhost|[\d.]+)(:\d+)?(/[\w.-]*)*"
    r"|\?\?\?"
)
"""A path, URL, address or number, or no value yet."""

PLACEHOLDERS = frozenset({"dummy", "empty", "fake", "none", "null", "test", "unused"})
"""API keys for endpoints that need none. They are ordinary words, so they are not masked."""


def is_secret_key(key: str) -> bool:
    words = _in_words(key)
    return bool(SECRET_KEY.search(words)) and not TOKENIZER_KEY.search(words)


def _in_words(key: str) -> str:
    """`apiKey`, `API-Key` and `API_KEY` as `api_key`."""
    return WORD_END.sub("_", key).lower()


def has_secrets(key: Any) -> bool:
    return bool(SECRET_MAPPING.search(_in_words(str(key))))


def secret_values(tree: Any) -> frozenset[str]:
    """Every secret text in the tree that is long enough to be masked by value."""
    return _long_enough(_secrets(tree, False))


def private_values(tree: Any) -> frozenset[str]:
    """The same for `env.yaml`, whose texts are secret unless they plainly are something else."""
    return _long_enough(_private(tree, "")) | secret_values(tree)


def _long_enough(found: Iterable[str]) -> frozenset[str]:
    return frozenset(
        text
        for secret in found
        for text in _parts(secret)
        if len(text) >= MIN_LENGTH and text.lower() not in PLACEHOLDERS and "${" not in text
    )


def _parts(secret: str) -> Iterator[str]:
    """The secret, and the parts of it that may occur alone."""
    yield from {secret, secret.strip()}
    scheme, _, rest = secret.partition(" ")
    if scheme in ("Bearer", "Basic", "Token", "ApiKey", "Key"):
        yield rest
    lines = secret.splitlines()
    if len(lines) > 1:  # logs are masked line by line
        yield from (line for line in lines if len(line) >= MIN_LINE and "-----" not in line)


def find_used(secrets: Iterable[str], tree: Any) -> frozenset[str]:
    """Those of the secrets that are in a text of the tree."""
    texts = list(_texts(tree))
    return frozenset(one for one in secrets if any(one in text for text in texts))


def _secrets(tree: Any, is_secret: bool) -> Iterator[str]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _secrets(value, is_secret or is_secret_key(str(key)))
            if has_secrets(key):
                yield from _secrets(list(_values_of_headers(value)), True)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _secrets(value, is_secret)
    elif isinstance(tree, str):
        yield from [tree] if is_secret else _secrets_in_urls(tree)
    elif is_secret and isinstance(tree, int) and abs(tree) >= MIN_NUMBER:
        yield str(tree)


def _values_of_headers(headers: Any) -> Iterator[Any]:
    """The secret values of a mapping, of a list of `name: value` or of pairs, or of one text."""
    if isinstance(headers, dict):
        yield from (value for name, value in headers.items() if not is_open(name))
    elif isinstance(headers, str):
        name, colon, value = headers.partition(":")
        yield from [value.strip()] if colon and not is_open(name) else []
    for one in headers if isinstance(headers, list) else ():
        if isinstance(one, str) and ":" not in one:
            yield one
        elif isinstance(one, dict):
            yield from (value for name, value in one.items() if name not in ("name", "key"))
        else:
            yield from _values_of_headers(one)


def _secrets_in_urls(text: str) -> Iterator[str]:
    """User names, passwords and query values of the URLs in a text, as written and decoded."""
    for url in URL.findall(text) if "://" in text else ():
        try:
            parts = urlsplit(url)
        except ValueError:
            continue
        user, at, _ = parts.netloc.rpartition("@")
        name, colon, password = user.partition(":")
        found = [password if colon else name] if at else []
        for pair in parts.query.split("&"):
            key, _, value = pair.partition("=")
            if not is_open(key):
                found += [value, *(decoded for _, decoded in parse_qsl(pair))]
        for secret in found:
            yield from {secret, unquote(secret)}


def _private(tree: Any, key: str) -> Iterator[str]:
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from _private(value, str(name))
    elif isinstance(tree, list):
        for value in tree:
            yield from _private(value, key)
    elif isinstance(tree, str) and not OPEN_KEY.search(key) and not PLAIN_VALUE.fullmatch(tree):
        yield tree


def _texts(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict | list):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from _texts(value)


def is_open(name: Any) -> bool:
    return str(name).lower() in OPEN_NAMES
