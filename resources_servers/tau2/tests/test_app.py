import asyncio
import json
import sys
from pathlib import Path

import pytest

import rollout_kit as rk
from rollout_kit import make_response, message_item
from rollout_kit.api.testing import making, mount
from rollout_kit.errors import RolloutError
from rollout_kit.responses import list_calls
from rollout_kit.serving.registry import load
from rollout_kit.serving.tools import arguments_of
from rollout_kit.session import Session, entered

Tau2 = load("resources_servers", "tau2")
APP = sys.modules[Tau2.__module__]
DATA = Path(__file__).parents[1] / "data" / "example.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text().splitlines()]
CONFIG = "resources_servers/tau2/configs/tau2.yaml"


def play(row, items, desk="airline"):
    """The verdict after the calls of a response, and what the tools answered."""

    async def run():
        async with mount({"tau2": making(Tau2, desk=desk)}) as peers:
            with entered(Session()):
                await peers.call("tau2", "/seed_session", row, dict)
                said = []
                for call in list_calls(items):
                    path = f"/{call['name']}"
                    try:
                        said.append(await peers.call("tau2", path, arguments_of(call), str))
                    except RolloutError as error:
                        said.append(error.message)
                body = {**row, "response": make_response("m", items, None)}
                return await peers.call("tau2", "/verify", body, dict), said

    return asyncio.run(run())


def call(name, **arguments):
    return rk.responses.function_call_item(name, json.dumps(arguments), name)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_right_and_wrong_actions(row):
    assert play(row, row["gold_items"])[0]["reward"] == 1
    assert play(row, row["wrong_items"])[0]["reward"] == 0
    assert play(row, [])[0]["reward"] == 0


def test_what_must_be_said_is_said_after_the_last_call():
    row, gold = ROWS[2], ROWS[2]["gold_items"]
    early = [*gold[:1], message_item("It costs 40 more."), *gold[1:-1], message_item("Done.")]
    assert play(row, early)[0]["missing_info"] == ["40"]
    grouped = {**row, "communicate_info": ["1140"]}
    assert play(grouped, [*gold[:-1], message_item("It is 1,140 now.")])[0]["reward"] == 1


def test_actions_count_only_where_the_row_says_so():
    row = ROWS[0]
    without_reading = [each for each in row["gold_items"] if each.get("call_id") != "call_0"]
    assert play(row, without_reading)[0]["reward"] == 1
    strict = {**row, "reward_basis": ["DB", "COMMUNICATE", "ACTION"]}
    found = play(strict, without_reading)[0]
    assert (found["reward"], found["missing_actions"]) == (0, ["get_reservation_details"])
    assert play(strict, row["gold_items"])[0]["reward"] == 1


def test_each_parameter_is_described():
    for desk, number in (("airline", 14), ("retail", 15)):
        server = Tau2(Tau2.Config(desk=desk), None, "tau2")
        tools = asyncio.run(server.list_tools())
        assert len(tools) == number
        for tool in tools:
            assert all(each["description"] for each in tool["parameters"]["properties"].values())


def test_lists_of_an_action_have_no_order():
    action = APP.Action(name="f", arguments={"a": ["x", "y"], "b": 1}, compare_args=["a"])
    assert APP.was_called(action, [call("f", a=["y", "x"], b=2)])
    assert not APP.was_called(action, [call("f", a=["y"], b=2)])


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        *[("2 + 2", "4.0"), ("(3 - 5) * 1.5", "-3.0"), ("7 // 2", "3.0"), ("-2 ** 2", "-4.0")],
        *[("2 ** 3 ** 2", "512.0"), ("10 / 4", "2.5"), ("--3", "3.0"), ("2 ** -1", "0.5")],
        *[("1 / 0", "Invalid"), ("9 ** 9 ** 9", "Invalid"), ("(1", "Invalid"), ("", "Invalid")],
        *[("1 2", "Invalid"), ("()" * 50, "Invalid"), ("(" * 5000, "Invalid")],
        *[("-" * 5000 + "1", "Invalid"), ("__import__('os')", "Invalid"), ("2 + a", "Invalid")],
    ],
)
def test_the_calculator(expression, result):
    _, [said] = play(ROWS[0], [call("calculate", expression=expression)])
    assert said.startswith(result)


def test_a_refused_action_changes_nothing_of_the_database():
    items = [
        call("book_reservation", user_id="ada_moe_1"),
        call("update_reservation_baggages", **BAGS, payment_id="gift_card_2"),
        call("send_certificate", user_id="nobody", amount=5),
    ]
    row = {**ROWS[0], "actions": []}
    found, said = play(row, items)
    assert found["is_database_right"] is True
    assert "Payment method not found" in said[1] and "User nobody not found" in said[2]


BAGS = {"reservation_id": "RES001", "total_baggages": 9, "nonfree_baggages": 9}


def test_a_sessions_changes_are_its_own():
    row = {**ROWS[0], "actions": []}
    play(ROWS[0], ROWS[0]["gold_items"])
    assert play(row, [])[0]["is_database_right"] is True


def test_a_published_database_that_is_not_here_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    row = {name: value for name, value in ROWS[0].items() if name != "database"}
    APP.read_published.cache_clear()
    with pytest.raises(rk.TaskError, match=r"ng_prepare_data \+benchmark=tau2_retail fetches it"):
        play(row, [], desk="retail")


def test_a_shop():
    database = {
        "products": {
            "1": {
                "name": "Mug",
                "product_id": "1",
                "variants": {
                    "a": {"item_id": "a", "options": {"size": "s"}, "available": True, "price": 5},
                    "b": {"item_id": "b", "options": {"size": "m"}, "available": True, "price": 8},
                    "c": {"item_id": "c", "options": {}, "available": False, "price": 9},
                },
            }
        },
        "users": {
            "u": {
                **{"user_id": "u", "name": {"first_name": "Bo", "last_name": "Li"}, "orders": []},
                **{"address": {"zip": "1"}, "email": "bo@example.com"},
                "payment_methods": {"g": {"source": "gift_card", "id": "g", "balance": 2.5}},
            }
        },
        "orders": {
            name: {
                **{"order_id": name, "user_id": "u", "address": {}, "status": status},
                "items": [
                    {"name": "Mug", "product_id": "1", "item_id": "a", "price": 5, "options": {}}
                ],
                "payment_history": [
                    {"transaction_type": "payment", "amount": 5, "payment_method_id": "g"}
                ],
            }
            for name, status in (("#1", "pending"), ("#2", "delivered"))
        },
    }
    row = {**ROWS[0], "database": database, "communicate_info": []}
    swap = {"item_ids": ["a"], "payment_method_id": "g"}
    items = [
        call("find_user_id_by_name_zip", first_name="BO", last_name="li", zip="1"),
        call("modify_pending_order_items", order_id="#1", new_item_ids=["b"], **swap),
        call("exchange_delivered_order_items", order_id="#2", new_item_ids=["c"], **swap),
        call("return_delivered_order_items", order_id="#2", **swap),
        call("cancel_pending_order", order_id="#1", reason="no longer needed"),
    ]
    right = {
        "actions": [
            {"name": each["name"], "arguments": json.loads(each["arguments"])} for each in items
        ]
    }
    found, said = play({**row, **right}, items, desk="retail")
    assert found["reward"] == 1
    assert said[0] == "u"
    assert "Insufficient gift card balance to pay for the new item" in said[1]
    assert "New item c not found or available" in said[2]
    assert json.loads(said[3])["status"] == "return requested"
    assert json.loads(said[4])["cancel_reason"] == "no longer needed"
    assert play({**row, **right}, items[:3], desk="retail")[0]["is_database_right"] is False


USERS = """
tau2: {resources_servers: {tau2: {desk: airline}}}
clerk:
  responses_api_agents:
    simple_agent:
      resources_server: {type: resources_servers, name: tau2}
      model_server: {type: responses_api_models, name: policy_model}
      user_simulator:
        policy: model
        model_server: {type: responses_api_models, name: user_model}
user_model:
  responses_api_models:
    simulated_model: {answer: text, text: "Thanks. ###TRANSFER###", prices: {input: 1, output: 1}}
"""


def test_a_model_plays_the_user_with_the_instructions_of_the_row(tmp_path):
    gold = ROWS[0]["gold_items"]
    row = {**ROWS[0], "user": {"goal": "x", "instructions": "You are Ada.", "ends": ENDS}}
    turns = iter([gold[1:2], gold[3:4], gold[5:]])
    (tmp_path / "users.yaml").write_text(USERS)

    async def run():
        model = lambda params: make_response("m", next(turns), None)  # noqa: E731
        async with rk.servers(tmp_path / "users.yaml", model=model) as servers:
            return await rk.collect([row], servers=servers, output=tmp_path / "out.jsonl")

    [rollout] = asyncio.run(run())
    assert rollout.reward == 1.0
    texts = [item["content"][0]["text"] for item in rollout.response["output"] if "role" in item]
    assert texts == ["Thanks.", "That is done. ", "Thanks."]
    [line] = [json.loads(each) for each in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert line["rollout"]["finish_reason"] == "user_stop"
    assert 0 < line["user_cost_usd"] == line["rollout"]["user"]["cost_usd"]


ENDS = ["###STOP###", "###TRANSFER###"]
