"""Extract the answer of a response and compare it; worker processes of `app.py` run `work`.

Pure functions on the standard library. Extraction takes linear time; normalisation does not, so
long answers are compared without it.
"""

import re
import unicodedata
from collections import deque
from typing import Any, Literal

ExtractionMode = Literal["boxed", "final_answer", "last_line", "full_response", "regex"]

GROUP = "answer"
"""The named group that `extraction_pattern` may have."""

NORMALISED_LIMIT = 5_000
"""Longer answers are not normalised."""

NEARLY = 0.98
"""Required closeness of a nearly correct number: within about one per cent."""

FINAL_ANSWER = re.compile(r"(?:final\s+answer|answer)\s*[:：]\s*(.+)", re.IGNORECASE)
BRACE = re.compile(r"\\boxed\{|[{}]")
COMMANDS = "boxed text textbf textit texttt mathrm mathbf mathit mathsf mathbb mathcal emph url"
UNITS = re.compile(r"\^\{?\\circ\}?|\\circ|°|cm[²³]?|mm|km|m[²³]?|kg")
SIGNS = {"°": r"^\circ", "√": r"\sqrt", "π": r"\pi", "：": ":"}
SIGNS |= dict(zip("²³⁴⁵⁶⁷⁸⁹", ("^2", "^3", "^4", "^5", "^6", "^7", "^8", "^9"), strict=True))
SIGNS |= dict(zip("﹣﹢﹦﹤﹥", "-+=<>", strict=True))
TYPED = str.maketrans(SIGNS)
STATES = """
alabama AL, alaska AK, arizona AZ, arkansas AR, california CA, colorado CO, connecticut CT,
delaware DE, district of columbia DC, florida FL, georgia GA, hawaii HI, idaho ID, illinois IL,
indiana IN, iowa IA, kansas KS, kentucky KY, louisiana LA, maine ME, maryland MD, massachusetts MA,
michigan MI, minnesota MN, mississippi MS, missouri MO, montana MT, nebraska NE, nevada NV,
new hampshire NH, new jersey NJ, new mexico NM, new york NY, north carolina NC, north dakota ND,
ohio OH, oklahoma OK, oregon OR, pennsylvania PA, rhode island RI, south carolina SC,
south dakota SD, tennessee TN, texas TX, utah UT, vermont VT, virginia VA, washington WA,
west virginia WV, wisconsin WI, wyoming WY
"""
ABBREVIATED = sorted(
    (entry.strip().rsplit(" ", 1) for entry in STATES.split(",")), key=lambda entry: -len(entry[0])
)
"""Name and abbreviation, longest first, so that "arkansas" precedes "kansas"."""


def extract(text: str, mode: ExtractionMode) -> str | None:
    """Return the answer, or None; `regex` is that of `find_last`, in a worker."""
    text = text.strip()
    if mode == "boxed":
        return _find_boxed(text)
    if mode == "final_answer":
        found = _find_final_answer(text)
        return found if found is not None else _find_boxed(text)
    if mode == "last_line":
        text = "".join(text.splitlines()[-1:])
    return text.strip() or None


def grade(expected: str, answer: str, near_reward: float = 0.0) -> float:
    """Return 1.0 if both are equal after a normalisation or are the same number, `near_reward` for
    a number within about one per cent, else 0.0. A `near_reward` above 0 also counts for the same
    number written otherwise, as in NeMo Gym."""
    expected, answer = _fold(expected), _fold(answer)
    if expected == answer:
        return 1.0
    if max(len(expected), len(answer)) > NORMALISED_LIMIT:
        return 0.0
    for normalise in (
        _to_number,
        _join_digits,
        _drop_latex,
        _to_list,
        _to_states,
    ):
        if normalise(expected) == normalise(answer):
            return 1.0
    bare = [
        UNITS.sub("", _drop_latex(text).translate(TYPED)).strip() for text in (expected, answer)
    ]
    closeness = _compute_closeness(expected, answer)
    if closeness <= NEARLY and bare[0] == bare[1]:
        return 1.0
    closeness = max(closeness, _compute_closeness(*bare))
    if closeness == 1.0 and not near_reward:
        return 1.0
    return near_reward if closeness > NEARLY else 0.0


def collapse(text: str, *, case_sensitive: bool) -> str:
    text = " ".join(unicodedata.normalize("NFKC", text).split())
    return text if case_sensitive else text.lower()


def work(name: str, *arguments: Any) -> Any:
    """What a worker does: compiling an expression may take minutes, and matching one too."""
    return {"search": search, "find_last": find_last}[name](*arguments)


def find_last(pattern: str, text: str) -> str | None:
    """Return what the last match of `pattern` has in its group `answer`, or else in its first
    group, or else as a whole; None without a match, or if the group is not in it."""
    expression = _compile(pattern, re.NOFLAG, "extraction_pattern")
    group = GROUP if GROUP in expression.groupindex else min(1, expression.groups)
    found = deque(expression.finditer(text), maxlen=1)
    return ((found[0][group] or "").strip() if found else "") or None


def search(patterns: list[str], text: str, case_sensitive: bool) -> bool:
    """Whether a pattern is found."""
    flags = re.NOFLAG if case_sensitive else re.IGNORECASE
    return any(pattern.search(text) for pattern in [_compile(each, flags) for each in patterns])


def _compile(pattern: str, flags: re.RegexFlag, key: str = "expected_answer") -> re.Pattern[str]:
    try:
        return re.compile(pattern, flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{key}: '{pattern:.80}' is not a regular expression: {error}") from None


def _find_boxed(text: str) -> str | None:
    r"""Return the content of the last closed `\boxed{…}`."""
    start = end = -1
    opened: list[int | None] = []
    for brace in BRACE.finditer(text):
        if brace[0] != "}":
            opened.append(brace.end() if brace[0] != "{" else None)
        elif opened and (box := opened.pop()) is not None and box > start:
            start, end = box, brace.start()
    if start < 0:
        return None
    found = text[start:end].strip()
    while found.startswith("\\text{") and found.endswith("}") and len(found) < NORMALISED_LIMIT:
        found = found[len("\\text{") : -1].strip()
    return found


def _find_final_answer(text: str) -> str | None:
    """Return the text after the last "Answer:" on its line."""
    found = deque(FINAL_ANSWER.finditer(text), maxlen=1)
    return found[0][1].strip().removesuffix(".").strip().rstrip(".") if found else None


def _fold(text: str) -> str:
    """Convert to lower case, without quotes and final punctuation."""
    text = unicodedata.normalize("NFKC", text)
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1]
    text = text.lower()
    return text.rstrip(".!?") or text


def _to_number(text: str) -> str:
    bare = text.replace("\\%", "").replace("\\$", "").replace("$", "")
    try:
        return str(float(bare))
    except ValueError:
        return text


def _join_digits(text: str) -> str:
    return re.sub(r"(?<!\d)(\d++),(\d++)", r"\1\2", text).replace("\\%", "%")


def _drop_latex(text: str) -> str:
    r"""Remove commands around words, `\( \)`, `\[ \]` and `$`."""
    for command in COMMANDS.split():
        text = _strip_command(f"\\{command}{{", text)
    for token in ("\\(", "\\)", "\\[", "\\]", "$"):
        text = text.replace(token, "")
    return " ".join(text.split())


def _strip_command(opening: str, text: str) -> str:
    """Remove each opening and its closing brace, but keep the text between them."""
    while (start := text.find(opening)) >= 0:
        inner, depth = start + len(opening), 1
        for brace in re.finditer(r"[{}]", text[inner:]):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                end = inner + brace.start()
                text = text[:start] + text[inner:end] + text[end + 1 :]
                break
        else:
            text = text[:start] + text[inner:]
    return text


def _to_list(text: str) -> str:
    shorter = re.sub(r"[,;]", " ", text).replace("and", " ").replace("or", " ")
    return text if len(shorter) < 0.9 * len(text) else " ".join(shorter.split())


def _to_states(text: str) -> str:
    for name, abbreviation in ABBREVIATED:
        text = text.replace(name, abbreviation)
    return _to_list(text).lower()


def _compute_closeness(expected: str, answer: str) -> float:
    """Closeness from 0 to 1; 0 if one is not a number."""
    try:
        wanted, found = (float(_strip_units(text)) for text in (expected, answer))
    except ValueError:
        return 0.0
    error = abs(found - wanted) / max(abs(wanted), 1e-9)
    return max(0.0, 1.0 - error) ** 2


def _strip_units(text: str) -> str:
    text = re.sub("[$£€%,]", "", text)
    return UNITS.sub("", text.translate(TYPED)).strip()
