"""What a run leaves behind: its metrics, the manifest's last word, and what people are told."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from ..collector.flakes import Flakes
from ..collector.plan import Counts as Plan
from ..collector.plan import number_of
from ..collector.prepare import Prepared
from ..collector.renewal import Counts, Renewal
from ..config.keys.commands import RolloutsCommand
from ..errors import ConfigError, StopRun
from ..pacing.give_up import GiveUp
from ..pacing.limiter import Adaptive
from ..pacing.meter import Meter
from ..store.files import write_json
from ..store.lines import failure_line
from ..types import Failure, JsonObject
from .announce import Announcement
from .drain import End
from .progress import Progress
from .throughput_log import log_run

FINISHED, NO_RESULT, LIMIT_REACHED, INTERRUPTED = 0, 2, 3, 130
"""Exit statuses: every planned rollout is on disk; some have no result; not all were attempted, as
a limit on money, tokens or time was reached or going on was not agreed to; stopped by the user."""


MAX_REASONS = 5
"""Different reasons of failure that the summary lists; the failures file has them all."""

REASON_CHARS = 200


@dataclass(slots=True)
class Reasons:
    """Why keys have no result, the same ones together."""

    counts: Counter[str] = field(default_factory=Counter)

    def note(self, failure: Failure) -> None:
        self.counts[f"{failure.error}"[:REASON_CHARS]] += 1

    def say(self, progress: Progress) -> None:
        for reason, number in self.counts.most_common(MAX_REASONS):
            progress.say(f"  {number:,} × {reason}", event="reason", count=number, reason=reason)
        if len(self.counts) > MAX_REASONS:
            progress.say(f"  … and {len(self.counts) - MAX_REASONS:,} other reasons")


@dataclass(slots=True)
class Report:
    """Of one run. `unplanned`: rollouts it finished that its own input had not asked for."""

    run: Prepared
    progress: Progress
    plan: Announcement
    unplanned: int = 0
    replayed_otherwise: int = 0
    reasons: Reasons = field(default_factory=Reasons)
    meter: Meter | None = None
    """Of what is being run, once it is."""
    flakes: Flakes | None = None
    """Verdicts that are made again, where that is asked for."""

    def write_metrics(self, *, meanwhile: bool = False) -> JsonObject:
        """Renew the metrics file; returns what it holds. Only at the end it lists every task."""
        run, progress, counts = self.run, self.progress, self.plan.counts
        beyond = max(0, run.metrics.rollouts(run.wanted.scope_of) - self._planned_on_disk())
        tally = {
            "tasks": max(counts.tasks, run.metrics.tasks(run.wanted.scope_of)),
            "planned": counts.planned + beyond,
            "unverified": run.journal.num_parked(run.wanted.is_of_this_run),
            "failed": progress.failed + counts.refused,
            "malformed": counts.malformed,
        }
        this_run = {
            "rollouts": progress.rollouts,
            "output_tokens": progress.output_tokens,
            "elapsed_s": round(progress.elapsed_s, 3),
        }
        asked = run.command.num_repeats
        repeats = asked if isinstance(asked, int) else max(asked.values())
        metrics = run.metrics.report(
            run.wanted.scope_of, tally, this_run, repeats, lists_groups=not meanwhile
        )
        if self.flakes and progress.rollouts:
            metrics["audit"] = self.flakes.figures()
        return kept_metrics(run, progress, metrics, self.meter)

    def end(self, end: End) -> int:
        """Write and print the results; the exit status."""
        run, progress = self.run, self.progress
        metrics, counts = self.write_metrics(), self.plan.counts
        missing = max(0, counts.planned - self._planned_on_disk())
        without_result = metrics["counts"]["failed"] + metrics["counts"]["unverified"]
        if end is End.LIMIT and missing <= without_result:
            end = End.DONE  # it was reached by the last ones
        status = exit_status(run.command, counts, missing, end)
        if run.wanted.only is None:  # one rollout says nothing about the run
            self.note(metrics, status)
            progress.report(metrics)
            say_bottleneck(run, progress, self.meter)
        say_cost(progress)
        if self.flakes and run.wanted.only is None:
            text = "\n".join(self.flakes.lines())
            progress.say(text, event="audit", **self.flakes.figures())
        say_files(run, progress)
        self._say_what_is_missing(missing, metrics["counts"], end)
        self._say_what_waits()
        return status

    def note(self, metrics: JsonObject, status: int) -> None:
        """How the run has ended, into the manifest."""
        manifest = self.run.manifest
        manifest.note_input(self.plan.input_entry())
        manifest.finish(metrics["counts"], status)
        manifest.write()

    def _say_what_is_missing(self, missing: int, counts: JsonObject, end: End) -> None:
        waits = "waits for its verdict" if counts["unverified"] == 1 else "wait for their verdict"
        names = {"failed": "failed", "unverified": waits}
        what = [f"{counts[name]:,} {text}" for name, text in names.items() if counts[name]]
        what += [number_of(counts["malformed"], "malformed line")] if counts["malformed"] else []
        if what:
            named = f"each is named in {self.run.journal.paths.failures}"
            self.progress.say(f"Without a result: {', '.join(what)}; {named}")
        self.reasons.say(self.progress)
        if refused := self.plan.counts.refused + self.progress.refused:
            verb = "is" if refused == 1 else "are"
            self.progress.say(
                f"{number_of(refused, 'rollout')} {verb} refused for good and not tried again by"
                " itself; its 'repro' in the failures file does, one at a time"
            )
        if missing > refused:
            verb = "tries again" if end is End.DONE else "continues"
            left = number_of(missing - refused, "rollout")
            self.progress.say(f"Still to come: {left}. This {verb}:\n  {self.run.command_line}")

    def _say_what_waits(self) -> None:
        """Verdicts that were left for later, and those of replays that went otherwise."""
        say, run = self.progress.say, self.run
        unscored = sum(part.unscored for part in run.metrics.of(run.wanted.scope_of).values())
        if unscored and run.wanted.only is None:
            what = number_of(unscored, "rollout")
            say(f"Without a verdict: {what}. This verifies:\n  {run.renewing}")
        if self.replayed_otherwise:
            number = number_of(self.replayed_otherwise, "replayed rollout")
            say(f"Replays: the tools of {number} answered otherwise than when they were collected")

    def _planned_on_disk(self) -> int:
        """Rollouts of this run's own plan that are on disk now."""
        return self.plan.counts.done + self.progress.rollouts - self.unplanned


def record(failure: Failure, run: Prepared | Renewal, reasons: Reasons, give_up: GiveUp) -> None:
    """Into the failures file, with the command that repeats it; StopRun when it is one too many."""
    key = failure.key
    repro = f"{run.command_line} +only={key.task_id}:{key.rollout_index}"
    plans = run.runner.agents if isinstance(run, Prepared) else run.verifiers.plans
    plan = plans[key.agent]
    made_with = {"settings": plan.settings, "verifier": plan.verifier}
    run.journal.append_failure(failure_line(failure, repro, made_with))
    reasons.note(failure)
    if reason := give_up.reason_after(failure.error):
        raise StopRun(reason)


def kept_metrics(
    run: Prepared | Renewal, progress: Progress, metrics: JsonObject, meter: Meter | None
) -> JsonObject:
    """The metrics, written unless nobody wants the file. What only a run that does something can
    measure stays as it was after one that did nothing."""
    verdict = meter.verdict() if meter else None
    if verdict:
        metrics["bottleneck"] = verdict.figures()
    this_run = progress.cost_figures().get("cost")
    if meter and isinstance(meter.limiter, Adaptive):
        metrics["parallelism"] = meter.limiter.history()
    if not progress.rollouts:
        earlier = _metrics_at(run.journal.paths.metrics)
        metrics["throughput"] = earlier.get("throughput") or {}
        if not verdict and "bottleneck" in earlier:
            metrics["bottleneck"] = earlier["bottleneck"]
        if "audit" in earlier:
            metrics["audit"] = earlier["audit"]
        if "parallelism" in earlier and not verdict:
            metrics["parallelism"] = earlier["parallelism"]
        this_run = this_run or (earlier.get("cost") or {}).get("run")
    if this_run:
        metrics["cost"] = {**metrics.get("cost", {}), "run": this_run}
    if _has_metrics_file(run.command):
        write_json(run.journal.paths.metrics, metrics)
    return metrics


def exit_status(command: RolloutsCommand, counts: Plan | Counts, missing: int, end: End) -> int:
    """`missing`: rollouts of the plan without a result."""
    if end is not End.DONE:
        return INTERRUPTED if end is End.INTERRUPTED else LIMIT_REACHED
    tolerated = command.max_failed_fraction * (counts.planned + counts.malformed)
    return FINISHED if missing + counts.malformed <= tolerated else NO_RESULT


def say_bottleneck(run: Prepared | Renewal, progress: Progress, meter: Meter | None) -> None:
    """What held the run up, and the run's line in the throughput log."""
    if meter is None:
        return
    if verdict := meter.verdict():
        progress.say(verdict.sentence, event="bottleneck", **verdict.figures())
    try:
        log_run(run.command, progress, meter)
    except ConfigError as error:  # the rollouts are on disk: that is no reason to fail
        progress.say(f"warning: {error}")


def say_cost(progress: Progress) -> None:
    """What this run has spent, unless nothing costs anything."""
    if progress.bill and not progress.bill.is_empty:
        text = progress.bill.sentence(progress.finished, progress.elapsed_s)
        progress.say(text, event="cost", **progress.cost_figures()["cost"])


def say_files(run: Prepared | Renewal, progress: Progress) -> None:
    """Where the results are."""
    paths = run.journal.paths
    progress.say(f"Rollouts: {paths.main}", event="files", rollouts=str(paths.main))
    if _has_metrics_file(run.command):
        progress.say(f"Metrics:  {paths.metrics}", event="files", metrics=str(paths.metrics))


def _has_metrics_file(command: RolloutsCommand) -> bool:
    """One rollout says nothing about the run."""
    return not command.disable_aggregation and command.only is None


def _metrics_at(path: Path) -> JsonObject:
    """What an earlier run left."""
    try:
        found = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return found if isinstance(found, dict) else {}
