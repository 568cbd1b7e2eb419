"""One small module per command: it parses arguments, calls the package that does the work, and
returns the exit code.
"""

import atexit
import gc
import sys
from types import TracebackType

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
