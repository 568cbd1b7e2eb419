"""Rollouts as OpenTelemetry traces: the conventions' names, ids that stay, content on request."""

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from command import as_function
from exported import TOOLS, Place, line, tool_line
from otlp_receiver import attributes, receiving
from support import Bench, eventually, read_jsonl, row
from tracked import NUM_FREE, collect_held

from rollout_kit.analysis.export.spans import Span, build_trace
from rollout_kit.collecting.trackers import installed
from rollout_kit.config.keys import ExportConfig
from rollout_kit.errors import ConfigError
from rollout_kit.responses import function_call_item, function_call_output, message_item

command = as_function("ng_export")

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

STARTED = "2026-11-22T19:17:27.258Z"


def ran(made: dict[str, Any], **block: Any) -> dict[str, Any]:
    """The line, with the times of its rollout."""
    times = {"started_at": STARTED, "duration_s": 10.0, "model_s": 6.0, "tool_s": 2.0}
    made["rollout"] |= {**times, "verify_s": 1.0, "cost_usd": 0.5, "num_tool_calls": 1, **block}
    return made


def seconds(span: Span) -> float:
    return (span.end_ns - span.start_ns) / 1e9


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(tmp_path, capsys)


def test_a_trace_is_the_agent_with_its_calls_in_order() -> None:
    calls = ("price", '{"item": "a"}'), ("stock", '{"shelf": 1}')
    root, *steps = build_trace(ran(tool_line(1, 0, 1.0, *calls), first_turn_s=4.0))
    names = ["chat m", "execute_tool price", "execute_tool stock", "chat m", "verify"]
    assert root.name == "invoke_agent solver" and [step.name for step in steps] == names
    assert [step.kind for step in steps] == ["client", *["internal"] * 2, "client", "internal"]
    assert [seconds(step) for step in steps] == [4.0, 1.0, 1.0, 2.0, 1.0]
    shared = [step.attributes.get("rollout_kit.time_is_shared", False) for step in steps]
    assert shared == [False, True, True, False, False] and seconds(root) == 10.0
    assert all(step.parent_id == root.span_id for step in steps) and not root.parent_id
    assert len({span.span_id for span in (root, *steps)}) == len(names) + 1
    assert {span.trace_id for span in (root, *steps)} == {root.trace_id}
    assert all(before.end_ns <= after.start_ns for before, after in pairwise(steps))
    assert steps[-1].end_ns == root.end_ns and steps[0].start_ns == root.start_ns


def test_attributes_have_the_names_of_the_conventions() -> None:
    params = {"temperature": 1, "max_output_tokens": 9, "seed": 3}
    made = ran(line(1, 2, "It is", 0.5, params=params, cut="max_output_tokens"))
    made["rollout"]["scores"] = ["style", "extracted_answer"]
    root, chat, _ = build_trace({**made, "style": 0.25})
    expected = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "solver",
        "gen_ai.conversation.id": f"{1:016x}::2",
        "gen_ai.request.model": "m",
        "gen_ai.request.temperature": 1.0,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.seed": 3,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.response.finish_reasons": ["length"],
        "rollout_kit.reward": 0.5,
        "rollout_kit.cost_usd": 0.5,
    }
    assert expected.items() <= root.attributes.items()
    assert isinstance(root.attributes["gen_ai.request.temperature"], float)
    assert chat.attributes["gen_ai.operation.name"] == "chat"
    assert chat.attributes["gen_ai.usage.output_tokens"] == 5
    scores = [(e.name, *e.attributes.values()) for e in root.events]
    result = "gen_ai.evaluation.result"
    assert scores == [(result, "reward", 0.5), (result, "style", 0.25)]


def test_content_is_left_out_unless_it_is_asked_for() -> None:
    made = ran(tool_line(1, 0, 1.0, ("price", '{"item": "SECRET-A"}'), answer="SECRET-B"))
    made["responses_create_params"]["instructions"] = "SECRET-C"
    made["responses_create_params"]["input"][0]["content"] = "SECRET-D"
    assert "SECRET" not in str(build_trace(made))
    root, first, tool, last, _ = build_trace(made, has_content=True)
    assert json.loads(str(root.attributes["gen_ai.input.messages"])) == [
        {"role": "user", "parts": [{"type": "text", "content": "SECRET-D"}]}
    ]
    assert "SECRET-C" in str(root.attributes["gen_ai.system_instructions"])
    said = json.loads(str(first.attributes["gen_ai.output.messages"]))
    assert [part["type"] for part in said[0]["parts"]] == ["reasoning", "tool_call"]
    assert said[0]["parts"][1]["arguments"] == {"item": "SECRET-A"}
    assert tool.attributes["gen_ai.tool.call.result"] == "0"
    asked = json.loads(str(last.attributes["gen_ai.input.messages"]))
    assert asked == [
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c0", "response": "0"}]}
    ]
    assert "SECRET-B" in str(last.attributes["gen_ai.output.messages"])


def test_calls_with_one_id_have_their_own_outputs_and_a_trace_its_tools() -> None:
    """Two calls in parallel and one in a later turn."""
    given = (("price", "0"), ("stock", "1"), ("price", "2"))
    calls = [function_call_item(name, "{}", "c") for name, _ in given]
    outputs = [function_call_output("c", text) for _, text in given]
    items = [*calls[:2], *outputs[:2], calls[2], outputs[2], message_item("Done.")]
    made = ran(line(1, 0, items, 1.0))
    made["response"]["tools"] = TOOLS
    spans = build_trace(made, has_content=True)
    tools = [each.attributes for each in spans if each.name.startswith("execute_tool")]
    found = [(each["gen_ai.tool.name"], each["gen_ai.tool.call.result"]) for each in tools]
    assert found == list(given)
    assert json.loads(str(spans[0].attributes["gen_ai.tool.definitions"])) == TOOLS
    assert "gen_ai.tool.definitions" not in build_trace(made)[0].attributes


def test_a_failure_and_a_missing_verdict_are_errors() -> None:
    failed = ran(line(1, 0, "x", None))
    del failed["response"]
    failure = {"class": "PeerTimeout", "message": "too slow", "elapsed_s": 2.5}
    failed |= {"kind": "failure", "failure": failure, "at": STARTED, "attempt": 3}
    [span] = build_trace(failed)
    assert span.error == "too slow" and seconds(span) == 2.5
    assert span.attributes["error.type"] == "PeerTimeout"
    unverified = ran(line(1, 0, "x", None)) | {"kind": "unverified", "failure": failure}
    root, chat, _ = build_trace(unverified)
    assert root.error == "too slow" and not chat.error and root.events == ()


def test_an_odd_line_is_no_error() -> None:
    odd = [
        {"type": "computer_call"},
        {"role": "user", "content": 5},
        {"type": "message"},
        1,
        None,
    ]
    odd += [{"type": "function_call", "name": None, "call_id": "c", "arguments": "{not json"}]
    odd += [{"type": "function_call_output", "call_id": "c", "output": None}]
    made = ran(line(1, 0, odd, None), verify_s=99.0, model_s=500.0)
    made["responses_create_params"] = {"input": [3, {"role": "user", "content": [7, {}]}]}
    for span in build_trace(made, has_content=True):
        assert span.start_ns <= span.end_ns
    with pytest.raises(ValueError, match="does not tell when"):
        build_trace(line(1, 0, "x", 1.0))


def test_a_file_has_one_request_a_line(place: Place) -> None:
    place.write([ran(tool_line(1, 0, 1.0, ("price", "{}"))), line(2, 0, "no times", 1.0)])
    out = place.folder / "traces.jsonl"
    words = (place.folder / "rollouts.jsonl", "+format=otlp", f"+output_fpath={out}")
    status, said = place.run(command, *words, "+otel.service=tests")
    assert status == 0 and "does not tell when its rollout ran" in said
    [request] = read_jsonl(out)
    from google.protobuf import json_format
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as wire

    parsed = json_format.ParseDict(request, wire.ExportTraceServiceRequest())
    [resource] = parsed.resource_spans
    assert attributes(resource.resource)["service.name"] == "tests"
    spans = resource.scope_spans[0].spans
    assert [span.name for span in spans][:2] == ["invoke_agent solver", "chat m"]
    raw = request["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert [len(raw[0][name]) for name in ("traceId", "spanId")] == [32, 16]
    assert raw[1]["parentSpanId"] == raw[0]["spanId"]


def test_stored_rollouts_reach_a_receiver_and_again_as_the_same_traces(place: Place) -> None:
    place.write([ran(line(task, 0, f"It is {task}.", 1.0)) for task in range(250)])
    words = (place.folder / "rollouts.jsonl", "+format=otlp", "+where=task_index < 240")
    with receiving() as receiver:
        to = f"+otel.endpoint={receiver.url}"
        status, said = place.run(command, *words, to, "+otel.headers.x-key=Basic dXNlcjpwdw==")
        assert status == 0 and "240 traces sent" in said
        first = {span.trace_id for span in receiver.roots()}
        assert len(first) == 240 and len(receiver.raw) == 3
        assert receiver.headers[0]["x-key"] == "Basic dXNlcjpwdw=="
        found = attributes(receiver.roots()[0])
        assert found["gen_ai.response.finish_reasons"] == ["stop"]
        assert b"How much is" not in b"".join(receiver.raw)
        place.run(command, *words, f"+otel.endpoint={receiver.url}/v1/traces")
        assert {span.trace_id for span in receiver.roots()} == first
        status, _ = place.run(command, *words, to, "+otel.content=true")
        assert status == 0 and b"How much is" in b"".join(receiver.raw)


def test_a_receiver_that_refuses_is_named_with_its_reason(place: Place) -> None:
    place.write([ran(line(1, 0, "x", 1.0))])
    words = (place.folder / "rollouts.jsonl", "+format=otlp")
    with receiving() as receiver:
        receiver.status = 401
        status, said = place.run(command, *words, f"+otel.endpoint={receiver.url}")
    assert status == 1 and "401" in said and "0 rollouts were sent before" in said


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["+otel.endpoint=http://x", "+format=trl_sft"], "need format=otlp"),
        (["+otel.endpoint=http://x", "+format=otlp", "+output_fpath=a.jsonl"], "one of them"),
        (["+otel.url=http://x", "+format=otlp"], "unknown key"),
        (["+format=otlp"], "name the file to write"),
    ],
)
def test_wrong_keys_are_named(words: list[str], reason: str, place: Place) -> None:
    place.write([ran(line(1, 0, "x", 1.0))])
    status, said = place.run(command, place.folder / "rollouts.jsonl", *words)
    assert status == 1 and reason in said


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(installed.MODULES, "otel", "opentelemetry_of_another_planet.trace")
    keys = ExportConfig.model_validate({"otel": {"endpoint": "http://x"}}).otel
    with pytest.raises(
        ConfigError, match=r"otel\.endpoint needs the extra otel.*rollout-kit\[otel"
    ):
        installed.check_installed(keys)


def test_rollouts_reach_a_receiver_while_the_collection_runs(bench: Bench) -> None:
    rows = [row(f"QUESTION-{number}") for number in range(NUM_FREE + 2)]
    with receiving() as receiver:
        keys = {"endpoint": receiver.url, "headers": {"x-key": "abc"}, "service": "tests"}
        said = collect_held(
            bench, rows, lambda: eventually(lambda: len(receiver.roots()) == NUM_FREE), otel=keys
        )
        assert len(receiver.roots()) == len(rows) and "warning" not in said
        assert receiver.headers[-1]["x-key"] == "abc"
        assert receiver.names().count("chat scripted") == len(rows)
        assert {attributes(root)["rollout_kit.reward"] for root in receiver.roots()} == {1.0}
        assert b"QUESTION" not in b"".join(receiver.raw)
        live = {span.trace_id for span in receiver.roots()}
        stored = {build_trace(each)[0].trace_id for each in bench.lines()}
        assert {trace_id.hex() for trace_id in live} == stored


def test_a_receiver_that_hangs_does_not_hold_the_collection_up(bench: Bench) -> None:
    rows = [row(f"q{number}") for number in range(NUM_FREE + 2)]
    with receiving() as receiver:
        receiver.gate.clear()
        keys = {"endpoint": receiver.url}
        said = collect_held(bench, rows, receiver.asked.wait, otel=keys, wait_s=0.1)
    assert len(bench.lines()) == len(rows)
    assert f"warning: OpenTelemetry: not sent: {len(rows)} rollouts" in said


def test_content_is_sent_while_the_collection_runs_if_it_is_asked_for(bench: Bench) -> None:
    with receiving() as receiver:
        keys = {"endpoint": receiver.url, "content": True}
        assert asyncio.run(bench.collect([row("QUESTION-1", "else")], otel=keys)) == 0
        assert b"QUESTION-1" in b"".join(receiver.raw)
        assert attributes(receiver.roots()[0])["rollout_kit.reward"] == 0.0
