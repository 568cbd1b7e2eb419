import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from rollout_kit.errors import ModelError, TaskError
from rollout_kit.responses import (
    function_call_item,
    function_call_output,
    message_item,
    output_text,
    reasoning_item,
)
from rollout_kit.serving.endpoints.chat import to_chat
from rollout_kit.serving.endpoints.replies import from_chat

TOOL = {
    "type": "function",
    "name": "add",
    "description": "Add.",
    "parameters": {"type": "object", "properties": {}},
    "strict": True,
}


def completion(message, finish_reason="stop", **fields):
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": finish_reason,
                "message": {"role": "assistant", **message},
            }
        ],
        **fields,
    }


def tool_call(name="add", arguments="{}", id="call_1"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def messages(*items, **options):
    return to_chat({"input": list(items)}, **options)["messages"]


def user(content):
    return {"role": "user", "content": content}


def test_a_string_is_a_user_message_and_instructions_come_first():
    body = to_chat({"model": "m", "input": "Hi", "instructions": "Be brief."})
    assert body == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, user("Hi")],
    }


def test_roles_are_kept_as_they_are():
    roles = ["system", "developer", "user", "assistant"]
    given = [{"role": role, "content": role} for role in roles]
    assert messages(*given) == given


def test_a_turn_of_text_and_calls_is_one_assistant_message_followed_by_its_tool_messages():
    turn = [
        message_item("I add."),
        function_call_item("add", '{"a":1}', "c1"),
        function_call_item("add", '{"a":2}', "c2"),
        function_call_output("c1", "1"),
        function_call_output("c2", "2"),
        function_call_item("add", "{}", "c3"),
        function_call_output("c3", "3"),
        message_item("Done."),
    ]
    assert messages(user("Go"), *turn) == [
        user("Go"),
        {
            "role": "assistant",
            "content": "I add.",
            "tool_calls": [tool_call("add", '{"a":1}', "c1"), tool_call("add", '{"a":2}', "c2")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
        {"role": "assistant", "content": None, "tool_calls": [tool_call(id="c3")]},
        {"role": "tool", "tool_call_id": "c3", "content": "3"},
        {"role": "assistant", "content": "Done."},
    ]


def test_text_after_the_calls_of_its_turn_does_not_part_them_from_their_outputs():
    items = [
        function_call_item("add", "{}", "c1"),
        message_item("Wait."),
        function_call_output("c1", "1"),
    ]
    call, _ = messages(*items)
    assert (call["content"], len(call["tool_calls"])) == ("Wait.", 1)


def test_two_assistant_messages_in_a_row_stay_two():
    assert len(messages(message_item("a"), message_item("b"))) == 2


def test_reasoning_is_dropped_or_given_back_on_its_turn():
    turn = [
        reasoning_item("Hm."),
        function_call_item("add", "{}", "c1"),
        function_call_output("c1", "1"),
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"text": "Ah."}]},
        message_item("Done."),
    ]
    assert not any("reasoning_content" in message for message in messages(*turn))
    call, _, answer = messages(*turn, reasoning_field="reasoning_content")
    assert (call["reasoning_content"], answer["reasoning_content"]) == ("Hm.", "Ah.")


def test_parts_become_chats_parts_and_lone_text_a_string():
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"}
    text = {"type": "input_text", "text": "What is it?"}
    assert messages(user([text])) == [user("What is it?")]
    assert messages(user([text, image])) == [
        user(
            [
                {"type": "text", "text": "What is it?"},
                {
                    "type": "image_url",
                    "image_url": {"url": "data:image/png;base64,AA", "detail": "low"},
                },
            ]
        )
    ]


def test_tools_and_their_choice_are_nested():
    body = to_chat(
        {
            "input": "",
            "tools": [TOOL],
            "tool_choice": {"type": "function", "name": "add"},
            "parallel_tool_calls": False,
        }
    )
    function = {key: value for key, value in TOOL.items() if key != "type"}
    assert body["tools"] == [{"type": "function", "function": function}]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    assert body["parallel_tool_calls"] is False


def test_without_tools_nothing_is_said_about_their_use():
    body = to_chat({"input": "", "tools": [], "tool_choice": "auto", "parallel_tool_calls": True})
    assert body == {"messages": [user("")]}


def test_parameters_take_chats_names_and_unknown_ones_are_passed_on():
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    body = to_chat(
        {
            "input": "",
            "max_output_tokens": 9,
            "reasoning": {"effort": "low", "summary": "auto"},
            "text": {"format": schema, "verbosity": "low"},
            "top_logprobs": 2,
            "temperature": 0,
            "top_p": 0.5,
            "seed": 7,
            "stop": ["x"],
            "service_tier": "flex",
            "user": "u",
            "metadata": {"a": "b"},
            "top_k": 40,
            "frequency_penalty": None,
            "include": ["x"],
            "truncation": "auto",
            "stream": True,
        }
    )
    del body["messages"]
    assert body == {
        "max_completion_tokens": 9,
        "reasoning_effort": "low",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
        },
        "verbosity": "low",
        "logprobs": True,
        "top_logprobs": 2,
        "temperature": 0,
        "top_p": 0.5,
        "seed": 7,
        "stop": ["x"],
        "service_tier": "flex",
        "user": "u",
        "metadata": {"a": "b"},
        "top_k": 40,
    }


def test_max_tokens_may_have_its_old_name():
    body = to_chat({"input": "", "max_output_tokens": 9}, max_tokens_field="max_tokens")
    assert body["max_tokens"] == 9 and "max_completion_tokens" not in body


@pytest.mark.parametrize(
    "params, complaint",
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"n": 2}, "num_repeats"),
        ({"tools": [{"type": "web_search"}]}, "web_search"),
        ({"tools": [TOOL], "tool_choice": {"type": "mcp"}}, "mcp"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
        ({"input": [user([{"type": "input_image", "file_id": "f"}])]}, "image_url"),
        ({"input": [user([{"type": "input_video"}])]}, "input_video"),
    ],
)
def test_what_chat_cannot_express_is_refused_by_name(params, complaint):
    with pytest.raises(TaskError, match=complaint):
        to_chat({"input": "", **params})


def test_text_becomes_a_message_and_usage_takes_the_responses_names():
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    params = {"tools": [TOOL], "tool_choice": None, "input": "x"}
    response = from_chat(completion({"content": "Hi"}, usage=usage), params)
    Response.model_validate(response, strict=False)
    assert (output_text(response), response["status"], response["model"]) == (
        "Hi",
        "completed",
        "m",
    )
    assert response["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 8,
    }


@pytest.mark.parametrize(
    "message, thought, said",
    [
        ({"content": "<think>Hm.</think>\n\nYes."}, "Hm.", "Yes."),
        ({"content": "\n<think>\nHm.\n</think>Yes."}, "Hm.", "Yes."),
        ({"content": "Hm.</think>Yes."}, "Hm.", "Yes."),
        ({"content": "Yes.", "reasoning_content": "Hm."}, "Hm.", "Yes."),
        ({"content": "Yes.", "reasoning": "Hm."}, "Hm.", "Yes."),
        ({"content": "Yes.", "reasoning_content": None}, None, "Yes."),
        ({"content": "I write <think> in my answer."}, None, "I write <think> in my answer."),
        ({"content": "<think></think>Yes."}, None, "Yes."),
    ],
)
def test_thought_is_told_apart_from_what_is_said(message, thought, said):
    output = from_chat(completion(message), {})["output"]
    *reasoning, answer = output
    assert [item["summary"][0]["text"] for item in reasoning] == ([thought] if thought else [])
    assert answer["content"][0]["text"] == said


def test_a_thought_that_was_cut_off_is_no_answer():
    response = from_chat(completion({"content": "<think>Hm, let me"}, "length"), {})
    assert [item["type"] for item in response["output"]] == ["reasoning"]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


def test_tool_calls_keep_their_ids_and_get_one_where_they_have_none():
    calls = [tool_call(id="c1"), tool_call(arguments={"a": 1}, id=None)]
    first, second = from_chat(completion({"content": None, "tool_calls": calls}), {})["output"]
    assert (first["call_id"], first["arguments"]) == ("c1", "{}")
    assert second["call_id"].startswith("call_") and second["arguments"] == '{"a":1}'


@pytest.mark.parametrize(
    "finish_reason, reason",
    [("length", "max_output_tokens"), ("content_filter", "content_filter")],
)
def test_a_reply_that_was_ended_early_is_incomplete(finish_reason, reason):
    response = from_chat(completion({"content": "Hal"}, finish_reason), {})
    Response.model_validate(response)
    assert (response["status"], response["incomplete_details"]) == (
        "incomplete",
        {"reason": reason},
    )
    assert response["output"][0]["status"] == "incomplete"


def test_a_refusal_is_a_part_of_the_message():
    response = from_chat(completion({"content": None, "refusal": "No."}), {})
    Response.model_validate(response)
    assert response["output"][0]["content"] == [{"type": "refusal", "refusal": "No."}]


def test_an_empty_reply_is_an_empty_message():
    response = from_chat(completion({"content": None}), {})
    assert [item["type"] for item in response["output"]] == ["message"]


@pytest.mark.parametrize(
    "reply",
    [
        None,
        [],
        "text",
        {},
        {"choices": []},
        {"choices": [None]},
        {"choices": [{}]},
        completion({"tool_calls": [{}]}),
        completion({"tool_calls": ["x"]}),
        completion({"tool_calls": 7}),
        completion({"content": 5}),
        completion({"content": {"text": "x"}}),
    ],
)
def test_what_is_no_completion_is_the_models_error_and_may_be_tried_again(reply):
    with pytest.raises(ModelError, match="not a chat completion") as caught:
        from_chat(reply, {})
    assert caught.value.retryable


@pytest.mark.parametrize(
    "usage",
    [
        [1],
        "many",
        {"prompt_tokens": "x", "completion_tokens": [1], "total_tokens": -3},
        {"prompt_tokens_details": 5, "completion_tokens_details": {"reasoning_tokens": "x"}},
    ],
)
def test_a_usage_of_wrong_types_counts_nothing(usage):
    response = from_chat({**completion({"content": "a"}), "usage": usage}, {})
    Response.model_validate(response)
    assert response["usage"]["total_tokens"] == 0


def test_several_choices_are_refused():
    twice = completion({"content": "a"})
    twice["choices"] *= 2
    with pytest.raises(TaskError, match="2 times"):
        from_chat(twice, {})


TEXT = st.text(max_size=20)
SAID = TEXT.filter(lambda text: text and "think>" not in text)
CALL = st.builds(
    lambda name, arguments, n: tool_call(name, orjson.dumps(arguments).decode(), f"call_{n}"),
    st.text("abc_", min_size=1),
    st.dictionaries(TEXT, st.integers(0, 9) | TEXT, max_size=2),
    st.integers(0, 99),
)


@given(said=SAID, thought=SAID | st.none(), calls=st.lists(CALL, max_size=3))
def test_an_assistant_turn_survives_the_way_there_and_back(said, thought, calls):
    message = {"role": "assistant", "content": said}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    response = from_chat(completion(message), {})
    Response.model_validate(response)
    back = messages(*response["output"], reasoning_field="reasoning_content")
    assert back == [message]
    ChatCompletion.model_validate(completion(message))
    assert orjson.loads(orjson.dumps(response)) == response
