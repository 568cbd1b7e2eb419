"""Ends the servers of a parent that was killed: `python -m rollout_kit.running.reaper`.

Lines on standard input name server processes: `+pid` when one starts, `-pid` when it is gone. The
end of the input is the end of the parent: the servers have GRACE_S to end by themselves, and
whoever is left of them and their descendants, stuck in C code perhaps, is killed.
"""

import signal
import sys
import time

from .process_tree import family, kill, kill_family

GRACE_S = 1.5


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are meant for the parent: its end is the sign
    pids: set[int] = set()
    for line in sys.stdin:
        (pids.add if line[0] == "+" else pids.discard)(int(line[1:]))
    if not pids:
        return
    left = {pid: start for each in pids for pid, start in family(each).items()}
    time.sleep(GRACE_S)
    kill(left)
    for pid in pids:
        kill_family(pid)


if __name__ == "__main__":
    main()
