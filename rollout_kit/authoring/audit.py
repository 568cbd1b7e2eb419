"""Test a verifier: verify the same answers in several processes and explain the differences.

Two identical processes must agree; otherwise the verdict is random. If they agree, any difference
between two other processes is caused by the one setting in which they differ: hash seed, order,
date or network.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..types import JsonObject
from .answers import CHANGED_LABEL, Case
from .audit_run import ONCE_S, AuditStep, AuditVerdict, Played, Setting, Stage

AT_ONCE = 32
"""Verdicts in flight in the concurrent step."""

AHEAD_S = 400 * 86_400 + 11 * 3_600 + 1_234
"""Shift of the clock that changes year, month, day, half of the day and minute."""

AS_LONG = 3
"""A verdict on a long answer is slow if it takes so many times as long as on the gold answer."""

LEAKS = "leaks state between sessions"

MAX_SHOWN = 3
"""Number of cases that a message lists."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A fault of the verifier, and the evidence for it."""

    name: str
    evidence: str


@dataclass(slots=True)
class Audit:
    """Result of auditing one verifier. `remarks` are notes that are not faults."""

    cases: list[Case]
    about: JsonObject
    base: Played
    is_elsewhere: bool
    had_own_network: bool
    """Whether the network was blocked for programs in any language, not only for Python."""
    flags: list[Flag] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    num_processes: int = 1

    def verdicts(self, step: str = "first") -> dict[int, AuditVerdict]:
        return self.base.steps.get(step, {})

    def of_kind(self, kind: str) -> list[AuditVerdict]:
        found = self.verdicts()
        return [found[n] for n, case in enumerate(self.cases) if case.kind == kind and n in found]

    @property
    def is_constant(self) -> bool:
        """Whether every answer gets the same reward."""
        found = self.verdicts()
        return len(found) > 1 and len({verdict.reward for verdict in found.values()} - {None}) == 1

    @property
    def quick(self) -> list[int]:
        """Cases that are fast enough to be verified more than once."""
        return [number for number, each in self.verdicts().items() if each.verify_s <= ONCE_S]

    def find_differences(
        self, other: Played, step: str = "first", other_step: str = ""
    ) -> list[int]:
        """Return the cases whose reward differs from `step`, or that have no verdict."""
        one, another = self.verdicts(step), other.steps.get(other_step or step, {})
        return [
            number
            for number in self.quick
            if number not in another or another[number].reward != one[number].reward
        ]

    def flag(self, name: str, evidence: str) -> None:
        for number, each in enumerate(self.flags):
            if each.name == name:
                self.flags[number] = Flag(name, f"{each.evidence}; {evidence}")
                return
        self.flags.append(Flag(name, evidence))

    def has(self, name: str) -> bool:
        return any(each.name == name for each in self.flags)


class _BrokenOff(Exception):
    """A process did not finish, so its verdicts cannot be compared."""

    def __init__(self, played: Played) -> None:
        super().__init__(played.stopped)
        self.played = played


async def run_audit(
    stage: Stage, cases: list[Case], slow_s: float, tell: Callable[[str], None]
) -> Audit:
    """Run all tests of an audit; `tell` gets a line before each process."""
    everything = range(len(cases))
    has_process = stage.verifier["name"] not in stage.urls
    script = [
        AuditStep("first", everything),
        AuditStep("again", everything),
        AuditStep("at once", everything, AT_ONCE),
    ]
    tell(f"{len(cases):,} answers, twice, and {AT_ONCE} at once")
    base = await stage.play(script)
    audit = Audit(cases, base.about, base, not has_process, stage.can_unshare_network)
    _judge_rewards(audit, slow_s)
    _judge_observations(audit)
    if base.stopped:
        _judge_end(audit, base)
        return audit
    if audit.is_constant:
        return audit  # equal rewards cannot differ
    if has_process:
        try:
            await _compare_processes(audit, stage, script, tell)
        except _BrokenOff as end:
            _judge_end(audit, end.played)
            return audit
    else:
        _judge_state(audit)
        audit.remarks.append("it runs elsewhere: restart, clock and network were not tested")
    _note_varying_fields(audit)
    return audit


def _judge_rewards(audit: Audit, slow_s: float) -> None:
    found = audit.verdicts()
    if audit.is_constant:
        always = next(each.reward for each in found.values() if each.reward is not None)
        audit.flag(f"always {always:g}", f"for every answer, in {len(found):,} verdicts")
    missed = [
        number
        for number, case in enumerate(audit.cases)
        if case.kind == "gold" and number in found and (found[number].reward or 0.0) < 1.0
    ]
    if missed:
        audit.flag("misses gold", f"{_list_cases(audit, missed)} scored less than 1.0")
    changed = [n for n, case in enumerate(audit.cases) if case.kind == CHANGED_LABEL and n in found]
    accepted = [number for number in changed if (found[number].reward or 0.0) >= 1.0]
    is_by_text = audit.about.get("reverify") == "stateless" and not audit.is_constant
    if is_by_text and accepted and len(accepted) == len(changed):
        audit.flag("accepts changed labels", f"{_list_cases(audit, accepted)} scored 1.0")
    raised = [n for n, each in found.items() if each.reward is None and not each.tools_hung]
    if hung := [number for number, verdict in found.items() if verdict.tools_hung]:
        audit.remarks.append(f"{_list_cases(audit, hung)}: the calls of tools took too long")
    if raised:
        first = found[raised[0]].error
        audit.flag("raises on malformed", f"{_list_cases(audit, raised)} got no verdict: {first}")
    _judge_times(audit, slow_s)


def _judge_times(audit: Audit, slow_s: float) -> None:
    """Flag slow verdicts on long answers, and verdicts that block the event loop. Short answers may
    be hard to verify, and rows slow with any answer, so these give only a remark."""
    found = audit.verdicts()
    usual_s = {
        id(audit.cases[n].row): verdict.verify_s
        for n, verdict in found.items()
        if audit.cases[n].kind == "gold"
    }
    slow = [n for n, verdict in found.items() if verdict.verify_s > slow_s]
    held = [n for n in slow if found[n].held_s > slow_s]
    long = [
        n
        for n in slow
        if audit.cases[n].is_long
        and n not in held
        and found[n].verify_s > AS_LONG * usual_s.get(id(audit.cases[n].row), 0.0)
    ]
    hard = [n for n in slow if n not in {*held, *long}]
    for numbers, name in ((long, "slow on long answers"), (held, "holds up the event loop")):
        if numbers:
            slowest = max(found[n].verify_s for n in numbers)
            audit.flag(name, f"{_list_cases(audit, numbers)} took up to {slowest:.1f} s")
    if hard:
        slowest = max(found[n].verify_s for n in hard)
        audit.remarks.append(
            f"{_list_cases(audit, hard)} took up to {slowest:.1f} s, but not because they are long"
        )


def _judge_observations(audit: Audit) -> None:
    for kind in ("clock", "network"):
        if seen := audit.base.seen.get(kind):
            audit.flag(f"reads the {kind}", _join(seen))


def _judge_end(audit: Audit, played: Played) -> None:
    which = "" if played.hung is None else f" over '{audit.cases[played.hung].name}'"
    is_long = played.hung is not None and audit.cases[played.hung].is_long
    name = "slow on long answers" if is_long and played.is_late else "breaks off"
    audit.flag(name, f"{played.stopped}{which}; the remaining tests were skipped")


async def _compare_processes(
    audit: Audit, stage: Stage, script: Sequence[AuditStep], tell: Callable[[str], None]
) -> None:
    async def run(why: str, steps: Sequence[AuditStep], setting: Setting) -> Played:
        tell(why)
        audit.num_processes += 1
        played = await stage.play(steps, setting)
        if played.stopped:
            raise _BrokenOff(played)
        return played

    first = [AuditStep("first", audit.quick)]
    fresh = await run("again after a restart", first, Setting(hash_seed=1))
    after_restart = audit.find_differences(fresh)
    if after_restart or _compare_steps(audit):
        twin = await run("again in an identical process", script, Setting())
        lots = {n for step in script for n in audit.find_differences(twin, step.name)}
        if lots:
            audit.flag(
                "not deterministic",
                f"{_list_cases(audit, sorted(lots))} scored differently in an identical process, so"
                " other causes cannot be determined",
            )
            return
    _judge_state(audit)
    if after_restart and not audit.has(LEAKS):
        evidence = f"{_list_cases(audit, after_restart)} scored differently under another hash seed"
        audit.flag("differs after a restart", evidence)
    order = audit.quick
    if not audit.has(LEAKS):  # else another order would hide other causes
        random.Random(0).shuffle(order)
    shuffled, far = [AuditStep("first", order)], Setting(shift_s=AHEAD_S, without_network=True)
    together = await run("later, without network, in another order", shuffled, far)
    if not audit.find_differences(together):
        return
    apart = (
        (LEAKS, "in another order", shuffled, Setting()),
        ("reads the clock", "400 days later", first, Setting(shift_s=AHEAD_S)),
        ("reads the network", "without network", first, Setting(without_network=True)),
    )
    for name, when, steps, setting in apart:
        if numbers := audit.find_differences(await run(f"again, {when}", steps, setting)):
            audit.flag(name, f"{_list_cases(audit, numbers)} scored differently {when}")


def _compare_steps(audit: Audit) -> dict[str, list[int]]:
    """Description of the circumstance → cases that differed within the first process."""
    steps = {
        "again": "when verified again in the same process",
        "at once": f"when {AT_ONCE} were verified at once",
    }
    find = audit.find_differences
    found = {when: find(audit.base, "first", step) for step, when in steps.items()}
    return {when: numbers for when, numbers in found.items() if numbers}


def _judge_state(audit: Audit) -> None:
    for when, numbers in _compare_steps(audit).items():
        audit.flag(LEAKS, f"{_list_cases(audit, numbers)} scored differently {when}")


def _note_varying_fields(audit: Audit) -> None:
    """Remark on fields that vary between verdicts, unless the server declares them as `measured`;
    they become metrics."""
    first, again = audit.verdicts(), audit.verdicts("again")
    names = {
        name
        for number in first.keys() & again.keys()
        for name in first[number].scores.keys() | again[number].scores.keys()
        if first[number].scores.get(name) != again[number].scores.get(name)
    }
    if undeclared := names - {"reward", *audit.about.get("measured", ())}:
        listed = ", ".join(sorted(undeclared))
        audit.remarks.append(f"fields that vary from one verdict to the next: {listed}")
    if not (audit.is_elsewhere or audit.had_own_network):
        audit.remarks.append(
            "only Python was kept from the network: a network namespace needs a permission that"
            " is missing here, or the verifier calls other servers"
        )


def _list_cases(audit: Audit, numbers: Sequence[int]) -> str:
    """Format some cases for a message."""
    return _join([f"'{audit.cases[number].name}'" for number in numbers])


def _join(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_SHOWN:,} more" if len(names) > MAX_SHOWN else ""
    return ", ".join(names[:MAX_SHOWN]) + more
