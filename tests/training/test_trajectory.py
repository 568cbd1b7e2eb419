"""Token ids on items, and the sequences that they make up."""

import pytest

from rollout_kit.trajectory import TokenSequence, prompt_fields, sequences


def item(generation, **fields):
    log_probs = [-0.5] * len(generation)
    return {"generation_token_ids": generation, "generation_log_probs": log_probs, **fields}


def test_turns_that_continue_each_other_are_one_sequence():
    items = [
        {"role": "user", "content": "Hi"},
        item([4, 5], prompt_token_ids=[1, 2]),
        {"type": "function_call_output"},
        item([7], prompt_suffix_token_ids=[6]),
        item([9], prompt_token_ids=[8], prompt_restart="…"),
    ]
    first, second = sequences(items)
    assert first.token_ids == [1, 2, 4, 5, 6, 7]
    assert first.is_generated == [False, False, True, True, False, True]
    assert first.log_probs == [0, 0, -0.5, -0.5, 0, -0.5]
    assert second.token_ids == [8, 9]


def test_whole_prompts_that_continue_each_other_are_one_sequence_too():
    items = [
        item([4, 5], prompt_token_ids=[1, 2]),
        item([7], prompt_token_ids=[1, 2, 4, 5, 6]),
        item([7], prompt_token_ids=[1, 2, 4, 6]),
    ]
    assert [each.token_ids for each in sequences(items)] == [[1, 2, 4, 5, 6, 7], [1, 2, 4, 6, 7]]


@pytest.mark.parametrize("prompt", [[1], [1, 2, 3], [1, 2, 4], [1, 2, 4, 5], [1, 2, 4, 5, 6]])
def test_a_prompt_is_told_whole_or_by_its_suffix(prompt):
    before = sequences([item([4, 5], prompt_token_ids=[1, 2])])[0]
    told = item([7], **prompt_fields(prompt, before, "why"))
    found = sequences([item([4, 5], prompt_token_ids=[1, 2]), told])
    assert (len(found) == 1) == (prompt[:4] == [1, 2, 4, 5])
    assert ("prompt_restart" in told) == (len(found) == 2)
    whole = found[-1].token_ids
    assert whole == [*prompt, 7]


def test_a_first_prompt_is_whole():
    assert prompt_fields([1], None, "") == {"prompt_token_ids": [1]}
    assert TokenSequence([]).token_ids == []


def test_a_turn_that_continues_nothing_is_refused():
    with pytest.raises(ValueError, match="is missing"):
        sequences([item([7], prompt_suffix_token_ids=[6])])
