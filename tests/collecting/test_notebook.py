"""A bar and a table in a notebook: with a stand-in for IPython, and in a real Jupyter kernel
(`make test-notebook`)."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support import HANG_S

import rollout_kit as rk

ROOT = Path(__file__).resolve().parents[2]

ROWS = [{"responses_create_params": {"input": f"<i>{n}</i>"}, "n": n} for n in range(25)]

CELLS = [
    """import rollout_kit as rk
rows = [{"responses_create_params": {"input": f"What is {n} + 2?"}, "sum": n + 2} for n in range(9)]
table = await rk.collect(rows, model=lambda params: "4",
    verify=lambda task, response: str(task["sum"]) == rk.output_text(response))
table""",
    """run = rk.collect_sync(rows, model=lambda params: "4", verify=lambda task, response: 1.0)
run.table()""",
]

BOOKS = sorted((ROOT / "docs/goals").glob("*.ipynb"))

RUN_BOOK = """import json, sys, nbclient, nbformat
book = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(book, timeout=600, kernel_name="python3").execute()
json.dump([cell.outputs for cell in book.cells if cell.cell_type == "code"], sys.stdout)
"""

RUN = """import json, sys, nbclient, nbformat
cells = [nbformat.v4.new_code_cell(each) for each in json.load(sys.stdin)]
book = nbformat.v4.new_notebook(cells=cells)
nbclient.NotebookClient(book, timeout=600, kernel_name="python3").execute()
json.dump([[each.get("data", each) for each in cell.outputs] for cell in book.cells], sys.stdout)
"""


class Shown:
    """Stands for IPython: keeps what is displayed, and each update."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.values: list[str] = []
        outer, inner = ModuleType("IPython"), ModuleType("IPython.display")
        outer.get_ipython = lambda: SimpleNamespace(kernel=self)  # type: ignore[attr-defined]
        inner.display = self.display  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", outer)
        monkeypatch.setitem(sys.modules, "IPython.display", inner)

    def display(self, shown: Any, display_id: bool) -> "Shown":
        assert display_id
        self.update(shown)
        return self

    def update(self, shown: Any) -> None:
        self.values.append(shown._repr_html_())


def say(params: dict[str, Any]) -> str:
    return "<b>bold</b>"


def test_a_notebook_shows_a_bar_that_ends_full(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown(monkeypatch)
    rk.collect_sync(ROWS, model=say, verify=lambda task, response: task["n"] % 2).table()
    assert '<progress value="25" max="25"></progress> 25/25 rollouts' in shown.values[-1]
    assert "reward=0.480" in shown.values[-1]
    shown.values.clear()
    rk.collect_sync(ROWS, model=say, verify=lambda t, r: 1.0, progress=False).table()
    assert shown.values == []


def test_the_table_is_html_that_runs_nothing_of_a_model() -> None:
    def verify(task: Any, response: Any) -> float:
        if task["n"] == 3:
            raise rk.TaskError("<script>3</script>")
        return 0.5

    html = rk.collect_sync(ROWS, model=say, verify=verify).table()._repr_html_()
    assert "<b>reward 0.5000</b>" in html and "24 rollouts" in html and "… and 4 more" in html
    assert "1 failure, the last one" in html and "&lt;script&gt;3" in html
    assert "<td>&lt;b&gt;bold&lt;/b&gt;</td>" in html and "<td>&lt;i&gt;0&lt;/i&gt;</td>" in html
    assert html.count("<tr>") == 21


def test_progress_may_be_a_function_and_needs_a_notebook_otherwise() -> None:
    seen: list[rk.Snapshot] = []
    rk.collect_sync(
        ROWS, model=say, verify=lambda task, response: 1.0, progress=seen.append
    ).table()
    assert seen[-1].this_run.rollouts == 25 and seen[-1].state == "ended"
    with pytest.raises(rk.ConfigError, match="this is none"):
        rk.collect(ROWS, model=say, verify=lambda task, response: 1.0, progress=True)


@pytest.mark.notebook
def test_a_real_kernel_shows_the_bar_and_the_table(tmp_path: Path) -> None:
    done = subprocess.run(
        [ROOT / ".notebook/bin/python", "-c", RUN],
        input=json.dumps(CELLS),
        capture_output=True,
        text=True,
        timeout=10 * HANG_S,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    for (bar, table), reward in zip(json.loads(done.stdout), ("0.1111", "1.0000"), strict=True):
        assert '<progress value="9" max="9">' in bar["text/html"]
        assert f"<b>reward {reward}</b>" in table["text/html"]
        assert table["text/plain"] == "Collected(9 rollouts)"


@pytest.mark.notebook
@pytest.mark.parametrize("book", BOOKS, ids=lambda book: book.stem)
def test_a_notebook_of_the_goals_runs_in_a_real_kernel(
    book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ROOT / ".notebook/bin"
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    done = subprocess.run(
        [folder / "python", "-c", RUN_BOOK, book],
        capture_output=True,
        text=True,
        timeout=10 * HANG_S,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    shown = json.dumps(json.loads(done.stdout))
    wanted = {
        "evaluate_a_hosted_model": ("<b>reward 0.6667</b>", "What is 12 + 30?"),
        "make_sft_and_preference_data": ("in the format trl_dpo", "It is "),
    }
    assert all(each in shown for each in wanted[book.stem])


@pytest.mark.parametrize("book", BOOKS, ids=lambda book: book.stem)
def test_a_notebook_of_the_goals_is_stored_without_outputs(book: Path) -> None:
    cells = json.loads(book.read_text())["cells"]
    assert any(cell["cell_type"] == "code" for cell in cells)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
