"""What people read at the end of a run, the most important first."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..collecting.results import Status, cost_of, finish, has_metrics_file
from ..collecting.run import Ending, Run
from ..errors import ConfigError, number_of
from ..types import JsonObject, Say
from .progress import Progress
from .throughput_log import log_run

MAX_REASONS = 5
"""Reasons of failure that are listed; the failures file has all of them."""

WORTH_SAYING = 0.01
"""Smaller shares of rollouts without an answer, or cut off, are in the metrics file only."""

RATES = {
    "cut_off": "Cut off by the limit of tokens",
    "max_steps": "Ended by the agent's limit of turns, its key max_steps",
    "no_answer": "Without an answer",
}

MAX_WORST = 3
"""Tasks with the lowest reward that are listed."""


def report(run: Run, progress: Progress) -> Status:
    """Write and print the results; returns how the run ended."""
    metrics, status = finish(run)
    say, is_whole = progress.say, run.command.only is None
    if is_whole:
        if not progress.as_json:
            _say_headline(run, metrics, say)
        _say_what_is_missing(run, metrics["counts"], say)
        if not progress.as_json:
            _say_worst_tasks(run, say)
        say_cost(run, say)
        progress.report(metrics)
        _say_groups(run, say)
        _say_bottleneck(run, progress)
        if run.audit:
            say("\n".join(run.audit.lines()), event="audit", **run.audit.figures())
    else:  # one rollout says nothing about the run
        say_cost(run, say)
        _say_what_is_missing(run, metrics["counts"], say)
    for line in run.source.closing_lines():
        say(line)
    _say_files(run, say)
    _say_what_to_do(run, say)
    return status


def say_reasons(run: Run, say: Say) -> None:
    """Why rollouts have no result, the most common reason first."""
    reasons = run.tally.reasons
    for reason, number in reasons.most_common(MAX_REASONS):
        say(f"  {number:,} × {reason}", event="reason", count=number, reason=reason)
    if len(reasons) > MAX_REASONS:
        say(f"  … and {len(reasons) - MAX_REASONS:,} other reasons")


def say_cost(run: Run, say: Say) -> None:
    """What the run has cost, unless nothing has a price."""
    if cost := cost_of(run):
        text = run.runner.bill.sentence(run.tally.finished, run.meter.elapsed_s)
        say(text, event="cost", **cost)


def _say_headline(run: Run, metrics: Mapping[str, Any], say: Say) -> None:
    """Reward with its interval, and pass@k."""
    reward = metrics["metrics"].get("reward")
    if reward is None:
        return
    counts = metrics["counts"]
    interval = metrics["intervals"].get("reward")
    between = f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else ""
    tasks = run.metrics.tasks
    over = f"{number_of(counts['rollouts'], 'rollout')} of {number_of(tasks, 'task')}"
    at_k = ""
    for name in ("pass", "maj"):
        for k, value in metrics.get(f"{name}_at_k", {}).items():
            if name == "pass" or k != "1":
                behind = metrics[f"{name}_at_k_tasks"][k]
                at_k += f" · {name}@{k} {value:.3f}"
                at_k += f" ({number_of(behind, 'task')})" if behind < tasks else ""
    say(f"Reward {reward:.3f}{between} over {over}{at_k}")
    _say_whole_file(run, metrics, say)
    _say_arms(metrics.get("arms", {}), say)
    for name, share in metrics["rates"].items():
        if share >= WORTH_SAYING or name == "max_steps":
            say(f"{RATES[name]}: {share:.1%} of the rollouts")
    if counts["rollouts"] < counts["planned"]:
        whole = f"{counts['planned']:,} rollouts of {number_of(counts['tasks'], 'task')}"
        say(f"This is a part of the plan, which is {whole}: the rest may change every figure")


def _say_whole_file(run: Run, metrics: Mapping[str, Any], say: Say) -> None:
    """The reward over all rollouts of the output, if it holds some of other inputs."""
    if (found := metrics.get("whole_file")) is None:
        return
    others = metrics["counts"]["other_rollouts"]
    over = f"{number_of(found['rollouts'], 'rollout')} of {number_of(found['tasks'], 'task')}"
    shown = "no reward" if (reward := found.get("reward")) is None else f"reward {reward:.3f}"
    say(
        f"Whole file: {shown} over {over}, {others:,} of them not of the tasks of {run.source.name}"
    )


def _say_arms(arms: Mapping[str, Any], say: Say) -> None:
    """A line for each arm: reward with its interval, and pass@k beyond one."""
    width = max(map(len, arms), default=0)
    for arm, found in arms.items():
        reward, interval = found["metrics"].get("reward"), found["intervals"].get("reward")
        shown = "without a reward" if reward is None else f"{reward:.3f}"
        between = f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else ""
        at_k = "".join(
            f" · {name}@{k} {value:.3f}"
            for name in ("pass", "maj")
            for k, value in found.get(f"{name}_at_k", {}).items()
            if k != "1"
        )
        over = number_of(found["rollouts"], "rollout")
        say(f"  {arm:<{width}}  {shown}{between} over {over}{at_k}")


def _say_worst_tasks(run: Run, say: Say) -> None:
    agents = run.metrics.agents
    for agent, part in agents.items():
        worst = part.worst_tasks(MAX_WORST) if len(part.groups) > 1 else []
        listed = [f"{id} {mean:.2f}" for id, mean, _ in worst if mean < part.pass_threshold]
        if listed:
            say(f"Worst tasks{f' of {agent}' if len(agents) > 1 else ''}: {', '.join(listed)}")


def _say_what_is_missing(run: Run, counts: JsonObject, say: Say) -> None:
    """Planned rollouts without a result, by kind and by reason."""
    waits = "waits for its verdict" if counts["unverified"] == 1 else "wait for their verdict"
    kinds = {"failed": "failed", "unverified": waits, "left_out": "left out"}
    what = [f"{counts[name]:,} {text}" for name, text in kinds.items() if counts.get(name)]
    what += [number_of(counts["malformed"], "malformed line")] if counts["malformed"] else []
    if what:
        is_named = counts["failed"] or counts["unverified"] or counts["malformed"]
        paths = run.collection.paths if is_named else None
        named = f"; each is named in {paths.failures}" if paths else ""
        say(f"Without a {run.source.lacks}: {', '.join(what)}{named}")
    say_reasons(run, say)


def _say_groups(run: Run, say: Say) -> None:
    """How many groups have a score, and why others have none."""
    if (groups := run.groups).is_on:
        text = "\n".join(groups.tally.lines(groups.open.planned))
        say(text, event="groups", **groups.figures())


def _say_bottleneck(run: Run, progress: Progress) -> None:
    """What held the run up, and the run's line in the throughput log."""
    if bottleneck := run.meter.verdict():
        progress.say(bottleneck.sentence, event="bottleneck", **bottleneck.figures())
    try:
        log_run(run)
    except ConfigError as error:  # the rollouts are on disk, so the run has not failed
        progress.say(f"warning: {error}")


def _say_files(run: Run, say: Say) -> None:
    if (paths := run.collection.paths) is None:
        return
    # an empty file is removed when the output is closed
    if _has_lines(paths.main):
        say(f"Rollouts: {paths.main}", event="files", rollouts=str(paths.main))
    if has_metrics_file(run):
        say(f"Metrics:  {paths.metrics}", event="files", metrics=str(paths.metrics))
    if any(map(_has_lines, (paths.main, paths.unverified, paths.failures))):
        say(f"Look at them:  ng_view {shlex.quote(str(paths.main))}")


def _has_lines(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _say_what_to_do(run: Run, say: Say) -> None:
    """The commands that continue, or verify what was left for later."""
    source, tally, lines = run.source, run.tally, run.collection.lines
    settled = source.counts.left_out
    if refused := source.counts.refused + tally.refused:
        settled += refused
        say(
            f"{number_of(refused, 'rollout')} failed permanently and will not be retried; the"
            " 'repro' command in the failures file retries one"
        )
    if (missing := source.num_missing(tally)) > settled:
        verb = "tries again" if run.ending is Ending.DONE else "continues"
        left = number_of(missing - settled, "rollout")
        say(f"Still to come: {left}. This {verb}:\n  {lines.again}")
    plans, parts = run.runner.agents, run.metrics.agents
    verified = {
        name: part for name, part in parts.items() if name in plans and plans[name].verifies
    }
    unscored = sum(part.unscored for part in verified.values())
    if unscored and run.command.only is None:
        what = number_of(unscored, "rollout")
        say(f"Collected without verification: {what}. This verifies:\n  {lines.reverify}")
