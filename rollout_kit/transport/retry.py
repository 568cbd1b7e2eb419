"""Retrying as a value: how often, how long apart, until when."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import TypeVar

from ..errors import RolloutError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`max_tries` counts the first one; no try begins `deadline_s` after the first, or later."""

    max_tries: int = 4
    base_s: float = 0.5
    cap_s: float = 30.0
    deadline_s: float | None = None


async def retried(
    call: Callable[[], Awaitable[T]],
    policy: RetryPolicy,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
    random: Callable[[], float] = random.random,
    lost: Callable[[RolloutError, float], None] | None = None,
) -> T:
    """`call()`'s result, repeated while it raises what may pass, or its last error. `lost` is
    told each error with what it costs (s): the try, and the pause after it.

    A pause that the policy's deadline would cut short is not begun: the error rises at once.
    """
    began = clock()
    tries = 0
    while True:
        tries += 1
        tried = clock()
        try:
            return await call()
        except RolloutError as failed:
            error = failed
            if not error.retryable or tries >= policy.max_tries:
                raise
            pause = delay_s(policy, tries, error.retry_after_s, random)
            if policy.deadline_s is not None and clock() - began + pause >= policy.deadline_s:
                raise
        if lost:
            lost(error, clock() - tried + pause)
        await sleep(pause)


def delay_s(
    policy: RetryPolicy, tries: int, retry_after_s: float | None, random: Callable[[], float]
) -> float:
    """Pause after the `tries`-th failure: exponential with full jitter, on top of `retry_after_s`.

    On top, because everyone who was turned away was told the same time.
    """
    # the exponent is bounded as 2.0**1024 is an OverflowError
    backoff = min(policy.cap_s, policy.base_s * 2.0 ** min(tries - 1, 64))
    return (retry_after_s or 0.0) + random() * backoff


def retry_after_s(header: str | None, now: float) -> float | None:
    """Seconds to wait by a `Retry-After` header, a number or a date; `now` is Unix time."""
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            date = parsedate_to_datetime(header)
        except ValueError:
            return None
        seconds = date.replace(tzinfo=date.tzinfo or UTC).timestamp() - now
    return max(0.0, seconds) if isfinite(seconds) else None
