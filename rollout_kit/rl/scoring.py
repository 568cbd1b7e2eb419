"""Scores the tokens of stored rollouts by another policy, and keeps its log-probs beside them, for
whoever looks at single tokens."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from ..errors import RolloutError
from ..store.notes.token_scores import Scores, write_token_scores
from ..trajectory import GENERATION, SampledTurn, sequences
from ..types import JsonObject, Rollout
from .reference import NUM_PARALLEL, Score


async def keep_scores(
    path: Path,
    rollouts: Iterable[Rollout],
    score: Score,
    policy: str,
    num_parallel: int = NUM_PARALLEL,
) -> JsonObject:
    """Score every turn with token ids by the weights in use, `num_parallel` at once, and keep the
    log-probs under the name of the policy. Counts what was scored."""
    calls, found = asyncio.Semaphore(num_parallel), {"rollouts": 0, "scored": 0, "not_scored": 0}

    async def look(prompt: list[int], turn: SampledTurn) -> Scores:
        heat = 1.0 if turn.temperature is None else turn.temperature
        async with calls:
            try:
                scored = await score([*prompt, *turn.generation], heat, None)
            except RolloutError:
                return None
        own = scored[max(0, len(prompt) - 1) :]
        return own if len(own) == len(turn.generation) else None

    for rollout in rollouts:
        output = rollout.response.get("output") or ()
        pairs = [pair for each in sequences(output) for pair in each.pair_turns()]
        places = [at for at, item in enumerate(output) if GENERATION in item]
        if pairs:
            scored = await asyncio.gather(*(look(*each) for each in pairs))
            kept = dict(zip(places, scored, strict=True))
            write_token_scores(path, rollout.key, policy, kept)
            found["rollouts"] += 1
            found["scored"] += sum(each is not None for each in scored)
            found["not_scored"] += sum(each is None for each in scored)
    return found


def format_scores(found: JsonObject) -> str:
    """What was scored, for people."""
    text = f"{found['scored']:,} turns of {found['rollouts']:,} rollouts are scored and kept"
    lacking = found["not_scored"]
    return f"{text}; {lacking:,} could not be scored" if lacking else text
