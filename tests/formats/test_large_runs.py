"""Runs of 100 MB are read one rollout at a time: memory depends on the largest rollout alone."""

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from made_rollouts import make_line

from rollout_kit.formats.inspect_samples import write_sample
from rollout_kit.formats.trajectories import write_trajectory
from rollout_kit.responses import message_item
from rollout_kit.store.lines import rollout_of

pytestmark = pytest.mark.slow

TEXT = 1 << 20
"""Bytes of each answer."""

IMPORT = """
import resource, sys
from pathlib import Path
from rollout_kit.formats.importing import import_runs
found = import_runs([Path(sys.argv[1])], Path(sys.argv[2]))
print(found.rollouts, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def make_rollouts(number: int) -> Iterator[Any]:
    for each in range(number):
        line = make_line(2)
        line["response"]["output"] = [message_item(f"{each:08}" * (TEXT // 8))]
        line["rollout"] |= {"task_id": f"{each:016x}", "turns": None}
        yield rollout_of(line)


def write_log(path: Path, number: int) -> int:
    """Write a log of inspect, and return the length of its longest sample."""
    longest = 0
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("header.json", '{"eval": {"model": "m", "task": "t"}}')
        for each, rollout in enumerate(make_rollouts(number)):
            sample = json.dumps(write_sample(rollout, "2"))
            archive.writestr(f"samples/{each}.json", sample)
            longest = max(longest, len(sample))
    return longest


def write_lines(path: Path, number: int) -> int:
    """Write trajectories, and return the length of the longest line."""
    longest = 0
    with path.open("w", encoding="utf-8") as stream:
        for rollout in make_rollouts(number):
            longest = max(longest, stream.write(json.dumps(write_trajectory(rollout)) + "\n"))
    return longest


def import_apart(path: Path, number: int) -> int:
    """Import the runs in a process of their own, and return the bytes of its peak."""
    words = [sys.executable, "-c", IMPORT, path, path.with_suffix(".ours.jsonl")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    rollouts, peak = map(int, done.stdout.split())
    assert rollouts == number
    return peak


@pytest.mark.parametrize(("name", "write"), [("a.eval", write_log), ("a.jsonl", write_lines)])
def test_memory_depends_on_the_longest_rollout(
    name: str, write: Callable[[Path, int], int], tmp_path: Path
) -> None:
    longest = write(tmp_path / f"one-{name}", 2)
    write(tmp_path / f"many-{name}", 100)
    assert (tmp_path / f"many-{name}").stat().st_size > 100_000_000
    least = import_apart(tmp_path / f"one-{name}", 2)
    most = import_apart(tmp_path / f"many-{name}", 100)
    assert most - least < 3 * longest
