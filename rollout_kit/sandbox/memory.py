"""Measure the memory of a process and its descendants together.

A control group would limit this sum, but needs privileges, and moving each run into one costs more
than the run. A measurement is enough, because runs cannot hold memory that no process maps: shared
anonymous memory is refused (`seccomp`), and files have a limit of their own.
"""

import os
import re
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")

PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)


def measure_mb(root: int) -> int:
    """Sum of the memory of `root` and its descendants; 0 if /proc is restricted. Memory that they
    share counts once, if this process may see it, else not at all."""
    total, waiting = 0, [root]
    while waiting:
        process = Path("/proc", str(waiting.pop()))
        try:
            total += _measure(process)
            for thread in (process / "task").iterdir():
                waiting += map(int, (thread / "children").read_text().split())
        except OSError:
            continue  # the process ended
    return total >> 20


def _measure(process: Path) -> int:
    try:
        if found := PSS.search((process / "smaps_rollup").read_text()):
            return int(found[1]) << 10
    except PermissionError:  # only root sees another user's
        pass
    _, resident, shared, *_ = (process / "statm").read_text().split()
    return (int(resident) - int(shared)) * PAGE
