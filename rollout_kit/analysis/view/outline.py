"""The steps of a rollout as the page lists them, its items on demand, and a search in it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...responses import as_object
from ...store.notes.scans import TurnFinding
from ...store.steps import TurnStep, describe_use, shorten
from ...types import JsonObject
from ..scan.ready import SCANNERS, Scanned, find_all
from .cuts import CutText

MAX_HITS = 2000
"""Places of a search that are listed; all are counted."""

AROUND = 60
"""Characters before and behind a place that is listed."""

MAX_FINDINGS = 2000
"""Findings that a page lists."""


def describe_all(line: Mapping[str, Any]) -> JsonObject:
    """`steps` are the heads of the turns, `findings` what the ready scanners find in them."""
    scanned = Scanned(line)
    return {"steps": describe_steps(scanned), **describe_findings(scanned)}


def describe_steps(scanned: Scanned) -> list[JsonObject]:
    """The heads of the turns."""
    return list(map(_describe, scanned.steps))


def describe_findings(scanned: Scanned) -> JsonObject:
    """What the ready scanners find, and how much."""
    found = find_all(scanned)
    return {
        "findings": [each._asdict() for each in found[:MAX_FINDINGS]],
        "num_findings": len(found),
    }


def add_scans(described: JsonObject, scans: Iterable[TurnFinding]) -> JsonObject:
    """The same with what others have found in earlier scans, which stands first."""
    if described["findings"] is None:
        return described
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


ReadText = Callable[[Sequence[Any]], Iterable[str]]
"""Reads the whole text at a path of a line, in pieces."""


def find_inside(
    head: Mapping[str, Any],
    turns: Iterable[tuple[int, int, Sequence[Any]]],
    text: str,
    read: ReadText,
) -> JsonObject:
    """Where a text stands in a rollout, whatever its case: `hits` of (turn, item, excerpt), and
    the number of all. `turns` are numbers of turns, with the number of their first item and the
    items. Turn 0 is the task, turn -1 the rest of the line. `read` is asked for texts that are
    cut."""
    wanted, hits, total = text.lower(), [], 0
    for turn, item, held in _texts(head, turns, len(wanted) - 1, read):
        low, at = held.lower(), 0
        while wanted and (at := low.find(wanted, at)) >= 0:
            total += 1
            if len(hits) < MAX_HITS:
                begin, end = max(0, at - AROUND), at + len(wanted) + AROUND
                hits.append({"turn": turn, "item": item, "excerpt": held[begin:end]})
            at += len(wanted)
    return {"hits": hits, "total": total}


def _texts(
    head: Mapping[str, Any],
    turns: Iterable[tuple[int, int, Sequence[Any]]],
    overlap: int,
    read: ReadText,
) -> Iterator[tuple[int, int, str]]:
    """Turn, item and text; of a text that is cut, its pieces, each with the end of the last one."""

    def list_texts(turn: int, at: int, value: Any, *path: Any) -> Iterator[tuple[int, int, str]]:
        for found, text in _strings(value, path):
            if not isinstance(text, CutText):
                yield turn, at, text
                continue
            before = ""
            for piece in read(found):
                yield turn, at, before + piece
                before = piece[-overlap:] if overlap > 0 else ""

    params = as_object(head.get("responses_create_params"))
    for name in ("instructions", "input"):
        yield from list_texts(0, 0, params.get(name), "responses_create_params", name)
    for number, begin, items in turns:
        for at, item in enumerate(items, begin):
            yield from list_texts(number, at, item, "response", "output", at)
    for name, value in head.items():
        if name not in HIDDEN and name not in ("responses_create_params", "response"):
            yield from list_texts(-1, 0, value, name)


HIDDEN = frozenset({"type", "role", "status", "id", "call_id", "kind", "schema", "agent_ref"})


def _strings(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list) and len(path) < 100:
        for at, each in enumerate(value):
            yield from _strings(each, (*path, at))
    elif isinstance(value, dict) and len(path) < 100:
        for name, each in value.items():
            if name not in HIDDEN:
                yield from _strings(each, (*path, name))
