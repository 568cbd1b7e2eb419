"""Our verdicts on the responses in IFEval's own tests.

    python -m benchmarks.agreement.ifeval instructions_test.py

The file is in `instruction_following_eval/` of https://github.com/google-research/google-research.
Its tests run with stand-ins for IFEval's checks, which record what each test expects. Then
`instruction_following` verifies the same responses. Four checks of that file belong to no kind of
instruction and are left out.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from rollout_kit.types import JsonObject

from .ours import require, verify

KINDS = {
    "ResponseLanguageChecker": "language:response_language",
    "NumberOfSentences": "length_constraints:number_sentences",
    "ParagraphChecker": "length_constraints:number_paragraphs",
    "NumberOfWords": "length_constraints:number_words",
    "ParagraphFirstWordCheck": "length_constraints:nth_paragraph_first_word",
    "PlaceholderChecker": "detectable_content:number_placeholders",
    "PostscriptChecker": "detectable_content:postscript",
    "BulletListChecker": "detectable_format:number_bullet_lists",
    "ConstrainedResponseChecker": "detectable_format:constrained_response",
    "HighlightSectionChecker": "detectable_format:number_highlighted_sections",
    "SectionChecker": "detectable_format:multiple_sections",
    "JsonFormat": "detectable_format:json_format",
    "TitleChecker": "detectable_format:title",
    "KeywordChecker": "keywords:existence",
    "KeywordFrequencyChecker": "keywords:frequency",
    "ForbiddenWords": "keywords:forbidden_words",
    "LetterFrequencyChecker": "keywords:letter_frequency",
    "TwoResponsesChecker": "combination:two_responses",
    "RepeatPromptThenAnswer": "combination:repeat_prompt",
    "EndChecker": "startend:end_checker",
    "QuotationChecker": "startend:quotation",
    "CapitalLettersEnglishChecker": "change_case:english_capital",
    "LowercaseLettersEnglishChecker": "change_case:english_lowercase",
    "CapitalWordFrequencyChecker": "change_case:capital_word_frequency",
    "CommaChecker": "punctuation:no_comma",
}
"""Class in IFEval → kind of instruction."""


class Response(NamedTuple):
    """A response that a test checks, and the instruction."""

    kind: str | None
    arguments: JsonObject
    text: str


class Expected(NamedTuple):
    response: Response
    follows: bool


class Check:
    """Stands for a check of IFEval."""

    def __init__(self, kind: str | None) -> None:
        self._kind = kind
        self._arguments: JsonObject = {}

    def build_description(self, **arguments: Any) -> None:
        self._arguments = {
            name: sorted(value) if isinstance(value, set) else value
            for name, value in arguments.items()
        }

    def get_instruction_args(self) -> None:
        return None

    def check_following(self, text: str) -> Response:
        return Response(self._kind, self._arguments, text)


class Case:
    """Stands for `absltest.TestCase`, and records what its assertions expect of a response."""

    def __init__(self) -> None:
        self.expected: list[Expected] = []

    def assertEqual(self, actual: object, expected: object) -> None:
        if isinstance(actual, Response):
            self.expected.append(Expected(actual, bool(expected)))

    def assertTrue(self, actual: object) -> None:
        self.assertEqual(actual, True)

    def assertFalse(self, actual: object) -> None:
        self.assertEqual(actual, False)

    def assertRaises(self, _: type[Exception]) -> AbstractContextManager[None]:
        return nullcontext()

    def subTest(self, _: str) -> AbstractContextManager[None]:
        return nullcontext()


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    expected = list(read_expected(Path(sys.argv[1])))
    ours = [each for each in expected if each.response.kind]
    agrees = asyncio.run(judge(ours))
    total = Counter(each.response.kind for each in ours)
    right = Counter(each.response.kind for each, agree in zip(ours, agrees, strict=True) if agree)
    for kind, number in sorted(total.items()):
        print(f"{kind:<48} {right[kind]:>3} of {number}")
    print(f"{'all':<48} {right.total():>3} of {total.total()}")
    print(f"{len(expected) - len(ours)} responses belong to no kind of instruction.")
    for each in (each for each, agree in zip(ours, agrees, strict=True) if not agree):
        print(f"differs: {each}")


def read_expected(path: Path) -> Iterator[Expected]:
    """Run the tests in `path` with stand-ins and yield what they expect."""
    scope: JsonObject = {"__name__": "instructions_test"}
    with _replaced_modules():
        exec(compile(path.read_text("utf-8"), path, "exec"), scope)
    case = scope["InstructionsTest"]()
    for name in dir(case):
        if name.startswith("test_"):
            getattr(case, name)()
    yield from case.expected


async def judge(expected: Sequence[Expected]) -> list[bool]:
    """Whether the verdict of our server on each response is the expected one."""
    asked = [
        ({"instruction_id_list": [kind], "kwargs": [arguments]}, text)
        for (kind, arguments, text), _ in expected
    ]
    found = map(require, await verify("instruction_following", asked))
    return [
        (verdict["reward"] == 1.0) == each.follows
        for verdict, each in zip(found, expected, strict=True)
    ]


@contextmanager
def _replaced_modules() -> Iterator[None]:
    """Provide the modules that the tests import."""
    instructions = ModuleType("instruction_following_eval.instructions")
    instructions.__dict__.update(
        _COMPARISON_RELATION=("less than", "at least"),
        _POSTSCRIPT_MARKER=("P.S.", "P.P.S"),
        langdetect=ModuleType("langdetect"),
        __getattr__=lambda name: lambda _: Check(KINDS.get(name)),
    )
    absltest, parameterized = ModuleType("absl.testing.absltest"), ModuleType("parameterized")
    parameterized.__dict__.update(TestCase=Case, named_parameters=_run_with_each)
    modules = {
        "absl": ModuleType("absl"),
        "absl.testing": SimpleNamespace(absltest=absltest, parameterized=parameterized),
        "instruction_following_eval": SimpleNamespace(instructions=instructions),
        "instructions": instructions,  # as copies of the tests import it
    }
    with patch.dict(sys.modules, modules):
        yield


def _run_with_each(parameters: Sequence[JsonObject]) -> Callable[..., Callable[[Case], None]]:
    def decorate(test: Callable[..., None]) -> Callable[[Case], None]:
        def run(case: Case) -> None:
            for each in parameters:
                test(case, **{name: each[name] for name in each if name != "testcase_name"})

        return run

    return decorate


if __name__ == "__main__":
    main()
