"""What the verification of groups costs: the `local-short` cases with it over those without it."""

import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from . import sides, work
from .endpoint import Setting
from .many_groups import CONFIG, REPEATS, WITH_GROUPS, measure_kept
from .measure import ROOT, Measured, Unmeasured, measure

if TYPE_CHECKING:
    from .figures import Figure, Figures

CASES = ((16, 1_500), (128, 1_500), (1_024, 1_500))
"""Rollouts in flight, and groups."""

SERVER = """
from typing import Any

from rollout_kit import JsonObject

from .mcqa import Mcqa


class Grouped(Mcqa):"""
"""Its verdicts are those of the `local-short` cases; the scores are constants."""

MANY = 30_000
"""Groups of the run whose memory is observed."""


def measure_groups(figures: "Figures") -> Iterator["Figure"]:
    """CPU a rollout with scored groups of eight over that without, in adjacent runs; and memory."""
    from .figures import Figure

    write_grouped(figures.folder)
    for parallel, number in CASES:
        ratios = []
        for run in range(max(3, figures.runs)):
            order = ("alone", "grouped") if run % 2 == 0 else ("grouped", "alone")
            cpu = {name: _run(figures, name, number, parallel).flow_cpu_s for name in order}
            ratios.append(cpu["grouped"] / cpu["alone"])
        what = f"scored groups of {REPEATS}, {parallel:,} in flight: CPU a rollout"
        ratio = statistics.median(ratios)
        yield Figure(f"groups_{parallel}_ratio", what, ratio, "× without")
    kept = measure_kept(figures.folder, MANY)
    what = f"memory kept a group (of {MANY:,}), beyond that without scores"
    yield Figure("groups_kept", what, kept["grouped"] - kept["alone"], "bytes")


def write_grouped(folder: Path) -> None:
    """The verifier of the `local-short` cases with scores of groups, and its configuration."""
    there, here = folder / "resources_servers/grouped", ROOT / "resources_servers/mcqa"
    there.mkdir(parents=True, exist_ok=True)
    shutil.copy(here / "grading.py", there)
    shutil.copy(here / "app.py", there / "mcqa.py")
    (there / "app.py").write_text(SERVER + WITH_GROUPS)
    (folder / "grouped.yaml").write_text(CONFIG.format(name="grouped"))


def _run(figures: "Figures", name: str, number: int, parallel: int) -> Measured:
    rows = work.write_rows(figures.folder / "groups.jsonl", number)
    output = figures.folder / "groups" / "rollouts.jsonl"
    argv = sides.local(figures.port, "short", rows, parallel, str(output))
    if name == "grouped":
        argv = [word.replace(sides.ENVIRONMENTS["short"], "grouped.yaml") for word in argv]
    found = measure([*argv, f"+num_repeats={REPEATS}"], figures.folder, figures.port, Setting())
    scores = output.parent / "rollouts.d/groups.jsonl"
    _check(scores, number if name == "grouped" else 0)
    for path in output.parent.iterdir():
        path.unlink()
    return found


def _check(scores: Path, number: int) -> None:
    lines = scores.read_bytes().count(b"\n") if scores.exists() else 0
    if lines != number:
        raise Unmeasured(f"{lines} groups were scored instead of {number}")
