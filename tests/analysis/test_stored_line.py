"""Long lines as the viewer reads them: item by item, from places that are found once."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from agentic import FAULTS, faulty_line

from rollout_kit.analysis.view import stored_line
from rollout_kit.analysis.view.dataset import Dataset
from rollout_kit.analysis.view.outline import describe_steps
from rollout_kit.analysis.view.places import find_places
from rollout_kit.analysis.view.rollouts import Reader
from rollout_kit.analysis.view.stored_line import LongLine, WholeLine, read_line
from rollout_kit.store.index import Index, LineChanged


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """One line, which counts as long, and has what only an endpoint can read."""
    monkeypatch.setattr(stored_line, "MAX_WHOLE", 1000)
    monkeypatch.setattr(stored_line, "KEPT_FROM", 2000)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    line = faulty_line(1, next(iter(FAULTS)))
    line["response"]["output"][0]["provider_data"] = {"only": "the endpoint"}
    path = tmp_path / "long.jsonl"
    path.write_bytes(orjson.dumps(line) + b"\n")
    found = Index(path, "rollout", None, None)
    found.update()
    return found


def read_whole(index: Index) -> dict[str, Any]:
    return stored_line.parse_for_people(index.line(0))


def test_a_long_line_is_read_item_by_item_as_the_whole_one(index: Index) -> None:
    whole, long = read_whole(index), read_line(index, 0)
    assert isinstance(long, LongLine) and long.head["response"]["output"] == []
    assert "provider_data" not in long.items(0, 1)[0]
    assert long.items(3, 7) == whole["response"]["output"][3:7]
    assert long.items(190, 10_000) == whole["response"]["output"][190:]
    assert long.join() == whole
    assert long.described == describe_steps(whole) and long.described["findings"]


def test_places_and_turns_are_kept_and_read_by_the_next_viewer(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = read_line(index, 0).described
    [kept] = (tmp_path / "cache").rglob("*.lines/*.json")
    monkeypatch.setattr(stored_line, "find_places", lambda raw: pytest.fail("found again"))
    again = read_line(index, 0)
    assert orjson.loads(orjson.dumps(first)) == again.described
    assert again.items(5, 6) == read_whole(index)["response"]["output"][5:6]
    kept.write_text("{")
    monkeypatch.setattr(stored_line, "find_places", find_places)
    assert read_line(index, 0).described == first


def test_an_item_of_an_edited_file_is_refused(index: Index) -> None:
    long = read_line(index, 0)
    raw = index.path.read_bytes()
    index.path.write_bytes(raw.replace(b"line 3 of", b"line 4 of"))
    assert long.items(0, 1)
    with pytest.raises(LineChanged):
        long.items(0, 20)


def test_the_pages_of_a_long_line_are_those_of_a_whole_one(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask() -> list[Any]:
        dataset = Dataset([str(index.path)], is_kept=False)
        dataset.update()
        reader = Reader(dataset)
        found = reader.rollout(0)
        path = json.dumps(["response", "output", 1, "output"])
        return [
            *(found["steps"], found["findings"], reader.items(0, 4, 6), reader.request(0, 3)),
            *(reader.text(0, path, 2, 9), reader.inside(0, "SRC/app.py"), reader.trails("0,0")),
            reader.group(0)["members"][0]["digest"],
        ]

    long = ask()
    monkeypatch.setattr(stored_line, "MAX_WHOLE", 1 << 20)
    assert long == ask()


@pytest.mark.parametrize(
    ("raw", "items"),
    [
        (b'{"a":{"output":[1]}, "response" : {"x":"\\"output","output" : [ {"a":1} , [2],"s" ] }}',
         [b'{"a":1}', b"[2]", b'"s"']),
        (b'{"responses_create_params":{"input":[[7]]},"response":{"output":[[7]]}}', [b"[7]"]),
        (b'{"response":{"output":[1]},"response":{"output":[2]}}', None),
        (b'{"response":{"output":[]}}', None),
        (b'{"response":{"output":"[1]"}}', None),
        (b'{"response":null}', None),
        (b'{"response":{"output":[NaN]}}', None),
    ],
)  # fmt: skip
def test_places_are_those_of_the_response(raw: bytes, items: list[bytes] | None) -> None:
    found = find_places(raw)
    assert (found and [raw[each.begin : each.end] for each in found]) == items


def test_a_line_of_an_unusual_form_is_read_whole(index: Index) -> None:
    row = read_whole(index)
    second = orjson.dumps({**row["response"], "output": row["response"]["output"][1:]})
    index.path.write_bytes(orjson.dumps(row)[:-1] + b',"response":' + second + b"}\n")
    index.update()
    assert isinstance(read_line(index, 0), WholeLine)
