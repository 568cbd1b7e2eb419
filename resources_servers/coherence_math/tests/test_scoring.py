"""Golden vectors of the published rules, and properties of all profiles."""

import random
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_kit.serving.registry import load

server = load("resources_servers", "coherence_math")
scoring: Any = import_module(f"{server.__module__.rpartition('.')[0]}.scoring")
Member, Weights, extract, key_of, score = (
    getattr(scoring, name) for name in ("Member", "Weights", "extract", "key_of", "score")
)

GOLD = "2 + 2 = 4\n#### 4"
PROFILES = ["v1", "v3", "strict"]
TEXTS = st.lists(
    st.one_of(
        st.sampled_from(["Answer: 4", "so 4", "#### 5", "", "no idea", "\\boxed{4.0} units"]),
        st.text(max_size=60),
    ),
    min_size=1,
    max_size=11,
)


def words(number: int, answer: str) -> str:
    return " ".join(["word"] * (number - len(answer.split())) + [answer])


def steps(k: int) -> str:
    return "step " + "more " * k + "so Answer: 4"


def test_eight_agreeing_solutions_of_a_real_log() -> None:
    lengths = [23, 23, 23, 20, 24, 23, 22, 23]
    found = score([Member(words(n, "#### 4")) for n in lengths], GOLD, "v1")
    assert found.group["s_end"] == 1 and found.group["s_cf"] == 0.5
    assert found.group["s_path"] == pytest.approx(0.948264573222703, abs=1e-12)
    assert found.group["s_wm"] == pytest.approx(0.834479371966811, abs=1e-12)
    assert found.rewards == pytest.approx([1.6172396859834055] * 8, abs=1e-12)


def test_four_arms_with_one_wrong_answer() -> None:
    members = [
        Member("Two plus two is four. Answer: 4"),
        Member("2 + 2 = 4. Answer: 4.0"),
        Member("I get five. Answer: 5", "CF1"),
        Member("Restating: add two and two. That is 4. Answer: 4", "A"),
    ]
    found = score(members, "... #### 4", "v3")
    assert [bool(parts["correct"]) for parts in found.components] == [True, True, False, True]
    assert found.group["s_end"] == 0.5 and found.group["s_cf"] == 0.75
    assert found.group["s_path"] == pytest.approx(0.3616971369335973, abs=1e-12)
    assert found.group["s_wm"] == pytest.approx(0.44467885477343894, abs=1e-12)
    golden = [1.402339427387, 1.368053713101, 0.222339427387, 1.402339427387]
    assert found.rewards == pytest.approx(golden, abs=1e-12)


def test_without_a_canonical_solution_quality_is_length_alone() -> None:
    lengths = [1, 5, 9, 2, 7, 3, 4, 6]
    found = score([Member(steps(k)) for k in lengths], GOLD, "v3")
    assert max(found.rewards) - min(found.rewards) == pytest.approx(0.3, abs=1e-12)
    probes = [Member(steps(8), "A"), Member(steps(10), "A_prime"), Member(steps(12), "CF1")]
    found = score([*(Member(steps(k)) for k in lengths), *probes], GOLD, "v3")
    golden = "1.9583 1.9147 1.871 1.9474 1.8928 1.9365 1.9256 1.9037 1.8819 1.8601 1.8383"
    assert [round(reward, 4) for reward in found.rewards] == list(map(float, golden.split()))
    assert found.group["s_path"] == pytest.approx(0.7914543415264699, abs=1e-12)


@pytest.mark.parametrize(
    ("text", "answer", "key"),
    [
        ("He has 18 dollars, right.", ",", ""),
        ("Answer: $1,000.", "1,000.", "1000"),
        ("Answer: 18.", "18.", "18"),
        ("Answer: The total, 5", ",", ""),
        ("5-3", "-3", "-3"),
        ("answer: 18 because 2", "2", "2"),
        ("**Answer:** 18", "18", "18"),
        ("Answer: 1/2", "1", "1"),
        ("Answer: 3 + 4 = 7", "3", "3"),
        ("\\boxed{42}", "42", "42"),
        ("", "", ""),
        ("Answer: none. #### 7", "7", "7"),
        ("1.50", "1.50", "1.50"),
    ],
)
def test_v3_reads_answers_as_the_published_rules_do(text: str, answer: str, key: str) -> None:
    assert (extract(text, "v3"), key_of(text, "v3")) == (answer, key)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("He has 18 dollars, right.", "18"),
        ("Answer: The total, 5", "5"),
        ("5-3", "3"),
        ("it is -3", "-3"),
        ("answer: 18\nbecause of 2 reasons", "18"),
        ("**Answer:** 18", "18"),
        ("Answer: 1/2", "1/2"),
        ("Answer: 0.5", "1/2"),
        ("Answer: 3 + 4 = 7", "7"),
        ("\\boxed{42} and 7 more", "42"),
        ("Answer: 1,000.00", "1000"),
        ("Answer: 1/0", ""),
        ("no number", ""),
        ("", ""),
        ("Answer: \n#### 12", "12"),
    ],
)
def test_the_strict_profile_reads_answers_without_their_flaws(text: str, key: str) -> None:
    assert key_of(text, "strict") == key


def test_the_bonus_needs_unanimity() -> None:
    right, wrong = Member("Answer: 4"), Member("Answer: 5")
    for profile in PROFILES:
        assert score([right] * 8, GOLD, profile).components[0]["bonus"] == 0.2
        assert score([right] * 7 + [wrong], GOLD, profile).components[0]["bonus"] == 0.0


def test_members_without_an_answer_agree_in_v3_and_not_in_strict() -> None:
    lost = [Member("no idea"), Member("I give up")]
    assert score(lost, GOLD, "strict").group["s_end"] == 0.0
    assert score([Member(","), Member(", ,")], GOLD, "v3").group["s_end"] == 1.0


def test_agreeing_members_earn_more_than_a_lone_one_in_strict() -> None:
    found = score([Member("Answer: 7"), Member("Answer: 7"), Member("Answer: 9")], GOLD, "strict")
    assert found.rewards[0] == found.rewards[1] > found.rewards[2]


def test_tokens_count_where_they_are_known_and_the_penalty_can_be_reached() -> None:
    long = score([Member("Answer: 4", length=612), Member("Answer: 4", length=10)], GOLD, "strict")
    assert long.components[0]["length_penalty"] == pytest.approx(-0.1)
    assert long.components[1]["length_penalty"] == 0.0
    assert score([Member(words(612, "Answer: 4"))], GOLD, "v3").components[0][
        "length_penalty"
    ] == pytest.approx(-0.1)


def test_the_doubting_member_is_compared_with_the_canonical_ones_in_strict() -> None:
    members = [Member("Answer: 4", "A"), Member("Answer: 4", "A_prime"), Member("5", "CF1")]
    assert score(members, GOLD, "strict").group["s_cf"] == 0.0
    assert score([*members[:2], Member("4", "CF1")], GOLD, "strict").group["s_cf"] == 1.0
    assert score(members[:2], GOLD, "strict").group["s_cf"] == 0.5


@pytest.mark.parametrize("profile", PROFILES)
@given(TEXTS, st.integers(0, 1000))
def test_any_texts_have_finite_rewards_in_any_order(
    profile: str, texts: list[str], seed: int
) -> None:
    members = [Member(text) for text in texts]
    found = score(members, GOLD, profile)
    order = list(range(len(members)))
    random.Random(seed).shuffle(order)
    again = score([members[place] for place in order], GOLD, profile)
    assert again.rewards == pytest.approx([found.rewards[place] for place in order], abs=1e-12)
    assert all(-1e6 < reward <= 2.0 + 1e-9 for reward in found.rewards)
    assert all(0 <= figure <= 1 + 1e-12 for figure in found.group.values())


def test_weights_scale_the_parts_of_a_reward() -> None:
    members = [Member("word " * 600 + "Answer: 18", "A"), Member("Answer: 18"), Member("Answer: 3")]
    plain = score(members, GOLD)
    weights = Weights(2.0, 1.5, 0.0, 0.4, 0.002, 100)
    other = score(members, GOLD, "strict", weights)
    for before, after in zip(plain.components, other.components, strict=True):
        assert after["correct"] == 2 * before["correct"]
        assert after["coherence"] == pytest.approx(3 * before["coherence"])
        assert after["quality"] == 0
    assert other.components[0]["length_penalty"] == pytest.approx(-0.002 * (602 - 100))
    assert other.rewards == [sum(parts.values()) for parts in other.components]
