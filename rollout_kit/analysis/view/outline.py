"""The steps of a rollout as the page lists them, its items on demand, and a search in it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...responses import as_object
from ...store.notes.scans import TurnFinding
from ...store.steps import TurnStep, describe_use, shorten
from ...types import JsonObject
from ..scan.ready import SCANNERS, Scanned, find_all

MAX_HITS = 2000
"""Places of a search that are listed; all are counted."""

AROUND = 60
"""Characters before and behind a place that is listed."""

MAX_FINDINGS = 2000
"""Findings that a page lists."""


def describe_steps(line: Mapping[str, Any]) -> JsonObject:
    """`steps` are the heads of the turns, `findings` what the ready scanners find in them."""
    scanned = Scanned(line)
    findings = find_all(scanned)
    return {
        "steps": [_describe(step) for step in scanned.steps],
        "findings": [each._asdict() for each in findings[:MAX_FINDINGS]],
        "num_findings": len(findings),
    }


def add_scans(described: JsonObject, scans: Iterable[TurnFinding]) -> JsonObject:
    """The same with what others have found in earlier scans, which stands first."""
    others = [each._asdict() for each in scans if each.scanner not in SCANNERS]
    findings = [*others, *described["findings"]][:MAX_FINDINGS]
    number = len(others) + described["num_findings"]
    return {**described, "findings": findings, "num_findings": number}


def _describe(step: TurnStep) -> JsonObject:
    call = {name: value for name, value in step.call._asdict().items() if value is not None}
    call.pop("to", None)
    return {
        "number": step.number,
        "begin": step.begin,
        "end": step.end,
        "says": shorten(step.text),
        "reasons": step.reasons,
        "tools": list(map(describe_use, step.tools)),
        **call,
    }


def find_inside(
    head: Mapping[str, Any], turns: Iterable[tuple[int, int, Sequence[Any]]], text: str
) -> JsonObject:
    """Where a text stands in a rollout, whatever its case: `hits` of (turn, item, excerpt), and
    the number of all. `turns` are numbers of turns, with the number of their first item and the
    items. Turn 0 is the task, turn -1 the rest of the line."""
    wanted, hits, total = text.lower(), [], 0
    for turn, item, held in _texts(head, turns):
        low, at = held.lower(), 0
        while wanted and (at := low.find(wanted, at)) >= 0:
            total += 1
            if len(hits) < MAX_HITS:
                begin, end = max(0, at - AROUND), at + len(wanted) + AROUND
                hits.append({"turn": turn, "item": item, "excerpt": held[begin:end]})
            at += len(wanted)
    return {"hits": hits, "total": total}


def _texts(
    head: Mapping[str, Any], turns: Iterable[tuple[int, int, Sequence[Any]]]
) -> Iterator[tuple[int, int, str]]:
    params = as_object(head.get("responses_create_params"))
    asked = [params.get("instructions"), params.get("input")]
    yield from ((0, 0, text) for text in _strings(asked))
    for number, begin, items in turns:
        for at, item in enumerate(items, begin):
            yield from ((number, at, text) for text in _strings(item))
    known = ("responses_create_params", "response")
    rest = {name: value for name, value in head.items() if name not in known}
    yield from ((-1, 0, text) for text in _strings(rest))


HIDDEN = frozenset({"type", "role", "status", "id", "call_id", "kind", "schema", "agent_ref"})


def _strings(value: Any, level: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and level < 100:
        for each in value:
            yield from _strings(each, level + 1)
    elif isinstance(value, dict) and level < 100:
        for name, each in value.items():
            if name not in HIDDEN:
                yield from _strings(each, level + 1)
