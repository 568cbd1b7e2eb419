"""An order desk: a clerk, which is the policy, and a customer, who has tools too."""

from typing import Any, ClassVar

from pydantic import ConfigDict, Field, model_validator

from rollout_kit import (
    JsonObject,
    ResourcesServerConfig,
    Reverify,
    TwoSidedServer,
    UserRequest,
    VerifyResponse,
    output_text,
    tool,
    user_tool,
)

from .desk import Desk, Order, OrderOutcome, Refund


class OrderDeskConfig(ResourcesServerConfig):
    model_config = ConfigDict(extra="forbid")


class OrderRequest(UserRequest):
    """A row: the orders, and how they must be in the end."""

    orders: list[Order] = Field(min_length=1)
    expected: dict[str, OrderOutcome]

    @model_validator(mode="after")
    def _names_each_order(self) -> "OrderRequest":
        names = [order.id for order in self.orders]
        if len({*names}) < len(names):
            raise ValueError("orders: an id occurs twice")
        if {*names} != self.expected.keys():
            raise ValueError("expected: it must name each order, and no other")
        return self


class OrderDesk(TwoSidedServer):
    """Reward 1.0 if all orders are as expected in the end, and the clerk has looked them up and
    answered the customer; else 0.0."""

    Config = OrderDeskConfig
    reverify: ClassVar[Reverify | None] = "replay"

    def new_world(self, row: Any) -> Desk:
        return Desk(row.orders)

    @tool
    async def find_orders(self, email: str) -> list[JsonObject]:
        """The orders of a customer: id, items, status, and what was returned."""
        shown = {"id", "items", "status", "returned"}
        return [order.model_dump(include=shown) for order in self.world.find(email)]

    @tool
    async def send_code(self, order_id: str) -> str:
        """Send a code to the customer's phone. It is needed to cancel the order."""
        self.world.send_code(order_id)
        return "Sent. Ask the customer to read the code."

    @tool
    async def cancel_order(self, order_id: str, code: str) -> str:
        """Cancel an order that is placed, with the code that the customer read."""
        self.world.cancel(order_id, code)
        return f"Order {order_id} is cancelled."

    @tool
    async def return_item(self, order_id: str, item: str, refund: Refund) -> str:
        """Ask for the return of an item of a delivered order. The customer must approve it."""
        self.world.ask_return(order_id, item, refund)
        return "Waiting. Ask the customer to approve the return in the app."

    @user_tool
    async def read_code(self) -> str:
        """Read the last code on your phone."""
        return self.world.read_code()

    @user_tool
    async def approve_return(self) -> str:
        """Approve the return that waits in your app."""
        self.world.approve()
        return "The return is approved."

    async def verify(self, body: OrderRequest) -> VerifyResponse:
        wrong = self.world.count_differences(body.expected)
        has_answered = self.world.has_found and bool(output_text(body.response).strip())
        return body.scored(
            reward=float(has_answered and not wrong),
            num_wrong_orders=wrong,
            has_answered=has_answered,
        )
