"""The database of a session: tables of records that sessions share until one changes them."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from rollout_kit import JsonObject

Database = dict[str, dict[str, JsonObject]]
"""Table → key → record."""


class Table:
    """A table of which only the records that were used are copied."""

    def __init__(self, shared: dict[str, JsonObject]) -> None:
        self._shared = shared
        self._own: dict[str, JsonObject] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._own or key in self._shared

    def __getitem__(self, key: str) -> JsonObject:
        """A record, which may be changed."""
        if key not in self._own:
            self._own[key] = deepcopy(self._shared[key])
        return self._own[key]

    def __setitem__(self, key: str, record: JsonObject) -> None:
        self._own[key] = record

    def read(self) -> Iterator[tuple[str, JsonObject]]:
        """All keys and records in their order. They must not be changed."""
        for key, record in self._shared.items():
            yield key, self._own.get(key, record)
        for key, record in self._own.items():
            if key not in self._shared:
                yield key, record

    def equals(self, other: "Table") -> bool:
        """Whether two tables over the same shared records have the same content."""
        keys = self._own.keys() | other._own.keys()
        return all(self._peek(key) == other._peek(key) for key in keys)

    def _peek(self, key: str) -> JsonObject | None:
        return self._own.get(key, self._shared.get(key))


class Tables:
    """The tables of a session."""

    def __init__(self, shared: Database) -> None:
        self._tables = {name: Table(records) for name, records in shared.items()}

    def __getattr__(self, name: str) -> Table:
        try:
            return self._tables[name]
        except KeyError:
            raise AttributeError(name) from None

    def equals(self, other: "Tables") -> bool:
        return all(table.equals(getattr(other, name)) for name, table in self._tables.items())

    def to_json(self) -> dict[str, dict[str, Any]]:
        return {name: dict(table.read()) for name, table in self._tables.items()}
