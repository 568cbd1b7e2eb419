"""Find the letter of the chosen option in a text.

Pure functions on the standard library, because a worker process of `app.py` loads this file.
Formatting is removed first, then the letter is read. Where a text may mean several options, the
answer is None.
"""

import re
import unicodedata
from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Literal

GradingMode = Literal[
    "strict_single_letter_boxed", "lenient_boxed", "lenient_answer_colon", "lenient_answer_colon_md"
]

Options = list[dict[str, str | None]]
"""`[{"A": "text"}, …]`; columnar datasets fill the other letters with null."""

BOX = re.compile(r"\\boxed\s*\{")
BRACE = re.compile("[{}]")

WRAPPERS = (
    "text|textbf|textrm|textsf|textit|texttt|textsc|textsl|textup|textmd|textnormal|textcircled"
    "|mathbf|mathrm|mathsf|mathit|mathtt|mathnormal|boldsymbol|bm|pmb|operatorname|emph"
    "|underline|uline|mbox|hbox|fbox|boxed|ensuremath|circled"
)
"""Commands that change only the appearance of their argument; `\\mathcal` makes another symbol."""
SWITCHES = (
    "rm|bf|it|sf|tt|sl|sc|em|rmfamily|bfseries|itshape|sffamily|ttfamily|upshape|normalfont"
    "|displaystyle|textstyle|small|large|Large|LARGE|huge|Huge|left|right|bigl?|bigr|Bigl?|Bigr"
)
"""Commands without an argument that change only the appearance of the text after them."""
COLOR = r"\\(?:text)?color(?:box)?\s*\{[^{}]*\}"
LATEX = re.compile(
    rf"(?P<opens>(?:\\(?:{WRAPPERS})\*?\s*|{COLOR}\s*)\{{)"
    rf"|(?P<nothing>\\(?:{SWITCHES})(?![A-Za-z])\s*|{COLOR}|\\[()!]|(?<!\\)\$)"
    r"|(?P<space>\\[\s,;:]|\\q?quad(?![A-Za-z])|~)|\\(?P<plain>[%&#$_])|(?P<brace>[{}])"
)

LONE_LETTER = re.compile(
    r"[^A-Za-z\d+\-−±√/^¬!|]*([A-Z])(?![\d^²³/+−%]|_[\w{]|-\d|(?<!['‘].)['’′])[^A-Za-z]*"
)
"""One letter, unless it is part of a formula or a unit: `2B`, `B^2`, `B'`, `-B`, `|B|`, `5 C`."""
NOUN = (
    r"(?:the\s+)?(?:(?:correct|right|best|final)\s+)*(?:answer|option|choice|letter|one)\b"
    r"(?:\s+(?:is|would be|must be))?\s*:?\s*"
)
LEADING_LETTER = re.compile(rf"\s*(?:(?i:{NOUN}))?[(\[*_]*([A-Z])(?![A-Za-z\d'’])[*_]*")
LABEL_END = re.compile(r"\s*[:).\]]|\s+[-–—]|[-–—]\s")
OTHER_LABEL = re.compile(
    r"(?:^|[,;/&|]|\b(?:and|or)\b)[\s(\[]*([A-Z])(?=\s*(?:$|[:).\]\-,;/&|]|(?:and|or)\b))", re.I
)

NEGATES = re.compile(
    r"\b(?:not|never|no|neither|nor|cannot|without|except|opposite|instead|rather|unlike|false"
    r"|wrong|incorrect|hardly|barely|scarcely|unlikely|excluding|anything but|other than|far from"
    r"|fail(?:s|ed)?)\b|n['’]t\b"
)
QUANTIFIES = re.compile(
    r"[\d+\-−±*×·÷/^_√%\\<>≤≥]|\b(?:half|twice|double|triple|times|hundred|thousand|million"
    r"|billion|more|less|fewer|greater|least|most|above|below|over|under|squared|cubed)\b"
)
"""Turns a number or a formula next to it into another one."""
WORD = re.compile(r"[^\W\d_]{2}")
JOINS_BEFORE = re.compile(r"[^\W\u3040-\u9fff\uac00-\ud7af]|[\^_\\.\-−–]")
"""Belongs to the same word or number as the text after it; Chinese, Japanese and Korean put no
spaces between words."""
JOINS_AFTER = re.compile(r"[^\W\u3040-\u9fff\uac00-\ud7af]|[\^_]|[.,\-]\w|(?<=\d)!")
CUT = "\0"

ANSWER_LIMIT = 10_000
"""Only so many characters of an answer are read. It ends with its line, which may be very long."""
ANSWER = re.compile(r"answer[*_]{0,2}\s*:[*_\s]*(.+)", re.I)
MARKS = "*_` \t\n\r.,;:"
LEAD_IN = re.compile(rf"^{NOUN}", re.I)
QUOTED = re.compile(r'^["“]([^"“”]*)["”]$')
EMPHASIS = re.compile(r"[*`]+|(?<!\w)_+|_+(?!\w)")
BRACKETED = re.compile(r"(?<![A-Za-z\d\\])[(\[{\"“‘]{1,3}([A-Za-z])[)\]}\"”’]{1,3}")
ONE_LETTER = re.compile(r"(?<![A-Za-z\d])(?<![A-Za-z]['’-])[A-Za-z](?![A-Za-z\d#]|\+\+)")
PART_OF_WORD = re.compile(r"[A-Za-z][-'’][a-z]")
AFTER_LETTER = "is|was|because|since|as|due|and|or|nor|for|by|with|but|though|not|which|while"
ARTICLE = re.compile(
    rf"[Aa] (?!(?:{AFTER_LETTER}|would|will|can|must|should|seems|fits|matches|follows|the|this"
    r"|that|it|they|we)\b)[a-z]"
)
PRONOUN = re.compile(rf"[Ii] (?!(?:{AFTER_LETTER})\b)[a-z]")
REJECTED_BEFORE = re.compile(
    r"(?:\b(?:not|cannot|neither|nor|than|doubt|instead of|unlike|except|eliminated?|excluded?"
    r"|rul(?:e|ed|ing) out)|n['’]t)(?: (?:be|choose|pick|option|choice|answer|the))* $|\d ?$",
    re.I,
)
"""What is before a letter that is not chosen, or that is a unit: `rather than B`, `5 A`."""
REJECTED_BEFORE_LENGTH = 60
REJECTED_AFTER = re.compile(
    r" (?:(?:is|was|seems|would be|can be) (?:\w+ )?"
    r"(?:wrong|incorrect|false|not|invalid|impossible|out|eliminated|excluded)\b"
    r"|(?:is|was|does|can)(?:n['’]t|not)\b)"
)
LISTED = re.compile(
    r"[).]? ?\(?(?:[,;/|&<>=]|[,;]? ?\b(?:and/or|and|or)\b)"
    r"(?: ?\b(?:maybe|perhaps|possibly|also|even|both|option|choice|answer))* ?| {1,2}",
    re.I,
)
JOINED = re.compile(r" ?(?:[/|&<>=]|\b(?:and/or|and|or)\b) ?", re.I)
UNCLEAR = ""
"""Stands for an answer that lists several letters or only rejects some. Answers before it do not
count either."""

LOCAL_LETTERS = str.maketrans(dict(zip("أبجدঅবডঢ", "ABCDABCD", strict=True)))
"""Option letters in Arabic and Bengali datasets (MMMLU)."""
LOCAL_LETTER = re.compile("[أبجدঅবডঢ]")


def extract(text: str, options: Options, mode: GradingMode, prefix: str = "") -> str | None:
    """Return the chosen letter according to `mode`, if it is in `options`, else None.

    `lenient_answer_colon_md` also reads the text after `prefix`, and then the last box.
    """
    if mode == "lenient_answer_colon":
        return _read_last(_find_answers(text), options, _read_exactly_or_refuse) or None
    if mode == "lenient_answer_colon_md":
        letter = _read_last(_find_answers(text, prefix), options, _read_prose)
        if letter or not prefix:
            return letter or None
    box = find_last_box(text)
    if box is None:
        return None
    letter = _read_letter(box, options)
    if letter is None and mode == "lenient_boxed":
        letter = _find_only_option(box, options)
    return letter


def read_patterns(template_metadata: dict[str, Any] | None) -> list[str]:
    """Return the patterns in `output_regex`; raise ValueError if one is not a text."""
    given = (template_metadata or {}).get("output_regex") or []
    patterns = [given] if isinstance(given, str) else given
    if not (isinstance(patterns, list) and all(isinstance(pattern, str) for pattern in patterns)):
        raise ValueError(f"output_regex must be text or a list of texts, not {given!r:.80}")
    return patterns


def read_prefix(template_metadata: dict[str, Any] | None) -> str:
    """Return `answer_prefix`, the words before the answer; raise ValueError if it is not a text."""
    prefix = (template_metadata or {}).get("answer_prefix") or ""
    if not isinstance(prefix, str):
        raise ValueError(f"answer_prefix must be text, not {prefix!r:.80}")
    return prefix


def match_patterns(patterns: list[str], text: str, options: Options) -> str | None:
    """Return the letter found by the first pattern that finds one.

    The letter need not be in `options`, because rows with patterns may list options incompletely.
    Runs in a worker, because compiling a pattern of a row may take minutes.
    """
    for pattern in [_compile(pattern) for pattern in patterns]:
        matches = deque(pattern.finditer(text), maxlen=1)
        if not matches:
            continue
        groups = matches[0].groups() or (matches[0][0],)
        captured = next((group for group in groups if group), "")
        letter = unicodedata.normalize("NFKC", captured).translate(LOCAL_LETTERS).strip().upper()
        if len(letter) == 1 and letter.isalpha():
            return letter
        if (named := _read_exact(captured, options)) is not None:
            return named
    return None


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(
            f"output_regex {pattern!r:.80} is not a regular expression: {error}"
        ) from None


def find_last_box(text: str) -> str | None:
    r"""Return the content of the last `\boxed{…}`; None if it is not closed."""
    found = deque(BOX.finditer(text), maxlen=1)
    if not found:
        return None
    start, depth = found[0].end(), 1
    for brace in BRACE.finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[start : brace.start()].strip()
    return None


def _find_answers(text: str, prefix: str = "") -> list[str]:
    """Return the texts after `Answer:` and `prefix`, each to the end of its line, in order."""
    text = unicodedata.normalize("NFKC", text)
    found = [(answer.start(), answer[1]) for answer in ANSWER.finditer(text)]
    if prefix := _lower(unicodedata.normalize("NFKC", prefix)):
        end = 0
        for part in _lower(text).split(prefix):
            start, end = end, end + len(part)
            if start:
                found.append((start, text[start:end].lstrip().partition("\n")[0]))
            end += len(prefix)
    return [answer[:ANSWER_LIMIT] for _, answer in sorted(found)]


def _lower(text: str) -> str:
    """Convert to lower case and keep the length."""
    return "".join(low if len(low := each.lower()) == 1 else each for each in text)


def _read_last(
    answers: list[str], options: Options, read: Callable[[str, Options], str | None]
) -> str | None:
    """Return what `read` finds in the last answer in which it finds anything."""
    letters = (read(answer, options) for answer in reversed(answers))
    return next((letter for letter in letters if letter is not None), None)


def _read_exactly_or_refuse(answer: str, options: Options) -> str | None:
    """Return UNCLEAR for prose that names a letter."""
    letter = _read_exact(answer, options)
    return UNCLEAR if letter is None and _read_prose(answer, options) is not None else letter


def _read_exact(answer: str, options: Options) -> str | None:
    """Return the letter if `answer` is a letter, a labelled option or the text of an option."""
    answer = _drop_formatting(answer).strip(MARKS)
    bare = answer.strip("()[]" + MARKS).translate(LOCAL_LETTERS).upper()
    if bare in _list_letters(options):
        return bare
    return _read_letter(answer, options) or _find_option(answer, options)


def _read_letter(box: str, options: Options) -> str | None:
    """Return the letter that stands alone in `box` or labels the rest of it."""
    letters, inner = _list_letters(options), _drop_formatting(box)
    found = LONE_LETTER.fullmatch(inner)
    if found:
        return found[1] if found[1] in letters else None
    found = LEADING_LETTER.match(inner)
    if not found or found[1] not in letters or _find_option(inner, options):
        return None
    letter, rest = found[1], inner[found.end() :]
    text = rest.strip("()[]=-–—" + MARKS)
    if not text or _find_option(text, options) == letter:
        return letter
    if not (end := LABEL_END.match(rest)):
        return None
    others = {other[1].upper() for other in OTHER_LABEL.finditer(rest[end.end() :].strip())}
    return None if others & letters - {letter} else letter


def _find_only_option(box: str, options: Options) -> str | None:
    """Return the option whose text `box` is, or else the only one that it names."""
    if (letter := _find_option(box, options)) is not None:
        return letter
    rest, named, is_value = _fold(box), set[str](), False
    for letter, text in sorted(_each_option(options), key=lambda option: -len(option[1])):
        if text and (left := _cut_out(rest, text)) != rest:
            rest, is_value = left, is_value or _is_value(text)
            named.add(letter)
    differs = NEGATES.search(rest) or (is_value and QUANTIFIES.search(rest))
    return named.pop() if len(named) == 1 and not differs else None


def _is_value(text: str) -> bool:
    """Whether an option is a number or a formula."""
    return any(map(str.isdigit, text)) or not WORD.search(text)


def _cut_out(text: str, part: str) -> str:
    """Cut `part` out of `text`, except inside of longer words and numbers."""
    kept, start = list[str](), 0
    while (found := text.find(part, start)) >= 0:
        end = found + len(part)
        inside = JOINS_BEFORE.match(text, max(0, found - 1), found) or JOINS_AFTER.match(text, end)
        kept += [text[start:found], part if inside else CUT]
        start = end
    return "".join(kept) + text[start:]


def _read_prose(answer: str, options: Options) -> str | None:
    """Return the letter that `answer` begins with, otherwise the last one that stands alone in it;
    UNCLEAR if it lists several or only rejects some."""
    answer = LOCAL_LETTER.sub(lambda one: f" {one[0].translate(LOCAL_LETTERS)} ", answer)
    answer = EMPHASIS.sub("", " ".join(_drop_formatting(answer).split())).strip(MARKS)
    answer = LEAD_IN.sub("", BRACKETED.sub(r"\1 ", answer)).strip(MARKS)
    letters = _list_letters(options)
    named = [one for one in ONE_LETTER.finditer(answer) if not _is_word(answer, one, options)]
    chosen = [one for one in named if not _is_rejected(answer, one)]
    leads = bool(chosen) and chosen[0].start() == 0
    for one, other in pairwise(chosen):
        if not _are_listed(one, other, letters):
            if leads:
                break
        elif one[0].upper() != other[0].upper():
            return UNCLEAR
    alone = chosen[:1] if leads else [one for one in chosen if one[0].isupper()][-1:]
    if not alone:
        return UNCLEAR if any(one[0] in letters for one in named) else None
    letter = alone[0][0].upper()
    return letter if letter in letters else None


def _is_word(answer: str, letter: re.Match[str], options: Options) -> bool:
    """Whether `letter` is an article, a pronoun or part of a word, and no label of its option."""
    start, end = letter.span()
    if not any(word.match(answer, start) for word in (ARTICLE, PRONOUN, PART_OF_WORD)):
        return False
    return bool(start) or _find_option(answer[end:].lstrip(" -"), options) != letter[0].upper()


def _is_rejected(answer: str, letter: re.Match[str]) -> bool:
    start, end = letter.span()
    before = answer[max(0, start - REJECTED_BEFORE_LENGTH) : start]
    return bool(REJECTED_BEFORE.search(before) or REJECTED_AFTER.match(answer, end))


def _are_listed(one: re.Match[str], other: re.Match[str], letters: set[str]) -> bool:
    """Whether two letters belong to one list, which may name letters without an option (`D/H`)."""
    known = [each[0].upper() in letters for each in (one, other)]
    gap = LISTED if all(known) else JOINED if any(known) else None
    return gap is not None and bool(gap.fullmatch(one.string, one.end(), other.start()))


def _find_option(answer: str, options: Options) -> str | None:
    """Return the letter of the only option with this text, ignoring formatting and case."""
    wanted = _close_up(_fold(answer))
    found = {letter for letter, text in _each_option(options) if _close_up(text) == wanted}
    return found.pop() if len(found) == 1 else None


def _list_letters(options: Options) -> set[str]:
    return {
        key.upper()
        for option in options
        for key, value in option.items()
        if len(key) == 1 and key.isalpha() and value is not None
    }


def _each_option(options: Options) -> Iterator[tuple[str, str]]:
    letters = _list_letters(options)
    for option in options:
        for key, value in option.items():
            if value is not None and key.upper() in letters:
                yield key.upper(), _fold(value)


def _drop_formatting(text: str) -> str:
    """Remove LaTeX commands that change only the appearance, in one pass at any depth."""
    closing = list[str]()

    def replace(token: re.Match[str]) -> str:
        match token.lastgroup:
            case "opens":
                closing.append("")
            case "space":
                return " "
            case "plain":
                return token["plain"]
            case "brace" if token[0] == "{":
                closing.append("}")
                return "{"
            case "brace":
                return closing.pop() if closing else "}"
            case _:
                pass
        return ""

    return LATEX.sub(replace, text)


def _fold(text: str) -> str:
    text = unicodedata.normalize("NFKC", _drop_formatting(text)).replace("−", "-")
    return QUOTED.sub(r"\1", " ".join(text.lower().split()).rstrip(MARKS))


def _close_up(text: str) -> str:
    """Remove spaces between a number and its unit, and around signs."""
    return re.sub(r"(?<=\d) (?=[^\W\d])|(?<=[-+*/=<>]) | (?=[-+*/=<>])", "", text)
