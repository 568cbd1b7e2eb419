"""Pages speak to the reader, in plain words.

The markers are counted per 10,000 words of all pages together. `LATER` lists the pages that are not
written so yet. It only shrinks: whoever rewrites a page takes it off the list.
"""

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from test_readme import documents
from workplace import ROOT


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

LATER = frozenset(
    [
        "CHANGELOG.md",
        "docs/arms.md",
        "docs/development.md",
        "docs/exporting.md",
        "docs/failures.md",
        "docs/fault-injection.md",
        "docs/glossary.md",
        "docs/groups.md",
        "docs/lora.md",
        "docs/nemo-gym.md",
        "docs/performance.md",
        "docs/planning-vllm.md",
        "docs/preparing-data.md",
        "docs/protocol.md",
        "docs/python.md",
        "docs/rl.md",
        "docs/scale-out.md",
        "docs/tiny_model.md",
        "docs/trackers.md",
        "docs/trainers.md",
        "docs/viewing.md",
        "resources_servers/calculator/README.md",
        "resources_servers/code_gen/README.md",
        "resources_servers/example_session_state_mgmt/README.md",
        "resources_servers/example_single_tool_call/README.md",
        "resources_servers/example_tool_call_multireward/README.md",
        "resources_servers/instruction_following/README.md",
        "resources_servers/math_with_verify/README.md",
        "resources_servers/reasoning_gym/README.md",
        "resources_servers/string_match/README.md",
        "resources_servers/structured_outputs/README.md",
        "resources_servers/workplace_assistant/README.md",
        "responses_api_agents/non_executing_simple_agent/README.md",
        "responses_api_models/local_model/README.md",
        "responses_api_models/simulated_model/README.md",
        "responses_api_models/trainer_model/README.md",
        "responses_api_models/vllm_model/README.md",
    ]
)
"""Pages that are not written so yet."""


def read_prose(path: Path) -> str:
    """The text of a page without code, comments, HTML, targets of links and rules of tables."""
    text = path.read_text()
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
    assert find_missed([text for name, text in PAGES.items() if name not in LATER]) == []


@pytest.mark.parametrize("name", sorted({*PAGES} - LATER))
def test_a_page_uses_no_avoided_words(name: str) -> None:
    assert re.findall(MARKERS["avoided words"].pattern, PAGES[name], re.IGNORECASE) == []


def test_a_page_that_holds_the_bounds_is_off_the_list() -> None:
    assert {*PAGES} >= LATER
    assert [name for name in sorted(LATER) if not find_missed([PAGES[name]])] == []


def test_the_markers_are_found() -> None:
    assert find_missed(["It goes on beside that of you; e.g. nobody tells. " * 20]) == [
        "semicolons: 909.1",
        "avoided words: 4545.5",
    ]
