"""Why a line of a file of rollouts counts as none of its rollouts."""

import json

from ...types import is_countable
from ..foreign.versions import NEWER, kind_of
from ..lines import key_of

FOREIGN, REPEATED = "lines that no collection wrote", "rollouts with the key of an earlier one"
OF_NEWER = "lines that a newer version of rollout_kit wrote: use that version to read them"
NO_NUMBER = "lines whose reward is NaN, null, text or too large"
TORN, OPEN = "a last line that is cut off", "a last line without a newline"


def why_no_row(raw: bytes) -> str:
    """The reason of a line of which no record can be made."""
    try:
        line = json.loads(raw)  # which reads NaN and Infinity, as Python writes them
    except (ValueError, RecursionError):
        return FOREIGN if raw.endswith(b"\n") else TORN
    if isinstance(line, dict) and kind_of(line, "") == NEWER:
        return OF_NEWER
    if not isinstance(line, dict) or is_countable(line.get("reward", 0)):
        return FOREIGN
    return FOREIGN if key_of({**line, "reward": 0}) is None else NO_NUMBER
