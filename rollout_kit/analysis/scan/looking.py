"""Looks through lines of rollouts with scanners. It runs in a worker process (`scanning`)."""

import ast
import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import orjson

from rollout_kit.analysis.scan.ready import SCANNERS, Scanned
from rollout_kit.responses import as_object, content_texts
from rollout_kit.store.filters.expression import Filter, evaluate, fields_of, read_field
from rollout_kit.store.filters.turn_fields import ON_TURNS, list_uses, read_inside
from rollout_kit.store.lines import rollout_of
from rollout_kit.store.notes.scans import TurnFinding
from rollout_kit.store.steps import is_call, shorten, text_of_arguments, text_of_result

AROUND = 60
"""Characters before and behind a match that are shown."""

Look = Callable[[Scanned], Iterable[TurnFinding]]


def work(specs: Sequence[Sequence[str]], lines: Sequence[str]) -> list[dict[str, Any]]:
    """For each line, `found`: the findings, and `errors`: scanner → why it could not look."""
    looks = [(name, _find_look(name, kind, text)) for name, kind, text in specs]
    return [_look_through(Scanned(orjson.loads(line)), looks) for line in lines]


def _look_through(scanned: Scanned, looks: Sequence[tuple[str, Look]]) -> dict[str, Any]:
    found: list[TurnFinding] = []
    errors: dict[str, str] = {}
    for name, look in looks:
        try:
            found += look(scanned)
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"[:500]
    return {"found": found, "errors": errors}


@cache
def _find_look(name: str, kind: str, text: str) -> Look:
    if kind == "regex":
        return partial(_match, name, re.compile(text))
    if kind == "rule":
        return partial(_apply, name, Filter(text))
    if kind == "function":
        return partial(_call, name, _load(text))
    return SCANNERS[name]


def _match(name: str, pattern: re.Pattern[str], scanned: Scanned) -> Iterator[TurnFinding]:
    """A finding for each turn with a text that matches."""
    response = as_object(scanned.line.get("response"))
    found = {
        at: match
        for at, item in enumerate(response.get("output") or ())
        if (match := next(filter(None, map(pattern.search, _texts_of(as_object(item)))), None))
    }
    for step in scanned.steps if found else ():  # dividing a rollout takes longer than matching
        if match := next((found[at] for at in range(step.begin, step.end) if at in found), None):
            begin, end = match.span()
            around = match.string[max(0, begin - AROUND) : end + AROUND]
            yield TurnFinding(name, step.number, f"“{shorten(around)}”")


def _texts_of(item: Mapping[str, Any]) -> Iterator[str]:
    yield from content_texts(item.get("content"))
    yield from content_texts(item.get("summary"))
    if is_call(item):
        yield f"{item.get('name') or item.get('type')} {text_of_arguments(item)}"
    yield text_of_result(item)


def _apply(name: str, rule: Filter, scanned: Scanned) -> Iterator[TurnFinding]:
    """A finding for each turn that the rule asks for, or one of the whole rollout."""
    rollout = rollout_of(dict(scanned.line))
    if not rule(rollout):
        return
    read = partial(read_field, rollout, fields_of(rollout))
    asked = [
        node.args[0]
        for node in ast.walk(rule.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id in ON_TURNS and node.func.id != "all"
    ]
    turns = {
        use.step.number: None
        for use in list_uses(scanned.steps)
        if any(evaluate(inner, partial(read_inside, use, read)) for inner in asked)
    }
    for turn in turns or (0,):
        yield TurnFinding(name, turn, rule.text)


def _load(text: str) -> Callable[[Scanned], Any]:
    path, _, function = text.rpartition(":")
    spec = importlib.util.spec_from_file_location(f"scanner_{function}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)


def _call(name: str, function: Callable[[Scanned], Any], scanned: Scanned) -> Iterator[TurnFinding]:
    """What a function returns: true or false, a sentence, or a list of (turn, sentence)."""
    found = function(scanned)
    if found is None or isinstance(found, bool):
        found = [(0, f"{name} holds")] if found else []
    elif isinstance(found, str):
        found = [(0, found)] if found else []
    for each in found:
        if isinstance(each, Mapping):
            each = each["turn"], each["says"]
        *_, turn, says = each  # a TurnFinding too
        yield TurnFinding(name, int(turn), str(says))
