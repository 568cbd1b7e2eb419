"""Instructions per rollout, which other work on the machine does not change; needs valgrind.

    python -m benchmarks.instructions [folder of another version]

A side runs twice with different numbers of rows. The difference leaves out its start and its end.
"""

import compileall
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from . import sides, work
from .endpoint import Setting, configure
from .measure import ROOT, Unmeasured, running_endpoint

NUMBERS = 500, 1_500
"""Rollouts of the two runs; each thousand takes about twenty seconds."""

PARALLEL = 128

PACKAGES = "rollout_kit", "resources_servers", "responses_api_models", "responses_api_agents"

COUNTED = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]


def main() -> None:
    versions = [ROOT, *map(Path, sys.argv[1:])]
    with TemporaryDirectory() as folder, running_endpoint() as port:
        bare = count(lambda rows: sides.bare(port, rows, PARALLEL), Path(folder), ROOT, port)
        print(f"{'the bare loop':<40} {bare:>12,.0f}", flush=True)
        for version in versions:
            ours = count(
                lambda rows: sides.local(port, "short", rows, PARALLEL),
                Path(folder),
                version.resolve(),
                port,
            )
            print(f"{version!s:<40} {ours:>12,.0f} {ours / bare:>6.2f} × bare", flush=True)


def count(command, folder: Path, version: Path, port: int) -> float:
    """Instructions of one more rollout. The version is compiled first, or the first run would."""
    for package in PACKAGES:
        compileall.compile_dir(version / package, quiet=2)
    few, many = (
        refs(command(work.write_rows(folder / "rows.jsonl", number)), folder, version, port)
        for number in NUMBERS
    )
    return (many - few) / (NUMBERS[1] - NUMBERS[0])


def refs(argv: list[str], folder: Path, version: Path, port: int) -> int:
    """The instructions of a command."""
    configure(port, Setting("short", 0.0, PARALLEL))
    argv = [word.replace("{report}", str(folder / "report.json")) for word in argv]
    fixed = {"PYTHONPATH": str(version), "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [*COUNTED, *argv], cwd=folder, env={**os.environ, **fixed}, capture_output=True, text=True
    )
    found = re.search(r"I +refs: +([\d,]+)", done.stderr)
    if done.returncode or not found:
        raise Unmeasured(f"{argv}: {done.stderr[-2000:]}")
    return int(found[1].replace(",", ""))


if __name__ == "__main__":
    main()
