"""Extract the answer from a text, and compare answers without algebra.

Pure functions on the standard library. They return None for comparisons that they cannot decide.
"""

import re
from fractions import Fraction
from typing import NamedTuple

ANSWER_LIMIT = 2_000
"""Longer answers are not parsed, because they are repetitions and not answers."""

NUMBERS_DIFFER = Fraction(1, 10**5)
"""Numbers with a larger difference also differ for math-verify, which rounds to six decimals."""

BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
BARE_BOX = re.compile(r"\\boxed\s+([^\s$.,;{}]+)")
HASHES = re.compile(r"####[ \t]*([^\n]+)")
ANSWER_IS = re.compile(
    r"answer(?: to [^.\n]{1,80}?)?[*_]*\s*(?:\bis\b|[:=])[\s:*_]*([^\n]+)", re.IGNORECASE
)
SENTENCE_END = re.compile(r"[.!?](?=\s|\*|$)")
INLINE_MATH = re.compile(r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]")

TRAILING = ".,;" + "".join(filter(str.isspace, map(chr, range(0x3001))))
WRAPPERS = [("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"), ("`", "`")]
SPACING = re.compile(r"\\(?:left|right|displaystyle|[,;:! ])(?![A-Za-z])|\\(?:quad|qquad)\b|~")
GAP = re.compile(r"(?<!\d)\s+|\s+(?!\d)")
"""White space, except between two digits: `4 2` is not `42`."""
FRACTION = re.compile(r"\\[dt]frac(?![A-Za-z])")

NUMERAL = re.compile(
    r"""(?P<sign>[-+]?)\s*(?:\\?[$€£¥]\s*)?
    (?P<whole>\d{1,3}(?:(?:,|\{,\}|\s)\d{3})+|\d+)?(?P<decimals>\.\d*)?
    \s*(?P<percent>\\?%|percent\b)?
    (?P<unit>(?:\s+[A-Za-z]{2,}){0,3}|\s*\\(?:text|mathrm|textrm)\{[^{}]*\}(?:\^\{?[23]\}?)?
        |\s*(?:°|\^\{?\\circ\}?)\s*[CF]?)""",
    re.VERBOSE,
)
NO_UNITS = frozenset(
    (
        "and",
        "or",
        "to",
        "if",
        "not",
        "plus",
        "minus",
        "times",
        "over",
        "point",
        "percent",
        "hundred",
        "thousand",
        "million",
        "billion",
        "trillion",
        "dozen",
        "pi",
        "sqrt",
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "log",
        "ln",
        "exp",
        "mod",
        "choose",
        "factorial",
        "squared",
        "cubed",
    )
)
"""Words that are not units, because they change the number before them."""


def extract(text: str) -> str | None:
    r"""Return the answer of a response, or None: its last `\boxed{…}`, otherwise the text after its
    last `####`, otherwise after its last "answer is".
    """
    if (box := _find_last_box(text)) is not None:
        return box
    if found := _find_last(HASHES, text):
        return _clean(found) or None
    if found := _find_last(ANSWER_IS, text):
        return _read_sentence(found) or None
    return None


def extract_expected(expected: str) -> str:
    """Return the answer in `expected_answer`, which may be a worked solution."""
    marked = "####" in expected or "\\boxed" in expected
    return (extract(expected) if marked else None) or _clean(expected)


def are_equal(expected: str, answer: str) -> bool | None:
    """Whether two answers are equal as text or numbers; None if that needs algebra."""
    if _fold(expected) == _fold(answer):
        return True
    left, right = parse_number(expected), parse_number(answer)
    if left is None or right is None:
        return None
    distance = min(abs(a - b) for a in left.values for b in right.values)
    if distance == 0:
        return True
    return False if distance > NUMBERS_DIFFER else None


class Numeral(NamedTuple):
    """A number; `50%` has the values 50 and 0.5."""

    values: tuple[Fraction, ...]


def parse_number(text: str) -> Numeral | None:
    """`1,234`, `$5.50`, `12 apples`, `30^\\circ` or `50%` as a number; None for other texts."""
    found = NUMERAL.fullmatch(text.replace("−", "-")) if len(text) <= ANSWER_LIMIT else None
    if found is None or not re.search(r"\d", (found["whole"] or "") + (found["decimals"] or "")):
        return None
    if NO_UNITS & set(re.findall(r"[a-z]+", found["unit"].lower()) if found["unit"] else ()):
        return None
    whole = re.sub(r"\D", "", found["whole"] or "") or "0"
    value = Fraction(whole + (found["decimals"] or "").rstrip("."))
    value = -value if found["sign"] == "-" else value
    return Numeral((value, value / 100) if found["percent"] else (value,))


def _find_last_box(text: str) -> str | None:
    starts = [match.end() for match in BOX.finditer(text)]
    for start in reversed(starts):
        depth = 1
        for brace in re.finditer(r"(?<!\\)[{}]", text[start:]):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                return _clean(text[start:][: brace.start()]) or None
        # the response was cut off in its last box; earlier boxes are not final
        return None
    bare = _find_last(BARE_BOX, text)
    return _clean(bare) if bare else None


def _find_last(pattern: re.Pattern[str], text: str) -> str | None:
    found = None
    for match in pattern.finditer(text):
        found = match[1]
    return found


def _read_sentence(rest: str) -> str:
    rest = rest.strip().strip("*_ ")
    if found := INLINE_MATH.match(rest):
        return _clean(next(group for group in found.groups() if group))
    end = SENTENCE_END.search(rest)
    return _clean(rest[: end.start()] if end else rest)


def _clean(text: str) -> str:
    """Remove delimiters and the full stop around an answer."""
    while True:
        before = text
        text = text.strip().rstrip(TRAILING)
        for start, end in WRAPPERS:
            inner = text[len(start) : len(text) - len(end)]
            if text.startswith(start) and text.endswith(end) and start not in inner and inner:
                text = inner
        if text == before:
            return text


def _fold(text: str) -> str:
    text = FRACTION.sub(r"\\frac", SPACING.sub("", text.replace("−", "-")))
    return GAP.sub("", text.strip())
