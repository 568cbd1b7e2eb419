"""ng_collect_rollouts: run tasks through an agent, verify each, append rollouts to a file."""

from ..config.keys.commands import CollectConfig
from . import entry, streams


@entry.command("ng_collect_rollouts")
def main(words: list[str]) -> int:
    config = entry.load(words, CollectConfig)
    from ..commands.collect import collect
    from ..commands.progress import Progress
    from ..serving.transport import loop  # not needed for --help

    progress = Progress(as_json=config.command.json_output)
    status = loop.run(collect(config, words, progress))
    streams.flush()
    return status
