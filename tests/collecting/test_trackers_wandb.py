"""Weights & Biases with its own SDK, offline: curves, the table, files, and no secrets."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import Bench, eventually, row
from tracked import NUM_FREE, collect_held

from rollout_kit.collecting.trackers import tracking

wandb = pytest.importorskip("wandb", reason="wandb is not installed: make test-trackers")

BLOCK = 32_768
"""Bytes of a block of W&B's file, which is a LevelDB log after a header of seven bytes."""

ROWS = [row(f"q{number}") for number in range(NUM_FREE + 3)]


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name in ("DATA", "CACHE", "CONFIG", "ARTIFACT"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / "own" / name))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tracking, "CURVE_EVERY_S", 0.05)
    return {"project": "tests", "mode": "offline", "dir": str(tmp_path), "tags": ["a", "b"]}


def records(folder: Path) -> Iterator[Any]:
    """What the SDK has written, as it would be sent."""
    from wandb.proto import wandb_internal_pb2 as wire

    for path in folder.glob("wandb/offline-run-*/run-*.wandb"):
        raw, at, parts = path.read_bytes(), 7, b""
        while at + 7 <= len(raw):
            size, kind = int.from_bytes(raw[at + 4 : at + 6], "little"), raw[at + 6]
            if BLOCK - at % BLOCK < 7 or not kind:
                at += BLOCK - at % BLOCK
                continue
            parts += raw[at + 7 : at + 7 + size]
            at += 7 + size
            if at > len(raw):
                break  # it is being written
            if kind in (1, 4):  # whole, or its last part
                yield wire.Record.FromString(parts)
                parts = b""


def history(folder: Path) -> list[dict[str, Any]]:
    """The points of all curves."""
    return [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in each.item}
        for record in records(folder)
        if record.WhichOneof("record_type") == "history"
        for each in [record.history]
    ]


def test_curves_the_table_and_files_are_kept_offline(bench: Bench, keys: dict[str, Any]) -> None:
    def has_live_point() -> bool:
        return any(point.get("rollouts/finished") == NUM_FREE for point in history(bench.folder))

    said = collect_held(bench, ROWS, lambda: eventually(has_live_point), wandb=keys)
    assert "warning" not in said and "W&B: " in said and "wandb sync" in said
    points = history(bench.folder)
    steps = [point["rollouts/finished"] for point in points]
    assert steps == sorted(steps) and steps[-1] == len(ROWS)
    final = {name: value for point in points for name, value in point.items()}
    assert final["reward/mean"] == final["final/reward"] == final["final/pass@1"] == 1.0
    assert final["rollouts/done"] == final["rollouts/planned"] == len(ROWS)
    assert final["samples/rollouts/nrows"] == len(ROWS)
    found = list(records(bench.folder))
    globs = [each.metric for each in found if each.WhichOneof("record_type") == "metric"]
    assert any(m.glob_name == "*" and m.step_metric == "rollouts/finished" for m in globs)
    [run] = [each.run for each in found if each.WhichOneof("record_type") == "run"]
    assert run.project == "tests" and list(run.tags) == ["a", "b"]
    sent = [each.artifact for each in found if each.WhichOneof("record_type") == "artifact"]
    [files] = [each for each in sent if each.type == "rollouts"]
    names = {each.path for each in files.manifest.contents}
    assert {"rollouts.jsonl", "rollouts.d/run.json", "rollouts_aggregate_metrics.json"} <= names
    assert {name for name in names if not (bench.folder / name).exists()} == set()
    assert any(each.WhichOneof("record_type") == "exit" for each in found)
    [table] = bench.folder.glob("wandb/offline-run-*/files/media/table/samples/*.json")
    content = json.loads(table.read_text())
    answers = {each[content["columns"].index("answer")] for each in content["data"]}
    assert answers == {f"q{number}" for number in range(len(ROWS))}


def test_nothing_of_the_machine_or_of_secrets_is_kept(
    bench: Bench, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "tr0ub4dor-and-3")
    given = {"endpoint": "http://me:hunter2-hunter2@localhost:1", "headers": {"k": "correct-horse"}}
    collect_held(bench, ROWS, lambda: None, wandb=keys, otel=given, wait_s=20)
    kept = [path for path in (bench.folder / "wandb").rglob("*") if path.is_file()]
    for secret in ("tr0ub4dor", "hunter2-hunter2", "correct-horse"):
        assert not [path for path in kept if secret.encode() in path.read_bytes()]
    names = {path.name for path in kept}
    assert not names & {"requirements.txt", "wandb-metadata.json", "output.log"}


def test_without_a_login_the_run_is_kept_on_disk(bench: Bench, keys: dict[str, Any]) -> None:
    said = collect_held(bench, ROWS, lambda: None, wandb={**keys, "mode": "online"})
    assert "warning: W&B: No API key configured" in said and "kept on disk" in said
    assert "not sent" not in said and history(bench.folder)[-1]["rollouts/finished"] == len(ROWS)


def test_no_process_is_left(bench: Bench, keys: dict[str, Any]) -> None:
    collect_held(bench, ROWS, lambda: None, wandb=keys)

    def is_left() -> bool:
        found = subprocess.run(["pgrep", "-f", str(bench.folder)], capture_output=True)
        return bool(found.stdout)

    eventually(lambda: not is_left())
