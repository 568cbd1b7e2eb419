"""How many calls of functions a short rollout takes: `python -m benchmarks.calls`.

The figures do not depend on the machine, so a test can bound them. A rollout that becomes more
expensive mostly makes more calls, or takes fewer steps together with others (`Lockstep`). The
figures are for one more rollout, with all servers in the collector's process.
"""

import cProfile
import os
import pstats
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rollout_kit import commands
from rollout_kit.serving.transport import loop

from . import endpoint, sides, work
from .endpoint import Setting
from .measure import ROOT, running_endpoint

FEW, MANY, IN_FLIGHT = 100, 500, 16

STEPS = "steps together"


def count_calls() -> dict[str, float]:
    """Module, `built in` or STEPS → how many one more rollout takes."""
    with TemporaryDirectory() as name, running_endpoint() as port:
        endpoint.configure(port, Setting("short", 0.0, IN_FLIGHT))
        few, many = (_collect(Path(name, f"{number}"), port, number) for number in (FEW, MANY))
    return {name: (many[name] - few[name]) / (MANY - FEW) for name in many}


def _collect(folder: Path, port: int, number: int) -> Counter[str]:
    folder.mkdir()
    rows = work.write_rows(folder / "rows.jsonl", number)
    keys = sides.collector_keys(rows, IN_FLIGHT, f"{folder}/rollouts.jsonl")
    profile, run, num_steps = cProfile.Profile(), loop.run, loop.step.num_taken

    async def profile_run(main: Any) -> Any:
        profile.enable()
        try:
            return await main
        finally:
            profile.disable()

    loop.run = lambda main: run(profile_run(main))  # type: ignore[assignment]
    try:
        commands.main("ng_collect_rollouts", [*keys, *sides.server_keys(port, "short")])
    except SystemExit as end:
        if end.code:
            raise
    finally:
        loop.run = run
    found = Counter({STEPS: loop.step.num_taken - num_steps})
    stats: dict[tuple[str, int, str], tuple[int, ...]] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    for (file, _, _), (_, calls, *_) in stats.items():
        found["built in" if file == "~" else file] += calls
    return found


def main() -> None:
    os.chdir(ROOT)
    found = count_calls()
    steps = found.pop(STEPS)
    print(f"a rollout: {sum(found.values()):,.0f} calls, {steps:.1f} {STEPS}")
    for file, calls in sorted(found.items(), key=lambda each: -each[1])[:30]:
        print(f"{calls:8.1f}  {file.removeprefix(f'{ROOT}/')}")


if __name__ == "__main__":
    main()
