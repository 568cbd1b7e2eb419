"""Retries: one loop, and the table of the policies of every layer that repeats something.

A model call passes through several layers. Each repeats only the failures that the layer below
cannot handle: RECONNECT inside one HTTP request, MODEL_REQUEST inside one turn, TURN inside one
attempt, ATTEMPT inside one rollout. No layer repeats a tool call that may have been executed. The
policies stand together because the tries of the layers multiply.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from math import isfinite
from random import random
from typing import TypeVar

from ...errors import THROTTLED, PeerLost, PeerUnreachable, RolloutError, SessionLost
from ...time_limit import running_loop

T = TypeVar("T")

UNLIMITED = sys.maxsize

LONGEST_PAUSE_S = 300.0
"""A throttled try with a longer pause rises: the collector knows how long the rollout may take."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Which errors are retried, how often, and after which pauses.

    `max_tries` includes the first try; none begins `deadline_s` or more after the first. Pauses
    start at `base_s` and grow by `growth` up to `cap_s`; `jitter` is the random share of a pause.
    Throttled tries (429, 529) count neither as tries nor for the deadline: only the caller's time
    ends them. With `waits` they are retried though `errors` does not name them.

    Example:

        policy = rk.RetryPolicy(max_tries=5, base_s=0.2, cap_s=10.0)
        await rk.collect(rows, model=lambda params: "4", environment="string_match", retry=policy)
    """

    max_tries: int = UNLIMITED
    base_s: float = 0.5
    cap_s: float = 30.0
    deadline_s: float | None = None
    growth: float = 2.0
    jitter: float = 1.0
    errors: type[RolloutError] = RolloutError
    except_for: tuple[type[RolloutError], ...] = ()
    waits: bool = False

    def allows(self, error: RolloutError, after_s: float) -> bool:
        """Whether a try may begin so long after the first one, because of this error."""
        is_named = isinstance(error, self.errors) and not isinstance(error, self.except_for)
        in_time = self.deadline_s is None or after_s < self.deadline_s
        return is_named and error.retryable and in_time


RECONNECT = RetryPolicy(base_s=0.05, cap_s=0.8, deadline_s=10.0, jitter=0.0, errors=PeerUnreachable)
"""`peers`, one HTTP request: while nothing listens, because the server may be restarting. Nothing
was sent, so nothing can be executed twice."""

MODEL_REQUEST = RetryPolicy(max_tries=4)
"""Model servers, one request to the endpoint: after 408, 409, 429, 5xx and lost connections.
`max_tries` and `request_timeout_s` of the configuration replace the bounds given here."""

ENDPOINT_PROBE = RetryPolicy(cap_s=15.0, growth=2**0.5, jitter=0.0)
"""`Outage`: pauses between probes of an endpoint that is down. One caller probes at a time, so
the pauses need no jitter. The callers' own time limits end the probing."""

VLLM_PROBE = RetryPolicy(base_s=0.2, cap_s=5.0, jitter=0.0)
"""`vllm_model`: pauses between health checks of a replica that takes no requests."""

THROTTLED_TRY = RetryPolicy(cap_s=4.0)
"""All layers: pauses after a throttled try; model servers hold back all requests themselves."""

TURN = RetryPolicy(max_tries=3, base_s=0.0, errors=PeerLost, waits=True)
"""Agents, one turn: after the model server died, or while its endpoint throttles. RECONNECT waits
until it is back, so there is no pause. A model call has no side effect, so it may be executed
twice, and earlier turns are kept."""

JUDGE_CALL = RetryPolicy(max_tries=4, cap_s=10.0)
"""`Judge`, one question, on top of the judge's own MODEL_REQUEST: the response exists already, so
a failed verification costs more than a short wait."""

VERIFICATION = RetryPolicy(max_tries=3, except_for=(SessionLost,))
"""Collector, one response: verifications in one run; then the response waits for the next run. A
lost session needs a new attempt."""

ATTEMPT = RetryPolicy()
"""Collector, one rollout: pauses between attempts. `max_attempts` of the configuration bounds the
attempts that failed by themselves."""

LOST_ATTEMPT = RetryPolicy(max_tries=10)
"""Collector, one rollout: attempts lost because a server died. They do not count as `max_attempts`,
but a row that kills its server in every attempt must end."""

SERVER_RESTART = RetryPolicy(base_s=0.2)
"""Supervisor: pauses before a server process is restarted. `max_restarts` bounds the restarts."""

VLLM_RESTART = RetryPolicy(base_s=0.5, cap_s=60.0)
"""Supervisor: the same for vLLM, whose start is slow and uses all of its GPUs."""


async def retry(
    call: Callable[[], Awaitable[T]],
    policy: RetryPolicy,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] | None = None,
    random: Callable[[], float] = random,
    on_retry: Callable[[RolloutError, float], None] | None = None,
    first: tuple[RolloutError, float] | None = None,
) -> T:
    """Return the result of `call()`; raise its error if `policy` does not allow another try.

    `on_retry` receives each error that is retried, with the time lost (s): the try and the pause.
    The error also rises if the pause would reach the deadline of the policy. `first` is the error
    of a first try that the caller has made itself, and the time of `clock` when that try began.
    """
    clock = clock or running_loop().time
    began = tried_at = clock() if first is None else first[1]
    tries = throttled = 0
    while True:
        tries += 1
        try:
            if first is not None:
                raise first[0]
            return await call()
        except RolloutError as failed:
            error, first = failed, None
            is_throttled = error.status in THROTTLED
            if not (isinstance(error, policy.errors) or (is_throttled and policy.waits)):
                raise
            if not error.retryable or isinstance(error, policy.except_for):
                raise
            if is_throttled:
                tries, throttled = tries - 1, throttled + 1
                pause = delay_s(THROTTLED_TRY, throttled, error.retry_after_s, random)
                if pause > LONGEST_PAUSE_S:
                    raise
            else:
                if tries >= policy.max_tries:
                    raise
                pause = delay_s(policy, tries, error.retry_after_s, random)
                if policy.deadline_s is not None and clock() - began + pause >= policy.deadline_s:
                    raise
        if on_retry:
            on_retry(error, clock() - tried_at + pause)
        await sleep(pause)
        tried_at = clock()


def delay_s(
    policy: RetryPolicy,
    tries: int,
    retry_after_s: float | None = None,
    random: Callable[[], float] = random,
) -> float:
    """Pause after failure number `tries`: exponential with jitter, added to `retry_after_s`.

    It is added because a server names the same time to all callers that it refuses.
    """
    # the exponent is bounded as 2.0**1024 is an OverflowError
    backoff = min(policy.cap_s, policy.base_s * policy.growth ** min(tries - 1, 64))
    return (retry_after_s or 0.0) + backoff * (1 - policy.jitter * (1 - random()))


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
