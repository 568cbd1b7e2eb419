"""Filters over rollouts: Python's comparisons, and nothing else of Python."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_compare import line

from rollout_kit.errors import ConfigError
from rollout_kit.store.filters.expression import Filter
from rollout_kit.store.lines import rollout_of
from rollout_kit.types import Rollout

SAID = [{"type": "output_text", "text": "a timeout"}]


def rollout(reward: float | None = 0.25, **more: Any) -> Rollout:
    made = line(7, reward, 2, **more)
    made["response"]["output"] = [{"type": "message", "role": "assistant", "content": SAID}]
    made["rollout"] |= {"num_turns": 9, "finish_reason": "stop", "version_first": 3}
    made["usage"] = {"output_tokens": 40}
    return rollout_of(made)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('reward < 0.5 and num_turns > 8 and "timeout" in text', True),
        ("reward >= 0.5", False),
        ("0 < reward <= 0.25", True),
        ("0 < reward < 0.25", False),
        ("not reward > 1", True),
        ("reward == 0.25 or reward == 1", True),
        ("agent in ['solver', 'other']", True),
        ("agent not in ('other',)", True),
        ("finish_reason == 'stop'", True),
        ("version_first >= 3 and version_last == null", True),
        ("rollout_index == 2 and task_id != ''", True),
        ("extracted_answer == '42'", True),
        ("level > 3", True),
        ("level > 3.5 and level - 1 == 3", True),
        ("len(text) > 100", False),
        ("'TIMEOUT' in text", False),
        ("'timeout' in lower(text)", True),
        ("abs(-reward) == 0.25", True),
        ("output_tokens / num_turns > 4", True),
        ("missing == None and missing is null", True),
        ("missing > 0", False),
        ("missing + 1 > 0", False),
        ("not missing > 0", True),
        ("is_verified == true", True),
        ("is_verified", True),
    ],
)
def test_an_expression_means_what_it_means_in_python(text: str, expected: bool) -> None:
    assert Filter(text)(rollout(extracted_answer="42", level=4)) is expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("__import__('os').system('x')", "the only functions are"),
        ("open('/etc/passwd')", "the only functions are"),
        ("reward.__class__", "is not allowed"),
        ("text[0] == 'a'", "is not allowed"),
        ("[x for x in text]", "is not allowed"),
        ("lambda: 1", "is not allowed"),
        ("(reward := 1)", "is not allowed"),
        ("f'{reward}'", "is not allowed"),
        ("2 ** 1000000000", "is not allowed"),
        ("reward if 1 else 2", "is not allowed"),
        ("len(text, text)", "the only functions are"),
        ("b'x' in text", "is not allowed"),
        ("reward = 1", "no filter"),
        ("", "no filter"),
        ("reward <", "no filter"),
        ("(" * 300, "no filter"),
        ("not " * 60 + "reward", "nested too deep"),
        ("a" * 20_000, "too long"),
        ("reward\0", "no filter"),
    ],
)
def test_what_is_no_comparison_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Filter(text)


def test_a_comparison_that_makes_no_sense_names_the_rollout() -> None:
    with pytest.raises(ConfigError, match=r"'<' not supported.*for task 0{15}7, rollout 2"):
        Filter("text < 3")(rollout())


@pytest.mark.parametrize("text", ["'a' * 1_000_000_000_000 in text", "reward * [1]", "text * 2"])
def test_only_numbers_are_multiplied(text: str) -> None:
    with pytest.raises(ConfigError, match="only numbers can be multiplied"):
        Filter(text)(rollout())


def test_a_number_that_is_too_large_is_a_plain_error() -> None:
    with pytest.raises(ConfigError, match=r"too large.*for task 0{15}7"):
        Filter(f"{'9' * 400} / reward > 1")(rollout())


def test_a_name_that_no_rollout_has_is_reported_at_the_end() -> None:
    some = Filter("rewrd > 0.5 or level > 2")
    some(rollout())
    some(rollout(level=1))
    with pytest.raises(ConfigError, match=r"no rollout has the field 'rewrd' \(did you mean 'rew"):
        some.check()
    some = Filter("level > 2")
    some(rollout())
    some(rollout(level=1))
    some.check()


@given(st.text(max_size=60))
def test_any_text_is_a_filter_or_a_plain_error(text: str) -> None:
    try:
        found = Filter(text)
        found(rollout())
    except ConfigError:
        return
