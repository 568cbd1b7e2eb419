"""Later turns: they continue the tokens that were sampled, or say why they do not."""

from typing import Any

from support import use_model

from rollout_kit.responses import function_call_output, output_text
from rollout_kit.serving import registry
from rollout_kit.trajectory import GENERATION, sequences

LocalModel: Any = registry.load("responses_api_models", "local_model")

NUMBERS = {"a": {"type": "integer"}, "b": {"type": "integer"}}
ADD = {
    "type": "function",
    "name": "add",
    "description": "Add two integers",
    "parameters": {"type": "object", "properties": NUMBERS, "required": ["a", "b"]},
}


def test_later_turns_continue_the_tokens_that_were_sampled_however_they_are_spelled():
    """At a high temperature, text is sampled in pieces that the tokenizer would not choose, and
    turns are cut off."""

    async def converse(model, seed):
        items, log = [{"role": "user", "content": "Use the tool: 17+25"}], []
        for turn in range(5):
            asked = {"input": items, "tools": [ADD], "temperature": 1.5, "seed": 10 * seed + turn}
            asked |= {"max_output_tokens": 12 + 20 * (turn % 2), "return_token_ids": True}
            response = await model.responses(asked)
            output = response["output"]
            log.append((response["usage"]["input_tokens"], output[-1][GENERATION]))
            results = [
                function_call_output(item["call_id"], "42")
                for item in output
                if item["type"] == "function_call"
            ]
            items += [*output, *(results or [{"role": "user", "content": "And 3+4?"}])]
        [sequence] = sequences(items)
        assert [turn.generation for turn in sequence.turns] == [made for _, made in log]
        prompts = [prompt for prompt, _ in sequence.pair_turns()]
        assert [len(prompt) for prompt in prompts] == [number for number, _ in log]
        text = model.tokenizer._tokenizer.decode(prompts[-1], skip_special_tokens=False)
        again = model.tokenizer._tokenizer.encode(text, add_special_tokens=False).ids
        assert text.count("<|im_end|>") == 10  # a turn that was cut off is ended by the template
        return again == prompts[-1], len([t for t in sequence.turns if not t.is_ended])

    async def scenario(model):
        return [await converse(model, seed) for seed in range(8)]

    found = use_model(LocalModel, scenario)
    assert not all(is_same for is_same, _ in found)  # else this test shows nothing
    assert sum(num_cut for _, num_cut in found) > 5


def test_a_turn_that_cannot_be_continued_begins_a_sequence_and_says_why():
    async def scenario(model):
        first = await model.responses({"input": "What is 3+4?", **params})
        items = [{"role": "user", "content": "What is 3+4?"}, *first["output"]]
        also = {"role": "user", "content": "And 5+6?"}
        edited = {**items[-1], "content": "I was edited."}
        others = [
            [items[0], edited, also],
            [*items, {"role": "assistant", "content": "and more"}, also],
            [{"role": "user", "content": "Changed."}, items[1], also],
        ]
        plain = {name: value for name, value in params.items() if name != "return_token_ids"}
        for other in others:
            found = await model.responses({"input": other, **params})
            bare = [{"role": each["role"], "content": each["content"]} for each in other]
            assert output_text(found) == output_text(
                await model.responses({"input": bare, **plain})
            )
            yield found["output"][-1].get("prompt_restart")

    params = {"temperature": 0, "return_token_ids": True}

    async def collect(model):
        return [why async for why in scenario(model)]

    assert use_model(LocalModel, collect) == [
        "the text of an earlier turn is not what was sampled",
        None,  # the whole prompt is rendered again, and happens to begin with the same tokens
        "the tokens before its earlier turns are rendered differently now",
    ]
