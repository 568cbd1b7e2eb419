"""Writes a rollout as a trajectory of ATIF 1.8. `atif` reads it back.

Steps hold messages, tool calls, observations, tokens and costs. What ATIF has no field for, as the
reward, stands under `rollout_kit` in its `extra`. Ids of items and an endpoint's data are left out.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from .._version import __version__
from ..responses import (
    USER_CALLS,
    Item,
    as_object,
    find_offered_tools,
    input_items,
    output_items,
    reasoning_texts,
)
from ..trajectory import GENERATION, LOG_PROBS, PROMPT, SUFFIX, ModelCall, read_turns
from ..types import JsonObject, Rollout
from .atif import SEEN
from .foreign import Damaged
from .own_block import OURS, keep_own

SCHEMA = "ATIF-v1.8"

MEDIA = {
    name: f"image/{kind}"
    for name, kind in {
        "png": "png",
        "jpg": "jpeg",
        "jpeg": "jpeg",
        "gif": "gif",
        "webp": "webp",
    }.items()
}
"""Suffix of an image → its media type; ATIF has no others."""


def write_trajectory(rollout: Rollout) -> JsonObject:
    """The trajectory; Damaged if ATIF cannot express the rollout."""
    line = rollout.line
    params = as_object(line.get("responses_create_params"))
    calls = read_turns(as_object(line.get("rollout")).get("turns"))
    steps = [*asked_steps(params), *answer_steps(output_items(rollout.response), calls)]
    if not steps:
        raise Damaged("it has no messages")
    for number, step in enumerate(steps, 1):
        step["step_id"] = number
    key = rollout.key
    name = (
        f"{key.task_id}:{key.scope}:{key.rollout_index}"
        if key.scope
        else (f"{key.task_id}:{key.rollout_index}")
    )
    agent: JsonObject = {"name": key.agent, "version": __version__}
    if rollout.info.model:
        agent["model_name"] = rollout.info.model
    if tools := find_offered_tools(params, rollout.response):
        agent["tool_definitions"] = [_tool(each) for each in tools]
    return {
        "schema_version": SCHEMA,
        "session_id": name,
        "trajectory_id": name,
        "agent": agent,
        "steps": steps,
        "final_metrics": _totals(rollout, len(steps)),
        "extra": {OURS: keep_own(rollout)},
    }


def _totals(rollout: Rollout, number: int) -> JsonObject:
    usage, found = as_object(rollout.line.get("usage")), {"total_steps": number}
    cached = as_object(usage.get("input_tokens_details")).get("cached_tokens")
    given = {
        "total_prompt_tokens": usage.get("input_tokens"),
        "total_completion_tokens": usage.get("output_tokens"),
        "total_cached_tokens": cached,
        "total_cost_usd": rollout.info.cost_usd,
    }
    return {**found, **{name: value for name, value in given.items() if value is not None}}


def _tool(tool: Any) -> JsonObject:
    told = as_object(tool)
    if told.get("type") != "function":
        raise Damaged(f"a tool of type {told.get('type')!r} has no place in this format")
    own = {
        name: told[name]
        for name in ("name", "description", "parameters", "strict")
        if told.get(name)
    }
    return {"type": "function", "function": own}


def asked_steps(params: Mapping[str, Any]) -> list[JsonObject]:
    """The steps of a rollout's input; Damaged if ATIF has none for an item."""
    return [_told(item) for item in input_items(params)]


def _told(item: Item) -> JsonObject:
    """The step of an item of the input."""
    kind, role = item.get("type", "message"), item.get("role")
    if kind != "message" or role not in ("system", "developer", "user", "assistant"):
        raise Damaged(f"its input has an item of type {kind!r} and role {role!r}")
    source = {"developer": "system", "assistant": "agent"}.get(role, role)
    step = {"step_id": 0, "source": source, "message": _content(item.get("content"))}
    if calls := item.get(USER_CALLS):
        step["extra"] = {USER_CALLS: calls}
    if role == "assistant":  # an earlier answer, which nobody sampled here
        step["llm_call_count"] = 0
    return step


def answer_steps(items: list[Item], calls: list[ModelCall]) -> Iterator[JsonObject]:
    """The steps of the output: a new one begins with each turn, and with each user's message."""
    ends = {call.to: call for call in calls if call.to is not None and call.by != "user"}
    step: JsonObject | None = None
    sequence: list[int] = []
    for at, item in enumerate(items):
        kind = item.get("type", "message")
        if step is not None and (at in ends or not _fits(step, item)):
            yield step
            step = None
        if step is None:
            step = {"step_id": 0, "source": "agent", "message": ""}
        if kind == "message" and item.get("role") not in ("assistant", None):
            if item.get("name") == SEEN:
                _see(step, {"content": _content(item.get("content"))})
                continue
            yield _told(item)
            step = None
            continue
        _add(step, item)
        sequence = _put_tokens(step, item, sequence)
        call = next((call for end, call in sorted(ends.items()) if end > at), None)
        if call is not None:
            _put_counts(step, call)
    if step is not None:
        yield step


def _fits(step: JsonObject, item: Item) -> bool:
    """Whether an item is of the same turn."""
    kind = item.get("type", "message")
    if kind == "function_call_output" or item.get("name") == SEEN:
        return True
    if "observation" in step or (kind == "message" and item.get("role") not in ("assistant", None)):
        return False
    if "tool_calls" in step:
        return kind == "function_call"
    return not step["message"] and (kind != "reasoning" or "reasoning_content" not in step)


def _add(step: JsonObject, item: Item) -> None:
    match item.get("type", "message"):
        case "message":
            step["message"] = _content(item.get("content"))
        case "reasoning":
            texts = reasoning_texts(item)
            if texts:
                step["reasoning_content"] = "\n".join(texts)
        case "function_call":
            step.setdefault("tool_calls", []).append(_call(item))
        case "function_call_output":
            id = item.get("call_id")
            known = {each["tool_call_id"] for each in step.get("tool_calls", ())}
            if id not in known:
                raise Damaged("an output belongs to no call of its turn")
            _see(step, {"source_call_id": id, "content": _content(item.get("output"))})
        case other:
            raise Damaged(f"an item of type {other!r} has no place in this format")


def _see(step: JsonObject, result: JsonObject) -> None:
    step.setdefault("observation", {"results": []})["results"].append(result)


def _call(item: Item) -> JsonObject:
    text = item.get("arguments") or ""
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError:
        parsed = None
    found: JsonObject = {
        "tool_call_id": str(item.get("call_id")),
        "function_name": str(item.get("name")),
        "arguments": parsed if isinstance(parsed, dict) else {},
    }
    if not isinstance(parsed, dict) or orjson.dumps(parsed).decode() != text:
        found["extra"] = {OURS: text}  # as the model wrote them
    return found


def _content(content: Any) -> Any:
    if isinstance(content, str) or content is None:
        return content or ""
    parts = [_part(part) for part in content]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: Any) -> JsonObject:
    match part:
        case {"type": "input_text" | "output_text" | "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "refusal", "refusal": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "input_image", "image_url": str(url)}:
            inner = url.partition(";")[0].removeprefix("data:image/") if url[:5] == "data:" else ""
            kind = inner or url.rpartition(".")[2].partition("?")[0].lower()
            if kind not in MEDIA:
                raise Damaged("it has an image of a kind that this format does not name")
            return {"type": "image", "source": {"media_type": MEDIA[kind], "path": url}}
    raise Damaged("it has content that is neither text nor an image")


def _put_tokens(step: JsonObject, item: Item, sequence: list[int]) -> list[int]:
    """Put the token ids of a turn on its step; returns all tokens so far."""
    generated = item.get(GENERATION)
    if not isinstance(generated, list):
        return sequence
    prompt = [*sequence, *item[SUFFIX]] if item.get(SUFFIX) is not None else item.get(PROMPT) or []
    metrics = step.setdefault("metrics", {})
    metrics |= {"prompt_token_ids": prompt, "completion_token_ids": generated}
    if isinstance(item.get(LOG_PROBS), list):
        metrics["logprobs"] = item[LOG_PROBS]
    return [*prompt, *generated]


def _put_counts(step: JsonObject, call: ModelCall) -> None:
    given = {
        "prompt_tokens": call.input,
        "completion_tokens": call.output,
        "cached_tokens": call.cached,
        "cost_usd": call.cost_usd,
    }
    if found := {name: value for name, value in given.items() if value is not None}:
        step.setdefault("metrics", {}).update(found)
