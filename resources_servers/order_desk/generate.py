"""Generate tasks: `python generate.py FOLDER --seed 1 --tasks 200`.

It writes `tasks.jsonl`, and `example.jsonl` with the first tasks of each kind, a right and a wrong
conversation. Customers, orders and wishes are random choices, reproducible for a seed.
"""

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]

KINDS = ("cancel", "return", "refuse", "switch")

NUM_EXAMPLES = 8

NAMES = ["Ada", "Boris", "Chiara", "Dalia", "Emil", "Farah", "Goran", "Hana", "Ivo", "Jun", "Kofi"]
NAMES += ["Lena", "Mateo", "Nadia", "Omar", "Priya", "Quinn", "Rosa", "Sami", "Tove"]
THINGS = ["kettle", "lamp", "backpack", "keyboard", "blanket", "teapot", "tent", "radio", "scarf"]
COLOURS = ["blue", "red", "green", "grey", "yellow", "white", "black"]
PERSONAS = [
    "You are polite and brief.",
    "You are in a hurry and write in half sentences.",
    "You are friendly, and unsure how online shops work.",
    "You are annoyed, but you answer what you are asked.",
]

POLICY = """\
You are the clerk of an order desk. Your rules:
- You find orders by the email address of the customer. Ask for it.
- If it is not clear which item is meant, ask which item.
- An order can be cancelled only as long as its status is placed. It needs the code that send_code \
sends to the phone: ask the customer to read it.
- An item of a delivered order can be returned. Ask whether the refund goes to the card or is a \
voucher. Then ask the customer to approve the return in the app.
- A shipped order can neither be cancelled nor returned. Say so, and change nothing.
- If a delivered order was to be cancelled, say that it is too late for that.
- When all is done, say what you have done, and ask whether there is anything else.\
"""


def make_row(chance: random.Random, number: int) -> Row:
    """One task."""
    kind = KINDS[number % len(KINDS)]
    name = chance.choice(NAMES)
    email = f"{name.lower()}{chance.randrange(10, 100)}@example.com"
    colours, things = chance.sample(COLOURS, 4), chance.sample(THINGS, 4)
    items = [f"{colour} {thing}" for colour, thing in zip(colours, things, strict=True)]
    status = {"cancel": "placed", "return": "delivered", "refuse": "shipped"}
    first = f"A{chance.randrange(100, 1000)}"
    second = f"B{chance.randrange(100, 1000)}"
    other = chance.choice(["placed", "shipped", "delivered"])
    orders = [
        _order(chance, first, email, items[:2], status.get(kind, "delivered")),
        _order(chance, second, email, items[2:], other),
    ]
    refund = chance.choice(["card", "voucher"])
    expected = {order["id"]: {"status": order["status"], "returned": {}} for order in orders}
    if kind == "cancel":
        expected[first]["status"] = "cancelled"
    elif kind in ("return", "switch"):
        expected[first]["returned"] = {items[0]: refund}
    chance.shuffle(orders)
    return {
        "responses_create_params": {"input": [{"role": "system", "content": POLICY}]},
        "user": _user(kind, chance.choice(PERSONAS), email, items[0], refund),
        "orders": orders,
        "expected": expected,
    }


def _order(chance: random.Random, id: str, email: str, items: list[str], status: str) -> Row:
    code = f"{chance.randrange(10_000):04}"
    return {"id": id, "email": email, "items": items, "status": status, "code": code}


def _user(kind: str, persona: str, email: str, item: str, refund: str) -> Row:
    goals = {
        "cancel": f"Have the order with the {item} cancelled.",
        "return": f"Return the {item} and get the refund as: {refund}.",
        "refuse": f"Have the order with the {item} cancelled. If that cannot be, accept it.",
        "switch": f"Have the order with the {item} cancelled. If it is too late, return the {item},"
        f" with the refund as: {refund}.",
    }
    openings = {
        "cancel": [
            f"Hello, please cancel my order with the {item}.",
            "Hi! I want to cancel something that I ordered.",
            f"I do not need the {item} any more. Can you stop that order?",
        ],
        "return": [
            f"Hello, I want to send back the {item}.",
            "Hi! Something that I ordered is to go back.",
            f"The {item} is not what I wanted. I want to return it.",
        ],
    }
    return {
        "goal": goals[kind],
        "persona": persona,
        "openings": openings["return" if kind == "return" else "cancel"],
        "knows": _facts(kind, email, item, refund),
        "stops": ["anything else", "cannot be cancelled"],
        "patience": [2, 4],
        "volunteers": 0.25,
    }


def _facts(kind: str, email: str, item: str, refund: str) -> list[Row]:
    """What the customer knows, and says or does when it is asked."""
    knows = [
        {"about": "email", "says": f"My address is {email}.", "asked": ["email", "e-mail"]},
        {
            "about": "item",
            "says": f"It is about the {item}.",
            "asked": ["which item", "which order", "which one"],
        },
    ]
    if kind in ("return", "switch"):
        to = "To my card, please." if refund == "card" else "As a voucher, please."
        knows.append({"about": "refund", "says": to, "asked": ["card", "voucher"]})
        knows.append(
            {
                "about": "approval",
                "says": "I have approved it.",
                "asked": ["approve"],
                "does": {"tool": "approve_return"},
            }
        )
    if kind == "switch":
        knows.append(
            {
                "about": "second wish",
                "says": f"Then I want to return the {item}.",
                "asked": ["too late"],
            }
        )
    if kind == "cancel":
        knows.append(
            {
                "about": "code",
                "says": "The code is {output}.",
                "asked": ["code"],
                "does": {"tool": "read_code"},
            }
        )
    return knows


def _text(role: str, text: str, calls: list[Row] | None = None) -> Row:
    part = {"type": "output_text" if role == "assistant" else "input_text", "text": text}
    if role == "assistant":
        part["annotations"] = []
    item: Row = {"type": "message", "role": role, "content": [part]}
    if role == "assistant":
        item |= {"id": "msg_1", "status": "completed"}
    return {**item, "user_calls": calls} if calls else item


def _called(name: str, arguments: Row, output: str) -> list[Row]:
    call = {"type": "function_call", "id": "fc_1", "call_id": name, "name": name}
    call |= {"arguments": json.dumps(arguments), "status": "completed"}
    return [call, {"type": "function_call_output", "call_id": name, "output": output}]


def _done(tool: str, output: str) -> list[Row]:
    return [{"name": tool, "arguments": "{}", "output": output}]


def play(row: Row) -> tuple[list[Row], list[Row]]:
    """A right conversation, and a wrong one, in which the clerk stops too early."""
    orders = {order["id"]: order for order in row["orders"]}
    [id] = [name for name in orders if name.startswith("A")]
    opening = _text("user", row["user"]["openings"][0])
    expected, item = row["expected"][id], orders[id]["items"][0]
    email = orders[id]["email"]
    found = [
        _text("user", f"My address is {email}."),
        *_called("find_orders", {"email": email}, ", ".join(orders)),
    ]
    end = _text("assistant", "That is done. Is there anything else?")
    if expected["status"] == "cancelled":
        code = orders[id]["code"]
        sent = _called("send_code", {"order_id": id}, "Sent. Ask the customer to read the code.")
        asked = _text("assistant", "Which code did you get?")
        told = _text("user", f"The code is {code}.", _done("read_code", code))
        given = {"order_id": id, "code": code}
        cancelled = _called("cancel_order", given, f"Order {id} is cancelled.")
        return [opening, *found, *sent, asked, told, *cancelled, end], [opening, *found, *sent, end]
    if expected["returned"]:
        given = {"order_id": id, "item": item, "refund": expected["returned"][item]}
        waits = "Waiting. Ask the customer to approve the return in the app."
        begun = _called("return_item", given, waits)
        asked = _text("assistant", "Please approve it.")
        told = "The return is approved."
        approved = _text("user", "I have approved it.", _done("approve_return", told))
        return [opening, *found, *begun, asked, approved, end], [opening, *found, *begun, end]
    no = _text("assistant", "It is on its way: it cannot be cancelled.")
    return [opening, *found, no], [opening, no]


def make_rows(seed: int, number: int) -> Iterator[Row]:
    chance = random.Random(seed)
    return (make_row(chance, each) for each in range(number))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tasks", type=int, default=200)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    rows = list(make_rows(given.seed, given.tasks))
    write(given.folder / "tasks.jsonl", rows)
    examples = []
    for row in rows[:NUM_EXAMPLES]:
        right, wrong = play(row)
        examples.append({**row, "gold_items": right, "wrong_items": wrong})
    write(given.folder / "example.jsonl", examples)


def write(path: Path, rows: list[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
