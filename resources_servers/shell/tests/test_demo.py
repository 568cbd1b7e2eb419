"""The demo of docs/shell.md: a scripted model solves the example rows in real sessions."""

import json
import subprocess
import sys
from pathlib import Path


def test_the_scripted_model_solves_all_tasks(tmp_path: Path):
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ng_collect_rollouts"),
            "+config_paths=[configs/shell.yaml]",
            "+dataset=example",
            "+output_jsonl_fpath=rollouts.jsonl",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "rollouts.jsonl").read_text().splitlines()]
    assert len(lines) == 6
    assert {line["reward"] for line in lines} == {1.0}
    assert any(line.get("patch") for line in lines)
