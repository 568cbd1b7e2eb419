"""Compare answers without algebra: as texts, numbers, numerals of a base and sequences.

Pure functions on the standard library. They return None for comparisons that they cannot decide.
"""

import re
import unicodedata
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise, product
from typing import NamedTuple

ANSWER_LIMIT = 2_000
"""Longer answers are not parsed, because they are repetitions and not answers."""

MAX_DISTANCE = Fraction(1, 2_000_000)
"""Decimals count as a rounded value up to this distance: six places, as in math-verify."""

SAME, ROUNDED = Fraction(1, 10**6), Fraction(1, 2_000)
"""Largest distance relative to the value, so that small numbers are not all equal. The second
stands for four significant digits, and counts where a decimal is the other value rounded."""

NOTHING = re.compile(r"\\(?:left|right|displaystyle|!)(?![A-Za-z])")
SPACE = re.compile(r"\\(?:[,;: ]|(?:quad|qquad)\b)|~")
GAP = re.compile(r"(?<!\d)\s+|\s+(?!\d)")
"""White space, except between two digits: `4 2` is not `42`."""
FRACTION = re.compile(r"\\[dtc]frac(?![A-Za-z])")

FRACTIONS = "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒"
TYPED = str.maketrans(
    {
        "−": "-",
        **{
            each: r"\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKD", each).split("⁄"))
            for each in FRACTIONS
        },
    }
)
SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺"
RAISED = re.compile(rf"(?<=[\dA-Za-ln-z)}}\]])[{SUPERSCRIPTS}]+")
"""Typed exponents, except of a unit, as in `5 m²`."""
LOWERED = str.maketrans(SUPERSCRIPTS, "0123456789-+")

REPEATING = re.compile(
    r"(?<!\d)(\d{0,18})\.(\d{0,9})\\(?:overline|bar|dot)\s*(?:\{(\d{1,9})\}|(\d))(?!\s*_)"
)
"""A decimal whose last digits repeat."""

TEXT = re.compile(r"\\(?:text|mathrm|textrm|mbox)\s*\{([^{}]*)\}")

NUMERAL = re.compile(
    r"""(?P<sign>[-+]?)\s*(?:\\?[$€£¥]\s*)?
    (?:(?:(?P<mixed>\d+)(?:\s+|(?=\\)))?
        (?:\\frac\s*(?:\{\s*(?P<top>\d+)\s*\}|(?P<top1>\d))
            \s*(?:\{\s*(?P<bottom>\d+)\s*\}|(?P<bottom1>\d))
        |(?P<above>\d+)\s*/\s*(?P<below>\d+))
    |10\s*\^\s*(?:\{\s*(?P<alone>[-+]?\d{1,3})\s*\}|(?P<alone1>\d{1,3}))
    |(?P<whole>\d{1,3}(?:(?:,|\{\s*,\s*\}|\s)\d{3})+|\d+)?(?P<decimals>\.\d*)?
        (?:[eE](?P<e>[-+]?\d{1,3})
        |\s*(?:\\times|\\cdot|[×·*])\s*10\s*\^\s*(?:\{\s*(?P<power>[-+]?\d{1,3})\s*\}
            |(?P<power1>[-+]?\d{1,3})))?)
    (?:\s+(?P<scale>hundred|dozen|thousand|million|billion|trillion)\b)?
    \s*(?P<percent>\\?%|(?:percent(?:age)?|pct)\b)?
    (?P<unit>(?:\s+[A-Za-z]{2,}){0,3}|\s*\\(?:text|mathrm|textrm)\{[^{}]*\}(?:\^\{?[23]\}?)?
        |\s*(?:[ckm]?m|ft|mi|k?g|m?L|[JNC]|[A-Za-z]{2,})/(?:s|h|kg|L|[A-Za-z]{2,})(?:\^\{?2\}?)?
        |\s*(?:°|\^\{?\\circ\}?)\s*[CF]?)""",
    re.VERBOSE,
)
NO_UNITS = frozenset(
    re.findall(
        r"\w+",
        "and or to if not plus minus times over point percent hundred thousand million billion"
        " trillion dozen base pi sqrt sin cos tan cot sec csc log ln exp mod choose factorial"
        " squared cubed",
    )
)
"""Words that are not units, because they change the number before them."""

SCALES = {"dozen": 12, "hundred": 10**2, "thousand": 10**3, "million": 10**6}
SCALES |= {"billion": 10**9, "trillion": 10**12}

SCALE = re.compile(rf"\b(?:{'|'.join(SCALES)})\b", re.IGNORECASE)

PERCENT = re.compile(r"(.*=)?(.*?)\s*(?:\\?%|(?<![A-Za-z])(?:percent(?:age)?|pct))\s*", re.DOTALL)

BASES = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
BASE = {word: number for number, word in enumerate(BASES, 2)} | {"sixteen": 16}
BASED = re.compile(
    r"(?:[A-Za-z]\s*=\s*)?\(?(?:\\(?:text|mathrm)\{)?(?P<digits>-?[0-9A-Z](?:[0-9A-Z\s]|\{,\})*"
    r"(?:\.[0-9A-Z]+)?)\}?\)?"
    r"(?:_|\s*\(?(?=(?:in\s+)?base))(?:[{(\s]|\\(?:text|mathrm|textrm|rm)\b|in\b|base\b)*"
    rf"(?P<base>\d{{1,2}}|{'|'.join(BASE)})[\s)}}]*"
)
SUBSCRIPT = re.compile(
    r"(?<![A-Za-z\\}_.])(\d[0-9A-Fa-f]*)_(\{[^{}]*(?:\{[^{}]*\}[^{}]*)?\}|\\(?:text|mathrm)\{\w+\}|\w+)"
)
"""A numeral of a base within a longer answer."""

DOTS = re.compile(r"\\[lc]?dots[bcimo]?(?![A-Za-z])|…|⋯|\.\.\.+")
ENDLESS = re.compile(rf"(\d\.\d+)\s*(?:{DOTS.pattern})")
"""A decimal that goes on, as `0.333…`."""

CLOCK = re.compile(r"(\d{1,2})(?::(\d\d))?\s*([ap])\.?\s?m\b\.?", re.IGNORECASE)

CONGRUENCE = re.compile(
    r"(?:[A-Za-z]\s*(?:\\equiv|≡|=)\s*)?(-?\d{1,18}(?:\s*(?:,|\bor\b|\band\b)\s*-?\d{1,18})*)"
    r"\s*[,(]?\s*\\?[pb]?mod\s*\{?\s*(\d{1,18})\s*\}?\s*\)?"
)
"""Residues and their modulus."""

CONDITION = re.compile(
    r"[\s,;(]*\b(?:if|when|whenever|for|where|provided)\b(?:\s+that\b)?(?=[^A-Za-z]*[A-Za-z])"
)


class Reading(NamedTuple):
    """A number, and one unit of the last place of a decimal; 0 for exact numbers."""

    value: Fraction
    unit: Fraction = Fraction(0)


class Numeral(NamedTuple):
    """A number as written; `50%` reads as 50 and 0.5, and `0.5%` as 0.005 only."""

    readings: tuple[Reading, ...]


class Based(NamedTuple):
    digits: str
    base: int


class Progression(NamedTuple):
    """Integers `first`, `first + step`, … up to `last`, or without an end."""

    first: int
    step: int
    last: int | None


def are_equal(expected: str, answer: str) -> bool | None:
    """Whether two answers are equal as text or numbers; None if that needs algebra."""
    if fold(expected) == fold(answer):
        return True
    if (decided := _compare_based(expected, answer)) is not None:
        return decided
    for read in (_read_clock, _read_residues):
        one, other = read(unwrap(expected)), read(unwrap(answer))
        if one and other:
            return one == other
    left, right = parse_number(expected), parse_number(answer)
    if left is None or right is None:
        return None
    pairs = list(product(left.readings, right.readings))
    if len(pairs) == 4:  # percentages on both sides
        pairs = pairs[:1]
    return any(_are_close(*pair) for pair in pairs)


def _compare_based(expected: str, answer: str) -> bool | None:
    one, other = parse_based(expected), parse_based(answer)
    if one and not other and one.base > 10:
        other = parse_based(unwrap(answer).upper())
    if other and not one and other.base > 10:
        one = parse_based(unwrap(expected).upper())
    if one and other:
        return one == other
    if one or other:
        based, text = (one, answer) if one else (other, expected)
        return based is not None and based.digits == _strip_zeros(re.sub(r"[\s{,}]", "", text))
    return None


def _are_close(one: Reading, other: Reading) -> bool:
    distance, unit = abs(one.value - other.value), max(one.unit, other.unit)
    if distance == 0 or unit == 0:
        return distance == 0
    size = max(abs(one.value), abs(other.value))
    is_rounded = 2 * distance <= unit and distance <= ROUNDED * size
    return distance <= MAX_DISTANCE and (is_rounded or distance <= SAME * size)


def parse_number(text: str) -> Numeral | None:
    """`1,234`, `$5.50`, `12 apples`, `30^\\circ`, `3e8`, `1 1/4` or `50%` as a number; None for
    other texts."""
    plain = unwrap(text).lower() if SCALE.search(text) else spell_out(text)
    found = NUMERAL.fullmatch(plain) if len(text) <= ANSWER_LIMIT else None
    if found is None or NO_UNITS & set(re.findall(r"[a-z]+", (found["unit"] or "").lower())):
        return None
    number = _read_fraction(found) or _read_power(found) or _read_decimal(found)
    if number is None:
        return None
    factor = SCALES.get(found["scale"], 1)
    value, unit = number.value * factor, number.unit * factor
    value = -value if found["sign"] == "-" else value
    bare, hundredth = Reading(value, unit), Reading(value / 100, unit / 100)
    if not found["percent"]:
        return Numeral((bare,))
    return Numeral((bare, hundredth) if abs(value) >= 1 else (hundredth,))


def _read_fraction(found: re.Match[str]) -> Reading | None:
    top = found["top"] or found["top1"] or found["above"]
    bottom = found["bottom"] or found["bottom1"] or found["below"]
    if not top or not bottom or int(bottom) == 0:
        return None
    value = Fraction(int(top), int(bottom))
    if found["mixed"] is None:
        return Reading(value)
    return Reading(int(found["mixed"]) + value) if 0 < value < 1 else None


def _read_power(found: re.Match[str]) -> Reading | None:
    power = found["alone"] or found["alone1"]
    return Reading(Fraction(10) ** int(power)) if power else None


def _read_decimal(found: re.Match[str]) -> Reading | None:
    whole = re.sub(r"\D", "", found["whole"] or "")
    places = (found["decimals"] or "").removeprefix(".")
    if not whole + places:
        return None
    exponent = int(found["e"] or found["power"] or found["power1"] or 0)
    unit = Fraction(10) ** (exponent - len(places))
    value = int(whole + places) * unit
    return Reading(value, unit if found["decimals"] or exponent < 0 else Fraction(0))


def parse_based(text: str) -> Based | None:
    """`101_2` or `2A_{16}`; None for texts without a base."""
    if len(text) > ANSWER_LIMIT or not (found := BASED.fullmatch(unwrap(text))):
        return None
    base = int(BASE.get(found["base"], found["base"]))
    digits = re.sub(r"[\s{,}]", "", found["digits"])
    numerals = re.sub(r"\W", "", digits)
    is_sound = 2 <= base <= 36 and all(int(each, 36) < base for each in numerals)
    if not numerals.isdigit() and not is_sound:
        return None
    return Based(_strip_zeros(digits), base)


def _strip_zeros(digits: str) -> str:
    return re.sub(r"^(-?)0+(?=[0-9A-Z])", r"\1", digits)


def _read_clock(text: str) -> tuple[int, int, str] | None:
    """The hour, the minute, and `a` or `p`, of a time such as `7:30 p.m.`."""
    found = CLOCK.fullmatch(text)
    return (int(found[1]), int(found[2] or 0), found[3].lower()) if found else None


def _read_residues(text: str) -> tuple[int, set[int]] | None:
    """The modulus, and the residues modulo it, of a congruence."""
    found = CONGRUENCE.fullmatch(text) if len(text) <= ANSWER_LIMIT else None
    modulus = int(found[2]) if found else 0
    if not found or not modulus:
        return None
    return modulus, {int(each) % modulus for each in re.findall(r"-?\d+", found[1])}


def read_percent(expected: str, answer: str) -> Iterator[tuple[str, str]]:
    """The pairs to compare: `50%` stands for 50 and 0.5, and percentages for themselves."""
    one, other = PERCENT.fullmatch(expected), PERCENT.fullmatch(answer)
    bare = [(each[1] or "") + each[2] if each else None for each in (one, other)]
    yield bare[0] or expected, bare[1] or answer
    if one and not other:
        yield f"{one[1] or ''}\\frac{{{one[2]}}}{{100}}", answer
    if other and not one:
        yield expected, f"{other[1] or ''}\\frac{{{other[2]}}}{{100}}"


def split_condition(text: str) -> tuple[str, str]:
    """A value, and the condition under which it holds; an empty one if it always does."""
    value, *conditions = CONDITION.split(unwrap(text), maxsplit=1)
    condition = "".join(conditions)
    return value if condition else text, re.sub(r"[\s{}().,]", "", condition).lower()


def pair_items(expected: str, answer: str) -> list[tuple[str, str]] | bool | None:
    """How to compare sequences with dots: the pairs of items that must be equal, or the verdict.
    None for answers without dots."""
    expected, answer = ENDLESS.sub(r"\1", expected), ENDLESS.sub(r"\1", answer)
    if not DOTS.search(expected) and not DOTS.search(answer):
        return None
    one, other = _split(expected), _split(answer)
    left, right = _read_progression(one), _read_progression(other)
    if left and right:
        return left == right
    if _is_continued(one, other) or _is_continued(other, one):
        return True
    if len(one) != len(other) or [each == "…" for each in one] != [each == "…" for each in other]:
        return False
    return [pair for pair in zip(one, other, strict=True) if pair != ("…", "…")]


def _is_continued(short: list[str], long: list[str]) -> bool:
    """Whether the second sequence spells out more integers before its dots, by the rule of both:
    a common ratio, or common second differences."""
    if short.count("…") != 1 or long.count("…") != 1:
        return False
    head, full = short[: short.index("…")], long[: long.index("…")]
    is_longer = 3 <= len(head) < len(full) and full[: len(head)] == head
    if not is_longer or short[len(head) :] != long[len(full) :]:
        return False
    if not all(re.fullmatch(r"-?\d{1,9}", each) for each in full):
        return False
    numbers = list(map(int, full))
    ratios = [a * c == b * b for a, b, c in zip(numbers, numbers[1:], numbers[2:], strict=False)]
    if all(numbers) and all(ratios[: len(head) - 2]):
        return all(ratios)
    steps = [b - a for a, b in pairwise(numbers)]
    is_one_way = min(steps) > 0 or max(steps) < 0
    return is_one_way and len({b - a for a, b in pairwise(steps)}) == 1


def _split(text: str) -> list[str]:
    """The items of a sequence, with its signs of addition and its brackets as items."""
    text = DOTS.sub("…", SPACE.sub(" ", NOTHING.sub("", text))).strip()
    text = re.sub(r"^\\?\{(.*?)\\?\}$", r"\1", text, flags=re.DOTALL)
    items, depth = [""], 0
    for each in re.split(r"([,;+{}()\[\]…])", text):
        depth += (each in "{([") - (each in "})]") if each else 0
        if depth == 0 and each and each in ",;+":
            items += ["+", ""] if each == "+" else [""]
        else:
            items[-1] += each
    return [each for each in map(str.strip, items) if each]


def _read_progression(items: list[str]) -> Progression | None:
    """Integers with a common difference, with dots or in full; None for other sequences."""
    at = items.index("…") if "…" in items else len(items)
    texts = [each for each in items if each != "…"]
    if len(items) - len(texts) > 1 or not all(re.fullmatch(r"-?\d{1,9}", each) for each in texts):
        return None
    head, tail = [int(each) for each in texts[:at]], [int(each) for each in texts[at:]]
    if len(head) < (2 if tail else 3):
        return None
    step = head[1] - head[0]
    if step == 0 or any(b - a != step for run in (head, tail) for a, b in pairwise(run)):
        return None
    if "…" in items and not tail:
        return Progression(head[0], step, None)
    gap = (tail[0] - head[-1]) if tail else step
    is_whole = gap % step == 0 and gap // step >= 1
    return Progression(head[0], step, (tail or head)[-1]) if is_whole else None


def unwrap(text: str) -> str:
    """The text as `spell_out` returns it, with plain words for those in `\\text`."""
    return TEXT.sub(r" \1 ", spell_out(text)).strip()


def write_repeating(text: str) -> str:
    """A fraction for each decimal whose last digits repeat."""
    return REPEATING.sub(_write_fraction, text)


def _write_fraction(found: re.Match[str]) -> str:
    start, repeated = found[1] + found[2], found[3] or found[4]
    top = int(start + repeated) - int(start or 0)
    bottom = (10 ** len(repeated) - 1) * 10 ** len(found[2])
    return f"\\frac{{{top}}}{{{bottom}}}"


def spell_out(text: str) -> str:
    """The text with LaTeX for typed signs, and without commands that change only its look."""
    text = write_repeating(text)
    text = RAISED.sub(lambda found: f"^{{{found[0].translate(LOWERED)}}}", text.translate(TYPED))
    return FRACTION.sub(r"\\frac", SPACE.sub(" ", NOTHING.sub("", text))).strip()


def fold(text: str) -> str:
    return GAP.sub("", spell_out(text))
