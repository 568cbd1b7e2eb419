"""Compares each benchmark of `made.yaml` with the one that it follows."""

import asyncio
import json
import os
import subprocess
import tempfile
import zlib
from base64 import b64decode
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from rollout_kit import Sandbox, SandboxLimits
from rollout_kit.collecting.data.benchmarks.figure_values import compute_figures
from rollout_kit.collecting.data.benchmarks.prepared import make_tasks
from rollout_kit.config.benchmarks.definition import Definition, read_definition
from rollout_kit.types import JsonObject

from ..ours import require, shorten, verify
from .imitated_judge import reply
from .made import make_rows, read_made
from .makers import OF_BENCHMARK, OF_SERVER

CHILD = Path(__file__).with_name("child.py")

NUM_ANSWERS = 200

CLOSE = 1e-4
"""Figures that differ less are equal: some are fitted, or rounded."""

WHOLE = """
try:
    exec(compile({program!r}, "program", "exec"), {{"__name__": "__main__"}})
except SystemExit as end:
    if end.code:
        raise RuntimeError("a status other than 0") from end
"""
"""Runs a program in the sandbox, where its status is a part of how it ends."""


def compare(python: str, names: Sequence[str] = ()) -> int:
    """Print what differs, and how much of that no definition explains, which is returned."""
    chosen = [name for name in read_made() if not names or name in names]
    definitions = {name: read_definition(name) for name in chosen}
    rows = {name: make_rows(name, list_parts(each)) for name, each in definitions.items()}
    tasks = {
        name: [*make_tasks(_unshuffle(each), rows[name], rows[name])]
        for name, each in definitions.items()
    }
    answers = {name: make_answers(definitions[name], tasks[name]) for name in chosen}
    given = {
        name: {
            "peer": read_made()[name]["peer"],
            "shots": read_made()[name].get("shots", 0),
            "rows": [{**row, **_theirs(name, row)} for row in rows[name]],
            "asked": [(number, text) for number, _, text in answers[name]],
        }
        for name in chosen
    }
    theirs: JsonObject = {}
    for package in {next(iter(each["peer"])) for each in given.values()}:
        own = {name: each for name, each in given.items() if package in each["peer"]}
        theirs |= _ask(python, own)
    unexplained = 0
    for each in theirs.values():
        each["verdicts"] = asyncio.run(_run_programs(each["verdicts"]))
    for name, definition in definitions.items():
        unexplained += _compare_tests(name, tasks[name], theirs[name])
        unexplained += _compare_prompts(name, tasks[name], theirs[name]["prompts"])
        own = asyncio.run(_verify(definition, tasks[name], answers[name]))
        rewards = [verdict["reward"] for verdict in own]
        found = theirs[name]["verdicts"]
        unexplained += _compare_verdicts(definition, answers[name], rewards, found)
        unexplained += _compare_figures(definition, own, theirs[name].get("figures", {}))
    print(f"{unexplained} differ and are not explained")
    return unexplained


def list_parts(definition: Definition) -> list[str]:
    """The parts that the rows of a benchmark are of."""
    return [*definition.source.get("parts", ())]


def _theirs(name: str, row: JsonObject) -> JsonObject:
    """Columns that the other one reads in another version of the rows."""
    given = read_made()[name].get("theirs", {})
    return {column: str(text).format(**row) for column, text in given.items()}


def _unshuffle(definition: Definition) -> Definition:
    """The definition with the options in their published order, as the others' samples are."""
    mapping = definition.mapping
    if not isinstance(mapping, dict) or "choices" not in mapping:
        return definition
    choices = {**mapping["choices"], "shuffle_seed": None}
    return definition.model_copy(update={"mapping": {**mapping, "choices": choices}})


def make_answers(definition: Definition, tasks: Sequence[JsonObject]) -> list[tuple[int, str, str]]:
    """Number of the task, kind and text of so many answers."""
    found = []
    make = OF_BENCHMARK.get(definition.name) or OF_SERVER[definition.server]
    for number, task in enumerate(tasks):
        found += [(number, kind, text) for kind, text in make(task, number)]
    return found if "cases" in read_made()[definition.path.stem] else found[:NUM_ANSWERS]


def _ask(python: str, given: JsonObject) -> JsonObject:
    """What one peer says. Each has a process, because what stands in for its packages lasts."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "given.json", Path(folder) / "found.json"
        source.write_text(json.dumps(given))
        fixed = {**os.environ, "PYTHONHASHSEED": "0"}  # as our generator of rows has it
        subprocess.run([python, CHILD, source, target], check=True, env=fixed)
        return json.loads(target.read_text())


async def _run_programs(verdicts: Sequence[float | str]) -> list[float]:
    """The verdicts, with the end of each program in place of the program."""
    if all(isinstance(each, float) for each in verdicts):
        return [float(each) for each in verdicts]
    limits = SandboxLimits(time_s=30)
    async with Sandbox(4, packages=["numpy"]) as sandbox:

        async def run(program: float | str) -> float:
            if isinstance(program, float):
                return program
            found = await sandbox.run(WHOLE.format(program=program), limits=limits)
            return float(found.end == "finished")

        return await asyncio.gather(*(run(each) for each in verdicts))


def _compare_tests(name: str, tasks: Sequence[JsonObject], theirs: JsonObject) -> int:
    """How many system messages and unit tests differ, where the other one gives them."""
    wanted = [*zip(theirs.get("systems", ()), theirs.get("tests", ()), strict=True)]
    own = [
        (task["responses_create_params"]["input"][0]["content"], task["unit_tests"])
        for task in tasks
        if wanted
    ]
    differing = sum(_unpack(one) != _unpack(other) for one, other in zip(own, wanted, strict=True))
    if wanted:
        print(f"{name}: {len(own)} system messages and tests, {differing} differ")
    return differing


def _unpack(pair: tuple[str, JsonObject]) -> tuple[str, JsonObject]:
    system, tests = pair
    return system, {**tests, "packed": json.loads(zlib.decompress(b64decode(tests["packed"])))}


def _compare_prompts(name: str, tasks: Sequence[JsonObject], theirs: Sequence[Any]) -> int:
    """How many last messages differ, or whole conversations where the other one gives them."""
    inputs = [task["responses_create_params"]["input"] for task in tasks]
    own = [
        each if isinstance(other, list) else each[-1]["content"]
        for each, other in zip(inputs, theirs, strict=True)
    ]
    pairs = [pair for pair in zip(own, theirs, strict=True) if pair[0] != pair[1]]
    print(f"{name}: {len(own)} prompts, {len(pairs)} differ")
    for one, other in pairs[:1]:
        print(f"  ours:   {one!r}\n  theirs: {other!r}")
    return len(pairs)


async def _verify(
    definition: Definition, tasks: Sequence[JsonObject], answers: Sequence[tuple[int, str, str]]
) -> list[JsonObject]:
    settings = definition.verifier[definition.server]
    asked = [(tasks[number], text) for number, _, text in answers]
    judge = partial(reply, definition.name) if "judge" in definition.needs else None
    found = await verify(definition.server, asked, judge=judge, **settings)
    return [require(verdict) for verdict in found]


def _compare_figures(
    definition: Definition, own: Sequence[JsonObject], theirs: Mapping[str, float]
) -> int:
    """How many figures over all answers differ, of those that the other one gives."""
    fields = [{name: each[name] for name in each if name != "response"} for each in own]
    numbers = {name for each in fields for name, value in each.items() if type(value) is float}
    means = {name: fmean(each[name] for each in fields if name in each) for name in numbers}
    metrics = {"metrics": means, "intervals": {}}
    found = {
        name: each.value for name, each in compute_figures(definition, metrics, fields).items()
    }
    pairs = {name: (found[name], value) for name, value in theirs.items()}
    differing = [name for name, (one, two) in pairs.items() if abs((one or 0.0) - two) > CLOSE]
    if pairs:
        shown = ", ".join(f"{name} {one:.4f}" for name, (one, _) in pairs.items())
        print(f"{definition.name}: figures {shown}; {len(differing)} differ")
    for name in differing:
        print(f"  {name}: {pairs[name][0]} here, {pairs[name][1]} there")
    known = read_made()[definition.path.stem].get("differs", {})
    return len([each for each in differing if each not in known])


def _compare_verdicts(
    definition: Definition,
    answers: Sequence[tuple[int, str, str]],
    own: Sequence[float],
    theirs: Sequence[float],
) -> int:
    known = read_made()[definition.path.stem].get("differs", {})
    explained, unexplained = Counter[str](), list[str]()
    for (number, kind, text), one, other in zip(answers, own, theirs, strict=True):
        if abs(one - other) < 1e-9:
            continue
        if kind in known and any(known[kind] in line for line in definition.differs):
            explained[known[kind]] += 1
        else:
            unexplained.append(
                f"row {number}, {kind}: {shorten(text)!r}: {one} here, {other} there"
            )
    print(
        f"{definition.name}: {len(own)} answers, {sum(own):g} here, {sum(theirs):g} there,"
        f" {explained.total()} differ as its definition says, {len(unexplained)} otherwise"
    )
    for line in [*dict.fromkeys(unexplained)][:8]:
        print(f"  {line}")
    return len(unexplained)
