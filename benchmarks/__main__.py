"""Benchmarks of rollout_kit, compared with a bare HTTP loop that does the same work.

    python -m benchmarks                          medians of 3: a quarter of an hour
    python -m benchmarks --quick                  two minutes: one run of the most telling cases
    python -m benchmarks --only 'local-*' resume  by name; --list prints the names
    python -m benchmarks --markdown docs/performance.md

Both sides run alternately against one endpoint that answers with prepared bytes. Compare ratios,
because absolute figures depend on the machine and its load.
"""

import argparse
import fnmatch
import os
import sys
import tempfile
import time
from pathlib import Path

from . import report
from .figures import BY_DEFAULT, GROUPS, QUICK, Figures
from .grid import CASES, HEAD, Case, Grid
from .measure import running_endpoint
from .raised import raise_file_limit


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, help="each case so often (3; with --quick 1)")
    parser.add_argument("--quick", action="store_true", help="the few cases that tell most")
    parser.add_argument(
        "--full", action="store_true", help="more cases, and all of a million rollouts"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases and groups, by pattern")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("--markdown", type=Path, help="renew the tables of a page and end")
    args = parser.parse_args()
    if args.markdown:
        report.renew(args.markdown)
        return 0
    groups: list[str] = [*(QUICK if args.quick else BY_DEFAULT)]
    if args.full:
        groups = ["million" if name == "many" else name for name in groups]
    tiers = {"quick"} if args.quick else {"quick", "usual", *(["full"] if args.full else [])}
    cases = [case for case in CASES if case.when in tiers]
    if args.only:
        cases = [case for case in CASES if _matches(case.name, args.only)]
        groups = [name for name in GROUPS if _matches(name, args.only)]
    if args.list:
        print(*(case.name for case in cases), *groups, sep="\n")
        return 0
    return run(cases, groups, args.runs or (1 if args.quick else 3))


def run(cases: list[Case], groups: list[str], runs: int) -> int:
    limit = raise_file_limit()
    if limit < (most := max((case.parallel for case in cases), default=0)) + 200:
        print(f"{limit:,} open files are allowed: cases of {most:,} in flight will fail")
    began, found = time.monotonic(), report.Found()

    def say(text: str) -> None:
        print(text, flush=True)

    found.load = os.getloadavg()[0]
    print(f"{report.of_cases(runs)}; load of this machine before: {found.load:.1f}")
    with tempfile.TemporaryDirectory() as name, running_endpoint() as port:
        grid = Grid(port, Path(name), runs, say)
        figures = Figures(port, Path(name), runs, say)
        try:
            if cases:
                print(HEAD)
            for compared in grid.compare(cases):
                found.compared.append(compared)
            for figure in figures.measure(groups):
                found.figures.append(figure)
        except KeyboardInterrupt:
            found.failed.append("stopped before the end")
        found.failed += [*grid.failed, *figures.failed]
    print(f"\n{report.text_of_lines(found.lines())}")
    print(f"\n{found.write(runs)}, after {time.monotonic() - began:.0f} s")
    for failure in found.failed:
        print(f"failed: {failure}")
    return 1 if found.failed else 0


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


if __name__ == "__main__":
    sys.exit(main())
