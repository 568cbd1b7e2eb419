"""What a run leaves in its files beside the rollouts: the metrics, and how it ended."""

from enum import IntEnum

from ..reading import read_object
from ..store.files import write_json
from ..types import JsonObject
from .pacing.limiter import Adaptive
from .run import Ending, Run


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


def write_metrics(run: Run, *, lists_groups: bool = True) -> JsonObject:
    """Write the metrics file, unless it is disabled; returns its content.

    A run without rollouts keeps what only a busy run can measure from the file of an earlier one.
    """
    metrics, paths = _measure(run, lists_groups), run.collection.paths
    earlier = {} if run.tally.rollouts or not paths else read_object(paths.metrics)
    if not run.tally.rollouts:
        metrics["throughput"] = earlier.get("throughput") or {}
        is_measured = "bottleneck" in metrics
        for name in ("audit",) if is_measured else ("audit", "bottleneck", "parallelism"):
            if name in earlier:
                metrics[name] = earlier[name]
    if this_run := cost_of(run) or (earlier.get("cost") or {}).get("run"):
        metrics["cost"] = {**metrics.get("cost", {}), "run": this_run}
    if paths and has_metrics_file(run):
        write_json(paths.metrics, metrics)
    return metrics


def finish(run: Run) -> tuple[JsonObject, Status]:
    """Write metrics and manifest; returns the metrics and how the run ended."""
    metrics = write_metrics(run)
    counts, source = metrics["counts"], run.source
    missing, ending = source.num_missing(run.tally), run.ending
    without_result = counts["failed"] + counts["unverified"] + counts.get("left_out", 0)
    may_ask_more = source.reads_as_asked and source.is_open_ended
    if ending is Ending.LIMIT and missing <= without_result and not may_ask_more:
        ending = Ending.DONE  # the last rollouts reached it
    tolerated = run.command.max_failed_fraction * (source.counts.planned + source.counts.malformed)
    if ending is not Ending.DONE:
        status = Status.INTERRUPTED if ending is Ending.INTERRUPTED else Status.LIMIT_REACHED
    else:
        scoring = run.scoring
        lost = run.command.max_failed_fraction * scoring.planned < len(scoring.tally.failed)
        has_all = missing + source.counts.malformed <= tolerated and not lost
        status = Status.FINISHED if has_all else Status.NO_RESULT
    run.ending = ending
    note(run, metrics, status)
    return metrics, status


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


def cost_of(run: Run) -> JsonObject | None:
    """What the run has cost so far; None if nothing has a price."""
    bill, source = run.runner.bill, run.source
    if bill.is_empty:
        return None
    wanted = None if source.is_open_ended else source.counts.planned - source.counts.done
    return bill.figures(run.tally.finished, wanted, run.meter.elapsed_s)


def _measure(run: Run, lists_groups: bool) -> JsonObject:
    source, tally = run.source, run.tally
    num_parked = tally.unverified  # without an output, only this run knows them
    if run.collection.paths:
        num_parked = run.collection.journal.num_parked(source.is_of_this_run)
    metrics = run.metrics.report(
        source.metric_counts(run.metrics, tally, num_parked),
        {
            "rollouts": tally.rollouts,
            "output_tokens": tally.output_tokens if source.generates else 0,
            "elapsed_s": round(run.meter.elapsed_s, 3),
            "requests_429": run.runner.bill.spent.throttled,
        },
        source.repeats,
        lists_groups=lists_groups,
    )
    if run.audit and tally.rollouts:
        metrics["audit"] = run.audit.figures()
    if bottleneck := run.meter.verdict():
        metrics["bottleneck"] = bottleneck.figures()
    if run.scoring.is_on:
        metrics["groups"] = run.scoring.figures()
    if isinstance(run.limiter, Adaptive):
        metrics["parallelism"] = run.limiter.history()
    return metrics | source.own_results()
