"""What docs/tiny_model.md promises of the shipped checkpoint and its task files."""

import importlib
import json
import random
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[1]
CHECKPOINT, DATA, TRAINING = FOLDER / "checkpoint", FOLDER / "data", FOLDER / "training"
ROOT = FOLDER.parents[1]
SKILLS = ("arithmetic", "multiple_choice", "tool")
FILES = [DATA / f"{skill}.jsonl" for skill in SKILLS]
FILES += [DATA / "demo.jsonl", ROOT / "resources_servers/mcqa/data/largest_number.jsonl"]


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def question(row: dict[str, Any]) -> str:
    return row["responses_create_params"]["input"][0]["content"]


def run_script(name: str) -> dict[str, Any]:
    """The names of a training script, which finds its siblings as it does when it is started."""
    known = set(sys.modules)
    sys.path.insert(0, str(TRAINING))
    try:
        return runpy.run_path(str(TRAINING / name))
    finally:
        sys.path.remove(str(TRAINING))
        for added in set(sys.modules) - known:
            del sys.modules[added]


def test_it_is_small_and_reads_long_prompts() -> None:
    with (CHECKPOINT / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    assert sum(int(np.prod(each["shape"])) for each in header.values()) <= 1_300_000
    assert {each["dtype"] for each in header.values()} == {"BF16"}
    config = json.loads((CHECKPOINT / "config.json").read_text())
    assert config["dtype"] == "bfloat16" and config["tie_word_embeddings"]
    assert config["model_type"] == "qwen3" and config["max_position_embeddings"] >= 8192


def test_its_files_and_the_engine_s_take_6_mb_together(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("ctranslate2")
    from rollout_kit.serving import registry

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model: Any = registry.load("responses_api_models", "local_model")
    cache = importlib.import_module(model.__module__.removesuffix(".app") + ".cache")
    with cache.converted(CHECKPOINT) as engine:
        files = [path for folder in (CHECKPOINT, engine) for path in folder.rglob("*")]
        assert sum(path.stat().st_size for path in files) <= 6_000_000


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_task_is_about_numbers_that_training_never_draws(path: Path) -> None:
    is_held_out = run_script("problems.py")["is_held_out"]
    numbers = [[int(each) for each in re.findall(r"\d+", question(row))] for row in rows(path)]
    assert all(is_held_out(each) for each in numbers)
    assert len({json.dumps(row) for row in rows(path)}) == len(numbers)
    assert len(numbers) >= (500 if path.stem in SKILLS else 96)


def test_training_draws_nothing_that_a_task_file_has() -> None:
    draw = run_script("problems.py")["draw"]
    rng = random.Random(3)
    drawn = {draw(rng, skill, held_out=False).text for skill in SKILLS for _ in range(3000)}
    asked = {question(row) for path in FILES for row in rows(path)}
    assert len(drawn) > 3000 and not drawn & asked


def test_the_task_files_are_what_the_script_writes(monkeypatch: Any) -> None:
    written: dict[Path, list[Any]] = {}
    names = run_script("tasks.py")
    main = names["main"]
    monkeypatch.setitem(main.__globals__, "write", lambda path, made: written.update({path: made}))
    main()
    assert {path: list(made) for path, made in written.items()} == {
        path: rows(path) for path in FILES
    }
