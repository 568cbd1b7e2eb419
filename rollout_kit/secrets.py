"""Which values are secret, and how to mask them.

Secret are: values of keys that name a secret, values of headers, user and query values of URLs, and
what `env.yaml` holds besides names of models, numbers, paths and plain URLs. They are masked by
value in every text and in every spelling, because they may have been interpolated into a URL or
quoted in an error.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import takewhile
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

MASK = "****"

MIN_LINE = 8
"""Shorter lines of a secret with several lines are not masked: they may be ordinary words."""

MIN_NUMBER = 100_000
"""Smaller numbers are not masked: they occur everywhere."""

MIN_LENGTH = 4
"""Shorter secrets are not masked: they would occur in most texts."""

MIN_ECHO = 8
"""Shorter secrets are not masked in what a model says: they may be ordinary words."""

MIN_PART = 8
"""Fewer characters of a secret that was cut off, or in Base64, are not recognized."""

ECHO_SHARE = 0.5
"""Smaller parts of a secret are not masked in what a model says."""

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

Shown = TypeVar("Shown")


def is_secret_key(key: str) -> bool:
    words = _in_words(key)
    return bool(SECRET_KEY.search(words)) and not TOKENIZER_KEY.search(words)


def _in_words(key: str) -> str:
    """`apiKey`, `API-Key` and `API_KEY` as `api_key`."""
    return WORD_END.sub("_", key).lower()


def _has_secrets(key: Any) -> bool:
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


def mask(shown: Shown, secrets: Iterable[str] = ()) -> Shown:
    """A copy with the secrets replaced: by value in any text, and by key in mappings."""
    return _mask_tree(shown, _spellings(frozenset(secrets)), by_key=True)


def echoes(raw: str, secrets: frozenset[str]) -> bool:
    """Whether a reply as JSON text may contain one of the longer secrets."""
    return _spellings(_longer(secrets), ECHO_SHARE).may_occur_in(raw)


def mask_echo(said: Shown, secrets: frozenset[str]) -> Shown:
    """A copy of what a model or tool said, with the longer secrets replaced by value."""
    return _mask_tree(said, _spellings(_longer(secrets), ECHO_SHARE), by_key=False)


@lru_cache(maxsize=64)
def _longer(secrets: frozenset[str]) -> frozenset[str]:
    return frozenset(secret for secret in secrets if len(secret) >= MIN_ECHO)


class _Spellings:
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

    def may_occur_in(self, text: str) -> bool:
        return any(part in text for part in self._starts) or any(
            part in text for part in self._ends
        )

    def mask(self, text: str) -> str:
        if self._pattern is None or len(text) < MIN_LENGTH:
            return text
        text = self._pattern.sub(MASK, text)
        for part, form in self._starts.items():
            while (start := text.find(part)) >= 0:
                text = text[:start] + MASK + text[start + _num_equal(text[start:], form) :]
        for part, form in self._ends.items():
            while (start := text.find(part)) >= 0:
                end = start + len(part)
                text = text[: end - _num_equal(text[end - 1 :: -1], form[::-1])] + MASK + text[end:]
        return text


def _num_equal(text: str, form: str) -> int:
    """Number of characters at the start that are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, form, strict=False)))


@lru_cache(maxsize=64)
def _spellings(secrets: frozenset[str], share: float = 0.0) -> _Spellings:
    """Cached because every line of a log needs them."""
    return _Spellings(secrets, share)


def _spell(secret: str) -> Iterator[str]:
    """The secret as Python, JSON (also inside other JSON), a URL and Base64 spell it."""
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


def _secrets(tree: Any, is_secret: bool) -> Iterator[str]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _secrets(value, is_secret or is_secret_key(str(key)))
            if _has_secrets(key):
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
        yield from (value for name, value in headers.items() if not _is_open(name))
    elif isinstance(headers, str):
        name, colon, value = headers.partition(":")
        yield from [value.strip()] if colon and not _is_open(name) else []
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
            if not _is_open(key):
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


def _is_open(name: Any) -> bool:
    return str(name).lower() in OPEN_NAMES


def _mask_tree(shown: Any, secrets: _Spellings, *, by_key: bool) -> Any:
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


def _mask_value(key: Any, value: Any, secrets: _Spellings, *, by_key: bool) -> Any:
    if by_key and is_secret_key(str(key)):
        return _mask_match(value)
    if by_key and isinstance(value, dict) and _has_secrets(key):
        return {name: item if _is_open(name) else _mask_match(item) for name, item in value.items()}
    return _mask_tree(value, secrets, by_key=by_key)


def _mask_match(value: Any) -> Any:
    """A secret value, masked; null and empty stay visible, so that a missing secret shows."""
    if isinstance(value, dict):
        return {key: _mask_match(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_mask_match(item) for item in value]
    return value if value is None or value == "" or isinstance(value, bool) else MASK
