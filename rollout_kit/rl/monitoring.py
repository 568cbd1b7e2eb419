"""What a trainer watches: figures of each batch, by the names that trainers use.

They are plain numbers. Send them to any tracker, beside the trainer's own (`kl/mean`,
`policy/entropy`, `policy/clip_fraction`). `alarms` watches both.
"""

import math
import statistics
import sys
from collections.abc import Iterable, Sequence

from ..analysis.metrics.advantages import GroupFigures
from .alarms import BatchAlarms as BatchAlarms
from .alarms import Threshold as Threshold
from .gpus import measure_gpus
from .rows import GroupRecord


def measure_batch(
    groups: Sequence[GroupRecord], *, version: int | None = None, seconds: float | None = None
) -> dict[str, float]:
    """The figures of a batch. `version` is the trainer's. What is unknown is left out.

    Throughput counts the seconds in which at least one rollout of the batch was sampled, as their
    lines say. The wait for a batch is no such time: a batch that was ready takes none. `seconds` is
    used where the lines do not say it.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    found: dict[str, float] = {"group/n": len(groups), "rollout/n": len(rollouts)}
    found |= _spread("reward", [each.reward for each in rollouts if each.reward is not None])
    figures = [GroupFigures.of([each.reward for each in group.rollouts]) for group in groups]
    found |= _mean("group/zero_variance_frac", [each.zero_variance for each in figures])
    found |= _mean("group/mean_std", [each.std for each in figures if each.std is not None])
    found |= _mean("group/pass@1", [f.pass_rate for f in figures if f.pass_rate is not None])
    found |= _measure_versions(groups, version)
    turns = [turn for rollout in rollouts for turn in rollout.turns]
    lengths = [
        sum(len(turn.generation_ids) for turn in rollout.turns)
        for rollout in rollouts
        if rollout.turns
    ]
    found |= _mean("length/mean", lengths)
    found |= _mean("length/truncated_frac", [each.finish_reason != "stop" for each in rollouts])
    found |= _mean("logprob/mean_nll", [-each for turn in turns for each in turn.log_probs])
    if seconds := _measure_sampling([each.sampled_s for each in rollouts]) or seconds:
        found["throughput/tokens_per_sec"] = sum(lengths) / seconds
        found["throughput/rollouts_per_sec"] = len(rollouts) / seconds
    return found | _measure_memory() | measure_gpus()


def _measure_sampling(spans: Sequence[tuple[float, float] | None]) -> float | None:
    """Seconds in which at least one rollout was sampled; None if one of them does not say when."""
    known = sorted(span for span in spans if span is not None)
    if not known or len(known) < len(spans):
        return None
    total, until = 0.0, -math.inf
    for begin, end in known:
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def _measure_versions(groups: Sequence[GroupRecord], version: int | None) -> dict[str, float]:
    spans = [group.versions for group in groups if group.versions]
    found = _mean("policy/mixed_version_frac", [span.first != span.last for span in spans])
    if version is None:
        return found
    lags = [version - span.first for span in spans]
    more = {"policy/version": float(version), **_mean("staleness/mean", lags)}
    if lags:  # the newest group tells how far the servers themselves are behind
        more |= {
            "staleness/max": max(lags),
            "weights/sync_lag": version - max(span.last for span in spans),
        }
    return found | more


def _measure_memory() -> dict[str, float]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return {}
    return {"memory/allocated_gb": torch.cuda.memory_allocated() / 1e9}


def _mean(name: str, values: Iterable[float]) -> dict[str, float]:
    known = [float(value) for value in values]
    return {name: statistics.fmean(known)} if known else {}


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {
        f"{name}/mean": statistics.fmean(values),
        f"{name}/std": statistics.pstdev(values),
        f"{name}/max": max(values),
        f"{name}/min": min(values),
    }
