"""The prompt of a turn as token ids. It continues the sampled tokens of earlier turns; the chat
template says what is between them."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from ..responses import Item, is_of_model
from ..trajectory import GENERATION, SampledTurn, TokenSequence, sequences
from .suffix import Restart, align, rest_behind

Render = Callable[[list[Item], bool], list[int]]
"""A conversation → the token ids of the chat template, with a generation prompt or without."""


@dataclass(frozen=True, slots=True)
class ContinuedPrompt:
    """The prompt, the earlier turns whose tokens are known, and why it does not continue them."""

    prompt: list[int]
    before: TokenSequence | None = None
    restart: str = ""


def continue_turns(
    items: list[Item], render: Render, ends: Collection[int] = frozenset()
) -> ContinuedPrompt:
    """The conversation of some items. With the tokens that end a turn, a turn that was cut off is
    continued too: the template ends it."""
    whole = render(items, True)
    sampled = [number for number, item in enumerate(items) if GENERATION in item]
    if not sampled:
        return ContinuedPrompt(whole)
    try:
        before = sequences(items)[-1]
    except (ValueError, KeyError) as error:
        return ContinuedPrompt(whole, None, f"the input's token ids are incomplete: {error}")
    last = sampled[-1]
    if last + 1 < len(items) and is_of_model(items[last + 1]):
        return ContinuedPrompt(whole, before, "something was added to the turn before")
    until_last = render(items[: last + 1], False)
    end = next((token for token in reversed(until_last) if token in ends), None)
    if end is None and not all(turn.is_ended for turn in before.turns):
        return ContinuedPrompt(whole, before, "the turn before was cut off")
    turns = _end_all(before.turns, end)
    # many templates write <think> into the generation prompt and omit it from earlier turns
    opening = rest_behind(whole, render(items, False))
    why = Restart()
    for omitted in ([], opening):
        try:
            rest = align(turns, whole, until_last, omitted).rest
        except Restart as error:
            why = error
        else:
            added = rest if before.turns[-1].is_ended else [*turns[-1].generation[-1:], *rest]
            return ContinuedPrompt([*before.token_ids, *added], before)
    return ContinuedPrompt(whole, before, str(why))


def _end_all(turns: Sequence[SampledTurn], end: int | None) -> list[SampledTurn]:
    """The turns as the template shows them: the end of one that was cut off belongs to it, and not
    to the prompt of the next one."""
    found: list[SampledTurn] = []
    is_cut = False
    for turn in turns:
        added = turn.added[1:] if is_cut else turn.added
        is_cut = not turn.is_ended
        said = [*turn.generation, end] if is_cut and end is not None else turn.generation
        found.append(replace(turn, added=added, generation=said))
    return found
