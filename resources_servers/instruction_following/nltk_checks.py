"""Kinds that need nltk, which takes seconds to import; runs in a worker process of its own."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import ifbench_forms
import ifbench_words
import ifeval
import kinds
import open_instruct
import treebank

__all__ = ["ifbench_forms", "ifbench_words", "ifeval", "open_instruct", "run", "treebank"]


def run(instructions: list[list[Any]], text: str) -> list[bool | None]:
    return kinds.check_all(instructions, text, by_nltk=True)
