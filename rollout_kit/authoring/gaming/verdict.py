"""Which tricks are rewarded on most rows."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ...types import JsonObject
from ..audit_run import AuditVerdict
from .tricks import Trick

REWARDED = "rewards {}"

NEARLY = 0.9
"""The share of a gold answer's reward that counts as a gain."""

Found = tuple[str, str]


def judge_tricks(
    tricks: Sequence[tuple[Trick, int]],
    verdicts: Mapping[int, AuditVerdict],
    best: Mapping[int, float],
) -> list[Found]:
    """Flags for the tricks that gain on two thirds of the rows on which they were tried. `tricks`:
    each with its row. `verdicts`: by their number. `best`: a gold answer's reward, by row."""
    tried: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for number, (trick, row) in enumerate(tricks):
        if number not in verdicts or best.get(row, 0.0) <= 0:
            continue
        reward = verdicts[number].reward or 0.0
        has_gained = (
            reward > best[row] if trick.name == "a repetition" else (reward >= NEARLY * best[row])
        )
        tried[trick.name, trick.variant].append(has_gained)
    rows = len({row for n, (_, row) in enumerate(tricks) if n in verdicts and best.get(row, 0) > 0})
    gained: dict[str, list[str]] = defaultdict(list)
    for (name, variant), hits in tried.items():
        if is_most(sum(hits), len(hits)) and len(hits) * 2 >= rows:
            gained[name].append(f"{variant} ({sum(hits)} of {len(hits)} rows)")
    return [(REWARDED.format(name), _join(ways)) for name, ways in gained.items()]


def is_most(hits: int, tried: int) -> bool:
    return hits > 0 and hits * 3 >= tried * 2


def _join(ways: list[str]) -> str:
    more = f" and {len(ways) - 3:,} more" if len(ways) > 3 else ""
    return ", ".join(ways[:3]) + more


def summarize_tricks(
    tricks: Sequence[tuple[Trick, int]], verdicts: Mapping[int, AuditVerdict]
) -> list[JsonObject]:
    """Each trick's rewards, for the file of details."""
    return [
        {"trick": trick.name, "variant": trick.variant, "row": row, "reward": verdicts[n].reward}
        for n, (trick, row) in enumerate(tricks)
        if n in verdicts
    ]
