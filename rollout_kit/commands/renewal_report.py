"""What people are told of a verification: the plan, the metrics, what changed, what is missing."""

from collections import Counter
from dataclasses import dataclass, field

from ..collector.plan import number_of
from ..collector.renewal import Counts, Renewal
from ..pacing.meter import Meter
from ..types import JsonObject
from .drain import End
from .progress import Progress
from .report import Reasons, exit_status, kept_metrics, say_bottleneck, say_cost, say_files


@dataclass(slots=True)
class RenewalReport:
    """Of one run."""

    run: Renewal
    progress: Progress
    counts: Counts
    reasons: Reasons = field(default_factory=Reasons)
    meter: Meter | None = None
    num_planned: int = 0
    per_task: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(agent, task_id) → its rollouts, in the scopes that the metrics are about."""

    def __post_init__(self) -> None:
        for key in self.run.stored.survey.rows:
            if key.scope == self.run.scope_of(key.agent):
                self.num_planned += 1
                self.per_task[key.agent, key.task_id] += 1

    def say_plan(self) -> None:
        """What was made ready, the plan, and who is left out and why."""
        run, say = self.run, self.progress.say
        for note in run.notes:
            say(note)
        figures = {name: getattr(self.counts, name) for name in Counts.__slots__}
        say(self.counts.line(), event="plan", **figures)
        if others := len(run.stored.survey.rows) - self.num_planned:
            what = number_of(others, "rollout")
            say(f"{what} under other settings (a 'scope' of their own): the metrics are without")
        for agent, reason in run.verifiers.left_out.items():
            number = sum(key.agent == agent for key in run.stored.survey.rows)
            text = f"left out: {number_of(number, 'rollout')} of {reason}"
            say(text, event="left_out", agent=agent, rollouts=number, reason=reason)
        for bad in run.stored.survey.malformed:
            say(f"{run.stored.source}:{bad.line}: {bad.message}")
        if self.counts.malformed > len(run.stored.survey.malformed):
            say("… further malformed lines are in the failures file only")

    def write_metrics(self, *, meanwhile: bool = False) -> JsonObject:
        """Renew the metrics file; returns what it holds. Only at the end it lists every task."""
        run, progress = self.run, self.progress
        tally = {
            "tasks": max(len(self.per_task), run.metrics.tasks(run.scope_of)),
            "planned": max(self.num_planned, run.metrics.rollouts(run.scope_of)),
            "unverified": run.journal.num_parked(lambda key: True),
            "failed": progress.failed,
            "malformed": self.counts.malformed,
            "left_out": self.counts.left_out,
        }
        this_run = {
            "rollouts": progress.rollouts,
            "output_tokens": 0,
            "elapsed_s": round(progress.elapsed_s, 3),
        }
        repeats = max(self.per_task.values())
        metrics = run.metrics.report(
            run.scope_of, tally, this_run, repeats, lists_groups=not meanwhile
        )
        metrics["verdicts"] = run.comparison.figures()
        return kept_metrics(run, progress, metrics, self.meter)

    def end(self, end: End) -> int:
        """Write and print the results; the exit status."""
        run = self.run
        metrics = self.write_metrics()
        missing = self.counts.planned - self.counts.done - self.progress.rollouts
        if end is End.LIMIT and missing <= self.progress.failed + self.counts.left_out:
            end = End.DONE  # it was reached by the last ones
        status = exit_status(run.command, self.counts, missing, end)
        if run.command.only is None:  # one rollout says nothing about the run
            run.manifest.finish(metrics["counts"], status)
            run.manifest.write()
            self.progress.report(metrics)
            say_bottleneck(run, self.progress, self.meter)
        say_cost(self.progress)
        for line in run.comparison.lines():
            self.progress.say(line)
        say_files(run, self.progress)
        self._say_what_is_missing(missing, end)
        return status

    def _say_what_is_missing(self, missing: int, end: End) -> None:
        say, counts = self.progress.say, self.counts
        numbers = {
            "failed": self.progress.failed,
            "left out": counts.left_out,
        }
        what = [f"{number:,} {name}" for name, number in numbers.items() if number]
        what += [number_of(counts.malformed, "malformed line")] if counts.malformed else []
        if what:
            named = ""
            if self.progress.failed or counts.malformed:
                named = f"; what failed is named in {self.run.journal.paths.failures}"
            say(f"Without a verdict: {', '.join(what)}{named}")
        self.reasons.say(self.progress)
        if left := missing - counts.left_out:
            verb = "tries again" if end is End.DONE else "continues"
            text = f"Still to come: {number_of(left, 'rollout')}. This {verb}:"
            say(f"{text}\n  {self.run.command_line}")
