"""What people see while rollouts are collected: a bar on a terminal, lines in a log, or JSON.

Only modules of this room print.
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

import orjson
from tqdm import tqdm

from ..collecting.live.figures import RunFigures
from ..collecting.pacing.bill import Bill
from ..collecting.run import Run
from ..types import Outcome

log = logging.getLogger(__name__)

LOG_EVERY_S = 30.0
"""Seconds between two lines in a log file."""

REDRAW_EVERY_S = 0.2

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
    """Follows one run. `as_json` prints one object per line instead of anything for people."""

    as_json: bool = False
    title: str = "Collecting rollouts"
    generates: bool = True
    """Whether the tokens of a rollout are this run's."""
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    in_flight: int = 0
    bill: Bill | None = None
    """Cost of the run, if it is known."""
    clock: Callable[[], float] = time.monotonic
    figures: RunFigures = field(init=False)
    _shown_at: float = 0.0
    _bar: Any = None
    _is_cut: bool = False
    """Whether lines could not be printed."""

    def __post_init__(self) -> None:
        self.figures = RunFigures(bill=self.bill, generates=self.generates, clock=self.clock)
        self.figures.began = self.clock()

    def for_another_run(self) -> "Progress":
        """The same display with nothing counted yet."""
        return Progress(
            self.as_json, self.title, self.generates, self.out, self.err, clock=self.clock
        )

    def say(self, text: str, **fields: Any) -> None:
        """Print a line for people, or its fields as JSON."""
        if self.as_json:
            self._print_json(fields or {"event": "note", "text": text})
        elif self._bar is not None:
            self._print(text, self.out, self._bar.write)
        else:
            self._print(text, self.out)

    def start(self, total: int | None, done: int, run: Run | None = None) -> None:
        """Start the clock; `run` gives the figures beyond the outcomes."""
        self.figures.start(total, done, run)
        self._shown_at = self.figures.began
        if not self.as_json and self.err.isatty():
            self._bar = tqdm(
                total=total,
                initial=done,
                desc=self.title,
                file=self.err,
                mininterval=REDRAW_EVERY_S,
                dynamic_ncols=True,
            )

    def set_total(self, total: int) -> None:
        self.figures.total = total
        if self._bar is not None:
            self._bar.total = total

    def update(self, outcomes: Iterable[Outcome], in_flight: int) -> None:
        """Count outcomes; redraw only as often as people can read."""
        self.in_flight = in_flight
        if self.figures.run is None:  # else the run has counted them
            for outcome in outcomes:
                self.figures.tally.take(outcome)
        self._show()

    def _show(self) -> None:
        now = self.clock()
        every = REDRAW_EVERY_S if self._bar is not None else LOG_EVERY_S
        if now - self._shown_at < every:
            return
        self._shown_at = now
        self.figures.look()
        self._draw()

    def _draw(self) -> None:
        if self.as_json:
            self._print_json({"event": "progress", **self._fields()})
        elif self._bar is not None:
            title, figures = self._fitting(self._bar)
            self._bar.set_description_str(title, refresh=False)
            self._bar.set_postfix_str(figures, refresh=False)
            self._bar.update(self.figures.finished - self._bar.n)
        else:
            self._print(self._line(), self.err)

    def _line(self) -> str:
        return tqdm.format_meter(
            self.figures.finished,
            self.figures.total,  # type: ignore[arg-type]  (None: a total that is not known yet)
            max(self.figures.elapsed_s, 1e-6),
            prefix=self.title,
            postfix=self._postfix(),
            initial=self.figures.initial,
            ncols=None,
        )

    def _fitting(self, bar: Any) -> tuple[str, str]:
        """Title and figures, as far as the terminal has room for them: tqdm cuts the end off."""
        state = {**bar.format_dict, "n": self.figures.finished, "ncols": 0}
        columns, title, parts = bar.format_dict["ncols"], self.title, self._parts()
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

    def _postfix(self) -> str:
        return ", ".join(self._parts().values())

    def _parts(self) -> dict[str, str]:
        figures, tally = self.figures, self.figures.tally
        parts = {} if figures.reward is None else {"reward": f"reward={figures.reward:.3f}"}
        if figures.output_tokens_per_s is not None:
            parts["tokens"] = f"tok/s={figures.output_tokens_per_s:.0f}"
        limit = "" if figures.moving_limit is None else f"/{figures.moving_limit}"
        parts["in_flight"] = f"in flight={self.in_flight}{limit}"
        parts["failed" if tally.failed else "none_failed"] = f"failed={tally.failed}"
        if tally.unverified:
            parts["unverified"] = f"unverified={tally.unverified}"
        if number := figures.requests_429:
            parts["requests_429"] = f"429s={number}"
        if shown := self._shown_arms():
            parts["arms"] = shown
        if figures.bottleneck:
            parts["bottleneck"] = figures.bottleneck.short()
        return parts | figures.cost_parts()

    def _shown_arms(self) -> str:
        """The arms with the lowest and the highest reward; empty for fewer than two."""
        ranked = sorted((reward, arm) for arm, reward in self.figures.arm_rewards.items())
        if len(ranked) < 2:
            return ""
        return f"arms={ranked[0][1]} {ranked[0][0]:.2f}…{ranked[-1][1]} {ranked[-1][0]:.2f}"

    def _fields(self) -> dict[str, Any]:
        figures, tally, limit = self.figures, self.figures.tally, self.figures.moving_limit
        arms, cost = figures.arm_rewards, figures.cost()
        return {
            "finished": figures.finished,
            "total": figures.total,
            "elapsed_s": round(figures.elapsed_s, 3),
            "rollouts_per_s": round(figures.rollouts_per_s, 3),
            "reward": figures.reward,
            "in_flight": self.in_flight,
            **({} if limit is None else {"limit": limit}),
            "failed": tally.failed,
            "unverified": tally.unverified,
            "requests_429": figures.requests_429,
            **({"arms": arms} if arms else {}),
            "bottleneck": figures.bottleneck.part if figures.bottleneck else None,
            **({"cost": cost} if cost else {}),
        }

    def close(self) -> None:
        """The clock stops; the last state of the bar stays on the screen."""
        self.figures.stop()
        if self.figures.tally.finished or self._bar is not None:
            self._draw()
        if self._bar is not None:
            self._bar.close()
            self._bar = None

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


def _headline(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Means of the reward and of every number that the verifier set."""
    means = {name: round(value, 4) for name, value in metrics["metrics"].items()}
    first = {"reward": means.pop("reward")} if "reward" in means else {}
    return {**first, **means}


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
