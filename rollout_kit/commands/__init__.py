"""One module per command: its `main` takes the words of the command line, has the work done, and
returns the exit code.

`config.commands.COMMANDS` lists the commands. `entry` has what all of them share, `drive` and
`progress` what the commands share that collect rollouts.
"""

import atexit
import gc
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import NoReturn

# what a command imports stays until its end: looking for garbage in it takes a fifth of a short run
gc.set_threshold(500_000)
atexit.register(gc.freeze)


def _report_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


# Ctrl-C while a command is still imported ends it without a traceback
sys.excepthook = _report_uncaught


def main(name: str | None = None, words: Sequence[str] | None = None) -> NoReturn:
    """Run the command that the shell calls, or the one that is given, and exit with its code."""
    from .entry import main

    main(name, words)
