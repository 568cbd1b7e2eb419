"""Writes a rollout as a sample of inspect's logs. `inspect_logs` reads it back.

Messages, tool calls and events are made of the same steps as a trajectory of ATIF. What inspect has
no field for stands under `rollout_kit` in the metadata of the sample and of its messages.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from ..responses import USER_CALLS, as_object, find_offered_tools, output_items
from ..trajectory import GENERATION, LOG_PROBS, PROMPT, ModelCall, read_turns
from ..types import JsonObject, Rollout
from .atif import SEEN
from .foreign import Damaged, number_in
from .own_block import OURS, keep_own
from .trajectories import answer_steps, asked_steps

NO_MODEL = "unknown"

STOPS = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens"), "max_tokens"),
}
"""Finish reason → inspect's."""

OF_TOKENS = {
    PROMPT: "prompt_token_ids",
    GENERATION: "completion_token_ids",
    LOG_PROBS: "logprobs",
}


def write_sample(rollout: Rollout, target: str) -> JsonObject:
    """The sample, with `target` as its right answer; Damaged if inspect cannot express the
    rollout. Its id is that of the task, its epoch the rollout's index + 1."""
    line, key = rollout.line, rollout.key
    params = as_object(line.get("responses_create_params"))
    every = read_turns(as_object(line.get("rollout")).get("turns"))
    asked = [each for step in asked_steps(params) for each in _messages(step, "input")]
    steps = list(answer_steps(output_items(rollout.response), every))
    turns = [list(_messages(step, "generate")) for step in steps]
    messages = [*asked, *(each for turn in turns for each in turn)]
    if not messages:
        raise Damaged("it has no messages")
    for number, message in enumerate(messages):
        message["id"] = f"message-{number}"
    offered = find_offered_tools(params, rollout.response)
    tools = [_tool(each) for each in offered]
    model = rollout.info.model or NO_MODEL
    usage = _usage_of(as_object(line.get("usage")), rollout.info.cost_usd)
    start = _time(rollout.info.started_at)
    sample: JsonObject = {
        "id": f"{key.task_id}:{key.scope}" if key.scope else key.task_id,
        "epoch": key.rollout_index + 1,
        "input": asked,
        "target": target,
        "messages": messages,
        "output": _output(turns, model, rollout.info.finish_reason),
        "scores": _scores(rollout),
        "metadata": {OURS: {**keep_own(rollout), "tools": offered}},
        "model_usage": {model: usage} if usage else {},
    }
    if start is not None:
        duration = number_in(rollout.info.duration_s)
        sample |= {"started_at": start.isoformat(), "total_time": duration}
        if duration is not None:
            sample["completed_at"] = (start + timedelta(seconds=duration)).isoformat()
        sample["events"] = list(_events(turns, every, len(asked), start, model, tools))
        sample["events_data"] = {"messages": messages, "calls": []}
    if said := as_object(rollout.response.get("error")).get("message"):
        sample["error"] = {"message": str(said), "traceback": "", "traceback_ansi": ""}
    return sample


def _time(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None


def _scores(rollout: Rollout) -> JsonObject:
    numbers = {
        name: number
        for name in rollout.info.scores
        if (number := number_in(rollout.line.get(name))) is not None
    }
    scores: JsonObject = {name: {"value": number} for name, number in numbers.items()}
    if rollout.reward is not None:
        scores = {"reward": {"value": rollout.reward, "answer": rollout.text}, **scores}
    return scores


def _messages(step: Mapping[str, Any], source: str) -> Iterator[JsonObject]:
    """The messages of a step: one, and those of its tools."""
    role = {"agent": "assistant"}.get(step["source"], step["source"])
    message: JsonObject = {"role": role, "content": _content(step["message"]), "source": source}
    if role != "assistant":
        calls = as_object(step.get("extra")).get(USER_CALLS)
        if source != "input":
            del message["source"]
        yield _with_own(message, {USER_CALLS: calls} if calls else {}, {})
        return
    if thought := step.get("reasoning_content"):
        said = message["content"]
        texts = [{"type": "text", "text": said}] if isinstance(said, str) else said
        message["content"] = [{"type": "reasoning", "reasoning": thought}, *texts]
    calls = step.get("tool_calls") or []
    if calls:
        message["tool_calls"] = [_call(each) for each in calls]
    metrics = as_object(step.get("metrics"))
    tokens = {name: metrics[theirs] for name, theirs in OF_TOKENS.items() if theirs in metrics}
    written = {
        each["tool_call_id"]: as_object(each.get("extra"))[OURS]
        for each in calls
        if OURS in as_object(each.get("extra"))
    }
    yield _with_own(message, tokens, written)
    names = {each["tool_call_id"]: each["function_name"] for each in calls}
    for result in as_object(step.get("observation")).get("results") or []:
        content, id = _content(result["content"]), result.get("source_call_id")
        if id is None:
            yield _with_own({"role": "user", "content": content}, {"name": SEEN}, {})
        else:
            yield {"role": "tool", "content": content, "tool_call_id": id, "function": names[id]}


def _with_own(message: JsonObject, item: JsonObject, arguments: JsonObject) -> JsonObject:
    own = {"item": item, "arguments": arguments}
    if given := {name: value for name, value in own.items() if value}:
        message["metadata"] = {OURS: given}
    return message


def _content(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [
        part if part["type"] == "text" else {"type": "image", "image": part["source"]["path"]}
        for part in content
    ]


def _call(call: Mapping[str, Any]) -> JsonObject:
    return {
        "id": call["tool_call_id"],
        "function": call["function_name"],
        "arguments": call["arguments"],
        "type": "function",
    }


def _tool(tool: Any) -> JsonObject:
    given = as_object(tool)
    if given.get("type") != "function":
        raise Damaged(f"a tool of type {given.get('type')!r} has no place in this format")
    schema = {"type": "object", "properties": {}, **as_object(given.get("parameters"))}
    return {
        "name": str(given.get("name")),
        "description": str(given.get("description") or ""),
        "parameters": schema,
    }


def _output(turns: list[list[JsonObject]], model: str, finish: str | None) -> JsonObject:
    """The last answer."""
    said = [each for turn in turns for each in turn if each["role"] == "assistant"]
    return {"model": model, "choices": [_choice(each, finish) for each in said[-1:]]}


def _choice(message: JsonObject, finish: str | None) -> JsonObject:
    return {"message": message, "stop_reason": STOPS.get(finish or "", "unknown")}


def _usage_of(usage: Mapping[str, Any], cost: float | None) -> JsonObject | None:
    cached = as_object(usage.get("input_tokens_details")).get("cached_tokens")
    thought = as_object(usage.get("output_tokens_details")).get("reasoning_tokens")
    return _usage(usage.get("input_tokens"), usage.get("output_tokens"), cached, cost, thought)


def _usage(
    asked: int | None,
    said: int | None,
    cached: int | None,
    cost: float | None,
    thought: int | None = None,
) -> JsonObject | None:
    """Tokens as inspect counts them: those of the input without cached ones."""
    if asked is None or said is None:
        return None
    found = {
        "input_tokens": asked - (cached or 0),
        "output_tokens": said,
        "total_tokens": asked + said,
        "input_tokens_cache_read": cached,
        "reasoning_tokens": thought,
        "total_cost": cost,
    }
    return {name: value for name, value in found.items() if value is not None}


def _events(
    turns: list[list[JsonObject]],
    every: list[ModelCall],
    num_before: int,
    start: datetime,
    model: str,
    tools: list[JsonObject],
) -> Iterator[JsonObject]:
    """A model's event for each turn, and one for each tool. Tokens and times are in them if each
    turn is one call."""
    calls = [each for each in every if each.by != "user"]
    if len(calls) != sum(turn[0]["role"] == "assistant" for turn in turns):
        calls = []
    left = iter(calls)
    for turn in turns:
        said, num_asked = turn[0], num_before
        num_before += len(turn)
        if said["role"] != "assistant":
            continue
        call = next(left, ModelCall())
        begin = call.start_s or 0.0
        end = begin + (call.model_s or 0.0)
        output = {"model": model, "choices": [_choice(said, call.finish)], "time": call.model_s}
        usage = _usage(call.input, call.output, call.cached, call.cost_usd)
        yield {
            **_event("model", start, begin, said["id"]),
            "model": call.model or model,
            "input": [],
            "input_refs": [[0, num_asked]],
            "tools": tools,
            "tool_choice": "auto",
            "config": {},
            "output": {**output, "usage": usage} if usage else output,
            "retries": None if call.tries is None else call.tries - 1,
            "working_time": call.model_s,
        }
        results = {each.get("tool_call_id"): each for each in turn[1:]}
        for made in said.get("tool_calls", ()):
            if result := results.get(made["id"]):
                event = _event("tool", start, end, result["id"])
                yield {**event, **made, "result": result["content"], "message_id": result["id"]}


def _event(kind: str, start: datetime, at: float, id: str) -> JsonObject:
    stamp = (start + timedelta(seconds=at)).isoformat()
    return {"event": kind, "uuid": f"{kind}-{id}", "timestamp": stamp, "working_start": at}
