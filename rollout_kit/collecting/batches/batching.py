"""Runs whose models answer in batches: what a plan says about it, and rollouts that wait."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b

from ...errors import (
    BatchPending,
    ConfigError,
    PeerLost,
    PeerUnreachable,
    RolloutError,
    SessionLost,
)
from ...launch.reach import Servers
from ...session import BatchTicket
from ...types import Attempt, JsonObject, PutAside
from ..agents import AgentPlan

Batching = Mapping[str, JsonObject]
"""Model server → what it says about its batches."""


async def find_batching(
    servers: Servers, plans: Iterable[AgentPlan] = (), executor: str = "local"
) -> Batching:
    """Those of the model servers that gather requests; ConfigError if rollouts cannot wait."""
    found, peers = dict[str, JsonObject](), servers.peers
    models = [*(plan.model_server for plan in plans), *servers.models]
    for name in filter(None, dict.fromkeys(models)):
        with suppress(RolloutError):  # what a run needs of it is asked for elsewhere
            if isinstance(batch := (await peers.describe(name)).get("batch"), dict):
                found[name] = batch
    if found and executor != "local":
        raise ConfigError(
            f"executor={executor}: {', '.join(found)} answers in batches, for which workers cannot"
            " wait: leave out executor, as rollouts that wait need no CPU"
        )
    return found


def describe_batching(batching: Batching) -> Iterator[str]:
    """What waits where, for people."""
    for name, batch in batching.items():
        then = "are sent without a batch" if batch["fallback"] else "fail"
        wait = _hours(batch["max_wait_s"])
        yield (
            f"{name} answers in batches of {batch['provider']}, of up to {batch['size']:,}"
            f" requests: rollouts wait, and requests without an answer after {wait}"
            f" {then}. You may stop this command: the same command continues with its batches"
        )


MOST_ASIDE = 4
"""An attempt that was put aside for more requests may ask another one each time, so the next answer
is waited for in its session."""


def make_ticket(attempt: Attempt, *names: object, waits: bool) -> BatchTicket:
    """A ticket for a part of a rollout, which `names` tell from all others."""
    id = blake2b(repr(names).encode(), digest_size=12).hexdigest()
    return BatchTicket(id, waits or attempt.times_aside >= MOST_ASIDE)


def put_aside(attempt: Attempt, pending: BatchPending) -> PutAside:
    """An attempt as it goes on once the batch of its request has ended."""
    times = attempt.times_aside + (pending.request != attempt.asked)
    attempt = attempt._replace(asked=pending.request, times_aside=times)
    return PutAside(attempt, pending.server, pending.batch)


def gives_up_answers(plan: AgentPlan, error: RolloutError, num_lost: int) -> bool:
    """Whether the model answers anew after this error, where batches keep its answers: they may be
    the reason for it. `num_lost` earlier attempts have lost a server."""
    if isinstance(error, SessionLost | PeerLost | PeerUnreachable):
        return error.server == plan.resources and num_lost > 0
    return error.server != plan.model_server


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.3g} h" if seconds >= 3600 else f"{seconds:.3g} s"
