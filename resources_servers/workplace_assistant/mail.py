"""E-mail and the company's directory."""

from datetime import date
from typing import Any

from rollout_kit import tool

from .tables import ADDRESSES, Row, Table, Tables, make_page

NOW = "2023-11-30 23:59:00"
"""Current time in the rows' system prompt, and the time of sent mails."""


class Mail:
    """Received and sent mails; a verdict compares `table`."""

    def __init__(self, tables: Tables) -> None:
        self.table = Table("emails", tables)
        self.addresses = [row["email_address"] for row in tables[ADDRESSES]]

    @tool
    def company_directory_find_email_address(self, name: str = "") -> Any:
        """Find all e-mail addresses that contain the given name (in any case)."""
        if not name:
            return "Name not provided."
        return [address for address in self.addresses if name.lower() in address.lower()]

    @tool
    def email_get_email_information_by_id(self, email_id: str, field: str) -> Any:
        """One field of an e-mail: 'email_id', 'inbox/outbox', 'sender/recipient', 'subject',
        'sent_datetime' or 'body'."""
        if not email_id:
            return "Email ID not provided."
        if not field:
            return "Field not provided."
        if (row := self.table.find(email_id)) is None:
            return "Email not found."
        if field not in row:
            return f"Field '{field}' not found. Available fields: {', '.join(row)}"
        return {field: row[field]}

    @tool
    def email_search_emails(
        self,
        query: str = "",
        date_min: str = "",
        date_max: str = "",
        page: int = 1,
        page_size: int = 5,
    ) -> Any:
        """Search e-mails, the newest first: all words of the query stand in subject, body or
        sender/recipient. Dates are inclusive (YYYY-MM-DD)."""
        words = set(query.lower().split())
        try:
            first, last = _day(date_min, "0001-01-01"), _day(date_max, "9999-12-31")
        except ValueError as error:
            return f"Error searching emails: {error}"
        found = self.table.where(
            lambda row: (
                first <= row["sent_datetime"][:10] <= last
                and all(word in _text(row) for word in words)
            )
        )
        found.sort(key=lambda row: row["sent_datetime"], reverse=True)
        return make_page("emails", found, page, page_size)

    @tool
    def email_send_email(self, recipient: str, subject: str, body: str) -> str:
        """Send an e-mail."""
        if not recipient or not subject or not body:
            return "Recipient, subject, or body not provided."
        if "@" not in recipient or "." not in recipient:
            return "Invalid recipient email address."
        id = str(self.table.next_id())
        self.table.add([id, "outbox", recipient.lower(), subject, NOW, body])
        return "Email sent successfully."

    @tool
    def email_delete_email(self, email_id: str) -> str:
        """Delete an e-mail by its ID."""
        return self.table.delete(email_id, "Email")

    @tool
    def email_forward_email(self, email_id: str, recipient: str) -> str:
        """Forward an e-mail to a recipient."""
        if not email_id or not recipient:
            return "Email ID or recipient not provided."
        if "@" not in recipient or "." not in recipient:
            return "Invalid recipient email address."
        if (row := self.table.find(email_id)) is None:
            return "Email not found."
        said = self.email_send_email(recipient, f"FW: {row['subject']}", row["body"])
        return "Email forwarded successfully." if "sent" in said else said

    @tool
    def email_reply_email(self, email_id: str, body: str) -> str:
        """Reply to an e-mail by its ID."""
        if not email_id or not body:
            return "Email ID or body not provided."
        if (row := self.table.find(email_id)) is None:
            return "Email not found."
        said = self.email_send_email(row["sender/recipient"], f"RE: {row['subject']}", body)
        return "Email replied successfully." if "sent" in said else said


def _text(row: Row) -> str:
    return f"{row['subject']} {row['body']} {row['sender/recipient']}".lower()


def _day(given: str, otherwise: str) -> str:
    return date.fromisoformat(given[:10]).isoformat() if given else otherwise
