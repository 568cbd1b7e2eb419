"""ng_view: look at rollouts in a browser."""

import asyncio
import sys
from contextlib import suppress

from ..config.keys.analysis import ViewConfig
from . import entry

NAME = "ng_view"


def main(argv: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if argv is None else argv
    sys.exit(entry.guard(NAME, arguments, lambda: _view(arguments)))


def _view(arguments: list[str]) -> int:
    command = entry.parse_files(arguments, ViewConfig)
    if command.static_fpath is not None:
        from ..view.static import write_report

        print(write_report(command))
        return 0
    from ..view.serve import serve  # not needed for --help

    with suppress(KeyboardInterrupt):
        asyncio.run(serve(command, print))
    return 0
