"""The plan as people see it before the first request: wanted, done, owed, and still missing."""

from contextlib import suppress
from typing import Any

from ..collector.collection import Collection
from ..collector.plan import number_of
from ..collector.reverification import StoredSource
from ..collector.sources import COUNT_FIRST, TaskSource
from ..errors import ConfigError
from ..store.tasks import agent_named
from ..types import Say, Task


def announce(collection: Collection[Any, Any], say: Say) -> None:
    """Show what was prepared, and the plan as far as it has been counted."""
    for note in collection.notes:
        say(note)
    match collection.source:
        case StoredSource() as stored:
            say_plan(stored, say)
            _say_what_is_left_out(stored, say)
        case TaskSource(is_open_ended=True) as source:
            say(f"{source.plan_line()} among the first {COUNT_FIRST:,} rows; counting on")
        case TaskSource() as source:
            say_plan(source, say)
            say_renamed(source, say)
            _say_what_earlier_inputs_miss(collection, source, say)


def say_plan(source: TaskSource | StoredSource, say: Say) -> None:
    """The plan in one line."""
    say(source.plan_line(), event="plan", **source.plan_figures())


def say_renamed(source: TaskSource, say: Say) -> None:
    """Rows whose own agent_ref does not count, because one agent runs all rows."""
    number, first = source.counts.renamed, source.counts.first_renamed
    if first is None:
        return
    name = "name" if number > 1 else "names"
    say(
        f"warning: the agent_ref of {number_of(number, 'row')} {name} another agent"
        f" ({source.name}:{first.line}: '{agent_named(first.row)}'), and all run with"
        f" '{first.agent}', as "
        + ("agent_name says" if len(source.reader.agents) > 1 else "there is no other"),
        event="renamed",
        rows=number,
        line=first.line,
        agent=first.agent,
    )


def _say_what_earlier_inputs_miss(
    collection: Collection[Any, Any], source: TaskSource, say: Say
) -> None:
    """Tasks of earlier inputs of this output that neither it nor this run has."""
    done = collection.journal.contents.done
    earlier = collection.manifest.earlier_inputs(source.input_entry() or {})
    if not earlier:
        return
    mine = {task.task_id for task in source.reader.read() if isinstance(task, Task)}
    for entry in earlier:
        reader = source.reader.of_input(entry["path"], entry.get("limit"))
        with suppress(ConfigError):  # an input that was removed cannot be collected anyway
            missing = {
                task.task_id
                for task in reader.read()
                if isinstance(task, Task)
                and task.task_id not in mine
                and any(key not in done for key in source.wanted.keys(task))
            }
            if missing:
                say(
                    f"{len(missing):,} tasks of the earlier input {entry['path']} (limit"
                    f" {entry.get('limit') or 'none'}) are still missing; the same command with"
                    " that input collects them"
                )


def _say_what_is_left_out(source: StoredSource, say: Say) -> None:
    survey = source.survey
    if others := len(survey.rows) - source.num_in_scope:
        what = number_of(others, "rollout")
        say(f"{what} under other settings (a 'scope' of their own): the metrics are without")
    for agent, reason in source.left_out.items():
        number = sum(key.agent == agent for key in survey.rows)
        text = f"left out: {number_of(number, 'rollout')} of {reason}"
        say(text, event="left_out", agent=agent, rollouts=number, reason=reason)
    for bad in survey.malformed:
        say(f"{source.name}:{bad.line}: {bad.message}")
    if survey.num_malformed > len(survey.malformed):
        say("… the failures file names further malformed lines")
