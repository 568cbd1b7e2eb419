"""Find the answer in a text. Pure functions on the standard library."""

import re
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
BARE_BOX = re.compile(r"\\boxed\s+([^\s$.,;{}]+)")
TAG = re.compile(r"<answer>([^<]*(?:<(?!/?answer>)[^<]*)*)</answer>", re.IGNORECASE)
HASHES = re.compile(r"####[ \t]*([^\n]+)")
ANSWER_IS = re.compile(
    r"answers?(?: to [^.\n]{1,80}?)?[*_]*\s*(?:\b(?:is|are)\b|[:=])[\s:*_]*"
    r"|^[ \t#*_]*(?:the[ \t]+)?(?:final[ \t]+)?answer[ \t*_]*(?:\n\s*|(?=\$|\\[(\[]))",
    re.IGNORECASE | re.MULTILINE,
)
"""Before an answer: "answer is", "Answer:", or a heading "Final Answer" on a line of its own."""

HOPE = re.compile(
    r"final answer is\b[\s:]*([^\n]{1,200}?)[.\s]*I hope it is correct", re.IGNORECASE
)
"""The last line that the prompt of Minerva asks for; it counts even after a box."""

LEAD = re.compile(
    r"(?:(?:therefore|thus|hence|so|then|now|simply|just|exactly|approximately|about|equal to"
    r"|clearly|indeed|actually|really|still|definitely)\b"
    r"|[:=≈,]|\\approx)\s*",
    re.IGNORECASE,
)
JUDGED = re.compile(
    r"(?:indeed |now |also |thus |therefore )?(?:correct|incorrect|right|wrong|clear|obvious"
    r"|verified|confirmed|consistent|reasonable|valid|complete|above|below"
    r"|(?:obtained|found|given|derived|computed|calculated) (?:by|as|from|in|with|using))\b",
    re.IGNORECASE,
)
"""What a text says about its answer, as in "so the answer is correct"."""

SENTENCE_LIMIT = 2_000
"""Only so many characters after "answer is" are read."""
SENTENCE_END = re.compile(r"[.!?](?=\s|\*|<|$)")
CLAUSE = re.compile(
    r",?\s+(?:if|when|where|since|because|as long as|so that|not|rather than|instead of)\b",
    re.IGNORECASE,
)
SHORT = re.compile(r"[-+−]?[$€£]?[\d.,/^]+(?:\s[A-Za-z]+){0,2}")
STATEMENT = re.compile(
    r"[A-Za-z][^\n]*\s(?:is|are|equals|equal to|has|have|costs?)\s+"
    r"(?:(?:equal to|about|approximately|exactly)\s+)?([^\n]+)"
)
"""A sentence such as "The largest $n$ is 34"."""

MATH = re.compile(r"\$\$(.+?)\$\$|\$((?:[^$\\]|\\.)+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)

PERCENT = re.compile(r"\s*(?:\\?%|percent)")
JOINT = re.compile(r"\s*(?:,\s*(?:and\b|or\b)?|and\b|or\b|=)\s*(?=[$\\\d+−-])")
"""Between two formulas of a list or of an equation."""
PLAIN = re.compile(r"[-+−]?\d[\d.,/^]*\b")

TRAILING = ".,;" + "".join(filter(str.isspace, map(chr, range(0x3001))))
WRAPPERS = [("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"), ("`", "`")]

CLOSE, NEAR = 10, 70
"""Boxes with at most so many characters between them are one list; in the second case only with a
separator there, as in math-verify."""

SEPARATOR = re.compile(r"[,;\n]|\b(?:and|or)\b")
RETRACTION = re.compile(
    r"\b(?:no|not|wait|but|actually|rather|instead|sorry|correct(?:ion|ed)?|wrong|so|thus|hence"
    r"|therefore|then|final|answer)\b",
    re.IGNORECASE,
)
"""Words after which a box stands for an earlier one, or follows from it."""

PARTS = re.compile(r"\\pm|[,;]|\b(?:and|or)\b|\\boxed")
NO_PARTS = re.compile(r"[(\[][^()\[\]]*[)\]]|\d(?:,|\{,\})\d{3}(?!\d)")
"""Points, intervals and thousands, whose commas make no list."""


class Box(NamedTuple):
    start: int
    end: int
    content: str


def extract(text: str, expected: str = "") -> str | None:
    r"""Return the answer of a response, or None: what stands between its last `<answer>` tags,
    otherwise its last `\boxed{…}`, otherwise the text after its last `####`, otherwise after its
    last "answer is". Where `expected` is a list, adjacent boxes are one list.
    """
    tag = _find_last(TAG, text)
    if tag and tag[1].strip() and not BOX.search(text, tag.end()):
        return extract(tag[1], expected) or _read_tag(tag[1]) or None
    boxes = _find_boxes(text)
    if boxes is None:
        return None
    if hope := _find_last(HOPE, text):
        is_last = not boxes or hope.start() > boxes[-1].end
        if is_last and not BOX.search(hope[1]):
            return _read_sentence(hope[1]) or None
    if boxes:
        return _join(boxes) if is_list(expected) else boxes[-1].content or None
    if bare := _find_last(BARE_BOX, text):
        return _clean(bare[1]) or None
    if hashes := _find_last(HASHES, text):
        return _clean(hashes[1]) or None
    return next(_find_stated(text), None)


def extract_expected(expected: str) -> str:
    """Return the answer in `expected_answer`, which may be a worked solution."""
    marked = "####" in expected or "\\boxed" in expected
    return (extract(expected, expected) if marked else None) or _clean(expected)


def is_list(answer: str) -> bool:
    """Whether an answer has several items, as `1, 2` or `\\{1, 2\\}`."""
    return PARTS.search(NO_PARTS.sub("", answer)) is not None


def _find_boxes(text: str) -> list[Box] | None:
    """Boxes from the last one back, as far as they form one list, in the order of the text; None if
    the response was cut off in its last box, because earlier boxes are not final."""
    boxes: list[Box] = []
    for match in reversed(list(BOX.finditer(text))):
        end = _find_closing(text, match.end(), boxes[0].start if boxes else len(text))
        if end is None:
            return boxes or None
        if boxes and not _are_items(text[end + 1 : boxes[0].start]):
            return boxes
        boxes.insert(0, Box(match.start(), end, _clean(text[match.end() : end])))
    return boxes


def _find_closing(text: str, start: int, end: int) -> int | None:
    depth = 1
    for brace in re.finditer(r"(?<!\\)[{}]", text[start:end]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return start + brace.start()
    return None


def _are_items(between: str) -> bool:
    """Whether boxes with this text between them are items of one list."""
    if RETRACTION.search(between):
        return False
    return len(between) <= CLOSE or (len(between) <= NEAR and SEPARATOR.search(between) is not None)


def _join(boxes: list[Box]) -> str | None:
    """The items of a list of boxes; the last box, if it is a list itself."""
    if is_list(boxes[-1].content):
        return boxes[-1].content
    return ", ".join(dict.fromkeys(box.content for box in boxes if box.content)) or None


def _find_last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = deque(pattern.finditer(text), maxlen=1)
    return found[0] if found else None


def _find_stated(text: str) -> Iterator[str]:
    """What follows "answer is", from the last one back."""
    for match in reversed(list(ANSWER_IS.finditer(text))):
        rest = text[match.end() : match.end() + SENTENCE_LIMIT]
        found = "" if JUDGED.match(rest) else _read_sentence(rest)
        if found:
            yield found


def _read_tag(text: str) -> str:
    """A text that is all answer; of a sentence, what it states."""
    text = _clean(text)
    is_sentence = len(text) <= SENTENCE_LIMIT and STATEMENT.fullmatch(text)
    return _read_sentence(text) if is_sentence else text


def _read_sentence(rest: str) -> str:
    rest = rest.strip().strip("*_ ")
    while lead := LEAD.match(rest):
        rest = rest[lead.end() :].lstrip("*_ ")
    if found := MATH.match(rest):
        return _read_formulas(found, rest[found.end() :])
    rest = rest.partition("\n")[0]
    end = SENTENCE_END.search(rest)
    sentence = _clean((rest[: end.start()] if end else rest).strip("*_ "))
    main_clause = CLAUSE.split(sentence)[0]
    if SHORT.fullmatch(main_clause):
        return main_clause
    stated = STATEMENT.fullmatch(main_clause)
    if stated and re.match(r"[-+−]?[\d.]|[$\\]", stated[1]):
        return _read_sentence(stated[1])
    return sentence


def _read_formulas(first: re.Match[str], rest: str) -> str:
    """A formula, with its sign of percent, and the formulas that go on a list or an equation."""
    formula = _clean(next(filter(None, first.groups())))
    if after := PERCENT.match(rest):
        return formula + after[0]
    joined = JOINT.match(rest)
    following = MATH.match(rest, joined.end()) if joined else None
    if joined and following:
        sign = "=" if "=" in joined[0] else ","
        return f"{formula} {sign} {_read_formulas(following, rest[following.end() :])}"
    if joined and (number := PLAIN.match(rest, joined.end())):
        return f"{formula} = {number[0]}" if "=" in joined[0] else formula
    return formula


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
