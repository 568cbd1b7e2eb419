"""ng_collect_rollouts: reach the servers, plan, ask first if wanted, run."""

from collections.abc import Sequence

from ..collecting.cluster.opening import open_servers
from ..config.benchmarks.asked import split_suite
from ..config.keys import CollectConfig
from ..config.load import Config
from ..launch.reach import Servers
from ..serving.transport import loop
from . import entry
from .canary import begin_cheaply, confirm, try_first
from .drive import run_to_end, show_first_request
from .progress import Progress
from .work import check, open_work


async def collect(config: Config[CollectConfig], argv: Sequence[str], progress: Progress) -> int:
    """Collect what is owed into the output; returns the exit status."""
    check(config.command, progress.say)
    async with open_servers(config, progress.say) as servers:
        return await collect_through(servers, config, argv, progress)


async def collect_through(
    servers: Servers, config: Config[CollectConfig], argv: Sequence[str], progress: Progress
) -> int:
    """The same through servers that run already."""
    command = config.command
    async with open_work(servers, config, argv) as work:
        async with work.collection(progress) as collection:
            ways = collection.runner.ways
            if ways.is_on and command.only is None:
                await begin_cheaply(collection, progress)
            if command.dry_run:
                return show_first_request(collection, progress)
            if command.only is not None or not (command.confirm or ways.is_on):
                return await run_to_end(collection, servers.ends, progress)
            status = await (confirm if command.confirm else try_first)(
                collection, servers.ends, progress
            )
            if status is not None:
                return status
        async with work.go_on().collection(progress) as collection:
            return await run_to_end(collection, servers.ends, progress)


def main(words: list[str]) -> int:
    if (words_each := split_suite(words)) is not None:
        from .suite import collect_all  # not needed for a single benchmark

        return collect_all(words_each, words)
    config = entry.load(words, CollectConfig)
    progress = Progress(as_json=config.command.json_output)
    status = loop.run(collect(config, words, progress))
    entry.flush()
    return status
