"""Check stored log-probs: a policy that scores its own tokens again must find the same.

Turns that span an update of the weights are counted apart: their keys and values are partly those
of the old weights, so no policy scores them alike.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..errors import RolloutError
from ..trajectory import SampledTurn, sequences
from ..types import JsonObject, Rollout
from .reference import NUM_PARALLEL, Score

TOLERANCE = 1e-2
"""Largest difference between a log-prob as sampled and as scored that counts as equal."""


@dataclass(slots=True)
class TokenCheck:
    """Turns by what was found. `worst` is the largest difference of turns of one version."""

    num_turns: int = 0
    num_tokens: int = 0
    matched: int = 0
    mismatched: int = 0
    worst: float = 0.0
    spanning: int = 0
    spanning_worst: float = 0.0
    without_version: int = 0
    not_scored: Counter[str] = field(default_factory=Counter)
    """Reason → turns."""

    def to_json(self) -> JsonObject:
        named = {name: getattr(self, name) for name in self.__slots__}
        return {**named, "not_scored": dict(self.not_scored)}


async def check_tokens(rollouts: Iterable[Rollout], score: Score) -> TokenCheck:
    """Score every turn with token ids again, and compare."""
    check, places = TokenCheck(), asyncio.Semaphore(NUM_PARALLEL)

    async def look(prompt: list[int], turn: SampledTurn) -> None:
        async with places:
            await _compare(check, prompt, turn, score)

    waiting: set[asyncio.Task[None]] = set()
    for rollout in rollouts:
        for prompt, turn in _list_turns(rollout):
            waiting.add(asyncio.create_task(look(prompt, turn)))
        if len(waiting) >= 4 * NUM_PARALLEL:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    await asyncio.gather(*waiting)
    return check


def _list_turns(rollout: Rollout) -> Iterable[tuple[list[int], SampledTurn]]:
    for sequence in sequences(rollout.response.get("output") or ()):
        known: list[int] = []
        for turn in sequence.turns:
            prompt = [*known, *turn.added]
            known = [*prompt, *turn.generation]
            if turn.generation:
                yield prompt, turn


async def _compare(check: TokenCheck, prompt: list[int], turn: SampledTurn, score: Score) -> None:
    check.num_turns += 1
    check.num_tokens += len(turn.generation)
    check.without_version += turn.versions is None
    heat = 1.0 if turn.temperature is None else turn.temperature
    try:
        scored = await score([*prompt, *turn.generation], heat, turn.version_last)
    except RolloutError as error:
        check.not_scored[error.message] += 1
        return
    scored = scored[len(prompt) - 1 :]
    if len(scored) != len(turn.log_probs):
        check.not_scored["log-probs are missing"] += 1
        return
    apart = max(abs(one - two) for one, two in zip(scored, turn.log_probs, strict=True))
    if turn.versions and turn.versions.first != turn.versions.last:
        check.spanning += 1
        check.spanning_worst = max(check.spanning_worst, apart)
        return
    check.worst = max(check.worst, apart)
    if apart <= TOLERANCE:
        check.matched += 1
    else:
        check.mismatched += 1
