"""A turn that goes on from the tokens that the trainer's engine had sampled when it aborted the
request, for example to change its weights."""

from dataclasses import replace

from rollout_kit.errors import ModelError
from rollout_kit.rl.adapters.engine import Sampled, TrainerEngine
from rollout_kit.rl.partial import PartialTurn
from rollout_kit.trajectory import Versions, span_versions
from rollout_kit.types import JsonObject


async def sample(
    engine: TrainerEngine, prompt: list[int], sampling: JsonObject, session: str, turn: PartialTurn
) -> Sampled:
    """All tokens of a turn, behind those that `turn` has. ModelError if the engine aborts the
    request: then `turn` receives the tokens that there are."""
    turn.begin(prompt)
    if "stop" in sampling:  # the engine would look for it in the rest only
        turn.clear()
    rest = turn.rest_of(sampling)
    if rest.get("max_tokens") == 0:
        return _join(turn, Sampled([], [], "length"))
    sampled = await engine.generate(prompt + turn.token_ids, rest, session)
    if len(sampled.log_probs) != len(sampled.token_ids):
        what = f"{len(sampled.token_ids)} token ids and {len(sampled.log_probs)} log-probs"
        raise ModelError(f"the trainer's engine gave {what}", status=500, retryable=False)
    if sampled.finish_reason == "abort":
        _keep(turn, sampled)
        raise ModelError("the trainer's engine aborted the request", status=503)
    return _join(turn, sampled)


def _keep(turn: PartialTurn, sampled: Sampled) -> None:
    """Add the tokens to the turn, unless it is unknown which of several versions has each."""
    told = sampled.versions
    if sampled.token_versions or told is None or told.first == told.last:
        pairs = zip(sampled.token_ids, sampled.log_probs, strict=True)
        turn.add(list(pairs), _read_versions(sampled))


def _read_versions(sampled: Sampled) -> list[int | None]:
    if sampled.token_versions:
        return list(sampled.token_versions)
    told = sampled.versions
    version = told.first if told and told.first == told.last else None
    return [version] * len(sampled.token_ids)


def _join(turn: PartialTurn, last: Sampled) -> Sampled:
    """What was sampled last, behind the tokens of the turn."""
    if not turn.token_ids:
        return last
    each = turn.versions + _read_versions(last)
    known = [version for version in each if version is not None]
    kept = Versions(min(known), max(known)) if known else None
    return replace(
        last,
        token_ids=turn.token_ids + last.token_ids,
        log_probs=turn.log_probs + last.log_probs,
        versions=span_versions([kept, last.versions]),
        token_versions=known if len(known) == len(each) else (),
    )
