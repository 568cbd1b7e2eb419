"""Check stored log-probs: a policy that scores its own tokens again must find the same.

Of a turn that spans an update of the weights, the tokens up to the update are compared like those
of a turn of one version. Those behind it are reported apart: their keys and values may be partly
those of the old weights, and then no policy scores them alike.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from ..config.keys import CheckTokensConfig
from ..config.load import Config
from ..errors import ConfigError, RolloutError
from ..launch.reach import reach
from ..store.rollouts import load
from ..trajectory import SampledTurn, sequences
from ..types import JsonObject, Rollout, Say
from .reference import NUM_PARALLEL, Score, score_with
from .scoring import format_scores, keep_scores

TOLERANCE = 1e-2
"""Largest difference between a log-prob as sampled and as scored that counts as equal."""


@dataclass(slots=True)
class TokenCheck:
    """Turns by what was found. `worst` is the largest difference of tokens up to an update,
    `spanning_worst` of those behind one."""

    num_turns: int = 0
    num_tokens: int = 0
    matched: int = 0
    mismatched: int = 0
    worst: float = 0.0
    spanning: int = 0
    spanning_worst: float = 0.0
    num_behind: int = 0
    """Spans of tokens behind an update."""
    matched_behind: int = 0
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
    async with reach(config, say) as servers:
        score = score_with(servers.peers, command.model_server)
        if command.keep_as:
            output = Path(command.input_jsonl_fpath)
            return await keep_scores(
                output, rollouts, score, command.keep_as, command.num_samples_in_parallel
            )
        found = await check_tokens(rollouts, score, command.num_samples_in_parallel)
    if not found.num_turns:
        raise ConfigError(
            f"{command.input_jsonl_fpath} has no token ids: collect it with return_token_ids: true"
        )
    return found.to_json()


def format_check(found: JsonObject) -> str:
    """The result for people."""
    if "scored" in found:
        return format_scores(found)
    lines = [
        f"{found['num_turns']:,} turns, {found['num_tokens']:,} sampled tokens",
        f"{found['matched']:,} turns have the policy's log-probs, {found['mismatched']:,} differ by"
        f" more than {TOLERANCE:g}; largest difference {found['worst']:.1e}",
    ]
    if found["spanning"]:
        lines.append(
            f"{found['spanning']:,} turns span an update of the weights; behind it"
            f" {found['matched_behind']:,} of {found['num_behind']:,} spans have the log-probs of"
            f" their version, largest difference {found['spanning_worst']:.1e}: where an engine"
            " keeps keys and values of the old weights, no policy scores alike"
        )
    if found["without_version"]:
        lines.append(f"{found['without_version']:,} turns name no version")
    lines += [f"{number:,} turns not scored: {why}" for why, number in found["not_scored"].items()]
    return "\n".join(lines)


async def check_tokens(
    rollouts: Iterable[Rollout], score: Score, num_parallel: int = NUM_PARALLEL
) -> TokenCheck:
    """Score every turn with token ids again, `num_parallel` at once, and compare."""
    check, places = TokenCheck(), asyncio.Semaphore(num_parallel)

    async def look(prompt: list[int], turn: SampledTurn) -> None:
        async with places:
            await _compare(check, prompt, turn, score)

    waiting: set[asyncio.Task[None]] = set()
    for rollout in rollouts:
        for prompt, turn in _list_turns(rollout):
            waiting.add(asyncio.create_task(look(prompt, turn)))
        if len(waiting) >= 4 * num_parallel:
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
    spans_update = turn.versions is not None and turn.versions.first != turn.versions.last
    check.spanning += spans_update
    whole = (0, len(turn.generation), turn.version_last)
    for start, end, version in turn.spans or [whole]:
        try:
            apart = await _measure_difference(prompt, turn, slice(start, end), version, score)
        except RolloutError as error:
            check.not_scored[error.message] += 1
            continue
        if spans_update and (start or not turn.spans):
            check.num_behind += 1
            check.matched_behind += apart <= TOLERANCE
            check.spanning_worst = max(check.spanning_worst, apart)
        else:
            check.worst = max(check.worst, apart)
            check.matched += apart <= TOLERANCE
            check.mismatched += apart > TOLERANCE


async def _measure_difference(
    prompt: list[int], turn: SampledTurn, span: slice, version: int | None, score: Score
) -> float:
    """The largest difference between the log-probs of a span and those that the version gives."""
    heat = 1.0 if turn.temperature is None else turn.temperature
    scored = await score([*prompt, *turn.generation[: span.stop]], heat, version)
    scored, told = scored[len(prompt) - 1 :][span.start :], turn.log_probs[span]
    if len(scored) != len(told):
        raise RolloutError("log-probs are missing")
    return max(abs(one - two) for one, two in zip(scored, told, strict=True))
