"""A line as a trace, with the names of OpenTelemetry's GenAI conventions. Pure.

One trace is one rollout: the span of its agent, with a child for each model call, each tool call
and the verification, in their order. A line has the sums of their times: calls of one kind share
theirs equally, and then have the attribute `rollout_kit.time_is_shared`. Ids are made of the
rollout, so that exporting it again gives the same trace. Contents are left out by default.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Literal

import orjson

from ...responses import (
    Item,
    content_texts,
    find_offered_tools,
    input_items,
    output_items,
    pair_outputs,
)
from ...serving.endpoints.chat import RAW
from ...store.kinds import kind_of
from ...store.lines import info_of
from ...types import JsonObject, RolloutInfo
from .span_messages import arguments_of, output_of, to_messages, to_text

Value = str | bool | int | float | list[str]
"""Of an attribute."""

Attributes = dict[str, Value]

Kind = Literal["internal", "client"]

FLOATS = {name: name for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty")}
WHOLE = {"max_output_tokens": "max_tokens", "seed": "seed", "top_k": "top_k"}
"""Create params, and what they are called after `gen_ai.request.`."""

REASONS = {"max_output_tokens": "length"}
"""Reasons for the end of an answer for which the conventions have other words."""

SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened at the end of a span."""

    name: str
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class Span:
    """Times are nanoseconds since 1970; ids are hexadecimal. `error` is empty if there was none."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: Kind
    start_ns: int
    end_ns: int
    attributes: Attributes
    events: tuple[SpanEvent, ...] = ()
    error: str = ""


@dataclass(slots=True)
class _Step:
    """A span before it has its place in the trace. Without `seconds` it shares those of its kind
    with the other steps that have none."""

    name: str
    attributes: Attributes
    kind: Kind = "internal"
    seconds: float | None = None


def build_trace(line: JsonObject, *, has_content: bool = False) -> list[Span]:
    """The spans of a line of the rollouts, unverified or failures file, the agent's first;
    ValueError if the line does not tell when its rollout ran."""
    info = info_of(line)
    if kind_of(line, "rollout") == "failure":
        return [_make_failed(line, info)]
    start = _nanoseconds(info.started_at or None)
    end = start + _in_ns(info.duration_s)
    answered = max(start, end - _in_ns(info.verify_s))
    name = f"invoke_agent {info.key.agent}"
    attributes = {**_identity(info), **_result(line, info), **_request(line, info)}
    if has_content:
        attributes |= _prompt(line)
        output = to_messages(output_items(line["response"]))
        attributes["gen_ai.output.messages"] = to_text(output)
    trace = _trace_id(line, info)
    error = str((line.get("failure") or {}).get("message", ""))
    events = tuple(_evaluations(line, info))
    root = Span(
        trace, _span_id(trace, 0), "", name, "internal", start, end, attributes, events, error
    )
    steps, spans, at = [*_calls(line, info, has_content)], [root], start
    _share_time(steps, info)

    def add(step: _Step, begin: int, end: int) -> None:
        own = _span_id(trace, len(spans))
        what = (step.name, step.kind, begin, end, step.attributes)
        spans.append(Span(trace, own, root.span_id, *what))

    for step in steps:
        until = min(answered, at + _in_ns(step.seconds))
        add(step, at, until)
        at = until
    if info.verify_s is not None:
        add(_Step("verify", {"rollout_kit.verifier": info.verifier}), answered, end)
    return spans


def _make_failed(line: JsonObject, info: RolloutInfo) -> Span:
    """The span of a rollout without a result: its last attempt."""
    failure = line["failure"]
    end, trace = _nanoseconds(line.get("at")), _trace_id(line, info)
    attributes = _identity(info) | {
        "error.type": str(failure.get("class")),
        "rollout_kit.attempt": int(line.get("attempt") or 1),
    }
    start, message = end - _in_ns(failure.get("elapsed_s")), str(failure.get("message"))
    name = f"invoke_agent {info.key.agent}"
    return Span(
        trace, _span_id(trace, 0), "", name, "internal", start, end, attributes, (), message
    )


def _trace_id(line: JsonObject, info: RolloutInfo) -> str:
    made = [*info.key, info.started_at or line.get("at")]
    return blake2b(orjson.dumps(made), digest_size=16).hexdigest()


def _span_id(trace_id: str, number: int) -> str:
    return blake2b(f"{trace_id} {number}".encode(), digest_size=8).hexdigest()


def _identity(info: RolloutInfo) -> Attributes:
    key = info.key
    found: Attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "rollout_kit",
        "gen_ai.agent.name": key.agent,
        "gen_ai.conversation.id": f"{key.task_id}:{key.scope}:{key.rollout_index}",
        "rollout_kit.task_id": key.task_id,
        "rollout_kit.rollout_index": key.rollout_index,
    }
    return {**found, "rollout_kit.scope": key.scope} if key.scope else found


def _result(line: JsonObject, info: RolloutInfo) -> Attributes:
    """Verdict, usage and cost."""
    usage = line.get("usage") or {}
    known = {
        "gen_ai.usage.input_tokens": usage.get("input_tokens"),
        "gen_ai.usage.output_tokens": usage.get("output_tokens"),
        "gen_ai.usage.cache_read.input_tokens": _detail(usage, "input", "cached_tokens"),
        "gen_ai.usage.reasoning.output_tokens": _detail(usage, "output", "reasoning_tokens"),
        "rollout_kit.reward": line.get("reward"),
        "rollout_kit.cost_usd": info.cost_usd,
        "rollout_kit.num_turns": info.num_turns,
        "rollout_kit.num_tool_calls": info.num_tool_calls,
        "rollout_kit.attempt": info.attempt,
        "rollout_kit.queue_s": info.queue_s,
        "rollout_kit.arm": info.arm.id if info.arm else None,
    }
    found: Attributes = {name: value for name, value in known.items() if value is not None}
    reason = info.finish_reason or "stop"
    found["gen_ai.response.finish_reasons"] = [REASONS.get(reason, reason)]
    if failure := line.get("failure"):
        found["error.type"] = str(failure.get("class"))
    return found


def _detail(usage: JsonObject, side: str, name: str) -> int | None:
    details = usage.get(f"{side}_tokens_details")
    found = details.get(name) if isinstance(details, dict) else None
    return found if isinstance(found, int) and found else None


def _request(line: JsonObject, info: RolloutInfo) -> Attributes:
    """Model and sampling parameters, as far as the line has them."""
    params = line.get("responses_create_params") or {}
    params = {**params, **(info.arm.params if info.arm else {})}
    found: Attributes = {}
    if info.model:
        found["gen_ai.request.model"] = found["gen_ai.response.model"] = info.model
    for names, kind in ((FLOATS, float), (WHOLE, int)):
        for name, sent in names.items():
            if isinstance(params.get(name), int | float):
                found[f"gen_ai.request.{sent}"] = kind(params[name])
    return found


def _prompt(line: JsonObject) -> Attributes:
    params = line.get("responses_create_params") or {}
    asked = [item for item in input_items(params) if isinstance(item, dict)]
    found: Attributes = {"gen_ai.input.messages": to_text(to_messages(asked))}
    if texts := content_texts(params.get("instructions")):
        parts = [{"type": "text", "content": text} for text in texts]
        found["gen_ai.system_instructions"] = to_text(parts)
    if tools := find_offered_tools(params, line["response"]):
        found["gen_ai.tool.definitions"] = to_text(tools)
    return found


def _evaluations(line: JsonObject, info: RolloutInfo) -> Iterator[SpanEvent]:
    """The reward and each number that the verifier set."""
    for name in ("reward", *info.scores):
        value = line.get(name)
        if isinstance(value, int | float):
            about: Attributes = {"gen_ai.evaluation.name": name}
            about["gen_ai.evaluation.score.value"] = float(value)
            yield SpanEvent("gen_ai.evaluation.result", about)


def _calls(line: JsonObject, info: RolloutInfo, has_content: bool) -> Iterator[_Step]:
    """The model calls and tool calls of a response, in their order."""
    operation = "chat"
    if (line.get("responses_create_params") or {}).get(RAW):
        operation = "text_completion"
    about = {**_request(line, info), "gen_ai.operation.name": operation}
    about["gen_ai.provider.name"] = "openai"  # the API that every model server speaks
    items = output_items(line["response"])
    answers = {id(call): answer for call, answer in pair_outputs(items)}
    turns = [*_turns(items)]
    for number, (said, _) in enumerate(turns):
        attributes: Attributes = {**about}
        if len(turns) == 1:
            attributes |= {k: v for k, v in _result(line, info).items() if k.startswith("gen_ai")}
        if has_content:
            given = to_text(to_messages(turns[number - 1][1])) if number else None
            asked = {"gen_ai.input.messages": given} if given else _prompt(line)
            attributes |= asked | {"gen_ai.output.messages": to_text(to_messages(said))}
        first_s = info.first_turn_s if number == 0 else None
        yield _Step(f"{operation} {info.model}".rstrip(), attributes, "client", first_s)
        for call in said:
            if (answer := answers.get(id(call))) is not None:
                yield _tool_call(call, answer, has_content)


def _tool_call(call: Item, output: Item, has_content: bool) -> _Step:
    name = str(call.get("name"))
    attributes: Attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": str(call.get("call_id")),
    }
    if has_content:
        attributes["gen_ai.tool.call.arguments"] = to_text(arguments_of(call))
        attributes["gen_ai.tool.call.result"] = output_of(output)
    return _Step(f"execute_tool {name}", attributes)


def _turns(items: list[Item]) -> Iterator[tuple[list[Item], list[Item]]]:
    """What the model said, and what it was answered, in turns."""
    starts = [
        place
        for place, item in enumerate(items)
        if not _is_answer(item) and (place == 0 or _is_answer(items[place - 1]))
    ]
    for start, end in pairwise([*starts, len(items)]):
        said = [item for item in items[start:end] if not _is_answer(item)]
        yield said, items[start + len(said) : end]


def _is_answer(item: Item) -> bool:
    """Whether the environment wrote the item, and not the model."""
    return item.get("type") == "function_call_output" or item.get("role") in ("user", "system")


def _share_time(steps: list[_Step], info: RolloutInfo) -> None:
    """Give each step its seconds."""
    for kind, total_s in (("client", info.model_s), ("internal", info.tool_s)):
        known_s = sum(step.seconds or 0.0 for step in steps if step.kind == kind)
        sharing = [step for step in steps if step.kind == kind and step.seconds is None]
        for step in sharing:
            step.seconds = max(0.0, (total_s or 0.0) - known_s) / len(sharing)
            if len(sharing) > 1:
                step.attributes["rollout_kit.time_is_shared"] = True


def _nanoseconds(text: Any) -> int:
    """A time as the files write it; ValueError if it is none."""
    if not isinstance(text, str):
        raise ValueError("the line does not tell when its rollout ran")
    at = datetime.fromisoformat(text)
    return int(at.timestamp()) * SECOND + at.microsecond * 1000


def _in_ns(seconds: float | None) -> int:
    return round((seconds or 0.0) * SECOND)
