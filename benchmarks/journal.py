"""Rows a second through the journal, and through a bare dump and write of the same lines.

python -m benchmarks.journal short 50000    # prints both
"""

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson

from rollout_kit.store.files import OutputPaths
from rollout_kit.store.journal import Journal
from rollout_kit.store.lines import rollout_of

from . import work


def line(kind: str, index: int) -> dict[str, Any]:
    _, _, body = work.answers(kind).turns[0].partition(b"\r\n\r\n")
    row = work.choice_row(index)
    rollout = {"task_id": f"{index:016x}", "scope": "", "rollout_index": 0}
    return {
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
    with tempfile.TemporaryDirectory() as name:
        journal = Journal(OutputPaths(Path(name) / "rollouts.jsonl"))
        began = time.perf_counter()
        for index in range(number):
            journal.append(rollouts[index % len(rollouts)])
        journal.close(clean=True)
        ours_s = time.perf_counter() - began
        descriptor = os.open(Path(name) / "bare.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        began = time.perf_counter()
        for index in range(number):
            os.write(descriptor, orjson.dumps(lines[index % len(lines)]) + b"\n")
        os.fsync(descriptor)
        bare_s = time.perf_counter() - began
    print(number / ours_s, number / bare_s)


if __name__ == "__main__":
    main()
