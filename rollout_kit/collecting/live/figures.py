"""The figures of a snapshot in words, for the line behind a progress bar."""

from ..pacing.bill import dollars
from .snapshot import Cost, Snapshot


def parts_of(snapshot: Snapshot) -> dict[str, str]:
    """The figures behind the bar."""
    run, counts, parallel = snapshot.this_run, snapshot.counts, snapshot.parallel
    parts = {} if run.reward is None else {"reward": f"reward={run.reward:.3f}"}
    if (tokens := snapshot.speed.output_tokens_per_s) is not None:
        parts["tokens"] = f"tok/s={tokens:.0f}"
    limit = f"/{parallel.limit}" if parallel.adapts else ""
    parts["in_flight"] = f"in flight={counts.in_flight}{limit}"
    if counts.waiting:
        parts["waiting"] = f"waiting for batches={counts.waiting}"
    parts["failed" if run.failed else "none_failed"] = f"failed={run.failed}"
    if counts.unverified:
        parts["unverified"] = f"unverified={counts.unverified}"
    if run.requests_429:
        parts["requests_429"] = f"429s={run.requests_429}"
    ranked = sorted((reward, arm) for arm, reward in arm_rewards(snapshot).items())
    if len(ranked) > 1:
        (low, worst), *_, (high, best) = ranked
        parts["arms"] = f"arms={worst} {low:.2f}…{best} {high:.2f}"
    if snapshot.holdup:
        parts["bottleneck"] = snapshot.holdup.short()
    return parts | parts_of_cost(snapshot.cost, snapshot.speed.usd_per_minute)


def parts_of_cost(cost: Cost | None, usd_per_minute: float) -> dict[str, str]:
    if cost is None or not cost.priced_usd:
        return {}
    least = ">" if cost.unpriced_calls else "="
    end = "" if cost.projected_usd is None else f"→{dollars(cost.projected_usd)}"
    return {
        "cost": f"cost{least}{dollars(cost.priced_usd)}{end}",
        "burn": f"{dollars(usd_per_minute)}/min",
    }


def arm_rewards(snapshot: Snapshot) -> dict[str, float]:
    """Arm → its mean reward, for the arms that have one."""
    return {each.name: each.reward.value for each in snapshot.arms if each.reward}
