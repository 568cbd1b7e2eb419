"""Rows per second with the journal, and with plain dump and write of the same lines; and what the
index costs of it, in µs of CPU a row.

python -m benchmarks.journal short 50000    # prints all three
"""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson

from rollout_kit.store.files import OutputPaths
from rollout_kit.store.index import KeptIndex
from rollout_kit.store.journal import Journal
from rollout_kit.store.lines import rollout_of
from rollout_kit.types import Rollout

from . import work


def line(kind: str, index: int) -> dict[str, Any]:
    _, _, body = work.answers(kind).turns[0].partition(b"\r\n\r\n")
    row = work.choice_row(index)
    rollout = {
        **{"task_id": f"{index:016x}", "scope": "", "rollout_index": 0, "attempt": 1},
        **{"settings": "ab71eae99791", "model": "fake", "verifier": "19407000e863d8dd"},
        **{"started_at": f"2026-01-01T00:00:00.{index % 1000:03}Z", "duration_s": 0.002},
        **{"finish_reason": "stop", "num_turns": 1, "num_tool_calls": 0, "model_s": 0.001},
        **{"tool_s": 0.0, "verify_s": 0.0005},
    }
    return {
        "kind": "rollout",
        "schema": 1,
        "agent_ref": {"name": "agent"},
        "reward": 1.0,
        "rollout": rollout,
        **row,
        "response": orjson.loads(body),
    }


def main() -> None:
    kind, number = sys.argv[1], int(sys.argv[2])
    lines = [line(kind, index) for index in range(min(number, 200))]
    rollouts = [rollout_of(each) for each in lines]
    indexes_s = []
    with tempfile.TemporaryDirectory() as name:
        for _ in range(3):  # in turns: the machine is shared
            journal = Journal(OutputPaths(Path(name) / "rollouts.jsonl"))
            began, used = time.perf_counter(), time.process_time()
            _append(journal, rollouts, number)
            ours_s, used = time.perf_counter() - began, time.process_time() - used
            journal = Journal(OutputPaths(Path(name) / "unindexed.jsonl"))
            journal.index = KeptIndex(None)
            began = time.process_time()
            _append(journal, rollouts, number)
            indexes_s.append(used - (time.process_time() - began))
            for each in Path(name).iterdir():
                shutil.rmtree(each) if each.is_dir() else each.unlink()
        descriptor = os.open(Path(name) / "bare.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        began = time.perf_counter()
        for index in range(number):
            os.write(descriptor, orjson.dumps(lines[index % len(lines)]) + b"\n")
        os.fsync(descriptor)
        bare_s = time.perf_counter() - began
    print(number / ours_s, number / bare_s, sorted(indexes_s)[1] / number * 1e6)


def _append(journal: Journal, rollouts: list[Rollout], number: int) -> None:
    for index in range(number):
        journal.append_all([rollouts[index % len(rollouts)]])
        if index % 2000 == 0:
            journal.check()  # as a run does once a second
    journal.close(clean=True)


if __name__ == "__main__":
    main()
