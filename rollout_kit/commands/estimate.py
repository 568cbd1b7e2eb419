"""ng_estimate: collect a few rollouts, drawn at random, and tell what all of them will take."""

from collections.abc import Sequence

from ..collecting.cluster.opening import open_servers
from ..config.keys import CollectConfig, EstimateConfig
from ..config.load import Config
from ..launch.reach import Servers
from ..serving.transport import loop
from . import canary, entry
from .drive import show_first_request
from .progress import Progress
from .work import check, open_work


def main(words: list[str]) -> int:
    config = entry.load(words, EstimateConfig)
    progress = Progress(as_json=config.command.json_output, title="Collecting a canary")
    status = loop.run(estimate(config, words, progress))
    entry.flush()
    return status


async def estimate(config: Config[CollectConfig], argv: Sequence[str], progress: Progress) -> int:
    """Show what a collection will take, from a few of its rollouts; returns the exit status."""
    check(config.command, progress.say)
    async with open_servers(config, progress.say) as servers:
        return await estimate_through(servers, config, argv, progress)


async def estimate_through(
    servers: Servers, config: Config[CollectConfig], argv: Sequence[str], progress: Progress
) -> int:
    """The same through servers that run already."""
    async with (
        open_work(servers, config, argv) as work,
        work.collection(progress) as collection,
    ):
        if config.command.dry_run:
            return show_first_request(collection, progress)
        return await canary.estimate(collection, servers.ends, progress)
