"""Generate an office like `data/office`: `python generate.py FOLDER --seed 1`.

Names, dates and texts are random choices from the lists below, reproducible for a seed.
"""

import argparse
import csv
import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

NOW = datetime(2023, 11, 30)
"""The current day in all tasks."""

FIRST = [
    "aino",
    "boris",
    "chiara",
    "dalia",
    "emil",
    "farah",
    "goran",
    "hana",
    "ivo",
    "jun",
    "kofi",
    "lena",
    "mateo",
    "nadia",
    "omar",
    "priya",
]
LAST = [
    "almeida",
    "brandt",
    "costa",
    "dubois",
    "eriksen",
    "fischer",
    "garcia",
    "huang",
    "ito",
    "jansen",
    "khan",
    "lopez",
]
STREETS = [
    "Harbour",
    "Mill",
    "Cedar",
    "Orchard",
    "Station",
    "Market",
    "Bridge",
    "Garden",
    "Summit",
    "Lake",
    "River",
    "Stone",
]
TRADES = [
    "Foods",
    "Logistics",
    "Textiles",
    "Energy",
    "Press",
    "Dental",
    "Motors",
    "Optics",
    "Travel",
    "Paper",
]
TOPICS = [
    "the budget draft",
    "the launch date",
    "the new supplier",
    "the customer survey",
    "the office move",
    "the security review",
    "the training day",
    "the quarterly report",
    "the hiring plan",
    "the website text",
]
OPENINGS = ["A short note on {}.", "Could you look at {} this week?", "We have to decide on {}."]
CLOSINGS = ["Call me if anything is unclear.", "There is no hurry.", "Thanks for your help."]
MEETINGS = [
    "Planning",
    "Review of {}",
    "Weekly sync",
    "Workshop on {}",
    "Interview",
    "Talk about {}",
]
DEEDS = ["Draft", "Test", "Rewrite", "Measure", "Document", "Clean up"]
PARTS = ["log-in page", "search index", "price table", "mail templates", "backup job", "colour set"]
SOURCES = ["direct", "referral", "search engine", "social media"]
LISTS = ["Backlog", "In Progress", "In Review", "Completed"]
BOARDS = ["Back end", "Front end", "Design"]
STATUSES = ["Qualified", "Won", "Lost", "Lead", "Proposal"]
PRODUCTS = ["Software", "Hardware", "Services", "Consulting", "Training"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(given.seed)
    people = [f"{first}.{draw.choice(LAST)}@oakfield.example" for first in FIRST]
    (given.folder / "email_addresses.csv").write_text("\n".join(people) + "\n")
    for name, (columns, rows) in {
        "emails": (MAIL, mails(draw, people)),
        "calendar_events": (EVENT, events(draw, people)),
        "analytics_data": (VISIT, visits(draw)),
        "project_tasks": (TASK, tasks(draw, people)),
        "customer_relationship_manager_data": (CUSTOMER, customers(draw, people)),
    }.items():
        with (given.folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([columns, *rows])


MAIL = ["email_id", "inbox/outbox", "sender/recipient", "subject", "sent_datetime", "body"]
EVENT = ["event_id", "event_name", "participant_email", "event_start", "duration"]
VISIT = ["date_of_visit", "visitor_id", "page_views", "session_duration_seconds"]
VISIT += ["traffic_source", "user_engaged"]
TASK = ["task_id", "task_name", "assigned_to_email", "list_name", "due_date", "board"]
CUSTOMER = ["customer_id", "assigned_to_email", "customer_name", "customer_email"]
CUSTOMER += ["customer_phone", "last_contact_date", "product_interest", "status"]
CUSTOMER += ["follow_up_by", "notes"]

Rows = Iterator[list[object]]


def mails(draw: random.Random, people: list[str]) -> Rows:
    for id in range(1, 161):
        topic = draw.choice(TOPICS)
        sent = NOW - timedelta(minutes=draw.randrange(60 * 24 * 60))
        body = f"{draw.choice(OPENINGS).format(topic)} {draw.choice(CLOSINGS)}"
        box = draw.choice(["inbox", "inbox", "outbox"])
        yield [f"{id:08}", box, draw.choice(people), f"About {topic}", sent, body]


def events(draw: random.Random, people: list[str]) -> Rows:
    for id in range(1, 161):
        name = draw.choice(MEETINGS).format(draw.choice(TOPICS))
        day = NOW + timedelta(days=draw.randrange(-30, 31))
        start = day.replace(hour=draw.randrange(9, 17), minute=draw.choice([0, 30]))
        yield [f"{id:08}", name, draw.choice(people), start, draw.choice([30, 60, 90])]


def visits(draw: random.Random) -> Rows:
    for number in range(600):
        day = (NOW - timedelta(days=60 - number // 10)).date()
        seconds = draw.randrange(1, 60)
        engaged = seconds > 20 and draw.random() < 0.7
        views = draw.randrange(1, 15)
        yield [day, f"{draw.randrange(10_000):04}", views, seconds, draw.choice(SOURCES), engaged]


def tasks(draw: random.Random, people: list[str]) -> Rows:
    for id in range(1, 121):
        name = f"{draw.choice(DEEDS)} the {draw.choice(PARTS)}"
        due = (NOW + timedelta(days=draw.randrange(-20, 21))).date()
        owner = draw.choice(people[:8])
        yield [f"{id:08}", name, owner, draw.choice(LISTS), due, draw.choice(BOARDS)]


def customers(draw: random.Random, people: list[str]) -> Rows:
    names = [f"{street} {trade}" for street in STREETS for trade in TRADES]
    for id, name in enumerate(sorted(draw.sample(names, 80)), 1):
        address = f"office@{name.replace(' ', '-').lower()}.example"
        seen = (NOW - timedelta(days=draw.randrange(60))).date()
        follow_up = (NOW + timedelta(days=draw.randrange(1, 30))).date()
        phone = f"555-{draw.randrange(10_000):04}"
        fields = [f"{id:08}", draw.choice(people[8:]), name, address, phone, seen]
        yield [*fields, draw.choice(PRODUCTS), draw.choice(STATUSES), follow_up, ""]


if __name__ == "__main__":
    main()
