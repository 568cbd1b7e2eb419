"""Follows one run for the trackers that its command names."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..._version import __version__
from ...config.keys import MlflowConfig, TrackersConfig, WandbConfig
from ...reading import read_object
from ...secrets import mask, secret_values
from ...serving.transport.loop import interrupts
from ...store.files import OutputPaths
from ...types import JsonObject, Say
from ..ending import Ending
from ..live.snapshot import Snapshot
from ..run import Run
from .installed import SWITCHES, is_on
from .link import Link, Message
from .outbox import Backlog, Latest
from .scalars import TableSample, final_figures, scalars_of

if TYPE_CHECKING:
    from .prometheus import RunPage

CURVE_EVERY_S = 5.0
"""Seconds between two points of a curve."""

WAIT_S = 60.0
"""At the end a run waits for at most this long until trackers have everything."""

TRACES_EVERY_S = 0.5
"""Seconds between two batches of traces."""


@asynccontextmanager
async def track(run: Run, say: Say) -> AsyncIterator["Tracking"]:
    """Context around a run, up to where its files are complete."""
    tracking = Tracking(run, say)
    is_done, wait_s = False, WAIT_S
    async with tracking.served_page():
        tracking.start()
        try:
            yield tracking
            is_done = run.ending is Ending.DONE
        except asyncio.CancelledError:
            wait_s = 0.0
            raise
        finally:
            with interrupts(tracking.hurry):
                await tracking.close(is_done, wait_s)


@dataclass(frozen=True, slots=True)
class Curves:
    """A tracker of figures."""

    link: Link
    latest: Latest
    sample: TableSample
    has_files: bool


@dataclass(slots=True)
class Tracking:
    """`read` every snapshot. The trackers' processes start with `start` and end with `close`."""

    run: Run
    say: Say
    _curves: list[Curves] = field(default_factory=list)
    _traces: Link | None = None
    _page: "RunPage | None" = None
    _step: int = 0
    _is_verified: bool = True
    """Whether no response waits for a verdict."""
    _figures: dict[str, float] = field(default_factory=dict)

    @asynccontextmanager
    async def served_page(self) -> AsyncIterator[None]:
        """Context in which Prometheus can ask for the figures, if it is wanted."""
        command = self.run.command
        if command.metrics_port is None:
            yield
            return
        from .prometheus import RunPage, serve_page  # needs an HTTP server

        self._page = RunPage()
        self.run.observe(self._page)
        token = command.auth_token or ""
        async with serve_page(self._page, command.metrics_port, token, self.say):
            yield

    def start(self) -> None:
        """Start what the command names; say which keys have no effect."""
        command: TrackersConfig = self.run.command
        for name, switch in SWITCHES.items():
            keys = getattr(command, name)
            if keys.model_fields_set and not is_on(keys):
                self.say(f"{name}: nothing is sent: {name}.{switch} is not given")
        if is_on(command.wandb):
            self._add("W&B", "wandb_worker.py", command.wandb, {"init": _init_of(command.wandb)})
        if is_on(keys := command.mlflow):
            own = keys.model_dump(include={"experiment", "tracking_uri", "run_name", "tags"})
            self._add("MLflow", "mlflow_worker.py", keys, own)
        if is_on(command.otel):
            backlog, settings = Backlog(), command.otel.model_dump()
            worker = "otel_worker.py"
            self._traces = Link(
                "OpenTelemetry", worker, settings, backlog, self._say_masked, TRACES_EVERY_S
            )
            self._traces.start()
            self.run.observe(backlog)

    def read(self, snapshot: Snapshot) -> None:
        """Follow the figures."""
        if self._page is not None:
            self._page.read(snapshot)
        self._step, self._is_verified = snapshot.counts.ended, not snapshot.counts.unverified
        self._figures = scalars_of(snapshot) if self._curves else {}
        for each in self._curves:
            each.latest.put(self._step, self._figures)

    def hurry(self) -> None:
        """Wait for no tracker any more."""
        for link in self._links:
            link.hurry()

    async def close(self, is_done: bool, wait_s: float) -> None:
        """Send the rest, to all at the same time."""
        if not self._links:
            return
        closing = [self._traces.close([], wait_s)] if self._traces else []
        paths = self.run.collection.paths
        figures = {**self._figures, **(final_figures(read_object(paths.metrics)) if paths else {})}
        for each in self._curves:
            each.latest.put(self._step, figures)
            closing.append(each.link.close([*self._last(each, paths, is_done)], wait_s))
        await asyncio.gather(*closing)

    @property
    def _links(self) -> list[Link]:
        traces = [self._traces] if self._traces else []
        return [*traces, *(each.link for each in self._curves)]

    def _add(self, name: str, worker: str, keys: WandbConfig | MlflowConfig, own: Any) -> None:
        settings = {**own, "config": self._config()}
        latest, sample = Latest(), TableSample(keys.samples)
        link = Link(name, worker, settings, latest, self._say_masked, CURVE_EVERY_S)
        self._curves.append(Curves(link, latest, sample, keys.files))
        self.run.observe(sample)
        link.start()

    def _config(self) -> JsonObject:
        """What the run was started with, without its secrets."""
        collection = self.run.collection
        config = collection.manifest.content.get("config") or {}
        own = {"version": __version__, "command": collection.lines.again}
        return {**mask(config), "rollout_kit": own}

    def _last(self, each: Curves, paths: OutputPaths | None, is_done: bool) -> Iterator[Message]:
        if table := each.sample.table():
            yield Message("table", {**table, "step": self._step}, "the table")
        files = list(_files(paths, self._is_verified)) if paths and each.has_files else []
        if files and paths:
            content = {"name": paths.main.stem, "paths": files}
            yield Message("files", content, "the files")
        yield Message("end", {"is_finished": is_done}, "the end of the run")

    def _say_masked(self, text: str, **fields: Any) -> None:
        """Errors of a tracker may quote its address or its headers."""
        secrets = secret_values(self.run.command.model_dump())
        self.say(mask(text, secrets), **mask(fields, secrets))


def _init_of(keys: WandbConfig) -> JsonObject:
    """The arguments of `wandb.init`."""
    return keys.model_dump(exclude={"samples", "files"}, exclude_defaults=True)


def _files(paths: OutputPaths, is_verified: bool) -> Iterator[str]:
    """The files of an output that stay when it is closed."""
    passing = [paths.turns, paths.torn, *([paths.unverified] if is_verified else [])]
    for path in paths.all():
        if path not in passing and path.is_file() and path.stat().st_size:
            yield str(path.absolute())
