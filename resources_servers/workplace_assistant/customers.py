"""Customers of the sales department."""

from typing import Any

from rollout_kit import tool

from .tables import Table, Tables, contains, make_page, quote_all

STATUSES = ("Qualified", "Won", "Lost", "Lead", "Proposal")
PRODUCTS = ("Software", "Hardware", "Services", "Consulting", "Training")
FIELDS = (
    "customer_name",
    "assigned_to_email",
    "customer_email",
    "customer_phone",
    "last_contact_date",
    "product_interest",
    "status",
    "notes",
    "follow_up_by",
)


class Customers:
    """Customers; `table` is what a verdict compares."""

    def __init__(self, tables: Tables) -> None:
        self.table = Table("customer_relationship_manager_data", tables)

    @tool
    def customer_relationship_manager_search_customers(
        self,
        customer_name: str = "",
        customer_email: str = "",
        product_interest: str = "",
        status: str = "",
        assigned_to_email: str = "",
        last_contact_date_min: str = "",
        last_contact_date_max: str = "",
        follow_up_by_min: str = "",
        follow_up_by_max: str = "",
        page: int = 1,
        page_size: int = 5,
    ) -> Any:
        """Search customers; what is given must be part of the field. Dates are inclusive
        (YYYY-MM-DD)."""
        parts = {
            "customer_name": customer_name,
            "customer_email": customer_email,
            "product_interest": product_interest,
            "status": status,
            "assigned_to_email": assigned_to_email,
        }
        spans = {
            "last_contact_date": (last_contact_date_min, last_contact_date_max),
            "follow_up_by": (follow_up_by_min, follow_up_by_max),
        }
        if not any(parts.values()) and not any(map(any, spans.values())):
            return "No search parameters provided. Please provide at least one parameter."
        found = self.table.where(
            lambda row: (
                all(contains(row, field, part) for field, part in parts.items())
                and all(_is_within(row[field], *span) for field, span in spans.items())
            )
        )
        return make_page("customers", found, page, page_size)

    @tool
    def customer_relationship_manager_update_customer(
        self, customer_id: str, field: str, new_value: str
    ) -> str:
        """Change one field of a customer: 'customer_name', 'assigned_to_email', 'customer_email',
        'customer_phone', 'last_contact_date', 'product_interest', 'status', 'notes' or
        'follow_up_by'."""
        if not customer_id or not field or not new_value:
            return "Customer ID, field, or new value not provided."
        if field == "status" and new_value not in STATUSES:
            return f"Status not valid. Please choose from: {quote_all(STATUSES)}"
        if field == "product_interest" and new_value not in PRODUCTS:
            return f"Product interest not valid. Please choose from: {quote_all(PRODUCTS)}"
        if (row := self.table.find(customer_id)) is None:
            return "Customer not found."
        if field not in row:
            return f"Field not valid. Please choose from: {quote_all(FIELDS)}"
        value = new_value.lower() if field.endswith("_email") else new_value
        self.table.change(customer_id, field, value)
        return "Customer updated successfully."

    @tool
    def customer_relationship_manager_add_customer(
        self,
        customer_name: str,
        assigned_to_email: str,
        status: str,
        customer_email: str = "",
        customer_phone: str = "",
        last_contact_date: str = "",
        product_interest: str = "",
        notes: str = "",
        follow_up_by: str = "",
    ) -> str:
        """Add a customer of the status 'Qualified', 'Won', 'Lost', 'Lead' or 'Proposal', who is
        interested in 'Software', 'Hardware', 'Services', 'Consulting' or 'Training'; returns its
        ID."""
        if not customer_name or not assigned_to_email or not status:
            return "Please provide all required fields: customer_name, assigned_to_email, status."
        id = str(self.table.next_id()).zfill(8)
        given = {
            "customer_id": id,
            "assigned_to_email": assigned_to_email.lower(),
            "customer_name": customer_name,
            "customer_email": customer_email.lower(),
            "customer_phone": customer_phone,
            "last_contact_date": last_contact_date,
            "product_interest": product_interest,
            "status": status,
            "follow_up_by": follow_up_by,
            "notes": notes,
        }
        self.table.add(list(given.values()))
        return id

    @tool
    def customer_relationship_manager_delete_customer(self, customer_id: str) -> str:
        """Delete a customer by its ID."""
        return self.table.delete(customer_id, "Customer")


def _is_within(date: str, first: str, last: str) -> bool:
    """Whether the date is in the span; a customer without a date is in no span."""
    if first or last:
        return bool(date) and first <= date <= (last or "9999")
    return True
