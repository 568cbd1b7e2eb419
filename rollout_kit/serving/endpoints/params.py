"""Create params: what a request to a model may set, by name and type."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from math import isfinite
from typing import Any

TEXT_PARAMS = frozenset(
    [
        "model",
        "instructions",
        "service_tier",
        "user",
        "truncation",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "previous_response_id",
    ]
)
"""Create params that are always text, so that `….instructions=Be brief, please (…)` works."""

CREATE_PARAMS = TEXT_PARAMS | frozenset(
    [
        "background",
        "chat_template_kwargs",
        "context_management",
        "conversation",
        "frequency_penalty",
        "include",
        "input",
        "logit_bias",
        "max_output_tokens",
        "max_tool_calls",
        "metadata",
        "min_p",
        "moderation",
        "parallel_tool_calls",
        "presence_penalty",
        "prompt_cache_options",
        "raw_prompt",
        "reasoning",
        "repetition_penalty",
        "return_token_ids",
        "seed",
        "stop",
        "store",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_k",
        "top_logprobs",
        "top_p",
    ]
)
"""Create params of the Responses API and of vLLM. Others may be sent, unless they look like a
misspelling of one of these."""

RENAMED = {
    "functions": "tools",
    "max_completion_tokens": "max_output_tokens",
    "max_new_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "prompt": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}
"""Names of Chat Completions and of other libraries, with those of the Responses API."""

TEXT, INT, NUMBER, BOOL, LIST, MAPPING = ({str}, {int}, {int, float}, {bool}, {list}, {dict})

KINDS: Mapping[str, set[type]] = {
    **dict.fromkeys(TEXT_PARAMS, TEXT),
    **dict.fromkeys(("max_output_tokens", "max_tool_calls", "seed", "top_k", "top_logprobs"), INT),
    **dict.fromkeys(("temperature", "top_p", "min_p"), NUMBER),
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "repetition_penalty"), NUMBER),
    **dict.fromkeys(
        ("background", "parallel_tool_calls", "raw_prompt", "return_token_ids", "store"), BOOL
    ),
    **dict.fromkeys(("context_management", "include", "tools"), LIST),
    **dict.fromkeys(("chat_template_kwargs", "metadata", "reasoning", "text"), MAPPING),
    **dict.fromkeys(("logit_bias", "moderation", "prompt_cache_options"), MAPPING),
    "conversation": TEXT | MAPPING,
    "input": TEXT | LIST,
    "stop": TEXT | LIST,
    "tool_choice": TEXT | MAPPING,
}
"""The types that a param may have besides null."""

AT_LEAST = {"max_output_tokens": 1, "max_tool_calls": 1, "temperature": 0, "top_p": 0, "min_p": 0}

AT_MOST = {"top_p": 1, "min_p": 1}

WORDS = {str: "text", int: "an int", float: "a number", bool: "true or false", list: "a list"}

TOOL_CHOICES = ("auto", "none", "required")

ROLES = frozenset({"assistant", "developer", "system", "user"})

TYPO = 0.85
"""Similarity at which an unknown name is regarded as misspelled."""


def find_problems(params: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each param that no model can use as it is meant, and why not."""
    for name, value in params.items():
        kinds = KINDS.get(name)
        if kinds is None and value is not None:
            if name in RENAMED:
                yield name, f"the Responses API calls this {RENAMED[name]}"
            elif close := get_close_matches(name, CREATE_PARAMS, n=1, cutoff=TYPO):
                yield name, f"unknown (did you mean '{close[0]}'?)"
        elif kinds is not None and value is not None:
            if type(value) not in kinds:
                yield name, f"expected {_describe(kinds)}, got {value!r:.80}"
            elif name in AT_LEAST and not (isfinite(value) and value >= AT_LEAST[name]):
                yield name, f"must be at least {AT_LEAST[name]}, got {value}"
            elif name in AT_MOST and value > AT_MOST[name]:
                yield name, f"must be at most {AT_MOST[name]}, got {value}"
    if params.get("background"):
        yield "background", "must not be set: the answer would not be waited for"
    if params.get("n") not in (None, 1):
        yield "n", "each request asks for one answer: give +num_repeats instead"
    choice, items = params.get("tool_choice"), params.get("input")
    if type(choice) is str and choice not in TOOL_CHOICES:
        yield "tool_choice", f"expected {', '.join(TOOL_CHOICES)} or a mapping, got '{choice}'"
    for position, item in enumerate(items) if isinstance(items, list) else ():
        if not isinstance(item, dict):
            yield f"input[{position}]", f"expected a mapping, got {item!r:.80}"
        elif item.get("type", "message") == "message" and item.get("role") not in ROLES:
            role = item.get("role")
            hint = "; a tool's output is an item of type function_call_output"
            yield (
                f"input[{position}].role",
                f"expected one of {', '.join(sorted(ROLES))}, got {role!r:.80}"
                + (hint if role in ("tool", "function") else ""),
            )


NEUTRAL: Mapping[str, Any] = {
    "frequency_penalty": 0,
    "logit_bias": {},
    "min_p": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "stop": [],
    "top_logprobs": 0,
}
"""Params that an engine may not know, with the values that change nothing."""


def find_unfollowed(params: Mapping[str, Any], names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each of the params `names` that is set to some effect, and each form of text and of
    reasoning that only hosted models know, with the reason why it is refused."""
    for name in names:
        if params.get(name) not in (None, NEUTRAL.get(name)):
            yield name, "this model cannot follow it; leave it out"
    text, reasoning = (params.get(name) or {} for name in ("text", "reasoning"))
    kind = (text.get("format") or {}).get("type", "text")
    if kind != "text":
        yield "text.format", f"this model cannot be held to a '{kind}'; leave it out"
    if text.get("verbosity") is not None:
        yield "text.verbosity", "this model cannot follow it; leave it out"
    if reasoning.get("effort") not in (None, "none"):
        yield "reasoning.effort", "this model thinks as it was trained to; leave it out"


def merge(under: Any, over: Any) -> Any:
    """Merge `over` into `under`: objects merge recursively, any other value is replaced."""
    if not (isinstance(under, dict) and isinstance(over, dict)):
        return over
    if not (under and over):
        return under or over
    result = dict(under)
    for key, value in over.items():
        result[key] = merge(result[key], value) if key in result else value
    return result


def _describe(kinds: set[type]) -> str:
    if kinds is NUMBER:
        return "a number"
    return " or ".join(WORDS.get(kind, "a mapping") for kind in sorted(kinds, key=str)[::-1])
