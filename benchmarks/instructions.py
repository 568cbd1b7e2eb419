"""Instructions per rollout, and those that a first-level cache of instructions lacks, which other
work on the machine does not change; needs valgrind.

    python -m benchmarks.instructions [folder of another version]

A side runs twice with different numbers of rows. The difference leaves out its start and its end.
The cache is simulated, with 32 KB. A rollout runs far more different code than fits into it, so
much of its time goes into fetching code from the next cache.
"""

import compileall
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from . import sides, work
from .endpoint import Setting, configure
from .measure import ROOT, Unmeasured, running_endpoint

NUMBERS = 500, 1_500
"""Rollouts of the two runs; each thousand takes about half a minute."""

PARALLEL = 128

PACKAGES = "rollout_kit", "resources_servers", "responses_api_models", "responses_api_agents"

CACHES = ["--cache-sim=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=1048576,8,64"]
"""Bytes, lines of a set, and bytes of a line."""

VALGRIND = ["valgrind", "--tool=cachegrind", *CACHES, "--cachegrind-out-file=/dev/null"]


class Counted(NamedTuple):
    """What one more rollout takes; of a command, what all of it takes."""

    instructions: float
    misses: float
    """Lines of code that the first-level cache lacks."""


def main() -> None:
    versions = [ROOT, *map(Path, sys.argv[1:])]
    print(f"{'':<40} {'instructions':>12} {'× bare':>7} {'misses':>10} {'× bare':>7}")
    with TemporaryDirectory() as folder, running_endpoint() as port:
        bare = count(lambda rows: sides.bare(port, rows, PARALLEL), Path(folder), ROOT, port)
        show("the bare loop", bare, bare)
        for version in versions:
            ours = count(
                lambda rows: sides.local(port, "short", rows, PARALLEL),
                Path(folder),
                version.resolve(),
                port,
            )
            show(f"{version}", ours, bare)


def show(name: str, counted: Counted, bare: Counted) -> None:
    words = (
        f"{number:>{width},.0f} {number / of_bare:>7.2f}"
        for number, of_bare, width in zip(counted, bare, (12, 10), strict=True)
    )
    print(f"{name:<40} {' '.join(words)}", flush=True)


def count(command: Callable[[Path], list[str]], folder: Path, version: Path, port: int) -> Counted:
    """What one more rollout takes. The version is compiled first, or the first run would."""
    for package in PACKAGES:
        compileall.compile_dir(version / package, quiet=2)
    few, many = (
        count_command(
            command(work.write_rows(folder / "rows.jsonl", number)), folder, version, port
        )
        for number in NUMBERS
    )
    more = NUMBERS[1] - NUMBERS[0]
    return Counted(*((after - before) / more for before, after in zip(few, many, strict=True)))


def count_command(argv: list[str], folder: Path, version: Path, port: int) -> Counted:
    """What a command takes."""
    configure(port, Setting("short", 0.0, PARALLEL))
    argv = [word.replace("{report}", str(folder / "report.json")) for word in argv]
    fixed = {"PYTHONPATH": str(version), "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [*VALGRIND, *argv], cwd=folder, env={**os.environ, **fixed}, capture_output=True, text=True
    )
    found = [re.search(rf"{name}: +([\d,]+)", done.stderr) for name in (r"I +refs", r"I1 +misses")]
    if done.returncode or not all(found):
        raise Unmeasured(f"{argv}: {done.stderr[-2000:]}")
    return Counted(*(int(each[1].replace(",", "")) for each in found if each))


if __name__ == "__main__":
    main()
