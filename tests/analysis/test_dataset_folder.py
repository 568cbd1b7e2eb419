"""Rollouts become a dataset folder of the Hub. The loader of `datasets` reads it in a marked test,
in its own environment: `make test-formats`."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import as_function
from exported import Place, line, tool_line
from made_rollouts import PIXEL, make_line
from peer_pythons import folder_of
from support import read_jsonl

command = as_function("ng_export")

ROLLOUTS = [
    tool_line(1, 0, 1.0, ("price", '{"item": "a"}'), ("price", '{"item": "b"}')),
    *(line(task, index, f"It is {task}.", 0.5) for task in range(2, 12) for index in range(2)),
]


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    made = Place(tmp_path, capsys)
    made.write(ROLLOUTS)
    return made


def export(place: Place, *more: str) -> tuple[int, str]:
    source, folder = place.folder / "rollouts.jsonl", place.folder / "sums"
    return place.run(command, source, "+format=huggingface", f"+output_fpath={folder}", *more)


LOAD = """
import json, sys
from datasets import load_dataset
found = {name: load_dataset(sys.argv[1], name) for name in sys.argv[2:]}
rows = {name: {split: list(each[split]) for split in each} for name, each in found.items()}
print(json.dumps(rows))
"""


def load(place: Place, *names: str) -> Any:
    """The rows of parts of the folder, as the loader of `datasets` reads them."""
    python = folder_of("datasets") / "python"
    assert python.exists(), "make test-formats installs it"
    homes = {"HF_HOME": str(place.folder / "home"), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"}
    words = [python, "-c", LOAD, place.folder / "sums", *names]
    done = subprocess.run(words, capture_output=True, text=True, env=homes, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def read_front(folder: Path) -> Any:
    return yaml.safe_load((folder / "README.md").read_text("utf-8").split("---\n")[1])


def test_it_has_rows_a_session_of_each_and_a_card_that_describes_them(place: Place) -> None:
    status, said = export(place)
    folder = place.folder / "sums"
    assert status == 0 and f"{folder}: 21 rows in the format huggingface" in said
    rows, front = read_jsonl(folder / "data/train.jsonl"), read_front(folder)
    assert len(rows) == 21 and "license" not in front
    [described] = front["dataset_info"]
    assert all(list(row) == [each["name"] for each in described["features"]] for row in rows)
    assert json.loads(rows[0]["tools"])[0]["function"]["name"] == "price"
    sessions = sorted(folder.glob("sessions/train/**/*.jsonl"))
    assert len(sessions) == 21
    head, *messages = read_jsonl(sessions[0])
    assert (head["type"], head["harness"]) == ("session", "rollout_kit")
    assert head["reward"] == 1.0 and head["tools"] == json.loads(rows[0]["tools"])
    said_by = [each["message"]["role"] for each in messages]
    assert said_by == [each["role"] for each in rows[0]["messages"]]
    calls = [call for each in messages for call in each["message"].get("toolCalls", ())]
    outputs = [each["message"].get("toolCallId") for each in messages]
    assert [call["function"]["name"] for call in calls] == ["price", "price"]
    assert all(call["id"] in outputs for call in calls)


def test_it_is_replaced_as_a_whole_unless_somebody_changed_it(place: Place) -> None:
    folder, other = place.folder / "sums", place.folder / "other"
    assert export(place, "+test_fraction=0.5", "+advantage=grpo")[0] == 0
    assert (folder / "data/test.jsonl").exists()
    [described] = read_front(folder)["dataset_info"]
    assert {"name": "advantage", "dtype": "float64"} in described["features"]
    assert export(place)[0] == 0
    assert not (folder / "data/test.jsonl").exists()
    card = (folder / "README.md").read_text("utf-8")
    (folder / "README.md").write_text(card.replace("---\n", "---\nlicense: mit\n", 1), "utf-8")
    status, said = export(place)
    assert status == 1 and "exists, and is no earlier export" in said
    (folder / "README.md").write_text(card, "utf-8")
    (folder / ".git").mkdir()
    assert export(place)[0] == 1 and (folder / ".git").is_dir()
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    status, said = export(place, f"+output_fpath={other}")
    assert status == 1 and (other / "mine.txt").exists()
    status, said = export(place, f"+output_fpath={place.folder / 'sums.jsonl'}")
    assert status == 1 and "this format is a folder" in said
    assert not list(place.folder.glob(".*.tmp"))


def test_images_are_parts_of_their_messages_in_order(place: Place) -> None:
    place.write([make_line(number) for number in range(1, 9)])
    status, said = export(place)
    assert status == 0 and "left out" not in said
    for number, row in enumerate(read_jsonl(place.folder / "sums/data/train.jsonl"), 1):
        asked = row["messages"][1]
        text = {"type": "text", "text": f"question {number}", "image_url": None}
        image = {"type": "image_url", "text": None, "image_url": PIXEL}
        assert asked["content"] == f"question {number}"
        assert asked["parts"] == ([text, image] if number % 2 else None)


@pytest.mark.formats
def test_the_hub_s_loader_reads_two_hundred_rollouts_with_images(place: Place) -> None:
    place.write([make_line(number) for number in range(200)])
    assert export(place)[0] == 0
    found = load(place, "default")["default"]["train"]
    assert found == read_jsonl(place.folder / "sums/data/train.jsonl") and len(found) == 200
    assert sum(each["messages"][1]["parts"] is not None for each in found) == 100


@pytest.mark.formats
def test_the_hub_s_loader_reads_rows_and_sessions(place: Place) -> None:
    assert export(place, "+test_fraction=0.5")[0] == 0
    folder = place.folder / "sums"
    found = load(place, "default", "sessions")
    for split in ("train", "test"):
        rows = read_jsonl(folder / f"data/{split}.jsonl")
        assert found["default"][split] == rows
        sessions = found["sessions"][split]
        assert [each["num_user_messages"] for each in sessions] == [1] * len(rows)
        tasks = [each["session_id"].split(":")[1] for each in sessions]
        assert tasks == [row["task_id"] for row in rows]
