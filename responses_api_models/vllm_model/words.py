"""What a starting vLLM says: how far it is, and why it could not go on. Pure text, no process."""

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
"""A line of vLLM's → what people are told of it, once."""

PREFIX = re.compile(
    r"^(\((?P<who>[\w-]+) pid=\d+\) )?((INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:]+ \[[^\]]*\] ?)?"
)
"""What vLLM puts before each line: the process, the level, the time, the place."""

RAISED = re.compile(r"^([a-z_]+\.)*([A-Z]\w*(Error|Exception)|OSError|KeyError)\b.*: \S")

REFUSED = re.compile(r"^\S+( serve)?: error: ")
"""argparse's own."""

OPENS = re.compile(r"validation errors? for ")
"""pydantic's: what is wrong comes in the next line."""

SECOND_HAND = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|See root cause above"
)
"""Reasons that only point to another."""

NO_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|less than desired [GC]PU memory utilization"
    r"|No available memory for the cache blocks|larger than the available KV cache"
    r"|Cannot allocate memory|MemoryError",
    re.IGNORECASE,
)

MEMORY_ADVICE = (
    "it ran out of memory: lower gpu_memory_utilization (what others use of the GPU is not its to"
    " take), max_model_len, or max_num_batched_tokens and max_num_seqs"
)

NUM_SHOWN = 3


def phase(line: str) -> str | None:
    """What to tell people of a line; None for most."""
    for pattern, words in PHASES:
        if found := pattern.search(_bare(line)):
            return words.format(**found.groupdict(default=""))
    return None


def reason(lines: Iterable[str]) -> list[str]:
    """Why it ended, in its own words: the last errors, root causes only; empty where it said
    nothing of the kind."""
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
    """What to do about it, where that is known."""
    return MEMORY_ADVICE if any(NO_MEMORY.search(line) for line in lines) else None


def _bare(line: str) -> str:
    return PREFIX.sub("", line, count=1).strip()
