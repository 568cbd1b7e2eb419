"""The figures of a run for Prometheus: `/metrics` on a port of this machine."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...launch.exposition import Family, expose, make_registry, single
from ...serving.sockets import bind_page, url_of
from ...serving.transport.app import served
from ...types import Outcome, Rollout, Say
from ..live.snapshot import PlanCounts, Snapshot

PREFIX = "rollout_kit"

SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)
"""Buckets of durations: a rollout takes from a moment to an hour."""

TOKENS = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)


class RunPage:
    """Give it every outcome and every snapshot. No label names a task."""

    def __init__(self) -> None:
        from prometheus_client import Histogram

        self._snapshot: Snapshot | None = None
        self._registry = make_registry(self._families)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Any:
            return Histogram(f"{PREFIX}_{name}", text, buckets=buckets, registry=self._registry)

        about = "of the rollouts that have ended in this run"
        self._duration = histogram("rollout_duration_seconds", f"Duration {about}.", SECONDS)
        self._verification = histogram(
            "verification_duration_seconds", f"Duration of the verification {about}.", SECONDS
        )
        self._tokens = histogram("rollout_output_tokens", f"Output tokens {about}.", TOKENS)

    def take(self, outcome: Outcome) -> None:
        """Follow an outcome."""
        if isinstance(outcome, Rollout):
            info = outcome.info
            self._tokens.observe(info.output_tokens)
            if info.duration_s is not None:
                self._duration.observe(info.duration_s)
            if info.verify_s is not None:
                self._verification.observe(info.verify_s)

    def read(self, snapshot: Snapshot) -> None:
        """Follow the figures."""
        self._snapshot = snapshot

    async def answer(self, request: Request) -> Response:
        """The reply to a scrape."""
        return expose(self._registry, request.headers.get("accept", ""))

    def _families(self) -> Iterator[Family]:
        if (snapshot := self._snapshot) is None:
            return
        yield from _counts(snapshot.counts)
        yield from _figures(snapshot)
        yield from _parts(snapshot)


@asynccontextmanager
async def serve_page(page: RunPage, port: int, token: str, say: Say) -> AsyncIterator[None]:
    """Context in which `/metrics` is served; ConfigError if the port is taken."""
    sock = bind_page("metrics_port", port)
    url = f"{url_of(sock)}/metrics"
    say(f"Prometheus: {url}", event="metrics_page", url=url)
    app = Starlette(routes=[Route("/metrics", page.answer)])
    async with served(app, sock, token):
        yield


def _counts(counts: PlanCounts) -> Iterator[Family]:
    def gauge(name: str, text: str, value: float | None) -> Family:
        return single("gauge", f"{PREFIX}_rollouts_{name}", text, value)

    yield gauge("planned", "Rollouts of the plan, with those of earlier runs.", counts.planned)
    yield gauge("owed", "Rollouts that have not begun.", counts.owed)
    yield gauge("in_flight", "Rollouts that run.", counts.in_flight)
    yield gauge("parked", "Responses that wait for a verdict without a slot.", counts.parked)
    ended = {"done": counts.done, "failed": counts.failed, "unverified": counts.unverified}
    yield Family(
        "counter",
        f"{PREFIX}_rollouts",
        "Rollouts that have ended, with those of earlier runs that are on disk.",
        {(status,): number for status, number in ended.items()},
        ("status",),
    )


def _figures(snapshot: Snapshot) -> Iterator[Family]:
    def gauge(name: str, text: str, value: float | None) -> Family:
        return single("gauge", f"{PREFIX}_{name}", text, value)

    reward, cost = snapshot.reward, snapshot.cost
    yield gauge("parallelism_limit", "Limit on the rollouts in flight.", snapshot.parallel.limit)
    yield gauge("run_duration_seconds", "Time since the run began.", snapshot.elapsed_s)
    if reward is not None:
        yield gauge("reward_mean", "Mean reward of all that is on disk.", reward.value)
        yield gauge("reward_mean_low", "Lower end of its 95 % interval.", reward.low)
        yield gauge("reward_mean_high", "Upper end of its 95 % interval.", reward.high)
    text = "Output tokens of this run."
    yield single("counter", f"{PREFIX}_output_tokens", text, snapshot.output_tokens)
    if cost is not None:
        yield single("counter", f"{PREFIX}_cost_dollars", "Cost of this run.", cost.usd)
        yield gauge("cost_projected_dollars", "Its cost in the end.", cost.projected_usd)
    yield Family(
        "counter",
        f"{PREFIX}_failures",
        "Rollouts of this run without a result, by class of error.",
        {(each.name,): each.number for each in snapshot.failures},
        ("class",),
    )
    yield Family(
        "gauge",
        f"{PREFIX}_waiting",
        "Rollouts in flight, by what they wait for.",
        {(stage,): number for stage, number in snapshot.stages.items()},
        ("stage",),
    )


def _parts(snapshot: Snapshot) -> Iterator[Family]:
    """Each agent, and each arm."""
    for kind, parts in (("agent", snapshot.agents), ("arm", snapshot.arms)):
        yield Family(
            "gauge",
            f"{PREFIX}_{kind}_rollouts",
            f"Rollouts of the {kind} on disk.",
            {(each.name,): each.rollouts for each in parts},
            (kind,),
        )
        yield Family(
            "gauge",
            f"{PREFIX}_{kind}_reward_mean",
            f"Mean reward of the {kind}.",
            {(each.name,): each.reward.value for each in parts if each.reward},
            (kind,),
        )
