"""What a run leaves in its files beside the rollouts: the metrics, and how it ended."""

from dataclasses import asdict
from enum import IntEnum
from typing import NamedTuple

from ..reading import read_object
from ..store.files import write_json
from ..types import JsonObject
from .cheapest.savings import Savings
from .data.benchmarks.score import find_definition, score
from .ending import Ending
from .live.snapshot import Snapshot
from .live.watcher import snapshot_of
from .pacing.limiter import Adaptive
from .run import Run
from .sources import TaskSource


class Status(IntEnum):
    """How a run ended, as the manifest and the exit status say it."""

    FINISHED = 0
    """Every planned rollout is on disk, up to the tolerated share."""
    NO_RESULT = 2
    """Some rollouts have no result."""
    LIMIT_REACHED = 3
    """A limit on money, tokens or time was reached, or you declined to continue."""
    INTERRUPTED = 130
    """You ended the run with Ctrl-C. The same command continues it."""


class Results(NamedTuple):
    """The metrics of a run that has ended, how it ended, and its last figures."""

    metrics: JsonObject
    status: Status
    snapshot: Snapshot


def write_metrics(run: Run, snapshot: Snapshot, *, lists_groups: bool = True) -> JsonObject:
    """Write the metrics file, unless it is disabled; returns its content.

    A run without rollouts keeps what only a busy run can measure from the file of an earlier one.
    """
    metrics, paths = _measure(run, snapshot, lists_groups), run.collection.paths
    earlier = {} if run.tally.rollouts or not paths else read_object(paths.metrics)
    if not run.tally.rollouts:
        metrics["throughput"] = earlier.get("throughput") or {}
        is_measured = "bottleneck" in metrics
        for name in ("audit",) if is_measured else ("audit", "bottleneck", "parallelism"):
            if name in earlier:
                metrics[name] = earlier[name]
    cost = asdict(snapshot.cost) if snapshot.cost else (earlier.get("cost") or {}).get("run")
    if cost:
        metrics["cost"] = {**metrics.get("cost", {}), "run": cost}
    if paths and has_metrics_file(run):
        write_json(paths.metrics, metrics)
    return metrics


def write_interim(run: Run) -> None:
    """Write the metrics file of a run that goes on."""
    write_metrics(run, snapshot_of(run), lists_groups=False)


def finish(run: Run) -> Results:
    """Write metrics and manifest of a run that has ended."""
    snapshot = snapshot_of(run)
    metrics = write_metrics(run, snapshot)
    counts, source, ending = snapshot.counts, run.source, run.ending
    without_result = counts.failed + counts.pending + counts.left_out
    may_ask_more = source.reads_as_asked and source.is_open_ended
    if ending is Ending.LIMIT and counts.missing <= without_result and not may_ask_more:
        ending = Ending.DONE  # the last rollouts reached it
    tolerated = run.command.max_failed_fraction * (source.counts.planned + counts.malformed)
    if ending is not Ending.DONE:
        status = Status.INTERRUPTED if ending is Ending.INTERRUPTED else Status.LIMIT_REACHED
    else:
        groups = snapshot.group_counts
        lost = groups and run.command.max_failed_fraction * groups.planned < groups.failed
        has_all = counts.missing + counts.malformed <= tolerated and not lost
        status = Status.FINISHED if has_all else Status.NO_RESULT
    run.end.kind = ending
    note(run, metrics, status)
    return Results(metrics, status, snapshot)


def note(run: Run, metrics: JsonObject, status: Status) -> None:
    """Write into manifest and history how the run ended; to the manifest one single rollout says
    nothing."""
    run.collection.history.result = {"exit_status": status, "counts": metrics["counts"]}
    if run.command.only is not None:
        return
    manifest = run.collection.manifest
    if entry := run.source.input_entry():
        manifest.note_input(entry)
    manifest.finish(metrics["counts"], status)
    manifest.write()


def has_metrics_file(run: Run) -> bool:
    return not run.command.disable_aggregation and run.command.only is None


def _measure(run: Run, snapshot: Snapshot, lists_groups: bool) -> JsonObject:
    source, counts, speed = run.source, snapshot.counts, snapshot.speed
    metrics = run.metrics.report(
        {
            "tasks": counts.tasks,
            "planned": counts.measured,
            "unverified": counts.pending,
            "failed": counts.failed,
            "malformed": counts.malformed,
            **({} if source.generates else {"left_out": counts.left_out}),
        },
        {
            "rollouts_per_s": speed.rollouts_per_s,
            "output_tokens_per_s": speed.output_tokens_per_s or 0.0,
            "elapsed_s": snapshot.elapsed_s,
            "requests_429": snapshot.this_run.requests_429,
        },
        source.repeats,
        lists_groups=lists_groups,
    )
    if run.audit and run.tally.rollouts:
        metrics["audit"] = run.audit.figures()
    metrics |= source.own_results()
    if definition := find_definition(run.command):
        output = paths.main if lists_groups and (paths := run.collection.paths) else None
        found = score(definition, metrics, output)
        metrics["benchmark"] = {**found, **_describe_made_with(run)}
    if run.collection.runner.ways.is_on:
        counts = run.metrics.verified, run.metrics.informative
        metrics["cheapest"] = Savings.of(metrics, *counts, run.runner.bill.lost).to_json()
    if bottleneck := run.meter.verdict():
        metrics["bottleneck"] = bottleneck.figures()
    if run.scoring.is_on:
        metrics["groups"] = run.scoring.figures()
    if isinstance(run.limiter, Adaptive):
        metrics["parallelism"] = run.limiter.history()
    return metrics


def _describe_made_with(run: Run) -> JsonObject:
    """Model, sampling and verifier of a run of a benchmark."""
    plan, source = next(iter(run.runner.agents.values())), run.source
    params: JsonObject = {}
    if isinstance(source, TaskSource):
        params = {**source.reader.default_params, **source.reader.override_params}
    user = {"user_model": plan.user_model} if plan.user_model else {}
    return {"model": plan.model, **user, "sampling": params, "verifier": plan.verifier}
