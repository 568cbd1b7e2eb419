"""The pictures that are drawn from a run show what a run prints and writes today."""

import re
import sys
from html import unescape
from pathlib import Path

import pytest
from claims import is_printed
from workplace import ROOT

pytest.importorskip("pyte")
sys.path.insert(0, str(ROOT / "docs"))

import annotated
import pictures
import recording

IMAGES = ROOT / "docs/images"

TEXT = re.compile(r"<text[^>]*>(.*?)</text>")


def read_texts(svg: str) -> list[str]:
    return [unescape(text) for text in TEXT.findall(svg)]


def test_the_annotated_line_has_the_fields_of_a_line(tmp_path: Path) -> None:
    pictures.draw_line(tmp_path, tmp_path / "line.svg")
    found, shown = (
        [re.sub(r'": .*', '": ', text) for text in read_texts(path.read_text())]
        for path in (tmp_path / "line.svg", IMAGES / "line.svg")
    )
    assert found == shown
    assert {*annotated.NOTES.values()} <= {*shown}


@pytest.mark.documents
def test_the_recording_shows_what_the_demo_prints(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    folder = tmp_path / "run"
    folder.mkdir()
    recording.record(folder, tmp_path / "demo.svg")
    printed = "\n".join(read_texts((tmp_path / "demo.svg").read_text()))
    shown = read_texts((IMAGES / "demo.svg").read_text())
    kept = [
        text for text in shown if text.startswith(("Agent", "Plan", "Killed", "384", "Metrics"))
    ]
    assert len(kept) >= 6
    assert all(is_printed(text, printed) for text in kept)
    assert "384 rollouts.jsonl" in printed


def test_a_picture_has_each_text_as_long_as_it_stands() -> None:
    blank = ("",) * (recording.ROWS - 1)
    frames = [
        recording.Frame(0.0, ("first", *blank)),
        recording.Frame(1.0, ("second", *blank)),
        recording.Frame(2.0, ("<third>", *blank)),
    ]
    svg = recording.draw(frames, "three")
    assert read_texts(svg) == ["first", "second", "<third>"]
    assert svg.count('class="last"') == 1
    assert "14.286% { visibility: visible } 28.571%" in svg
