"""Tables as input: CSV, TSV, Parquet, Arrow, and what Hugging Face saves."""

import gzip
import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollout_kit.errors import ConfigError
from rollout_kit.store.input import number_lines
from rollout_kit.store.tables.table_rows import BadRow

ROWS = [{"question": f"q {n}", "answer": n, "tags": [{"b": None, "c": [n]}]} for n in range(2_500)]


def rows_in(path: Path, skip: int = 0) -> list[dict[str, Any]]:
    return [orjson.loads(raw) for _, raw in number_lines(path, skip)]


def write_arrow(path: Path, table: pa.Table, *, is_stream: bool) -> None:
    make = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with path.open("wb") as stream, make(stream, table.schema) as writer:
        writer.write_table(table, max_chunksize=700)


def test_a_table_s_rows_are_the_same_in_each_form(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=600)
    write_arrow(tmp_path / "t.arrow", table, is_stream=False)
    saved = tmp_path / "saved"
    saved.mkdir()
    write_arrow(saved / "data-1.arrow", table.slice(0, 1_000), is_stream=True)
    write_arrow(saved / "data-2.arrow", table.slice(1_000), is_stream=True)
    names = [{"filename": "data-1.arrow"}, {"filename": "data-2.arrow"}]
    (saved / "state.json").write_text(json.dumps({"_data_files": names}))
    for path in (tmp_path / "t.parquet", tmp_path / "t.arrow", saved):
        assert rows_in(path) == ROWS
        assert rows_in(path, 2_400) == ROWS[2_400:]
        assert [number for number, _ in number_lines(path, 2_498)] == [2_499, 2_500]


def test_csv_has_quotes_line_breaks_and_a_byte_order_mark(tmp_path: Path) -> None:
    text = '\ufeffquestion,answer\r\n"two\nlines, ""quoted""",4\r\n\r\nplain,5\r\n'
    expected = [
        {"question": 'two\nlines, "quoted"', "answer": "4"},
        {"question": "plain", "answer": "5"},
    ]
    (tmp_path / "t.csv").write_bytes(text.encode())
    (tmp_path / "t.CSV.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    (tmp_path / "t.tsv").write_text("question\tanswer\na, b\t5\n")
    assert rows_in(tmp_path / "t.csv") == rows_in(tmp_path / "t.CSV.gz") == expected
    assert rows_in(tmp_path / "t.tsv") == [{"question": "a, b", "answer": "5"}]


def test_lines_of_json_are_read_under_any_name(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('{"a": 1}\n{"a": 2}\n')
    assert rows_in(tmp_path / "t.csv") == [{"a": 1}, {"a": 2}]


def test_a_row_with_too_many_cells_is_bad_and_the_others_are_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("question,answer\nhow, much,4\nplain,5\n")
    (_, bad), (number, good) = number_lines(tmp_path / "t.csv")
    assert isinstance(bad, BadRow) and "3 cells" in bad.reason and "2 columns" in bad.reason
    assert (number, orjson.loads(good)) == (2, {"question": "plain", "answer": "5"})


@pytest.mark.parametrize(
    ("name", "raw", "expected"),
    [
        ("t.csv", b"a,a\n1,2\n", "'a' 2 times"),
        ("t.csv", b"a,\n1,2\n", "a column without a name"),
        ("t.csv", b"\n1,2\n", "must name the columns"),
        ("t.csv", b'a,b\n1,"2\n', "t.csv:2: not CSV: unexpected end of data"),
        ("t.csv", "a,b\nä,2\n".encode("latin-1"), "iconv -f LATIN1 -t UTF-8 t.csv"),
        ("t.csv.gz", b"no gzip", "cannot be read: Not a gzipped file"),
        ("t.parquet", b"PAR1\x15\x04", "cannot be read"),
        ("t.arrow", b"nothing of it", "cannot be read"),
    ],
)
def test_a_broken_table_says_what_is_wrong(
    tmp_path: Path, name: str, raw: bytes, expected: str
) -> None:
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(ConfigError, match=expected):
        rows_in(tmp_path / name)
    with pytest.raises(ConfigError, match="did you mean"):
        rows_in(tmp_path / f"x{name}")


def test_values_that_json_lacks_are_texts_and_bytes_are_refused(tmp_path: Path) -> None:
    row = {"day": date(2026, 11, 27), "price": Decimal("1.50")}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "t.parquet")
    assert rows_in(tmp_path / "t.parquet") == [{"day": "2026-11-27", "price": "1.50"}]
    pq.write_table(pa.Table.from_pylist([{"image": b"\xff"}]), tmp_path / "t.parquet")
    with pytest.raises(ConfigError, match="column 'image' has bytes"):
        rows_in(tmp_path / "t.parquet")
