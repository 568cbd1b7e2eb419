"""What people see while rollouts are collected: a bar on a terminal, lines in a log, or JSON.

Only this module and `cli` print.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

import orjson
from tqdm import tqdm

from ..collector.run import Run
from ..metrics.tally import Tally
from ..pacing.bill import Bill
from ..pacing.bottleneck import Bottleneck
from ..pacing.limiter import Adaptive
from ..types import Outcome

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
    "bottleneck",
    "failed",
    "cost",
    "reward",
)
"""Figures that a narrow terminal leaves out, in this order."""

BOTTLENECK_EVERY_S = 1.0
"""How often the bottleneck is computed anew."""


@dataclass(slots=True)
class Progress:
    """Follows one run. `as_json` prints one object per line instead of anything for people."""

    as_json: bool = False
    title: str = "Collecting rollouts"
    generates: bool = True
    """Whether the tokens of a rollout are this run's."""
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    total: int | None = None
    initial: int = 0
    tally: Tally = field(default_factory=Tally)
    in_flight: int = 0
    bill: Bill | None = None
    """Cost of the run, if it is known."""
    run: Run | None = None
    clock: Callable[[], float] = time.monotonic
    began: float = field(init=False)
    _ended: float | None = None
    _shown_at: float = 0.0
    _bottleneck: Bottleneck | None = None
    _bottleneck_at: float = 0.0
    _bar: Any = None

    def __post_init__(self) -> None:
        self.began = self.clock()

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
            self._bar.write(text, file=self.out)
        else:
            print(text, file=self.out, flush=True)

    def start(self, total: int | None, done: int, run: Run | None = None) -> None:
        """Start the clock; `run` gives the figures beyond the outcomes."""
        self.total, self.initial, self.began = total, done, self.clock()
        self._shown_at = self._bottleneck_at = self.began
        if run is not None:
            self.run, self.tally = run, run.tally
            self.bill, self.generates = run.runner.bill, run.source.generates
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
        self.total = total
        if self._bar is not None:
            self._bar.total = total

    def update(self, outcome: Outcome, in_flight: int) -> None:
        """Count an outcome; redraw only as often as people can read."""
        self.in_flight = in_flight
        if self.run is not None or self.tally.take(outcome):  # a run has counted it already
            self._show()

    def _show(self) -> None:
        now = self.clock()
        every = REDRAW_EVERY_S if self._bar is not None else LOG_EVERY_S
        if now - self._shown_at < every:
            return
        self._shown_at = now
        if self.run and now - self._bottleneck_at >= BOTTLENECK_EVERY_S:
            self._bottleneck_at, self._bottleneck = now, self.run.meter.stable_verdict()
        self._draw()

    def _draw(self) -> None:
        if self.as_json:
            self._print_json({"event": "progress", **self._figures()})
        elif self._bar is not None:
            title, figures = self._fitting(self._bar)
            self._bar.set_description_str(title, refresh=False)
            self._bar.set_postfix_str(figures, refresh=False)
            self._bar.update(self.initial + self.tally.finished - self._bar.n)
        else:
            print(self._line(), file=self.err, flush=True)

    def _line(self) -> str:
        return tqdm.format_meter(
            self.initial + self.tally.finished,
            self.total,  # type: ignore[arg-type]  (None: a total that is not known yet)
            max(self.elapsed_s, 1e-6),
            prefix=self.title,
            postfix=self._postfix(),
            initial=self.initial,
            ncols=None,
        )

    def _fitting(self, bar: Any) -> tuple[str, str]:
        """Title and figures, as far as the terminal has room for them: tqdm cuts the end off."""
        state = {**bar.format_dict, "n": self.initial + self.tally.finished, "ncols": 0}
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
        parts = (
            {"reward": f"reward={self.tally.reward / self.tally.scored:.3f}"}
            if self.tally.scored
            else {}
        )
        if self.generates:
            parts["tokens"] = f"tok/s={self.tally.output_tokens / max(self.elapsed_s, 1e-6):.0f}"
        limit = "" if self.limit is None else f"/{self.limit}"
        parts["in_flight"] = f"in flight={self.in_flight}{limit}"
        parts["failed" if self.tally.failed else "none_failed"] = f"failed={self.tally.failed}"
        if self.tally.unverified:
            parts["unverified"] = f"unverified={self.tally.unverified}"
        if shown := self._shown_arms():
            parts["arms"] = shown
        if self._bottleneck:
            parts["bottleneck"] = self._bottleneck.short()
        if self.bill:
            parts |= self.bill.parts(self.tally.finished, self.wanted, self.elapsed_s)
        return parts

    def _arm_rewards(self) -> dict[str, float]:
        """Arm → its mean reward, over all that is on disk."""
        return self.run.metrics.arm_rewards() if self.run else {}

    def _shown_arms(self) -> str:
        """The arms with the lowest and the highest reward; empty for fewer than two."""
        ranked = sorted((reward, arm) for arm, reward in self._arm_rewards().items())
        if len(ranked) < 2:
            return ""
        return f"arms={ranked[0][1]} {ranked[0][0]:.2f}…{ranked[-1][1]} {ranked[-1][0]:.2f}"

    def _figures(self) -> dict[str, Any]:
        return {
            "finished": self.initial + self.tally.finished,
            "total": self.total,
            "elapsed_s": round(self.elapsed_s, 3),
            "rollouts_per_s": round(self.tally.rollouts / max(self.elapsed_s, 1e-6), 3),
            "reward": self.tally.reward / self.tally.scored if self.tally.scored else None,
            "in_flight": self.in_flight,
            **({} if self.limit is None else {"limit": self.limit}),
            "failed": self.tally.failed,
            "unverified": self.tally.unverified,
            **({"arms": arms} if (arms := self._arm_rewards()) else {}),
            "bottleneck": self._bottleneck.part if self._bottleneck else None,
            **self.cost_figures(),
        }

    def cost_figures(self) -> dict[str, Any]:
        """What the run has cost so far, where there is something to tell."""
        if self.bill is None or self.bill.is_empty:
            return {}
        return {"cost": self.bill.figures(self.tally.finished, self.wanted, self.elapsed_s)}

    @property
    def limit(self) -> int | None:
        """The limit on what is in flight, if it adapts."""
        is_adaptive = self.run is not None and isinstance(self.run.limiter, Adaptive)
        return self.run.limiter() if self.run and is_adaptive else None

    @property
    def wanted(self) -> int | None:
        """Rollouts that this run is to finish; None while that is not known yet."""
        return None if self.total is None else self.total - self.initial

    @property
    def elapsed_s(self) -> float:
        return (self._ended or self.clock()) - self.began

    def close(self) -> None:
        """The clock stops; the last state of the bar stays on the screen."""
        self._ended = self.clock()
        if self.tally.finished or self._bar is not None:
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
        print(json.dumps(_headline(metrics), ensure_ascii=False, indent=2), file=self.out)
        for line in _lines_per_agent(metrics.get("agents", ())):
            print(line, file=self.out)
        self.out.flush()

    def _print_json(self, fields: Mapping[str, Any]) -> None:
        print(orjson.dumps(fields).decode(), file=self.out, flush=True)


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
