"""What a judge is asked about an answer of each benchmark, and how its replies are read.

Prompts and rules are the published ones. A reply that cannot be read has no verdict: `read_…` then
return None.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

Kind = Literal["simple_qa", "hle", "health_bench", "arena_hard"]

GRADE = re.compile(r"\b([ABC])\b")

CORRECT = re.compile(r"GRADE\s*:\s*([CI])", re.IGNORECASE)

CONFIDENCE = re.compile(r"confidence:\s*(\d+)", re.IGNORECASE)

VERDICT = re.compile(r"\[\[([AB<>=]+)\]\]")

STRICT = 3.0
"""Weight of a significantly better answer."""

GAMES = {
    "A>>B": (1.0, STRICT),
    "A>B": (1.0, 1.0),
    "A=B": (0.5, 1.0),
    "B>A": (0.0, 1.0),
    "B>>A": (0.0, STRICT),
}
"""Verdict → the score of answer A, and how much it counts."""

CODE = re.compile(r"```[^`]*```")

MARKS = {
    "style_headers": re.compile(r"^#{1,6}\s", re.MULTILINE),
    "style_lists": re.compile(r"^[^\S\n]*(?:\d+\.|[-*+])\s", re.MULTILINE),
    "style_bold": re.compile(r"\*\*[^*\n]+\*\*|__[^_\n]+__"),
}
"""What stands out in a text of Markdown. As all patterns here, they take time in proportion to any
text: models write it."""


class Style(NamedTuple):
    """The length of an answer in words, and how often each mark is in it."""

    words: int
    marks: dict[str, int]


def read_grade(reply: str) -> str | None:
    """A for correct, B for incorrect, C for not attempted."""
    found = GRADE.search(reply)
    return found[1] if found else None


def read_correct(reply: str) -> bool | None:
    """Whether the last grade of a reply is C."""
    found = CORRECT.findall(reply)
    return found[-1].upper() == "C" if found else None


def read_confidence(answer: str) -> float:
    """What an answer says last of its confidence, from 0 to 1; 1 if it says nothing."""
    found = CONFIDENCE.findall(answer)
    return min(100, int(found[-1][:4])) / 100 if found else 1.0


def read_met(reply: str) -> bool | None:
    """Whether a criterion is met."""
    try:
        found = json.loads(_remove_fence(reply.strip()))
    except (ValueError, RecursionError):
        return None
    met = found.get("criteria_met") if isinstance(found, dict) else None
    return met if isinstance(met, bool) else None


def _remove_fence(text: str) -> str:
    return text.removeprefix("```json").removeprefix("```").removesuffix("```")


def read_verdict(reply: str) -> str | None:
    """One of `GAMES`, if the reply names no other one."""
    found = {*VERDICT.findall(reply)}
    return found.pop() if len(found) == 1 and found <= GAMES.keys() else None


def score_points(rubric: Sequence[dict[str, Any]], met: Sequence[bool]) -> float:
    """The points of what is met over all positive ones. It may be below 0."""
    points = [each["points"] for each in rubric]
    whole = sum(each for each in points if each > 0)
    return sum(each for each, is_met in zip(points, met, strict=True) if is_met) / whole


def compare_styles(answer: str, baseline: str) -> dict[str, float]:
    """How an answer differs from the baseline in length and in marks a word, from -1 to 1."""
    one, other = _describe_style(answer), _describe_style(baseline)
    total = one.words + other.words
    found = {"style_length": (one.words - other.words) / total if total else 0.0}
    for name in MARKS:
        ours, theirs = (each.marks[name] / (each.words + 1) for each in (one, other))
        found[name] = (ours - theirs) / (ours + theirs + 1)
    return found


def _describe_style(text: str) -> Style:
    bare = CODE.sub("", text)
    marks = {name: len(pattern.findall(bare)) for name, pattern in MARKS.items()}
    return Style(len(text.split()), marks)
