"""ng_reverify: verify stored responses again, or for the first time, without a policy model."""

import sys

from . import entry, streams


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    sys.exit(entry.run("ng_reverify", argv, lambda config: _reverify(config, argv)))


def _reverify(config, argv: list[str]) -> int:
    from ..commands.progress import Progress
    from ..commands.reverify import reverify
    from ..transport import loop  # not needed for --help

    title = "Verifying rollouts"
    progress = Progress(as_json=config.command.json_output, title=title, generates=False)
    status = loop.run(reverify(config, argv, progress))
    streams.flush()
    return status
