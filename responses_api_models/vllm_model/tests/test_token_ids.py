"""Turns after the first, with token ids: in front of the stand-in, whose text is never tokenized as
it was sampled."""

import pytest

from rollout_kit.serving import registry
from rollout_kit.trajectory import sequences

VllmModel = registry.load("responses_api_models", "vllm_model")
SAMPLED = [1011, 1012, 2]
HI = [1, *map(ord, "user:Hi"), 2, 1]


def tokens(text):
    return [1, *map(ord, text), 2]


async def turn(model, items, **params):
    """The items of one more turn."""
    response = await model.responses({"input": items, **params})
    return [*items, *response["output"]]


async def talk(model, num_turns=3, **params):
    items = [{"role": "user", "content": "Hi"}]
    for number in range(num_turns):
        items = await turn(model, items, **params)
        items.append({"role": "user", "content": f"And {number}?"})
    return items[:-1]


def test_what_was_sampled_is_what_is_sent_back(fakes):
    items = fakes.run(talk, return_token_ids=True)
    [sequence] = sequences(items)
    suffixes = [[*tokens(f"user:And {number}?"), 1] for number in range(2)]
    assert [turn.added for turn in sequence.turns] == [HI, *suffixes]
    second, third = (each["token_ids"] for each in fakes.seen("generated"))
    assert second == HI + SAMPLED + suffixes[0]
    assert third == second + SAMPLED + suffixes[1] == sequence.token_ids[: -len(SAMPLED)]
    assert not any("prompt_restart" in item for item in items)
    assert len(fakes.seen("asked")) == 1


def test_the_end_of_turn_is_no_text_and_the_asked_length_stays(fakes):
    fakes.run(lambda model: talk(model, 2, max_output_tokens=9), return_token_ids=True)
    [derendered] = fakes.seen("derendered")
    [choice] = derendered["generate_response"]["choices"]
    assert choice["token_ids"] == SAMPLED[:-1]
    assert derendered["chat_request"]["messages"][-1] == {"role": "user", "content": "And 0?"}
    assert fakes.seen("generated")[0]["sampling_params"]["max_tokens"] == 9


def test_each_turn_tells_its_temperature(fakes):
    async def use(model):
        by_default = await talk(model, 2)
        given = await talk(model, 2, temperature=0.3)
        return [
            [each["generation_temperature"] for each in items if "generation_token_ids" in each]
            for items in (by_default, given)
        ]

    assert fakes.run(use, return_token_ids=True) == [[0.6, 0.6], [0.3, 0.3]]


@pytest.mark.parametrize(
    ("plan", "change", "params", "why"),
    [
        ({"scale_out": False}, None, {}, "without --enable-scale-out"),
        ({}, lambda items: items[0].update(content="Ho"), {}, "rendered differently now"),
        ({}, lambda items: items.pop(0), {}, "rendered differently now"),
        ({}, lambda items: items[1].pop("prompt_token_ids"), {}, "incomplete"),
        ({}, lambda items: None, {"max_output_tokens": 3}, "was cut off"),
        (
            {},
            lambda items: items.insert(2, {"role": "assistant", "content": "!"}),
            {},
            "something was added",
        ),
    ],
)
def test_a_prompt_that_begins_anew_says_why(fakes, caplog, plan, change, params, why):
    async def use(model):
        for _ in range(2):
            items = await talk(model, 1, **params)
            items.append({"role": "user", "content": "And?"})
            if change:
                change(items)
            items = await turn(model, items, **params)
        return items[-1]

    fakes.plan(**plan)
    last = fakes.run(use, return_token_ids=True)
    assert why in last["prompt_restart"]
    assert last["prompt_token_ids"][-6:] == [*map(ord, "And?"), 2, 1]
    told = [each for each in caplog.messages if "is rendered anew" in each]
    assert len(told) == 1 and why in told[0]


@pytest.mark.parametrize(("log_prob", "num_warnings"), [(0.0, 0), (-0.4, 1)])
def test_raw_log_probs_are_warned_of_once(fakes, caplog, log_prob, num_warnings):
    fakes.plan(log_prob=log_prob)
    fakes.run(talk, return_token_ids=True)
    assert sum("raw log-probs" in each for each in caplog.messages) == num_warnings


def test_nothing_is_asked_beside_where_no_token_ids_are_wanted(fakes):
    fakes.run(talk)
    assert len(fakes.seen("asked")) == 3 and not fakes.seen("generated")


def test_a_conversation_beyond_the_context_ends_as_an_incomplete_response(fakes):
    async def use(model):
        items = [*await talk(model, 2), {"role": "user", "content": "And?" * 600}]
        return await model.responses({"input": items})

    response = fakes.run(use, return_token_ids=True)
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert len(fakes.seen("generated")[-1]["token_ids"]) > 2048
    assert len(fakes.seen("asked")) == 1
