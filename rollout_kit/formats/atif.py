"""Trajectories of ATIF, 1.0 to 1.8: what Harbor, OpenHands and mini-swe-agent write."""

from collections.abc import Mapping
from typing import Any

from ..responses import (
    USER_CALLS,
    Item,
    as_object,
    function_call_item,
    function_call_output,
    message_item,
    reasoning_item,
)
from ..trajectory import GENERATION, LOG_PROBS, PROMPT, ModelCall
from ..types import JsonObject
from .chat_items import as_text, as_tools
from .foreign import Damaged, Foreign, count_in, number_in, rest_of
from .own_block import OURS, restore_own

NAME = "atif"

VERSION = "ATIF-v1."

OF_STEP = (
    *("step_id", "source", "message", "reasoning_content", "tool_calls", "observation", "metrics"),
    "timestamp",
)


def is_document(document: JsonObject) -> bool:
    return str(document.get("schema_version", "")).startswith("ATIF-") and "steps" in document


def read_document(document: JsonObject) -> Foreign:
    """A trajectory; Damaged if it is malformed or of a version that is not known."""
    version = str(document.get("schema_version"))
    if not version.startswith(VERSION):
        raise Damaged(f"its schema_version is {version[:40]}; {VERSION}0 to {VERSION}8 are read")
    steps = document.get("steps")
    if not isinstance(steps, list) or not all(isinstance(each, dict) for each in steps):
        raise Damaged("it has no list of steps")
    first = next((at for at, each in enumerate(steps) if _is_answer(each)), len(steps))
    found, kept_steps = Foreign("", [], []), {}
    for at, step in enumerate(steps):
        items = found.input if at < first else found.output
        rest = rest_of(step, *OF_STEP)
        try:
            rest |= add_step(step, items)
        except (AttributeError, KeyError, TypeError) as error:
            raise Damaged(f"step {at + 1} is malformed: {error!r}") from None
        if _is_answer(step) and step.get("llm_call_count") != 0:
            found.calls.append(_call(step, len(found.output)))
            rest.pop("llm_call_count", None)
        if step.get("timestamp"):
            rest["timestamp"] = step["timestamp"]
        if rest:
            kept_steps[str(at + 1)] = rest
    _describe(found, document)
    if kept_steps:
        found.kept["steps"] = kept_steps
    return found


def _describe(found: Foreign, document: JsonObject) -> None:
    """Set what the trajectory says as a whole."""
    agent, extra = as_object(document.get("agent")), dict(as_object(document.get("extra")))
    ours = as_object(extra.pop(OURS, None))
    found.agent = str(agent.get("name") or NAME)
    found.model = str(agent.get("model_name") or "")
    found.tools = as_tools(agent.get("tool_definitions"))
    found.known = {"started_at": _start(document)}
    restore_own(found, ours)
    found.kept = rest_of(document, "steps", "agent", "final_metrics", "extra")
    found.kept |= {"agent": rest_of(agent, "name", "model_name", "tool_definitions")}
    if extra:
        found.kept["extra"] = extra
    totals = as_object(document.get("final_metrics"))
    names = ("total_prompt_tokens", "total_completion_tokens")
    asked, said = (count_in(totals.get(name)) for name in names)
    if asked is not None and said is not None:
        found.usage = {"input_tokens": asked, "output_tokens": said, "total_tokens": asked + said}
        if (cached := count_in(totals.get("total_cached_tokens"))) is not None:
            found.usage["input_tokens_details"] = {"cached_tokens": cached}
    if (cost := number_in(totals.get("total_cost_usd"))) is not None:
        found.known["cost_usd"] = cost
    if more := rest_of(
        totals,
        *(f"total_{each}" for each in ("prompt_tokens", "completion_tokens", "cached_tokens")),
        *("total_cost_usd", "total_steps"),
    ):
        found.kept["final_metrics"] = more


def _start(document: JsonObject) -> Any:
    return next((each["timestamp"] for each in document["steps"] if each.get("timestamp")), None)


def _is_answer(step: Mapping[str, Any]) -> bool:
    return step.get("source") == "agent"


def add_step(step: Mapping[str, Any], items: list[Item]) -> JsonObject:
    """Add the items of a step; returns what they cannot hold."""
    rest: JsonObject = {}
    content = read_content(step.get("message"))
    results = as_object(step.get("observation")).get("results") or []
    if not _is_answer(step):
        role = step["source"]
        if role not in ("system", "user"):
            raise TypeError(f"source {role!r}")
        calls = as_object(step.get("extra")).get(USER_CALLS)
        more = {USER_CALLS: calls} if isinstance(calls, list) else {}
        items.append({"type": "message", "role": role, "content": content, **more})
    else:
        if thought := step.get("reasoning_content"):
            items.append(reasoning_item(str(thought)))
        calls = step.get("tool_calls") or []
        if content or not calls:
            items.append(_answer(content))
        for call in calls:
            arguments = _arguments(call)
            items.append(function_call_item(call["function_name"], arguments, call["tool_call_id"]))
        if more := {
            call["tool_call_id"]: more
            for call in calls
            if (more := rest_of(call.get("extra") or {}, OURS))
        }:
            rest["tool_call_extra"] = more
        _put_tokens(items[-1], as_object(step.get("metrics")))
    for number, result in enumerate(results):
        output = read_content(result.get("content"))
        if (id := result.get("source_call_id")) is not None:
            items.append(function_call_output(str(id), output))
        else:  # what an agent without tool calls sees next
            items.append({"type": "message", "role": "user", "content": output, "name": SEEN})
        if more := rest_of(result, "source_call_id", "content"):
            rest.setdefault("result_extra", {})[str(number)] = more
    if more := rest_of(as_object(step.get("metrics")), *OF_METRICS):
        rest["metrics"] = more
    return rest


def _arguments(call: Mapping[str, Any]) -> str:
    """As the model wrote them, where our export has kept that."""
    written = as_object(call.get("extra")).get(OURS)
    return written if isinstance(written, str) else as_text(call.get("arguments") or {})


SEEN = "observation"
"""Name of a user's message that is the observation of a step."""

OF_METRICS = (
    *("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd", "prompt_token_ids"),
    *("completion_token_ids", "logprobs"),
)


def _answer(content: Any) -> Item:
    if isinstance(content, str):
        return message_item(content)
    item = message_item("")
    parts = [
        {"type": "output_text", "text": part["text"], "annotations": []}
        if part["type"] == "input_text"
        else part
        for part in content
    ]
    return {**item, "content": parts}


def _put_tokens(item: Item, metrics: Mapping[str, Any]) -> None:
    names = ((PROMPT, "prompt_token_ids"), (GENERATION, "completion_token_ids"))
    for name, theirs in (*names, (LOG_PROBS, "logprobs")):
        if isinstance(metrics.get(theirs), list):
            item[name] = metrics[theirs]


def read_content(content: Any) -> Any:
    """A message or an observation as text, or as parts of the Responses API."""
    if content is None or isinstance(content, str):
        return content or ""
    return [_part(part) for part in content]


def _part(part: JsonObject) -> JsonObject:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "input_text", "text": text}
        case {"type": "image", "source": {"path": str(path)}}:
            return {"type": "input_image", "image_url": path, "detail": "auto"}
    raise TypeError(f"a part of type {part.get('type')!r}")


def _call(step: Mapping[str, Any], end: int) -> ModelCall:
    metrics = as_object(step.get("metrics"))
    return ModelCall(
        to=end,
        input=count_in(metrics.get("prompt_tokens")),
        cached=count_in(metrics.get("cached_tokens")),
        output=count_in(metrics.get("completion_tokens")),
        cost_usd=number_in(metrics.get("cost_usd")),
        model=step.get("model_name") if isinstance(step.get("model_name"), str) else None,
    )
