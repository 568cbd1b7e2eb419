"""Tasks of projects, on boards."""

import re
from typing import Any

from rollout_kit import tool

from .tables import Table, Tables, contains, quote_all

LISTS = ("Backlog", "In Progress", "In Review", "Completed")
BOARDS = ("Back end", "Front end", "Design")
ADDRESS = re.compile(r"[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}")


class Projects:
    """Tasks; `table` is what a verdict compares."""

    def __init__(self, tables: Tables) -> None:
        self.table = Table("project_tasks", tables)

    @tool
    def project_management_get_task_information_by_id(self, task_id: str, field: str) -> Any:
        """One field of a task: 'task_id', 'task_name', 'assigned_to_email', 'list_name',
        'due_date' or 'board'."""
        if not task_id:
            return "Task ID not provided."
        if not field:
            return "Field not provided."
        if (row := self.table.find(task_id)) is None:
            return "Task not found."
        return {field: row[field]} if field in row else "Field not found."

    @tool
    def project_management_search_tasks(
        self,
        task_name: str = "",
        assigned_to_email: str = "",
        list_name: str = "",
        due_date: str = "",
        board: str = "",
    ) -> Any:
        """Search tasks; what is given must be part of the field, the address the whole of it."""
        if not any((task_name, assigned_to_email, list_name, due_date, board)):
            return "No search parameters provided."
        if assigned_to_email and not ADDRESS.fullmatch(assigned_to_email):
            return "Invalid email format for assigned_to_email."
        parts = {
            "task_name": task_name,
            "list_name": list_name,
            "due_date": due_date,
            "board": board,
        }
        return [
            row
            for row in self.table.rows
            if all(contains(row, field, part) for field, part in parts.items())
            and (assigned_to_email or row["assigned_to_email"]).lower()
            == row["assigned_to_email"].lower()
        ]

    @tool
    def project_management_create_task(
        self,
        task_name: str,
        assigned_to_email: str,
        list_name: str,
        due_date: str,
        board: str,
    ) -> str:
        """Create a task in the list 'Backlog', 'In Progress', 'In Review' or 'Completed' of the
        board 'Back end', 'Front end' or 'Design', due on YYYY-MM-DD; returns its ID."""
        if not task_name or not assigned_to_email or not list_name or not due_date or not board:
            return "Missing task details."
        owner = assigned_to_email.lower()
        for field, value in (
            ("assigned_to_email", owner),
            ("list_name", list_name),
            ("board", board),
        ):
            if problem := self._problem(field, value):
                return problem
        id = str(self.table.next_id()).zfill(8)
        self.table.add([id, task_name, owner, list_name, due_date, board])
        return id

    @tool
    def project_management_delete_task(self, task_id: str) -> str:
        """Delete a task by its ID."""
        return self.table.delete(task_id, "Task")

    @tool
    def project_management_update_task(self, task_id: str, field: str, new_value: str) -> str:
        """Change one field of a task: 'task_name', 'assigned_to_email', 'list_name', 'due_date' or
        'board'."""
        if not task_id or not field or not new_value:
            return "Task ID, field, or new value not provided."
        value = new_value.lower() if field == "assigned_to_email" else new_value
        if problem := self._problem(field, value):
            return problem
        if (row := self.table.find(task_id)) is None:
            return "Task not found."
        if field not in row:
            return "Field not valid."
        self.table.change(task_id, field, value)
        return "Task updated successfully."

    def _problem(self, field: str, value: str) -> str | None:
        """What speaks against this value."""
        if field == "board" and value not in BOARDS:
            return f"Board not valid. Please choose from: {quote_all(BOARDS)}."
        if field == "list_name" and value not in LISTS:
            return f"List not valid. Please choose from: {quote_all(LISTS)}."
        owners = (row["assigned_to_email"].lower() for row in self.table.rows)
        if field == "assigned_to_email" and value not in owners:
            return "Assignee email not valid. Please choose from the list of team members."
        return None
