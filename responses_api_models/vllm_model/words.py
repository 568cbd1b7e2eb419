"""Interpret the output of a starting vLLM: its progress, and the reason of a failure."""

import re
from collections.abc import Iterable
from itertools import pairwise

PHASES = (
    (re.compile(r"Starting to load model (?P<what>\S+?)(\.\.\.)?$"), "is loading {what}"),
    (re.compile(r"Loading weights took (?P<what>[\d.]+ s)"), "has loaded the weights ({what})"),
    (re.compile(r"torch\.compile took (?P<what>[\d.]+ s)|Compiling a graph"), "is compiling"),
    (re.compile(r"KV cache size: (?P<what>[\d,]+ tokens)"), "has room for {what} in its KV cache"),
    (re.compile(r"Capturing CUDA graphs"), "is capturing CUDA graphs"),
)
"""Pattern of a line of vLLM's output → the message for people, shown once."""

PREFIX = re.compile(
    r"^(\((?P<who>[\w-]+) pid=\d+\) )?((INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:]+ \[[^\]]*\] ?)?"
)
"""Prefix of vLLM's lines: process, level, time, place."""

RAISED = re.compile(r"^([a-z_]+\.)*([A-Z]\w*(Error|Exception)|OSError|KeyError)\b.*: \S")

REFUSED = re.compile(r"^\S+( serve)?: error: ")
"""Errors of argparse."""

OPENS = re.compile(r"validation errors? for ")
"""Errors of pydantic: the next line has the reason."""

SECOND_HAND = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|See root cause above"
)
"""Errors that only refer to another error."""

NO_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|less than desired [GC]PU memory utilization"
    r"|No available memory for the cache blocks|larger than the available KV cache"
    r"|Cannot allocate memory|MemoryError",
    re.IGNORECASE,
)

MEMORY_ADVICE = (
    "it ran out of memory: lower gpu_memory_utilization (it cannot use GPU memory that other"
    " programs hold), max_model_len, or max_num_batched_tokens and max_num_seqs"
)

NUM_SHOWN = 3


def phase(line: str) -> str | None:
    """The message for people about a line; None for most lines."""
    for pattern, words in PHASES:
        if found := pattern.search(_bare(line)):
            return words.format(**found.groupdict(default=""))
    return None


def reason(lines: Iterable[str]) -> list[str]:
    """The last errors in the output, root causes only; empty if there are none."""
    said = [_bare(line) for line in lines]
    errors = [
        f"{line}: {below}" if OPENS.search(line) else line
        for line, below in pairwise([*said, ""])
        if RAISED.search(line) or REFUSED.search(line)
    ]
    causes = [line for line in errors if not SECOND_HAND.search(line)] or errors
    # several processes repeat each other
    return list(dict.fromkeys(causes))[-NUM_SHOWN:]


def advice(lines: Iterable[str]) -> str | None:
    """What to do about the error, if that is known."""
    return MEMORY_ADVICE if any(NO_MEMORY.search(line) for line in lines) else None


def _bare(line: str) -> str:
    return PREFIX.sub("", line, count=1).strip()
