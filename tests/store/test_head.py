"""The head of a line has one declaration, from which everything else is made."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from exported import line
from support import write_jsonl
from workplace import ROOT

from rollout_kit.store.head import FIELDS, describe

ADDED = """    num_jokes: Annotated[
        int | None, HeadField("Jokes in the answer.", is_column=True, is_mean=True)
    ]
    input_tokens: Annotated["""

PROBE = """
import json, sys
from pathlib import Path
from rollout_kit.store.filters.expression import Filter
from rollout_kit.analysis.metrics.aggregate import Aggregate
from rollout_kit.store.head import describe
from rollout_kit.store.index import open_index
from rollout_kit.store.lines import rollout_of
path = Path(sys.argv[1])
rollouts = [rollout_of(json.loads(line)) for line in path.open()]
metrics = Aggregate()
for rollout in rollouts:
    metrics.add(rollout)
index = open_index(path)
index.update()
print(json.dumps({
    "column": list(index.columns.numbers["num_jokes"]),
    "mean": metrics.numbers["num_jokes"].mean,
    "filter": [bool(Filter("num_jokes > 3")(rollout)) for rollout in rollouts],
    "reference": [each for each in describe() if each[0] == "num_jokes"],
}))
"""


def test_a_field_that_is_added_to_the_declaration_is_known_everywhere(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "rollout_kit", tmp_path / "rollout_kit")
    types = tmp_path / "rollout_kit/types.py"
    text = types.read_text()
    assert text.count("    input_tokens: Annotated[") == 1
    types.write_text(text.replace("    input_tokens: Annotated[", ADDED))
    rows = [line(number, 0, "a", 1.0) for number in range(3)]
    for number, each in enumerate(rows):
        each["rollout"]["num_jokes"] = 2 * number
    path = write_jsonl(tmp_path / "rollouts.jsonl", rows)
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["column"] == [0, 2, 4] and found["mean"] == 2
    assert found["filter"] == [False, False, True]
    assert found["reference"] == [["num_jokes", "whole number or null", "Jokes in the answer."]]


def test_the_reference_names_every_field_of_the_head() -> None:
    text = (ROOT / "docs/files.md").read_text()
    for name, kind, about in describe():
        assert f"| `{name}` | {kind} | {about} |" in text
    assert len(describe()) == len(FIELDS)
