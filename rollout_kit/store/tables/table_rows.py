"""Rows of tables as JSON lines: CSV, TSV, Parquet, Arrow, and folders that Hugging Face saved.

One row at a time; a table is never held in memory. Values keep their types, and those of CSV are
texts.
"""

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson

from ...errors import ConfigError, how_to_install
from ...reading import MAX_LINE, read_object

EXTRA = "rollout-kit[parquet]"

STATE = "state.json"
"""In a folder of `save_to_disk`: the list of its files."""

PORTION = 1_000
"""Rows of a Parquet file that are read at once."""


class BadRow(bytes):
    """A row that is no task, with the reason."""

    reason: str

    @classmethod
    def of(cls, cells: Sequence[Any], reason: str) -> "BadRow":
        row = cls(orjson.dumps(cells, default=str))
        row.reason = reason
        return row


INDEX = "index"
"""The name of a first column without one, as pandas writes it."""


def is_table(path: Path) -> bool:
    """Whether the rows of a file, named without the suffix of its compression, or of a folder are
    those of a table."""
    return path.suffix.lower() in READERS or (path / STATE).is_file()


def iterate_rows(path: Path, form: str, stream: Any) -> Iterator[bytes]:
    """The rows of a table in order. `form` is the suffix of the file, and empty for a folder;
    `stream` has the bytes of a file. ConfigError if it cannot be read."""
    return READERS[form.lower()](path, stream) if form else _iterate_saved(path)


def _iterate_csv(path: Path, stream: Any, delimiter: str = ",") -> Iterator[bytes]:
    csv.field_size_limit(MAX_LINE)
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    try:
        rows = csv.reader(text, delimiter=delimiter, strict=True)
        head = next(rows, [])
        if len(head) > 1 and not head[0].strip() and any(map(str.strip, head)):
            head[0] = INDEX
        _check_head(path, head)
        for cells in rows:
            if not cells:  # a blank line
                continue
            if len(cells) == len(head):
                yield orjson.dumps(dict(zip(head, cells, strict=True)))
            else:
                yield BadRow.of(
                    cells,
                    f"it has {len(cells)} cells, and the first line names {len(head)} columns:"
                    ' quote a cell that holds a separator or a line break: "a, b"',
                )
    except csv.Error as error:
        line = rows.line_num  # pyright: ignore[reportPossiblyUnboundVariable]
        raise ConfigError(f"{path}:{line}: not CSV: {error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not UTF-8 text ({error.reason} at byte {error.start}): convert it with  iconv"
            f" -f LATIN1 -t UTF-8 {path.name}"
        ) from None
    finally:
        text.detach()


def _check_head(path: Path, head: Sequence[str]) -> None:
    if not any(map(str.strip, head)):
        raise ConfigError(f"{path}: the first line must name the columns")
    for name, number in Counter(head).items():
        if number > 1 or not name.strip():
            what = f"'{name}' {number} times" if name.strip() else "a column without a name"
            raise ConfigError(f"{path}: the first line has {what}: give each column a name")


def _iterate_tsv(path: Path, stream: Any) -> Iterator[bytes]:
    return _iterate_csv(path, stream, "\t")


def _iterate_parquet(path: Path, stream: Any) -> Iterator[bytes]:
    with _reads(path) as pyarrow:
        parquet = import_module("pyarrow.parquet")
        file = parquet.ParquetFile(stream)
        yield from _dump(pyarrow, file.iter_batches(PORTION), path)


def _iterate_arrow(path: Path, stream: Any) -> Iterator[bytes]:
    """A file of Arrow, or a stream of it, which Hugging Face writes."""
    with _reads(path) as pyarrow:
        try:
            file = pyarrow.ipc.open_file(stream)
            batches = (file.get_batch(number) for number in range(file.num_record_batches))
        except pyarrow.ArrowInvalid:
            stream.seek(0)
            batches = iter(pyarrow.ipc.open_stream(stream))
        yield from _dump(pyarrow, batches, path)


def _iterate_saved(folder: Path) -> Iterator[bytes]:
    """The rows of a folder of `save_to_disk`."""
    state = read_object(folder / STATE)
    if state.get("_indices_data_files"):
        raise ConfigError(f"{folder}: has selected rows: save it after flatten_indices()")
    for each in state.get("_data_files", ()):
        path = folder / each["filename"]
        with path.open("rb") as stream:
            yield from _iterate_arrow(path, stream)


@contextmanager
def _reads(path: Path) -> Iterator[Any]:
    """The library pyarrow; ConfigError if it is missing, or finds that the file is broken."""
    try:
        pyarrow = import_module("pyarrow")
        import_module("pyarrow.ipc")
    except ImportError:
        raise ConfigError(f"{path}: needs pyarrow: {how_to_install(EXTRA)}") from None
    try:
        yield pyarrow
    except pyarrow.ArrowException as error:
        raise ConfigError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None


def _dump(pyarrow: Any, batches: Iterator[Any], path: Path) -> Iterator[bytes]:
    for batch in batches:
        for name, kind in zip(batch.schema.names, batch.schema.types, strict=True):
            if pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind):
                raise ConfigError(f"{path}: column '{name}' has bytes, which no task can hold")
        for row in batch.to_pylist():
            try:
                yield orjson.dumps(row, default=_spell)
            except TypeError as error:
                raise ConfigError(f"{path}: a value cannot be JSON: {error}") from None


def _spell(value: Any) -> str:
    if isinstance(value, Decimal | timedelta):
        return str(value)
    raise TypeError(f"{type(value).__name__}")


READERS: dict[str, Callable[[Path, Any], Iterator[bytes]]] = {
    ".csv": _iterate_csv,
    ".tsv": _iterate_tsv,
    ".parquet": _iterate_parquet,
    ".arrow": _iterate_arrow,
}
"""Suffix of a file → its reader."""
