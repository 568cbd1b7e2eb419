"""Rollouts next to each other, from the first turn in which they differ."""

from pathlib import Path

import pytest
from agentic import agentic_line, say, use
from support import write_jsonl

from rollout_kit.analysis.view.app import Viewer
from rollout_kit.analysis.view.dataset import Dataset
from rollout_kit.analysis.view.side_by_side import put_side_by_side
from rollout_kit.errors import ConfigError


def turn(at: int, output: str = "ok", command: str = "ls") -> list:
    return use("bash", output, at, command=f"{command} {at}")


SAME = [turn(0), turn(1)]

ONE = agentic_line(0, [*SAME, turn(2), turn(3), [say("Done.")]])

OTHER = agentic_line(0, [*SAME, turn(2, command="cat"), turn(2), turn(3), [say("I give up.")]])


def test_columns_begin_at_the_first_difference() -> None:
    third = agentic_line(0, SAME)
    found = put_side_by_side([ONE, OTHER, third])
    assert found["num_equal"] == 2 and found["num_turns"] == [5, 6, 2]
    assert [each[0]["tools"][0]["argument"] for each in found["columns"][:2]] == ["ls 2", "cat 2"]
    assert found["columns"][2] == [] and found["rows"] is None


def test_two_are_aligned_turn_by_turn() -> None:
    found = put_side_by_side([ONE, OTHER])
    assert found["rows"] == [
        [None, 0, False],
        [0, 1, True],
        [1, 2, True],
        [2, 3, False],
    ]
    assert put_side_by_side([ONE, ONE])["rows"] == []


def test_an_output_makes_a_turn_another_one() -> None:
    failed = agentic_line(0, [turn(0), turn(1, output="Error: no such file")])
    found = put_side_by_side([ONE, failed])
    assert found["num_equal"] == 1
    [tool] = found["columns"][1][0]["tools"]
    assert tool["is_error"] and tool["output"] == "Error: no such file"


def test_the_viewer_finds_the_rows(tmp_path: Path) -> None:
    second = {**OTHER, "_ng_rollout_index": 1}
    second["rollout"] = {**OTHER["rollout"], "rollout_index": 1}
    path = write_jsonl(tmp_path / "r.jsonl", [ONE, second])
    viewer = Viewer(Dataset([str(path)], is_kept=False), "")
    viewer.update()
    assert viewer.reader.trails("0,1")["num_equal"] == 2
    with pytest.raises(ConfigError, match="give numbers"):
        viewer.reader.trails("0,x")
