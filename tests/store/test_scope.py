"""The text of a scope: one spelling for each, and whatever an output holds can be read."""

import pytest

from rollout_kit.store.scope import Group, Scope, group_of, parse_scope, without_arm
from rollout_kit.types import Key


@pytest.mark.parametrize(
    ("scope", "text"),
    [
        (Scope(), ""),
        (Scope(append="0123456789ab"), "0123456789ab"),
        (Scope(arm="direct_0"), "arm=direct_0"),
        (Scope(epoch=0), "epoch=0"),
        (Scope(arm="direct_0", epoch=12), "arm=direct_0,epoch=12"),
        (Scope(append="0123456789ab", arm="a.b-c"), "append=0123456789ab,arm=a.b-c"),
        (Scope("0123456789ab", "a", 3), "append=0123456789ab,arm=a,epoch=3"),
    ],
)
def test_a_scope_has_one_text(scope: Scope, text: str) -> None:
    assert scope.text == text
    assert parse_scope(text) == scope


@pytest.mark.parametrize(
    "text",
    [
        "anything",
        "epoch=3,arm=a",
        "arm=",
        "epoch=x",
        "epoch=03",
        "epoch=²",
        "arm=a,arm=b",
        "a=1",
        ",",
    ],
)
def test_a_text_of_another_form_stays_as_it_is(text: str) -> None:
    assert parse_scope(text) == Scope(append=text)
    assert parse_scope(text).text == without_arm(text) == text


@pytest.mark.parametrize(
    ("text", "shared"),
    [
        ("", ""),
        ("0123456789ab", "0123456789ab"),
        ("arm=a", ""),
        ("arm=a,epoch=3", "epoch=3"),
        ("append=0123456789ab,arm=a", "0123456789ab"),
    ],
)
def test_all_arms_and_repeats_of_a_task_are_one_group(text: str, shared: str) -> None:
    assert without_arm(text) == shared
    assert group_of(Key("t", "agent", text, 4)) == Group("t", "agent", shared)
