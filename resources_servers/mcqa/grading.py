"""Find the letter of the chosen option in a text.

Pure functions on the standard library, because a worker process of `app.py` loads this file.
"""

import re
import unicodedata
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal

GradingMode = Literal[
    "strict_single_letter_boxed", "lenient_boxed", "lenient_answer_colon", "lenient_answer_colon_md"
]

Options = list[dict[str, str | None]]
"""`[{"A": "text"}, …]`; columnar datasets fill the other letters with null."""

BOX = "\\boxed{"
BRACE = re.compile("[{}]")
LONE_LETTER = re.compile(r"[^A-Za-z]*([A-Z])[^A-Za-z]*")
NAMED = re.compile(r"^\W*(?:option|choice|answer|letter)\b\W*(?=[A-Z]\b)", re.I)
LABELLED = re.compile(r"\s*[(\[]?([A-Z])\s*[:).\-\]]")
COMMAND = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|md|up|normal)?|emph|math(?:bf|it|rm|sf|tt|normal)|boldsymbol|bm"
    r"|operatorname\*?|underline|uline|[mhf]box|text?color\{[^{}]*\}|color\{[^{}]*\})\s*(?=\{)"
)
"""Commands around text that change how it looks, and not what it says."""

SWITCH = re.compile(
    r"\\(?:rm|bf|it|sf|tt|em|displaystyle|left|right|quad|qquad|large|Large|LARGE|huge|Huge"
    r"|bfseries|itshape|ttfamily|sffamily|rmfamily)(?![A-Za-z])"
)
"""Commands of the same kind without braces of their own."""

SPACES = re.compile(r"\\[ ,;:!]|~")
ANSWER_COLON = re.compile(r"answer[*_]{0,2}\s*[:：][*_\s]{0,3}(.+)", re.I)

MARKED_ANSWER = re.compile(r"answer[*_]{0,2}\s*[:：][*_\s]{0,2}(.+)", re.I)
MARKS = "*_` \t\n\r.,;:"
ONE_LETTER = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
FIRST_LETTER = re.compile(r"[A-Za-z](?![A-Za-z0-9])")
STANDALONE = re.compile(r"\b[A-Z]\b")
PRONOUN = re.compile(r"\bI\b(?=\s+[a-z]|['’][a-z])")
DENIED = re.compile(r"\b(?:not|never|no|neither|nor|except|without|cannot|false)\b|n['’]t\b", re.I)
SEPARATOR = re.compile(r"\s*[/|&,;]\s*|\s+(?:or|and)\s+|\s+", re.I)

LOCAL_LETTERS = str.maketrans(dict(zip("أبجدঅবডঢ", "ABCDABCD", strict=True)))
"""Option letters in Arabic and Bengali datasets (MMMLU)."""
LOCAL_LETTER = re.compile("[أبجدঅবডঢＡＢＣＤ]")


def extract(text: str, options: Options, mode: GradingMode) -> str | None:
    """Return the chosen letter according to `mode`, if it is in `options`, else None."""
    letters = _list_letters(options)
    if mode == "lenient_answer_colon":
        return _read_after_colon(text, options, letters)
    if mode == "lenient_answer_colon_md":
        answers = reversed(MARKED_ANSWER.findall(text))
        return next(filter(None, (_read_marked(answer, letters) for answer in answers)), None)
    box = find_last_box(text)
    if box is None:
        return None
    box = _unwrap(box)
    letter = _read_letter(box, letters)
    if letter is None and mode == "lenient_boxed":
        letter = _find_only_option(box, options, letters)
    return letter


def read_patterns(template_metadata: dict[str, Any] | None) -> list[str]:
    """Return the patterns in `output_regex`; raise ValueError if they are no texts."""
    given = (template_metadata or {}).get("output_regex") or []
    patterns = [given] if isinstance(given, str) else given
    if not (isinstance(patterns, list) and all(isinstance(pattern, str) for pattern in patterns)):
        raise ValueError(f"output_regex must be text or a list of texts, not {given!r:.80}")
    return patterns


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
        if (named := _find_option(letter, options, _list_letters(options))) is not None:
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
    found = text.rfind(BOX)
    if found < 0:
        return None
    start, depth = found + len(BOX), 1
    for brace in BRACE.finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[start : brace.start()].strip()
    return None


def _read_letter(box: str, letters: set[str]) -> str | None:
    box = NAMED.sub("", box)
    found = LONE_LETTER.fullmatch(box) or LABELLED.match(box)
    return found[1] if found and found[1] in letters else None


def _find_only_option(box: str, options: Options, letters: set[str]) -> str | None:
    """Return the option that the box is, or else the only one that it says among other words."""
    if (letter := _find_option(box, options, letters)) is not None:
        return letter
    said = _fold(box)
    inside = {
        letter: wording
        for letter, wording in _each_option(options, letters)
        if wording and _says(said, wording)
    }
    if len(inside) != 1:
        return None
    [(letter, wording)] = inside.items()
    return None if DENIED.search(said.replace(wording, " ")) else letter


def _says(text: str, wording: str) -> bool:
    """Whether the wording stands in the text, and not as a part of a word or of a number."""
    bare = re.escape(wording)
    return (
        re.search(rf"(?<![\w^])(?<!\w[.,])(?<![-−+]){bare}(?![\w^²³])(?![.,/]\d)", text) is not None
    )


def _read_after_colon(text: str, options: Options, letters: set[str]) -> str | None:
    """Return the letter, or the option, that the last answer is, of those that are either."""
    for given in reversed(ANSWER_COLON.findall(text)):
        answer = _unwrap(given).strip().strip(MARKS)
        bare = answer.strip("()[]{}$ ")
        if len(bare) == 1 and bare.upper() in letters:
            return bare.upper()
        if (letter := _find_option(answer, options, letters)) is not None:
            return letter
    return None


def _read_marked(answer: str, letters: set[str]) -> str | None:
    """Return the letter that `answer` begins with, otherwise its last one that stands alone; None
    if it lists several letters."""
    answer = LOCAL_LETTER.sub(lambda one: f" {_to_latin(one[0])}", answer).strip()
    answer = PRONOUN.sub(" ", _unwrap(answer)).strip().strip(MARKS)
    found = [
        each
        for each in ONE_LETTER.finditer(answer)
        if each[0].upper() in letters or each[0].isupper()
    ]
    for one, other in pairwise(found):
        differ = one[0].upper() != other[0].upper()
        if differ and SEPARATOR.fullmatch(answer, one.end(), other.start()):
            return None
    first = FIRST_LETTER.match(answer)
    if first and first[0].upper() in letters:
        return first[0].upper()
    alone = [letter for letter in STANDALONE.findall(answer) if letter in letters]
    letter = alone[-1] if alone else answer.upper()
    return letter if letter in letters else None


def _to_latin(letter: str) -> str:
    return unicodedata.normalize("NFKC", letter).translate(LOCAL_LETTERS)


def _find_option(answer: str, options: Options, letters: set[str]) -> str | None:
    wanted = _fold(_unwrap(answer))
    return next((letter for letter, text in _each_option(options, letters) if text == wanted), None)


def _list_letters(options: Options) -> set[str]:
    return {
        key.upper()
        for option in options
        for key, value in option.items()
        if len(key) == 1 and key.isalpha() and value is not None
    }


def _each_option(options: Options, letters: set[str]) -> Iterator[tuple[str, str]]:
    for option in options:
        for key, value in option.items():
            if value is not None and key.upper() in letters:
                yield key.upper(), _fold(_unwrap(value))


def _unwrap(text: str) -> str:
    r"""Leave out commands such as `\textbf{…}`, but keep what they are about."""
    if "\\" not in text:
        return text
    text = SPACES.sub(" ", SWITCH.sub(" ", text))
    pieces, at = list[str](), 0
    for command in COMMAND.finditer(text):
        if command.start() < at:
            continue
        pieces.append(text[at : command.start()])
        at = command.end()
    return "".join([*pieces, text[at:]]).replace("{", "").replace("}", "").strip()


def _fold(text: str) -> str:
    return " ".join(text.lower().split())
