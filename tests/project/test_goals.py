"""Each page of docs/goals, followed in a fresh folder, with an endpoint that answers."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from claims import answers
from endpoint import endpoint
from support import blocks
from test_readme import BIN, GOALS, Walk
from workplace import ROOT

from rollout_kit.api.testing import text_response

pytest.importorskip("ctranslate2")

CONCEPTS = ROOT / "docs/concepts.md"

WRONG = "12 + 30"
"""The sum that the endpoint gets wrong."""

GRADES = {
    "criteria": [
        {"name": name, "evidence": "", "reason": "it is so", "score": name == "correct"}
        for name in ("correct", "clear")
    ]
}


def answer(body: dict[str, Any]) -> tuple[int, Any]:
    """Sums that are asked, and grades by a rubric: true, and not clear."""
    text = json.dumps(body["input"])
    if "criteria" in text:
        return 200, text_response(json.dumps(GRADES))
    found = re.search(r"(\d+) \+ (\d+)", text)
    if found is None:
        return 200, text_response("The air scatters blue light most.")
    total = int(found[1]) + int(found[2]) - (found[0] == WRONG)
    return 200, text_response(f"I add them.\nResult: {total}")


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    if not (BIN / "ng_help").exists() or not all(map(shutil.which, ("bash", "jq"))):
        pytest.skip("the commands, bash or jq are not installed")
    with endpoint(answer) as hosted:
        yield Walk(tmp_path, hosted)


@pytest.mark.documents
@pytest.mark.parametrize("page", GOALS)
def test_a_goal_is_reached_from_nothing(page: str, walk: Walk) -> None:
    walk.read(page)


@pytest.mark.parametrize("page", GOALS)
def test_a_goal_shows_what_its_commands_print(page: str) -> None:
    """The last command that is run has its output below it."""
    text = (ROOT / page).read_text()
    commands = [each for each in blocks(text) if each.language == "bash" and not each.reason]
    assert commands, "nothing of it is run"
    assert commands[-1].text in [command.text for command, _ in answers(text)]


def test_the_words_of_the_concepts_are_nine() -> None:
    table = re.search(r"^\| word .*?\n\n", CONCEPTS.read_text(), re.MULTILINE | re.DOTALL)
    assert table is not None
    words = [line.split(" | ")[0].strip("| ") for line in table[0].splitlines()[2:] if line]
    assert len([each for line in words for each in line.split(", ")]) == 9
