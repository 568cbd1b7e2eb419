"""Our checks on the assertions of IFEval's own tests:

    python -m benchmarks.agreement.ifeval instructions_test.py

The file is `instruction_following_eval/instructions_test.py` of google-research/google-research.
Kinds that IFEval tests but does not use in its prompts are left out.
"""

import argparse
import importlib
import sys
import types
import unittest
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partialmethod
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from ..measure import ROOT

KINDS = {
    "BulletListChecker": "detectable_format:number_bullet_lists",
    "CapitalLettersEnglishChecker": "change_case:english_capital",
    "CapitalWordFrequencyChecker": "change_case:capital_word_frequency",
    "CommaChecker": "punctuation:no_comma",
    "ConstrainedResponseChecker": "detectable_format:constrained_response",
    "EndChecker": "startend:end_checker",
    "ForbiddenWords": "keywords:forbidden_words",
    "HighlightSectionChecker": "detectable_format:number_highlighted_sections",
    "JsonFormat": "detectable_format:json_format",
    "KeywordChecker": "keywords:existence",
    "KeywordFrequencyChecker": "keywords:frequency",
    "LetterFrequencyChecker": "keywords:letter_frequency",
    "LowercaseLettersEnglishChecker": "change_case:english_lowercase",
    "NumberOfSentences": "length_constraints:number_sentences",
    "NumberOfWords": "length_constraints:number_words",
    "ParagraphChecker": "length_constraints:number_paragraphs",
    "ParagraphFirstWordCheck": "length_constraints:nth_paragraph_first_word",
    "PlaceholderChecker": "detectable_content:number_placeholders",
    "PostscriptChecker": "detectable_content:postscript",
    "QuotationChecker": "startend:quotation",
    "RepeatPromptThenAnswer": "combination:repeat_prompt",
    "ResponseLanguageChecker": "language:response_language",
    "SectionChecker": "detectable_format:multiple_sections",
    "TitleChecker": "detectable_format:title",
    "TwoResponsesChecker": "combination:two_responses",
}
"""IFEval's class → the kind."""


class Recorder(unittest.TestCase):
    """In place of absl's TestCase: counts assertions about answers of our checks."""

    found: ClassVar[Counter[tuple[str, bool]]] = Counter()
    """(kind, whether it is as asserted) → number."""
    wrong: ClassVar[list[str]] = []

    def __init_subclass__(cls) -> None:
        for name, method in list(vars(cls).items()):
            for number, given in enumerate(getattr(method, "given", ())):
                setattr(cls, f"{name}_{number}", partialmethod(method, **given))
            if hasattr(method, "given"):
                delattr(cls, name)

    def assertTrue(self, expr: Any, msg: Any = None) -> None:
        self._note(expr, True)

    def assertFalse(self, expr: Any, msg: Any = None) -> None:
        self._note(expr, False)

    def assertEqual(self, first: Any, second: Any, msg: Any = None) -> None:
        self._note(first, second)

    def _note(self, answer: Any, expected: Any) -> None:
        if isinstance(answer, Answer):
            agrees = answer.follows == bool(expected)
            self.found[answer.kind, agrees] += 1
            if not agrees:
                self.wrong.append(f"{answer.kind}: {answer.text[:70]!r}, expected {expected}")


class Answer(NamedTuple):
    """What our check says of a text."""

    kind: str
    follows: bool
    text: str


class Instruction:
    """In place of IFEval's class for a kind."""

    def __init__(self, kind: str, checks: Mapping[str, Any]) -> None:
        self._kind, self._check = kind, checks[kind].check
        self._arguments: dict[str, Any] = {}

    def build_description(self, **arguments: Any) -> str:
        self._arguments = arguments
        return ""

    def check_following(self, text: str) -> Answer:
        return Answer(self._kind, bool(self._check(text, **self._arguments)), text)


def load_checks() -> Mapping[str, Any]:
    """Kind → our check."""
    sys.path.insert(0, str(ROOT / "resources_servers/instruction_following"))
    importlib.import_module("checks")
    importlib.import_module("nltk_checks")
    return importlib.import_module("kinds").KINDS


def stand_in(checks: Mapping[str, Any]) -> None:
    """Give the tests modules that lead to our checks."""
    instructions = types.ModuleType("instructions")
    for name, kind in KINDS.items():
        setattr(instructions, name, lambda _, kind=kind: Instruction(kind, checks))
    vars(instructions)["_COMPARISON_RELATION"] = ("less than", "at least")
    vars(instructions)["_POSTSCRIPT_MARKER"] = ("P.S.", "P.P.S")

    def named_parameters(*given: Any) -> Callable[[Any], Any]:
        rows = given[0] if len(given) == 1 and isinstance(given[0], list) else given

        def mark(method: Any) -> Any:
            names = ("testcase_name",)
            method.given = [
                {key: value for key, value in row.items() if key not in names} for row in rows
            ]
            return method

        return mark

    testing, parameterized = types.ModuleType("testing"), types.ModuleType("parameterized")
    vars(parameterized).update(TestCase=Recorder, named_parameters=named_parameters)
    vars(testing).update(parameterized=parameterized, absltest=types.ModuleType("absltest"))
    package = types.ModuleType("instruction_following_eval")
    vars(package)["instructions"] = instructions
    sys.modules |= {"absl": types.ModuleType("absl"), "absl.testing": testing}
    sys.modules["instruction_following_eval"] = package


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agreement.ifeval")
    parser.add_argument("tests", type=Path, help="IFEval's instructions_test.py")
    path = parser.parse_args().tests
    if not path.is_file():
        print(f"{path}: no such file; it is in google-research/google-research on GitHub")
        return 1
    stand_in(load_checks())
    tests = types.ModuleType("tests")
    exec(compile(path.read_text(), str(path), "exec"), vars(tests))
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromModule(tests).run(result)
    for kind in sorted({kind for kind, _ in Recorder.found}):
        right, wrong = Recorder.found[kind, True], Recorder.found[kind, False]
        print(f"{kind:50}{right:>4} of {right + wrong}")
    right = sum(number for (_, agrees), number in Recorder.found.items() if agrees)
    print(f"{'all':50}{right:>4} of {sum(Recorder.found.values())}")
    print("\n".join(Recorder.wrong))
    others = [test.id().rpartition(".")[2] for test, _ in result.errors]
    print(f"left out, as IFEval's prompts do not use them: {', '.join(sorted(set(others)))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
