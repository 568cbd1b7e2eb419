"""Checks files of rollouts: each rollout first, then each task over its rollouts."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...config.keys import CheckRolloutsConfig
from ...errors import ConfigError, number_of, suggest
from ...responses import as_object
from ...store.files import OutputPaths
from ...store.input import plain_path
from ...store.kinds import NEWER, UNREADABLE
from ...store.outputs import distinct_files_of
from ...store.rollouts import RolloutFile, StoredLine, iterate_beside, refuse
from ...types import JsonObject
from ..export.row_files import RowFile
from .checks import (
    ALWAYS_UNHEALTHY,
    DUPLICATE,
    MEANINGS,
    NO_SUCCESS,
    HealthFinding,
    run_checks,
)
from .evidence import Evidence, observe
from .gym_trajectory import observe_gym

Verdict = Literal["healthy", "unhealthy", "unobserved"]


@dataclass(slots=True)
class CheckedRollout:
    """One line and what was found in it."""

    where: str
    """File and line."""
    task: int | str
    index: int | str
    identity: tuple[Any, ...]
    findings: Sequence[HealthFinding]
    unobserved: Sequence[str]
    is_known: bool
    """Whether all calls of its turns are known."""
    num_succeeded: int
    """Of these, how many succeeded."""

    @property
    def verdict(self) -> Verdict:
        if self.findings:
            return "unhealthy"
        return "unobserved" if self.unobserved else "healthy"

    def as_json(self) -> JsonObject:
        return {
            "task": self.task,
            "rollout_index": self.index,
            "verdict": self.verdict,
            "findings": [each.as_json() for each in self.findings],
            "unobserved": list(self.unobserved),
            "line": self.where,
        }


@dataclass(frozen=True, slots=True)
class Health:
    """The rollouts of the files, and the findings about their tasks."""

    rollouts: list[CheckedRollout]
    tasks: dict[int | str, list[HealthFinding]]
    failed: Counter[str]
    """Rollouts that failed and have no line, by the kind of the failure: NeMo Gym's name if it has
    one, else the class."""
    ignored: frozenset[str]

    def count(self, verdict: Verdict) -> int:
        return sum(each.verdict == verdict for each in self.rollouts)

    def as_json(self, num_examples: int) -> JsonObject:
        """Verdicts, and of each check how many rollouts or tasks it has found, with examples."""
        found: dict[str, list[str]] = defaultdict(list)
        numbers, unobserved = Counter[str](), Counter[str]()
        for each in self.rollouts:
            unobserved.update(each.unobserved)
            numbers.update(finding.check for finding in each.findings)
            for name in {finding.check for finding in each.findings}:
                found[name].append(each.where)
        for task, findings in self.tasks.items():
            numbers.update(finding.check for finding in findings)
            for finding in findings:
                found[finding.check].append(f"task {task}")
        checks = {
            name: {
                "meaning": meaning,
                "findings": numbers[name],
                "affected": len(found[name]),
                "unobserved": unobserved[name],
                "examples": found[name][:num_examples],
            }
            for name, meaning in MEANINGS.items()
            if name not in self.ignored
        }
        return {
            "rollouts": len(self.rollouts),
            "tasks": len({each.task for each in self.rollouts}),
            "failed_rollouts": self.failed.total(),
            "failed_by_kind": dict(self.failed.most_common()),
            "verdicts": {
                verdict: self.count(verdict) for verdict in ("healthy", "unhealthy", "unobserved")
            },
            "ignored": sorted(self.ignored),
            "checks": checks,
        }


def check_files(command: CheckRolloutsConfig) -> Health:
    """ConfigError if no file is named or has a rollout, or a check is unknown."""
    for name in command.ignore:
        if name not in MEANINGS:
            raise ConfigError(f"ignore: there is no check {name!r}{suggest(name, MEANINGS)}")
    ignored = frozenset(command.ignore)
    paths, _ = distinct_files_of(command.inputs)
    if not paths:
        raise ConfigError("name a file of rollouts: ng_check_rollouts results/rollouts.jsonl")
    rollouts = [_check(where, found, ignored) for where, found in _observe_files(paths)]
    if not rollouts:
        raise ConfigError(f"{', '.join(map(str, paths))}: no rollout is in it")
    if DUPLICATE not in ignored:
        _mark_duplicates(rollouts)
    tasks: dict[int | str, list[CheckedRollout]] = defaultdict(list)
    for each in rollouts:
        tasks[each.task].append(each)
    findings = {task: list(_check_task(own, ignored)) for task, own in tasks.items()}
    failed = Counter(kind for path in paths for kind in _find_failures(path))
    return Health(rollouts, findings, failed, ignored)


def _observe_files(paths: Iterable[Path]) -> Iterator[tuple[str, Evidence]]:
    """File and line of each rollout, and what its line has."""
    number = 0
    for path in paths:
        file = RolloutFile(path)
        for line in file.lines(parsed=True):
            if (found := _observe(file, line, number)) is not None:
                yield f"{path}:{line.number}", found
            number += 1


def _observe(file: RolloutFile, line: StoredLine, number: int) -> Evidence | None:
    """None if the line is none of a rollout."""
    if line.kind == NEWER:
        raise refuse(file.path, line, is_output=False)
    if line.kind == UNREADABLE:
        fault = {"reason": "rollout record is unreadable"}
        return Evidence(f"line {line.number}", 0, fault, is_line=False)
    if line.head is not None:
        key = line.head.key
        task = " · ".join(filter(None, (key.task_id, key.agent, key.scope)))
        return observe(task, key.rollout_index, line.row) if line.kind == "rollout" else None
    return observe_gym(line.row, number) if "response" in line.row else None


def _check(where: str, found: Evidence, ignored: frozenset[str]) -> CheckedRollout:
    findings, unobserved = run_checks(found, ignored)
    calls = found.of_turns.calls
    return CheckedRollout(
        where,
        found.task,
        found.index,
        found.identity,
        findings,
        unobserved,
        found.is_observed and found.is_whole and found.of_turns.is_complete,
        sum(call.has_succeeded for call in calls),
    )


def _mark_duplicates(rollouts: Iterable[CheckedRollout]) -> None:
    copies: dict[tuple[Any, ...], list[CheckedRollout]] = defaultdict(list)
    for each in rollouts:
        copies[each.identity].append(each)
    for own in copies.values():
        if len(own) > 1:
            for each in own:
                detail = {"duplicate_count": len(own)}
                each.findings = [*each.findings, HealthFinding(DUPLICATE, {}, detail)]


def _check_task(
    rollouts: Sequence[CheckedRollout], ignored: frozenset[str]
) -> Iterator[HealthFinding]:
    """The checks of one task; copies of a rollout count once."""
    copies: dict[int | str, list[CheckedRollout]] = defaultdict(list)
    for each in rollouts:
        copies[each.index].append(each)
    verdicts = [{each.verdict for each in own} for own in copies.values()]
    known = [each for own in verdicts if len(own) == 1 for each in own if each != "unobserved"]
    if ALWAYS_UNHEALTHY not in ignored and len(known) >= 2 and set(known) == {"unhealthy"}:
        yield HealthFinding(ALWAYS_UNHEALTHY, {}, {"computable_repeats": len(known)})
    is_known = all(each.is_known for each in rollouts)
    if NO_SUCCESS not in ignored and is_known and not any(each.num_succeeded for each in rollouts):
        yield HealthFinding(NO_SUCCESS, {}, {"repeats": len(copies)})


def _find_failures(path: Path) -> Iterator[str]:
    """The kind of each failure of an output."""
    failures = OutputPaths(plain_path(path)).failures
    for line in iterate_beside(failures, "failure"):
        if line.kind == "failure":
            about = as_object(line.row.get("failure"))
            yield str(about.get("failure_kind") or about.get("class") or "unknown")


def write_verdicts(health: Health, path: Path) -> None:
    """One line a rollout, in the order of the files; OutputError if it cannot be written."""
    file = RowFile(path, is_parquet=False)
    try:
        for each in health.rollouts:
            file.write(each.as_json())
        file.complete()
        file.commit()
    finally:
        file.discard()


def format_health(found: Mapping[str, Any]) -> str:
    """The findings for people."""
    total, verdicts = found["rollouts"], found["verdicts"]
    over = f"{number_of(total, 'rollout')} of {number_of(found['tasks'], 'task')}"
    lines = [f"{over}: " + ", ".join(f"{n:,} {verdict}" for verdict, n in verdicts.items())]
    if found["failed_rollouts"]:
        failed = number_of(found["failed_rollouts"], "rollout")
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in found["failed_by_kind"].items())
        lines.append(f"{failed} failed and cannot be checked, as they have no line: {kinds}")
    lines += _format_checks(
        {k: own for k, own in found["checks"].items() if own["affected"]}, total
    )
    return "\n".join(lines)


def _format_checks(found: Mapping[str, Any], total: int) -> Iterator[str]:
    if not found:
        yield "no check has found anything"
    width = max(map(len, found), default=0)
    for name, own in found.items():
        number, is_of_task = own["affected"], name in (ALWAYS_UNHEALTHY, NO_SUCCESS)
        share = number_of(number, "task") if is_of_task else f"{number:,} ({number / total:.1%})"
        yield f"  {name:<{width}}  {share}: {own['meaning']}"
        if own["examples"]:
            yield f"  {'':<{width}}  for example {', '.join(own['examples'])}"
