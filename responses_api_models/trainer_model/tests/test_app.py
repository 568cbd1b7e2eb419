"""What the server makes of an engine's tokens. A template with a character for each token."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from support import use_model

from rollout_kit.errors import ModelError, TaskError
from rollout_kit.responses import function_call_output, function_calls, output_text
from rollout_kit.rl.adapters.engine import Sampled, TrainerEngine
from rollout_kit.serving import registry
from rollout_kit.session import Session, entered
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


class Aborting:
    """An engine that aborts each request behind some of the tokens of its answer."""

    def __init__(self, *parts: Sampled) -> None:
        self.parts = list(parts)
        self.asked: list[tuple[str, Any]] = []

    async def generate(self, prompt: list[int], sampling: Any, session: str) -> Sampled:
        self.asked.append(("".join(map(chr, prompt)), sampling))
        return self.parts.pop(0)

    def ask(self, *, times: int, resume: bool = True, index: int = 0, **params: Any) -> list[Any]:
        """The response of each attempt at a rollout; None where the request was aborted."""
        found: list[Any] = []

        async def scenario(model: Any) -> None:
            model.use_engine(TrainerEngine(self.generate, Letters()))
            for number in range(times):
                with entered(Session.of(("abc", number * index), None, "run")):
                    try:
                        found.append(await model.responses({"input": "Hi", **params}))
                    except ModelError as error:
                        assert error.retryable and "aborted" in str(error)
                        found.append(None)
            self.num_resumed = model.load_figures().get("resumed_turns", 0)

        use_model(TrainerModel, scenario, resume_turns=resume)
        return found


def part(text: str, reason: str = "abort", version: int | None = None, last: int = 0) -> Sampled:
    versions = None if version is None else Versions(version, last or version)
    log_probs = [-float(ord(each)) for each in text]
    return Sampled([ord(each) for each in text], log_probs, reason, versions)


def test_an_aborted_turn_goes_on_from_its_tokens() -> None:
    engine = Aborting(part("ab", version=1), part("c", version=2), part("d|", "stop", 2))
    first, second, made = engine.ask(times=3, seed=5, max_output_tokens=9)
    assert first is second is None and output_text(made) == "abcd" and engine.num_resumed == 2
    assert [prompt for prompt, _ in engine.asked] == ["u:Hi|a:", "u:Hi|a:ab", "u:Hi|a:abc"]
    told = [(asked["seed"], asked["max_tokens"]) for _, asked in engine.asked]
    assert told == [(5, 9), (7, 7), (8, 6)]
    [turn] = sequences(made["output"])[0].turns
    assert turn.generation == [*map(ord, "abcd|")]
    assert turn.log_probs == [-float(each) for each in turn.generation]
    assert made["output"][-1]["policy_version_spans"] == [[0, 2, 1], [2, 5, 2]]
    assert made["usage"]["output_tokens"] == 5


def test_an_aborted_turn_that_was_full_is_an_incomplete_response() -> None:
    engine = Aborting(part("ab"))
    _, made = engine.ask(times=2, max_output_tokens=2)
    assert made["status"] == "incomplete" and output_text(made) == "ab" and not engine.parts


def test_the_versions_of_a_rest_that_spans_an_update_are_those_of_the_whole() -> None:
    _, made = Aborting(part("ab", version=1), part("c|", "stop", 2, last=3)).ask(times=2)
    last = made["output"][-1]
    assert (last["policy_version_first"], last["policy_version_last"]) == (1, 3)
    assert "policy_version_spans" not in last and len(last["generation_log_probs"]) == 4


@pytest.mark.parametrize(
    ("aborted", "keys"),
    [
        (part("ab"), {"resume": False}),
        (part("ab"), {"stop": ["x"]}),
        (part("ab"), {"index": 1}),  # another rollout
        (part("ab", version=1, last=2), {}),  # it is unknown which version each token has
        (part(""), {}),
    ],
)
def test_other_aborted_turns_begin_anew(aborted: Sampled, keys: Any) -> None:
    engine = Aborting(aborted, part("cd|", "stop"))
    found = engine.ask(times=2, **keys)
    assert found[0] is None and output_text(found[1]) == "cd"
    assert [prompt for prompt, _ in engine.asked] == ["u:Hi|a:"] * 2


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
