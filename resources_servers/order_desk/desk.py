"""The orders of one customer, and what both sides may do with them.

Each method raises ValueError with a sentence for the caller if it may not be done.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Status = Literal["placed", "shipped", "delivered", "cancelled"]
Refund = Literal["card", "voucher"]


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: str
    email: str
    items: list[str] = Field(min_length=1)
    status: Status
    code: str = Field(description="What `send_code` sends to the customer's phone.")
    returned: dict[str, Refund] = {}


class Desk:
    """The state of one session."""

    def __init__(self, orders: list[Order]) -> None:
        self.orders = {order.id: order.model_copy(deep=True) for order in orders}
        self.code = ""
        """The last code on the customer's phone."""
        self.asked: tuple[str, str, Refund] | None = None
        """The return that waits for the customer: order, item, refund."""
        self.has_found = False
        """Whether the clerk has looked the customer's orders up."""

    def find(self, email: str) -> list[Order]:
        wanted = email.strip().casefold()
        found = [order for order in self.orders.values() if order.email.casefold() == wanted]
        self.has_found = self.has_found or bool(found)
        return found

    def send_code(self, order_id: str) -> None:
        self.code = self._order(order_id).code

    def cancel(self, order_id: str, code: str) -> None:
        order = self._order(order_id)
        if order.status != "placed":
            raise ValueError(f"order {order_id} is {order.status}: it cannot be cancelled")
        if not self.code or code.strip() != order.code or self.code != order.code:
            raise ValueError("the code is wrong: send one, and ask the customer to read it")
        order.status = "cancelled"

    def ask_return(self, order_id: str, item: str, refund: Refund) -> None:
        order = self._order(order_id)
        if order.status != "delivered":
            raise ValueError(f"order {order_id} is {order.status}: nothing of it can be returned")
        if item not in order.items:
            raise ValueError(f"order {order_id} has no '{item}'; it has: {', '.join(order.items)}")
        if item in order.returned:
            raise ValueError(f"'{item}' of order {order_id} is returned already")
        self.asked = order_id, item, refund

    def approve(self) -> None:
        if self.asked is None:
            raise ValueError("there is nothing to approve")
        order_id, item, refund = self.asked
        self.orders[order_id].returned[item] = refund
        self.asked = None

    def read_code(self) -> str:
        if not self.code:
            raise ValueError("there is no message with a code")
        return self.code

    def count_differences(self, expected: dict[str, "OrderOutcome"]) -> int:
        """Orders that are not as expected; those that are not named must be as they were."""
        return sum(
            (order.status, order.returned) != (expected[name].status, expected[name].returned)
            for name, order in self.orders.items()
        )

    def _order(self, order_id: str) -> Order:
        if (order := self.orders.get(order_id)) is None:
            raise ValueError(f"there is no order '{order_id}'")
        return order


class OrderOutcome(BaseModel):
    """How an order must be in the end."""

    model_config = ConfigDict(extra="forbid")

    status: Status
    returned: dict[str, Refund] = {}
