"""Results of NeMo Gym's environment servers that list calls of models, as `nemo_user_sim` does, in
the form of a rollout: a request and a response.

The conversation is the assistant's. Its first request is the request, and what a user or a tool
said between two of its answers stands between them. This file imports nothing of this toolkit: the
process of an environment server loads it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

CALLS = "invocations"
"""Field of a result: all calls of models, in order, each with its `role`."""

POLICY = "assistant"

COUNTS = ("input_tokens", "output_tokens", "total_tokens")


def is_episode(result: Mapping[str, Any]) -> bool:
    """Whether a result lists calls of models in place of a response."""
    return isinstance(result.get(CALLS), list) and "response" not in result


def calls_of_policy(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The calls of the assistant's model that have a request and a response."""
    return [
        each
        for each in result[CALLS]
        if isinstance(each, dict)
        and each.get("role") == POLICY
        and all(isinstance(each.get(part), dict) for part in ("request", "response"))
        and isinstance(each["response"].get("output"), list)
    ]


def as_rollout(result: Mapping[str, Any]) -> dict[str, Any]:
    """The result with `responses_create_params` and `response`."""
    calls = calls_of_policy(result)
    params = dict(calls[0]["request"]) if calls else {}
    params["input"] = as_items(params.get("input"))
    output = [item for part in _parts(calls) for item in part]
    return {**result, "responses_create_params": params, "response": _response(calls, output)}


def ends_of_turns(result: Mapping[str, Any]) -> list[int]:
    """For each call of the assistant's model, the number of items up to what followed it."""
    ends: list[int] = []
    for part in _parts(calls_of_policy(result)):
        ends.append((ends[-1] if ends else 0) + len(part))
    return ends


def _parts(calls: list[dict[str, Any]]) -> Iterator[list[Any]]:
    """The items of each turn: an answer, and what was said to the model before the next one."""
    for at, call in enumerate(calls):
        following = calls[at + 1]["request"].get("input") if at + 1 < len(calls) else []
        yield [*call["response"]["output"], *_new_items(as_items(following))]


def _new_items(items: list[Any]) -> list[Any]:
    """The last items of a request, behind all that the model said."""
    own = [at for at, each in enumerate(items) if _is_said(each)]
    return items[own[-1] + 1 :] if own else []


def _is_said(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    return item.get("role") == POLICY or item.get("type") in ("function_call", "reasoning")


def as_items(given: Any) -> list[Any]:
    """The input of a request as items."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return given if isinstance(given, list) else []


def _response(calls: list[dict[str, Any]], output: list[Any]) -> dict[str, Any]:
    """The last response with the items of all turns, and their tokens as one sum."""
    last = dict(calls[-1]["response"]) if calls else {"object": "response", "status": "completed"}
    usages = [call["response"].get("usage") for call in calls]
    known = [each for each in usages if isinstance(each, dict)]
    usage = None
    if known and len(known) == len(usages):
        usage = {name: sum(each.get(name) or 0 for each in known) for name in COUNTS}
    return {**last, "output": output, "usage": usage}
