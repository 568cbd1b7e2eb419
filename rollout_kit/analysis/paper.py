"""Results for a paper: tables and figures of several runs on several environments.

A run is a file, or the files that have the same label. An environment is what one agent runs.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from ..errors import ConfigError, OutputError, number_of
from ..store.files import write_atomically
from .benchmark_table import BenchmarkScore, tabulate_runs, tabulate_scores
from .drawing import Point, Whisker, draw_lines, draw_whiskers
from .metrics.paired import Paired, Side, compare, correct_holm, interval_of_mean
from .paper_tables import Table, csv_text, latex_text, markdown_text
from .shapes import Drawing

ALL = "all tasks"
"""Name of the environment where each run has an agent of another name."""

REWARDS = "Mean reward over tasks with its 95% confidence interval (Student's t over tasks)."

REWARD_AXIS = "Mean reward over tasks, with 95 % interval"

K_AXES = ("k (rollouts of a task)", "pass@k (share of tasks)")


@dataclass(frozen=True, slots=True)
class Measured:
    """The rollouts of one file: the agents that made them, and the votes by task."""

    name: str
    agents: Sequence[str]
    side: Side
    scored: BenchmarkScore | None = None
    """Its score, if it is of a benchmark."""


@dataclass(slots=True)
class PaperRun:
    """A row of the tables, a series of the figures: environment → its rollouts by task."""

    name: str
    environments: dict[str, Side] = field(default_factory=dict)

    def add(self, files: Measured) -> None:
        for key, votes in files.side.tasks.items():
            agent, separator, task = key.rpartition("\0")
            name = agent if separator else files.agents[0]
            side = self.environments.setdefault(name, Side(self.name))
            side.tasks.setdefault(task, []).extend(votes)


@dataclass(frozen=True, slots=True)
class PaperComparison:
    """A run with the first one, on one environment."""

    environment: str
    run: str
    paired: Paired
    p_holm: float | None
    """Corrected for all comparisons of the table."""


def write_paper(
    folder: Path, files: Sequence[Measured], labels: Sequence[str], threshold: float
) -> list[str]:
    """Write the tables and figures into a folder; their paths. ConfigError before anything is
    written, if there is nothing to show."""
    runs = arrange_runs(files, labels)
    tables = {"rewards": tabulate_rewards(runs)}
    if scored := [each.scored for each in files if each.scored]:
        tables |= {"benchmarks": tabulate_scores(scored), "benchmark_runs": tabulate_runs(scored)}
    if compared := compare_runs(runs):
        tables["comparisons"] = tabulate_comparisons(runs[0].name, compared)
    figures = {"rewards": draw_rewards(runs)}
    for name in _list_environments(runs):
        if (drawing := draw_pass_at_k(runs, name, threshold)) is not None:
            figures[f"pass_at_k_{_file_name(name)}"] = drawing
    made: dict[str, bytes] = {}
    for name, table in tables.items():
        made[f"{name}.md"] = markdown_text(table).encode()
        made[f"{name}.tex"] = latex_text(table, name).encode()
        made[f"{name}.csv"] = csv_text(table).encode()
    for name, drawing in figures.items():
        made[f"{name}.svg"], made[f"{name}.pdf"] = drawing.svg_file().encode(), drawing.pdf_file()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"paper={folder}: cannot create it: {error.strerror}") from None
    for name, raw in made.items():
        write_atomically(folder / name, [raw])
    return [str(folder / name) for name in made]


def arrange_runs(files: Sequence[Measured], labels: Sequence[str]) -> list[PaperRun]:
    """The runs in the order of the files."""
    if labels and len(labels) != len(files):
        names = ", ".join(file.name for file in files)
        raise ConfigError(
            f"labels: {len(labels)} for {len(files)} files: name each, in this order: {names}"
        )
    runs: dict[str, PaperRun] = {}
    for label, file in zip(labels or _short_names(files), files, strict=True):
        if file.side.tasks:
            runs.setdefault(label, PaperRun(label)).add(file)
    if not runs:
        raise ConfigError("paper: no file has a rollout with a reward")
    found = list(runs.values())
    if len({name for run in found for name in run.environments}) > 1 and all(
        len(run.environments) == 1 for run in found
    ):
        for run in found:
            run.environments = dict.fromkeys([ALL], *run.environments.values())
    return found


def _short_names(files: Sequence[Measured]) -> list[str]:
    """Names without folders and suffix, where they differ so; of benchmarks, the models."""
    if all(each.scored for each in files) and len({each.agents[0] for each in files}) > 1:
        return [each.scored.model for each in files if each.scored]
    short = [Path(file.name).name.removesuffix(".jsonl") for file in files]
    many = Counter(short)
    return [each if many[each] == 1 else file.name for each, file in zip(short, files, strict=True)]


def _list_environments(runs: Sequence[PaperRun]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.environments))


def compare_runs(runs: Sequence[PaperRun]) -> list[PaperComparison]:
    """Each run with the first one, on each environment where they have tasks in common."""
    first, *others = runs
    found: list[tuple[str, str, Paired]] = []
    for name in _list_environments(runs):
        for run in others:
            if name in first.environments and name in run.environments:
                one, other = first.environments[name], run.environments[name]
                if one.tasks.keys() & other.tasks.keys():
                    found.append((name, run.name, compare(one, other)))
    corrected = correct_holm([paired.p for *_, paired in found])
    return [PaperComparison(*each, p) for each, p in zip(found, corrected, strict=True)]


def tabulate_rewards(runs: Sequence[PaperRun]) -> Table:
    """One row a run, one column an environment."""
    names = _list_environments(runs)
    rows, numbers = [], []
    for run in runs:
        cells = [run.name]
        for name in names:
            side = run.environments.get(name)
            values = list(side.task_means().values()) if side else []
            cells.append(_spell_mean(values))
            if side:
                low, high = interval_of_mean(values) or ("", "")
                row = [run.name, name, fmean(values), low, high, len(values), side.num_rollouts]
                numbers.append(row)
        rows.append(cells)
    head = ("run", "environment", "reward", "low", "high", "tasks", "rollouts")
    return Table(["run", *names], rows, REWARDS, (head, numbers))


def _spell_mean(values: Sequence[float]) -> str:
    if not values:
        return "–"
    interval = interval_of_mean(values)
    return f"{fmean(values):.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")


def tabulate_comparisons(first: str, compared: Sequence[PaperComparison]) -> Table:
    """One row for each run and environment."""
    rows, numbers = [], []
    for environment, run, paired, p_holm in (
        (each.environment, each.run, each.paired, each.p_holm) for each in compared
    ):
        low, high = paired.interval or ("", "")
        between = f" [{low:+.3f}, {high:+.3f}]" if paired.interval else ""
        difference = f"{paired.difference:+.3f}{between}"
        ps = [_spell_p(paired.p), _spell_p(p_holm)]
        rows.append([environment, run, str(paired.num_tasks), difference, *ps, paired.test])
        numbers.append(
            [environment, first, run, paired.num_tasks, paired.difference, low, high]
            + ["" if p is None else p for p in (paired.p, p_holm)]
            + [paired.test, paired.wins, paired.losses, paired.ties]
        )
    tests = ", ".join(sorted({each.paired.test for each in compared}))
    several = number_of(len(compared), "comparison")
    about = (
        f"Difference of the mean reward to {first}, paired by task, with its 95% confidence"
        f" interval. Test: {tests}. p (Holm) is corrected for {several}."
    )
    head = ["environment", "run", "tasks", "difference", "p", "p (Holm)", "test"]
    names = ("environment", "first", "second", "tasks", "difference", "low", "high", "p", "p_holm")
    return Table(head, rows, about, ((*names, "test", "wins", "losses", "ties"), numbers))


def _spell_p(p: float | None) -> str:
    return "–" if p is None else "< 0.0001" if p < 0.0001 else f"{p:.2g}"


def draw_rewards(runs: Sequence[PaperRun]) -> Drawing:
    """A row for each run on each environment, a colour for each run."""
    names = _list_environments(runs)
    whiskers = [
        Whisker(
            f"{name} · {run.name}" if len(names) > 1 else run.name,
            fmean(values),
            interval_of_mean(values),
            number,
        )
        for name in names
        for number, run in enumerate(runs)
        if name in run.environments
        for values in [list(run.environments[name].task_means().values())]
    ]
    return draw_whiskers(whiskers, REWARD_AXIS, [run.name for run in runs])


def draw_pass_at_k(runs: Sequence[PaperRun], environment: str, threshold: float) -> Drawing | None:
    """A line for each run; None if no task has several rollouts."""
    lines: dict[str, Mapping[str, Point]] = {}
    for run in runs:
        if (side := run.environments.get(environment)) is not None:
            each = side.pass_of_tasks(threshold)
            if len(each) > 1:
                lines[run.name] = {
                    k: Point(fmean(values), interval_of_mean(values)) for k, values in each.items()
                }
    what = f"pass@k on {environment}, with 95 % intervals"
    return draw_lines(lines, what, K_AXES) if lines else None


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)
