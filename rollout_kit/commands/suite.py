"""A suite: several benchmarks in one schedule, each with an output of its own.

They share the servers, the limit on what is in flight, the budget and the progress bar. Each output
is the one that its benchmark has alone, so that either way continues the other.
"""

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..analysis.benchmark_table import describe_sampling, find_score
from ..collecting.cluster.opening import open_servers
from ..collecting.command_line import repeat_command
from ..collecting.ending import Ending
from ..collecting.live.combine import combine
from ..collecting.live.snapshot import Snapshot
from ..collecting.pacing.budget import Budget
from ..collecting.parallel import SharedLimit
from ..collecting.parts import Parts
from ..collecting.plan import Collection
from ..collecting.results import Results, Status, finish
from ..collecting.run import Run
from ..collecting.sources import TaskSource
from ..collecting.trackers.tracking import track
from ..config.instances import AGENTS
from ..config.keys import CollectConfig
from ..config.load import Config, load
from ..errors import ConfigError, RolloutKitError, number_of
from ..launch.reach import Servers
from ..reading import read_object
from ..serving.transport import loop
from ..serving.transport.loop import interrupts
from ..store.files import write_json
from ..store.lines import now_text
from ..types import JsonObject
from . import entry
from .drive import follow, make_run, say_reasons
from .progress import Progress
from .work import check, open_work

ALONE = {
    "only": "a rollout is of one benchmark",
    "confirm": "use ng_estimate for each benchmark",
    "cheapest": "it tries a few rollouts of one output first",
    "dashboard": "ng_ctl shows each benchmark",
    "buffer": "its groups are of one output",
}
"""Keys that a suite does not take, and why."""

PLANNED = frozenset({"agent", "plan"})
"""Events that a suite shows in one table."""


@dataclass(slots=True)
class Whole:
    """The progress of all members as one."""

    shown: Progress
    latest: dict[str, Snapshot] = field(default_factory=dict)
    expected: int = 0
    is_planning: bool = True

    def take(self, name: str, snapshot: Snapshot | None) -> None:
        """Follow a member."""
        if snapshot is None or self.latest.get(name) is snapshot:
            return
        self.latest[name] = snapshot
        if len(self.latest) == self.expected:
            self.shown.read(combine(list(self.latest.values())))


@dataclass(slots=True)
class MemberProgress(Progress):
    """What one member says, under its name."""

    name: str = ""
    whole: Whole = field(default_factory=lambda: Whole(Progress()))

    def say(self, text: str, **fields: Any) -> None:
        if self.as_json:
            self.whole.shown.say(text, **(fields or {"event": "note", "text": text}), of=self.name)
        elif not (self.whole.is_planning and fields.get("event") in PLANNED):
            self.whole.shown.say(f"{self.name}: {text}", **fields)

    def read(self, snapshot: Snapshot | None) -> None:
        self.whole.take(self.name, snapshot)


@dataclass(slots=True)
class SuiteMember:
    """One benchmark of a suite."""

    name: str
    config: Config[CollectConfig]
    words: Sequence[str]
    progress: MemberProgress
    collection: Collection[CollectConfig, TaskSource] | None = None
    run: Run | None = None
    results: Results | None = None
    error: RolloutKitError | None = None

    @property
    def output(self) -> str:
        return str(self.config.command.output_jsonl_fpath)


def collect_all(words_each: Sequence[Sequence[str]], words: Sequence[str]) -> int:
    """Run a suite whose benchmarks have these words each; returns the exit status."""
    whole = Whole(Progress())
    members = read_members(words_each, whole)
    status = loop.run(collect_suite(members, whole, words))
    entry.flush()
    return status


def read_members(words_each: Sequence[Sequence[str]], as_whole: Whole) -> list[SuiteMember]:
    """The configuration of each benchmark; ConfigError for what a suite cannot do."""
    members: list[SuiteMember] = []
    said: set[str] = set()
    for words in words_each:
        first = not members
        config = entry.load(words, CollectConfig) if first else load(words, CollectConfig)
        for note in (*config.warnings, *config.notes):
            if not first and note not in said:
                as_whole.shown.say(note)
            said.add(note)
        command = config.command
        for key, why in ALONE.items():
            if getattr(command, key):
                raise ConfigError(f"{key}: a suite of benchmarks does not take it: {why}")
        name = Path(str(command.output_jsonl_fpath)).stem
        as_json = command.json_output
        progress = MemberProgress(as_json, name=name, whole=as_whole)
        members.append(SuiteMember(name, config, words, progress))
    as_whole.shown.as_json = members[0].progress.as_json
    outputs = [member.output for member in members]
    if twice := next((each for each in outputs if outputs.count(each) > 1), None):
        raise ConfigError(f"benchmark: two of the suite would write {twice}: name each once")
    return members


def join(members: Sequence[SuiteMember]) -> Config[CollectConfig]:
    """One configuration with the servers of all; ConfigError if one name means two servers."""
    first = members[0].config
    instances, secrets = dict(first.instances), first.secrets
    for member in members[1:]:
        for name, one in member.config.instances.items():
            if (known := instances.setdefault(name, one)).settings != one.settings:
                raise ConfigError(
                    f"{name}: {members[0].name} and {member.name} configure this"
                    f" {known.type} differently: run them alone"
                )
        secrets |= member.config.secrets
    return replace(first, instances=instances, secrets=secrets)


def own_part(servers: Servers, config: Config[CollectConfig]) -> Servers:
    """The servers as one member sees them."""
    return replace(
        servers,
        agents=[each.name for each in config.of_type(AGENTS)],
        default_params=config.default_params,
        values=config.values,
    )


async def collect_suite(members: Sequence[SuiteMember], whole: Whole, words: Sequence[str]) -> int:
    """Collect what is owed into all outputs; returns the exit status."""
    for member in members:
        check(member.config.command, member.progress.say)
    command = members[0].config.command
    budget = Budget(command.max_cost_usd, command.max_total_tokens)
    shared = SharedLimit(command.num_samples_in_parallel, budget)
    parts = Parts(budget=budget, shared=shared)
    again = repeat_command("ng_collect_rollouts", words, members[0].config.secrets)
    async with open_servers(join(members), whole.shown.say) as servers, AsyncExitStack() as stack:
        for member in members:
            own = own_part(servers, member.config)
            work = await stack.enter_async_context(open_work(own, member.config, member.words))
            made = replace(work, parts=parts).collection(member.progress)
            member.collection = await stack.enter_async_context(made)
        _say_plan(members, whole.shown)
        whole.is_planning = False
        if command.dry_run:
            whole.shown.say("Nothing was sent.")
            return Status.FINISHED
        _write_index(members, again)
        for member in members:
            assert member.collection
            member.run = make_run(member.collection, servers.ends, member.progress)
        await _run_all(members, whole, shared)
        status = _report(members, whole.shown, again)
        _write_index(members, again)
    return status


async def _run_all(members: Sequence[SuiteMember], whole: Whole, shared: SharedLimit) -> None:
    """Run all members at the same time. An error of one ends that one only."""
    whole.expected = len(members)

    async def run_one(member: SuiteMember, run: Run) -> None:
        say = member.progress.say
        run.each_second.append(shared.refresh)
        run.observe(Nudge(shared, run))
        try:
            await run.warm_up()
            async with track(run, say) as tracking:
                await follow(run, member.progress, readers=[tracking.read])
        except RolloutKitError as error:
            member.error = error
            say(f"error: {error}", event="stopped", error=str(error))
        finally:
            shared.refresh()

    runs = [(member, member.run) for member in members if member.run]

    def interrupt() -> None:
        for _, run in runs:
            run.end.interrupt()

    with interrupts(interrupt):
        async with asyncio.TaskGroup() as group:
            for member, run in runs:
                group.create_task(run_one(member, run))


@dataclass(slots=True)
class Nudge:
    """Has the other runs look for places when one of a run is free."""

    shared: SharedLimit
    run: Run

    def take(self, outcome: object) -> None:
        self.shared.refresh(but=self.run)


def _say_plan(members: Sequence[SuiteMember], progress: Progress) -> None:
    rows: list[tuple[str, ...]] = [
        ("benchmark", "rows", "repeats", "on disk", "to collect", "sampling", "output")
    ]
    for member in members:
        assert member.collection
        source, command = member.collection.source, member.config.command
        counts = source.counts
        sampling = describe_sampling(
            {**member.config.default_params, **command.responses_create_params}
        )
        numbers = (counts.tasks, source.repeats, counts.done, counts.to_collect + counts.to_verify)
        rows.append((member.name, *(f"{each:,}" for each in numbers), sampling, member.output))
    if not progress.as_json:
        for line in entry.align(rows):
            progress.say(line)


def _report(members: Sequence[SuiteMember], progress: Progress, again: str) -> Status:
    """Write the results of all, and say them in one table; returns how the suite ended."""
    rows: list[tuple[str, ...]] = [
        ("benchmark", "score", "rows × repeats", "cut off", "no answer", "missing", "output")
    ]
    for member in members:
        if member.run is None or member.error:
            rows.append((member.name, "stopped", "", "", "", "", member.output))
            continue
        member.results = finish(member.run)
        metrics, scored = member.results.metrics, find_score(member.results.metrics)
        rows.append((member.name, *scored.cells, member.output))
        if progress.as_json and (found := metrics.get("benchmark")):
            progress.say("", event="benchmark", of=member.name, **found)
        say_reasons(member.run, member.progress.say)
    if not progress.as_json:
        for line in entry.align(rows):
            progress.say(line)
    missing = sum(each.results.snapshot.counts.missing for each in members if each.results)
    if missing or any(each.error for each in members):
        progress.say(
            f"Still to come: {number_of(missing, 'rollout')}. This continues:\n  {again}",
            event="next",
            command=again,
        )
    outputs = [member.output for member in members]
    text = f"The table for a paper:  ng_report {shlex.join(outputs)} +paper=table"
    progress.say(text, event="files", rollouts=outputs)
    return _status_of(members)


def _status_of(members: Sequence[SuiteMember]) -> Status:
    """The worst of all."""
    if any(each.run and each.run.ending is Ending.INTERRUPTED for each in members):
        return Status.INTERRUPTED
    found = [each.results.status if each.results else Status.NO_RESULT for each in members]
    return max(found)


def _write_index(members: Sequence[SuiteMember], again: str) -> None:
    """Name the outputs of the suite in `run.json` of their folder."""
    folder = Path(members[0].output).expanduser().parent
    about: Mapping[str, JsonObject] = {
        member.name: {
            "output": member.output,
            "exit_status": member.results.status if member.results else None,
        }
        for member in members
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.json"
    known = read_object(path).get("benchmarks", {})
    write_json(path, {"at": now_text(), "command": again, "benchmarks": {**known, **about}})
