"""Check stored log-probs: a policy that scores its own tokens again must find the same.

Turns that span an update of the weights are counted apart: their keys and values are partly those
of the old weights, so no policy scores them alike.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from ..api.load import load
from ..config.keys.commands import CheckTokensConfig
from ..config.load import Config
from ..errors import ConfigError, RolloutError
from ..launch.reach import reach
from ..trajectory import SampledTurn, sequences
from ..types import JsonObject, Rollout, Say
from .reference import NUM_PARALLEL, Score, score_with

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


async def check_file(config: Config[CheckTokensConfig], say: Say) -> JsonObject:
    """What a check of the file found; ConfigError if it holds no token ids."""
    command = config.command
    if not command.input_jsonl_fpath:
        raise ConfigError("input_jsonl_fpath is missing: name the rollouts to check")
    rollouts = islice(load(command.input_jsonl_fpath), command.limit or None)
    async with reach(config, command, say) as servers:
        score = score_with(servers.peers, command.model_server)
        found = await check_tokens(rollouts, score)
    if not found.num_turns:
        raise ConfigError(
            f"{command.input_jsonl_fpath} has no token ids: collect it with return_token_ids: true"
        )
    return found.to_json()


def format_check(found: JsonObject) -> str:
    """The result for people."""
    lines = [
        f"{found['num_turns']:,} turns, {found['num_tokens']:,} sampled tokens",
        f"{found['matched']:,} turns have the policy's log-probs, {found['mismatched']:,} differ by"
        f" more than {TOLERANCE:g}; largest difference {found['worst']:.1e}",
    ]
    if found["spanning"]:
        lines.append(
            f"{found['spanning']:,} turns span an update of the weights, so no policy scores them"
            f" alike; largest difference {found['spanning_worst']:.1e}"
        )
    if found["without_version"]:
        lines.append(f"{found['without_version']:,} turns name no version")
    lines += [f"{number:,} turns not scored: {why}" for why, number in found["not_scored"].items()]
    return "\n".join(lines)


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
        yield from (each for each in sequence.pair_turns() if each[1].generation)


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
