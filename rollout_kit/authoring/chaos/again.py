"""Verify a sample of rollouts again with ng_reverify, and compare with the rewards on disk."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from ...reading import parse_line
from ...store.files import OutputPaths
from ...store.kinds import key_of
from ...types import Key
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
    sample.write_bytes(b"".join(raw for _, raw in chosen))
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


def _draw_lines(main: Path, number: int, seed: int) -> list[tuple[int, bytes]]:
    """Draw lines with a reward, with equal probability, each with its number."""
    rng, chosen, met = random.Random(seed), [], 0
    with main.open("rb") as stream:
        for line, raw in enumerate(stream, 1):
            if _read_reward(raw) is None:
                continue
            met += 1
            if len(chosen) < number:
                chosen.append((line, raw))
            elif (place := rng.randrange(met)) < number:
                chosen[place] = (line, raw)
    return chosen


def _compare(main: Path, chosen: list[tuple[int, bytes]], renewed: Path) -> Again:
    rewards: dict[Key | None, float | None] = {}
    if renewed.exists():
        for raw in renewed.read_bytes().splitlines():
            rewards[key_of(orjson.loads(raw))] = _read_reward(raw)
    found = Again()
    for line, raw in chosen:
        key = key_of(orjson.loads(raw))
        if (new := rewards.get(key)) is None:
            continue
        found.compared += 1
        if (old := _read_reward(raw)) != new:
            what = f"its reward is {old:g}, but verifying the same response again gives {new:g}"
            found.findings.append(Finding(Invariant.HONEST, what, key, main, line))
    if not found.compared:
        found.why_not = "ng_reverify gave no verdict on any of them"
    return found


def _read_reward(raw: bytes) -> float | None:
    """The reward of a valid line, or None."""
    row = parse_line(raw) or {}
    return row.get("reward") if key_of(row) is not None else None
