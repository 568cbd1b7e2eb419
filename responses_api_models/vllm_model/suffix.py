"""What a later turn's prompt adds to the tokens that the turns before it read and sampled.

The chat template renders the whole conversation anew, and a new tokenization of what was sampled
need not be the one that was sampled. So the rendering is only asked what follows the last turn, and
whether everything between the turns is still as it was. Token ids alone: no template is known here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rollout_kit.trajectory import SampledTurn


class Restart(Exception):
    """The turns before cannot be continued, and why: the prompt has to be rendered anew."""


@dataclass(frozen=True, slots=True)
class Aligned:
    """Where the turns stand in a rendered conversation."""

    said: list[list[int]]
    """Each turn as the template renders it, from the end of its prompt to its end of turn."""
    rest: list[int]
    """What follows the last turn."""


def align(
    turns: Sequence[SampledTurn],
    rendered: list[int],
    until_last: list[int],
    opening: Sequence[int] = (),
) -> Aligned:
    """`rendered`: the conversation with its generation prompt; `until_last`: up to the last turn.
    `opening`: the generation prompt, if a turn's may be missing once it is history.

    Restart where the conversation is another one.
    """
    said, at = [], 0
    for number, turn in enumerate(turns):
        kept = _without(turn.added, opening)
        if rendered[at : at + len(kept)] != kept:
            raise Restart("what came before its earlier turns is rendered otherwise now")
        at += len(kept)
        end = turn.generation[-1]
        is_last = number == len(turns) - 1
        # the last one may hold the text of an end of turn: what comes after the turn shows how many
        until = _nth(rendered, end, until_last.count(end)) if is_last else _next(rendered, end, at)
        if until <= at:
            raise Restart("the chat template ends a turn otherwise than the model did")
        said.append(rendered[at:until])
        at = until
    return Aligned(said, rendered[at:])


def is_verbatim(turn: SampledTurn, said: list[int], opening: Sequence[int] = ()) -> bool:
    """Whether the template renders the turn in the very tokens that were sampled."""
    return said == turn.generation or (
        bool(opening) and said == [*turn.added[-len(opening) :], *turn.generation]
    )


def _without(added: list[int], opening: Sequence[int]) -> list[int]:
    if opening and added[-len(opening) :] == list(opening):
        return added[: -len(opening)]
    return added


def _next(tokens: list[int], wanted: int, start: int) -> int:
    """The place behind the next `wanted`; 0 where there is none."""
    try:
        return tokens.index(wanted, start) + 1
    except ValueError:
        return 0


def _nth(tokens: list[int], wanted: int, number: int) -> int:
    """The place behind the `number`-th `wanted`; 0 where there are fewer, or `number` is 0."""
    at = 0
    for _ in range(number):
        if not (at := _next(tokens, wanted, at)):
            return 0
    return at
