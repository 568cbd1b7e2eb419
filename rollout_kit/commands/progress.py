"""What people see while rollouts are collected: a bar on a terminal, lines in a log, or JSON.

Together with the commands themselves, the only place that prints.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

import orjson
from tqdm import tqdm

from ..pacing.bill import Bill
from ..pacing.bottleneck import Verdict
from ..types import Failure, Outcome, Rollout, Unverified

LOG_EVERY_S = 30.0
"""How often a log file gets a line: often enough to see it move, seldom enough to read."""

REDRAW_EVERY_S = 0.2

SMALLEST_BAR = 6
"""Columns of a bar that still shows something, its ends included."""

SPARED_FIRST = (
    "none_failed",
    "in_flight",
    "tokens",
    "burn",
    "unverified",
    "bottleneck",
    "failed",
    "cost",
    "reward",
)
"""What a narrow terminal does without, in this order."""


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
    finished: int = 0
    rollouts: int = 0
    tokens: int = 0
    output_tokens: int = 0
    failed: int = 0
    refused: int = 0
    """Of those that failed: for good."""
    unverified: int = 0
    scored: int = 0
    reward: float = 0.0
    in_flight: int = 0
    limit: int | None = None
    """On what is in flight, where it moves."""
    bottleneck: Verdict | None = None
    """What holds the run up, once that is clear."""
    bill: Bill | None = None
    """What the run costs, where it is told."""
    clock: Callable[[], float] = time.monotonic
    began: float = field(init=False)
    _ended: float | None = None
    _shown_at: float = 0.0
    _bar: Any = None

    def __post_init__(self) -> None:
        self.began = self.clock()

    def anew(self) -> "Progress":
        """For another run, with nothing counted yet."""
        return Progress(
            self.as_json, self.title, self.generates, self.out, self.err, clock=self.clock
        )

    def say(self, text: str, **fields: Any) -> None:
        """One line for people, or the object that stands for it."""
        if self.as_json:
            self._print_json(fields or {"event": "note", "text": text})
        elif self._bar is not None:
            self._bar.write(text, file=self.out)
        else:
            print(text, file=self.out, flush=True)

    def start(self, total: int | None, done: int) -> None:
        """The clock starts here."""
        self.total, self.initial, self.began = total, done, self.clock()
        self._shown_at = self.began
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
        """Take one outcome in; shows it only as often as somebody can read."""
        self.in_flight = in_flight
        match outcome:
            case Rollout(line=line):
                self.finished += 1
                self.rollouts += 1
                if self.generates:
                    usage = line.get("usage") or {}
                    self.tokens += usage.get("total_tokens") or 0
                    self.output_tokens += usage.get("output_tokens") or 0
                if (reward := line.get("reward")) is not None:
                    self.scored += 1
                    self.reward += reward
            case Failure(error=failed):
                self.finished += 1
                self.failed += 1
                self.refused += failed.terminal
            case Unverified(error=error) if error is not None:
                self.finished += 1
                self.unverified += 1
            case _:
                return
        self._show()

    def _show(self) -> None:
        now = self.clock()
        every = REDRAW_EVERY_S if self._bar is not None else LOG_EVERY_S
        if now - self._shown_at < every:
            return
        self._shown_at = now
        self._draw()

    def _draw(self) -> None:
        if self.as_json:
            self._print_json({"event": "progress", **self._figures()})
        elif self._bar is not None:
            title, figures = self._fitting(self._bar)
            self._bar.set_description_str(title, refresh=False)
            self._bar.set_postfix_str(figures, refresh=False)
            self._bar.update(self.initial + self.finished - self._bar.n)
        else:
            print(self._line(), file=self.err, flush=True)

    def _line(self) -> str:
        return tqdm.format_meter(
            self.initial + self.finished,
            self.total,  # type: ignore[arg-type]  (None: a total that is not known yet)
            max(self.elapsed_s, 1e-6),
            prefix=self.title,
            postfix=self._postfix(),
            initial=self.initial,
            ncols=None,
        )

    def _fitting(self, bar: Any) -> tuple[str, str]:
        """Title and figures, as far as the terminal has room for them: tqdm cuts the end off."""
        state = {**bar.format_dict, "n": self.initial + self.finished, "ncols": 0}
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
        parts = {"reward": f"reward={self.reward / self.scored:.3f}"} if self.scored else {}
        if self.generates:
            parts["tokens"] = f"tok/s={self.output_tokens / max(self.elapsed_s, 1e-6):.0f}"
        limit = "" if self.limit is None else f"/{self.limit}"
        parts["in_flight"] = f"in flight={self.in_flight}{limit}"
        parts["failed" if self.failed else "none_failed"] = f"failed={self.failed}"
        if self.unverified:
            parts["unverified"] = f"unverified={self.unverified}"
        if self.bottleneck:
            parts["bottleneck"] = self.bottleneck.short()
        if self.bill:
            parts |= self.bill.parts(self.finished, self.wanted, self.elapsed_s)
        return parts

    def _figures(self) -> dict[str, Any]:
        return {
            "finished": self.initial + self.finished,
            "total": self.total,
            "elapsed_s": round(self.elapsed_s, 3),
            "rollouts_per_s": round(self.rollouts / max(self.elapsed_s, 1e-6), 3),
            "reward": self.reward / self.scored if self.scored else None,
            "in_flight": self.in_flight,
            **({} if self.limit is None else {"limit": self.limit}),
            "failed": self.failed,
            "unverified": self.unverified,
            "bottleneck": self.bottleneck.part if self.bottleneck else None,
            **self.cost_figures(),
        }

    def cost_figures(self) -> dict[str, Any]:
        """What the run has cost so far, where there is something to tell."""
        if self.bill is None or self.bill.is_empty:
            return {}
        return {"cost": self.bill.figures(self.finished, self.wanted, self.elapsed_s)}

    @property
    def wanted(self) -> int | None:
        """Rollouts that this run is to finish; None while that is not known yet."""
        return None if self.total is None else self.total - self.initial

    @property
    def elapsed_s(self) -> float:
        return (self._ended or self.clock()) - self.began

    def waiting(self, stages: Counter[str], quiet_s: float) -> None:
        """Nothing has finished for a while: say what everything waits for."""
        what = ", ".join(f"{count} for {stage}" for stage, count in stages.most_common(5))
        text = f"nothing has finished for {quiet_s:.0f} s; in flight and waiting: {what}"
        self.say(text, event="waiting", quiet_s=quiet_s, stages=dict(stages))

    def close(self) -> None:
        """The clock stops; the last state of the bar stays on the screen."""
        self._ended = self.clock()
        if self.finished or self._bar is not None:
            self._draw()
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def report(self, metrics: Mapping[str, Any]) -> None:
        """The metrics object, the headline first; lists of tasks stay in the file."""
        shown = {name: value for name, value in metrics.items() if name != "agents"}
        if self.as_json:
            self._print_json({"event": "metrics", **shown})
        else:
            shown.pop("bottleneck", None)  # is said in a sentence
            shown.pop("parallelism", None)  # each change was told
            lines = (f'  "{name}": {_compact(value)}' for name, value in shown.items())
            print("{\n" + ",\n".join(lines) + "\n}", file=self.out, flush=True)
            for line in _agents_apart(metrics.get("agents", ())):
                print(line, file=self.out, flush=True)

    def _print_json(self, fields: Mapping[str, Any]) -> None:
        print(orjson.dumps(fields).decode(), file=self.out, flush=True)


def _agents_apart(agents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line of means for each agent, where there are several."""
    if len(agents) < 2:
        return
    width = max(len(agent["agent_ref"]["name"]) for agent in agents)
    for agent in agents:
        means = {name.removeprefix("mean/"): value for name, value in agent["key_metrics"].items()}
        first = {"reward": means.pop("reward")} if "reward" in means else {}
        shown = "  ".join(f"{name} {value:.4g}" for name, value in {**first, **means}.items())
        yield f"{agent['agent_ref']['name']:<{width}}  {shown}"


def _compact(value: Any) -> str:
    """JSON on one line, with the spaces that people are used to."""
    return json.dumps(_rounded(value), ensure_ascii=False)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Mapping):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value
