"""Syllables of English words, as syllapy counts them.

Each line of `syllables.txt` has a number, and words with so many syllables for which the rule gives
another number.
"""

import re
from pathlib import Path

FILE = Path(__file__).with_name("syllables.txt")

GROUP = re.compile("[aeiouy]+")

UNVOICED = re.compile("[^aeiouy]le$")
"""An end in e that is a syllable."""


def _read_known() -> dict[str, int]:
    lines = (line.split() for line in FILE.read_text("utf-8").splitlines())
    return {word: int(number) for number, *words in lines for word in words}


KNOWN = _read_known()


def count_syllables(word: str) -> int:
    """Count the syllables of a word in lower case. One with a digit has none."""
    if any(map(str.isdecimal, word)):
        return 0
    found = len(GROUP.findall(word)) - word.endswith("e") + bool(UNVOICED.search(word))
    return KNOWN.get(word) or max(found, 1)
