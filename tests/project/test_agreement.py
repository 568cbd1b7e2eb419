"""The commands that compare our verdicts with those of the published tests."""

import asyncio
from pathlib import Path

from support import skip_unless_installed

from benchmarks.agreement import ifeval

TESTS = """
from absl.testing import absltest
from absl.testing import parameterized
from instruction_following_eval import instructions


class InstructionsTest(parameterized.TestCase):

  @parameterized.named_parameters([
      {'testcase_name': 'a', 'response': 'a b', 'number': 3, 'expected': True},
      {'testcase_name': 'b', 'response': 'a b', 'number': 2, 'expected': False},
  ])
  def test_number_words(self, response, number, expected):
    instruction = instructions.NumberOfWords('length_constraint:number_words')
    instruction.build_description(
        num_words=number, relation=instructions._COMPARISON_RELATION[0])
    self.assertEqual(instruction.check_following(response), expected)

  def test_comma(self):
    instruction = instructions.CommaChecker('punctuation:no_comma')
    instruction.build_description()
    with self.subTest('wrong on purpose'):
      self.assertTrue(instruction.check_following('a, b'))

  def test_rephrase(self):
    instruction = instructions.RephraseChecker('detectable_format:rephrasing')
    with self.assertRaises(ValueError):
      instruction.check_following('a')
    self.assertFalse(instruction.check_following('a'))
"""


def test_ifevals_tests_are_read_and_verified(tmp_path: Path) -> None:
    skip_unless_installed("nltk", "langdetect")
    path = tmp_path / "instructions_test.py"
    path.write_text(TESTS, "utf-8")
    found = list(ifeval.read_expected(path))
    kinds = [each.response.kind for each in found]
    assert kinds == [
        "punctuation:no_comma",
        *["length_constraints:number_words"] * 2,
        None,
    ]
    assert asyncio.run(ifeval.judge(found[:3])) == [False, True, True]
