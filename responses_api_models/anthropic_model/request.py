"""Responses create params as requests of Anthropic's Messages API.

TaskError for what the API cannot express: nothing is dropped silently. A row's own parameters of
the Messages API, such as `top_k` or `inference_geo`, are passed on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from rollout_kit.responses import input_items
from rollout_kit.serving.endpoints.chat import LOGPROBS, RAW, SERVER_SIDE
from rollout_kit.serving.endpoints.completions import bad_request
from rollout_kit.serving.endpoints.requests import RequestForm
from rollout_kit.types import JsonObject

from .caching import Caching, Ttl, mark_prefix
from .conversation import Conversation
from .thinking import ThinkingType, form_for, write_thinking

WITHOUT_MEANING = frozenset(
    {"include", "truncation", "background", "max_tool_calls", "store", "stream", "stream_options"}
    | {"prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"}
)
"""Keys of the Responses API that affect the delivery of a reply, not what a turn generates."""

TRANSLATED = frozenset(
    {"input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "max_output_tokens"}
    | {"text", "reasoning", "stop", "metadata", "user", "safety_identifier", "service_tier"}
)

NO_SUCH = (
    *("seed", "top_logprobs", "logprobs", "logit_bias", "frequency_penalty", "presence_penalty"),
    *("repetition_penalty", "min_p", "chat_template_kwargs", "return_token_ids", "require_version"),
    *("moderation", "context_management", "access_programs"),
)
"""Parameters of other APIs that change an answer."""

TIERS = {"auto": "auto", "default": "standard_only", "standard_only": "standard_only"}
"""`service_tier` of a row → that of the Messages API."""

CHOICES = {"auto": "auto", "required": "any", "none": "none"}


@dataclass(frozen=True, slots=True)
class MessagesForm(RequestForm):
    """The same for the Messages API."""

    max_tokens: int = 16_384
    """For rows that set none; the API wants a limit."""
    thinking: ThinkingType | None = None
    caching: Caching = "auto"
    ttl: Ttl = "5m"
    on_default: Callable[[], None] = lambda: None
    """Called for a request whose limit is that of `max_tokens`."""

    def body(self, row: JsonObject, extra: JsonObject, origin: str) -> JsonObject:
        row = {name: value for name, value in row.items() if name not in self.not_sent}
        _check(row)
        if self.drops_reasoning:
            kept = [item for item in input_items(row) if item.get("type") != "reasoning"]
            row["input"] = kept
        model = self.model(row, extra)
        made = _write(row, origin, self.thinking or form_for(model), model)
        for name in self.not_sent:
            made.pop(name, None)
        whole = {**self.lowest, **made, **extra, **self.delivery}
        if "max_tokens" not in whole:
            whole["max_tokens"] = self.max_tokens + _budget_in(whole)
            self.on_default()
        if "cache_control" not in whole and not _has_marks(self.lowest, extra):
            mark_prefix(whole, self.caching, self.ttl)
        return whole


def _budget_in(body: Mapping[str, Any]) -> int:
    thinking = body.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    return budget if isinstance(budget, int) else 0


def _has_marks(*given: JsonObject) -> bool:
    """Whether a user has set marks of the cache."""
    return any(b'"cache_control"' in orjson.dumps(each) for each in given)


def _check(row: JsonObject) -> None:
    """Raise TaskError for what this API cannot do."""
    for name in SERVER_SIDE:
        if name in row:
            raise bad_request(f"{name}: the Messages API stores no responses")
    if row.get("n", 1) != 1:
        raise bad_request("n: a rollout has one response; use num_repeats for several")
    if row.get(RAW):
        raise bad_request(f"{RAW}: the Messages API continues no raw texts")
    for name in NO_SUCH:
        if name in row:
            raise bad_request(
                f"{name}: the Messages API has nothing like it; to leave it out, add it to"
                " unsupported_params of the model server"
            )
    if LOGPROBS in row.get("include", ()):
        raise bad_request("include: the Messages API gives no log-probs")
    items = row.get("input", [])
    if not isinstance(items, str | list):
        raise bad_request("input: must be a string or a list of items")
    for number, item in enumerate(items if isinstance(items, list) else ()):
        if not isinstance(item, dict):
            raise bad_request(f"input[{number}]: must be an item, got {item!r:.80}")


def _write(row: JsonObject, origin: str, thinking: ThinkingType, model: str) -> JsonObject:
    """The row's parameters as those of the Messages API."""
    handled = TRANSLATED | WITHOUT_MEANING
    body: JsonObject = {key: value for key, value in row.items() if key not in handled}
    talk = Conversation(origin, model)
    talk.add_system(row.get("instructions"))
    for item in input_items(row):
        talk.add(item)
    system, body["messages"] = talk.finish()
    if system:
        body["system"] = system
    if row.get("tools"):
        body["tools"] = [_tool(tool) for tool in row["tools"]]
        body |= _tool_choice(row)
    limit = row.get("max_output_tokens")
    if limit is not None:
        body["max_tokens"] = limit
    if "stop" in row:
        body["stop_sequences"] = [row["stop"]] if isinstance(row["stop"], str) else row["stop"]
    for translate in (_tier, _user, _format):
        _merge(body, translate(row))
    _merge(body, write_thinking(row.get("reasoning") or {}, thinking, limit))
    return body


def _merge(body: JsonObject, more: JsonObject) -> None:
    """Add parameters; those that the row has in this API's own words win."""
    for name, value in more.items():
        known = body.get(name)
        is_object = isinstance(known, dict) and isinstance(value, dict) and name != "thinking"
        body[name] = {**value, **known} if is_object else value if known is None else known


def _tool(tool: Any) -> JsonObject:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind == "function" and isinstance(tool.get("name"), str):
        schema = {"type": "object", **(tool.get("parameters") or {})}
        more = {key: tool[key] for key in ("description", "strict") if tool.get(key)}
        return {"name": tool["name"], **more, "input_schema": schema}
    if isinstance(kind, str) and kind[-8:].isdecimal():  # a tool of the endpoint: web_search_…
        return tool
    raise bad_request(f"tools: the Messages API has no '{kind}' tools")


def _tool_choice(row: JsonObject) -> JsonObject:
    choice, is_serial = row.get("tool_choice"), row.get("parallel_tool_calls") is False
    if isinstance(choice, dict) and choice.get("type") == "function":
        made: JsonObject = {"type": "tool", "name": choice.get("name")}
    elif choice is None:
        made = {"type": "auto"}
    elif isinstance(choice, str) and choice in CHOICES:
        made = {"type": CHOICES[choice]}
    else:
        named = choice.get("type") if isinstance(choice, dict) else choice
        raise bad_request(f"tool_choice: the Messages API has no '{named}'")
    if is_serial and made["type"] != "none":
        made["disable_parallel_tool_use"] = True
    return {"tool_choice": made} if choice is not None or is_serial else {}


def _tier(row: JsonObject) -> JsonObject:
    tier = row.get("service_tier")
    if tier is None:
        return {}
    if tier not in TIERS:
        raise bad_request(f"service_tier: the Messages API has no '{tier}'; it has auto, default")
    return {"service_tier": TIERS[tier]}


def _user(row: JsonObject) -> JsonObject:
    """Who asks. Other metadata is for a store that this API does not have."""
    metadata = row.get("metadata")
    own = metadata.get("user_id") if isinstance(metadata, dict) else None
    user = own or row.get("safety_identifier") or row.get("user")
    return {"metadata": {"user_id": user}} if user else {}


def _format(row: JsonObject) -> JsonObject:
    text = row.get("text") or {}
    if text.get("verbosity") is not None:
        raise bad_request("text.verbosity: the Messages API has nothing like it")
    wanted = text.get("format") or {"type": "text"}
    match wanted.get("type"):
        case "text":
            return {}
        case "json_schema":
            form = {"type": "json_schema", "schema": wanted.get("schema")}
            return {"output_config": {"format": form}}
        case other:
            raise bad_request(f"text.format: the Messages API has no '{other}'; give a json_schema")
