"""Compare an answer with the expected one by degrees; worker processes of `app.py` run `compare`.

`words` is the F1 of DROP, `sequence` the ratio of MRCR, and `table` the cells of a puzzle such as
ZebraLogic's. Comparing two long texts takes minutes, so nothing here runs outside a worker.
"""

import json
import re
import string
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

Spans = Sequence[str]

Cells = dict[str, dict[str, str]]
"""Row → column → what stands there."""

ARTICLES = re.compile(r"\b(a|an|the)\b")

PUNCTUATION = str.maketrans("", "", string.punctuation)


def compare(mode: str, expected: Any, answer: str, prefix: str) -> dict[str, float]:
    """The reward from 0 to 1, and the figures that belong to the mode."""
    if mode == "words":
        found = [_compare_words(each, answer) for each in expected if each[0].strip()]
        exact = max((one for one, _ in found), default=0.0)
        return {"reward": max((f1 for _, f1 in found), default=0.0), "exact_match": exact}
    if mode == "sequence":
        return {"reward": _compare_sequences(expected, answer, prefix)}
    return _compare_tables(expected, answer)


def _compare_words(expected: Spans, answer: str) -> tuple[float, float]:
    """Exact match and F1. Of several spans the answer is compared with the closest one, and the
    others count as missing."""
    wanted, given = [_normalise(span) for span in expected], _normalise(answer)
    f1 = max(_compute_f1({*span.split()}, {*given.split()}) for span in wanted) / len(wanted)
    return float(wanted == [given]), round(f1, 2)


def _compute_f1(wanted: set[str], given: set[str]) -> float:
    """0 if the expected words have numbers, of which the answer has none."""
    numbers = {*filter(_is_number, wanted)}
    if numbers and not numbers & given:
        return 0.0
    common = len(wanted & given)
    precision = common / len(given) if given else 1.0
    recall = common / len(wanted) if wanted else 1.0
    return 2 * precision * recall / (precision + recall) if precision or recall else 0.0


def _normalise(text: str) -> str:
    """Words in lower case, without articles and punctuation; numbers as Python writes them."""
    return " ".join(filter(None, map(_normalise_word, re.split(" |-", text.lower()))))


def _normalise_word(word: str) -> str:
    bare = word if _is_number(word) else word.translate(PUNCTUATION)
    return " ".join(ARTICLES.sub(" ", str(float(bare)) if _is_number(bare) else bare).split())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _compare_sequences(expected: str, answer: str, prefix: str) -> float:
    """How similar both texts are; 0 if the answer does not start with `prefix`."""
    if not answer.startswith(prefix):
        return 0.0
    texts = (text.removeprefix(prefix) for text in (answer, expected))
    return SequenceMatcher(None, *texts).ratio()


def _compare_tables(expected: Cells, answer: str) -> dict[str, float]:
    """Reward 1 if all cells of the last object's `solution` are as expected."""
    given = _read_solution(answer)
    cells = [(row, column, value) for row, own in expected.items() for column, value in own.items()]
    right = sum(_read_cell(given, row, column) == _fold(value) for row, column, value in cells)
    counts = {"correct_cells": float(right), "num_cells": float(len(cells))}
    return {"reward": float(right == len(cells)), **counts, "no_solution": float(not given)}


def _read_cell(given: Any, row: str, column: str) -> str | None:
    """A text, or the first of a list."""
    own = given.get(row)
    value = own.get(column) if isinstance(own, dict) else None
    if isinstance(value, list):
        value = str(value[0]) if value else None
    return _fold(value) if isinstance(value, str) else None


def _fold(text: str) -> str:
    return text.lower().strip()


def _read_solution(text: str) -> dict[str, Any]:
    """`solution` of the last complete object of JSON; empty if there is none."""
    last = ""
    for last in _find_objects(text):  # noqa: B007
        pass
    try:
        found = json.loads(last.replace("\n", ""))
    except (ValueError, RecursionError):
        return {}
    found = found.get("solution") if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _find_objects(text: str) -> Iterator[str]:
    """What stands between outermost braces."""
    depth = start = 0
    for brace in re.finditer(r"[{}]", text):
        if brace[0] == "{":
            start = start if depth else brace.start()
            depth += 1
        elif depth:
            depth -= 1
            if not depth:
                yield text[start : brace.end()]
