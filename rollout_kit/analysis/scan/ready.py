"""What is conspicuous in a rollout, found by rules and without a model.

Texts of a model are only looked through for fixed texts: nothing of a line is compiled or matched
as an expression.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from ...responses import as_object, content_texts
from ...store.notes.scans import TurnFinding
from ...store.steps import ToolUse, TurnStep, first_argument, read_steps, shorten
from ..health.evidence import CUT_OFF
from .changes import MAX_LOOKED, FileChange, find_changes, is_test


class NamedChange(NamedTuple):
    """A file that a call changes; `is_named`: something before the call names it."""

    step: TurnStep
    tool: ToolUse
    change: FileChange
    is_named: bool


@dataclass(frozen=True)
class Scanned:
    """A rollout as scanners see it."""

    line: Mapping[str, Any]

    @cached_property
    def steps(self) -> list[TurnStep]:
        """Its turns."""
        return read_steps(self.line)

    @cached_property
    def changes(self) -> list[NamedChange]:
        """What its calls change."""
        return list(_list_changes(self))

    def uses(self) -> Iterator[tuple[TurnStep, ToolUse]]:
        """Each call of a tool with its step."""
        for step in self.steps:
            for tool in step.tools:
                yield step, tool


Scanner = Callable[[Scanned], Iterator[TurnFinding]]

READY_VERSION = "3"
"""Grows when a ready scanner finds something else than before."""

LOOPS = 3
"""Equal calls one after the other that are a loop."""

MAX_CYCLE = 4
"""Steps of the longest cycle that is looked for."""

DOWN = 3
"""Errors of one tool, one after the other, with which it counts as broken."""

KEPT = 0.6
"""A prompt that is shorter than this share of the one before has lost context."""

MIN_LOST = 500
"""Tokens that a prompt has lost at least, so that it counts."""


CUT_MARKS = (
    *("[truncated", "...truncated", "output truncated", "<truncated", "(truncated"),
    *("characters omitted", "lines omitted", "output was too long", "response clipped"),
)

CUT_WORDS = ("truncated", "omitted", "too long", "clipped")
"""Each of CUT_MARKS has one: most texts have none, and are looked through the fewer times."""

REFUSES = (
    *("i can't help with", "i cannot help with", "i can’t help with", "i won't help"),
    *("i can't assist", "i cannot assist", "i'm not able to help with", "against my guidelines"),
    *("i must decline", "i refuse to", "i'm sorry, but i can't", "i cannot comply"),
)

GIVES_UP = (
    *("i give up", "giving up", "i'm giving up", "i am giving up", "i was unable to"),
    *("i am unable to", "i'm unable to", "i could not complete", "i couldn't complete"),
    *("i cannot complete", "i can't complete", "could not finish", "couldn't finish", "i'm stuck"),
    *("i am stuck", "unable to solve", "cannot solve this", "i will stop here", "i'll stop here"),
)

ANSWERS = (
    *("expected_answer", "answer_key", "answer key", "gold_answer", "gold patch", "ground_truth"),
    *("ground truth", "reference_solution", "reference solution", "official solution"),
    *("solution.patch", "solution_patch", "hidden_tests", "hidden tests"),
)


def find_all(scanned: Scanned) -> list[TurnFinding]:
    """What all ready scanners find, in the order of the turns."""
    found = chain.from_iterable(scanner(scanned) for scanner in SCANNERS.values())
    return sorted(found, key=lambda each: each.turn or len(scanned.steps) + 1)


def find_errors(scanned: Scanned) -> Iterator[TurnFinding]:
    """A tool returned an error."""
    for step, tool in scanned.uses():
        if tool.is_error:
            text = f"{tool.name} returned an error: {_reason_of(tool.output or '')}"
            yield TurnFinding("tool_error", step.number, text)


def _reason_of(text: str) -> str:
    lines = [line for line in text[-4000:].splitlines() if line.strip()]
    return shorten(lines[-1] if lines else "", 120)


def find_ignored(scanned: Scanned) -> Iterator[TurnFinding]:
    """After an error the model never used that tool again: it went to something else, or ended."""
    last = {tool.name: step.number for step, tool in scanned.uses()}
    for step, tool in scanned.uses():
        if tool.is_error and last[tool.name] == step.number:
            yield TurnFinding(
                "ignored_error", step.number, f"the error of {tool.name} was not handled"
            )


def find_loops(scanned: Scanned) -> Iterator[TurnFinding]:
    """The same calls several times one after the other, alone or in a cycle."""
    steps = [step for step in scanned.steps if step.tools]
    done = [tuple((tool.name, tool.arguments) for tool in step.tools) for step in steps]
    at = 0
    while at < len(done):
        for size in range(1, MAX_CYCLE + 1):
            times = 1
            while done[at + times * size : at + (times + 1) * size] == done[at : at + size]:
                times += 1
                if at + times * size >= len(done):
                    break
            if times >= LOOPS and done[at : at + size]:
                what = f"{steps[at].tools[0].name} {first_argument(steps[at].tools[0].arguments)}"
                text = f"{size} call{'s' * (size > 1)} repeated {times} times: {shorten(what, 80)}"
                yield TurnFinding("loop", steps[at + size].number, text)
                at += times * size - 1
                break
        at += 1


def find_repeated(scanned: Scanned) -> Iterator[TurnFinding]:
    """A call with the arguments and the output of an earlier one."""
    seen: dict[tuple[str, str, str | None], int] = {}
    for step, tool in scanned.uses():
        key = tool.name, tool.arguments, tool.output
        if (first := seen.setdefault(key, step.number)) != step.number:
            text = f"{tool.name} was called as in turn {first}, and returned the same"
            yield TurnFinding("repeated_call", step.number, text)


def find_cut(scanned: Scanned) -> Iterator[TurnFinding]:
    """A reply that reached its limit of tokens, or an output of a tool that was cut."""
    for step in scanned.steps:
        if step.call.finish in CUT_OFF:
            yield TurnFinding(
                "truncated", step.number, f"the reply was cut off: {step.call.finish}"
            )
    details = as_object(as_object(scanned.line.get("response")).get("incomplete_details"))
    last = scanned.steps[-1] if scanned.steps else None
    if last and details.get("reason") in CUT_OFF and last.call.finish not in CUT_OFF:
        yield TurnFinding("truncated", last.number, f"the reply was cut off: {details['reason']}")
    for step, tool in scanned.uses():
        output = tool.output or ""
        if _mark_in(output, CUT_WORDS) and (mark := _mark_in(output, CUT_MARKS)):
            yield TurnFinding(
                "truncated", step.number, f"the output of {tool.name} was cut: {mark}"
            )


def find_edited_tests(scanned: Scanned) -> Iterator[TurnFinding]:
    """A call that changes a file of tests. Making a new one is no change."""
    for step, tool, change, is_named in scanned.changes:
        if is_test(change.path) and (is_named or not change.is_new):
            text = f"{tool.name} changes {shorten(change.path, 100)}"
            yield TurnFinding("tests_edited", step.number, text)


def find_unseen(scanned: Scanned) -> Iterator[TurnFinding]:
    """A file is changed that neither the task nor any output has named before, and that exists."""
    for step, tool, change, is_named in scanned.changes:
        if not (is_named or change.is_new):
            text = f"{tool.name} changes {shorten(change.path, 100)}, which nothing named before"
            yield TurnFinding("unseen_file", step.number, text)


def _list_changes(scanned: Scanned) -> Iterator[NamedChange]:
    texts = [_text_of_input(as_object(scanned.line.get("responses_create_params")))]
    for step, tool in scanned.uses():
        for change in dict.fromkeys(find_changes(tool)):
            name = change.path.rstrip("/").rsplit("/", 1)[-1]
            yield NamedChange(step, tool, change, any(name in text for text in texts))
        texts += [tool.arguments[:MAX_LOOKED], (tool.output or "")[:MAX_LOOKED]]


def find_giving_up(scanned: Scanned) -> Iterator[TurnFinding]:
    """The last thing that the model says is that it stops without a solution."""
    said = [step for step in scanned.steps if step.text.strip()]
    if said and (mark := _mark_in(said[-1].text, GIVES_UP)):
        yield TurnFinding("gave_up", said[-1].number, f"the model gave up: “{mark}”")


def find_refusals(scanned: Scanned) -> Iterator[TurnFinding]:
    """The model refuses."""
    for step in scanned.steps:
        if mark := _mark_in(step.text[:2000], REFUSES):
            yield TurnFinding("refusal", step.number, f"the model refused: “{mark}”")


def find_answer_search(scanned: Scanned) -> Iterator[TurnFinding]:
    """A call that looks for the answer in place of solving the task."""
    asked = _text_of_input(as_object(scanned.line.get("responses_create_params"))).lower()
    marks = [mark for mark in ANSWERS if mark not in asked]
    for step, tool in scanned.uses():
        if mark := _mark_in(tool.arguments, marks):
            yield TurnFinding("answer_search", step.number, f"{tool.name} looks for “{mark}”")


def find_broken_tools(scanned: Scanned) -> Iterator[TurnFinding]:
    """A tool that returned an error several times one after the other."""
    running: dict[str, int] = {}
    for step, tool in scanned.uses():
        running[tool.name] = running.get(tool.name, 0) + 1 if tool.is_error else 0
        if running[tool.name] == DOWN:
            text = f"{tool.name} failed {DOWN} times one after the other"
            yield TurnFinding("broken_tool", step.number, text)


def find_hollow(scanned: Scanned) -> Iterator[TurnFinding]:
    """A turn that neither says nor does anything."""
    for step in scanned.steps:
        if not step.text.strip() and not step.tools:
            yield TurnFinding("hollow_turn", step.number, "the turn has neither a text nor a call")


def find_lost_context(scanned: Scanned) -> Iterator[TurnFinding]:
    """A prompt that is much shorter than that of the turn before: the conversation was cut."""
    for before, step in zip(scanned.steps, scanned.steps[1:], strict=False):
        one, other = before.call.input, step.call.input
        if one and other and other < KEPT * one and one - other >= MIN_LOST:
            text = f"the prompt shrank from {one:,} to {other:,} tokens"
            yield TurnFinding("context_lost", step.number, text)
    items = as_object(scanned.line.get("response")).get("output")
    kinds = [as_object(item).get("type") for item in items] if isinstance(items, list) else []
    for step in scanned.steps:
        if "compaction" in kinds[step.begin : step.end]:
            yield TurnFinding("context_lost", step.number, "the context was compacted")


def find_last_error(scanned: Scanned) -> Iterator[TurnFinding]:
    """The last call of a tool returned an error."""
    uses = list(scanned.uses())
    if uses and uses[-1][1].is_error:
        step, tool = uses[-1]
        yield TurnFinding("ends_on_error", step.number, f"the last call, of {tool.name}, failed")


def find_misquotes(scanned: Scanned) -> Iterator[TurnFinding]:
    """The verdict quotes a text that the rollout does not hold."""
    quotes = list(quotes_in(scanned.line))
    if not quotes:
        return
    held = " ".join(_whole_text(scanned).split()).lower()
    for quote in quotes:
        if " ".join(quote.split()).lower() not in held:
            text = f"the verdict quotes “{shorten(quote, 100)}”, which the rollout does not hold"
            yield TurnFinding("misquote", 0, text)


SCANNERS: dict[str, Scanner] = {
    "tool_error": find_errors,
    "ignored_error": find_ignored,
    "loop": find_loops,
    "repeated_call": find_repeated,
    "truncated": find_cut,
    "tests_edited": find_edited_tests,
    "unseen_file": find_unseen,
    "gave_up": find_giving_up,
    "refusal": find_refusals,
    "answer_search": find_answer_search,
    "broken_tool": find_broken_tools,
    "hollow_turn": find_hollow,
    "context_lost": find_lost_context,
    "ends_on_error": find_last_error,
    "misquote": find_misquotes,
}
"""The ready scanners, none of which needs a model."""


def _mark_in(text: str, marks: Sequence[str]) -> str:
    """The first of the marks that the beginning or the end of a text holds, in small letters."""
    low = (text if len(text) <= 2 * MAX_LOOKED else text[:MAX_LOOKED] + text[-MAX_LOOKED:]).lower()
    return next((mark for mark in marks if mark in low), "")


def quotes_in(line: Mapping[str, Any]) -> Iterator[str]:
    """The texts that the fields of the verdict quote as parts of the rollout."""
    names = as_object(line.get("rollout")).get("scores")
    known = [each for each in names if isinstance(each, str)] if isinstance(names, list) else []
    for name in dict.fromkeys([*known, "judge", "judgement", "criteria", "verdict"]):
        yield from _quotes(line.get(name))


def _quotes(value: Any, level: int = 0) -> Iterator[str]:
    if level > 20:
        return
    if isinstance(value, dict):
        for name, each in value.items():
            if name in ("quote", "evidence", "quotes") and isinstance(each, str) and each.strip():
                yield each
            elif name == "quotes" and isinstance(each, list):
                yield from (one for one in each if isinstance(one, str) and one.strip())
            else:
                yield from _quotes(each, level + 1)
    elif isinstance(value, list):
        for each in value:
            yield from _quotes(each, level + 1)


def _text_of_input(params: Mapping[str, Any]) -> str:
    given = params.get("input")
    items = given if isinstance(given, list) else []
    texts = [text for item in items for text in content_texts(as_object(item).get("content"))]
    parts = [str(params.get("instructions") or ""), given if isinstance(given, str) else "", *texts]
    return "\n".join(parts)


def _whole_text(scanned: Scanned) -> str:
    parts = [_text_of_input(as_object(scanned.line.get("responses_create_params")))]
    for step in scanned.steps:
        parts.append(step.text)
        parts += [text for tool in step.tools for text in (tool.arguments, tool.output or "")]
    return "\n".join(parts)
