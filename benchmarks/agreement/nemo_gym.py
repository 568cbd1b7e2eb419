"""Our verdicts beside those of NeMo Gym 0.7.0's own servers, which run in `.peers/nemo-gym`:

make peers-python
python -m benchmarks.agreement.nemo_gym            the given cases, and 1,000 pairs a server
python -m benchmarks.agreement.nemo_gym --only mcqa --pairs 200 --show 20
python -m benchmarks.agreement.nemo_gym --collect  50 rollouts of each of eight environments
python -m benchmarks.agreement.nemo_gym --cross    each collector with the other one's servers

`--collect` runs `ng_collect_rollouts` with NeMo Gym's YAML and rows, and asks NeMo Gym's verifier
about the same responses. `--gym` names another checkout or unpacked wheel than that of `.peers/`.

NeMo Gym counts sentences with tables of nltk, which `make peers-python` downloads where it can.
Without them NeMo Gym has no verdict on `number_sentences`.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from rollout_kit.errors import RolloutError

from ..measure import ROOT
from . import crossed
from .collected import ENVIRONMENTS, collect, explain
from .crossed import CROSSED
from .ours import shorten, verify
from .pairs import GENERATORS, Pair

PYTHON = ROOT / ".peers/nemo-gym/bin/python"
CHILD = Path(__file__).with_name("nemo_gym_child.py")
MARK = "VERDICT "


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.agreement.nemo_gym",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=GENERATORS, default=[*GENERATORS])
    parser.add_argument("--pairs", type=int, default=1_000, help="generated pairs a server")
    parser.add_argument("--show", type=int, default=5, help="differences shown of each kind")
    parser.add_argument("--collect", nargs="*", choices=ENVIRONMENTS, metavar="environment")
    parser.add_argument("--cross", nargs="*", choices=CROSSED, metavar="server")
    parser.add_argument("--gym", type=Path, help="a checkout or unpacked wheel of NeMo Gym")
    args = parser.parse_args()
    if not PYTHON.exists():
        print("NeMo Gym is not installed: make peers-python")
        return 1
    if args.collect is not None:
        return compare_collected(args.collect or [*ENVIRONMENTS], args.gym or find_gym(), args.show)
    if args.cross is not None:
        return compare_crossed(args.cross or [*CROSSED], args.gym or find_gym())
    print(f"{'':22}{'pairs':>7}{'equal':>7}{'stricter':>10}{'laxer':>7}{'no verdict':>12}")
    for name in args.only:
        given = [*read_cases(name)]
        chance = random.Random(0)
        made = [GENERATORS[name](chance) for _ in range(args.pairs)]
        for kind, pairs in (("given", given), ("generated", made)):
            if pairs:
                show(name, kind, pairs, args.show)
    return 0


def find_gym() -> Path:
    """The installed NeMo Gym, which is as good as a checkout."""
    return next(PYTHON.parents[1].glob("lib/python3*/site-packages"))


def compare_crossed(names: list[str], gym: Path) -> int:
    """A line of the table for each server. The exit status is 1 unless all rewards are equal."""
    print("| server | rollouts | mean reward | same by its collector | same at its server |")
    print("|---|---|---|---|---|")
    all_equal = True
    for name in names:
        try:
            found = crossed.cross(name, gym.expanduser().resolve(), PYTHON)
        except RuntimeError as error:
            line, is_equal = f"| `{name}` | {str(error).strip().splitlines()[-1]} | | | |", False
        else:
            line, is_equal = crossed.show(name, found)
        print(line, flush=True)
        all_equal &= is_equal
    return 0 if all_equal else 1


def compare_collected(names: list[str], gym: Path, number: int) -> int:
    """A line of the table for each environment. The exit status is 1 if a difference has no known
    reason."""
    columns = ("rollouts", "reward", "equal", "explained", "other")
    print(f"{'':24}" + "".join(f"{each:>11}" for each in columns))
    num_others = 0
    for name in names:
        environment = ENVIRONMENTS[name]
        found = collect(environment, gym.expanduser().resolve())
        theirs = ask_theirs(environment.server, [environment.case(each) for each in found])
        pairs = zip(found, theirs, strict=True)
        different = [(each, other) for each, other in pairs if other != each.reward]
        reasons = [explain(name, each, other) for each, other in different]
        known = Counter(filter(None, reasons))
        mean, others = sum(each.reward for each in found) / len(found), reasons.count(None)
        counts = (len(found) - len(different), known.total(), others)
        figures = f"{len(found):>11}{mean:>11.3f}" + "".join(f"{each:>11}" for each in counts)
        print(f"{name:24}{figures}", flush=True)
        for about, times in known.items():
            print(f"    {times} × {about}")
        unknown = [pair for pair, why in zip(different, reasons, strict=True) if why is None]
        for each, other in unknown[:number]:
            print(f"    {each.reward}, {other}: {shorten(each.text, 200, 80)}")
        num_others += others
    return 1 if num_others else 0


def read_cases(name: str) -> list[Pair]:
    """The cases of our own tests."""
    path = ROOT / f"resources_servers/{name}/tests/cases.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    found = map(json.loads, filter(None, lines))
    return [Pair(each["about"], each["row"], each["answer"]) for each in found]


def show(name: str, kind: str, pairs: list[Pair], number: int) -> None:
    """A line of the table, and the first differences of each kind."""
    ours, theirs = verify_ours(name, pairs), verify_theirs(name, pairs)
    counts: Counter[str] = Counter()
    different: dict[tuple[str, str], list[str]] = {}
    for pair, own, other in zip(pairs, ours, theirs, strict=True):
        if isinstance(own, str) or isinstance(other, str):
            which = "equal" if isinstance(own, str) and isinstance(other, str) else "no verdict"
        else:
            which = "equal" if own == other else "stricter" if own < other else "laxer"
        counts[which] += 1
        if which != "equal":
            text = f"{shorten(pair.answer)}  for {shorten(json.dumps(pair.row))}: {own}, {other}"
            different.setdefault((which, pair.kind), []).append(text)
    figures = [counts[each] for each in ("equal", "stricter", "laxer", "no verdict")]
    title = f"{name}, {kind}"
    print(f"{title:34}"[:34] + f"{len(pairs):>7}" + "".join(f"{each:>9,}" for each in figures))
    for (which, about), texts in sorted(different.items()):
        print(f"    {len(texts)} × {which}: {shorten(about)}")
        for text in texts[:number]:
            print(f"        {text}")


def verify_ours(name: str, pairs: list[Pair]) -> list[float | str]:
    """Our rewards; the reason where there is none."""
    found = asyncio.run(verify(name, [(each.row, each.answer) for each in pairs]))
    return [
        str(each)[:200] if isinstance(each, RolloutError) else float(each["reward"])
        for each in found
    ]


def verify_theirs(name: str, pairs: list[Pair]) -> list[float | str]:
    """The rewards of NeMo Gym's server; the reason where there is none."""
    cases = [{"server": name, "row": each.row, "answer": each.answer} for each in pairs]
    return ask_theirs(name, cases)


def ask_theirs(name: str, cases: list[dict[str, Any]]) -> list[float | str]:
    """The same for cases as `nemo_gym_child.py` reads them."""
    lines = list(map(json.dumps, cases))
    done = subprocess.run(
        [PYTHON, "-P", CHILD],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        cwd=PYTHON.parent,  # NeMo Gym imports from there first
    )
    said = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    found = [json.loads(line.removeprefix(MARK)) for line in said]
    if len(found) != len(cases):
        sys.exit(f"NeMo Gym's {name} ended after {len(found)} verdicts:\n{done.stderr[-2000:]}")
    return [each.get("reward", each.get("error")) for each in found]


if __name__ == "__main__":
    sys.exit(main())
