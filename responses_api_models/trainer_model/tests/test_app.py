"""What the server makes of an engine's tokens. A template with a character for each token."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rollout_kit.errors import ModelError, TaskError
from rollout_kit.responses import function_call_output, function_calls, output_text
from rollout_kit.rl.adapters.engine import Sampled, TrainerEngine
from rollout_kit.serving import registry
from rollout_kit.trajectory import Versions, sequences

TrainerModel: Any = registry.load("responses_api_models", "trainer_model")
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}


class Letters:
    """One token for each character; `|` ends a turn."""

    all_special_ids = (ord("|"),)

    def __init__(self, opening: str = "") -> None:
        self.opening = opening
        self.tools: Any = None

    def apply_chat_template(
        self, messages: Sequence[Any], tools: Any, add_generation_prompt: bool, tokenize: bool
    ) -> str:
        self.tools = tools
        said = ""
        for each in messages:
            functions = [call["function"] for call in each.get("tool_calls") or ()]
            calls = [(one["name"], one["arguments"]) for one in functions]
            told = "".join(
                f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'
                for name, arguments in calls
            )
            said += f"{each['role'][0]}:{each['content']}{told}|"
        return said + (f"a:{self.opening}" if add_generation_prompt else "")

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        return "".join(map(chr, token_ids)).replace("|", "")


def asking(answers: Sequence[Sampled | str], *params: Any, opening: str = "") -> list[Any]:
    """The response to each set of params; one can be made of the response before it."""
    waiting = [
        one
        if isinstance(one, Sampled)
        else Sampled([ord(each) for each in one + "|"], [-1.0] * (len(one) + 1), "stop")
        for one in answers
    ]

    async def generate(prompt: list[int], sampling: Any, session: str) -> Sampled:
        return waiting.pop(0)

    async def main() -> list[Any]:
        model = TrainerModel(TrainerModel.Config(), None, "policy_model")
        model.use_engine(TrainerEngine(generate, Letters(opening)))
        found: list[Any] = []
        for each in params:
            found.append(await model.responses(each(found[-1]) if callable(each) else each))
        return found

    return asyncio.run(main())


def test_a_call_and_what_follows_it() -> None:
    def later(response: Any) -> Any:
        [call] = function_calls(response["output"])
        assert (call["name"], call["arguments"]) == ("add", '{"a": 1}')
        told = function_call_output(call["call_id"], "2")
        first = {"role": "developer", "content": "Hi"}
        return {"input": [first, *response["output"], told], "tools": [ADD]}

    first = {"input": [{"role": "developer", "content": "Hi"}], "tools": [ADD]}
    one, two = asking([CALL, "It is 2"], first, later)
    [sequence] = sequences([*one["output"], *two["output"]])
    assert "".join(map(chr, sequence.token_ids)) == f"s:Hi|a:{CALL}|t:2|a:It is 2|"
    assert output_text(two) == "It is 2"
    assert one["usage"]["output_tokens"] == len(CALL) + 1


def test_thoughts_that_the_template_opens() -> None:
    def later(response: Any) -> Any:
        return {"input": [{"role": "user", "content": "Hi"}, *response["output"], MORE]}

    MORE = {"role": "user", "content": "?"}
    one, two = asking(["Yes", "No"], {"input": "Hi"}, later, opening="<think></think>")
    [sequence] = sequences([*one["output"], *two["output"]])
    opened = "a:<think></think>"
    assert "".join(map(chr, sequence.token_ids)) == f"u:Hi|{opened}Yes|u:?|{opened}No|"


def test_a_turn_that_was_cut_off_keeps_its_end_open() -> None:
    def later(response: Any) -> Any:
        more = {"role": "user", "content": "?"}
        return {"input": [{"role": "user", "content": "Hi"}, *response["output"], more]}

    cut = Sampled([ord("x")], [-1.0], "length", Versions(3, 4))
    one, two = asking([cut, "No"], {"input": "Hi"}, later)
    assert one["status"] == "incomplete"
    assert one["output"][-1]["policy_version_first"] == 3
    [sequence] = sequences([*one["output"], *two["output"]])
    assert "".join(map(chr, sequence.token_ids)) == "u:Hi|a:x|u:?|a:No|"
    assert [turn.is_ended for turn in sequence.turns] == [False, True]


def test_an_engine_tells_the_version_of_each_token() -> None:
    told = Sampled([ord("x"), ord("|")], [-1.0, -1.0], "stop", token_versions=[3, 4])
    [one] = asking([told], {"input": "Hi"})
    assert one["output"][-1]["policy_version_last"] == 4
    assert one["output"][-1]["policy_version_spans"] == [[0, 1, 3], [1, 2, 4]]


def test_a_conversation_that_was_changed_begins_a_new_sequence() -> None:
    def later(response: Any) -> Any:
        return {"input": [{"role": "user", "content": "Ho"}, *response["output"], MORE]}

    MORE = {"role": "user", "content": "?"}
    one, two = asking(["Yes", "No"], {"input": "Hi"}, later)
    assert "rendered differently" in two["output"][-1]["prompt_restart"]
    assert len(sequences([*one["output"], *two["output"]])) == 2


@pytest.mark.parametrize("text", ["", "|"])
def test_tokens_without_text_are_kept(text: str) -> None:
    [response] = asking([text], {"input": "Hi"})
    assert sequences(response["output"])[0].turns[0].generation == [*map(ord, text), ord("|")]


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(TaskError, match="tool_choice"):
        asking(["x"], {"input": "Hi", "tools": [ADD], "tool_choice": "required"})
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    with pytest.raises(TaskError, match="is not text"):
        asking(["x"], {"input": [{"role": "user", "content": [image]}]})
    with pytest.raises(ModelError, match="aborted"):
        asking([Sampled([], [], "abort")], {"input": "Hi"})
    alone = TrainerModel(TrainerModel.Config(), None, "policy_model")
    with pytest.raises(ModelError, match="there is no engine"):
        asyncio.run(alone.responses({"input": "Hi"}))
