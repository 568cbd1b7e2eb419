"""ng_view: look at rollouts in a browser."""

import asyncio
from contextlib import suppress

from ..config.keys.analysis import ViewConfig
from . import entry


@entry.command("ng_view")
def main(words: list[str]) -> int:
    command = entry.parse_files(words, ViewConfig)
    if command.static_fpath is not None:
        from ..analysis.view.static import write_report

        print(write_report(command))
        return 0
    from ..analysis.view.serve import serve  # not needed for --help

    with suppress(KeyboardInterrupt):
        asyncio.run(serve(command, print))
    return 0
