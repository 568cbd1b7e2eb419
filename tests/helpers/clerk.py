"""A clerk for the order desk: a policy of rules, which needs no model.

It reads the conversation as a model would. With a `seed` in its request it is careless now and
then, the same way each time.
"""

import json
import random
from typing import Any

from rollout_kit.api.testing import call_response
from rollout_kit.responses import assistant_text, content_texts, pair_calls

CARELESS = 0.15

Row = dict[str, Any]


def serve(params: Row) -> Any:
    """The clerk's next turn: a text, or a response with a call."""
    items = params["input"]
    told = [
        text
        for item in items
        if item.get("role") == "user"
        for text in content_texts(item["content"])
    ]
    heard, done = " ".join(told), {call["name"]: text for call, text in pair_calls(items)}
    email = next((word.rstrip(".") for word in heard.split() if "@" in word), "")
    if not email:
        return "Good day! Which email address did you order with?"
    if "find_orders" not in done:
        return _call("find_orders", email=email)
    orders = json.loads(done["find_orders"])
    named = [(order, item) for order in orders for item in order["items"] if item in heard]
    if not named:
        return "Thank you. Which item is it about?"
    order, item = named[0]
    begins = told[0] + (" return" if "Then I want to return" in heard else "")
    wants_return = any(word in begins for word in ("return", "send back", "go back"))
    if order["status"] == "shipped":
        return "I am sorry: the order is on its way, so it cannot be cancelled or returned."
    if wants_return:
        return _serve_return(order, item, heard, done, params)
    if order["status"] == "delivered":
        return "The order was delivered, so it is too late for that."
    return _serve_cancel(order, heard, done)


def _serve_cancel(order: Row, heard: str, done: dict[str, str]) -> Any:
    if "send_code" not in done:
        return _call("send_code", order_id=order["id"])
    if "The code is " not in heard:
        return "I have sent a code to your phone. What does it say?"
    if "cancel_order" not in done:
        code = heard.partition("The code is ")[2][:4]
        return _call("cancel_order", order_id=order["id"], code=code)
    return "The order will not be sent. Is there anything else?"


def _serve_return(order: Row, item: str, heard: str, done: dict[str, str], params: Row) -> Any:
    is_careless = _chance(params, order["id"]) < CARELESS
    if "return_item" not in done:
        if not (is_careless or "card" in heard or "voucher" in heard):
            return "Shall the money go to your card, or do you want a voucher?"
        refund = "card" if "card" in heard else "voucher"
        return _call("return_item", order_id=order["id"], item=item, refund=refund)
    if "approved" not in heard:
        return "Please approve the return in your app."
    return "The return is booked. Is there anything else?"


def serve_at_once(params: Row) -> Any:
    """Another policy: it asks for everything in each of its turns, and does nothing."""
    number = sum(bool(assistant_text([item])) for item in params["input"])
    asked = "Your email address, which item, card or voucher, and the code? Please approve it."
    return asked if number < 2 else "Is there anything else?"


def _chance(params: Row, name: str) -> float:
    seed = params.get("seed")
    return 1.0 if seed is None else random.Random(f"{seed} {name}").random()


def _call(name: str, **arguments: Any) -> Row:
    return call_response((name, json.dumps(arguments)))
