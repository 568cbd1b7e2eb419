"""The core, without a clock or a socket: what becomes of a request."""

import asyncio
import json
import random
from collections import Counter
from importlib import import_module
from pathlib import Path
from statistics import median

import pytest
from pydantic import ValidationError
from support import OF_OTHERS

from rollout_kit.api.testing import making, mount
from rollout_kit.config.keys import InspectConfig
from rollout_kit.config.load import load as load_config
from rollout_kit.errors import ConfigError, TaskError
from rollout_kit.serving.registry import load
from rollout_kit.serving.resources_server import ResourcesServer

ROOT = Path(__file__).resolve().parents[3]
SimulatedModel = load("responses_api_models", "simulated_model")
PACKAGE = SimulatedModel.__module__.rpartition(".")[0]
asked = import_module(f"{PACKAGE}.asked")
arguments = import_module(f"{PACKAGE}.arguments")
draws = import_module(f"{PACKAGE}.draws")
limits = import_module(f"{PACKAGE}.limits")
script = import_module(f"{PACKAGE}.script")
simulation = import_module(f"{PACKAGE}.simulation")

A_CONFIG = "responses_api_models/simulated_model/configs/simulated_model.yaml"

RESPONSES, CHAT = asked.RESPONSES, asked.CHAT


def configured(**settings):
    return SimulatedModel.Config.model_validate(settings)


def simulated(**settings):
    config = configured(**settings)
    path = config.script_jsonl_fpath
    read = script.Script.read(path, config.answer_template) if path else None
    return simulation.Simulation(config, read)


def hi(number=0):
    return {"input": [{"role": "user", "content": f"Question {number}"}]}


def outcome(decision):
    fault = decision.fault.kind if decision.fault else None
    return fault, decision.answer and (decision.answer.id, decision.answer.text)


FAULTY = {
    "output_tokens": {"median": 50, "sigma": 1},
    "faults": [{"kind": 500, "probability": 0.3}, {"kind": "reset", "probability": 0.3}],
}


def outcomes(bodies, **settings):
    model = simulated(**{**FAULTY, **settings})
    return Counter((str(body), outcome(model.decide(RESPONSES, body, 0.0))) for body in bodies)


def test_the_order_of_arrival_changes_no_answer_and_no_fault():
    bodies = [hi(number) for number in range(40) for _ in range(3)]
    shuffled = random.Random(1).sample(bodies, len(bodies))
    assert outcomes(bodies) == outcomes(shuffled)
    assert outcomes(bodies) != outcomes(bodies, seed=1)
    faults = Counter(fault for _, (fault, _) in outcomes(bodies))
    assert all(faults[kind] > 15 for kind in (None, 500, "reset"))


def test_faults_do_not_change_what_is_answered_in_the_end():
    def answers(model):
        found = []
        while len(found) < 5:
            decision = model.decide(RESPONSES, hi(), 0.0)
            found += [outcome(decision)[1]] if decision.is_answered else []
        return found

    assert answers(simulated(**FAULTY)) == answers(simulated(**{**FAULTY, "faults": []}))


def test_neither_the_model_s_name_nor_streaming_changes_the_answer():
    settings = {"output_tokens": {"median": 50, "sigma": 1}}
    plain = simulated(**settings).decide(RESPONSES, hi(), 0.0)
    other = simulated(**settings).decide(RESPONSES, {**hi(), "model": "m", "stream": True}, 0.0)
    assert outcome(plain) == outcome(other)


@pytest.mark.parametrize(
    ("settings", "request_number", "since_s", "is_due"),
    [
        ({}, 1, 0, True),
        ({"from_request": 100, "to_request": 120}, 99, 0, False),
        ({"from_request": 100, "to_request": 120}, 100, 0, True),
        ({"from_request": 100, "to_request": 120}, 120, 0, True),
        ({"from_request": 100, "to_request": 120}, 121, 0, False),
        ({"from_s": 10, "to_s": 20}, 1, 9.9, False),
        ({"from_s": 10, "to_s": 20}, 1, 10, True),
        ({"from_s": 10, "to_s": 20}, 1, 20, False),
        ({"from_request": 5}, 9, 1000, True),
    ],
)
def test_a_fault_strikes_by_its_schedule(settings, request_number, since_s, is_due):
    [fault] = configured(faults=[{"kind": 503, **settings}]).faults
    assert fault.is_due(request_number, since_s) == is_due


def test_a_schedule_counts_from_the_first_request():
    model = simulated(faults=[{"kind": 503, "from_s": 10, "to_s": 20, "retry_after_s": 3}])
    refusals = [model.decide(RESPONSES, hi(), 1000 + second).refusal for second in (0, 9, 15, 25)]
    assert [refusal and refusal.status for refusal in refusals] == [None, None, 503, None]
    assert refusals[2].retry_after_s == 3


def test_slots_are_taken_first_come_first_served():
    slots = limits.Slots(2)
    assert [slots.begin(0.0, takes_s) for takes_s in (3, 1, 1, 1, 1)] == [0, 0, 1, 2, 3]
    assert slots.begin(100.0, 1) == 100
    assert limits.Slots(None).begin(5.0, 1) == 5


def test_a_queue_and_a_latency_add_up():
    model = simulated(
        max_concurrent_requests=1, latency_s=2, per_output_token_s=0.1, output_tokens=10
    )
    first, second = (model.decide(RESPONSES, hi(), 50.0) for _ in range(2))
    assert (first.turn_s, first.first_s, first.end_s) == (0, 2, 3)
    assert (second.turn_s, second.first_s, second.end_s) == (3, 5, 6)


def test_a_log_normal_latency_has_its_median():
    model = simulated(latency_s={"median": 2, "sigma": 0.5})
    found = [model.decide(RESPONSES, hi(number), 0.0).end_s for number in range(400)]
    assert median(found) == pytest.approx(2, rel=0.1)
    assert sum(each > 2 * 2.718**0.5 for each in found) == pytest.approx(63, abs=25)


def test_requests_a_minute_are_limited_and_the_limit_refills():
    model = simulated(rate_limit={"requests_per_minute": 60, "burst_s": 2})
    first, second, third = (model.decide(RESPONSES, hi(number), 0.0) for number in range(3))
    assert first.answer and second.answer
    assert third.refusal.status == 429 and third.refusal.code == "rate_limit_exceeded"
    assert third.refusal.retry_after_s == pytest.approx(1)
    assert dict(third.headers) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "2s",
    }
    assert model.decide(RESPONSES, hi(2), 1.01).answer


def test_tokens_a_minute_are_limited_and_what_is_refused_costs_nothing():
    settings = {"tokens_per_minute": 6000, "requests_per_minute": 6000, "burst_s": 1}
    model = simulated(output_tokens=57, rate_limit=settings)
    assert model.decide(RESPONSES, hi(), 0.0).answer.num_tokens == 57
    refused = model.decide(RESPONSES, hi(), 0.0)
    assert refused.refusal.type == "tokens"
    assert dict(refused.headers)["x-ratelimit-remaining-tokens"] == "40"
    assert dict(refused.headers)["x-ratelimit-remaining-requests"] == "99"


def test_a_request_larger_than_the_bucket_passes_once_it_is_full():
    model = simulated(output_tokens=1000, rate_limit={"tokens_per_minute": 60, "burst_s": 1})
    assert model.decide(RESPONSES, hi(), 0.0).answer
    assert model.decide(RESPONSES, hi(), 60.0).refusal
    assert model.decide(RESPONSES, hi(), 1100.0).answer


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.02, "20ms"), (1.5, "1.5s"), (60, "1m0s"), (372, "6m12s")]
)
def test_durations_are_written_as_openai_writes_them(seconds, text):
    assert limits.duration(seconds) == text


def test_a_prompt_beyond_the_context_is_refused_in_vllm_s_words():
    model = simulated(max_context_tokens=10)
    assert model.decide(RESPONSES, {"input": "x" * 40}, 0.0).answer
    refusal = model.decide(RESPONSES, {"input": "x" * 41}, 0.0).refusal
    error = refusal.body()["error"]
    assert refusal.status == 400
    assert (error["type"], error["param"], error["code"]) == (
        "BadRequestError",
        "input_tokens",
        400,
    )
    assert "maximum context length is 10 tokens" in error["message"]


def test_an_answer_has_the_length_that_was_asked_for_and_ends_with_what_it_says():
    answer = simulated(output_tokens=100).decide(RESPONSES, hi(), 0.0).answer
    assert answer.num_tokens == 100 and len(answer.text) == 400
    assert answer.text.endswith("\nQuestion 0")
    cut = simulated(output_tokens=100).decide(RESPONSES, {**hi(), "max_output_tokens": 9}, 0.0)
    assert (cut.answer.num_tokens, cut.answer.is_cut, len(cut.answer.text)) == (9, True, 36)


def test_token_ids_are_as_many_as_tokens_and_the_text_decides_them():
    def ids(body):
        answer = simulated(output_tokens=50).decide(RESPONSES, body, 0.0).answer
        return answer.token_ids

    assert ids(hi()) is None
    found = ids({**hi(), "return_token_ids": True})
    assert len(found.generated) == len(found.log_probs) == 50
    assert all(0 <= token < 50_000 for token in found.prompt + found.generated)
    assert all(value < 0 for value in found.log_probs)
    assert ids({**hi(), "return_token_ids": True}) == found


TOOLS = [
    {
        "type": "function",
        "name": "book",
        "parameters": {
            "type": "object",
            "properties": {
                "seats": {"type": "integer", "minimum": 2, "maximum": 4},
                "kind": {"enum": ["bus", "train"]},
                "price": {"type": "number", "exclusiveMinimum": 1, "maximum": 2},
                "names": {"type": "array", "items": {"type": "string"}, "minItems": 2},
                "note": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 2}]},
                "from": {"$ref": "#/$defs/place"},
            },
            "$defs": {"place": {"properties": {"city": {"const": "Ulm"}}}},
        },
    },
    {"type": "function", "name": "wait"},
]


def test_each_tool_is_called_with_arguments_of_its_schema_and_then_comes_the_answer():
    model = simulated(num_tool_turns=1)
    body = {**hi(), "tools": TOOLS}
    calls = model.decide(RESPONSES, body, 0.0).answer.calls
    assert [call.name for call in calls] == ["book", "wait"]
    made = json.loads(calls[0].arguments)
    assert made["seats"] in (2, 3, 4) and made["kind"] in ("bus", "train")
    assert 1 < made["price"] < 2
    assert made["names"] == ["text", "text"] and made["note"] == "te"
    assert made["from"] == {"city": "Ulm"} and json.loads(calls[1].arguments) == {}
    done = [
        {"type": "function_call", "name": "wait", "call_id": "c", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "ok"},
    ]
    after = model.decide(RESPONSES, {**body, "input": body["input"] + done}, 0.0).answer
    assert not after.calls and after.text == "Question 0"
    none = model.decide(RESPONSES, {**body, "tool_choice": "none"}, 0.0).answer
    assert not none.calls


def test_a_schema_that_contains_itself_is_filled_in_to_some_depth():
    schema = {"properties": {"child": {"$ref": "#"}}}
    assert arguments.make_arguments(schema, draws.Draws("x"))["child"]["child"]


def test_chat_and_responses_are_read_alike():
    call = {"id": "c", "type": "function", "function": {"name": "wait", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
    ]
    tools = [{"type": "function", "function": {"name": "wait"}}]
    chat = asked.read(CHAT, {"messages": messages, "tools": tools, "max_tokens": 7})
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "function_call", "name": "wait", "call_id": "c", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "ok"},
    ]
    tool = {"type": "function", "name": "wait"}
    response = asked.read(
        RESPONSES,
        {"instructions": "Be kind.", "input": items, "tools": [tool], "max_output_tokens": 7},
    )
    for name in ("question", "last_user_text", "tools", "num_turns", "max_tokens", "prompt_tokens"):
        assert getattr(chat, name) == getattr(response, name), name


@pytest.mark.parametrize(
    ("dialect", "body", "message"),
    [
        (RESPONSES, {}, "input must be a string or a list"),
        (RESPONSES, {"input": ["x"]}, "this is no /v1/responses request"),
        (RESPONSES, {"input": "x", "max_output_tokens": 0}, "a number from 1"),
        (CHAT, {"input": "x"}, "messages must be a list"),
        (CHAT, {"messages": [], "n": 2}, "one choice"),
    ],
)
def test_what_is_no_request_is_a_bad_one(dialect, body, message):
    with pytest.raises(TaskError, match=message) as caught:
        simulated().decide(dialect, body, 0.0)
    assert caught.value.status == 400


def write_script(folder, *rows):
    path = folder / "script.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def row(number, **answer):
    return {"responses_create_params": hi(number), **answer}


def test_a_script_is_right_as_often_as_it_is_told_and_never_by_accident(tmp_path):
    rows = [row(number, expected_answer="AB"[number % 2]) for number in range(30)]
    model = simulated(
        answer="script",
        script_jsonl_fpath=write_script(tmp_path, *rows),
        accuracy=0.7,
        answer_template="It is {{answer}}",
    )
    right = 0
    for number in range(30):
        said = [model.decide(RESPONSES, hi(number), 0.0).answer.text for _ in range(20)]
        assert set(said) <= {"It is {A}", "It is {B}"}
        right += said.count(f"It is {{{'AB'[number % 2]}}}")
    assert right / 600 == pytest.approx(0.7, abs=0.06)


def test_a_prompt_that_the_script_lacks_is_said_to_be_missing(tmp_path):
    path = write_script(tmp_path, row(1, gold_output="yes"))
    model = simulated(answer="script", script_jsonl_fpath=path)
    with pytest.raises(TaskError, match="no row with this prompt: 'Question 2'"):
        model.decide(RESPONSES, hi(2), 0.0)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"gold_output": "x"}], "script.jsonl:1: not a task"),
        ([row(1)], "script.jsonl:1: needs gold_output, gold_items or expected_answer"),
        ([row(1, gold_output="x"), row(1, gold_output="y")], "script.jsonl:2: another answer"),
        ([], "has no rows"),
    ],
)
def test_a_script_that_cannot_be_used_names_the_line(tmp_path, rows, message):
    with pytest.raises(ConfigError, match=message):
        script.Script.read(write_script(tmp_path, *rows), "{answer}")


def test_a_script_that_does_not_exist_is_named():
    with pytest.raises(ConfigError, match=r"no/where\.jsonl: no such file"):
        script.Script.read("no/where.jsonl", "{answer}")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"answer": "script"}, "needs script_jsonl_fpath"),
        ({"script_jsonl_fpath": "x"}, "only read with answer: script"),
        ({"answer_template": "x"}, "must contain {answer}"),
        ({"accuracy": 1.5}, "less than or equal to 1"),
        ({"latency_s": -1}, "latency_s must not be negative"),
        ({"rate_limit": {}}, "give requests_per_minute"),
        ({"faults": [{"kind": 418}]}, "context_overflow"),
        ({"faults": [{"kind": 500, "from_s": 5, "to_s": 1}]}, r"to_s \(1\) comes before from_s"),
        ({"faults": [{"kind": 500, "retry_after_s": 1}]}, "goes with kind 429 or 503"),
        ({"max_concurrent_requests": 0}, "greater than or equal to 1"),
    ],
)
def test_settings_that_mean_nothing_are_refused_with_a_reason(settings, message):
    with pytest.raises(ValidationError, match=message):
        configured(**settings)


JUDGED = {"graded_answers", "rubric_judge"}
"""Environments whose reward is what a judge says, of the gold answer too."""

TWO_SIDED = {"order_desk", "tau2"}
"""Environments in which a simulated user begins: all rows have the same prompt."""

ENVIRONMENTS = sorted(
    path.parent.parent.name
    for path in (ROOT / "resources_servers").glob("*/configs/*.yaml")
    if path.stem == path.parent.parent.name
    and "gymnasium_agent" not in path.read_text()
    and path.stem not in OF_OTHERS | JUDGED | TWO_SIDED
)
"""Games that differ by their seeds alone cannot be told apart by what the user says."""


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_script_plays_the_gold_answers_of_an_environment_tools_included(name):
    path = ROOT / "resources_servers" / name / "data/example.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [each for each in rows if each.get("gold_items") or each.get("gold_output")]
    files = f"resources_servers/{name}/configs/{name}.yaml,{A_CONFIG}"
    shipped = load_config([f"+config_paths=[{files}]"], InspectConfig).instances.values()
    agent = next(each for each in shipped if each.type == "responses_api_agents")
    servers = {
        name: making(load("resources_servers", name)),
        "policy_model": making(
            SimulatedModel,
            answer="script",
            script_jsonl_fpath=str(path),
            answer_template="\\boxed{{answer}}",
        ),
        "agent": making(
            load("responses_api_agents", agent.implementation),
            **{**agent.settings, "resources_server": {"name": name}},
        ),
    }

    async def main():
        async with mount(servers) as peers:
            return [await peers.call("agent", "/run", each, dict) for each in rows]

    verifies_alone = load("resources_servers", name).verify is not ResourcesServer.verify
    rewards = [found.get("reward") for found in asyncio.run(main())]
    assert rewards == [1.0 if verifies_alone else None] * len(rows)


SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer"}, "why": {"type": "string"}}}


@pytest.mark.parametrize("text", ["Thirteen.", "13", "not [json"])
def test_a_wanted_format_replaces_text_that_has_another(text):
    model = simulated(answer="text", text=text, output_tokens=50)
    form = {"type": "json_schema", "name": "answer", "schema": SCHEMA}
    by_responses = model.decide(RESPONSES, {"input": "4+9?", "text": {"format": form}}, 0)
    chat = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    messages = [{"role": "user", "content": "4+9?"}]
    by_chat = model.decide(CHAT, {"messages": messages, "response_format": chat}, 0)
    for decision in (by_responses, by_chat):
        said = json.loads(decision.answer.text)
        assert said.keys() == {"sum", "why"} and type(said["sum"]) is int
    anything = {"messages": messages, "response_format": {"type": "json_object"}}
    assert json.loads(model.decide(CHAT, anything, 0).answer.text) == {}


def test_an_answer_in_the_wanted_format_stays():
    model = simulated(answer="text", text='{"sum": 13}')
    form = {"type": "json_schema", "name": "answer", "schema": SCHEMA}
    asked_for = {"input": "4+9?", "text": {"format": form}}
    assert model.decide(RESPONSES, asked_for, 0).answer.text == '{"sum": 13}'
    form["schema"] = "no schema"
    with pytest.raises(TaskError, match="schema must be an object"):
        model.decide(RESPONSES, asked_for, 0)
    with pytest.raises(TaskError, match="no format is called 'xml'"):
        model.decide(RESPONSES, {"input": "4+9?", "text": {"format": {"type": "xml"}}}, 0)
