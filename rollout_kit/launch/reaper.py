"""Ends the servers of a parent that was killed: `python -m rollout_kit.launch.reaper`.

Lines on standard input name server processes: `+pid mark` when one starts, `-pid` when it is gone.
The end of the input is the end of the parent: the servers have GRACE_S to end by themselves, and
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
    marks: dict[int, str] = {}
    for line in sys.stdin:
        pid, _, mark = line[1:].strip().partition(" ")
        if line[0] == "+":
            marks[int(pid)] = mark
        else:
            marks.pop(int(pid), None)
    if not marks:
        return
    left = {pid: start for root, mark in marks.items() for pid, start in family(root, mark).items()}
    time.sleep(GRACE_S)
    kill(left)
    for root, mark in marks.items():
        kill_family(root, mark)


if __name__ == "__main__":
    main()
