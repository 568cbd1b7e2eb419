"""The tokens that a later turn's prompt adds to the tokens of the earlier turns.

The chat template renders the whole conversation again, and the new token ids of a sampled turn may
differ from the sampled ones. So only the tokens after the last turn are taken from the rendering,
and the tokens between the turns must be unchanged. This module works on token ids only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..trajectory import SampledTurn


class Restart(Exception):
    """Why the earlier turns cannot be continued; the whole prompt must be rendered again."""


@dataclass(frozen=True, slots=True)
class Aligned:
    """The positions of the turns in a rendered conversation."""

    said: list[list[int]]
    """Each turn as the template renders it, from the end of its prompt to its end of turn."""
    rest: list[int]
    """The tokens after the last turn."""


def align(
    turns: Sequence[SampledTurn],
    rendered: list[int],
    until_last: list[int],
    opening: Sequence[int] = (),
) -> Aligned:
    """Find the turns in `rendered`, the conversation with its generation prompt.

    `until_last` is the conversation up to the last turn. `opening` is the generation prompt, if the
    template may omit it for earlier turns. Restart if the conversation differs.
    """
    said, at = [], 0
    for number, turn in enumerate(turns):
        kept = _without(turn.added, opening)
        if rendered[at : at + len(kept)] != kept:
            raise Restart("the tokens before its earlier turns are rendered differently now")
        at += len(kept)
        end = turn.generation[-1]
        is_last = number == len(turns) - 1
        # the last turn may contain the text of an end of turn: the rest shows how many
        until = _nth(rendered, end, until_last.count(end)) if is_last else _next(rendered, end, at)
        if until <= at:
            raise Restart("the chat template ends a turn differently than the model did")
        said.append(rendered[at:until])
        at = until
    return Aligned(said, rendered[at:])


def rest_behind(whole: list[int], start: list[int]) -> list[int]:
    """What `whole` has behind `start`; nothing if it does not begin with it."""
    return whole[len(start) :] if whole[: len(start)] == start else []


def is_verbatim(turn: SampledTurn, said: list[int], opening: Sequence[int] = ()) -> bool:
    """Whether the template renders the turn with exactly the sampled tokens."""
    return said == turn.generation or (
        bool(opening) and said == [*turn.added[-len(opening) :], *turn.generation]
    )


def _without(added: list[int], opening: Sequence[int]) -> list[int]:
    if opening and added[-len(opening) :] == list(opening):
        return added[: -len(opening)]
    return added


def _next(tokens: list[int], wanted: int, start: int) -> int:
    """The position after the next `wanted`; 0 if there is none."""
    try:
        return tokens.index(wanted, start) + 1
    except ValueError:
        return 0


def _nth(tokens: list[int], wanted: int, number: int) -> int:
    """The position after the `number`-th `wanted`; 0 if there are fewer or `number` is 0."""
    at = 0
    for _ in range(number):
        if not (at := _next(tokens, wanted, at)):
            return 0
    return at
