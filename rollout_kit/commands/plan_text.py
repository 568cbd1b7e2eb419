"""The plan of a run in sentences, for people; and what they should know about its source."""

from collections.abc import Iterator
from contextlib import suppress

from ..collecting.counts import RunSource
from ..collecting.reverification import StoredSource
from ..collecting.sources import COUNT_FIRST, TaskSource
from ..errors import ConfigError, number_of
from ..store.tasks import agent_name_of
from ..types import JsonObject, Task

Note = tuple[str, JsonObject]
"""A line, and its fields for programs."""

OF_TASKS = (
    *("tasks", "repeated", "planned", "done", "to_verify", "to_collect", "decided", "refused"),
)
OF_STORED = ("planned", "done", "to_verify", "to_copy", "left_out")
"""Numbers of a plan that programs read, as fields of its event."""


def plan_notes(source: RunSource) -> Iterator[Note]:
    """The plan in one line, and what people should know about it."""
    return _of_stored(source) if isinstance(source, StoredSource) else _of_tasks(source)


def closing_lines(source: RunSource) -> list[str]:
    """What people should know at the end."""
    if isinstance(source, StoredSource):
        return source.comparison.lines()
    if not (isinstance(source, TaskSource) and (number := source.num_replayed_otherwise)):
        return []
    what = number_of(number, "replayed rollout")
    return [f"Replays: the tools of {what} gave other answers than when they were collected"]


def _of_tasks(source: RunSource) -> Iterator[Note]:
    assert isinstance(source, TaskSource)
    # an endless plan is counted too: its epochs to the one under way
    if source.is_open_ended and source.wanted.num_epochs is not None:
        yield f"{_describe_tasks(source)} among the first {COUNT_FIRST:,} rows; counting on", {}
        return
    figures = source.counts.figures(*OF_TASKS, "malformed")
    yield _describe_tasks(source), {"event": "plan", **figures}
    if (first := source.counts.first_renamed) is None or source.reader.routes:
        return
    number, name = source.counts.renamed, "name" if source.counts.renamed > 1 else "names"
    yield (
        f"warning: the agent_ref of {number_of(number, 'row')} {name}"
        f" another agent ({source.name}:{first.line}: '{agent_name_of(first.row)}'), and all run"
        f" with '{first.agent}', as "
        + ("agent_name says" if source.reader.agent_name else "there is no other"),
        {"event": "renamed", "rows": number, "line": first.line, "agent": first.agent},
    )


def _describe_tasks(source: TaskSource) -> str:
    counts, wanted = source.counts, source.wanted
    repeats, num_arms = wanted.common_repeats(source.agents) or 0, len(source.arm_ids) or 1
    is_even = bool(counts.tasks) and counts.planned == counts.tasks * num_arms * repeats
    times = f" × {number_of(num_arms, 'arm')}" if source.arm_ids else ""
    if is_even and not (source.arm_ids and repeats == 1):
        times += f" × {number_of(repeats, 'repeat')}"
    times += " = " if is_even else ": "
    asked = f"{number_of(counts.tasks, 'task')}{times}{number_of(counts.planned, 'rollout')}"
    parts = [f"Plan: {asked}", f"{counts.done:,} done"]
    parts += [f"{counts.to_verify:,} to verify only", f"{counts.to_collect:,} to collect"]
    parts += [f"{counts.decided:,} decided"] * bool(counts.decided)
    parts += [f"{counts.refused:,} failed permanently"] * bool(counts.refused)
    parts += [number_of(counts.repeated, "repeated row")] * bool(counts.repeated)
    parts += [number_of(counts.malformed, "malformed line")] * bool(counts.malformed)
    parts += [f"{source.shard} of the input"] * bool(source.shard)
    if wanted.num_epochs != 1:
        of_all = f" of {wanted.num_epochs}" if wanted.num_epochs else ", without end"
        parts.append(f"epoch {wanted.epoch + 1}{of_all}")
    return " · ".join(parts)


def _of_stored(source: StoredSource) -> Iterator[Note]:
    survey = source.survey
    figures = source.counts.figures(
        *OF_STORED, "malformed", "without_response", "older", "current", "none"
    )
    yield _describe_stored(source), {"event": "plan", **figures}
    if others := len(survey.rows) - source.num_in_scope:
        what = number_of(others, "rollout")
        yield f"{what} under other settings (a 'scope' of their own): not in the metrics", {}
    for agent, reason in source.left_out.items():
        number = sum(key.agent == agent for key in survey.rows)
        text = f"left out: {number_of(number, 'rollout')} of {reason}"
        yield text, {"event": "left_out", "agent": agent, "rollouts": number, "reason": reason}
    for bad in survey.malformed:
        yield f"{source.name}:{bad.line}: {bad.message}", {}
    if survey.num_malformed > len(survey.malformed):
        yield "… the failures file names further malformed lines", {}


def _describe_stored(source: StoredSource) -> str:
    counts = source.counts
    kinds = {
        "with an older verifier's verdict": counts.older,
        "up to date": counts.current,
        "without a verdict": counts.none,
    }
    held = ", ".join(f"{number:,} {what}" for what, number in kinds.items() if number)
    planned = number_of(counts.planned, "stored rollout")
    parts = [f"Plan: {planned}{f' ({held})' if held else ''}"]
    parts += [f"{counts.done:,} done", f"{counts.to_verify:,} to verify"]
    parts += [f"{counts.to_copy:,} to copy"] if counts.to_copy else []
    parts += [f"{counts.left_out:,} left out"] if counts.left_out else []
    parts += [number_of(counts.malformed, "malformed line")] if counts.malformed else []
    if counts.without_response:
        parts.append(f"{number_of(counts.without_response, 'failure')} without a response")
    return " · ".join(parts)


def find_missing_of(source: RunSource, entry: JsonObject) -> tuple[int, bool]:
    """The number of tasks of an earlier input that neither the output nor this input has, and
    whether this input is a part of it."""
    assert isinstance(source, TaskSource)
    reader, wanted, done = source.reader, source.wanted, source.done
    lacking: set[str] = set()
    with suppress(ConfigError):  # an input that was removed cannot be collected anyway
        lacking = {
            task.task_id
            for task in reader.of_input(entry["path"], entry.get("limit")).read()
            if isinstance(task, Task) and any(key not in done for key in wanted.keys(task))
        }
    mine, is_part = reader.read() if lacking else iter(()), False
    while lacking and (task := next(mine, None)) is not None:
        if isinstance(task, Task):
            lacking.discard(task.task_id)
            is_part = is_part or int(task.task_id, 16) in reader.positions
    return len(lacking), is_part
