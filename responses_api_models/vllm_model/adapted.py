"""What the configuration makes of every request, whatever its row asks for."""

from collections.abc import Mapping
from typing import Any

import orjson

from rollout_kit.responses import Item, content_texts, input_items, reasoning_texts
from rollout_kit.serving.endpoints.chat import RAW
from rollout_kit.serving.endpoints.requests import extra_body
from rollout_kit.types import JsonObject

from .config import VllmModelConfig

OF_PREFIX: JsonObject = {"continue_final_message": True, "add_generation_prompt": False}
"""What asks vLLM to continue the last message."""


def adapt(params: JsonObject, config: VllmModelConfig) -> JsonObject:
    """The create params as this server sends them. What it adds wins over all parameters."""
    if config.use_completions_api:
        params = as_raw_prompt(params)
    if config.preserve_reasoning_in_assistant_content:
        params = {**params, "input": with_thoughts_inline(input_items(params))}
    added = dict(config.sampling_overrides)
    if config.continue_final_assistant_message and _ends_with_assistant(params):
        added |= OF_PREFIX
    if not added:
        return params
    row = dict(params)
    extra = {**extra_body(row), **added}
    metadata = {**(params.get("metadata") or {}), "extra_body": orjson.dumps(extra).decode()}
    return {**params, "metadata": metadata}


def as_raw_prompt(params: JsonObject) -> JsonObject:
    """The input as one text: that of a user's message, after that of a system message if there is
    one. Any other input stays as it is, and a raw prompt refuses it by name."""
    if params.get(RAW):
        return params
    items = input_items(params)
    if given := params.get("instructions"):
        items = [{"role": "system", "content": given}, *items]
    roles = [each.get("role") for each in items if each.get("type", "message") == "message"]
    raw = {**params, RAW: True}
    if len(roles) != len(items) or roles not in (["user"], ["system", "user"]):
        return raw
    texts = ["".join(content_texts(each.get("content"))) for each in items]
    raw.pop("instructions", None)
    return {**raw, "input": "\n\n".join(texts)}


def with_thoughts_inline(items: list[Item]) -> list[Item]:
    """The items with each reasoning at the start of the text that it led to. Where a call follows
    it, it becomes a text of its own before the call."""
    found: list[Item] = []
    thought = ""
    for item in items:
        kind = item.get("type", "message")
        if kind == "reasoning":
            texts = reasoning_texts(item)
            thought += "".join(f"<think>{text}</think>" for text in texts if text)
            continue
        if thought and kind == "message" and item.get("role") == "assistant":
            item = {**item, "content": thought + "".join(content_texts(item.get("content")))}
        elif thought and kind == "function_call":
            found.append({"role": "assistant", "content": thought})
        thought = ""
        found.append(item)
    return found


def _ends_with_assistant(params: Mapping[str, Any]) -> bool:
    items = input_items(params)
    last = items[-1] if items else {}
    return last.get("type", "message") == "message" and last.get("role") == "assistant"
