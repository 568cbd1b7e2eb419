"""Log-probs of another policy for the same tokens: a reference for the KL divergence, or the policy
itself for a check. Any model server with `POST /score_tokens` gives them."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from ..serving.transport.peers import Peers
from .rows import TrainingRow

Score = Callable[[Sequence[int], float, int | None], Awaitable[list[float]]]
"""Token ids, temperature and version (None: the one in use) → the log-prob of each token after the
first."""

NUM_PARALLEL = 8


class ReferenceScores(NamedTuple):
    """An item for each token of a row; 0 where the policy sampled nothing. `kl` estimates the
    divergence from the reference without bias and is never negative (Schulman's k3)."""

    log_probs: list[float]
    kl: list[float]


def score_with(peers: Peers, server: str = "reference_model") -> Score:
    """The scores of a model server."""

    async def score(
        token_ids: Sequence[int], temperature: float, version: int | None
    ) -> list[float]:
        asked = {"token_ids": token_ids, "temperature": temperature, "version": version}
        return (await peers.call(server, "/score_tokens", asked, dict))["log_probs"]

    return score


async def add_reference(rows: Iterable[TrainingRow], score: Score) -> list[ReferenceScores]:
    """The reference's log-probs for each row, at the temperature of its sampled tokens."""
    places = asyncio.Semaphore(NUM_PARALLEL)

    async def one(row: TrainingRow) -> ReferenceScores:
        temperature = next((t for t, m in zip(row.temperatures, row.mask, strict=True) if m), 1.0)
        async with places:
            scored = [0.0, *await score(row.token_ids, temperature, None)]
        log_probs = [x if m else 0.0 for x, m in zip(scored, row.mask, strict=True)]
        apart = [ref - own for ref, own in zip(log_probs, row.log_probs, strict=True)]
        return ReferenceScores(log_probs, [math.expm1(each) - each for each in apart])

    return list(await asyncio.gather(*map(one, rows)))
