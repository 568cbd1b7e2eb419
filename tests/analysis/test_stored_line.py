"""Long lines as the viewer reads them: item by item, from places that are found once."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import orjson
import pytest
from agentic import FAULTS, faulty_line
from hypothesis import given
from hypothesis import strategies as st

from rollout_kit.analysis.view import huge_texts, stored_line
from rollout_kit.analysis.view.dataset import Dataset
from rollout_kit.analysis.view.outline import describe_all
from rollout_kit.analysis.view.places import find_places
from rollout_kit.analysis.view.rollouts import Reader
from rollout_kit.analysis.view.stored_line import LongLine, read_line
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
    assert long.described == describe_all(whole) and long.described["findings"]


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


def test_the_turns_of_a_long_line_are_there_before_its_findings(index: Index) -> None:
    for _ in range(2):  # with what the first viewer has kept
        dataset = Dataset([str(index.path)], is_kept=False)
        dataset.update()
        reader = Reader(dataset)
        first = reader.rollout(0)
        if first["findings"] is None:
            assert first["steps"] and reader.rollout(0)["findings"] is None
            found = reader.findings(0)
            assert found["findings"] and found["num_findings"] == len(found["findings"])
    assert first["findings"] == found["findings"]


def test_the_pages_of_a_long_line_are_those_of_a_whole_one(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask() -> list[Any]:
        dataset = Dataset([str(index.path)], is_kept=False)
        dataset.update()
        reader = Reader(dataset)
        steps, findings = reader.rollout(0)["steps"], reader.findings(0)
        found = reader.rollout(0)
        assert steps == found["steps"] and findings.items() <= found.items()
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
    long = read_line(index, 0)
    assert not long.is_long and long.items(0, 1) == [] and long.join() == read_whole(index)


@given(
    text=st.text(st.sampled_from('a"\\\n\u00e9\u20ac\U0001f600\x01'), max_size=60),
    at=st.integers(1, 9),
)
def test_the_pieces_of_a_text_are_the_text(text: str, at: int) -> None:
    for raw in (json.dumps(text).encode(), orjson.dumps(text)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(huge_texts, "PIECE", at)
            assert "".join(huge_texts.read_pieces(raw)) == text


def test_a_huge_text_is_shown_searched_and_read_in_pieces(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\u00e9 begin " + 'one "line"\n' * 20_000 + "The Needle" + "x" * 200_000 + " end"
    row = read_whole(index)
    row["response"]["output"][1]["output"] = row["notes"] = text
    index.path.write_bytes(orjson.dumps(row) + b"\n")

    def ask() -> list[Any]:
        dataset = Dataset([str(index.path)], is_kept=False)
        dataset.update()
        reader = Reader(dataset)
        found = reader.rollout(0)
        paths = [json.dumps(path) for path in (["response", "output", 1, "output"], ["notes"])]
        return [
            *(found["line"]["notes"], found["cuts"][-1:], reader.items(0, 0, 3)),
            *(reader.text(0, path, 220_000, 40) for path in paths),
            reader.text(0, paths[0], 419_000, 10_000),
            {key: reader.inside(0, "the needle")[key] for key in ("total",)},
            [(hit["turn"], hit["item"]) for hit in reader.inside(0, "THE NEEDLE")["hits"]],
        ]

    plain = ask()
    assert plain[5]["text"].endswith(" end") and plain[6] == {"total": 2}
    monkeypatch.setattr(huge_texts, "HUGE", 100_000)
    monkeypatch.setattr(huge_texts, "PIECE", 1_000)
    assert ask() == plain


def test_a_huge_text_is_never_in_memory_twice(tmp_path: Path) -> None:
    path, row = tmp_path / "huge.jsonl", faulty_line(1, next(iter(FAULTS)))
    row["response"]["output"][1]["output"] = "a line of a tool\n" * (24 << 16)
    path.write_bytes(orjson.dumps(row) + b"\n")
    del row
    index = Index(path, "rollout", None, None)
    index.update()
    tracemalloc.start()
    try:
        line = read_line(index, 0)
        assert line.described["steps"] and line.items(0, 3)
        assert sum(map(len, line.text(["response", "output", 1, "output"]))) == 17 * (24 << 16)
        assert tracemalloc.get_traced_memory()[1] < 1.5 * path.stat().st_size
    finally:
        tracemalloc.stop()


def test_what_is_kept_of_lines_goes_with_them(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def list_kept() -> set[str]:
        return {path.name for path in (tmp_path / "cache").rglob("*.lines/*.json")}

    line = index.path.read_bytes()
    others = [orjson.dumps(faulty_line(task, next(iter(FAULTS)))) + b"\n" for task in (2, 3)]
    index.path.write_bytes(line + b"".join(others))
    index.update()
    monkeypatch.setattr(stored_line, "MAX_KEPT", 2)
    for row in range(3):
        assert read_line(index, row).described
        assert len(list_kept()) == min(2, row + 1)
    before = list_kept()
    index.path.write_bytes(line.replace(b"line 3 of", b"line 4 of"))
    changed = Index(index.path, "rollout", None, None)
    changed.update()
    assert read_line(changed, 0).described
    assert len(list_kept()) == 1 and not list_kept() & before
