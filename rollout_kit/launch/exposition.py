"""Figures in Prometheus' format, by its client library: of whatever gives families of them, and of
the servers of an `ng_run`."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from starlette.responses import PlainTextResponse, Response

from ..errors import how_to_install
from ..types import JsonObject

UP = frozenset({"ready"})
"""States in which a server answers."""


class Family(NamedTuple):
    """All values of one name: label values → value. A counter's name gets `_total`."""

    kind: Literal["gauge", "counter"]
    name: str
    help: str
    values: Mapping[tuple[str, ...], float]
    labels: tuple[str, ...] = ()


class _Collector:
    """Gives Prometheus' registry what `families` returns when it is asked."""

    def __init__(self, families: Callable[[], Iterable[Family]]) -> None:
        self._families = families

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterable[Any]:
        from prometheus_client import core

        kinds = {"gauge": core.GaugeMetricFamily, "counter": core.CounterMetricFamily}
        for family in self._families():
            if family.values:
                found = kinds[family.kind](family.name, family.help, labels=family.labels)
                for labels, value in family.values.items():
                    found.add_metric(labels, value)
                yield found


def make_registry(families: Callable[[], Iterable[Family]]) -> Any:
    """A registry of Prometheus' client library, to which more can be added."""
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(families))  # type: ignore[arg-type]
    return registry


def expose(registry: Any, accept: str) -> Response:
    """The reply to a scrape, in the format that its Accept asks for."""
    from prometheus_client.exposition import choose_encoder

    encode, content_type = choose_encoder(accept)
    return Response(encode(registry), headers={"content-type": content_type})


def expose_servers(entries: Callable[[], list[JsonObject]], accept: str) -> Response:
    """The reply of a head server."""
    try:
        return expose(make_registry(lambda: _families(entries())), accept)
    except ImportError:
        text = f"/metrics needs the extra prometheus: {how_to_install('rollout-kit[prometheus]')}\n"
        return PlainTextResponse(text, status_code=501)


def _families(servers: list[JsonObject]) -> Iterable[Family]:
    named = {(each["name"], each["server_type"]): each for each in servers}
    labels, by_worker = ("server", "type"), ("server", "worker")
    workers = {(each["name"], one["label"]): one for each in servers for one in each["workers"]}
    yield Family(
        "gauge",
        "rollout_kit_server_up",
        "Whether every process of the server is ready.",
        {labels: float(each["state"] in UP) for labels, each in named.items()},
        labels,
    )
    yield Family(
        "counter",
        "rollout_kit_server_restarts",
        "Restarts of the server's process.",
        {labels: one["restarts"] for labels, one in workers.items()},
        by_worker,
    )
    yield Family(
        "gauge",
        "rollout_kit_server_uptime_seconds",
        "Time since the process was started.",
        {k: one["uptime_s"] for k, one in workers.items() if one["uptime_s"] is not None},
        by_worker,
    )
