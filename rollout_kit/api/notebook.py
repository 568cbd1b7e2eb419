"""What a notebook shows of a run: a bar while it makes progress, and a table of its rollouts.

Text of rows and models is escaped, and nothing that is shown runs a script.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import islice
from typing import Any

from ..collecting.live.figures import parts_of
from ..collecting.live.snapshot import Snapshot
from ..errors import number_of
from ..responses import content_texts, input_items
from ..types import Failure, JsonObject, Rollout

MAX_ROWS = 20
"""Rollouts of a table."""

MAX_TEXT = 200
"""Characters of a cell."""

Display = Callable[..., Any]
"""`IPython.display.display`."""


def find_display() -> Display | None:
    """How to show something in the notebook that runs this program; None outside of one."""
    shell = sys.modules.get("IPython")
    shell = shell.get_ipython() if shell else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display  # type: ignore[import-not-found]

    return display


class NotebookBar:
    """Shows the snapshots of a run in one place of a cell's output."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._handle: Any = None
        self._snapshot: Snapshot | None = None

    def read(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        if self._handle is None:
            self._handle = self._display(self, display_id=True)
        else:
            self._handle.update(self)

    def __repr__(self) -> str:
        return "" if self._snapshot is None else f"Collecting: {_format_line(self._snapshot)}"

    def _repr_html_(self) -> str:
        if self._snapshot is None:
            return ""
        run = self._snapshot.this_run
        known = "" if run.total is None else f' value="{run.ended}" max="{max(run.total, 1)}"'
        return f"<progress{known}></progress> {escape(_format_line(self._snapshot))}"


def _format_line(snapshot: Snapshot) -> str:
    run, rate = snapshot.this_run, snapshot.speed.rollouts_per_s
    total = "" if run.total is None else f"/{run.total:,}"
    seconds = f"{snapshot.elapsed_s:,.0f} s"
    left = "" if snapshot.left_s is None else f", {snapshot.left_s:,.0f} s left"
    figures = [f"{run.ended:,}{total} rollouts", f"{seconds}{left}", f"{rate:.2f} a second"]
    return " · ".join([*figures, *parts_of(snapshot).values()])


def build_table(
    rollouts: Iterable[Rollout], failures: Sequence[Failure], metrics: JsonObject, number: int
) -> str:
    """HTML of the first rollouts, with the mean reward and what failed above them. `number` is that
    of all rollouts."""
    reward = metrics.get("metrics", {}).get("reward")
    interval = metrics.get("intervals", {}).get("reward")
    said = [number_of(number, "rollout")]
    if reward is not None:
        between = f" [{interval[0]:.4f}, {interval[1]:.4f}]" if interval else ""
        said.insert(0, f"<b>reward {reward:.4f}</b>{between}")
    if failures:
        last = escape(_cut(str(failures[-1].error)))
        said.append(f"{number_of(len(failures), 'failure')}, the last one: {last}")
    rows = [_build_row(each) for each in islice(rollouts, MAX_ROWS)]
    more = f"<p>… and {number - len(rows):,} more</p>" if number > len(rows) else ""
    head = "".join(f"<th>{name}</th>" for name in ("task", "rollout", "asked", "answer", "reward"))
    return (
        f"<p>{' · '.join(said)}</p><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>{more}"
    )


def _build_row(rollout: Rollout) -> str:
    key, params = rollout.key, rollout.line.get("responses_create_params") or {}
    items = [item for item in input_items(params) if item.get("role") == "user"]
    asked = "".join(content_texts(items[-1].get("content"))) if items else ""
    reward = "–" if rollout.reward is None else f"{rollout.reward:g}"
    cells = (key.task_id, str(key.rollout_index), _cut(asked), _cut(rollout.text), reward)
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"
