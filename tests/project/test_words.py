"""Pages speak to the reader, in plain words.

The markers are counted per 10,000 words: of the README, of the references and of all help, and of
the pages together.
"""

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from test_readme import documents
from workplace import ROOT

from rollout_kit.commands import entry
from rollout_kit.config.commands import COMMANDS


class Marker(NamedTuple):
    """How often a pattern occurs in 10,000 words, at least and at most."""

    pattern: str
    least: float = 0
    most: float = 10_000


MARKERS = {
    "you": Marker(r"\byou(rs?|'re|'ll|’re)?\b", least=40),
    "examples": Marker(r"\bfor example\b|\bsuch as\b|\be\.g\.", least=10),
    "semicolons": Marker(";", most=40),
    "avoided words": Marker(
        r"\b(that of|those of|of (its|their) own|beside|goes on|go on|went on|tells?|told|for ever"
        r"|anew|all the same|as ever|nobody|whoever|shall)\b",
        most=3,
    ),
}


def read_prose(path: Path, *, has_tables: bool = True) -> str:
    """The text of a page without code, comments, HTML, targets of links and rules of tables."""
    text = path.read_text()
    if not has_tables:
        text = re.sub(r"(?m)^\|.*$", " ", text)
    text = re.sub(r"(?s)```.*?```|<!--.*?-->|<[^>]+>", " ", text)
    text = re.sub(r"`[^`\n]*`", " code ", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return re.sub(r"(?m)^\|?[\s:|-]+\|?$", " ", text)


def find_missed(texts: list[str]) -> list[str]:
    """The bounds that texts miss together, with the figure."""
    words = sum(len(re.findall(r"\b[\w'’-]+\b", text)) for text in texts) or 1
    missed = []
    for name, (pattern, least, most) in MARKERS.items():
        found = sum(len(re.findall(pattern, text, re.IGNORECASE)) for text in texts)
        if not least <= (rate := found * 10_000 / words) <= most:
            missed.append(f"{name}: {rate:.1f}")
    return missed


PAGES = {str(path.relative_to(ROOT)): read_prose(path) for path in documents()}


def test_pages_speak_to_the_reader() -> None:
    assert find_missed(list(PAGES.values())) == []


def test_the_readme_the_references_and_help_speak_to_the_reader() -> None:
    references = [read_prose(path, has_tables=False) for path in ROOT.glob("docs/reference/*.md")]
    helps = [entry.format_help(name) for name in COMMANDS]
    for texts in ([PAGES["README.md"]], references, helps):
        assert find_missed(texts) == []


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_uses_no_avoided_words(name: str) -> None:
    assert re.findall(MARKERS["avoided words"].pattern, PAGES[name], re.IGNORECASE) == []


def test_the_markers_are_found() -> None:
    assert find_missed(["It goes on beside that of you; e.g. nobody tells. " * 20]) == [
        "semicolons: 909.1",
        "avoided words: 4545.5",
    ]
