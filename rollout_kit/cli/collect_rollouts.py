"""ng_collect_rollouts: run tasks through an agent, verify each, append rollouts to a file."""

import sys

from . import entry, streams


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    sys.exit(entry.run("ng_collect_rollouts", argv, lambda config: _collect(config, argv)))


def _collect(config, argv: list[str]) -> int:
    from ..commands.collect import collect
    from ..commands.progress import Progress
    from ..transport import loop  # not needed for --help

    progress = Progress(as_json=config.command.json_output)
    status = loop.run(collect(config, argv, progress))
    streams.flush()
    return status
