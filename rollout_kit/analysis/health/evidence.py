"""What the checks look at: the turns and model calls of one rollout, as far as its line has them.

A part that the line does not have is unobserved, and its checks say nothing about the rollout.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...responses import as_object, is_count
from ...trajectory import ModelCall, read_turns
from ...types import JsonObject
from .users import UserRecord

FAILED = frozenset({"failed", "error", "cancelled"})
"""States of a response that did not come to its end."""

CUT_OFF = frozenset({"length", "max_output_tokens", "max_tokens"})
"""Why a reply ended that reached its limit of tokens."""

TEXTS = (
    *("text", "content", "output_text", "answer", "refusal", "encrypted_content", "reasoning"),
    *("reasoning_content", "summary"),
)
"""Fields of an item that may hold what a model said."""

CALLS = frozenset(
    {
        *("function_call", "tool_call", "tool_use", "mcp_call", "mcp_list_tools"),
        *("mcp_approval_request", "file_search_call", "web_search_call", "computer_call"),
        *("image_generation_call", "code_interpreter_call", "local_shell_call"),
        "custom_tool_call",
    }
)
"""Types of items that call a tool."""


def has_text(value: Any) -> bool:
    """Whether anything in a text, an item or a list of items is not blank."""
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, list | tuple):
        return any(map(has_text, value))
    return isinstance(value, dict) and any(has_text(value.get(name)) for name in TEXTS)


def has_call(value: Any) -> bool:
    """Whether an item, or one of a list of items, calls a tool."""
    if isinstance(value, list | tuple):
        return any(map(has_call, value))
    return isinstance(value, dict) and (value.get("type") in CALLS or bool(value.get("tool_calls")))


USER = "user"
"""Who was asked where a model plays the user: its tokens are none of the response."""


@dataclass(frozen=True, slots=True)
class ObservedTurn:
    """One turn of the agent."""

    place: JsonObject
    says: bool
    """Whether it has a text or a thought that is not blank."""
    calls: bool
    """Whether it calls a tool."""
    refers: bool = False
    """Whether it names a model call."""


@dataclass(frozen=True, slots=True)
class ObservedCall:
    """One request to a model."""

    number: int
    place: JsonObject
    model: Any = None
    """What tells one model's calls from those of another."""
    started_at: float | None = None
    input: int | None = None
    output: int | None = None
    """Tokens."""
    finish: str | None = None
    status: int | None = None
    """Of the HTTP reply."""
    error: str | None = None
    state: str | None = None
    """Of the response."""
    says: bool | None = None
    """Whether the reply says anything; None if the line does not have it."""

    @property
    def is_failed(self) -> bool:
        by_status = isinstance(self.status, int) and self.status >= 400
        return by_status or bool(self.error) or self.state in FAILED

    @property
    def has_succeeded(self) -> bool:
        is_reply = self.status is None or 200 <= self.status < 400
        return not self.is_failed and is_reply


@dataclass(frozen=True, slots=True)
class Bound:
    """The model calls that turns, or turns and conversations, refer to."""

    calls: Sequence[ObservedCall] = ()
    is_referred: bool = False
    """Whether there is any reference."""
    missing: Sequence[str] = ()
    """Calls that are referred to, and are not there."""
    repeated: Sequence[tuple[str, int]] = ()
    """Calls that are there several times, and how often."""

    @property
    def is_complete(self) -> bool:
        return self.is_referred and not self.missing and not self.repeated


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one rollout."""

    task: int | str
    index: int | str
    fault: JsonObject | None = None
    """Why the line, or its trajectory, cannot be read."""
    is_line: bool = True
    """Whether the line is a JSON object."""
    turns: Sequence[ObservedTurn] | None = None
    calls: Sequence[ObservedCall] | None = None
    """All requests, judges' and failed ones included."""
    is_observed: bool = False
    """Whether the line has turns or calls at all."""
    of_turns: Bound = field(default_factory=Bound)
    owned: Bound = field(default_factory=Bound)
    """The calls that turns or conversations refer to."""
    contradictions: Sequence[Mapping[str, Any]] = ()
    """What the writer of the line could not join."""
    is_whole: bool = True
    """Whether the turns name all their calls."""
    input: int | None = None
    output: int | None = None
    """Tokens of the whole response."""
    stage: int | str | None = None
    user: UserRecord | None = None
    """The simulated user, if the line has one."""

    @property
    def identity(self) -> tuple[Any, ...]:
        return self.stage, self.task, self.index


def read_usage(response: Any) -> tuple[int | None, int | None]:
    """Tokens of the prompts and of the replies, each None if it is unknown."""
    usage = as_object(as_object(response).get("usage"))
    prompt = usage.get("input_tokens", usage.get("prompt_tokens"))
    reply = usage.get("output_tokens", usage.get("completion_tokens"))
    return (prompt if is_count(prompt) else None), (reply if is_count(reply) else None)


def observe(task: str, index: int, row: Mapping[str, Any]) -> Evidence:
    """The evidence in a line of this program."""
    response = as_object(row.get("response"))
    items = response.get("output")
    items = items if isinstance(items, list) else []
    input, output = read_usage(response)
    user = UserRecord.of(row, items)
    asked = read_turns(as_object(row.get("rollout")).get("turns"))
    if not asked:
        whole = _turn_of(1, items)
        known = {"is_observed": True, "input": input, "output": output, "user": user}
        return Evidence(task, index, turns=[whole], **known)
    pieces, contradictions = _divide(items, asked)
    calls = [
        _call_of(number, call, items[slice(*pieces[number])] if number in pieces else None)
        for number, call in enumerate(asked)
        if call.by != USER
    ]
    if calls and (state := response.get("status")) in FAILED:
        calls[-1] = replace(calls[-1], state=state)
    turns = [_turn_of(number + 1, items[slice(*piece)]) for number, piece in pieces.items()]
    bound = Bound(calls, is_referred=True)
    return Evidence(
        task,
        index,
        turns=turns if len(pieces) == sum(_is_main(call) for call in asked) else None,
        calls=calls,
        is_observed=True,
        of_turns=bound,
        owned=bound,
        contradictions=contradictions,
        is_whole=not any(call.chain for call in asked),
        input=input,
        output=output,
        user=user,
    )


def _divide(
    items: Sequence[Any], asked: Sequence[ModelCall]
) -> tuple[dict[int, tuple[int, int]], list[JsonObject]]:
    """Number of a main conversation's call → where its items begin and end; and what contradicts
    the output."""
    pieces: dict[int, tuple[int, int]] = {}
    contradictions: list[JsonObject] = []
    begin = 0
    for number, call in enumerate(asked):
        if call.chain or call.to is None:
            continue
        if begin <= call.to <= len(items):
            if _is_main(call):
                pieces[number] = begin, call.to
            begin = call.to
        else:
            contradictions.append({"kind": "turn_outside_output", "turn": number + 1})
    return pieces, contradictions


def _is_main(call: ModelCall) -> bool:
    """Whether it is a turn of the policy in the main conversation."""
    return not call.chain and call.by != USER


def _turn_of(number: int, items: Iterable[Any]) -> ObservedTurn:
    own = [item for item in items if _is_said(item)]
    return ObservedTurn({"turn": number}, has_text(own), has_call(own))


def _is_said(item: Any) -> bool:
    """Whether the model said it: neither the result of a tool nor another's message."""
    return isinstance(item, dict) and item.get("role") in (None, "assistant")


def _call_of(number: int, call: ModelCall, items: Sequence[Any] | None) -> ObservedCall:
    return ObservedCall(
        number,
        {"turn": number + 1},
        (call.chain, call.model, call.by),
        call.start_s,
        call.input,
        call.output,
        call.finish,
        state=call.finish if call.finish in FAILED else None,
        says=None if items is None else has_text([item for item in items if _is_said(item)]),
    )
