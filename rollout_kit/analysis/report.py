"""`ng_report`: one HTML page for people who decide. It runs no script and loads nothing."""

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from ..config.keys import ReportConfig
from ..errors import ConfigError, number_of
from ..responses import content_texts
from ..store.arms.order import ArmOrder
from ..store.filters.expression import filtering
from ..store.lines import now_text
from ..store.tasks import find_earlier_inputs
from ..types import Rollout
from .benchmark_table import tabulate_runs, tabulate_scores
from .comparison import conclude, format_difference
from .drawing import Point, Whisker, draw_bars, draw_lines, draw_whiskers
from .facts import EXAMPLES, Facts, bins_of, gather
from .length_bias import LengthBias
from .metrics.aggregate import Aggregate
from .metrics.paired import Side, compare
from .pages.page_file import check_page, write_page
from .paper import Measured, write_paper
from .view.dataset import find_outputs
from .waste import CAUSES, measure_waste
from .withheld import withhold

STYLE = (Path(__file__).with_name("report.css")).read_text()

MAX_TEXT = 1500
"""Characters of a prompt or an answer."""

MAX_AGENTS = 12
"""Agents with examples."""

MAX_SHORT = 40
"""Characters of a cell that is kept on one line."""

ABOUT_REWARDS = (
    "Reward: the mean over the rollouts. 95 % interval: the means that are compatible with these"
    " tasks; all rollouts of a task together count as one sample. Missing rollouts count as neither"
    " right nor wrong."
)

ABOUT_GROUPS = (
    "Group reward: what the verification of each rollout's group gave it; the mean over the tasks."
)

ABOUT_AGENTS = (
    "Turns, tool calls and output tokens are means of a rollout. Cut off: responses that reached a"
    " limit on tokens. No answer: responses in which the verifier found none."
)

ABOUT_K = (
    "pass@k: the share of tasks that at least one of k rollouts solves. pass^k: the share that all"
    " of k rollouts solve, with its 95 % interval over tasks. maj@k: the reward of the most"
    " frequent answer of k rollouts."
)


def write_report(command: ReportConfig) -> str:
    """Write the page and say so; ConfigError if the files hold no rollout."""
    target = command.output_fpath.expanduser()
    check_page(target)
    threshold, outputs = command.pass_threshold, find_outputs(command.inputs)
    with filtering(command.where) as keeps:
        tasks = command.input_jsonl_fpath
        found = [gather(name, path, threshold, keeps, tasks) for name, path in outputs]
    files = [each for each in found if each.whole.rollouts or each.num_failed]
    if not files:
        which = f" for which this holds: {command.where}" if command.where else ""
        why = "; ".join([f"no rollout is in it{which}", *_left_out(found)])
        raise ConfigError(f"{', '.join(command.inputs)}: {why}")
    if not any(len({agent for agent, _ in each.parts}) > 1 for each in files):
        for each in files:
            each.sides.drop_agents()
    write_page(target, build_page(files, command.title, command.where or ""))
    paper: list[str] = []
    if command.paper is not None:
        measured = [
            Measured(each.name, _agents_of(each), each.sides.own, each.score) for each in files
        ]
        paper = write_paper(command.paper.expanduser(), measured, command.labels, threshold)
    number = number_of(sum(each.whole.rollouts for each in files), "rollout")
    written = f"{target}: {number} of {number_of(len(files), 'file')}"
    others = () if tasks else find_earlier_inputs(path for _, path in outputs)
    return "\n".join([written, *_left_out(found), *others, *paper])


def _agents_of(facts: Facts) -> list[str]:
    return sorted({agent for agent, _ in facts.parts})


def build_page(files: Sequence[Facts], title: str, where: str = "") -> str:
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'"
    sections = (
        _note(f"Rollouts where <code>{escape(where)}</code>") if where else "",
        _benchmarks(files),
        _headline(files) + "".join(_note(escape(each)) for each in _left_out(files)),
        _comparison(files),
        _parts(files),
        _success(files),
        _distributions(files),
        _failures(files),
        _spending(files),
        _examples(files),
        _origin(files),
    )
    body = "\n".join(f"<section>{each}</section>" for each in sections if each)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="content-security-policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style></head>\n"
        f"<body><main><h1>{escape(title)}</h1>\n{body}\n</main></body></html>\n"
    )


def _left_out(files: Sequence[Facts]) -> list[str]:
    """What lines of the files count as no rollout, and why."""
    return [
        f"{each.name}: left out: {number:,} ({reason})"
        for each in files
        for reason, number in each.left_out.items()
    ]


def _headline(files: Sequence[Facts]) -> str:
    """The mean reward of each file with its interval, and what is missing."""
    rows, has_groups = [], any(each.sides.group.tasks for each in files)
    for each in files:
        whole, missing = each.whole, each.missing()
        cost, group = whole.cost(), each.sides.group
        rows.append(
            [
                each.name,
                f"<b>{_mean(whole)}</b>",
                _interval(whole),
                *([f"{group.mean:.4f}" if group.tasks else "–"] if has_groups else []),
                f"{whole.rollouts:,}",
                f"{len(whole.groups):,}",
                _dollars(cost["usd"] if cost else None),
                f"{whole.usage.get('output_tokens', 0):,.0f}",
                f'<span class="missing">{escape(missing)}</span>' if missing else "nothing",
            ]
        )
    head = ["file", "reward", "95 % interval", *(["group reward"] if has_groups else [])]
    head += ["rollouts", "tasks", "cost", "output tokens", "missing"]
    return _table(head, rows) + _note(
        " ".join([ABOUT_REWARDS, *([ABOUT_GROUPS] if has_groups else [])])
    )


def _benchmarks(files: Sequence[Facts]) -> str:
    """The scores of benchmarks by model, and what they depend on."""
    scored = [each.score for each in files if each.score]
    if not scored:
        return ""
    scores, runs = tabulate_scores(scored), tabulate_runs(scored)
    tables = [_table(each.head, map(list, each.rows)) for each in (scores, runs)]
    return f"<h2>Benchmarks</h2>{''.join(tables)}{_note(escape(runs.about))}"


def _comparison(files: Sequence[Facts]) -> str:
    """The first file with each of the others, paired by task, if they have tasks in common."""
    first, *others = files
    own = first.sides.own.tasks.keys() | first.sides.group.tasks.keys()
    others = [
        each
        for each in others
        if own & (each.sides.own.tasks.keys() | each.sides.group.tasks.keys())
    ]
    found = [
        f"<p>{escape(first.name)} (first) and {escape(other.name)} (second):"
        f" {'</p><p>'.join(_compare(first, other))}</p>"
        for other in others
    ]
    return "<h2>Comparison, paired by task</h2>" + "".join(found) if found else ""


def _compare(first: Facts, other: Facts) -> Iterator[str]:
    """What is concluded from the rewards, and from those of groups where both files have some."""
    has_groups = all(each.sides.group.tasks for each in (first, other))
    if not has_groups or all(each.sides.own.tasks for each in (first, other)):
        yield _conclude(first.sides.own, other.sides.own)
    if has_groups:
        yield f"Group reward: {_conclude(first.sides.group, other.sides.group)}"


def _conclude(first: Side, other: Side) -> str:
    try:
        paired = compare(first, other)
    except ValueError as error:
        return escape(f"{error}")
    difference = format_difference(asdict(paired))
    return f"<b>{escape(conclude(paired))}</b> Difference {escape(difference)}."


def _parts(files: Sequence[Facts]) -> str:
    """Each agent and arm: as a plot where rewards lie between 0 and 1, and as a table."""
    rows, whiskers, order = [], [], ArmOrder()
    for each in files:
        order.add(each.run, each.made)
    for each in files:
        for agent, arm in sorted(each.parts, key=lambda part: (part[0], order.place_of(part[1]))):
            part = each.parts[agent, arm]
            name = " · ".join(
                [*([each.name] if len(files) > 1 else []), agent, *filter(None, [arm])]
            )
            reward, interval = part.numbers.get("reward"), part.interval("reward")
            if reward and reward.smallest >= 0 and reward.largest <= 1:
                whiskers.append(Whisker(name, reward.mean, interval))
            rates = part.rates()
            time = part.times["rollout"].summary()
            rows.append(
                [
                    escape(name),
                    f"<b>{_mean(part)}</b>",
                    _interval(part),
                    f"{part.rollouts:,}",
                    f"{len(part.groups):,}",
                    _number(part, "num_turns"),
                    _number(part, "num_tool_calls"),
                    f"{part.usage.get('output_tokens', 0) / max(1, part.rollouts):,.0f}",
                    f"{time['p50']:.3g} s" if "p50" in time else "–",
                    f"{rates.get('cut_off') or 0:.1%}",
                    f"{rates['no_answer']:.1%}" if "no_answer" in rates else "–",
                ]
            )
    head = ("agent", "reward", "95 % interval", "rollouts", "tasks", "turns", "tool calls")
    more = ("tokens", "median time", "cut off", "no answer")
    plot = draw_whiskers(whiskers) if whiskers else ""
    table = _table((*head, *more), rows, is_escaped=True)
    return f"<h2>Agents and arms</h2>{plot}{table}{_note(ABOUT_AGENTS)}"


def _success(files: Sequence[Facts]) -> str:
    """pass@k, pass^k and maj@k."""
    lines: dict[str, dict[str, Point]] = {}
    reliable: dict[str, dict[str, Point]] = {}
    for each in files:
        passed = each.whole.pass_at_k()
        if len(passed) > 1:
            lines[f"pass@k {each.name}"] = {k: Point(value) for k, value in passed.items()}
            hat = each.whole.pass_hat_k()
            every = {
                k: Point(value, hat["pass_hat_k_intervals"].get(k))
                for k, value in hat["pass_hat_k"].items()
            }
            lines[f"pass^k {each.name}"] = {k: every[k] for k in passed}
            reliable[each.name] = every
            if voted := each.whole.votes.maj_at_k(passed):
                lines[f"maj@k {each.name}"] = {k: Point(value) for k, (value, _) in voted.items()}
    if not lines:
        return ""
    drawn = draw_lines(lines, "pass@k, pass^k and maj@k")
    return f"<h2>pass@k, pass^k and maj@k</h2>{drawn}{_list_reliable(reliable)}{_note(ABOUT_K)}"


def _list_reliable(files: Mapping[str, Mapping[str, Point]]) -> str:
    """A table of pass^k with its intervals: a row for each k, a column for each file."""
    ks = sorted({int(k) for points in files.values() for k in points})
    rows = [[f"{k}", *(_point(points.get(str(k))) for points in files.values())] for k in ks]
    return _table(("k", *(f"pass^k {name}" for name in files)), rows)


def _distributions(files: Sequence[Facts]) -> str:
    parts = []
    for each in files:
        many = len(each.rewards) > 20
        rewards = sorted((_in_steps(each.rewards) if many else each.rewards).items())
        bars = draw_bars([(f"{value:.3g}", number) for value, number in rewards], "rewards")
        lengths = draw_bars(bins_of(each.lengths), "output tokens")
        parts.append(
            f"<h3>{escape(each.name)}</h3><div class='two'><figure><figcaption>Reward</figcaption>"
            f"{bars}</figure><figure><figcaption>Output tokens</figcaption>{lengths}</figure></div>"
        )
    return f"<h2>Distributions</h2>{''.join(parts)}"


def _in_steps(rewards: Mapping[float, int]) -> dict[float, int]:
    """The numbers of rewards, in twenty steps of their range."""
    low, high = min(rewards), max(rewards)
    step, found = (high - low) / 20, Counter[float]()
    for value, number in rewards.items():
        found[low + step * int((value - low) / step)] += number
    return found


def _failures(files: Sequence[Facts]) -> str:
    """Failures by class, with an example of each."""
    rows = []
    for each in files:
        for reason, lines in sorted(each.failures.items(), key=lambda item: -len(item[1])):
            message = _cut(str(lines[0]["failure"].get("message", "")), 400)
            repro = f"<code>{escape(str(lines[0].get('repro', '')))}</code>"
            rows.append([each.name, reason, f"{len(lines):,}", message, repro])
    head = ("file", "error", "rollouts", "for example", "repeat it with")
    return f"<h2>Failures</h2>{_table(head, rows)}" if rows else ""


def _spending(files: Sequence[Facts]) -> str:
    """Of outputs that a trainer used: what became of the tokens."""
    found = []
    for each in files:
        lines = [line for of_class in each.failures.values() for line in of_class]
        if (waste := measure_waste(each.path, lines)) is None:
            continue
        rows = [
            [
                cause,
                f"{spent.rollouts:,}",
                f"{spent.output_tokens:,}",
                f"{waste.share_of(cause):.1%}",
                _dollars(spent.usd or None),
                CAUSES.get(cause, "groups that a filter dropped"),
            ]
            for cause, spent in waste.causes.items()
        ]
        head = ("cause", "rollouts", "output tokens", "share", "cost", "what it is")
        retried = f"{number_of(waste.num_retried, 'rollout')} needed more than one attempt."
        name = f"<h3>{escape(each.name)}</h3>" if len(files) > 1 else ""
        found.append(name + _table(head, rows) + _note(retried) + _lengths(waste.lengths))
    return "<h2>What the tokens went to</h2>" + "".join(found) if found else ""


def _lengths(found: LengthBias | None) -> str:
    """What leaving rollouts out does to the lengths that are trained on."""
    if found is None:
        return ""
    parts = (("used by the trainer", found.kept), ("not used", found.others))
    rows = [
        [what, f"{s.number:,}", f"{s.mean:,.0f}", f"{s.p50:,.0f}", f"{s.p95:,.0f}"]
        for what, s in parts
    ]
    head = ("output tokens of rollouts", "rollouts", "mean", "p50", "p95")
    said = f"On average, the rollouts that the trainer used are {found.describe()}."
    return _table(head, rows) + _note(said)


def _examples(files: Sequence[Facts]) -> str:
    """The first right and the first wrong rollout of each agent, of each file."""
    found = []
    for each in files:
        parts = [
            _example(agent, kind, kinds[kind])
            for agent, kinds in list(each.examples.items())[:MAX_AGENTS]
            for kind in EXAMPLES
            if kind in kinds
        ]
        if parts:
            name = f"<h3>{escape(each.name)}</h3>" if len(files) > 1 else ""
            found.append(name + "".join(parts))
    return "<h2>Examples</h2>" + "".join(found) if found else ""


def _example(agent: str, kind: str, rollout: Rollout) -> str:
    line = withhold(rollout.line)
    params = line.get("responses_create_params") or {}
    scores = {name: line.get(name) for name in rollout.info.scores}
    shown = ", ".join(f"{name} {value}" for name, value in scores.items() if value is not None)
    key = rollout.key
    return (
        f"<details><summary>{escape(agent)}: {kind}, reward {rollout.reward:g}</summary>"
        f'<p class="note">task {escape(key.task_id)}, rollout {key.rollout_index};'
        f" {escape(_cut(shown, 300))}</p>"
        f"<h4>Asked</h4><pre>{escape(_cut(_format_prompt(params), MAX_TEXT))}</pre>"
        f"<h4>Answered</h4><pre>{escape(_cut(rollout.text, MAX_TEXT))}</pre></details>"
    )


def _format_prompt(params: Any) -> str:
    given = params.get("input") if isinstance(params, dict) else None
    if isinstance(given, str):
        return given
    items = given if isinstance(given, list) else []
    return "\n\n".join(
        f"{item.get('role', item.get('type', ''))}: {''.join(content_texts(item.get('content')))}"
        for item in items
        if isinstance(item, dict)
    )


def _origin(files: Sequence[Facts]) -> str:
    """How each file was made."""
    rows = []
    for each in files:
        run = each.run
        times = [_when(run.get(name)) for name in ("started_at", "finished_at")]
        command = f"<code>{escape(str(run.get('command', 'unknown')))}</code>"
        rows.append(
            [each.name, ", ".join(sorted(each.models)), *times, ", ".join(each.commits), command]
        )
    head = ("file", "model", "started", "finished", "commit", "command")
    note = _note(f"Written {_when(now_text())}. Times are UTC.")
    return f"<h2>How it was made</h2>{_table(head, rows)}{note}"


def _table(head: Iterable[str], rows: Iterable[list[str]], *, is_escaped: bool = False) -> str:
    """Cells that begin with a tag of ours are markup; all others are text."""

    def cell(text: str) -> str:
        is_markup = is_escaped or text.startswith(("<b>", "<code>", "<span"))
        place = '<td class="short">' if len(text) <= MAX_SHORT else "<td>"
        return f"{place}{text if is_markup else escape(text)}</td>"

    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    table = f"<table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"
    return f'<div class="wide" tabindex="0">{table}</div>'


def _note(text: str) -> str:
    return f'<p class="note">{text}</p>'


def _when(time: object) -> str:
    """`2026-11-22 20:51:37` of `2026-11-22T20:51:37.622Z`."""
    return str(time or "")[:19].replace("T", " ")


def _mean(part: Aggregate) -> str:
    reward = part.numbers.get("reward")
    return "–" if reward is None else f"{reward.mean:.4f}"


def _number(part: Aggregate, name: str) -> str:
    found = part.numbers.get(name)
    return "–" if found is None else f"{found.mean:.3g}"


def _interval(part: Aggregate) -> str:
    found = part.interval("reward")
    return f"{found[0]:.4f} – {found[1]:.4f}" if found else "–"


def _point(point: Point | None) -> str:
    if point is None:
        return "–"
    between = f" [{point.interval[0]:.4f}, {point.interval[1]:.4f}]" if point.interval else ""
    return f"{point.value:.4f}{between}"


def _dollars(value: float | None) -> str:
    return "–" if value is None else f"${value:,.4g}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
