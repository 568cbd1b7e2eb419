"""ng_estimate: collect a few rollouts, drawn at random, and tell what all of them will take."""

import sys

from . import entry, streams


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    sys.exit(entry.run("ng_estimate", argv, lambda config: _estimate(config, argv)))


def _estimate(config, argv: list[str]) -> int:
    from ..commands.collect import estimate
    from ..commands.progress import Progress
    from ..transport import loop  # not needed for --help

    progress = Progress(as_json=config.command.json_output, title="Collecting a canary")
    status = loop.run(estimate(config, argv, progress))
    streams.flush()
    return status
