"""The response of a rollout from the calls of its program: one conversation after the other.

Each chain is a conversation whose turns continue each other, and becomes one sequence for a
trainer: its first turn has its whole prompt, so tokens that another chain sampled are part of the
prompt and count once. The chain that was asked last comes last, so the answer of the rollout is at
the end.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ...responses import Item, is_of_model, make_response, sum_usage
from ...trajectory import GENERATION, PROMPT, RESTART, SUFFIX, ModelCall, sequences
from ...types import JsonObject
from .lanes import ANEW, BRANCH, EDITED, RecordedCall, list_items

SideCalls = Literal["other_system_without_tools", "without_tools", "none"] | list[str]
"""Which calls are no turns of the task. A list has texts, one of which stands in their system
prompt."""


TOKENIZED_AGAIN = "the model server tokenized an earlier turn again"


@dataclass(frozen=True, slots=True)
class LaidOut:
    """`turns` are the calls in the order of their replies. `chains` says where each begins, and
    why."""

    response: JsonObject
    turns: list[ModelCall]
    chains: list[JsonObject]
    num_side: int


def join_chain(call: RecordedCall, tips: dict[int, RecordedCall]) -> None:
    """Give a call its chain: that of its parent, or a new one with the reason."""
    parent = call.parent
    if parent is not None and not call.why:
        if tips.get(parent.chain) is parent:
            call.chain = parent.chain
            tips[call.chain] = call
            return
        call.why = EDITED if any(map(is_of_model, call.new)) else BRANCH
    elif tips and not call.why:
        call.why = ANEW
    call.chain = len(tips)
    tips[call.chain] = call


def lay_out(calls: Sequence[RecordedCall], rule: SideCalls, model: str) -> LaidOut:
    """The response of the calls, in the order of their replies."""
    _mark_side_calls(calls, rule)
    chains: dict[int, list[RecordedCall]] = {}
    for call in calls:
        if not call.is_side:
            chains.setdefault(call.chain, []).append(call)
    numbers = {chain: number for number, chain in enumerate(sorted(chains))}
    place = {id(call): number for number, call in enumerate(calls)}
    ordered = sorted(chains.values(), key=lambda each: place[id(each[-1])])
    output: list[Item] = []
    begun: list[JsonObject] = []
    made: dict[int, ModelCall] = {}
    for own in ordered:
        number = numbers[own[0].chain]
        first = {"chain": number, "at": len(output)}
        begun.append({**first, "why": own[0].why} if own[0].why else first)
        known: list[int] = []
        for at, call in enumerate(own):
            output += call.new
            if at:
                made[id(own[at - 1])] = made[id(own[at - 1])]._replace(to=len(output))
            replied = call.output if at else _with_whole_prompt(call)
            output += (_follow_tokens(item, known) for item in replied)
            following = own[at + 1] if at + 1 < len(own) else None
            made[id(call)] = call.made._replace(
                to=len(output), chain=number, tool_s=_pause(call.made, following)
            )
    turns = [
        call.made._replace(by="side", chain=None) if call.is_side else made[id(call)]
        for call in calls
    ]
    response = _respond([each for own in ordered for each in own], output, model)
    return LaidOut(response, turns, begun, len(calls) - sum(map(len, ordered)))


def _respond(ordered: Sequence[RecordedCall], output: list[Item], model: str) -> JsonObject:
    if not ordered:
        return make_response(model, [], {})
    last = ordered[-1]
    tools = next((each.tools for each in reversed(ordered) if each.tools), [])
    usage = sum_usage([each.response.get("usage") for each in ordered])
    return {**last.response, "output": output, "usage": usage, "tools": tools}


def _mark_side_calls(calls: Iterable[RecordedCall], rule: SideCalls) -> None:
    calls = list(calls)
    systems = {call.system for call in calls if call.has_tools}
    for call in calls:
        if isinstance(rule, list):
            call.is_side = any(text in call.system for text in rule)
        elif rule == "none" or not systems or call.has_tools:
            call.is_side = False
        else:
            call.is_side = rule == "without_tools" or call.system not in systems


def _pause(made: ModelCall, following: RecordedCall | None) -> float | None:
    """Time between a reply and the next call of its chain: that of tools, and of the program."""
    if following is None or made.start_s is None or following.made.start_s is None:
        return None
    ended = made.start_s + (made.model_s or 0.0) + (made.waited_s or 0.0)
    return max(0.0, following.made.start_s - ended)


def _with_whole_prompt(call: RecordedCall) -> list[Item]:
    """The reply of the first call of a chain: its prompt is there as a whole."""
    found = []
    for item in call.output:
        if GENERATION in item and call.why:
            whole = {name: value for name, value in item.items() if name != SUFFIX}
            if SUFFIX in item:
                before = sequences(list_items(call.parent))[-1].token_ids
                whole[PROMPT] = [*before, *item[SUFFIX]]
            item = {**whole, RESTART: call.why}
        found.append(item)
    return found


def _follow_tokens(item: Item, known: list[int]) -> Item:
    """The item, which says so if its prompt does not continue the tokens so far: those are `known`,
    and become the item's."""
    if GENERATION not in item:
        return item
    if SUFFIX in item:
        known += [*item[SUFFIX], *item[GENERATION]]
        return item
    prompt = item.get(PROMPT) or []
    is_other = bool(known) and prompt[: len(known)] != known
    known[:] = [*prompt, *item[GENERATION]]
    return {**item, RESTART: TOKENIZED_AGAIN} if is_other and RESTART not in item else item
