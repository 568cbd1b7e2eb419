"""The one reader of stored rollouts: what a line is, and the ways to ask a file."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from exported import line

from rollout_kit.errors import ConfigError, OutputError
from rollout_kit.store.kinds import (
    FOREIGN,
    NEWER,
    NOT_OURS,
    REPEATED,
    TORN,
    UNREADABLE,
    HeadReader,
    judge_parsed,
    key_of,
)
from rollout_kit.store.rollouts import RolloutFile

ROWS: list[Any] = [line(number, 0, f"answer {number}", float(number % 2)) for number in range(6)]

BARE = {name: value for name, value in line(7, 0, "x", 1.0).items() if name != "response"}
"""A rollout without a response, which no collection writes."""


def write(path: Path, rows: list[Any], end: bytes = b"") -> RolloutFile:
    raw = b"".join(json.dumps(each).encode() + b"\n" for each in rows) + end
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return RolloutFile(path)


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (json.dumps(ROWS[0]), "rollout"),
        (json.dumps({**ROWS[0], "_ng_task_index": None}), FOREIGN),
        (json.dumps({**ROWS[0], "usage": {"input_tokens": None}}), "rollout"),
        (json.dumps({"kind": "rollout", "schema": 1}), FOREIGN),
        (json.dumps({"kind": "label", "schema": 1}), "label"),
        (json.dumps({**ROWS[0], "kind": "rollout", "schema": 2}), NEWER),
        (json.dumps({**ROWS[0], "kind": "song", "schema": 1}), FOREIGN),
        ('{"reward": NaN}', UNREADABLE),
        ("[1]", UNREADABLE),
    ],
)
def test_a_line_is_the_same_whether_it_is_parsed_or_not(raw: str, kind: str) -> None:
    quick, whole = HeadReader().judge(raw.encode()), judge_parsed(raw.encode())
    assert (quick.kind, quick.head) == (whole.kind, whole.head)
    assert quick.kind == kind
    assert (quick.head and quick.head.key) == (key_of(json.loads(raw)) if quick.head else None)


def test_each_key_counts_once_and_what_is_left_out_has_its_reason(tmp_path: Path) -> None:
    file = write(tmp_path / "r.jsonl", [*ROWS, ROWS[2], {"x": 1}], b'{"kind": "roll')
    assert list(file.keys()) == [key_of(each) for each in ROWS]
    assert file.left_out == {REPEATED: 1, NOT_OURS: 1, TORN: 1}
    [*_, last] = file.lines()
    assert last.is_torn and last.number == len(ROWS) + 3


def test_a_newer_line_is_refused_by_its_number(tmp_path: Path) -> None:
    later = {**ROWS[2], "kind": "rollout", "schema": 2}
    file = write(tmp_path / "r.jsonl", [*ROWS[:2], later])
    with pytest.raises(OutputError, match=r"r\.jsonl:3: this line has schema 2"):
        list(file.rollouts())
    assert len(list(RolloutFile(file.path, skips_newer=True).rollouts())) == 2


def test_a_rollout_is_read_where_its_line_begins(tmp_path: Path) -> None:
    file = write(tmp_path / "r.jsonl", [*ROWS, {"x": 1}])
    found = [file.at(each.offset) for each in file.lines()]
    assert [each and each.key for each in found] == [*map(key_of, ROWS), None]


@pytest.mark.parametrize("name", ["r.jsonl", "r.jsonl.gz"])
@pytest.mark.parametrize("expression", ["reward == 1", "reward == 1 and 'answer' in text"])
def test_a_filter_gives_the_rollouts_that_have_a_response(
    tmp_path: Path, name: str, expression: str
) -> None:
    file = write(tmp_path / name, [BARE, *ROWS])
    assert [each.key for each in file.where(expression)] == [key_of(each) for each in ROWS[1::2]]


def test_a_filter_with_a_wrong_name_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no rollout has the field 'rewrd'"):
        list(write(tmp_path / "r.jsonl", ROWS).where("rewrd == 1"))
