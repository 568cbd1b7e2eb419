"""A run as a command drives it: the plan, progress, Ctrl-C, and the report at the end."""

import asyncio
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from ..collecting.changed import find_left_behind
from ..collecting.cheapest.savings import Savings
from ..collecting.data.benchmarks.score import describe_score
from ..collecting.ending import Ending
from ..collecting.live.control import Control
from ..collecting.live.door import open_door
from ..collecting.live.snapshot import Cost, PlanCounts, Snapshot
from ..collecting.live.watcher import Reader, Watcher
from ..collecting.pacing.bill import dollars
from ..collecting.plan import Collection
from ..collecting.results import Status, finish, has_metrics_file, write_interim
from ..collecting.run import Run
from ..collecting.schedule import Later
from ..collecting.sources import TaskSource
from ..collecting.trackers.tracking import track
from ..config.replaced import explain
from ..errors import ConfigError, number_of
from ..serving.transport.loop import interrupts
from ..store.lines import row_of, without_verdict
from ..types import Attempt, Say
from .plan_text import closing_lines, find_missing_of, plan_notes
from .progress import Progress
from .throughput_log import log_run

MAX_AGENTS = 5
"""Agents that are named before a run."""

Ends = Sequence["asyncio.Task[str]"]


async def run_to_end(collection: Collection, ends: Ends, progress: Progress) -> Status:
    """Run what is owed, and report how it went."""
    run = make_run(collection, ends, progress)
    await run.warm_up()
    async with track(run, progress.say) as tracking:
        async with _into_buffer(run, progress.say):
            await drive(run, progress, readers=[tracking.read])
        return report(run, progress)


def _into_buffer(run: Run, say: Say) -> AbstractAsyncContextManager[None]:
    """Context in which the groups of a run go into the buffer of its command, if it has one."""
    if getattr(run.command, "buffer", None) is None:
        return nullcontext()
    from ..rl.producing.producer import into_buffer

    return into_buffer(run, say)


async def prepare(collection: Collection, progress: Progress) -> None:
    """Count the plan, show it and note the run in the manifest; nothing has been sent before."""
    source = collection.source
    await source.count()
    for note in collection.notes:
        progress.say(note)
    _say_who_runs(collection, progress)
    if not source.is_open_ended:
        await source.know_tasks()
    _say_plan(collection, progress)
    current = source.input_entry()
    for earlier in collection.manifest.earlier_inputs(current) if current else ():
        number, is_part = find_missing_of(source, earlier)
        if number:
            path, limit = earlier["path"], earlier.get("limit") or "none"
            what = f"{number_of(number, 'task')} of the earlier input {path} (limit {limit})"
            lost = (
                f"warning: {source.name} is a part of {path} and leaves out what has no rollout: "
            )
            progress.say(
                f"{lost * is_part}{what} still missing; the same command with"
                f" +input_jsonl_fpath={path} collects what is missing"
            )
    if not collection.command.dry_run:
        collection.begin()


def _say_who_runs(collection: Collection, progress: Progress) -> None:
    """Each agent with its model and endpoint, and which of the configured values were replaced."""
    known = collection.runner.agents if collection.source.generates else {}
    plans = {name: plan for name, plan in known.items() if plan.server not in known}
    for agent, plan in list(plans.items())[:MAX_AGENTS]:
        model = f": model {plan.model}" if plan.model else ""
        hosts = f" at {', '.join(plan.hosts)}" if plan.hosts else ""
        why = list(explain(collection.replaced, (agent, str(plan.model_server))))
        text = f"Agent {agent}{model}{hosts}" + (f" ({'; '.join(why)})" if why else "")
        sources = _name_sources(collection, plan.server or agent, plan.model_server)
        about = {"agent": agent, "model": plan.model, "hosts": list(plan.hosts)}
        progress.say(f"{text}\n  {sources}", event="agent", **about, sources=sources)
    if (more := len(plans) - MAX_AGENTS) > 0:
        progress.say(f"… and {number_of(more, 'other agent')}")


def _name_sources(collection: Collection, agent: str, model_server: str | None) -> str:
    """Which files, or which other source, an agent, its model and its endpoint come from."""
    if not collection.targets:
        head = collection.command.head_server
        return f"from the ng_run at {head.host}:{head.port}"
    found = {name: collection.targets.get(name) for name in (agent, model_server) if name}
    return "; ".join(f"{name} is {its or 'made automatically'}" for name, its in found.items())


def _say_plan(collection: Collection, progress: Progress) -> None:
    """The plan, and what the output holds of other inputs."""
    for text, fields in plan_notes(collection.source):
        progress.say(text, **fields)
    source = collection.source
    others = source.others
    if not others.rollouts:
        return
    done, manifest = collection.journal.contents.done, collection.manifest
    is_input = isinstance(source, TaskSource)
    if is_input and (left := find_left_behind(manifest, source.own, source.name, done)):
        progress.say(left, event="left_behind")
    what = f"{number_of(others.rollouts, 'rollout')} of {number_of(others.tasks, 'task')}"
    progress.say(
        f"{collection.command.output_jsonl_fpath} also holds {what} that are not in"
        f" {collection.source.name}: the figures of this run leave them out, and one line has those"
        " of the whole file",
        event="others",
        **others._asdict(),
    )


def make_run(
    collection: Collection,
    ends: Ends,
    progress: Progress,
    attempts: Sequence[Attempt] | None = None,
) -> Run:
    """The run of a prepared collection; of all that is owed unless `attempts` are given."""
    return Run(
        collection,
        say=progress.say,
        ends=ends,
        attempts=attempts,
        write_metrics=write_interim,
        on_counted=partial(_show_total, collection, progress),
    )


async def drive(run: Run, progress: Progress, readers: Sequence[Reader] = ()) -> None:
    """Run to the end while people see the progress, and can end it with Ctrl-C."""
    with interrupts(run.end.interrupt):
        await follow(run, progress, readers)
    if run.end.num_left_waiting:
        await _settle_batches(run, progress)


async def follow(run: Run, progress: Progress, readers: Sequence[Reader] = ()) -> None:
    """Run to the end while people see the progress."""
    control = Control(run, progress.say)
    watcher = Watcher(run, control)
    watcher.readers += readers
    watcher.begin()
    progress.read(watcher.snapshot)
    async with AsyncExitStack() as stack:
        door = open_door(control, watcher, progress.say)
        own, command = await stack.enter_async_context(door), run.command
        if command.dashboard:
            from ..collecting.live.site import open_page  # a run without a page needs no server

            port, key = command.dashboard_port, "dashboard_port"
            await stack.enter_async_context(open_page(own, "page", port, key, progress.say))
        try:
            # in this task, where a closed pipe ends the run
            async for _ in run.batches():
                progress.read(watcher.snapshot)
        finally:
            progress.read(watcher.end())


async def _settle_batches(run: Run, progress: Progress) -> None:
    """After Ctrl-C, leave the batches to their providers or end them, as the user decides."""
    number = number_of(run.end.num_left_waiting, "rollout")
    if sys.stdin.isatty() and not progress.as_json:
        progress.say(f"{number} wait for batches. End the batches at the provider too? [y/N]")
        if (await read_line()).strip().lower() in ("y", "yes"):
            progress.say(
                f"Batches ended: {await run.cancel_batches():,}. The same command collects what"
                " they have answered, and sends the rest again"
            )
            return
    progress.say(
        f"{number} wait for batches, which keep running at the provider. The same command collects"
        " their answers, and sends nothing of them again",
        event="batches",
        waiting=run.end.num_left_waiting,
    )


async def read_line() -> str:
    """A typed line. The event loop goes on while it waits."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())
    return sys.stdin.readline()


def _show_total(collection: Collection, progress: Progress) -> None:
    """Show the plan of a long input, once it is counted."""
    if collection.source.is_open_ended:  # it has no end
        return
    _say_plan(collection, progress)


def show_first_request(collection: Collection, progress: Progress) -> Status:
    """For a dry run: the first request in full, and nothing is sent."""
    attempt = collection.source.next()
    while isinstance(attempt, Later) or (isinstance(attempt, Attempt) and attempt.is_copied):
        attempt = collection.source.next()
    if not isinstance(attempt, Attempt):
        progress.say("Nothing is owed: no request would be sent.")
        return Status.FINISHED
    agent = collection.runner.agents[attempt.key.agent]
    if attempt.stored is None:
        request, what = attempt.task.row, f"POST {attempt.key.agent}/v1/responses"
    else:
        line = without_verdict(attempt.stored)
        request = {**row_of(line), "response": line["response"]}
        what = f"POST {agent.resources}/verify"
    text = orjson.dumps(request, option=orjson.OPT_INDENT_2).decode()
    progress.say(f"First request ({what}):\n{text}", request=request)
    return Status.FINISHED


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
    metrics, status, snapshot = finish(run)
    say, is_whole = progress.say, run.command.only is None
    if is_whole:
        if not progress.as_json:
            _say_headline(run, metrics, say)
        _say_what_is_missing(run, snapshot.counts, say)
        if not progress.as_json:
            _say_worst_tasks(run, say)
        _say_cost(snapshot, say)
        if found := metrics.get("cheapest"):
            say("\n".join(Savings(**found).lines()), event="savings", **found)
        progress.report(metrics)
        _say_groups(run, say)
        _say_bottleneck(run, snapshot, progress)
        if run.audit:
            say("\n".join(run.audit.lines()), event="audit", **run.audit.figures())
    else:  # one rollout says nothing about the run
        _say_cost(snapshot, say)
        _say_what_is_missing(run, snapshot.counts, say)
    for line in closing_lines(run.source):
        say(line)
    _say_files(run, say)
    _say_what_to_do(run, snapshot.counts, say)
    return status


def say_reasons(run: Run, say: Say) -> None:
    """Why rollouts have no result, the most common reason first."""
    reasons = run.tally.reasons
    for reason, number in reasons.most_common(MAX_REASONS):
        say(f"  {number:,} × {reason}", event="reason", count=number, reason=reason)
    if len(reasons) > MAX_REASONS:
        say(f"  … and {len(reasons) - MAX_REASONS:,} other reasons")


def _say_cost(snapshot: Snapshot, say: Say) -> None:
    """What the run has cost, unless nothing has a price."""
    if cost := snapshot.cost:
        text = describe_cost(cost, snapshot.finished, snapshot.speed.usd_per_minute)
        say(text, event="cost", **asdict(cost))


def describe_cost(cost: Cost, finished: int, usd_per_minute: float) -> str:
    """The sentence at the end of a run in which so many rollouts have ended."""
    if not cost.priced_usd:
        return "Cost: not known; give the model's server `prices`, in US dollars per million tokens"
    each = f", {dollars(cost.priced_usd / finished)} a rollout" if finished else ""
    rate = f"{dollars(usd_per_minute)} a minute"
    text = f"Cost: {dollars(cost.priced_usd)} in this run{each}, {rate}"
    if cost.unpriced_calls:
        text += f"; the price of {cost.unpriced_calls:,} of {cost.calls:,} model calls is not known"
    return text


def _say_headline(run: Run, metrics: Mapping[str, Any], say: Say) -> None:
    """Reward with its interval, and pass@k."""
    reward = metrics["metrics"].get("reward")
    if reward is None:
        return
    counts = metrics["counts"]
    if goal := metrics.get("goal"):
        _say_goal(goal, say)
        if goal["rollouts_decided"] and goal["decided"]:
            over = number_of(counts["rollouts"], "rollout")
            say(f"Mean over {over}, of which decided tasks have fewer: {reward:.3f}")
            return
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
    if found := metrics.get("benchmark"):
        say(describe_score(found), event="benchmark", **found)
    _say_whole_file(run, metrics, say)
    _say_arms(metrics.get("arms", {}), say)
    for name, share in metrics["rates"].items():
        if share >= WORTH_SAYING or name == "max_steps":
            say(f"{RATES[name]}: {share:.1%} of the rollouts")
    if counts["rollouts"] < counts["planned"]:
        whole = f"{counts['planned']:,} rollouts of {number_of(counts['tasks'], 'task')}"
        say(f"This is a part of the plan, which is {whole}: the rest may change every figure")


def _say_goal(goal: Mapping[str, Any], say: Say) -> None:
    """The mean reward over the tasks as they are, and what its goal has saved."""
    half = goal["half_width"]
    within = "of unknown precision" if half is None else f"± {half:.3f} (95 %)"
    parts = [f"Reward {goal['mean']:.3f} {within} over these {number_of(goal['tasks'], 'task')}"]
    if goal["ci"] is not None:
        parts.append(f"goal ± {goal['ci']:g} {'reached' if goal['reached'] else 'not reached'}")
    parts.append(f"{number_of(goal['rollouts_decided'], 'rollout')} not needed")
    say(" · ".join(parts), event="goal", **goal)


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


def _say_what_is_missing(run: Run, counts: PlanCounts, say: Say) -> None:
    """Planned rollouts without a result, by kind and by reason."""
    waits = "waits for its verdict" if counts.pending == 1 else "wait for their verdict"
    kinds = {"failed": counts.failed, waits: counts.pending, "left out": counts.left_out}
    what = [f"{number:,} {text}" for text, number in kinds.items() if number]
    what += [number_of(counts.malformed, "malformed line")] if counts.malformed else []
    if what:
        is_named = counts.failed or counts.pending or counts.malformed
        paths = run.collection.paths if is_named else None
        named = f"; each is named in {paths.failures}" if paths else ""
        say(f"Without a {run.source.lacks}: {', '.join(what)}{named}")
    say_reasons(run, say)


def _say_groups(run: Run, say: Say) -> None:
    """How many groups have a score, and why others have none."""
    if (scoring := run.scoring).is_on:
        text = "\n".join(scoring.tally.lines(scoring.planned))
        say(text, event="groups", **scoring.figures())


def _say_bottleneck(run: Run, snapshot: Snapshot, progress: Progress) -> None:
    """What held the run up, and the run's line in the throughput log."""
    if bottleneck := run.meter.verdict():
        progress.say(bottleneck.sentence, event="bottleneck", **bottleneck.figures())
    try:
        log_run(run.command, snapshot, bottleneck.short() if bottleneck else "")
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


def _say_what_to_do(run: Run, counts: PlanCounts, say: Say) -> None:
    """The commands that continue, or verify what was left for later."""
    lines, settled = run.collection.lines, counts.left_out + counts.refused
    if counts.refused:
        say(
            f"{number_of(counts.refused, 'rollout')} failed permanently and will not be retried;"
            " the 'repro' command in the failures file retries one"
        )
    if counts.missing > settled:
        verb = "tries again" if run.ending is Ending.DONE else "continues"
        left = number_of(counts.missing - settled, "rollout")
        say(f"Still to come: {left}. This {verb}:\n  {lines.again}")
    plans, parts = run.runner.agents, run.metrics.agents
    verified = {
        name: part for name, part in parts.items() if name in plans and plans[name].verifies
    }
    unscored = sum(part.unscored for part in verified.values())
    if unscored and run.command.only is None:
        what = number_of(unscored, "rollout")
        say(f"Collected without verification: {what}. This verifies:\n  {lines.reverify}")
