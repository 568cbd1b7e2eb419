"""ng_estimate: collect a few rollouts, drawn at random, and tell what all of them will take."""

from ..config.keys.commands import EstimateConfig
from . import entry, streams


@entry.command("ng_estimate")
def main(words: list[str]) -> int:
    config = entry.load(words, EstimateConfig)
    from ..commands.collect import estimate
    from ..commands.progress import Progress
    from ..serving.transport import loop  # not needed for --help

    progress = Progress(as_json=config.command.json_output, title="Collecting a canary")
    status = loop.run(estimate(config, words, progress))
    streams.flush()
    return status
