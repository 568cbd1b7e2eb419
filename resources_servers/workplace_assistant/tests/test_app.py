import asyncio
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from rollout_kit import (
    ConfigError,
    TaskError,
    ToolError,
    function_call_item,
    make_response,
    message_item,
)
from rollout_kit.api.testing import OVERS, ScriptedModel, call_response, making, mount
from rollout_kit.serving.registry import load
from rollout_kit.session import Session, entered

FOLDER = Path(__file__).parents[1]
OFFICE = FOLDER / "data" / "office"
WorkplaceAssistant = load("resources_servers", "workplace_assistant")
ROWS = [orjson.loads(line) for line in (FOLDER / "data/example.jsonl").read_bytes().splitlines()]

MAILS = """email_id,inbox/outbox,sender/recipient,subject,sent_datetime,body
00000001,inbox,ada.b@x.example,Tea,2023-11-01 10:00:00,Is there tea?
00000002,inbox,carl.d@x.example,Cups,2023-11-03 10:00:00,Ada has the cups
00000003,outbox,ada.b@x.example,Re cups,2023-11-02 10:00:00,Where are the cups?
"""
EVENTS = """event_id,event_name,participant_email,event_start,duration
00000001,Tea time,ada.b@x.example,2023-12-01 10:00:00,30
00000002,Planning,carl.d@x.example,2023-12-02 09:30:00,60
"""
VISITS = """date_of_visit,visitor_id,page_views,session_duration_seconds,traffic_source,user_engaged
2023-11-01,0001,3,10,direct,True
2023-11-01,0002,1,20,referral,False
2023-11-02,0001,5,7,direct,True
"""
TASKS = """task_id,task_name,assigned_to_email,list_name,due_date,board
00000001,Buy tea,ada.b@x.example,Backlog,2023-12-01,Design
00000002,Wash cups,carl.d@x.example,In Review,2023-12-02,Back end
"""
CUSTOMERS = """customer_id,assigned_to_email,customer_name,customer_email,customer_phone,\
last_contact_date,product_interest,status,follow_up_by,notes
00000001,ada.b@x.example,Mill Foods,a@mill.example,1,2023-11-01,Software,Lead,2023-12-01,
00000002,carl.d@x.example,Lake Foods,a@lake.example,2,,Training,Won,2023-12-09,kind
"""
FILES = {
    "emails.csv": MAILS,
    "calendar_events.csv": EVENTS,
    "analytics_data.csv": VISITS,
    "project_tasks.csv": TASKS,
    "customer_relationship_manager_data.csv": CUSTOMERS,
    "email_addresses.csv": "ada.b@x.example\ncarl.d@x.example\n",
}


@pytest.fixture
def office(tmp_path):
    """A small office's folder, laid out as NeMo Gym's is."""
    for name, text in FILES.items():
        path = tmp_path / ("raw" if name == "email_addresses.csv" else "processed") / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return str(tmp_path)


def truth(*calls):
    return [
        {"name": name, "arguments": orjson.dumps(arguments).decode()} for name, arguments in calls
    ]


def row(*calls):
    return {"responses_create_params": {"input": "Do it."}, "id": 1, "ground_truth": truth(*calls)}


def items(*calls):
    return [function_call_item(each["name"], each["arguments"]) for each in truth(*calls)]


def talk(folder, *calls):
    """What the tools say, one after the other in one session."""

    async def run():
        server = WorkplaceAssistant(WorkplaceAssistant.Config(data_dir=folder), None, "office")
        with entered(Session()):
            await server.handle("/seed_session", orjson.dumps(row()))
            return [
                (await server.handle(f"/{name}", orjson.dumps(given)))["output"]
                for name, given in calls
            ]

    return asyncio.run(run())


def rewards(pairs, folder=None):
    """Of each (row, output items)."""

    async def run():
        server = WorkplaceAssistant(WorkplaceAssistant.Config(data_dir=folder), None, "office")
        found = []
        for task, output in pairs:
            with entered(Session()):
                await server.handle("/seed_session", orjson.dumps(task))
                body = orjson.dumps({**task, "response": make_response("m", output, None)})
                found.append((await server.handle("/verify", body)).reward)
                await server.handle("/close_session", b"{}")
        return found

    return asyncio.run(run())


PAGE = {"page": 1, "page_size": 5, "total_pages": 1}
MAIL = {
    "email_id": "00000002",
    "inbox/outbox": "inbox",
    "sender/recipient": "carl.d@x.example",
    "subject": "Cups",
    "sent_datetime": "2023-11-03 10:00:00",
    "body": "Ada has the cups",
}
FIRST = ["00000001", "inbox", "ada.b@x.example", "Tea", "2023-11-01 10:00:00", "Is there tea?"]
TEA = {
    "emails": [dict(zip(MAIL, FIRST, strict=True))],
    "pagination": {"total_emails": 1, **PAGE},
}
CRM = "customer_relationship_manager_"
SAID = [
    ("company_directory_find_email_address", {"name": "ADA"}, ["ada.b@x.example"]),
    ("company_directory_find_email_address", {}, "Name not provided."),
    (
        "email_get_email_information_by_id",
        {"email_id": "00000001", "field": "subject"},
        {"subject": "Tea"},
    ),
    (
        "email_get_email_information_by_id",
        {"email_id": "00000009", "field": "subject"},
        "Email not found.",
    ),
    (
        "email_search_emails",
        {"query": "cups has"},
        {"emails": [MAIL], "pagination": {"total_emails": 1, **PAGE}},
    ),
    ("email_search_emails", {"query": "tea", "date_min": "2023-11-02"}, "No emails found."),
    ("email_search_emails", {"query": "tea", "date_max": None, "page": None}, TEA),
    ("email_send_email", {"recipient": "x", "subject": "s", "body": "b"}, "Invalid recipient"),
    (
        "email_send_email",
        {"recipient": "a@b.c", "subject": "s", "body": ""},
        "Recipient, subject, or body not provided.",
    ),
    ("email_delete_email", {"email_id": "00000009"}, "Email not found."),
    ("calendar_get_event_information_by_id", {"event_id": "1", "field": "duration"}, "Invalid ev"),
    (
        "calendar_get_event_information_by_id",
        {"event_id": "00000001", "field": "duration"},
        {"duration": "30"},
    ),
    ("calendar_search_events", {"time_max": "2023-11-01 00:00:00"}, "No events found."),
    ("calendar_search_events", {"time_min": "soon"}, "Invalid time_min format."),
    (
        "calendar_create_event",
        {"event_name": "e", "participant_email": "p", "event_start": "soon", "duration": "1"},
        "Invalid event_start format.",
    ),
    (
        "calendar_update_event",
        {"event_id": "00000001", "field": "duration", "new_value": "-5"},
        "Duration must be a positive",
    ),
    (
        "calendar_update_event",
        {"event_id": "00000001", "field": "event_id", "new_value": "00000002"},
        "Invalid field.",
    ),
    ("analytics_total_visits_count", {}, {"2023-11-01": 2, "2023-11-02": 1}),
    ("analytics_engaged_users_count", {"time_max": "2023-11-01"}, {"2023-11-01": 1}),
    (
        "analytics_traffic_source_count",
        {"traffic_source": "referral"},
        {"2023-11-01": 1, "2023-11-02": 0},
    ),
    (
        "analytics_get_average_session_duration",
        {"time_min": "2023-11-01"},
        {"2023-11-01": 15.0, "2023-11-02": 7.0},
    ),
    ("analytics_get_visitor_information_by_id", {"visitor_id": "9"}, "Visitor not found."),
    (
        "analytics_create_plot",
        {"time_min": "a", "time_max": "b", "value_to_plot": "views", "plot_type": "bar"},
        "Value to plot must be one of 'total_visits'",
    ),
    (
        "project_management_get_task_information_by_id",
        {"task_id": "00000001", "field": "board"},
        {"board": "Design"},
    ),
    ("project_management_search_tasks", {"task_name": "cake"}, []),
    ("project_management_search_tasks", {"assigned_to_email": "ada"}, "Invalid email format"),
    (
        "project_management_create_task",
        {
            "task_name": "t",
            "assigned_to_email": "eve@x.example",
            "list_name": "Backlog",
            "due_date": "2023-12-03",
            "board": "Design",
        },
        "Assignee email not valid.",
    ),
    (
        "project_management_update_task",
        {"task_id": "00000001", "field": "board", "new_value": "design"},
        "Board not valid.",
    ),
    (f"{CRM}search_customers", {}, "No search parameters provided."),
    (f"{CRM}search_customers", {"last_contact_date_max": "2023-01-01"}, "No customers found."),
    (
        f"{CRM}update_customer",
        {"customer_id": "00000001", "field": "status", "new_value": "won"},
        "Status not valid.",
    ),
    (
        f"{CRM}add_customer",
        {"customer_name": "n", "assigned_to_email": "", "status": "Lead"},
        "Please provide all required fields",
    ),
    (f"{CRM}delete_customer", {"customer_id": "00000007"}, "Customer not found."),
]


def test_tools_answer_as_their_originals_do(office):
    found = talk(office, *[(name, given) for name, given, _ in SAID])
    for (name, given, wanted), said in zip(SAID, found, strict=True):
        if isinstance(wanted, str):
            assert said.startswith(wanted), (name, given, said)
        else:
            assert said == wanted, (name, given)


WRITES = [
    ("email_send_email", {"recipient": "EVE@x.example", "subject": "s", "body": "b"}),
    ("email_forward_email", {"email_id": "00000001", "recipient": "eve@x.example"}),
    ("email_reply_email", {"email_id": "00000002", "body": "b"}),
    ("email_delete_email", {"email_id": "00000001"}),
    (
        "calendar_create_event",
        {
            "event_name": "e",
            "participant_email": "Eve@x.example",
            "event_start": "2023-12-03 10:00:00",
            "duration": "30",
        },
    ),
    ("calendar_update_event", {"event_id": "00000002", "field": "duration", "new_value": "90"}),
    ("calendar_delete_event", {"event_id": "00000001"}),
    (
        "analytics_create_plot",
        {
            "time_min": "2023-11-01",
            "time_max": "2023-11-02",
            "value_to_plot": "user_engaged",
            "plot_type": "bar",
        },
    ),
    (
        "project_management_create_task",
        {
            "task_name": "t",
            "assigned_to_email": "Ada.b@x.example",
            "list_name": "Backlog",
            "due_date": "2023-12-03",
            "board": "Design",
        },
    ),
    (
        "project_management_update_task",
        {"task_id": "00000002", "field": "list_name", "new_value": "Completed"},
    ),
    ("project_management_delete_task", {"task_id": "00000001"}),
    (
        f"{CRM}add_customer",
        {"customer_name": "n", "assigned_to_email": "Ada.b@x.example", "status": "Lead"},
    ),
    (
        f"{CRM}update_customer",
        {"customer_id": "00000002", "field": "notes", "new_value": "very kind"},
    ),
    (f"{CRM}delete_customer", {"customer_id": "00000001"}),
]


def test_each_write_counts_is_repeatable_and_is_told_from_every_other(office):
    pairs = [(row(one), items(other)) for one in WRITES for other in WRITES]
    found = rewards(pairs, office)
    assert found == [float(one is other) for one in WRITES for other in WRITES]


def test_there_are_27_tools_and_each_is_tried():
    tools = {name for name, *_ in [*SAID, *WRITES]}
    assert len(WorkplaceAssistant.tools) == 27
    assert tools == WorkplaceAssistant.tools.keys()


def test_a_session_s_writes_are_its_own_and_what_they_say_is_what_they_do(office):
    mail = {"email_id": "4", "field": "subject"}
    said = talk(office, *WRITES, ("email_get_email_information_by_id", mail))
    assert said[:4] == [
        "Email sent successfully.",
        "Email forwarded successfully.",
        "Email replied successfully.",
        "Email deleted successfully.",
    ]
    assert (said[4], said[8], said[11]) == ("00000003", "00000003", "00000003")
    assert said[-1] == {"subject": "s"}
    assert talk(office, ("email_get_email_information_by_id", mail)) == ["Email not found."]


SEND = ("email_send_email", {"recipient": "eve@x.example", "subject": "Tea", "body": "Now?"})
DELETE = ("calendar_delete_event", {"event_id": "00000001"})
MOVE = (
    "project_management_update_task",
    {"task_id": "00000001", "field": "list_name", "new_value": "Completed"},
)

RENAME = (
    f"{CRM}update_customer",
    {"customer_id": "00000002", "field": "customer_id", "new_value": "x"},
)
ADD = (f"{CRM}add_customer", {"customer_name": "n", "assigned_to_email": "a", "status": "Lead"})


@pytest.mark.parametrize(
    ("output", "reward"),
    [
        (items(SEND, DELETE), 1.0),
        (items(DELETE, SEND), 1.0),
        (items(("email_search_emails", {"query": "tea"}), SEND, DELETE), 1.0),
        (items((SEND[0], {**SEND[1], "body": "NOW?"}), DELETE), 1.0),  # case does not count
        (items(("email_send_email", {"subject": "no one"}), SEND, DELETE), 1.0),
        (items(("no_such_tool", {}), SEND, DELETE), 1.0),
        ([*items(SEND, DELETE), message_item("Done.")], 1.0),
        (items(SEND), 0.0),
        (items(SEND, SEND, DELETE), 0.0),
        (items(SEND, DELETE, MOVE), 0.0),
        (items(RENAME, ADD, SEND, DELETE), 0.0),
        ([*items(SEND), function_call_item(DELETE[0], "{")], 0.0),
        ([*items(SEND), function_call_item(DELETE[0], "[]")], 0.0),
        ([*items(SEND), function_call_item(DELETE[0], '{"event_id": 1}')], 0.0),
        ([message_item("I have sent it.")], 0.0),
        ([], 0.0),
    ],
)
def test_the_reward_is_for_where_the_office_ends(output, reward, office):
    assert rewards([(row(SEND, DELETE), output)], office) == [reward]


def test_the_case_of_a_choice_counts(office):
    task = {"customer_name": "N", "assigned_to_email": "a@x.example", "status": "Lead"}
    add = (f"{CRM}add_customer", task)
    same = (add[0], {**task, "customer_name": "n"})
    other = (add[0], {**task, "status": "lead"})
    assert rewards([(row(add), items(same)), (row(add), items(other))], office) == [1.0, 0.0]


def test_where_nothing_is_to_change_nothing_may(office):
    reads = items(("analytics_total_visits_count", {}))
    found = rewards([(row(), reads), (row(), items(SEND))], office)
    assert found == [1.0, 0.0]


def test_the_gold_calls_of_each_example_score_full_reward_and_none_of_another():
    found = rewards([(task, other["gold_items"]) for task in ROWS for other in ROWS])
    assert found == [float(task is other) for task in ROWS for other in ROWS]


@pytest.mark.parametrize("over", OVERS)
def test_a_rollout_reads_and_writes_in_its_own_office(over):
    async def main():
        calls = [item for item in ROWS[0]["gold_items"] if item["type"] == "function_call"]
        said = [*[call_response((call["name"], call["arguments"])) for call in calls], "Done."]
        wiring = {
            "resources_server": {"name": "office"},
            "model_server": {"name": "policy_model"},
        }
        servers = {
            "policy_model": lambda peers, name: ScriptedModel(said, peers, name),
            "office": making(WorkplaceAssistant),
            "agent": making(load("responses_api_agents", "simple_agent"), **wiring),
        }
        async with mount(servers, over) as peers:
            return await peers.call("agent", "/run", ROWS[0], dict)

    verdict = asyncio.run(main())
    outputs = [
        orjson.loads(item["output"])["output"]
        for item in verdict["response"]["output"]
        if item["type"] == "function_call_output"
    ]
    assert outputs[0]["emails"][0]["email_id"] in ROWS[0]["ground_truth"][0]["arguments"]
    assert outputs[1] == "Email replied successfully."
    assert verdict["reward"] == 1.0


def test_a_thousand_sessions_share_what_they_have_not_changed():
    async def run():
        server = WorkplaceAssistant(WorkplaceAssistant.Config(), None, "office")
        mails = []
        for number in range(1000):
            with entered(Session()):
                await server.handle("/seed_session", orjson.dumps(row()))
                if number % 10 == 0:
                    await server.handle(f"/{SEND[0]}", orjson.dumps(SEND[1]))
                toolkits = server.state.toolkits.values()
                mails.append(
                    next(kit.table.rows for kit in toolkits if type(kit).__name__ == "Mail")
                )
        return mails

    mails = asyncio.run(run())
    untouched = [rows for number, rows in enumerate(mails) if number % 10]
    assert all(rows is untouched[0] for rows in untouched)
    assert all(a is b for a, b in zip(mails[0], mails[10], strict=True) if a["email_id"] != "161")
    assert [len(mails[0]), len(mails[1])] == [161, 160]


@pytest.mark.parametrize(
    ("calls", "complaint"),
    [
        ([{"name": "fly", "arguments": "{}"}], "ground_truth.0: unknown tool 'fly'"),
        ([{"name": "email_send_email", "arguments": "{"}], "ground_truth.0: the arguments are not"),
        ([{"name": "email_send_email", "arguments": '{"to": 1}'}], "ground_truth.0: bad arguments"),
        ([{"name": "email_send_email"}], "ground_truth.0.arguments: Field required"),
        (None, "ground_truth: Input should be a valid list"),
    ],
)
def test_a_truth_that_cannot_be_replayed_is_refused(calls, complaint):
    with pytest.raises(TaskError, match=complaint):
        rewards([({**row(), "ground_truth": calls}, [])])


def truth_call(name, **arguments):
    return {"name": name, "arguments": orjson.dumps(arguments).decode()}


@pytest.mark.parametrize(
    ("calls", "complaint"),
    [
        (
            [truth_call("email_delete_email", email_id="99999999")],
            "0: email_delete_email: Email not",
        ),
        (
            [
                truth_call("email_delete_email", email_id="00000008"),
                truth_call("email_delete_email", email_id="00000008"),
            ],
            "1: email_delete_email: Email not found.",
        ),
        (
            [
                truth_call(
                    "calendar_update_event", event_id="88888888", field="duration", new_value="9"
                )
            ],
            "0: calendar_update_event: Event not found.",
        ),
        (
            [truth_call("email_send_email", recipient="a@atlas.example", subject="s", body="b")],
            "0: nobody here has an address at atlas.example",
        ),
        (
            [
                truth_call(
                    f"{CRM}update_customer",
                    customer_id="00000001",
                    field="assigned_to_email",
                    new_value="a@atlas.example",
                )
            ],
            "0: nobody here has an address at atlas.example",
        ),
    ],
)
def test_a_truth_about_something_that_the_office_does_not_have_is_refused(calls, complaint):
    with pytest.raises(TaskError, match=complaint):
        rewards([({**row(), "ground_truth": calls}, [])])


@pytest.mark.parametrize("folder", [None, "another"])
def test_the_generated_office_is_named_at_the_start(folder, office, caplog):
    settings = {"data_dir": office} if folder else {}

    async def main():
        async with mount({"office": making(WorkplaceAssistant, **settings)}):
            pass

    asyncio.run(main())
    assert ("verdicts are about the generated office" in caplog.text) == (folder is None)


def test_arguments_that_do_not_fit_are_told_to_the_policy(office):
    with pytest.raises(ToolError, match="bad arguments: page: Input should be a valid integer"):
        talk(office, ("email_search_emails", {"page": "first"}))
    with pytest.raises(ToolError, match="bad arguments: body: Field required"):
        talk(office, ("email_reply_email", {"email_id": "00000001", "body": None}))


def test_an_office_without_a_file_or_a_column_is_named(office):
    path = Path(office) / "processed" / "emails.csv"
    path.write_text("email_id,subject\n1,s\n")
    with pytest.raises(ConfigError, match=r"emails\.csv: needs rows, with the columns email_id"):
        talk(office)
    path.unlink()
    with pytest.raises(ConfigError, match=r"contains no emails\.csv"):
        talk(office)


def test_a_hundred_kilobytes_that_mean_harm_change_nothing_and_take_no_time(office):
    words = " ".join(f"{number:x}" for number in range(20_000))
    long = [("email_search_emails", {"query": words}), ("calendar_search_events", {"query": words})]
    assert talk(office, *long) == ["No emails found.", "No events found."]
    endless = {"event_id": "00000001", "field": "duration", "new_value": "9" * 100_000}
    assert talk(office, ("calendar_update_event", endless))[0].startswith("Invalid duration")
    many = items(*[SEND, ("email_delete_email", {"email_id": "4"})] * 500)
    hostile = [function_call_item(SEND[0], "[" * 100_000), function_call_item("x" * 100_000, "{}")]
    hostile += [{"type": "function_call"}, {"type": "function_call", "name": ["a"], "arguments": 7}]
    assert rewards([(row(DELETE), [*many, *hostile, *items(DELETE)])], office) == [1.0]


def test_the_shipped_office_is_the_one_that_is_generated(tmp_path):
    subprocess.run([sys.executable, FOLDER / "generate.py", tmp_path], check=True)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_bytes() for path in OFFICE.iterdir()}
