"""Anthropic's Messages API behind our items, at an endpoint that refuses as the real one does."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from claude import Claude, Refused, events_of
from hosted import Endpoint, aborts, asks, gives, running, streams, with_model
from kill_counts import TURNS, count_command, run_through_a_kill, verify_again

from rollout_kit.errors import ModelError, TaskError
from rollout_kit.responses import function_call_output, function_calls, output_text
from rollout_kit.serving.endpoints.completions import as_completion
from rollout_kit.serving.endpoints.completions import as_params as params_of_chat
from rollout_kit.serving.endpoints.messages import as_message
from rollout_kit.serving.endpoints.messages import as_params as params_of_messages
from rollout_kit.serving.registry import load
from rollout_kit.session import Session
from rollout_kit.types import JsonObject

AnthropicModel = load("responses_api_models", "anthropic_model")

KEY = "a-key-of-a-provider"
ADD: JsonObject = {
    "type": "function",
    "name": "add",
    "description": "Add.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
ASKED: JsonObject = {"input": "Count.", "tools": [ADD], "max_output_tokens": 4000}


def thinking(text: str, name: str) -> JsonObject:
    return {"type": "thinking", "thinking": text, "signature": f"signature {name} +/="}


def call(call_id: str, **given: Any) -> JsonObject:
    caller = {"type": "direct"}
    return {"type": "tool_use", "id": call_id, "name": "add", "input": given, "caller": caller}


def count(turn: int, request: JsonObject) -> list[JsonObject]:
    """Thoughts of all kinds, texts and calls, until the sum is said. The endpoint understands a
    call without its caller, so an answer that is compared has none."""
    if turn == TURNS:
        return [{"type": "text", "text": f"It is {TURNS}."}]
    name = f"{request['messages'][0]['content'][-1]['text'][:8]} {turn}"
    calls = [call(f"toolu_{turn}_{n}", a=turn, b=n) for n in range(1 + turn % 2)]
    for each in calls:
        del each["caller"]
    hidden: list[JsonObject] = [{"type": "redacted_thinking", "data": f"hidden {name}"}]
    first = [thinking(f"Thought {turn}:\n\n  add one. ", name)]
    match turn % 4:
        case 0:
            return [*hidden, *calls]
        case 1:
            return [*first, {"type": "text", "text": "I add."}, *calls]
        case 2:
            return [*first, *hidden, *calls]
        case _:
            later = [thinking("", f"later {name}")]
            return [*first, {"type": "text", "text": "Well."}, *later, *calls]


def at(**settings: Any) -> Callable[[str], Any]:
    def make(url: str) -> Any:
        given = {"anthropic_base_url": url, "anthropic_api_key": KEY, "anthropic_model": "claude-x"}
        return AnthropicModel(
            AnthropicModel.Config.model_validate({**given, **settings}), None, "policy_model"
        )

    return make


def ask(endpoint: Any, params: JsonObject, session: Session | None = None, **settings: Any) -> Any:
    return with_model(endpoint, asks(params, session), at(**settings))


def answers(*blocks: JsonObject, reason: str = "end_turn", **fields: Any) -> JsonObject:
    usage = {"input_tokens": 3, "output_tokens": 5}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x"}
    return {**message, "content": list(blocks), "stop_reason": reason, "usage": usage, **fields}


TEXT: JsonObject = {"type": "text", "text": "Hi"}


# Rollouts of ten turns


def command(folder: Path, url: str, *words: str) -> list[str]:
    where = [f"policy_base_url={url}", f"policy_api_key={KEY}"]
    where += ["policy_model_name=claude-sonnet-5"]
    model = "responses_api_models/anthropic_model/configs/anthropic_model.yaml"
    return count_command(folder, model, *where, *words)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_ten_turns_pass_though_the_run_is_killed_and_the_endpoint_overloaded(
    tmp_path: Path, is_streamed: bool
) -> None:
    claude = Claude(count)
    claude.troubles = [
        Refused(529, "overloaded_error", "Overloaded"),
        Refused(429, "rate_limit_error", "too many", retry_after="0.1"),
        Refused(500, "api_error", "Internal server error"),
    ]
    key = "++policy_model.responses_api_models.anthropic_model"
    with running(claude) as url:
        words = command(tmp_path, url, f"{key}.stream={str(is_streamed).lower()}")
        words.append(f"{key}.prices={{input: 2, output: 10, cached_input: 0.2, cache_write: 2.5}}")
        claude.held_at = 8
        release = partial(setattr, claude, "held_at", 0)
        lines = run_through_a_kill(tmp_path, words, claude.is_held, release)
    assert not claude.refused
    assert all(line["rollout"]["cost_usd"] > 0 for line in lines)
    assert {line["rollout"]["num_turns"] for line in lines} == {TURNS}
    assert "repaired" not in json.dumps([line["rollout"] for line in lines])
    verify_again(tmp_path, lines)


def test_thirty_two_turns_cost_what_a_cache_makes_of_them() -> None:
    """The example: a prefix of 4 k tokens, 3 k more with each turn, $2 and $10 a million."""

    def act(turn: int, request: JsonObject) -> list[JsonObject]:
        return [call(f"toolu_{turn}", a=turn)]

    claude, session, results = Claude(act), Session(), "x" * (4 * 2950)
    prices = {"input": 2, "output": 10, "cached_input": 0.2, "cache_write": 2.5}

    async def use(model: Any) -> None:
        tool = {**ADD, "description": "x" * (4 * 3900)}
        items: list[JsonObject] = [{"role": "user", "content": "Begin."}]
        for _ in range(32):
            params = {"input": items, "tools": [tool], "max_output_tokens": 100}
            response = await asks(params, session)(model)
            [made] = function_calls(response["output"])
            items = [*items, *response["output"], function_call_output(made["call_id"], results)]

    with_model(claude, use, at(prices=prices))
    sent = [
        sum(each[name] for name in each if name.endswith("input_tokens")) for each in claude.usages
    ]
    assert 3_900 < sent[0] < 4_100 and 2_950 < sent[2] - sent[1] < 3_050
    bare = sum(sent) * 2e-6
    paid = session.spent.usd - 32 * 20 * 10e-6
    read = [each["cache_read_input_tokens"] for each in claude.usages]
    assert bare == pytest.approx(3.2, abs=0.1)
    assert 0.5 < paid <= 0.60
    assert sum(read[1:]) >= 0.85 * sum(sent[1:])


def test_a_turn_of_many_calls_reads_the_turn_before_from_the_cache() -> None:
    """The endpoint looks back twenty blocks from a mark."""

    def act(turn: int, request: JsonObject) -> list[JsonObject]:
        return [call(f"toolu_{turn}_{n}", a=n) for n in range(15)]

    claude, tool = Claude(act), {**ADD, "description": "x" * 8000}
    with_model(claude, lambda model: converse_many(model, tool, 3), at())
    assert [bool(each["cache_read_input_tokens"]) for each in claude.usages] == [False, True, True]
    last = claude.usages[-1]
    assert last["input_tokens"] == 0
    assert last["cache_read_input_tokens"] > claude.usages[1]["cache_read_input_tokens"]


async def converse_many(model: Any, tool: JsonObject, turns: int) -> None:
    items: list[JsonObject] = [{"role": "user", "content": "Begin."}]
    for _ in range(turns):
        response = await model.responses({"input": items, "tools": [tool]})
        results = [
            function_call_output(e["call_id"], "2") for e in function_calls(response["output"])
        ]
        items = [*items, *response["output"], *results]


# What goes to the endpoint


def sent(params: JsonObject, **settings: Any) -> JsonObject:
    endpoint = Endpoint(gives(answers(TEXT)))
    ask(endpoint, params, **settings)
    return endpoint.bodies[0]


def test_a_row_becomes_a_request() -> None:
    body = sent(
        {
            "instructions": "Be brief.",
            "input": [
                {"role": "developer", "content": "And kind."},
                {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            ],
            "tools": [ADD],
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "max_output_tokens": 9,
            "temperature": 0.5,
            "top_k": 3,
            "stop": "END",
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "metadata": {"user_id": "u", "run": "7"},
            "service_tier": "default",
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
            "inference_geo": "eu",
        },
        prompt_caching="off",
    )
    assert body == {
        "model": "claude-x",
        "system": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "And kind."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "tools": [
            {"name": "add", "description": "Add.", "input_schema": ADD["parameters"]},
        ],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "max_tokens": 9,
        "temperature": 0.5,
        "top_k": 3,
        "stop_sequences": ["END"],
        "metadata": {"user_id": "u"},
        "service_tier": "standard_only",
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
        "inference_geo": "eu",
    }


def test_images_and_files_are_sent_wherever_they_are() -> None:
    parts = [
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
        {"type": "input_image", "image_url": "https://h.test/a.png"},
        {"type": "input_image", "file_id": "file_1"},
        {"type": "input_file", "file_data": "data:application/pdf;base64,BBBB", "filename": "b"},
        {"type": "input_file", "file_url": "https://h.test/c.pdf"},
    ]
    output = {"type": "function_call_output", "call_id": "c", "output": parts[:1]}
    made = {"type": "function_call", "call_id": "c", "name": "see", "arguments": "{}"}
    body = sent({"input": [{"role": "user", "content": parts}, made, output]})
    user, _, results = body["messages"]
    kinds = [(block["type"], block["source"]["type"]) for block in user["content"]]
    assert kinds == [
        *(("image", kind) for kind in ("base64", "url", "file")),
        *(("document", kind) for kind in ("base64", "url")),
    ]
    assert user["content"][0]["source"] == {
        "type": "base64",
        "media_type": "image/png",
        "data": "AAAA",
    }
    assert results["content"][0]["content"] == [user["content"][0]]


def test_results_come_first_and_ids_are_as_the_endpoint_takes_them() -> None:
    made = {"type": "function_call", "call_id": "call:0", "name": "add", "arguments": '{"a": 1,}'}
    result = {"type": "function_call_output", "call_id": "call:0", "output": ""}
    asked = [{"role": "user", "content": "Hi"}, made, made]
    asked += [{"role": "user", "content": "Go on."}, result, {**result, "output": "3"}]
    claude = Claude(lambda turn, request: [TEXT])
    ask(claude, {"input": asked, "tools": [ADD]}, prompt_caching="off")
    _, calls, results = claude.requests[0]["messages"]
    assert [each["id"] for each in calls["content"]] == ["call_0", "call_0_2"]
    assert calls["content"][0]["input"] == {"malformed_arguments": '{"a": 1,}'}
    assert results["content"] == [
        {"type": "tool_result", "tool_use_id": "call_0"},
        {"type": "tool_result", "tool_use_id": "call_0_2", "content": "3"},
        {"type": "text", "text": "Go on."},
    ]


@pytest.mark.parametrize(
    ("model", "goes_as"), [("claude-opus-4-8", "system"), ("claude-sonnet-4-5-20250929", "user")]
)
def test_a_system_message_after_the_first_turn_keeps_its_place(model: str, goes_as: str) -> None:
    asked = [{"role": "user", "content": "Hi"}, {"role": "system", "content": "Be brief."}]
    session, endpoint = Session(), Endpoint(gives(answers(TEXT)))
    ask(endpoint, {"input": asked}, session, anthropic_model=model)
    said = endpoint.bodies[0]["messages"]
    assert [each["role"] for each in said] == ["user", *(["system"] if goes_as == "system" else [])]
    assert said[-1]["content"][-1]["text"] == "Be brief."
    assert ("repaired" in session.stats) == (goes_as == "user")


@pytest.mark.parametrize(
    ("model", "effort", "expected"),
    [
        ("claude-sonnet-5-5", "high", {"thinking": {"type": "adaptive"}, "effort": "high"}),
        ("claude-opus-4-6", "minimal", {"thinking": {"type": "adaptive"}, "effort": "low"}),
        ("claude-sonnet-latest", "max", {"thinking": {"type": "adaptive"}, "effort": "max"}),
        (
            "claude-haiku-4-5-20251001",
            "medium",
            {"thinking": {"type": "enabled", "budget_tokens": 8192}},
        ),
        (
            "claude-3-7-sonnet-20250219",
            "low",
            {"thinking": {"type": "enabled", "budget_tokens": 2048}},
        ),
        ("glm-5", "low", {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        ("claude-opus-5", "none", {"thinking": {"type": "disabled"}}),
        ("claude-opus-5", None, {}),
    ],
)
def test_an_effort_is_sent_in_the_form_that_the_model_takes(
    model: str, effort: str | None, expected: JsonObject
) -> None:
    body = sent({"input": "Hi", "reasoning": {"effort": effort}}, anthropic_model=model)
    found = {name: body[name] for name in ("thinking",) if name in body}
    found |= {"effort": body["output_config"]["effort"]} if "output_config" in body else {}
    assert found == expected
    budget = (body.get("thinking") or {}).get("budget_tokens", 0)
    assert body["max_tokens"] == 16_384 + budget


def test_a_budget_leaves_room_for_the_answer() -> None:
    asked = {"input": "Hi", "reasoning": {"effort": "high"}, "max_output_tokens": 4000}
    assert sent(asked, thinking="enabled")["thinking"]["budget_tokens"] == 2000
    with pytest.raises(TaskError, match="thinking takes 1,024 tokens at least"):
        sent({**asked, "max_output_tokens": 1000}, thinking="enabled")


def test_the_limit_that_no_row_sets_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async def use(model: Any) -> None:
        for _ in range(2):
            await model.responses({"input": "Hi"})
        await model.responses({"input": "Hi", "max_output_tokens": 7})

    endpoint = Endpoint(gives(answers(TEXT)))
    with_model(endpoint, use, at(max_output_tokens=500))
    assert [body["max_tokens"] for body in endpoint.bodies] == [500, 500, 7]
    [record] = caplog.records
    assert "sets no max_output_tokens" in record.message and "500" in record.message


def test_a_row_may_have_parameters_of_the_api_itself() -> None:
    extra = json.dumps({"output_config": {"effort": "xhigh"}, "top_k": 9})
    body = sent(
        {
            "input": "Hi",
            "thinking": {"type": "enabled", "budget_tokens": 1500},
            "reasoning": {"effort": "low"},
            "metadata": {"extra_body": extra},
        },
        extra_body={"top_k": 1, "inference_geo": "us"},
    )
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 1500}
    assert (body["output_config"], body["top_k"]) == ({"effort": "xhigh"}, 9)
    assert body["inference_geo"] == "us"
    assert body["max_tokens"] == 16_384 + 1500


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"n": 2}, "n: a rollout has one response"),
        ({"seed": 7}, "seed: the Messages API has nothing like it"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "gives no log-probs"),
        ({"previous_response_id": "resp_1"}, "previous_response_id: the Messages API stores"),
        ({"conversation": "conv_1"}, "conversation: the Messages API stores"),
        ({"raw_prompt": True}, "raw_prompt"),
        ({"service_tier": "flex"}, "service_tier: the Messages API has no 'flex'"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"tools": [{"type": "web_search"}]}, "has no 'web_search' tools"),
        ({"tools": [ADD], "tool_choice": {"type": "allowed_tools"}}, "has no 'allowed_tools'"),
        ({"reasoning": {"effort": "huge"}}, "there is no 'huge'"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "'input_audio' part"),
        ({"input": [{"type": "web_search_call"}]}, "'web_search_call' item"),
        ({"input": [{"role": "assistant", "content": "Hi"}]}, "the user's message first"),
        ({"input": []}, "wants a message of the user"),
        ({"input": 5}, "input: must be a string or a list"),
        ({"input": [5]}, r"input\[0\]: must be an item"),
        ({"input": [{"role": "user", "content": [5]}]}, "cannot take a 'None' part"),
    ],
)
def test_what_the_api_cannot_do_is_refused_by_name(params: JsonObject, reason: str) -> None:
    endpoint = Endpoint(gives(answers(TEXT)))
    with pytest.raises(TaskError, match=reason) as caught:
        ask(endpoint, {"input": "Hi", **params})
    assert caught.value.status == 400 and not endpoint.bodies


def test_a_parameter_that_is_listed_is_left_out() -> None:
    body = sent(
        {"input": "Hi", "seed": 7, "temperature": 1}, unsupported_params=["seed", "temperature"]
    )
    assert body.keys() == {"model", "messages", "max_tokens"}


def test_headers_name_key_version_and_features() -> None:
    endpoint = Endpoint(gives(answers(TEXT)))
    ask(
        endpoint,
        {"input": "Hi"},
        anthropic_beta=["one", "two"],
        anthropic_default_headers={"x-team": "rl"},
    )
    found = endpoint.headers[0]
    assert (found["x-api-key"], found["anthropic-version"]) == (KEY, "2023-06-01")
    assert (found["anthropic-beta"], found["x-team"]) == ("one,two", "rl")
    assert "authorization" not in found
    ask(endpoint, {"input": "Hi"}, anthropic_api_key="", anthropic_auth_token="t")
    assert endpoint.headers[1]["authorization"] == "Bearer t"


@pytest.mark.parametrize("base", ["", "/", "/v1", "/v1/"])
def test_the_address_may_have_its_version(base: str) -> None:
    endpoint = Endpoint(gives(answers(TEXT)))
    with_model(endpoint, asks(), lambda url: at()(url + base))
    assert endpoint.paths == ["/v1/messages"]


# Marks of the cache


def marks(body: JsonObject) -> list[str]:
    """Where a request has marks."""
    found = [
        f"tools.{n}" for n, each in enumerate(body.get("tools", ())) if "cache_control" in each
    ]
    system = body.get("system", ())
    found += [f"system.{n}" for n, each in enumerate(system) if "cache_control" in each]
    for number, message in enumerate(body["messages"]):
        found += [f"messages.{number}" for each in message["content"] if "cache_control" in each]
    return found


def turns_of(number: int) -> list[JsonObject]:
    items: list[JsonObject] = [{"role": "user", "content": "Hi"}]
    for turn in range(number):
        items.append({"role": "assistant", "content": f"turn {turn}"})
        items.append({"role": "user", "content": "Go on."})
    return items


@pytest.mark.parametrize(
    ("params", "settings", "expected"),
    [
        ({"input": "Hi"}, {}, []),
        ({"input": "Hi"}, {"prompt_caching": "all"}, ["messages.0"]),
        ({"input": "Hi", "instructions": "Be brief."}, {}, ["system.0"]),
        ({"input": "Hi", "tools": [ADD, ADD]}, {}, ["tools.1", "messages.0"]),
        ({"input": "Hi", "tools": [ADD], "tool_choice": "none"}, {}, ["tools.0"]),
        ({"input": turns_of(3)}, {}, ["messages.4", "messages.6"]),
        (
            {"input": turns_of(3), "tools": [ADD], "instructions": "Be brief."},
            {},
            ["tools.0", "system.0", "messages.4", "messages.6"],
        ),
        ({"input": turns_of(3), "tools": [ADD]}, {"prompt_caching": "off"}, []),
        ({"input": turns_of(1), "cache_control": {"type": "ephemeral"}}, {}, []),
    ],
)
def test_marks_stand_where_the_next_request_can_read(
    params: JsonObject, settings: JsonObject, expected: list[str]
) -> None:
    assert marks(sent(params, **settings)) == expected


def test_an_hour_is_asked_for_and_billed() -> None:
    usage = {"input_tokens": 0, "cache_creation_input_tokens": 1000, "output_tokens": 0}
    usage["cache_creation"] = {"ephemeral_1h_input_tokens": 1000, "ephemeral_5m_input_tokens": 0}
    endpoint, session = Endpoint(gives({**answers(TEXT), "usage": usage})), Session()
    prices = {"input": 2, "output": 10, "cache_write": 2.5, "cache_write_1h": 4}
    ask(endpoint, {"input": "Hi", "tools": [ADD]}, session, cache_ttl="1h", prices=prices)
    assert endpoint.bodies[0]["tools"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert session.spent.usd == pytest.approx(1000 * 4e-6)


# What comes back


@pytest.mark.parametrize(
    ("reason", "status", "expected"),
    [
        ("end_turn", "completed", None),
        ("stop_sequence", "completed", None),
        ("tool_use", "completed", None),
        ("max_tokens", "incomplete", "max_output_tokens"),
        ("model_context_window_exceeded", "incomplete", "max_output_tokens"),
        ("refusal", "incomplete", "content_filter"),
        ("a_reason_of_tomorrow", "incomplete", "a_reason_of_tomorrow"),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_how_an_answer_ended(
    reason: str, status: str, expected: str | None, is_streamed: bool
) -> None:
    claude = Claude(lambda turn, request: [TEXT])
    claude.stop_reason = reason
    found = ask(claude, {"input": "Hi"}, stream=is_streamed)
    assert (found["status"], (found["incomplete_details"] or {}).get("reason")) == (
        status,
        expected,
    )
    assert output_text(found) == "Hi"


def test_a_refusal_says_why() -> None:
    details = {"type": "refusal", "category": "bio", "explanation": "It could harm."}
    message = answers(reason="refusal", stop_details=details)
    found = ask(Endpoint(gives(message)), {"input": "Hi"})
    assert found["output"][0]["content"] == [{"type": "refusal", "refusal": "It could harm."}]
    assert found["incomplete_details"] == {"reason": "content_filter"}


def test_usage_counts_what_the_cache_read_and_wrote_as_input() -> None:
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 200,
        "cache_creation_input_tokens": 30,
        "output_tokens": 7,
        "output_tokens_details": {"thinking_tokens": 4},
        "service_tier": "priority",
    }
    found = ask(Endpoint(gives({**answers(TEXT), "usage": usage})), {"input": "Hi"})
    assert found["usage"] == {
        "input_tokens": 240,
        "input_tokens_details": {"cached_tokens": 200, "cache_write_tokens": 30},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 4},
        "total_tokens": 247,
    }
    assert found["service_tier"] == "priority"


def test_an_empty_answer_is_one() -> None:
    found = ask(Endpoint(gives(answers())), {"input": "Hi"})
    assert (found["status"], output_text(found)) == ("completed", "")


@pytest.mark.parametrize(
    "payload",
    [
        {},
        [],
        {"content": "Hi", "stop_reason": "end_turn"},
        answers({"type": "tool_use", "id": "x"}),
        {**answers(TEXT), "stop_reason": None},
        answers(TEXT, reason="error"),
    ],
)
def test_what_is_no_answer_is_asked_for_again(payload: Any) -> None:
    endpoint = Endpoint(gives(payload), gives(answers(TEXT)))
    assert output_text(ask(endpoint, {"input": "Hi"})) == "Hi"
    assert len(endpoint.bodies) == 2


def test_blocks_of_the_endpoint_s_own_tools_come_back_in_their_places() -> None:
    search = [
        {
            "type": "server_tool_use",
            "id": "srvtoolu_1",
            "name": "web_search",
            "input": {"query": "x"},
        },
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
    ]
    cited = [{"type": "web_search_result_location", "url": "https://h.test"}]
    said = [
        {"type": "text", "text": "It is "},
        {"type": "text", "text": "so.", "citations": cited},
    ]
    blocks = [TEXT, *search, *said]
    endpoint = Endpoint(gives(answers(*blocks)), gives(answers(TEXT)))

    async def use(model: Any) -> JsonObject:
        tools = [{"type": "web_search_20250305", "name": "web_search"}]
        first = await model.responses({"input": "Hi", "tools": tools})
        items = [{"role": "user", "content": "Hi"}, *first["output"]]
        more = {"role": "user", "content": "And?"}
        await model.responses({"input": [*items, more], "tools": tools})
        return first

    first = with_model(endpoint, use, at(prompt_caching="off"))
    assert output_text(first) == "Hi\nIt is so."
    assert endpoint.bodies[1]["messages"][1]["content"] == blocks
    assert endpoint.bodies[1]["tools"][0]["type"] == "web_search_20250305"


def test_a_turn_that_is_paused_goes_on() -> None:
    usage = {"input_tokens": 3, "cache_creation": {"ephemeral_1h_input_tokens": 2}}
    usage |= {"cache_creation_input_tokens": 2, "output_tokens": 5}
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    paused = {**answers(search, reason="pause_turn"), "usage": usage}
    endpoint = Endpoint(gives(paused), gives(paused), gives({**answers(TEXT), "usage": usage}))
    found = ask(endpoint, {"input": "Hi"})
    assert [len(body["messages"]) for body in endpoint.bodies] == [1, 2, 2]
    assert endpoint.bodies[2]["messages"][1] == {"role": "assistant", "content": [search, search]}
    assert (found["status"], output_text(found)) == ("completed", "Hi")
    assert [item["type"] for item in found["output"]] == ["reasoning", "reasoning", "message"]
    assert (found["usage"]["output_tokens"], found["usage"]["input_tokens"]) == (15, 15)
    assert found["usage"]["input_tokens_details"]["cache_write_1h_tokens"] == 6


def test_a_turn_that_is_always_paused_ends_incomplete() -> None:
    endpoint = Endpoint(gives(answers(TEXT, reason="pause_turn")))
    found = ask(endpoint, {"input": "Hi"})
    assert found["incomplete_details"] == {"reason": "pause_turn"}
    assert len(endpoint.bodies) == 21


def test_a_client_of_messages_says_what_only_this_api_knows() -> None:
    endpoint = Endpoint(gives(answers(TEXT)))
    own = {"name": "add", "input_schema": {"type": "object"}}
    search = {"type": "web_search_20250305", "name": "web_search"}
    given: JsonObject = {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}
    given |= {"inference_geo": "eu", "metadata": {"user_id": "u"}, "max_tokens": 9}

    async def use(model: Any) -> JsonObject:
        user = {"role": "user", "content": "Hi"}
        return await model.messages({"messages": [user], "tools": [search, own], **given})

    message = with_model(endpoint, use, at(prompt_caching="off"))
    assert message["content"] == [TEXT]
    body = endpoint.bodies[0]
    assert body["tools"] == [own, search]
    assert {name: body[name] for name in given} == given


# Trouble


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (400, "invalid_request_error", False),
        (401, "authentication_error", False),
        (402, "billing_error", False),
        (403, "permission_error", False),
        (404, "not_found_error", False),
        (413, "request_too_large", False),
        (429, "rate_limit_error", True),
        (500, "api_error", True),
        (504, "timeout_error", True),
        (529, "overloaded_error", True),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_refusals_keep_their_status_and_words(
    status: int, kind: str, retryable: bool, is_streamed: bool
) -> None:
    body = {"type": "error", "error": {"type": kind, "message": "so it is"}, "request_id": "r"}
    endpoint = Endpoint(gives(body, status))
    with pytest.raises(ModelError, match="so it is") as caught:
        ask(endpoint, {"input": "Hi"}, max_tries=1, request_timeout_s=2.0, stream=is_streamed)
    assert (caught.value.status, caught.value.retryable) == (status, retryable)
    assert "upstream_api" not in caught.value.message


def test_an_overload_in_a_stream_is_waited_for() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    event = f"event: error\ndata: {json.dumps(error)}\n\n".encode()
    session, claude = Session(), Claude(lambda turn, request: [TEXT])
    endpoint = Endpoint(streams([event]), claude.answer)
    found = ask(endpoint, {"input": "Hi"}, session, stream=True)
    assert output_text(found) == "Hi"
    assert session.spent.throttled == 1


def written(message: JsonObject) -> list[bytes]:
    """The events of a message, as they are sent."""
    return [
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
        for event in events_of(message)
    ]


@pytest.mark.parametrize(
    ("missing", "then", "num_asked"),
    [(1, None, 1), (1, aborts, 2), (2, None, 2), (0, aborts, 1)],
    ids=["no message_stop", "broken off before it", "no stop reason", "broken off behind it"],
)
def test_a_stream_is_whole_with_its_stop_reason(missing: int, then: Any, num_asked: int) -> None:
    events = written(answers(TEXT))
    cut = streams(events[: len(events) - missing], then=then)
    endpoint = Endpoint(cut, streams(events))
    found = ask(endpoint, {"input": "Hi"}, stream=True)
    assert output_text(found) == "Hi" and len(endpoint.bodies) == num_asked


def test_arguments_that_a_stream_cuts_off_are_kept_as_they_came() -> None:
    events = written(answers(call("toolu_1", a=12345), reason="max_tokens"))
    kept = [event for event in events if b"12345}" not in event]
    assert len(kept) == len(events) - 1
    found = ask(Endpoint(streams(kept)), {"input": "Hi", "tools": [ADD]}, stream=True)
    assert [each["arguments"] for each in function_calls(found["output"])] == ['{"a":']
    assert found["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("prompt is too long: 208310 tokens > 200000 maximum", "max_output_tokens"),
        ("Output blocked by content filtering policy", "content_filter"),
    ],
)
def test_some_refusals_are_verdicts_about_the_row(
    message: str, reason: str, is_streamed: bool
) -> None:
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    event = f"event: error\ndata: {json.dumps(error)}\n\n".encode()
    endpoint = Endpoint(streams([event]) if is_streamed else gives(error, 400))
    found = ask(endpoint, {"input": "Hi"}, stream=is_streamed)
    assert (found["output"], found["incomplete_details"]) == ([], {"reason": reason})


def test_the_limit_in_the_headers_is_believed() -> None:
    reset = (datetime.now(UTC) + timedelta(seconds=30)).isoformat().replace("+00:00", "Z")
    named = {"limit": "600", "remaining": "599", "reset": reset}
    headers = {f"anthropic_ratelimit_requests_{name}": value for name, value in named.items()}
    endpoint = Endpoint(gives(answers(TEXT), **headers))

    async def use(model: Any) -> JsonObject:
        await model.responses({"input": "Hi"})
        return model.load_figures()

    figures = with_model(endpoint, use, at())
    assert figures["requests_per_minute"] == pytest.approx(0.97 * 600)


# What must come back


def test_another_endpoint_gets_no_signature_and_the_line_says_so() -> None:
    claude, session = Claude(count), Session()
    first = ask(claude, ASKED)
    results = [
        function_call_output(each["call_id"], "2") for each in function_calls(first["output"])
    ]
    asked = [{"role": "user", "content": "Count."}, *first["output"], *results]
    body = Endpoint(gives(answers(TEXT)))
    ask(body, {**ASKED, "input": asked}, session, anthropic_model="other-2")
    kinds = [block["type"] for block in body.bodies[0]["messages"][1]["content"]]
    assert kinds == ["text", "tool_use", "tool_use"]
    assert session.stats["repaired"] == ["provider data of another endpoint → left out"]


@pytest.mark.parametrize("spoil", ["no signature", "changed", "moved", "left out"])
def test_the_imitation_refuses_what_is_not_as_it_was(spoil: str) -> None:
    claude = Claude(count)

    async def use(model: Any) -> None:
        first = await model.responses(ASKED)
        thought, said, *calls = first["output"]
        if spoil == "no signature":
            thought = {
                **thought,
                "provider_data": {**thought["provider_data"], "block": {"type": "thinking"}},
            }
        elif spoil == "changed":
            thought = {**thought, "summary": [{"type": "summary_text", "text": "Other."}]}
        output = {"moved": [said, thought, *calls], "left out": [said, *calls]}
        kept = output.get(spoil, [thought, said, *calls])
        results = [function_call_output(each["call_id"], "2") for each in calls]
        asked = [{"role": "user", "content": "Count."}, *kept, *results]
        await model.responses({**ASKED, "input": asked})

    with pytest.raises(ModelError) as caught:
        with_model(claude, use, at())
    assert caught.value.status == 400 and claude.refused


@pytest.mark.parametrize("api", ["chat", "messages"])
def test_clients_of_other_apis_carry_the_thoughts(api: str) -> None:
    claude = Claude(count)

    async def use(model: Any) -> None:
        user = {"role": "user", "content": "Count."}
        said: list[JsonObject] = [user]
        for _ in range(TURNS):
            if api == "chat":
                given = params_of_chat({"messages": said, "max_tokens": 4000})
                reply = as_completion(await model.responses({**given, "tools": [ADD]}))
                message = reply["choices"][0]["message"]
                said.append(json.loads(json.dumps(message)))
                said += [
                    {"role": "tool", "tool_call_id": each["id"], "content": "2"}
                    for each in message.get("tool_calls", ())
                ]
            else:
                given = params_of_messages({"messages": said, "max_tokens": 4000})
                reply = as_message(await model.responses({**given, "tools": [ADD]}))
                said.append({"role": "assistant", "content": reply["content"]})
                calls = [each for each in reply["content"] if each["type"] == "tool_use"]
                results = [
                    {"type": "tool_result", "tool_use_id": each["id"], "content": "2"}
                    for each in calls
                ]
                said += [{"role": "user", "content": results}] if results else []

    def simple(turn: int, request: JsonObject) -> list[JsonObject]:
        blocks = count(turn, request)
        return blocks if api == "messages" or turn % 4 != 3 else [blocks[0], *blocks[3:]]

    claude.say = simple
    with_model(claude, use, at())
    assert not claude.refused and len(claude.requests) == TURNS
