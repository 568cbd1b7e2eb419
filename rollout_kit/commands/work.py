"""What a command that collects works on: its input, and a prepared collection over its output."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ..collecting.command_line import command_lines
from ..collecting.data.rows import open_input
from ..collecting.pacing.bill import Bill
from ..collecting.parts import Parts
from ..collecting.plan import Collection, open_collection, output_paths
from ..collecting.sources import TaskSource, check_repeats
from ..collecting.trackers.installed import check_trackers
from ..config.inputs import choose_agent, task_path
from ..config.keys import CollectConfig
from ..config.load import Config
from ..errors import ConfigError
from ..launch.reach import Servers
from ..store.files import check_apart
from ..types import Say
from .drive import prepare
from .progress import Progress
from .throughput_log import check_log


def check(command: CollectConfig, say: Say) -> None:
    """ConfigError for what the types of the keys cannot express, and for a benchmark whose rows
    cannot be had."""
    if command.output_jsonl_fpath is None:
        raise ConfigError("output_jsonl_fpath is missing: add +output_jsonl_fpath=rollouts.jsonl")
    check_repeats(command)
    if command.buffer is not None:
        from ..rl.buffer.opening import read_url  # not needed without a buffer

        read_url(command.buffer)
    check_log(command)
    check_trackers(command)
    if command.roots and not command.harbor_tasks:
        raise ConfigError(
            "roots: it says where the images of tasks in Harbor's format are: give it with"
            " +harbor_tasks=<folder>, or leave it out"
        )
    is_own = bool(command.benchmark and command.input_jsonl_fpath)
    if is_own or command.harbor_tasks:  # a definition of ours
        from ..collecting.data.benchmarks.prepared import prepare_rows  # for benchmarks only
        from ..config.benchmarks.harbor import find_own

        if (own := find_own(command)) is not None:
            prepare_rows(own, say)


@dataclass(frozen=True, slots=True)
class Work:
    """What one command was given. It may take two runs: a canary, and then the rest."""

    servers: Servers
    config: Config[CollectConfig]
    argv: Sequence[str]
    name: str
    path: Path
    bill: Bill = field(default_factory=Bill)
    """Cost of both runs."""
    parts: Parts = field(default_factory=Parts)

    def go_on(self) -> "Work":
        """The same after its canary, whose rollouts are not moved aside."""
        command = self.config.command
        if command.resume != "fresh":
            return self
        own = command.model_copy(update={"resume": "auto"})
        return replace(self, config=replace(self.config, command=own))

    @asynccontextmanager
    async def collection(
        self, progress: Progress
    ) -> AsyncIterator[Collection[CollectConfig, TaskSource]]:
        """A prepared collection over what is on disk now; its output is closed in the end."""
        config, command = self.config, self.config.command
        make_source: Callable[..., TaskSource] = TaskSource
        if command.mix is not None:
            from ..rl.mixing.mix_file import read_mix  # for a training only
            from ..rl.mixing.mixed_source import MixedSource

            make_source = partial(MixedSource, mix=read_mix(command.mix))
        elif command.epochs != 1 or command.buffer is not None or command.longest_first:
            from ..rl.producing.epochs import EpochSource  # not needed for a single pass

            make_source = partial(EpochSource, epochs=command.epochs)
        with await open_collection(
            config,
            self.servers,
            self.path,
            self.name,
            bill=self.bill,
            lines=command_lines("ng_collect_rollouts", self.argv, config),
            say=progress.say,
            make_source=make_source,
            parts=self.parts,
        ) as collection:
            await prepare(collection, progress)
            yield collection


@asynccontextmanager
async def open_work(
    servers: Servers, config: Config[CollectConfig], argv: Sequence[str]
) -> AsyncIterator[Work]:
    """The command, with its input as a file while the context lasts."""
    command = config.command
    agent = choose_agent(servers.agents, servers.values, command)
    if command.mix is not None:
        from ..rl.mixing.mix_file import write_mix  # for a training only

        name = write_mix(command, output_paths(command))
    else:
        name = task_path(command, servers.values, agent)
    check_apart(name, output_paths(command))
    with open_input(name) as path:
        yield Work(servers, config, argv, name, path)
