"""Writes rows as JSON lines or Parquet. A file appears whole, in the end, or not at all."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from ...errors import ConfigError, OutputError, how_to_install
from ...store.files import draft_of, open_draft
from ...types import JsonObject

BATCH = 1000
"""Rows of one Parquet row group in memory."""


class RowFile:
    """A file of rows. `complete` and `commit` it in the end, or `discard` it."""

    def __init__(self, path: Path, *, is_parquet: bool, draft: Path | None = None) -> None:
        """`draft`: where it is written until it is committed, if not beside its place."""
        self.path, self.num_rows = path, 0
        self.columns: list[str] = []
        """Those of the first row."""
        self._arrow = import_pyarrow() if is_parquet else None
        try:
            (draft or path).parent.mkdir(parents=True, exist_ok=True)
            self._draft = draft or draft_of(path)
            self._stream = open_draft(self._draft)
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror}") from None

    def write(self, row: JsonObject) -> None:
        try:
            self._stream.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {error.strerror}") from None
        self.columns = self.columns or list(row)
        self.num_rows += 1

    def complete(self) -> None:
        """Write the whole content to the draft; OutputError if there is no room for it."""
        try:
            self._stream.close()
            if self._arrow is not None:
                self._convert(self._arrow)
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {error.strerror or error}") from None

    def commit(self) -> None:
        """Put the file in its place."""
        try:
            self._draft.replace(self.path)
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {error.strerror or error}") from None

    def discard(self) -> None:
        """Remove what was written, if it was not committed."""
        with suppress(OSError):
            self._stream.close()
        self._draft.unlink(missing_ok=True)

    def _convert(self, arrow: Any) -> None:
        """Rewrite the draft as Parquet, with one schema that fits all of its rows."""
        from pyarrow import parquet  # type: ignore[import-not-found]

        converted = self._draft.with_suffix(".parquet.tmp")
        try:
            schemas = [arrow.Table.from_pylist(rows).schema for rows in self._read()]
            schema = arrow.unify_schemas(schemas, promote_options="permissive")
            with parquet.ParquetWriter(converted, schema) as writer:
                for rows in self._read():
                    writer.write_table(arrow.Table.from_pylist(rows, schema=schema))
            converted.replace(self._draft)
        except arrow.ArrowException as error:
            raise OutputError(f"{self.path}: the rows do not fit one schema: {error}") from None
        finally:
            converted.unlink(missing_ok=True)

    def _read(self) -> Iterator[list[JsonObject]]:
        with self._draft.open("rb") as stream:
            while lines := list(islice(stream, BATCH)):
                yield [orjson.loads(line) for line in lines]


def import_pyarrow() -> Any:
    """pyarrow; ConfigError if it is not installed."""
    try:
        import pyarrow  # type: ignore[import-not-found]
    except ImportError:
        raise ConfigError(f"Parquet needs pyarrow: {how_to_install('pyarrow')}") from None
    return pyarrow
