"""Rows that may not be published stay out of reports, static views and exports."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollout_kit.analysis.export.conversation import Unfit
from rollout_kit.analysis.export.trainers import read_trace
from rollout_kit.analysis.withheld import NOTE, WHY, withhold
from rollout_kit.config.benchmarks.definition import read_definition, rows_file
from rollout_kit.config.keys import OtelConfig
from rollout_kit.store.lines import rollout_of

BIN = Path(sys.executable).parent

DEFINITION = """
about: made for a test
source: {type: file, file: rows.jsonl}
rows: 3
mapping:
  prompt: {user: "{question}"}
  fields: {question: question, expected_answer: answer}
verifier: {string_match: {}}
publish: PUBLISH
metric: avg@1
license: CC0-1.0
citation: none
follows: nothing else
"""

MODEL = """
policy_model:
  responses_api_models:
    simulated_model: {model_name: m, answer: text, text: "Answer: it"}
"""


def run(folder: Path, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "c"),
    }
    return subprocess.run(
        [BIN / name, *words], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("publishes", [True, False])
def test_what_is_made_for_others(publishes: bool, tmp_path: Path) -> None:
    rows = [{"question": f"secretquestion {at}", "answer": f"goldanswer{at}"} for at in range(3)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "own.yaml").write_text(DEFINITION.replace("PUBLISH", str(publishes).lower()))
    (tmp_path / "model.yaml").write_text(MODEL)
    output = "out.jsonl"
    done = run(
        tmp_path,
        "ng_collect_rollouts",
        "+benchmark=own.yaml",
        "+config_paths=[model.yaml]",
        f"+output_jsonl_fpath={output}",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = run(tmp_path, "ng_report", output, "+output_fpath=report.html")
    viewed = run(tmp_path, "ng_view", output, "+static=view.html")
    assert report.returncode == viewed.returncode == 0, report.stderr + viewed.stderr
    for page in ("report.html", "view.html"):
        text = (tmp_path / page).read_text()
        assert ("secretquestion" in text) is publishes
        assert (NOTE in text) is not publishes
    assert ("goldanswer" in (tmp_path / "view.html").read_text()) is publishes
    assert ("extracted_answer it" in (tmp_path / "report.html").read_text()) is publishes
    assert ("Without the rows of 3 rollouts" in viewed.stdout) is not publishes
    for form in ("trl_sft", "otlp"):
        exported = run(tmp_path, "ng_export", output, f"+format={form}", "+output_fpath=e.jsonl")
        assert (exported.returncode == 0) is publishes, exported.stdout + exported.stderr
        assert (WHY in exported.stderr) is not publishes


def test_traces_are_not_sent() -> None:
    line = {
        "agent_ref": {"name": "a"},
        "response": {"output": []},
        "reward": 1.0,
        "publish": False,
        "rollout": {"task_id": "1", "rollout_index": 0},
    }
    with pytest.raises(Unfit, match=WHY):
        read_trace(rollout_of(line), OtelConfig())


def test_a_definition_that_is_changed_prepares_its_rows_again(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(DEFINITION.replace("PUBLISH", "true"))
    before = rows_file(read_definition(str(own)))
    own.write_text(DEFINITION.replace("PUBLISH", "false"))
    assert rows_file(read_definition(str(own))) != before


def test_numbers_of_the_verifier_stay() -> None:
    line = {
        "responses_create_params": {"input": "?"},
        "response": {"output": []},
        "reward": 1.0,
        "publish": False,
        "question": "?",
        "expected_answer": "4",
        "exact": 0.5,
        "rollout": {"scores": ["expected_answer", "exact"]},
    }
    found = withhold(line)
    assert found.keys() == line.keys() - {"question", "expected_answer"}
    assert withhold({**line, "publish": True}) == {**line, "publish": True}
