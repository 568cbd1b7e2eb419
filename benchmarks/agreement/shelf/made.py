"""Made rows of the benchmarks in `made.yaml`, and what they are compared with."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from rollout_kit.collecting.data.benchmarks.origins import read_origin
from rollout_kit.config.benchmarks.definition import read_definition
from rollout_kit.types import JsonObject

FILE = Path(__file__).with_name("made.yaml")

NUM_ROWS = 20

ROOT = Path(__file__).parents[3]


@cache
def read_made() -> dict[str, JsonObject]:
    """Benchmark → its entry in the file."""
    made = yaml.safe_load(FILE.read_text("utf-8"))
    for each in made.values():
        if "cases" in each:
            each["rows"] = _instruct(read_cases(each["cases"]))
    return made


@cache
def read_cases(path: str) -> list[JsonObject]:
    """Kinds of instructions, with arguments and two responses."""
    return yaml.safe_load((ROOT / path).read_text("utf-8"))


def _instruct(given: list[JsonObject]) -> list[JsonObject]:
    """A row for each kind, and some with two. No package has the tagger of verbs."""
    cases = [case for case in given if case["id"] != "words:start_verb"]
    names = {name: None for case in cases for name in case["arguments"]}
    pairs = zip(cases[:10], cases[10:20], strict=True)
    chosen = [*([case] for case in cases), *([*pair] for pair in pairs)]
    return [
        {
            "key": "{n}",
            "prompt": "Write about {n} {things}.",
            "instruction_id_list": [case["id"] for case in own],
            "kwargs": [{**names, **case["arguments"]} for case in own],
        }
        for own in chosen
    ]


def make_rows(name: str, parts: list[str]) -> list[JsonObject]:
    """The made rows of a benchmark, in turns of each form and of each part; of one whose files are
    joined, each form for each number; of one that is generated, those of some families."""
    forms = read_made()[name]["rows"]
    if isinstance(forms, dict):
        definition = read_definition(name)
        source = {**definition.source, **forms}
        return [*read_origin(definition.model_copy(update={"source": source}), print).rows]
    if any("part" in form for form in forms):
        return [_fill(form, str(number)) for number in range(NUM_ROWS) for form in forms]
    rows = []
    for number in range(max(NUM_ROWS, len(forms))):
        row = _fill(forms[number % len(forms)], str(number))
        rows.append({**row, "part": parts[number % len(parts)]} if parts else row)
    return rows


def _fill(value: Any, number: str) -> Any:
    if isinstance(value, str):
        return value.replace("{n}", number)
    if isinstance(value, list):
        return [_fill(each, number) for each in value]
    if isinstance(value, dict):
        return {name: _fill(each, number) for name, each in value.items()}
    return value
