"""What a later turn adds, found in conversations that templates render in their several ways."""

import asyncio
import importlib
import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_kit.rl import suffix
from rollout_kit.serving import registry
from rollout_kit.trajectory import SampledTurn

PARTS = registry.load("responses_api_models", "vllm_model").__module__.rpartition(".")[0]
token_in = importlib.import_module(f"{PARTS}.token_in")

START, END, THINK, END_THINK = 1, 2, 3, 4
WORDS = st.lists(st.integers(10, 20), min_size=1, max_size=6)
DRIFT = 100
"""Added to a word: sampled so, and rendered as the plain word."""


def rendered(messages, *, opening=True, keeps_thoughts=lambda place, messages: True, head=()):
    """ChatML of tokens; a thought is a message's third part."""
    ids = []
    for place, (role, words, *thought) in enumerate(messages):
        shown = bool(thought) and keeps_thoughts(place, messages)
        said = [THINK, *thought[0], END_THINK] if shown else []
        ids += [START, ord(role), *said, *[word % DRIFT for word in words], END, 9]
    return ids + ([START, ord("a"), *head] if opening else [])


def sampled(added, generation, is_ended=True):
    return SampledTurn(added, generation, [0.0] * len(generation), 1.0, is_ended)


def asked(messages, turns, thought=None, **template):
    """The prompt that token_in finds for one more turn, in front of a template instead of vLLM."""

    async def ask(path, body):
        shown = [m[:2] for m in body["messages"]] if body.get("bare") else body["messages"]
        opening = body.get("add_generation_prompt", True)
        ids = rendered(shown, opening=opening, **template)
        payload = {"token_ids": ids, "sampling_params": {}}
        return SimpleNamespace(status=200, raw=json.dumps(payload).encode())

    last = max(n for n, each in enumerate(messages) if each[0] == "a")
    later = token_in.LaterTurn(
        {"messages": messages},
        {"messages": messages[: last + 1], "add_generation_prompt": False},
        {"messages": messages, "bare": True},
        turns,
        thought or [False] * len(turns),
    )
    return asyncio.run(token_in._request(later, ask))[1]


@given(st.lists(st.tuples(WORDS, st.lists(st.booleans(), min_size=6, max_size=6)), min_size=1))
def test_what_was_sampled_stays_and_what_is_between_is_the_template_s(said):
    messages, turns, sequence = [("u", [10])], [], []
    for words, drifts in said:
        prompt = rendered(messages)
        if turns:
            prompt = asked(messages, turns)
            assert prompt[: len(sequence)] == sequence
            assert prompt[len(sequence) :] == [9, START, ord("t"), 17, END, 9, START, ord("a")]
        generation = [w + DRIFT * d for w, d in zip(words, drifts, strict=False)] + [END]
        turns.append(sampled(prompt[len(sequence) :], generation))
        sequence = prompt + generation
        messages += [("a", words), ("t", [17])]


def test_an_end_of_turn_within_a_text_does_not_end_the_turn():
    """A model that spells it out, letter by letter: rendered, it is the token itself."""
    messages = [("u", [10]), ("a", [11, END, 12]), ("u", [13])]
    turns = [sampled(rendered(messages[:1]), [11, 50, 51, 12, END])]
    prompt = asked(messages, turns)
    assert prompt == [
        *rendered(messages[:1]),
        *turns[0].generation,
        *[9, START, ord("u"), 13, END, 9, START, ord("a")],
    ]


def test_a_generation_prompt_that_history_has_not_is_kept():
    messages = [("u", [10]), ("a", [11]), ("u", [13])]
    head = [THINK, END_THINK]  # what disabled thinking looks like
    turns = [sampled(rendered(messages[:1], head=head), [11, END])]
    prompt = asked(messages, turns, head=head)
    assert prompt[: len(rendered(messages[:1], head=head))] == turns[0].added
    assert prompt[-len(head) - 5 :] == [13, END, 9, START, ord("a"), *head]


def test_reasoning_that_the_template_keeps_is_kept_as_it_was_sampled():
    messages = [("u", [10]), ("a", [11], [15]), ("t", [13])]
    turns = [sampled(rendered(messages[:1]), [THINK, 115, END_THINK, 11, END])]
    start = len(turns[0].added)
    assert asked(messages, turns, [True])[start : start + 5] == turns[0].generation


def test_reasoning_that_the_template_leaves_out_is_not_sent_back():
    def since_the_user_spoke(place, messages):
        return not any(role == "u" for role, *_ in messages[place:])

    messages = [("u", [10]), ("a", [11], [15]), ("t", [13]), ("a", [12], [16])]
    first = sampled(rendered(messages[:1]), [THINK, 15, END_THINK, 11, END])
    middle = asked(messages[:3], [first], [True], keeps_thoughts=since_the_user_spoke)
    known = [*first.added, *first.generation]
    second = sampled(middle[len(known) :], [THINK, 16, END_THINK, 12, END])
    assert middle[: len(known)] == known
    with pytest.raises(suffix.Restart, match="reasoning"):
        asked(
            [*messages, ("u", [14])],
            [first, second],
            [True, True],
            keeps_thoughts=since_the_user_spoke,
        )


@pytest.mark.parametrize(
    ("messages", "generation", "why"),
    [
        ([("u", [11]), ("a", [11]), ("u", [13])], [11, END], "rendered differently now"),
        ([("u", [10]), ("a", [11]), ("u", [13])], [11, 5], "ends a turn differently"),
        ([("s", [12]), ("u", [10]), ("a", [11]), ("u", [13])], [11, END], "rendered differently"),
    ],
)
def test_another_conversation_is_not_continued(messages, generation, why):
    with pytest.raises(suffix.Restart, match=why):
        asked(messages, [sampled(rendered([("u", [10])]), generation)])
