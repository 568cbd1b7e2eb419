"""What a report says of a file of rollouts, gathered in one pass over it."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..reading import parse_line, read_lines, read_object
from ..store.files import OutputPaths
from ..store.filters.expression import Filter
from ..store.rollouts import iterate_beside
from ..store.scope import parse_scope
from ..types import JsonObject, Key, Rollout
from .benchmark_table import BenchmarkScore, score_in
from .export.source import RolloutSource
from .metrics.aggregate import CUT_OFF, Aggregate
from .metrics.paired import Sides

MAX_BINS = 20

EXAMPLES = ("right", "wrong", "cut off")


@dataclass
class Facts:
    """One file: figures of the whole, of each agent and of each arm; failures; examples."""

    name: str
    path: Path
    whole: Aggregate
    parts: dict[tuple[str, str], Aggregate] = field(default_factory=dict)
    """(agent, arm) → its figures."""
    made: set[tuple[str, str]] = field(default_factory=set)
    """Pairs of arm and fingerprint of settings."""
    sides: Sides = field(default_factory=lambda: Sides.create(""))
    rewards: Counter[float] = field(default_factory=Counter)
    lengths: list[int] = field(default_factory=list)
    """Output tokens."""
    models: set[str] = field(default_factory=set)
    examples: dict[str, dict[str, Rollout]] = field(default_factory=lambda: defaultdict(dict))
    """Agent → what it is an example of → the first one."""
    failures: dict[str, list[JsonObject]] = field(default_factory=lambda: defaultdict(list))
    """Class of the error → the last failure line of each key without a result."""
    run: JsonObject = field(default_factory=dict)
    """The content of `<stem>.d/run.json`, if it is there."""
    commits: list[str] = field(default_factory=list)
    """Git commits that its runs were started at, the first one first."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason → lines that count as no rollout."""
    counts: JsonObject = field(default_factory=dict)
    """Counts of `<stem>_aggregate_metrics.json`, if it is there."""
    score: BenchmarkScore | None = None
    """The score in that file, if it is of a benchmark."""

    @property
    def num_failed(self) -> int:
        return sum(map(len, self.failures.values()))

    def missing(self) -> str:
        """What was planned and has no reward, in words; empty if nothing is missing."""
        planned, unscored = self.counts.get("planned"), self.sides.own.num_unverified
        left = max(0, planned - self.whole.rollouts) if isinstance(planned, int) else 0
        what = [f"{left:,} of {planned:,} planned rollouts"] if left else []
        what += [f"{unscored:,} without a verdict"] if unscored else []
        what += [f"{self.num_failed:,} failed"] if self.num_failed else []
        return ", ".join(what)


def gather(
    name: str,
    path: Path,
    pass_threshold: float,
    keeps: Filter | None = None,
    tasks: Path | None = None,
) -> Facts:
    """Read a file and what is beside it; ConfigError if it cannot be read. With a filter, or a
    file of tasks, only the rollouts that it keeps count, and none is missing."""
    is_whole = keeps is None and tasks is None
    facts = Facts(name, path, Aggregate(pass_threshold), sides=Sides.create(name))
    done = set[Key]()
    paths = OutputPaths(path)
    has_failures = paths.failures.exists() and is_whole
    source = RolloutSource([path] if path.exists() else [], reads_all=True, tasks=tasks)
    for rollout in (each.rollout for each in source.candidates()):
        if keeps is None or keeps(rollout):
            _take(facts, rollout, pass_threshold)
        if has_failures:
            done.add(rollout.key)
    facts.left_out = source.left_out
    last: dict[Key, JsonObject] = {}
    for line in iterate_beside(paths.failures, "failure") if has_failures else ():
        row = line.row
        is_failure = line.kind == "failure" and isinstance(row.get("failure"), dict)
        if is_failure and line.head is not None and line.head.key not in done:
            last[line.head.key] = row
    for line in last.values():
        reason = line["failure"].get("class")
        facts.failures[str(reason or "unknown")].append(line)
    facts.run = read_object(paths.manifest)
    facts.commits = list(dict.fromkeys(_commits(paths.runs)))
    metrics = read_object(paths.metrics)
    counts, facts.score = metrics.get("counts"), score_in(metrics)
    facts.counts = counts if isinstance(counts, dict) and is_whole else {}
    return facts


def _take(facts: Facts, rollout: Rollout, threshold: float) -> None:
    info = rollout.info
    which = info.key.agent, parse_scope(info.key.scope).arm
    if which not in facts.parts:
        facts.parts[which] = Aggregate(threshold)
    facts.made.add((which[1], info.settings))
    facts.whole.add(rollout)
    facts.parts[which].add(rollout)
    facts.models.add(info.model)
    facts.lengths.append(int(info.output_tokens))  # another program may write 5.0
    reward, answer = rollout.reward, rollout.line.get("extracted_answer")
    facts.sides.add(info.key, reward, rollout.group_reward, answer)
    if reward is None:
        return
    facts.rewards[reward] += 1
    is_cut = info.finish_reason in CUT_OFF
    kind = "right" if reward >= threshold else "cut off" if is_cut else "wrong"
    facts.examples[info.key.agent].setdefault(kind, rollout)


def _commits(path: Path) -> Iterator[str]:
    for _, raw in read_lines(path):
        git = (parse_line(raw) or {}).get("git")
        if isinstance(git, dict) and git.get("commit"):
            yield str(git["commit"])[:12] + (" (changed)" if git.get("dirty") else "")


def bins_of(values: list[int]) -> list[tuple[str, int]]:
    """(label, number) of spans of equal length."""
    if not values:
        return []
    low, high = min(values), max(values)
    step = max(1, -(-(high - low + 1) // MAX_BINS))
    counts = Counter((value - low) // step for value in values)
    return [(f"{low + at * step:,}", counts[at]) for at in range(max(counts) + 1)]
