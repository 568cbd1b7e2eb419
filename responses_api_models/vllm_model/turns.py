"""One turn: the request to vLLM, and its answer as a response."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from rollout_kit.errors import ModelError, TaskError
from rollout_kit.responses import Item, input_items
from rollout_kit.rl.partial import PartialTurn
from rollout_kit.serving.endpoints.chat import LOGPROBS, RAW, sound_calls, to_chat
from rollout_kit.serving.endpoints.provider_data import untag
from rollout_kit.serving.endpoints.raw import to_completion
from rollout_kit.serving.endpoints.refusals import extra_body
from rollout_kit.serving.endpoints.replies import from_chat
from rollout_kit.trajectory import (
    GENERATION,
    LOG_PROBS,
    STOPPED_BY,
    TEMPERATURE,
    VERSION_FIRST,
    VERSION_LAST,
    TokenSequence,
    Versions,
    prompt_fields,
    sequences,
)
from rollout_kit.types import JsonObject

from .token_in import MAX_TOKENS, LaterTurn, check_ended

OURS = (VERSION_FIRST, VERSION_LAST)
"""Fields of items that are not of the Responses API."""

OF_CHAT = ("chat_template_kwargs", "return_token_ids")

OTHERWISE = "the chat template renders earlier turns differently than they were sampled"


@dataclass(frozen=True, slots=True)
class Asked:
    """A turn to request. `body` is the request, `raw` the same as JSON."""

    params: Mapping[str, Any]
    body: JsonObject
    raw: bytes
    before: TokenSequence | None = None
    """The earlier turns, if their token ids are known."""
    later: LaterTurn | None = None
    is_completion: bool = False
    """Whether the model continues one text, without a chat template."""
    restart: str = ""
    """Why earlier turns with known token ids cannot be continued."""
    version: int = 0
    """The adapter's version, if requests name adapters."""
    spans: list[Versions] = field(default_factory=list)
    """Versions of the weights that wrote it, filled while it is asked."""
    token_versions: list[int | None] = field(default_factory=list)
    """The same of each token, where vLLM tells."""
    origin: str = ""
    """What names the endpoint that answers, for `provider_data`."""
    partial: PartialTurn | None = None
    """The tokens that it has already; None if stopped turns are not resumed."""

    @property
    def wants_token_ids(self) -> bool:
        return bool(self.body.get("return_token_ids"))

    def ways(self) -> Iterator[LaterTurn]:
        """How it can be asked for by token ids; the first one that vLLM takes counts."""
        if self.later:
            yield self.later
        if self.partial and not self.is_completion:
            yield LaterTurn(self.body, self.body, self.body, [], [])

    @property
    def max_tokens(self) -> int | None:
        """The limit of generated tokens."""
        given = [self.body[key] for key in MAX_TOKENS if self.body.get(key) is not None]
        return max(given, default=None)

    def shorten(self, limit: int) -> "Asked":
        """The same turn with at most `limit` generated tokens."""
        body = {key: limit if key in MAX_TOKENS else value for key, value in self.body.items()}
        return replace(self, body=body, raw=orjson.dumps(body))


def asked(
    params: Mapping[str, Any], lowest: JsonObject, *, reasoning: bool, origin: str = ""
) -> Asked:
    """The request to vLLM's Chat Completions; see `body`."""
    made = body(params, lowest, reasoning=reasoning, origin=origin)
    plain = Asked(params, made, orjson.dumps(made), origin=origin)
    if not plain.wants_token_ids:
        return plain
    items = input_items(params)
    sampled = [number for number, item in enumerate(items) if GENERATION in item]
    if not sampled:
        return plain
    try:
        before = sequences(items)[-1]
    except (ValueError, KeyError) as error:
        return replace(plain, restart=f"the input's token ids are incomplete: {error}")
    last = sampled[-1]
    if last + 1 < len(items) and _is_assistant_s(items[last + 1]):
        why = "something was added to the turn before"
        return replace(plain, before=before, restart=why)
    until_last = {**params, "input": items[: last + 1]}
    thought = _thought(items[: last + 1])[-len(before.turns) :]
    later = LaterTurn(
        made,
        {
            **body(until_last, lowest, reasoning=reasoning, origin=origin),
            "add_generation_prompt": False,
        },
        body(params, lowest, reasoning=False) if any(thought) else made,
        before.turns,
        thought,
    )
    return replace(plain, before=before, later=later)


def continue_text(params: Mapping[str, Any], text: str, lowest: JsonObject) -> Asked:
    """The request to vLLM's Completions: a text that the model continues."""
    row = {key: value for key, value in params.items() if value is not None}
    wants_token_ids = row.pop("return_token_ids", lowest.get("return_token_ids", False))
    extra = extra_body(row)
    under = {key: value for key, value in lowest.items() if key not in OF_CHAT}
    made = {**under, **to_completion(row, text), **extra}
    if wants_token_ids:
        made |= {"return_token_ids": True, "logprobs": made.get("logprobs", 0)}
    return Asked(params, made, orjson.dumps(made), is_completion=True)


def pass_on(
    params: Mapping[str, Any], lowest: JsonObject, *, reasoning: bool, origin: str = ""
) -> Asked:
    """The request to vLLM's own Responses API, which returns no token ids."""
    row = {
        key: value
        for key, value in params.items()
        if value is not None and key not in ("stream", RAW)
    }
    wants_token_ids = row.pop("return_token_ids", lowest.get("return_token_ids", False))
    if wants_token_ids:
        raise TaskError(
            "return_token_ids: vLLM's /v1/responses returns none; upstream_api must be"
            " chat_completions"
        )
    extra = extra_body(row)
    if isinstance(row.get("input"), list):
        row["input"] = [
            {name: value for name, value in item.items() if name not in OURS}
            for item in untag(sound_calls(row["input"]), origin)
            if reasoning or item.get("type") != "reasoning"
        ]
    made = {**lowest, **row, **extra}
    return Asked(params, made, orjson.dumps(made), origin=origin)


def _is_assistant_s(item: Item) -> bool:
    kind = item.get("type", "message")
    return kind in ("reasoning", "function_call") or (
        kind == "message" and item.get("role") == "assistant"
    )


def _thought(items: list[Item]) -> list[bool]:
    """For each sampled turn, whether it has reasoning."""
    found, has_reasoning = [], False
    for item in items:
        has_reasoning |= item.get("type") == "reasoning"
        if GENERATION in item:
            found.append(has_reasoning)
            has_reasoning = False
    return found


def body(
    params: Mapping[str, Any], lowest: JsonObject, *, reasoning: bool, origin: str = ""
) -> JsonObject:
    """The chat request. The row replaces values of `lowest`, its `metadata.extra_body` both.

    With `reasoning`, earlier turns keep their reasoning; the chat template decides what to use.
    Those of this `origin` go back under the names that they came with.
    """
    row = {key: value for key, value in params.items() if value is not None}
    wants_token_ids = row.pop("return_token_ids", lowest.get("return_token_ids", False))
    wants_logprobs = wants_token_ids or LOGPROBS in row.get("include", ())
    extra = extra_body(row)
    # vLLM before 0.6.4 has no max_completion_tokens
    if isinstance(row.get("input"), list):
        row["input"] = sound_calls(row["input"])
    thoughts = "reasoning" if reasoning else None
    chat = to_chat(
        row,
        reasoning_field=thoughts,
        max_tokens_field="max_tokens",
        endpoint=origin if reasoning else "",
    )
    made = {**lowest, **chat, **extra}
    made["messages"] = with_system(made["messages"])
    if "chat_template_kwargs" in lowest:
        given = made.get("chat_template_kwargs")
        given = given if isinstance(given, dict) else {}
        made["chat_template_kwargs"] = {**lowest["chat_template_kwargs"], **given}
    made.pop("return_token_ids", None)
    if wants_token_ids:
        made["return_token_ids"] = True
    if wants_logprobs:
        made["logprobs"] = True
    return made


def with_system(messages: list[JsonObject]) -> list[JsonObject]:
    """The messages with developer messages as system messages, and the first ones joined: most chat
    templates accept only one system message, at the start."""
    named = [
        {**each, "role": "system"} if each.get("role") == "developer" else each for each in messages
    ]
    num_first = next((n for n, each in enumerate(named) if each["role"] != "system"), len(named))
    first = named[:num_first]
    if num_first < 2 or not all(isinstance(each["content"], str) for each in first):
        return named
    joined = {"role": "system", "content": "\n\n".join(each["content"] for each in first)}
    return [joined, *named[num_first:]]


def answer(
    completion: Any,
    asked: Asked,
    model: str,
    *,
    temperature: float | None = None,
    restart: str = "",
) -> JsonObject:
    """The response, with token ids and log-probs if vLLM returned them. `temperature` is vLLM's
    default; `restart` is why earlier turns were not continued."""
    choice = completion["choices"][0]
    check_ended(choice)
    response = from_chat(completion, {"model": model, **asked.params}, asked.origin)
    output = response["output"]
    given = (choice.get("logprobs") or {}).get("content") or []
    if (generated := choice.get("token_ids")) is not None:
        log_probs = [each["logprob"] for each in given]
        if len(log_probs) != len(generated):
            what = f"{len(generated)} token ids and {len(log_probs)} log-probs"
            raise ModelError(f"vLLM answered with {what}", retryable=True)
        if output:
            prompt = completion.get("prompt_token_ids") or []
            why = restart or asked.restart or (OTHERWISE if asked.before else "")
            output[-1] |= prompt_fields(prompt, asked.before, why)
            output[-1] |= {GENERATION: generated, LOG_PROBS: log_probs}
            if (heat := asked.body.get("temperature", temperature)) is not None:
                output[-1][TEMPERATURE] = heat
            if stopped_by := _stopped_by(choice, asked.body):
                output[-1][STOPPED_BY] = stopped_by
    return response


def _stopped_by(choice: JsonObject, body: JsonObject) -> str:
    """What ended the generation; empty if the model sampled an end of turn."""
    finish, reason = choice.get("finish_reason"), choice.get("stop_reason")
    if finish not in ("stop", "tool_calls"):
        return str(finish)
    is_asked_for = isinstance(reason, str) or reason in (body.get("stop_token_ids") or ())
    return "stop" if is_asked_for else ""
