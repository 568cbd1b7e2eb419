"""The wiring of a collection: reach the servers, prepare, ask first where that is wanted, run."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ..collector.collection import Collection
from ..collector.prepare import output_paths, prepared
from ..collector.reach import Reached, chosen_agent, input_path, reached
from ..config.keys.commands import CollectConfig
from ..config.load import Config
from ..errors import ConfigError
from ..pacing.bill import Bill
from ..store.files import check_apart
from ..store.tasks import input_file
from .canary import confirmed, estimated
from .progress import Progress
from .throughput_log import check_log


async def collect(config: Config, argv: Sequence[str], progress: Progress) -> int:
    """Collect what is owed into the output; returns the exit status."""
    async with reached(config, checked(config), progress.say) as servers:
        return await collect_through(servers, config, argv, progress)


async def collect_through(
    servers: Reached, config: Config, argv: Sequence[str], progress: Progress
) -> int:
    """The same through servers that are there already."""
    async with given(servers, config, argv) as work:
        command = work.command
        if command.confirm and not command.dry_run and command.only is None:
            async with work.collection(progress) as first:
                status = await confirmed(first)
            if status is not None:
                return status
            progress = progress.anew()
        async with work.collection(progress) as collection:
            return await (collection.shown() if command.dry_run else collection.collected())


async def estimate(config: Config, argv: Sequence[str], progress: Progress) -> int:
    """Tell what a collection will take, from a few of its rollouts; returns the exit status."""
    async with reached(config, checked(config), progress.say) as servers:
        return await estimate_through(servers, config, argv, progress)


async def estimate_through(
    servers: Reached, config: Config, argv: Sequence[str], progress: Progress
) -> int:
    """The same through servers that are there already."""
    async with given(servers, config, argv) as work, work.collection(progress) as collection:
        return await (collection.shown() if work.command.dry_run else estimated(collection))


def checked(config: Config) -> CollectConfig:
    """The command; ConfigError for what the keys' types cannot say."""
    command = config.command
    assert isinstance(command, CollectConfig)
    if command.output_jsonl_fpath is None:
        raise ConfigError("output_jsonl_fpath is missing: add +output_jsonl_fpath=rollouts.jsonl")
    repeats = command.num_repeats
    for number in repeats.values() if isinstance(repeats, dict) else [repeats]:
        if number < 1:
            raise ConfigError(f"num_repeats: must be at least 1, got {number}")
    check_log(command)
    return command


@dataclass(frozen=True, slots=True)
class Work:
    """What one command was given. It may take two runs: a canary, and then the rest."""

    servers: Reached
    config: Config
    argv: Sequence[str]
    source: str
    path: Path
    bill: Bill = field(default_factory=Bill)
    """Of both."""

    @property
    def command(self) -> CollectConfig:
        assert isinstance(self.config.command, CollectConfig)
        return self.config.command

    @asynccontextmanager
    async def collection(self, progress: Progress) -> AsyncIterator[Collection]:
        """A run over what is there now, and its output closed in the end."""
        run = await prepared(
            self.config, self.argv, self.servers, self.source, self.path, self.bill
        )
        collection = Collection.of(run, progress, self.servers.ends)
        try:
            yield collection
        finally:
            run.journal.close(clean=collection.finished)


@asynccontextmanager
async def given(servers: Reached, config: Config, argv: Sequence[str]) -> AsyncIterator[Work]:
    """The command's input, as a file while inside."""
    command = config.command
    assert isinstance(command, CollectConfig)
    source = input_path(command, servers.values, chosen_agent(servers, command))
    check_apart(source, output_paths(command))
    with input_file(source) as path:
        yield Work(servers, config, argv, source, path)
