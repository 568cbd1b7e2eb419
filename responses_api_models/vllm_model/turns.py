"""One turn: the request to vLLM, and its answer as a response."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from rollout_kit.errors import ModelError, TaskError
from rollout_kit.responses import Item, as_object, input_items, is_of_model
from rollout_kit.rl.partial import PartialTurn
from rollout_kit.serving.endpoints.chat import RAW
from rollout_kit.serving.endpoints.replies import from_chat
from rollout_kit.serving.endpoints.requests import RequestForm, read_row
from rollout_kit.serving.hosted_model import Request
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

from .endpoints import Endpoint
from .token_in import MAX_TOKENS, LaterTurn, check_ended

OURS = (VERSION_FIRST, VERSION_LAST)
"""Fields of items that are not of the Responses API."""

TOKEN_IDS, KWARGS = "return_token_ids", "chat_template_kwargs"

OTHERWISE = "the chat template renders earlier turns differently than they were sampled"


NOWHERE = Endpoint("")


@dataclass(slots=True)
class Turn(Request):
    """A turn to request. `body` is the request, `raw` the same as JSON."""

    body: JsonObject
    before: TokenSequence | None = None
    """The earlier turns, if their token ids are known."""
    later: LaterTurn | None = None
    restart: str = ""
    """Why earlier turns with known token ids cannot be continued."""
    version: int = 0
    """The adapter's version, if requests name adapters."""
    partial: PartialTurn | None = None
    """The tokens that it has already; None if stopped turns are not resumed."""
    endpoint: Endpoint = NOWHERE
    """The vLLM that is asked."""
    ends: float = 0.0
    """When this try ends, on the clock of the gate."""
    sent_at: float = 0.0
    """When it began, on the clock of the loop."""
    temperature: float | None = None
    """That of requests that name none; None if it is unknown."""
    spans: list[Versions] = field(default_factory=list)
    """Versions of the weights that wrote it, filled while it is asked."""
    token_versions: list[int | None] = field(default_factory=list)
    """The same of each token, where vLLM tells."""

    @property
    def wants_token_ids(self) -> bool:
        return bool(self.body.get(TOKEN_IDS))

    def place(self, url: str) -> str:
        return f"vLLM at {self.endpoint.url}"

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

    def shorten(self, limit: int) -> "Turn":
        """The same turn with at most `limit` generated tokens."""
        body = {key: limit if key in MAX_TOKENS else value for key, value in self.body.items()}
        return replace(self, body=body, raw=orjson.dumps(body))


def make_turn(params: Mapping[str, Any], form: RequestForm, origin: str) -> Turn:
    """The turn for create params; TaskError if vLLM does not support them."""
    made = write(params, form, origin)
    raw, model, is_raw = orjson.dumps(made), str(made["model"]), bool(params.get(RAW))
    plain = Turn(params, model, origin, raw, is_raw, made)
    if is_raw or not plain.wants_token_ids:
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
    if last + 1 < len(items) and is_of_model(items[last + 1]):
        why = "something was added to the turn before"
        return replace(plain, before=before, restart=why)
    until_last = write({**params, "input": items[: last + 1]}, form, origin)
    thought = _thought(items[: last + 1])[-len(before.turns) :]
    unthought = replace(form, drops_reasoning=True)
    later = LaterTurn(
        made,
        {**until_last, "add_generation_prompt": False},
        write(params, unthought, "") if any(thought) else made,
        before.turns,
        thought,
    )
    return replace(plain, before=before, later=later)


def write(params: Mapping[str, Any], form: RequestForm, origin: str) -> JsonObject:
    """The body of the request. Earlier turns keep their reasoning unless `form` drops it; the chat
    template decides what to use. That of this `origin` goes back under the names that it came
    with."""
    row, extra = read_row(params)
    is_raw, is_chat = bool(row.get(RAW)), form.api == "chat_completions"
    wants_token_ids = row.pop(TOKEN_IDS, form.lowest.get(TOKEN_IDS, False))
    if is_raw:
        of_texts = {key: each for key, each in form.lowest.items() if key != KWARGS}
        form = replace(form, lowest=of_texts)
    elif not is_chat:
        if "conversation" in row:  # vLLM would ignore it
            raise TaskError("conversation: vLLM keeps no conversations", status=400)
        if wants_token_ids:
            raise TaskError(
                f"{TOKEN_IDS}: vLLM's /v1/responses returns none; upstream_api must be"
                " chat_completions"
            )
        if isinstance(items := row.get("input"), list):
            row["input"] = [{k: item[k] for k in item if k not in OURS} for item in items]
    made = form.body(row, extra, origin)
    made.pop(TOKEN_IDS, None)
    if is_chat and not is_raw:
        made["messages"] = with_system(made["messages"])
        if KWARGS in form.lowest:
            made[KWARGS] = {**form.lowest[KWARGS], **as_object(made[KWARGS])}
    if wants_token_ids:
        made |= {TOKEN_IDS: True, "logprobs": made.get("logprobs", 0) if is_raw else True}
    return made


def _thought(items: list[Item]) -> list[bool]:
    """For each sampled turn, whether it has reasoning."""
    found, has_reasoning = [], False
    for item in items:
        has_reasoning |= item.get("type") == "reasoning"
        if GENERATION in item:
            found.append(has_reasoning)
            has_reasoning = False
    return found


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


def read_answer(completion: Any, turn: Turn) -> JsonObject:
    """The response, with token ids and log-probs if vLLM returned them."""
    choices = as_object(completion).get("choices")
    choice = as_object(choices[0]) if isinstance(choices, list) and choices else {}
    check_ended(choice)
    response = from_chat(completion, {"model": turn.model, **turn.params}, turn.origin)
    output = response["output"]
    if (generated := choice.get("token_ids")) is not None:
        given = (choice.get("logprobs") or {}).get("content") or []
        log_probs = [each["logprob"] for each in given]
        if len(log_probs) != len(generated):
            what = f"{len(generated)} token ids and {len(log_probs)} log-probs"
            raise ModelError(f"vLLM answered with {what}", retryable=True)
        if output:
            prompt = completion.get("prompt_token_ids") or []
            why = turn.restart or (OTHERWISE if turn.before else "")
            output[-1] |= prompt_fields(prompt, turn.before, why)
            output[-1] |= {GENERATION: generated, LOG_PROBS: log_probs}
            if (heat := turn.body.get("temperature", turn.temperature)) is not None:
                output[-1][TEMPERATURE] = heat
            if stopped_by := _stopped_by(choice, turn.body):
                output[-1][STOPPED_BY] = stopped_by
    return response


def _stopped_by(choice: Mapping[str, Any], body: JsonObject) -> str:
    """What ended the generation; empty if the model sampled an end of turn."""
    finish, reason = choice.get("finish_reason"), choice.get("stop_reason")
    if finish not in ("stop", "tool_calls"):
        return str(finish)
    is_asked_for = isinstance(reason, str) or reason in (body.get("stop_token_ids") or ())
    return "stop" if is_asked_for else ""
