"""Support tickets of a company."""

from typing import Any, ClassVar

from .world import World

FIELDS = {"title", "description", "status", "priority"}

Reply = dict[str, Any]


class TicketAPI(World):
    _defaults: ClassVar[dict[str, Any]] = {
        "ticket_queue": [],
        "ticket_counter": 1,
        "current_user": None,
    }

    def create_ticket(self, title: str, description: str = "", priority: int = 1) -> Reply:
        if not self.current_user:
            return {"error": "User not authenticated. Please log in to create a ticket."}
        if priority < 1 or priority > 5:
            return {"error": "Invalid priority. Priority must be between 1 and 5."}
        ticket = {
            "id": self.ticket_counter,
            "title": title,
            "description": description,
            "status": "Open",
            "priority": priority,
            "created_by": self.current_user,
        }
        self.ticket_queue.append(ticket)
        self.ticket_counter += 1
        return ticket

    def get_ticket(self, ticket_id: int) -> Reply:
        return self._find(ticket_id) or _miss(ticket_id)

    def close_ticket(self, ticket_id: int) -> Reply:
        return self._end(ticket_id, "closed", {})

    def resolve_ticket(self, ticket_id: int, resolution: str) -> Reply:
        return self._end(ticket_id, "resolved", {"resolution": resolution})

    def _end(self, ticket_id: int, how: str, more: Reply) -> Reply:
        if not (ticket := self._find(ticket_id)):
            return _miss(ticket_id)
        if ticket["status"] == how.title():
            return {"error": f"Ticket with ID {ticket_id} is already {how}."}
        ticket.update(status=how.title(), **more)
        return {"status": f"Ticket {ticket_id} has been {how} successfully."}

    def edit_ticket(self, ticket_id: int, updates: dict[str, Any]) -> Reply:
        if not (ticket := self._find(ticket_id)):
            return _miss(ticket_id)
        if others := {*updates} - FIELDS:
            return {"error": f"Invalid fields for update: {', '.join(sorted(others))}"}
        ticket.update({name: value for name, value in updates.items() if value is not None})
        return {"status": f"Ticket {ticket_id} has been updated successfully."}

    def ticket_login(self, username: str, password: str) -> Reply:
        is_right = bool(username and password)
        self.current_user = username if is_right else self.current_user
        return {"success": is_right}

    def ticket_get_login_status(self) -> Reply:
        return {"login_status": bool(self.current_user)}

    def logout(self) -> Reply:
        was_in = bool(self.current_user)
        self.current_user = None if was_in else self.current_user
        return {"success": was_in}

    def get_user_tickets(self, status: str | None = None) -> list[Reply]:
        if not self.current_user:
            return [{"error": "User not authenticated. Please log in to view tickets."}]
        return [
            ticket
            for ticket in self.ticket_queue
            if ticket["created_by"] == self.current_user
            and (not status or ticket["status"].lower() == status.lower())
        ]

    def _find(self, ticket_id: int) -> Reply | None:
        return next((each for each in self.ticket_queue if each["id"] == ticket_id), None)


def _miss(ticket_id: Any) -> Reply:
    return {"error": f"Ticket with ID {ticket_id} not found."}
