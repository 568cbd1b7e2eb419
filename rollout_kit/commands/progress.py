"""What people see while rollouts are collected: a bar on a terminal, lines in a log, or JSON.

Only modules of this room print.
"""

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO

import orjson
from tqdm import tqdm

from ..collecting.live.figures import arm_rewards, parts_of
from ..collecting.live.snapshot import Snapshot
from ..types import JsonObject

log = logging.getLogger(__name__)

LOG_EVERY_S = 30.0
"""Seconds between two lines in a log file."""

SMALLEST_BAR = 6
"""Columns of the smallest useful bar, its ends included."""

SPARED_FIRST = (
    "none_failed",
    "in_flight",
    "tokens",
    "burn",
    "arms",
    "unverified",
    "requests_429",
    "bottleneck",
    "failed",
    "cost",
    "reward",
)
"""Figures that a narrow terminal leaves out, in this order."""


@dataclass(slots=True)
class Progress:
    """Shows the snapshots of one run after another. `as_json` prints one object per line instead of
    anything for people."""

    as_json: bool = False
    title: str = "Collecting rollouts"
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    _seen: Snapshot | None = None
    _shown_s: float = 0.0
    """Time of the run that the last line is of."""
    _bar: Any = None
    _is_cut: bool = False
    """Whether lines could not be printed."""

    def say(self, text: str, **fields: Any) -> None:
        """Print a line for people, or its fields as JSON."""
        if self.as_json:
            self._print_json(fields or {"event": "note", "text": text})
        elif self._bar is not None:
            self._print(text, self.out, self._bar.write)
        else:
            self._print(text, self.out)

    def read(self, snapshot: Snapshot | None) -> None:
        """Show a snapshot: each on a terminal, and few of them in a log. The last state of the bar
        stays on the screen."""
        if snapshot is None or snapshot is self._seen:
            return
        self._seen, is_over = snapshot, snapshot.state == "ended"
        if snapshot.number == 1:
            self._shown_s = 0.0
        if self._bar is None and not (self.as_json or is_over) and self.err.isatty():
            self._bar = self._open_bar(snapshot)
        is_due = snapshot.elapsed_s - self._shown_s >= LOG_EVERY_S
        if self._bar is not None:
            self._draw_bar(snapshot)
        elif snapshot.finished if is_over else is_due:
            self._shown_s = snapshot.elapsed_s
            if self.as_json:
                self._print_json({"event": "progress", **fields_of(snapshot)})
            else:
                self._print(self._line(snapshot), self.err)
        if is_over and self._bar is not None:
            self._bar.close()
            self._bar = None

    def _open_bar(self, snapshot: Snapshot) -> Any:
        return tqdm(
            total=snapshot.this_run.total,
            initial=snapshot.this_run.earlier,
            desc=self.title,
            file=self.err,
            mininterval=0,
            miniters=0,
            dynamic_ncols=True,
        )

    def _draw_bar(self, snapshot: Snapshot) -> None:
        bar, run = self._bar, snapshot.this_run
        bar.total, bar.initial = run.total, run.earlier
        title, figures = self._fit(bar, run.ended, parts_of(snapshot))
        bar.set_description_str(title, refresh=False)
        bar.set_postfix_str(figures, refresh=False)
        bar.update(run.ended - bar.n)

    def _line(self, snapshot: Snapshot) -> str:
        run = snapshot.this_run
        return tqdm.format_meter(
            run.ended,
            run.total,  # type: ignore[arg-type]  (None: a total that is not known yet)
            max(snapshot.elapsed_s, 1e-6),
            prefix=self.title,
            postfix=", ".join(parts_of(snapshot).values()),
            initial=run.earlier,
            ncols=None,
        )

    def _fit(self, bar: Any, finished: int, parts: dict[str, str]) -> tuple[str, str]:
        """Title and figures, as far as the terminal has room for them: tqdm cuts the end off."""
        state = {**bar.format_dict, "n": finished, "ncols": 0}
        columns, title = bar.format_dict["ncols"], self.title
        spared = iter(SPARED_FIRST)
        while columns:
            state |= {"prefix": title, "postfix": ", ".join(parts.values())}
            if len(tqdm.format_meter(**state)) + SMALLEST_BAR <= columns:
                break
            if title == self.title:
                title = title.split()[-1].capitalize()
            elif (name := next(spared, None)) is not None:
                parts.pop(name, None)
            else:
                break
        return title, ", ".join(parts.values())

    def report(self, metrics: Mapping[str, Any]) -> None:
        """The headline metrics for people; for programs everything but the lists of tasks."""
        if self.as_json:
            shown = {name: value for name, value in metrics.items() if name != "agents"}
            self._print_json({"event": "metrics", **shown})
            return
        if headline := _headline(metrics):
            self._print(json.dumps(headline, ensure_ascii=False, indent=2), self.out)
        for line in _lines_per_agent(metrics.get("agents", ())):
            self._print(line, self.out)

    def _print(self, text: str, out: TextIO, write: Callable[..., None] = print) -> None:
        """Print a line. A full disk under a log ends no run; a pipe that its reader closed does."""
        try:
            write(text, file=out)
            out.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            if not self._is_cut:
                log.warning("cannot print: %s; the run goes on without", error.strerror)
            self._is_cut = True

    def _print_json(self, fields: Mapping[str, Any]) -> None:
        self._print(orjson.dumps(fields).decode(), self.out)


def fields_of(snapshot: Snapshot) -> JsonObject:
    """The figures for a program."""
    run, counts, parallel = snapshot.this_run, snapshot.counts, snapshot.parallel
    arms, cost, holdup = arm_rewards(snapshot), snapshot.cost, snapshot.holdup
    return {
        "finished": run.ended,
        "total": run.total,
        "elapsed_s": snapshot.elapsed_s,
        "rollouts_per_s": round(snapshot.speed.rollouts_per_s, 3),
        "reward": run.reward,
        "in_flight": counts.in_flight,
        **({"waiting": counts.waiting} if counts.waiting else {}),
        **({"limit": parallel.limit} if parallel.adapts else {}),
        "failed": run.failed,
        "unverified": counts.unverified,
        "requests_429": run.requests_429,
        **({"arms": arms} if arms else {}),
        "bottleneck": holdup.part if holdup else None,
        **({"cost": asdict(cost)} if cost else {}),
    }


def _headline(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Means of the reward and of every number that the verifier set, `accuracy` after the reward
    and `avg_tool_calls` at the end, as the metrics file has them."""
    means = dict(metrics["metrics"])
    first = {name: means.pop(name, metrics.get(name)) for name in ("reward", "accuracy")}
    means.setdefault("avg_tool_calls", metrics.get("avg_tool_calls"))
    found = {**first, **means}
    return {name: round(value, 4) for name, value in found.items() if value is not None}


def _lines_per_agent(agents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line of means for each agent, if there are several."""
    if len(agents) < 2:
        return
    width = max(len(agent["agent_ref"]["name"]) for agent in agents)
    for agent in agents:
        means = {name.removeprefix("mean/"): value for name, value in agent["key_metrics"].items()}
        first = {"reward": means.pop("reward")} if "reward" in means else {}
        shown = "  ".join(f"{name} {value:.4g}" for name, value in {**first, **means}.items())
        yield f"{agent['agent_ref']['name']:<{width}}  {shown}"
