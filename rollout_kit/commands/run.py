"""A run as a command drives it: the plan, progress, Ctrl-C, and the report at the end."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from functools import partial
from typing import Any

import orjson

from ..collecting.collection import Collection
from ..collecting.live.control import Control
from ..collecting.live.door import open_door
from ..collecting.live.watcher import Reader, Watcher
from ..collecting.results import Status, write_metrics
from ..collecting.run import Run
from ..collecting.schedule import Later
from ..collecting.trackers.tracking import track
from ..config.replaced import explain
from ..errors import number_of
from ..serving.transport.loop import interrupts
from ..store.lines import row_of, without_verdict
from ..types import Attempt, Say
from .progress import Progress
from .report import report

MAX_AGENTS = 5
"""Agents that are named before a run."""

Ends = Sequence["asyncio.Task[str]"]


async def run_to_end(collection: Collection[Any, Any], ends: Ends, progress: Progress) -> Status:
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


async def prepare(collection: Collection[Any, Any], progress: Progress) -> None:
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
        number, is_part = source.find_missing_of(earlier)
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


def _say_who_runs(collection: Collection[Any, Any], progress: Progress) -> None:
    """Each agent with its model and endpoint, and which of the configured values were replaced."""
    known = collection.runner.agents if collection.source.generates else {}
    plans = {name: plan for name, plan in known.items() if plan.server not in known}
    for agent, plan in list(plans.items())[:MAX_AGENTS]:
        model = f": model {plan.model}" if plan.model else ""
        hosts = f" at {', '.join(plan.hosts)}" if plan.hosts else ""
        why = list(explain(collection.replaced, (agent, str(plan.model_server))))
        text = f"Agent {agent}{model}{hosts}" + (f" ({'; '.join(why)})" if why else "")
        about = {"agent": agent, "model": plan.model, "hosts": list(plan.hosts)}
        progress.say(text, event="agent", **about)
    if (more := len(plans) - MAX_AGENTS) > 0:
        progress.say(f"… and {number_of(more, 'other agent')}")


def _say_plan(collection: Collection[Any, Any], progress: Progress) -> None:
    """The plan, and what the output holds of other inputs."""
    for text, fields in collection.source.plan_notes():
        progress.say(text, **fields)
    others = collection.source.others
    if not others.rollouts:
        return
    what = f"{number_of(others.rollouts, 'rollout')} of {number_of(others.tasks, 'task')}"
    progress.say(
        f"{collection.command.output_jsonl_fpath} also holds {what} that are not in"
        f" {collection.source.name}: the figures of this run leave them out, and one line has those"
        " of the whole file",
        event="others",
        **others._asdict(),
    )


def make_run(
    collection: Collection[Any, Any],
    ends: Ends,
    progress: Progress,
    attempts: Iterator[Attempt | Later] | None = None,
) -> Run:
    """The run of a prepared collection; of all that is owed unless `attempts` are given."""
    return Run(
        collection,
        say=progress.say,
        ends=ends,
        attempts=attempts,
        write_metrics=partial(write_metrics, lists_groups=False),
        on_counted=partial(_show_total, collection, progress),
    )


async def drive(
    run: Run, progress: Progress, total: int | None = None, readers: Sequence[Reader] = ()
) -> None:
    """Run to the end while people see the progress, of `total` rollouts or of the whole plan."""
    counts = run.source.counts
    if total is not None:
        progress.start(total, 0, run)
    elif run.source.is_open_ended:
        progress.start(None, counts.done, run)
    else:
        progress.start(counts.planned - counts.left_out, counts.done, run)
    control = Control(run, progress.say)
    watcher = Watcher(run, progress.figures, control)
    watcher.readers += readers
    watcher.begin()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(open_door(control, watcher, progress.say))
        if (command := run.command).dashboard:
            from ..collecting.live.site import (  # a run without a page needs no server
                OwnPanel,
                open_page,
            )

            panel, port = OwnPanel(control, watcher), command.dashboard_port
            page = open_page(panel, port, "dashboard_port", progress.say)
            await stack.enter_async_context(page)
        with interrupts(run.interrupt):
            try:
                async for outcomes in run.batches():
                    progress.update(outcomes, run.schedule.in_flight)
            finally:
                progress.close()
                watcher.end()


def _show_total(collection: Collection[Any, Any], progress: Progress) -> None:
    """Show the plan of a long input, once it is counted."""
    if collection.source.is_open_ended:  # it has no end
        return
    progress.set_total(collection.source.counts.planned)
    _say_plan(collection, progress)


def show_first_request(collection: Collection[Any, Any], progress: Progress) -> Status:
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
