"""The figures of a run for Prometheus: `/metrics` on a port of this machine."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...launch.exposition import Family, expose, make_registry
from ...serving.sockets import bind_page, url_of
from ...serving.transport.app import served
from ...types import Outcome, Rollout, Say
from ..live.snapshot import Figure, Snapshot, figures_of

PREFIX = "rollout_kit"

SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)
"""Buckets of durations: a rollout takes from a moment to an hour."""

TOKENS = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)


class RunPage:
    """Give it every outcome and every snapshot. No label names a task."""

    def __init__(self) -> None:
        from prometheus_client import Histogram

        self._snapshot: Snapshot | None = None
        self._registry = make_registry(
            lambda: families_of(self._snapshot) if self._snapshot else ()
        )

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


def families_of(snapshot: Snapshot) -> Iterator[Family]:
    """The figures of a snapshot that have a name in Prometheus."""
    found: dict[str, list[Figure]] = {}
    for each in figures_of(snapshot):
        if each.metric:
            found.setdefault(each.metric, []).append(each)
    for metric, figures in found.items():
        yield Family(
            "counter" if metric.endswith("_total") else "gauge",
            f"{PREFIX}_{metric.removesuffix('_total')}",
            " ".join(dict.fromkeys(each.about for each in figures)),
            {tuple(each.labels.values()): each.value for each in figures},
            tuple(figures[0].labels),
        )


@asynccontextmanager
async def serve_page(page: RunPage, port: int, token: str, say: Say) -> AsyncIterator[None]:
    """Context in which `/metrics` is served; ConfigError if the port is taken."""
    sock = bind_page("metrics_port", port)
    url = f"{url_of(sock)}/metrics"
    say(f"Prometheus: {url}", event="metrics_page", url=url)
    app = Starlette(routes=[Route("/metrics", page.answer)])
    async with served(app, sock, token):
        yield
