"""Packs the figures of a record: what it holds beside an offset, texts, and what a verifier set.

They need no columns, so a worker packs them for the driver.
"""

import struct
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any
from zlib import crc32

from ...types import Rollout
from ..compact import hex_number
from .columns import COUNTS, NAN, NUMBERS

FIGURES = struct.Struct(f"<IIQ{len(COUNTS)}f{len(NUMBERS)}d")
"""Size and CRC-32 of the line, the number of its task, and its columns of numbers."""

OF_PLACE = 16
"""Bytes of FIGURES before the columns."""

TAKEN = frozenset({"agent_ref", "rollout", "usage", "reward", "kind", "schema", "failure"}) | {
    "cost_usd",
    "_ng_task_index",
}
"""Fields of a line that are no scores, whatever its verifier calls them."""

EXACT = 1 << 24
"""Whole numbers below it are exact in a column of seven digits."""


def pack_own(raw: bytes, rollout: Rollout) -> bytes:
    """The figures of a line that this process has at hand; nothing if it has to be parsed. Parsing
    takes more than twice the time."""
    head, info = rollout.head, rollout.info
    key, task_index, _, _, _, attempt, duration_s, _, model_s = info[:9]
    tool_s, verify_s, _, _, _, turns, calls, cost_usd, *used, names, _, _ = info[9:]
    reward, number = head.get("reward", NAN), hex_number(key.task_id)
    try:
        is_usual = "cost_usd" not in head and 0 <= key.rollout_index < EXACT
        is_usual = is_usual and number is not None and TAKEN.isdisjoint(names)
        if not is_usual or (reward - reward != 0 and "reward" in head):
            return b""
        started_s = seconds_of(head["rollout"].get("started_at", ""))
        cost_usd = NAN if cost_usd is None else cost_usd
        times = (duration_s, model_s, tool_s, verify_s, reward, cost_usd, started_s)
        numbers = (task_index, key.rollout_index, attempt, turns, calls, *used, *times)
        return pack_figures(len(raw), crc32(raw), number, numbers)
    except (struct.error, TypeError, ValueError):  # of another form in JSON
        return b""


def pack_figures(size: int, check: int, number: int | None, numbers: Sequence[Any]) -> bytes:
    """FIGURES; a number that is none of its kind is NaN."""
    try:
        return FIGURES.pack(size, check, number or 0, *numbers)
    except (struct.error, OverflowError):  # None, or what no time, count or size can be
        numbers = [NAN if n is None or abs(n) > 1e38 else n for n in numbers]
        return FIGURES.pack(min(size, 0xFFFFFFFF), check, number or 0, *numbers)


def seconds_of(text: str) -> float:
    """A time as the files write it, in seconds since 1970."""
    try:
        if len(text) != 24 or text[10] + text[19] + text[23] != "T.Z":
            return datetime.fromisoformat(text).timestamp()
        return (_ms_of(text[:19]) + int(text[20:23])) / 1000
    except (ValueError, OverflowError):
        return NAN


@lru_cache(maxsize=16)
def _ms_of(second: str) -> int:
    """Cached because many rollouts share a second."""
    return round(1000 * datetime.fromisoformat(f"{second}Z").timestamp())
