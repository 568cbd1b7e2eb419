"""The calendar."""

from datetime import datetime
from typing import Any

from rollout_kit import tool

from .tables import Table, Tables, contains, make_page

FIELDS = ("event_id", "event_name", "participant_email", "event_start", "duration")


class Calendar:
    """Events; `table` is what a verdict compares."""

    def __init__(self, tables: Tables) -> None:
        self.table = Table("calendar_events", tables)

    @tool
    def calendar_get_event_information_by_id(self, event_id: str, field: str) -> Any:
        """One field of an event: 'event_id', 'event_name', 'participant_email', 'event_start' or
        'duration'."""
        if not event_id:
            return "Event ID not provided."
        if not field:
            return "Field not provided."
        if not _is_id(event_id):
            return "Invalid event ID format. Expected 8-digit ID."
        if field not in FIELDS:
            return f"Invalid field. Available fields are: {', '.join(FIELDS)}"
        row = self.table.find(event_id)
        return {field: row[field]} if row else "Event not found."

    @tool
    def calendar_search_events(
        self,
        query: str = "",
        time_min: str = "",
        time_max: str = "",
        page: int = 1,
        page_size: int = 5,
    ) -> Any:
        """Search events by name or participant, the latest first, that start from time_min to
        time_max (YYYY-MM-DD HH:MM:SS)."""
        bounds = {"time_min": time_min, "time_max": time_max}
        for name, given in bounds.items():
            if given and not _is_time(given):
                return f"Invalid {name} format. Expected YYYY-MM-DD HH:MM:SS."
        first, last = _time(time_min or "0001-01-01"), _time(time_max or "9999-12-31")
        found = self.table.where(
            lambda row: (
                (contains(row, "event_name", query) or contains(row, "participant_email", query))
                and first <= _time(row["event_start"]) <= last
            )
        )
        found.sort(key=lambda row: row["event_start"], reverse=True)
        return make_page("events", found, page, page_size)

    @tool
    def calendar_create_event(
        self,
        event_name: str,
        participant_email: str,
        event_start: str,
        duration: str,
    ) -> str:
        """Create an event that starts at YYYY-MM-DD HH:MM:SS and takes that many minutes; returns
        its ID."""
        if not event_name:
            return "Event name not provided."
        if not participant_email:
            return "Participant email not provided."
        if not event_start:
            return "Event start not provided."
        if not duration:
            return "Event duration not provided."
        if problem := _problem("event_start", event_start):
            return problem
        if problem := _problem("duration", duration):
            return problem
        id = str(self.table.next_id()).zfill(8)
        self.table.add([id, event_name, participant_email.lower(), event_start, duration])
        return id

    @tool
    def calendar_delete_event(self, event_id: str) -> str:
        """Delete an event by its ID."""
        if event_id and not _is_id(event_id):
            return "Invalid event ID format. Expected 8-digit ID."
        return self.table.delete(event_id, "Event")

    @tool
    def calendar_update_event(self, event_id: str, field: str, new_value: str) -> str:
        """Change one field of an event: 'event_name', 'participant_email', 'event_start' or
        'duration'."""
        if not event_id or not field or not new_value:
            return "Event ID, field, or new value not provided."
        if not _is_id(event_id):
            return "Invalid event ID format. Expected 8-digit ID."
        if field not in FIELDS[1:]:
            return f"Invalid field. Available fields are: {', '.join(FIELDS[1:])}"
        if problem := _problem(field, new_value):
            return problem
        if self.table.find(event_id) is None:
            return "Event not found."
        lower = field == "participant_email"
        self.table.change(event_id, field, new_value.lower() if lower else new_value)
        return "Event updated successfully."


def _is_id(id: str) -> bool:
    return len(id) == 8 and id.isdigit()


def _is_time(given: str) -> bool:
    try:
        return bool(_time(given))
    except ValueError:
        return False


def _time(given: str) -> datetime:
    return datetime.fromisoformat(given).replace(tzinfo=None)


def _problem(field: str, value: str) -> str | None:
    """Return what is wrong with the value, or None."""
    if field == "event_start" and not _is_time(value):
        return "Invalid event_start format. Expected YYYY-MM-DD HH:MM:SS."
    if field != "duration":
        return None
    if len(value) > 9 or not value.strip().lstrip("+-").isdecimal():
        return "Invalid duration format. Expected a number of minutes."
    return None if int(value) > 0 else "Duration must be a positive number of minutes."
