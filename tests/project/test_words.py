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

LATER: dict[str, str] = {
    "CHANGELOG.md": "you, examples, semicolons, avoided words",
    "docs/arms.md": "you, semicolons, avoided words",
    "docs/comparing.md": "you, examples, semicolons, avoided words",
    "docs/development.md": "you, examples, semicolons",
    "docs/exporting.md": "you, examples, semicolons, avoided words",
    "docs/failures.md": "you, semicolons, avoided words",
    "docs/files.md": "avoided words",
    "docs/from-rollouts-to-dpo.md": "you, examples, semicolons, avoided words",
    "docs/glossary.md": "you, examples, semicolons, avoided words",
    "docs/groups.md": "you, examples, semicolons, avoided words",
    "docs/index.md": "examples, avoided words",
    "docs/lora.md": "you, examples, avoided words",
    "docs/mcp.md": "you, examples, avoided words",
    "docs/nemo-gym.md": "you, semicolons, avoided words",
    "docs/parallelism.md": "you, avoided words",
    "docs/performance.md": "you, examples, semicolons, avoided words",
    "docs/planning-vllm.md": "you, semicolons, avoided words",
    "docs/preparing-data.md": "you, semicolons",
    "docs/protocol.md": "you, examples, semicolons, avoided words",
    "docs/python.md": "semicolons, avoided words",
    "docs/reverify.md": "you, examples, semicolons, avoided words",
    "docs/rl.md": "you, examples, semicolons, avoided words",
    "docs/sandbox.md": "you, semicolons, avoided words",
    "docs/scale-out.md": "you, examples, semicolons, avoided words",
    "docs/servers.md": "you, avoided words",
    "docs/tiny_model.md": "you, semicolons",
    "docs/trackers.md": "you, semicolons, avoided words",
    "docs/trainers.md": "you, examples, semicolons, avoided words",
    "docs/untrusted-text.md": "avoided words",
    "docs/viewing.md": "you, semicolons, avoided words",
    "docs/writing-a-resources-server.md": "semicolons, avoided words",
    "resources_servers/blackjack/README.md": "you, semicolons",
    "resources_servers/coherence_math/README.md": "you, examples, avoided words",
    "resources_servers/equivalence_llm_judge/README.md": "you, examples, semicolons, avoided words",
    "resources_servers/example_multi_step/README.md": "you, examples, semicolons, avoided words",
    "resources_servers/example_session_state_mgmt/README.md": "you, examples, semicolons, avoided words",
    "resources_servers/example_tool_call_multireward/README.md": "examples, semicolons, avoided words",
    "resources_servers/genrm_compare/README.md": "you, examples, semicolons, avoided words",
    "resources_servers/instruction_following/README.md": "you, semicolons, avoided words",
    "resources_servers/math_with_verify/README.md": "you, semicolons, avoided words",
    "resources_servers/mcqa/README.md": "you, semicolons, avoided words",
    "resources_servers/reasoning_gym/README.md": "semicolons",
    "resources_servers/string_match/README.md": "you, examples, semicolons",
    "resources_servers/structured_outputs/README.md": "you, semicolons, avoided words",
    "resources_servers/workplace_assistant/README.md": "you, examples, semicolons, avoided words",
    "responses_api_agents/non_executing_simple_agent/README.md": "examples, semicolons, avoided words",
    "responses_api_models/azure_openai_model/README.md": "examples, semicolons",
    "responses_api_models/local_model/README.md": "you, semicolons, avoided words",
    "responses_api_models/openai_model/README.md": "semicolons, avoided words",
    "responses_api_models/simulated_model/README.md": "you, examples, semicolons, avoided words",
    "responses_api_models/trainer_model/README.md": "you, examples, semicolons, avoided words",
    "responses_api_models/vllm_model/README.md": "you, semicolons, avoided words",
}
"""Pages that miss a bound, with the bounds that they miss."""


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


@pytest.mark.parametrize("name", sorted({*PAGES} - {*LATER}))
def test_a_page_uses_no_avoided_words(name: str) -> None:
    assert re.findall(MARKERS["avoided words"].pattern, PAGES[name], re.IGNORECASE) == []


def test_a_page_that_holds_the_bounds_is_off_the_list() -> None:
    assert {*LATER} <= {*PAGES}
    assert [name for name in LATER if not find_missed([PAGES[name]])] == []


def test_the_markers_are_found() -> None:
    assert find_missed(["It goes on beside that of you; e.g. nobody tells. " * 20]) == [
        "semicolons: 909.1",
        "avoided words: 4545.5",
    ]
