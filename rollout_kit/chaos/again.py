"""Verdicts made again, by ng_reverify as its own process, and compared with those on disk."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from ..store.files import OutputPaths
from ..store.lines import key_of
from ..types import Key
from .findings import Finding, Invariant
from .processes import Processes


@dataclass(slots=True)
class Again:
    """`why_not` says why nothing could be verified again."""

    compared: int = 0
    why_not: str = ""
    findings: list[Finding] = field(default_factory=list)


def verified_again(
    main: Path, number: int, seed: int, argv: Sequence[str], processes: Processes, timeout_s: float
) -> Again:
    """A sample of the rollouts with a verdict; `argv`: the servers."""
    chosen = _sample(main, number, seed)
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
        return Again(why_not=f"ng_reverify could not: {reason}")
    return _compared(main, chosen, renewed.main)


def _sample(main: Path, number: int, seed: int) -> list[tuple[int, bytes]]:
    """So many lines with a reward, each with its number; every line is as likely as any other."""
    rng, chosen, met = random.Random(seed), [], 0
    with main.open("rb") as stream:
        for line, raw in enumerate(stream, 1):
            if _reward(raw) is None:
                continue
            met += 1
            if len(chosen) < number:
                chosen.append((line, raw))
            elif (place := rng.randrange(met)) < number:
                chosen[place] = (line, raw)
    return chosen


def _compared(main: Path, chosen: list[tuple[int, bytes]], renewed: Path) -> Again:
    rewards: dict[Key | None, float | None] = {}
    if renewed.exists():
        for raw in renewed.read_bytes().splitlines():
            rewards[key_of(orjson.loads(raw))] = _reward(raw)
    found = Again()
    for line, raw in chosen:
        key = key_of(orjson.loads(raw))
        if (new := rewards.get(key)) is None:
            continue
        found.compared += 1
        if (old := _reward(raw)) != new:
            what = f"its reward is {old:g}, and its verifier says {new:g} of the same response"
            found.findings.append(Finding(Invariant.HONEST, what, key, main, line))
    if not found.compared:
        found.why_not = "ng_reverify gave no verdict on any of them"
    return found


def _reward(raw: bytes) -> float | None:
    """The reward of a sound line."""
    try:
        row = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(row, dict) or key_of(row) is None or "reward" not in row:
        return None
    return row["reward"]
