"""All kinds except those that need nltk; runs in a worker process of `app.py`."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # a worker loads this file by its path

import ifbench_forms
import ifbench_words
import ifeval
import kinds
import open_instruct

__all__ = ["ifbench_forms", "ifbench_words", "ifeval", "open_instruct", "run"]


def run(instructions: list[list[Any]], text: str | None) -> list[Any]:
    """Check each instruction; without a text, return what is wrong with the instructions."""
    if text is None:
        return kinds.find_problems(instructions)
    return kinds.check_all(instructions, text, by_nltk=False)


ifeval.response_language("This call loads the tables.", "en")
