"""Search a text with a regular expression; runs in a worker process of `app.py`."""

import re
from collections import deque

FLAGS = re.MULTILINE | re.DOTALL


def find_last(pattern: str, text: str) -> str | None:
    """Return the first non-empty group of the last match, otherwise the match; None without one.

    Runs in a worker, because compiling the pattern of a row may take minutes."""
    check(pattern)
    matches = deque(re.finditer(pattern, text, FLAGS), maxlen=1)
    if not matches:
        return None
    groups = (group.strip() for group in matches[0].groups() if group)
    return next(filter(None, groups), matches[0][0].strip())


def check(pattern: str) -> None:
    """Raise ValueError if the pattern is not a regular expression."""
    try:
        re.compile(pattern, FLAGS)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{pattern!r:.80} is not a regular expression: {error}") from None
