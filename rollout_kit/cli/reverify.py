"""ng_reverify: verify stored responses again, or for the first time, without a policy model."""

from ..config.keys.commands import ReverifyConfig
from . import entry, streams


@entry.command("ng_reverify")
def main(words: list[str]) -> int:
    config = entry.load(words, ReverifyConfig)
    from ..commands.progress import Progress
    from ..commands.reverify import reverify
    from ..serving.transport import loop  # not needed for --help

    title = "Verifying rollouts"
    progress = Progress(as_json=config.command.json_output, title=title, generates=False)
    status = loop.run(reverify(config, words, progress))
    streams.flush()
    return status
