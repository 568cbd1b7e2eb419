"""Which values are secret, and how to mask them.

Secret are: values of keys that name a secret, values of headers, user and query values of URLs, and
what `env.yaml` holds besides names of models, numbers, paths and plain URLs. They are masked by
value in every text and in every spelling, because they may have been interpolated into a URL or
quoted in an error.

Escapes are those of JSON and Python (`\\u0073`, `\\x73`, `\\"`), of HTML (`&#115;`, `&amp;`) and of
URLs (`%73`), each written any number of times, in each other and in Base64. One pass decodes all
kinds, so a text is read again until nothing is left to decode.
"""

import base64
import binascii
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from html import unescape
from itertools import takewhile
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

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
    """The same for `env.yaml`, whose texts are secret unless they plainly are something else: its
    keys are free names, such as `my_pw`, and nothing else shows what is secret."""
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


Span = tuple[int, int]
"""Start and end of a part of a text."""

MAX_PASSES = 16
"""Passes over one text. Repeated escapes of one kind need one pass, however often they repeat."""

WINDOW, OVERLAP = 1 << 20, 1 << 16
"""Characters of a long text that are decoded at a time, and those that two windows share. So a
long text needs little more memory; an encoded secret is shorter than the overlap."""


def _compile(slash: str, marks: str, slashes: str, percent: str, ampersand: str) -> re.Pattern[str]:
    """One escape, given how its first character is written; or the parts of one character that had
    escapes of their own, in UTF-16 or UTF-8."""
    return re.compile(
        rf"{slash}(?:u(?P<unit>[\da-fA-F]{{4}})|u\{{(?P<code>[\da-fA-F]{{1,6}})\}}"
        r"|U(?P<wide>[\da-fA-F]{8})|x(?P<byte>[\da-fA-F]{2})"
        rf"|(?P<mark>[{marks}]))"
        rf"|(?P<slashes>{slashes})"
        rf"|{percent}(?P<percent>[\da-fA-F]{{2}})"
        rf"|{ampersand}(?:#0*(?P<decimal>\d{{1,7}});?|#[xX]0*(?P<hex>[\da-fA-F]{{1,6}});?"
        r"|(?P<name>[a-zA-Z]\w{1,31});)"
        r"|(?P<units>[\ud800-\udbff][\udc00-\udfff])"
        r"|(?P<bytes>[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3})",
        re.ASCII,
    )


AMPERSANDS = "&(?:amp;|#0*38;|#[xX]0*26;)*"

ONCE = _compile(r"\\", "\"'/bfnrt", r"\\{2}", "%", "&")

REPEATED = _compile(r"\\+", "\"'/bfnrt", r"\\{2,}", "%(?:25)*", AMPERSANDS)
"""An escape together with the escapes of its first character that were added when it came again.
It takes one pass, but loses the backslashes of a secret that has some."""

WITHOUT_MARKS = _compile(r"\\+", "/", "(?!)", "%(?:25)*", AMPERSANDS)
"""The same without `\\n`, `\\"` and others that are no part of an ordinary secret, but are in most
replies."""

AFTER_OTHERS = re.compile(r"%[\da-fA-F]{2}|&(?:#|\w+;)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Escapes:
    """Escapes that are worth decoding a text for: those of URLs and HTML, and some of JSON and
    Python, whose pattern begins with a backslash because such a search is fast."""

    after_slash: re.Pattern[str]
    kinds: tuple[re.Pattern[str], ...]
    """How texts are decoded, each time from the start."""

    def occur_in(self, text: str) -> bool:
        if self.after_slash.search(text) is not None:
            return True
        return ("%" in text or "&" in text) and AFTER_OTHERS.search(text) is not None


EVERY = Escapes(
    re.compile(r"\\[\\\"'/bfnrtuUx]|[\xc2-\xf4][\x80-\xbf]|[\ud800-\udbff][\udc00-\udfff]"),
    (REPEATED, ONCE),
)

ORDINARY = Escapes(re.compile(r"\\(?:u00[2-7]|u\{[2-7]|x[2-7]|/)"), (WITHOUT_MARKS,))
"""Those that stand for a letter, digit or sign of ASCII which JSON does not have to escape, or for
a part of another escape."""

MARKS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

FROM_URL_SAFE = str.maketrans("-_", "+/")

IS_BASE64 = bytes(35 if chr(code) in ALPHABET + "-_" else 32 for code in range(256))
"""Translates characters of Base64 to `#`, and others to a blank."""

MIN_RUN = b"#" * 16
"""Shorter Base64 is not decoded: no secret fits into it with an escape."""


def _charset(places: "Iterator[int]") -> str:
    """A regular expression for the characters of Base64 at these places of its alphabet."""
    found = "".join(ALPHABET[place] for place in places)
    return f"[{found}{'-' * ('+' in found)}{'_' * ('/' in found)}]".replace("+-", "+\\-")


OF_ASCII = re.compile(
    f"(?:[CDI-Za-f]{_charset(n for n in range(64) if n % 16 in (0, 2, 3, 4, 5, 6, 7))}"
    f"{_charset(n for n in range(64) if n % 4 < 2)}[A-Za-z0-9+/_-]){{3,}}[A-Za-z0-9+/_-]{{0,3}}"
)
"""Base64 of ASCII text: three bytes below 128 leave half of the characters out in three places of
four. Identifiers and pictures in Base64 hardly ever match."""


class Decoded:
    """A text as it reads after one pass of decoding, in pieces; each has its source in the text
    that was decoded. `is_copy` pieces stand in both."""

    def __init__(self, earlier: "Decoded | None") -> None:
        self.text = ""
        self._earlier = earlier
        self._starts: list[int] = []
        self._sources: list[Span] = []
        self._is_copy: list[bool] = []

    def set_text(self, pieces: "Iterator[tuple[str, Span, bool]]") -> None:
        """Put the text together from (piece, source, whether it is a copy)."""
        size, texts = 0, list[str]()
        for piece, source, is_copy in pieces:
            self._starts.append(size)
            self._sources.append(source)
            self._is_copy.append(is_copy)
            texts.append(piece)
            size += len(piece)
        self.text = "".join(texts)

    def locate(self, start: int, end: int) -> Span:
        """The part of the first text that reads as `text[start:end]`."""
        first, last = (bisect_right(self._starts, at) - 1 for at in (start, end - 1))
        begin, finish = self._sources[first][0], self._sources[last][1]
        if self._is_copy[first]:
            begin += start - self._starts[first]
        if self._is_copy[last]:
            finish = self._sources[last][0] + end - self._starts[last]
        return self._earlier.locate(begin, finish) if self._earlier else (begin, finish)

    def is_copied(self, start: int, end: int) -> bool:
        """Whether a part, with a character on either side, stood in the earlier text too."""
        at = bisect_right(self._starts, start - 1) - 1
        return (
            at >= 0
            and self._is_copy[at]
            and end < len(self.text)
            and (at + 1 == len(self._starts) or end < self._starts[at + 1])
        )


def read_windows(text: str) -> Iterator[tuple[int, str]]:
    """(offset, part) of parts that overlap, so that what is short lies in one of them."""
    for offset in range(0, max(1, len(text) - OVERLAP), WINDOW - OVERLAP):
        yield offset, text[offset : offset + WINDOW]


def decode(text: str, escapes: Escapes) -> Iterator[Decoded]:
    """Every reading of a text besides the text itself. Only texts in which some of `escapes` occur
    are decoded."""
    for kind in escapes.kinds:
        yield from _read_on(text, escapes, kind, None, MAX_PASSES)


def _read_on(
    text: str, escapes: Escapes, kind: re.Pattern[str], earlier: Decoded | None, passes: int
) -> Iterator[Decoded]:
    if not passes:
        return
    later = [*_from_base64(text, earlier)]
    if escapes.occur_in(text):
        plain = Decoded(earlier)
        plain.set_text(_split_at_escapes(text, kind))
        later += [plain] if plain.text != text else []
    for reading in later:
        yield reading
        yield from _read_on(reading.text, escapes, kind, reading, passes - 1)


def _split_at_escapes(text: str, kind: re.Pattern[str]) -> Iterator[tuple[str, Span, bool]]:
    done = 0
    for escape in kind.finditer(text):
        start, end = escape.span()
        if start > done:
            yield text[done:start], (done, start), True
        yield _plain(escape), (start, end), False
        done = end
    if done < len(text):
        yield text[done:], (done, len(text)), True


def _plain(escape: re.Match[str]) -> str:
    """What an escape stands for."""
    kind = escape.lastgroup or ""
    said = escape[kind]
    if kind == "slashes":
        return "\\"
    if kind == "mark":
        return MARKS.get(said, said)
    if kind == "name":
        return unescape(f"&{said};")
    if kind == "units":
        return said.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    if kind == "bytes":
        with suppress(UnicodeDecodeError):
            return said.encode("latin-1").decode("utf-8", "surrogatepass")
        return said
    code = int(said, 10 if kind == "decimal" else 16)
    return chr(code) if code < 0x110000 else escape[0]


def _from_base64(text: str, earlier: Decoded | None) -> Iterator[Decoded]:
    """The ASCII texts in Base64."""
    flat = text.encode("latin-1", "replace").translate(IS_BASE64)
    end = 0
    while (start := flat.find(MIN_RUN, end)) >= 0:
        end = flat.find(b" ", start)
        end = len(text) if end < 0 else end
        for run in OF_ASCII.finditer(text, start, end):
            if earlier is not None and earlier.is_copied(*run.span()):
                continue  # it has been decoded in the earlier text
            coded = run[0].translate(FROM_URL_SAFE)
            coded = coded[: len(coded) - (len(coded) % 4 == 1)]
            raw = binascii.a2b_base64(coded + "=" * (-len(coded) % 4))
            reading = Decoded(earlier)
            reading.set_text(_split_base64(raw, run.start()))
            yield reading


def _split_base64(raw: bytes, offset: int) -> Iterator[tuple[str, Span, bool]]:
    """Each character with those of the Base64 that hold its bits."""
    for at, code in enumerate(raw):
        yield chr(code), (offset + at * 8 // 6, offset + (at * 8 + 13) // 6), False


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
