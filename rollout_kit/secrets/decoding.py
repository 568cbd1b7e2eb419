"""What a text says once its escapes are decoded, and which part of the text says it.

Escapes are those of JSON and Python (`\\u0073`, `\\x73`, `\\"`), of HTML (`&#115;`, `&amp;`) and of
URLs (`%73`), each written any number of times, in each other and in Base64. One pass decodes all
kinds, so a text is read again until nothing is left to decode.
"""

import binascii
import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from html import unescape

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
