"""Families of processes: all that were found are killed, also those that leave the family."""

import os
import subprocess
import sys

import pytest
from support import alive, eventually

from rollout_kit.serving import process_tree
from rollout_kit.serving.process_tree import family, kill_family

GENERATIONS = """
import os, time
for _ in range(2):
    if os.fork():
        break
    os.setsid()
time.sleep(1000)
"""


def test_one_that_is_slow_to_end_after_its_parent_has_ended_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with subprocess.Popen([sys.executable, "-c", GENERATIONS], start_new_session=True) as root:
        eventually(lambda: len(family(root.pid)) == 3)
        youngest = max(family(root.pid).items(), key=lambda member: (int(member[1]), member[0]))[0]
        eventually(lambda: os.getsid(youngest) == youngest)
        kill, rounds = process_tree.kill, []

        def kill_late(members: dict[int, str]) -> None:
            rounds.append(members)
            early = {pid: start for pid, start in members.items() if pid != youngest}
            kill(members if len(rounds) > 1 else early)
            eventually(lambda: not any(map(alive, early)))

        monkeypatch.setattr(process_tree, "kill", kill_late)
        kill_family(root.pid)
        assert not alive(youngest)
