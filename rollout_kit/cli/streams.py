"""The standard streams of a command: always open, and able to print every character."""

import os
import sys
from typing import TextIO


def prepare() -> None:
    """Open the streams that the caller closed, and let none of them fail at a character.

    Otherwise the first socket or output file of the command would become a standard stream.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # type: ignore[attr-defined]


def discard(stream: TextIO) -> None:
    """Let what is still to be written go nowhere; the interpreter writes it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def flush() -> None:
    """Write what is buffered. What a full disk does not take goes nowhere, so that the exit status
    remains that of the command."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            raise
        except OSError:
            discard(stream)
