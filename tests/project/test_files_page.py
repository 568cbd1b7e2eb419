"""docs/files.md names every field that a run writes."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support import Bench, asked, output_file, row
from test_groups import KEYS, make_desk, rows
from workplace import ROOT

from rollout_kit.api.testing import ScriptedModel, run_virtual, text_response
from rollout_kit.errors import ModelError

PAGE = (ROOT / "docs/files.md").read_text()

NAMED = set(re.findall(r"[`\"]([\w]+)[`\"]", PAGE))

OF_OTHERS = {"responses_create_params", "response", "config", "prices", "settings", "verifiers"}
"""Fields whose content is not ours, or depends on the run."""

OF_OTHERS |= {"verifier_parts", "versions", "git", "metrics", "agents", "group", "components"}


OF_ROW = {"expected", "length", "said"}
"""Fields of the rows and of the verifier here."""


def fields_in(value: Any) -> Iterator[str]:
    """The names of fields, without the content of those in OF_OTHERS."""
    if isinstance(value, list):
        for each in value:
            yield from fields_in(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            if not name.isdigit():
                yield name
            if name not in OF_OTHERS:
                yield from fields_in(each)


def written(folder: Path) -> Iterator[tuple[str, str]]:
    """(file, field) of everything that a run has written."""
    for path in (
        each for each in folder.rglob("*") if each.suffix in (".jsonl", ".ndjson", ".json")
    ):
        if path.name == "tasks.jsonl":
            continue
        texts = [path.read_text()] if path.suffix == ".json" else path.read_text().splitlines()
        for text in texts:
            for name in fields_in(json.loads(text)):
                yield path.name, name


def test_every_field_that_a_run_writes_is_on_the_page(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    def answer(params: Any) -> Any:
        if asked(params) == "q1":
            raise ModelError("the engine is on fire", retryable=False)
        return text_response("fine")

    bench.model = ScriptedModel(answer)
    tasks = [row(f"q{number}") for number in range(3)]
    assert run_virtual(bench.collect([*tasks, "no task"], num_repeats=2, stop_early=False)) == 2
    assert (tmp_path / output_file("failures")).exists()
    found = set(written(tmp_path))
    assert {"failures.jsonl", "run.json", "runs.ndjson"} <= {name for name, _ in found}
    unknown = sorted((file, name) for file, name in found if name not in NAMED | OF_ROW)
    assert not unknown, unknown


def test_every_field_of_a_scored_group_is_on_the_page(tmp_path: Path) -> None:
    desk = make_desk(tmp_path)
    asyncio.run(desk.collect(rows(2), **KEYS))
    lines = desk.lines("groups")
    assert lines and {name for line in lines for name in fields_in(line)} <= NAMED
