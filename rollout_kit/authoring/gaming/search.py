"""Searches a verifier for ways to be gamed: reads its code and rows, and verifies wrong answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...responses import message_item
from ...types import JsonObject
from ..answers import Case
from ..audit import Audit
from ..audit_run import AuditStep, AuditVerdict, Stage
from ..examination import GOLD, WRONG, build_response, has_response
from .canary import CANARY, build_canary_cases, find_given_away
from .code_reading import read_code
from .labels import read_tasks
from .obedient_judge import list_orders
from .row_leaks import LEAKS_ANSWER, find_leaks
from .sinks import OPENS_FILE
from .text_flow import find_text_sinks
from .tricks import DENIED, GAMING, NUM_ROWS, Trick, build_gaming_cases
from .verdict import REWARDED, Found, is_most, judge_tricks, summarize_tricks

RUNS_TEXT = "runs text outside the sandbox"

OPENS_TEXT = "opens files that text names"

ENDS = "submitted code ends the verifier"

MAX_ENDS = 6
"""How often the search starts anew after an answer that ended the verifier's process."""

BUDGET_S = 120.0
"""How long wrong answers are verified. The rest is left out, with a remark."""

NUM_ORDERED = 2
"""Rows on which a judge is given orders."""

WEIRD = {
    "empty": "no answer",
    "long": "sheer length",
    "adversarial": "a hostile answer",
    "malformed": "a malformed answer",
}
"""Kind of the audit's answers → the trick that they are."""


@dataclass(slots=True)
class Holes:
    """What was found, and the rewards of every trick. Remarks are no faults."""

    flags: list[Found] = field(default_factory=list)
    remarks: list[Found] = field(default_factory=list)
    tricks: list[JsonObject] = field(default_factory=list)


async def search_holes(
    audit: Audit,
    stage: Stage,
    rows: Sequence[JsonObject],
    judges: Sequence[str],
    tell: Callable[[str], None],
) -> Holes:
    """Search a verifier whose audit is `audit`. `judges`: the models that it asks, which are
    replaced by one that obeys."""
    tasks = read_tasks(rows, [build_response(row, GOLD) for row in rows])
    found = Holes([(LEAKS_ANSWER, evidence) for evidence in find_leaks(tasks)])
    if stage.folder is not None:
        found.flags += read_files(stage.folder)
    if audit.base.stopped or audit.is_constant or audit.has("not deterministic"):
        return found
    found.flags += await _try_tools(audit, stage, rows, judges)
    pairs = _list_wrong(rows) + _list_orders(rows, judges)
    pairs = _sort(pairs + build_gaming_cases(tasks))
    numbers = {id(row): number for number, row in enumerate(rows, 1)}
    tricks = [(trick, numbers[id(case.row)]) for trick, case in pairs]
    tell(f"{len(pairs):,} answers that game it")
    verdicts, ends = await _play(
        replace(stage, cases=[{"row": c.row, "response": c.response} for _, c in pairs]),
        [case for _, case in pairs],
        judges,
    )
    found.flags += [(ENDS, evidence) for evidence in ends]
    if not ends and len(verdicts) < len(pairs):
        left = f"{len(pairs) - len(verdicts):,} of {len(pairs):,} answers that game it"
        found.remarks.append((f"after {BUDGET_S:g} s", f"{left} were left out"))
    best = _find_best(audit, rows, has_judge=bool(judges))
    for name, evidence in judge_tricks(tricks, verdicts, best):
        is_lenient = name == REWARDED.format(DENIED)
        (found.remarks if is_lenient else found.flags).append((name, evidence))
    found.flags += _judge_answers(audit, numbers, best)
    found.tricks = summarize_tricks(tricks, verdicts)
    return found


async def _try_tools(
    audit: Audit, stage: Stage, rows: Sequence[JsonObject], judges: Sequence[str]
) -> list[Found]:
    """Call every tool on rows with an answer that no other place knows."""
    cases = build_canary_cases(rows, audit.about.get("tools", ()))
    if not cases:
        return []
    given = [{"row": case.row, "response": case.response} for case in cases]
    step = AuditStep(CANARY, range(len(cases)), budget_s=BUDGET_S, calls_tools=True)
    played = await replace(stage, cases=given, obedient=tuple(judges)).play([step])
    return find_given_away(cases, played.steps.get(CANARY, {}))


def read_files(folder: Path) -> list[Found]:
    """What the code of a server's folder says."""
    sinks = [
        (OPENS_TEXT if sink.what == OPENS_FILE else RUNS_TEXT, str(sink))
        for sink in find_text_sinks(folder)
    ]
    return [*sinks, *read_code(folder)]


def _sort(pairs: list[tuple[Trick, Case]]) -> list[tuple[Trick, Case]]:
    """The tricks in their order, each on all of its rows: time may not be enough for all."""
    order = {(trick.name, trick.variant): number for number, (trick, _) in enumerate(pairs[::-1])}
    return sorted(pairs, key=lambda pair: -order[pair[0].name, pair[0].variant])


def _list_wrong(rows: Sequence[JsonObject]) -> list[tuple[Trick, Case]]:
    trick = Trick("the row's own wrong answer", "wrong_output or wrong_items")
    return [
        (
            trick,
            Case(GAMING, f"row {number}, its own wrong answer", row, build_response(row, WRONG)),
        )
        for number, row in enumerate(rows[:NUM_ROWS], 1)
        if has_response(row, WRONG)
    ]


def _list_orders(rows: Sequence[JsonObject], judges: Sequence[str]) -> list[tuple[Trick, Case]]:
    found = []
    for number, row in enumerate(rows[:NUM_ORDERED], 1):
        for place, text in enumerate(list_orders(dict.fromkeys(judges))):
            response = build_response({"gold_items": [message_item(text)]}, GOLD)
            case = Case(GAMING, f"row {number}, order {place} to the judge", row, response)
            found.append((Trick("orders to its judge", f"order {place}"), case))
    return found


async def _play(
    stage: Stage, cases: Sequence[Case], judges: Sequence[str]
) -> tuple[dict[int, AuditVerdict], list[str]]:
    """Verify the tricks, and say which of them ended the process."""
    stage = replace(stage, obedient=tuple(judges))
    left, verdicts, ends = list(range(len(cases))), dict[int, AuditVerdict](), list[str]()
    while left and len(ends) < MAX_ENDS:
        played = await stage.play([AuditStep("gaming", left, budget_s=BUDGET_S)])
        verdicts |= played.steps.get("gaming", {})
        if not played.stopped:
            break
        if played.hung is None:
            ends.append(played.stopped)
            break
        ends.append(f"'{cases[played.hung].name}': {played.stopped}")
        left = [number for number in left if number > played.hung]
    return verdicts, ends


def _find_best(audit: Audit, rows: Sequence[JsonObject], *, has_judge: bool) -> dict[int, float]:
    """The reward of each row's gold answer."""
    numbers = {id(row): number for number, row in enumerate(rows, 1)}
    found = {
        numbers[id(case.row)]: audit.verdicts()[n].reward or 0.0
        for n, case in enumerate(audit.cases)
        if case.kind == "gold" and n in audit.verdicts() and not case.name.endswith("spaced")
    }
    return dict.fromkeys(numbers.values(), 1.0) | found if has_judge else found


def _judge_answers(audit: Audit, numbers: dict[int, int], best: dict[int, float]) -> list[Found]:
    """Flags for the audit's own answers that are rewarded though they are none, and for rows whose
    answers fit other rows."""
    tricks, verdicts, foreign = [], {}, []
    is_stateless = audit.about.get("reverify") == "stateless"
    for number, case in enumerate(audit.cases):
        verdict = audit.verdicts().get(number)
        row = numbers[id(case.row)]
        if verdict is None:
            continue
        if case.kind in WEIRD:
            verdicts[len(tricks)] = verdict
            name = case.name.partition(", ")[2]
            if name != "long, then gold":
                tricks.append((Trick(WEIRD[case.kind], name), row))
        elif is_stateless and case.kind == "another row's gold" and _is_text(case.response):
            foreign.append((verdict.reward or 0.0) >= max(best.get(row, 1.0), 0.01))
    found = judge_tricks(tricks, verdicts, best)
    if len(foreign) > 1 and is_most(sum(foreign), len(foreign)):
        evidence = f"{sum(foreign):,} of {len(foreign):,} rows"
        found.append((REWARDED.format("another row's gold"), evidence))
    return found


def _is_text(response: JsonObject) -> bool:
    """Whether a response is one message, without tools and turns."""
    return [item.get("type") for item in response["output"]] == ["message"]
