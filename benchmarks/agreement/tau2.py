"""States of τ²-bench's databases after random calls, here and by inspect_evals' tools.

    python -m venv .peers && .peers/bin/pip install inspect-ai==0.3.285
    .peers/bin/pip install --no-deps --ignore-requires-python inspect_evals==0.28.0
    python -m benchmarks.agreement.tau2 .peers/bin/python

Half of the sequences are shuffled right actions of several tasks. The others are made up, with
records that belong together, and some that do not.
"""

import asyncio
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rollout_kit.collecting.data.benchmarks.origins import fetch_wheel
from rollout_kit.collecting.data.benchmarks.tau2_rows import read_tau2
from rollout_kit.errors import ToolError
from rollout_kit.serving import registry
from rollout_kit.types import JsonObject

CHILD = Path(__file__).with_name("tau2_child.py")

NUM_SEQUENCES = 500
"""For each desk."""

UNCHANGING = ("calculate", "transfer_to_human_agents")

Call = tuple[str, JsonObject]


def main(words: Sequence[str]) -> int:
    """Print what differs; returns the exit status."""
    wheel = fetch_wheel("inspect_evals", "0.28.0", print)
    server = registry.load("resources_servers", "tau2")
    read_published = sys.modules[server.__module__].read_published
    sequences = {}
    for desk, make in (("airline", make_airline_call), ("retail", make_retail_call)):
        sequences[desk] = make_sequences(
            list(read_tau2(wheel, desk)), read_published(desk), make, random.Random(3)
        )
    theirs = ask_peer(words[0], sequences)
    differing = 0
    for desk, calls in sequences.items():
        own = asyncio.run(play_all(server, desk, calls))
        differing += compare(desk, read_published(desk), calls, own, theirs[desk])
    return int(differing > 0)


def make_sequences(
    rows: list[JsonObject],
    database: JsonObject,
    make: Callable[[JsonObject, random.Random], Call],
    chance: random.Random,
) -> list[list[Call]]:
    found = []
    for number in range(NUM_SEQUENCES):
        if number % 2:
            found.append([make(database, chance) for _ in range(chance.randint(3, 12))])
            continue
        tasks = chance.sample(rows, chance.randint(1, 3))
        calls = [(each["name"], each["arguments"]) for row in tasks for each in row["actions"]]
        chance.shuffle(calls)
        found.append([call for call in calls if call[0] not in UNCHANGING])
    return found


def make_airline_call(database: JsonObject, chance: random.Random) -> Call:
    booked = chance.choice([*database["reservations"].values()])
    other = chance.choice([*database["users"]])
    user = database["users"][booked["user_id"] if chance.random() < 0.9 else other]
    flights = [_draw_flight(database, chance) for _ in range(chance.randint(1, 2))]
    kept = [{name: each[name] for name in ("flight_number", "date")} for each in booked["flights"]]
    payment = chance.choice([*user["payment_methods"], "credit_card_0"])
    cabin = chance.choice(["business", "economy", "basic_economy"])
    own = {"reservation_id": booked["reservation_id"]}
    passengers = [
        {"first_name": "A", "last_name": "B", "dob": "1990-01-01"}
        for _ in range(len(booked["passengers"]) + (chance.random() < 0.2))
    ]
    kind = chance.randrange(7)
    if kind == 0:
        return "cancel_reservation", own
    if kind == 1:
        return "send_certificate", {"user_id": user["user_id"], "amount": chance.randint(1, 500)}
    if kind == 2:
        bags = chance.randint(0, 5)
        arguments = {**own, "total_baggages": bags + 1, "nonfree_baggages": bags}
        return "update_reservation_baggages", {**arguments, "payment_id": payment}
    if kind == 3:
        chosen = chance.choice([flights, kept, [*kept[:1], *flights[:1]]])
        arguments = {**own, "cabin": cabin, "flights": chosen, "payment_id": payment}
        return "update_reservation_flights", arguments
    if kind == 4:
        return "update_reservation_passengers", {**own, "passengers": passengers}
    if kind == 5:
        return chance.choice(
            [
                ("get_user_details", {"user_id": user["user_id"]}),
                ("get_flight_status", flights[0]),
                ("get_reservation_details", {"reservation_id": "NONE00"}),
            ]
        )
    return "book_reservation", _book(database, user, flights, cabin, passengers, chance)


def _draw_flight(database: JsonObject, chance: random.Random) -> JsonObject:
    flight = chance.choice([*database["flights"].values()])
    return {"flight_number": flight["flight_number"], "date": chance.choice([*flight["dates"]])}


def _book(
    database: JsonObject,
    user: JsonObject,
    flights: list[JsonObject],
    cabin: str,
    passengers: list[JsonObject],
    chance: random.Random,
) -> JsonObject:
    bags, total = chance.randint(0, 2), 0
    for flight in flights:
        status = database["flights"][flight["flight_number"]]["dates"][flight["date"]]
        total += status.get("prices", {}).get(cabin, 0) * len(passengers)
    insured = chance.choice(["yes", "no"])
    total += 50 * bags + 30 * len(passengers) * (insured == "yes") + (chance.random() < 0.1)
    methods = chance.sample([*user["payment_methods"]], 1)
    return {
        **{"user_id": user["user_id"], "origin": "SFO", "destination": "JFK"},
        **{"flight_type": "one_way", "cabin": cabin, "flights": flights},
        "passengers": passengers,
        "payment_methods": [{"payment_id": each, "amount": total} for each in methods],
        **{"total_baggages": bags, "nonfree_baggages": bags, "insurance": insured},
    }


def make_retail_call(database: JsonObject, chance: random.Random) -> Call:
    order = chance.choice([*database["orders"].values()])
    user = database["users"][order["user_id"]]
    method = chance.choice([*user["payment_methods"], "gift_card_0"])
    taken = chance.sample(order["items"], chance.randint(1, len(order["items"])))
    items = [each["item_id"] for each in taken]
    new = [
        chance.choice([*database["products"][each["product_id"]]["variants"], each["item_id"]])
        for each in taken
    ]
    place = {"address1": "1", "address2": "", "city": "C", "state": "CA", "country": "USA"}
    place["zip"] = "1"
    own = {"order_id": order["order_id"] if chance.random() < 0.95 else "#W0"}
    swap = {**own, "item_ids": items, "new_item_ids": new, "payment_method_id": method}
    reason = chance.choice(["no longer needed", "ordered by mistake", "bored"])
    paid = chance.choice([method, order["payment_history"][0]["payment_method_id"]])
    return chance.choice(
        [
            ("cancel_pending_order", {**own, "reason": reason}),
            ("exchange_delivered_order_items", swap),
            ("modify_pending_order_items", swap),
            ("modify_pending_order_items", {**swap, "new_item_ids": new[:-1]}),
            ("modify_pending_order_address", {**own, **place}),
            ("modify_pending_order_payment", {**own, "payment_method_id": method}),
            ("modify_user_address", {"user_id": user["user_id"], **place}),
            (
                "return_delivered_order_items",
                {**own, "item_ids": [*items, *items[:1]], "payment_method_id": paid},
            ),
            (
                "return_delivered_order_items",
                {**own, "item_ids": items, "payment_method_id": paid},
            ),
            ("get_order_details", own),
            ("find_user_id_by_email", {"email": user["email"].upper()}),
        ]
    )


async def play_all(server: Any, desk: str, sequences: list[list[Call]]) -> list[Any]:
    """Whether each call is refused, and the desk in the end, of each sequence."""
    own = server(server.Config(desk=desk), None, "tau2")
    module, found = sys.modules[server.__module__], []
    for calls in sequences:
        world = module.DESKS[desk](module.read_published(desk))
        refused = [await _is_refused(own, world, *call) for call in calls]
        found.append((refused, world))
    return found


async def _is_refused(server: Any, world: Any, name: str, arguments: JsonObject) -> bool:
    tool = server.tools[name]
    try:
        parsed = tool.parse(json.dumps(arguments).encode())
        values = [getattr(parsed, each) for each in type(parsed).model_fields]
        await getattr(world, name)(*values)
    except ToolError:
        return True
    return False


def ask_peer(python: str, sequences: JsonObject) -> JsonObject:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "given.json", Path(folder) / "found.json"
        source.write_text(json.dumps(sequences))
        subprocess.run([python, CHILD, source, target], check=True, stdout=subprocess.DEVNULL)
        return json.loads(target.read_text())


def compare(
    desk: str, shared: JsonObject, sequences: list[list[Call]], own: list[Any], theirs: list[Any]
) -> int:
    """Print the differences; returns the number of sequences that have one."""
    differing = refusals = 0
    for calls, (refused, world), (their_refused, state) in zip(sequences, own, theirs, strict=True):
        refusals += sum(refused)
        mine = world.db.to_json()
        wrong = [
            f"{table}.{key}"
            for table, records in mine.items()
            for key, record in records.items()
            if (key in state[table] or record is not shared[table].get(key))
            and _plain(record) != _plain(state[table].get(key, shared[table].get(key)))
        ]
        if wrong or refused != [bool(each) for each in their_refused]:
            differing += 1
            print(f"  {desk}: {wrong[:3]}, refused {refused} here and {their_refused} there")
            print(f"    {json.dumps(calls):.400}")
    calls = sum(map(len, sequences))
    print(
        f"{desk}: {len(sequences)} sequences of {calls} calls, {refusals} refused;"
        f" {differing} sequences differ"
    )
    return differing


def _plain(value: Any) -> Any:
    """A record without fields that are null."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items() if each is not None}
    return [_plain(each) for each in value] if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
