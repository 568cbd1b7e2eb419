"""ng_view: look at rollouts in a browser."""

import asyncio
from contextlib import suppress

from ..analysis.view.serve import serve
from ..analysis.view.static import write_report
from ..config.keys import ViewConfig
from . import entry


def main(words: list[str]) -> int:
    command = entry.parse_files(words, ViewConfig)
    if command.static_fpath is not None:
        print(write_report(command))
        return 0

    with suppress(KeyboardInterrupt):
        asyncio.run(serve(command, print))
    return 0
