"""Tables of an office: loaded once, shared by all sessions, copied on write.

Rows are immutable: a write creates a new list that shares the unchanged rows. So a session costs
nothing until it writes, and then a list of references.
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
"""Table → columns; the first is the key, if there is one. Plots have no file and start empty."""

ADDRESSES = "email_addresses"
"""File of the company's addresses, one per line, without header."""


class Table:
    """Rows in order, with the first column as key. Every operation is linear; tables are small."""

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
        """Delete a row and return the text for the model."""
        if not id:
            return f"{what} ID not provided."
        if self.find(id) is None:
            return f"{what} not found."
        self.rows = [row for row in self.rows if row[self.columns[0]] != id]
        return f"{what} deleted successfully."

    def equals(self, other: "Table") -> bool:
        """Whether both have equal rows in equal order; only CASE_MATTERS columns heed case."""
        if len(self.rows) != len(other.rows):
            return False
        pairs = zip(self.rows, other.rows, strict=True)
        return all(one is two or _fold(one) == _fold(two) for one, two in pairs)


def _fold(row: Row) -> Row:
    return {
        name: value if name in CASE_MATTERS or not isinstance(value, str) else value.lower()
        for name, value in row.items()
    }


def load_tables(folder: Path) -> Tables:
    """Load the CSV files in a folder or below; raise ConfigError if one is missing or invalid."""
    tables: Tables = {}
    for name, columns in COLUMNS.items() - {("plots", "file_path")}:
        with _find_file(folder, name).open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, restval=""))
        wanted = columns.split(",")
        if not rows or set(wanted) - rows[0].keys():
            raise ConfigError(f"{_find_file(folder, name)}: needs rows, with the columns {columns}")
        tables[name] = rows
    lines = _find_file(folder, ADDRESSES).read_text(encoding="utf-8").split()
    tables[ADDRESSES] = [{"email_address": line} for line in dict.fromkeys(lines)]
    return tables


def _find_file(folder: Path, name: str) -> Path:
    found = sorted(folder.rglob(f"{name}.csv"))
    if not found:
        raise ConfigError(f"{folder}: contains no {name}.csv")
    return found[0]


def contains(row: Row, field: str, part: str) -> bool:
    """Whether the field contains the part, ignoring case; true for an empty part."""
    return not part or part.lower() in row[field].lower()


def make_page(what: str, rows: list[Row], page: int, page_size: int) -> Any:
    """Return one page of the rows, with the page numbers."""
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


def quote_all(words: tuple[str, ...]) -> str:
    return ", ".join(f"'{word}'" for word in words)
