"""The desk of a shop: products, users and orders."""

from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field

from rollout_kit import JsonObject, ToolError, tool

from .desk import Desk, text

REASONS = ("no longer needed", "ordered by mistake")

OrderId = text(
    "The order id, such as '#W0000000'. Be careful there is a '#' symbol at the beginning of the"
    " order id."
)
Customer = text("The user id, such as 'sara_doe_496'.")
Method = text(
    "The payment method id to pay or receive refund for the item price difference, such as"
    " 'gift_card_0000000' or 'credit_card_0000000'. These can be looked up from the user or order"
    " details."
)
Items = Annotated[
    list[str],
    Field(
        description="The item ids of the order, each such as '1008292230'. There could be duplicate"
        " items in the list."
    ),
]
NewItems = Annotated[
    list[str],
    Field(
        description="The item ids to be exchanged for, each such as '1008292230'. There could be"
        " duplicate items in the list. Each new item id should match the item id in the same"
        " position and be of the same product."
    ),
]
Line1 = text("The first line of the address, such as '123 Main St'.")
Line2 = text("The second line of the address, such as 'Apt 1' or ''.")
City = text("The city, such as 'San Francisco'.")
State = text("The state, such as 'CA'.")
Country = text("The country, such as 'USA'.")
Zip = text("The zip code, such as '12345'.")


class RetailDesk(Desk):
    """Tools of the agent of a shop."""

    @tool
    async def cancel_pending_order(
        self,
        order_id: OrderId,
        reason: text(
            "The reason for cancellation, which should be either 'no longer needed' or 'ordered by"
            " mistake'."
        ),
    ) -> JsonObject:
        """Cancel a pending order. If the order is already processed or delivered,
        it cannot be cancelled. The agent needs to explain the cancellation detail
        and ask for explicit user confirmation (yes/no) to proceed. If the user confirms,
        the order status will be changed to 'cancelled' and the payment will be refunded.
        The refund will be added to the user's gift card balance immediately if the payment
        was made using a gift card, otherwise the refund would take 5-7 business days to process.
        The function returns the order details after the cancellation."""
        order = self._order(order_id, ("pending",), "Non-pending order cannot be cancelled")
        if reason not in REASONS:
            raise ToolError("Invalid reason")
        refunds = []
        for paid in order["payment_history"]:
            method = self._method(order["user_id"], paid["payment_method_id"])
            refunds.append({**paid, "transaction_type": "refund"})
            _add(method, paid["amount"])
        order.update(status="cancelled", cancel_reason=reason)
        order["payment_history"] += refunds
        return order

    @tool
    async def exchange_delivered_order_items(
        self, order_id: OrderId, item_ids: Items, new_item_ids: NewItems, payment_method_id: Method
    ) -> JsonObject:
        """Exchange items in a delivered order to new items of the same product type.
        For a delivered order, return or exchange can be only done once by the agent.
        The agent needs to explain the exchange detail and ask for explicit user confirmation
        (yes/no) to proceed."""
        order = self._order(order_id, ("delivered",), "Non-delivered order cannot be exchanged")
        _check_items(order, item_ids, "Number of {} not found.")
        pairs = _pair(item_ids, new_item_ids)
        difference = round(sum(new["price"] - old for old, new in self._prices(order, pairs)), 2)
        method = self._method(order["user_id"], payment_method_id)
        if _lacks(method, difference):
            raise ToolError("Insufficient gift card balance to pay for the price difference")
        order.update(
            status="exchange requested",
            exchange_items=sorted(item_ids),
            exchange_new_items=sorted(new_item_ids),
            exchange_payment_method_id=payment_method_id,
            exchange_price_difference=difference,
        )
        return order

    @tool
    async def find_user_id_by_name_zip(
        self,
        first_name: text("The first name of the customer, such as 'John'."),
        last_name: text("The last name of the customer, such as 'Doe'."),
        zip: text("The zip code of the customer, such as '12345'."),
    ) -> str:
        """Find user id by first name, last name, and zip code. If the user is not found, the
        function will return an error message. By default, find user id by email, and only call
        this function if the user is not found by email or cannot remember email."""
        wanted = (first_name.lower(), last_name.lower(), zip)
        for user_id, user in self.db.users.read():
            name = user["name"]
            own = (name["first_name"].lower(), name["last_name"].lower(), user["address"]["zip"])
            if own == wanted:
                return user_id
        raise ToolError("User not found")

    @tool
    async def find_user_id_by_email(
        self, email: text("The email of the user, such as 'something@example.com'.")
    ) -> str:
        """Find user id by email. If the user is not found, the function will return an error
        message."""
        for user_id, user in self.db.users.read():
            if user["email"].lower() == email.lower():
                return user_id
        raise ToolError("User not found")

    @tool
    async def get_order_details(self, order_id: OrderId) -> JsonObject:
        """Get the status and details of an order."""
        return self._order(order_id)

    @tool
    async def get_product_details(
        self,
        product_id: text(
            "The product id, such as '6086499569'. Be careful the product id is different from the"
            " item id."
        ),
    ) -> JsonObject:
        """Get the inventory details of a product."""
        return self._product(product_id)

    @tool
    async def get_user_details(self, user_id: Customer) -> JsonObject:
        """Get the details of a user, including their orders."""
        return self._user(user_id)

    @tool
    async def list_all_product_types(self) -> JsonObject:
        """List the name and product id of all product types.
        Each product type has a variety of different items with unique item ids and options.
        There are only 50 product types in the store."""
        return dict(sorted((each["name"], key) for key, each in self.db.products.read()))

    @tool
    async def modify_pending_order_address(
        self,
        order_id: OrderId,
        address1: Line1,
        address2: Line2,
        city: City,
        state: State,
        country: Country,
        zip: Zip,
    ) -> JsonObject:
        """Modify the shipping address of a pending order. The agent needs to explain the
        modification detail and ask for explicit user confirmation (yes/no) to proceed."""
        order = self._pending(order_id)
        order["address"] = _address(address1, address2, city, state, country, zip)
        return order

    @tool
    async def modify_pending_order_items(
        self, order_id: OrderId, item_ids: Items, new_item_ids: NewItems, payment_method_id: Method
    ) -> JsonObject:
        """Modify items in a pending order to new items of the same product type. For a pending
        order, this function can only be called once. The agent needs to explain the exchange detail
        and ask for explicit user confirmation (yes/no) to proceed."""
        order = self._order(order_id, ("pending",), "Non-pending order cannot be modified")
        _check_items(order, item_ids, "{} not found")
        pairs = _pair(item_ids, new_item_ids)
        found = self._prices(order, pairs, must_differ=True)
        difference = sum((new["price"] - old for old, new in found), 0.0)
        method = self._method(order["user_id"], payment_method_id)
        if _lacks(method, difference):
            raise ToolError("Insufficient gift card balance to pay for the new item")
        order["payment_history"].append(
            {
                "transaction_type": "payment" if difference > 0 else "refund",
                "amount": abs(difference),
                "payment_method_id": payment_method_id,
            }
        )
        _add(method, -difference)
        for old_id, new_id in pairs:
            item = _find_item(order, old_id)
            # each item gets the price and the options of the last new one, as in τ²-bench
            last = found[-1][1]
            item.update(item_id=new_id, price=last["price"], options=dict(last["options"]))
        order["status"] = "pending (item modified)"
        return order

    @tool
    async def modify_pending_order_payment(
        self, order_id: OrderId, payment_method_id: Method
    ) -> JsonObject:
        """Modify the payment method of a pending order. The agent needs to explain the modification
        detail and ask for explicit user confirmation (yes/no) to proceed."""
        order = self._pending(order_id)
        method, history = (
            self._method(order["user_id"], payment_method_id),
            order["payment_history"],
        )
        if len(history) != 1 or history[0]["transaction_type"] != "payment":
            raise ToolError("There should be exactly one payment for a pending order")
        amount, before = history[0]["amount"], history[0]["payment_method_id"]
        if before == payment_method_id:
            raise ToolError("The new payment method should be different from the current one")
        if _lacks(method, amount):
            raise ToolError("Insufficient gift card balance to pay for the order")
        for kind, own in (("payment", payment_method_id), ("refund", before)):
            history.append({"transaction_type": kind, "amount": amount, "payment_method_id": own})
        _add(method, -amount)
        _add(self._method(order["user_id"], before), amount)
        return order

    @tool
    async def modify_user_address(
        self,
        user_id: Customer,
        address1: Line1,
        address2: Line2,
        city: City,
        state: State,
        country: Country,
        zip: Zip,
    ) -> JsonObject:
        """Modify the default address of a user. The agent needs to explain the modification detail
        and ask for explicit user confirmation (yes/no) to proceed."""
        user = self._user(user_id)
        user["address"] = _address(address1, address2, city, state, country, zip)
        return user

    @tool
    async def return_delivered_order_items(
        self, order_id: OrderId, item_ids: Items, payment_method_id: Method
    ) -> JsonObject:
        """Return some items of a delivered order.
        The order status will be changed to 'return requested'.
        The agent needs to explain the return detail and ask for explicit user confirmation (yes/no)
        to proceed. The user will receive follow-up email for how and where to return the item."""
        order = self._order(order_id, ("delivered",), "Non-delivered order cannot be returned")
        method = self._method(order["user_id"], payment_method_id)
        first = order["payment_history"][0]["payment_method_id"]
        if method["source"] != "gift_card" and payment_method_id != first:
            raise ToolError("Payment method should be the original payment method")
        _check_items(order, item_ids, "Some item not found")
        order.update(
            status="return requested",
            return_items=sorted(item_ids),
            return_payment_method_id=payment_method_id,
        )
        return order

    def _order(self, order_id: str, statuses: Sequence[str] = (), refusal: str = "") -> JsonObject:
        if order_id not in self.db.orders:
            raise ToolError("Order not found")
        order = self.db.orders[order_id]
        if statuses and order["status"] not in statuses:
            raise ToolError(refusal)
        return order

    def _pending(self, order_id: str) -> JsonObject:
        order = self._order(order_id)
        if "pending" not in order["status"]:
            raise ToolError("Non-pending order cannot be modified")
        return order

    def _user(self, user_id: str) -> JsonObject:
        if user_id not in self.db.users:
            raise ToolError("User not found")
        return self.db.users[user_id]

    def _product(self, product_id: str) -> JsonObject:
        if product_id not in self.db.products:
            raise ToolError("Product not found")
        return self.db.products[product_id]

    def _method(self, user_id: str, method_id: str) -> JsonObject:
        methods = self._user(user_id)["payment_methods"]
        if method_id not in methods:
            raise ToolError("Payment method not found")
        return methods[method_id]

    def _prices(
        self, order: JsonObject, pairs: Iterable[tuple[str, str]], *, must_differ: bool = False
    ) -> list[tuple[float, JsonObject]]:
        """The old price and the new variant of each pair of items."""
        found = []
        for old_id, new_id in pairs:
            if must_differ and old_id == new_id:
                raise ToolError("The new item id should be different from the old item id")
            item = _find_item(order, old_id)
            variants = self._product(item["product_id"])["variants"]
            if new_id not in variants:
                raise ToolError("Variant not found")
            if not variants[new_id]["available"]:
                raise ToolError(f"New item {new_id} not found or available")
            found.append((item["price"], variants[new_id]))
        return found


def _find_item(order: JsonObject, item_id: str) -> JsonObject:
    for item in order["items"]:
        if item["item_id"] == item_id:
            return item
    raise ToolError(f"Item {item_id} not found")


def _check_items(order: JsonObject, item_ids: list[str], refusal: str) -> None:
    own = [item["item_id"] for item in order["items"]]
    for item_id in item_ids:
        if item_ids.count(item_id) > own.count(item_id):
            raise ToolError(refusal.format(item_id))


def _pair(item_ids: list[str], new_item_ids: list[str]) -> list[tuple[str, str]]:
    if len(item_ids) != len(new_item_ids):
        raise ToolError("The number of items to be exchanged should match.")
    return list(zip(item_ids, new_item_ids, strict=True))


def _lacks(method: JsonObject, amount: float) -> bool:
    return method["source"] == "gift_card" and method["balance"] < amount


def _add(method: JsonObject, amount: float) -> None:
    """Change the balance of a gift card; other methods have none."""
    if method["source"] == "gift_card":
        method["balance"] = round(method["balance"] + amount, 2)


def _address(
    address1: str, address2: str, city: str, state: str, country: str, zip: str
) -> JsonObject:
    return {
        **{"address1": address1, "address2": address2, "city": city},
        **{"country": country, "state": state, "zip": zip},
    }
