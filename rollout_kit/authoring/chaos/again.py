"""Verify a sample of rollouts again with ng_reverify, and compare with the rewards on disk."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...store.files import OutputPaths
from ...store.rollouts import RolloutFile, StoredLine
from .findings import Finding, Invariant
from .processes import Processes


@dataclass(slots=True)
class Again:
    """Result of the comparison; `why_not` is set if nothing could be verified again."""

    compared: int = 0
    why_not: str = ""
    findings: list[Finding] = field(default_factory=list)


def verify_sample(
    main: Path, number: int, seed: int, argv: Sequence[str], processes: Processes, timeout_s: float
) -> Again:
    """Verify a random sample of the rollouts with a reward; `argv` configures the servers."""
    chosen = _draw_lines(main, number, seed)
    if not chosen:
        return Again(why_not="no rollout has a verdict")
    sample = processes.folder / "sample.jsonl"
    renewed = OutputPaths(processes.folder / "sample_renewed.jsonl")
    for path in renewed.all():
        path.unlink(missing_ok=True)
    sample.write_bytes(b"".join(line.raw for line in chosen))
    files = [f"+input_jsonl_fpath={sample}", f"+output_jsonl_fpath={renewed.main}"]
    started = processes.start("ng_reverify", [*argv, *files, f"+log_dir={processes.folder}/logs"])
    if not started.wait(timeout_s):
        started.process.kill()
        return Again(why_not=f"ng_reverify did not end in {timeout_s:g} s (see {started.log})")
    if started.status not in (0, 2):
        said = started.log.read_text(errors="replace").splitlines()
        reason = next((line for line in said if line.startswith("error:")), f"see {started.log}")
        return Again(why_not=f"ng_reverify failed: {reason}")
    return _compare(main, chosen, renewed.main)


def _draw_lines(main: Path, number: int, seed: int) -> list[StoredLine]:
    """Draw rollouts with a reward, with equal probability."""
    rng, met = random.Random(seed), 0
    chosen: list[StoredLine] = []
    for line in RolloutFile(main).heads():
        if line.row.get("reward") is None:
            continue
        met += 1
        if len(chosen) < number:
            chosen.append(line)
        elif (place := rng.randrange(met)) < number:
            chosen[place] = line
    return chosen


def _compare(main: Path, chosen: list[StoredLine], renewed: Path) -> Again:
    again = RolloutFile(renewed).rollouts() if renewed.exists() else ()
    rewards = {rollout.key: rollout.reward for rollout in again}
    found = Again()
    for line in chosen:
        assert line.head is not None
        key, old = line.head.key, line.row["reward"]
        if (new := rewards.get(key)) is None:
            continue
        found.compared += 1
        if old != new:
            what = f"its reward is {old:g}, but verifying the same response again gives {new:g}"
            found.findings.append(Finding(Invariant.HONEST, what, key, main, line.number))
    if not found.compared:
        found.why_not = "ng_reverify gave no verdict on any of them"
    return found
