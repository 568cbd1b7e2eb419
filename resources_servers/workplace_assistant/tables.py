"""Tables of an office: loaded once, shared by all sessions, copied by the one that writes.

Rows are never changed in place: a write makes a new list of the same rows but one. So a session
costs nothing until it writes, and then a list of references.
"""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollout_kit import ConfigError

Row = dict[str, str]
Tables = dict[str, list[Row]]

CASE_MATTERS = frozenset({"status", "list_name", "board"})

COLUMNS = {
    "emails": "email_id,inbox/outbox,sender/recipient,subject,sent_datetime,body",
    "calendar_events": "event_id,event_name,participant_email,event_start,duration",
    "analytics_data": (
        "date_of_visit,visitor_id,page_views,session_duration_seconds,traffic_source,user_engaged"
    ),
    "project_tasks": "task_id,task_name,assigned_to_email,list_name,due_date,board",
    "customer_relationship_manager_data": (
        "customer_id,assigned_to_email,customer_name,customer_email,customer_phone,"
        "last_contact_date,product_interest,status,follow_up_by,notes"
    ),
    "plots": "file_path",
}
"""By table; the first column is the key, where rows have one. Plots begin empty and have no
file."""

ADDRESSES = "email_addresses"
"""The file of the company's addresses, one a line and no header."""


class Table:
    """Rows in order, found by the first column; all is linear in some hundreds of rows."""

    def __init__(self, name: str, tables: Tables) -> None:
        self.columns = COLUMNS[name].split(",")
        self.rows = tables[name]

    def find(self, id: str) -> Row | None:
        return next((row for row in self.rows if row[self.columns[0]] == id), None)

    def where(self, is_wanted: Callable[[Row], bool]) -> list[Row]:
        return [row for row in self.rows if is_wanted(row)]

    def next_id(self) -> int:
        return int(max((row[self.columns[0]] for row in self.rows), default="0")) + 1

    def add(self, values: list[str]) -> None:
        self.rows = [*self.rows, dict(zip(self.columns, values, strict=True))]

    def change(self, id: str, field: str, value: str) -> None:
        key = self.columns[0]
        self.rows = [{**row, field: value} if row[key] == id else row for row in self.rows]

    def delete(self, id: str, what: str) -> str:
        """What came of it, in the words of a tool."""
        if not id:
            return f"{what} ID not provided."
        if self.find(id) is None:
            return f"{what} not found."
        self.rows = [row for row in self.rows if row[self.columns[0]] != id]
        return f"{what} deleted successfully."

    def equals(self, other: "Table") -> bool:
        """The same rows in the same order; letters' case counts where a column is a choice."""
        if len(self.rows) != len(other.rows):
            return False
        pairs = zip(self.rows, other.rows, strict=True)
        return all(one is two or _folded(one) == _folded(two) for one, two in pairs)


def _folded(row: Row) -> Row:
    return {
        name: value if name in CASE_MATTERS or not isinstance(value, str) else value.lower()
        for name, value in row.items()
    }


def load_tables(folder: Path) -> Tables:
    """Of each CSV file in the folder or below it; ConfigError for one that is missing or odd."""
    tables: Tables = {}
    for name, columns in COLUMNS.items() - {("plots", "file_path")}:
        with _path(folder, name).open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, restval=""))
        wanted = columns.split(",")
        if not rows or set(wanted) - rows[0].keys():
            raise ConfigError(f"{_path(folder, name)}: needs rows, with the columns {columns}")
        tables[name] = rows
    lines = _path(folder, ADDRESSES).read_text(encoding="utf-8").split()
    tables[ADDRESSES] = [{"email_address": line} for line in dict.fromkeys(lines)]
    return tables


def _path(folder: Path, name: str) -> Path:
    found = sorted(folder.rglob(f"{name}.csv"))
    if not found:
        raise ConfigError(f"{folder}: there is no {name}.csv in it")
    return found[0]


def holds(row: Row, field: str, part: str) -> bool:
    """Whether the field has the part in it, in any case; true where none was given."""
    return not part or part.lower() in row[field].lower()


def page_of(what: str, rows: list[Row], page: int, page_size: int) -> Any:
    """One page of what was found, and which it is."""
    if not rows:
        return f"No {what} found."
    size = max(1, page_size)
    num_pages = (len(rows) + size - 1) // size
    page = max(1, min(page, num_pages))
    pages = {"page": page, "page_size": size, "total_pages": num_pages}
    return {
        what: rows[(page - 1) * size : page * size],
        "pagination": {f"total_{what}": len(rows), **pages},
    }


def quoted(words: tuple[str, ...]) -> str:
    return ", ".join(f"'{word}'" for word in words)
