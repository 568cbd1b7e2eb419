"""A chat request as create params and back is itself; a response as a completion says the same."""

import pytest
from openai.types.chat import ChatCompletion

from rollout_kit.errors import TaskError
from rollout_kit.responses import (
    function_call_item,
    make_response,
    message_item,
    output_text,
    reasoning_item,
)
from rollout_kit.serving.endpoints.chat import to_chat
from rollout_kit.serving.endpoints.completions import as_completion, as_params
from rollout_kit.serving.endpoints.replies import from_chat

USER = {"role": "user", "content": "Hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
FUNCTION = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}, "strict": True}


@pytest.mark.parametrize(
    "request_",
    [
        {"messages": [{"role": "system", "content": "Be brief."}, USER], "temperature": 0.5},
        {"messages": [USER], "max_completion_tokens": 5, "seed": 7, "stop": ["x"], "user": "u"},
        {"messages": [USER], "tools": [{"type": "function", "function": FUNCTION}]},
        {
            "messages": [USER],
            "tools": [{"type": "function", "function": FUNCTION}],
            "tool_choice": {"type": "function", "function": {"name": "add"}},
            "parallel_tool_calls": False,
        },
        {
            "messages": [
                USER,
                {"role": "assistant", "content": "Adding.", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "3"},
                {"role": "assistant", "content": "No.", "refusal": "I will not."},
                USER,
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
            ]
        },
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What is it?"},
                        {"type": "image_url", "image_url": {"url": "data:,", "detail": "low"}},
                        {"type": "file", "file": {"file_id": "f"}},
                    ],
                }
            ]
        },
        {
            "messages": [USER],
            "reasoning_effort": "low",
            "verbosity": "high",
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
            },
        },
        {"messages": [USER], "response_format": {"type": "json_object"}},
        {"messages": [USER], "logprobs": True, "top_logprobs": 2},
    ],
)
def test_a_request_is_itself_after_both_translations(request_):
    assert to_chat(as_params(request_)) == request_


def test_the_older_name_of_the_most_tokens_is_known_and_the_newer_one_wins():
    assert as_params({"messages": [USER], "max_tokens": 5})["max_output_tokens"] == 5
    both = {"messages": [USER], "max_tokens": 5, "max_completion_tokens": 7}
    assert as_params(both)["max_output_tokens"] == 7


def test_earlier_reasoning_is_kept():
    said = {"role": "assistant", "content": "Hi", "reasoning_content": "Hm."}
    made = to_chat(as_params({"messages": [USER, said]}), reasoning_field="reasoning_content")
    assert made["messages"][1] == said


@pytest.mark.parametrize(
    "request_, words",
    [
        ({}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [USER], "n": 2}, "n: there is one choice"),
        ({"messages": [USER], "functions": []}, "functions"),
        ({"messages": [{"role": "nobody"}]}, "role 'nobody'"),
        ({"messages": [USER], "tools": [{"type": "web_search"}]}, "tools"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "KeyError: 'function'"),
    ],
)
def test_what_cannot_be_expressed_is_a_bad_request(request_, words):
    with pytest.raises(TaskError, match=words) as caught:
        as_params(request_)
    assert caught.value.status == 400


@pytest.mark.parametrize("reason", [None, "max_output_tokens", "content_filter"])
def test_a_response_is_the_same_after_both_translations(reason):
    output = [
        reasoning_item("Hm."),
        message_item("Adding."),
        function_call_item("add", "{}", "c1"),
    ]
    usage = {
        "input_tokens": 7,
        "output_tokens": 5,
        "total_tokens": 12,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 2},
    }
    response = make_response("m", output, usage, incomplete_reason=reason)
    completion = as_completion(response)
    ChatCompletion.model_validate(completion)
    back = from_chat(completion, {})
    assert output_text(back) == "Adding." and back["usage"] == response["usage"]
    assert [item["type"] for item in back["output"]] == ["reasoning", "message", "function_call"]
    assert back["incomplete_details"] == response["incomplete_details"]
    assert back["output"][2]["call_id"] == "c1"


def test_token_ids_and_log_probs_travel_along():
    item = message_item("Hi") | {
        "prompt_token_ids": [1],
        "generation_token_ids": [2, 3],
        "generation_log_probs": [-0.5, -0.25],
    }
    completion = as_completion(make_response("m", [item], None))
    [choice] = completion["choices"]
    assert (completion["prompt_token_ids"], choice["token_ids"]) == ([1], [2, 3])
    assert [each["logprob"] for each in choice["logprobs"]["content"]] == [-0.5, -0.25]
