"""Users who talk back: scripted, played by a model, or replayed from a stored rollout."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from support import config_of

import rollout_kit as rk
from rollout_kit.api.testing import OVERS, Over, ScriptedModel, call_response, making, mount
from rollout_kit.collecting.agents import know_agent
from rollout_kit.errors import ConfigError, ModelError, TaskError
from rollout_kit.responses import make_response, message_item
from rollout_kit.serving import registry
from rollout_kit.session import Session, TurnLog, entered
from rollout_kit.trajectory import read_turns
from rollout_kit.types import JsonObject

SimpleAgent = registry.load("responses_api_agents", "simple_agent")
WIRING = {"resources_server": {"name": "lamp"}, "model_server": {"name": "policy_model"}}
PLAYED = {"policy": "model", "model_server": {"name": "user_model"}}

USER = {
    "goal": "Get your lamp to shine.",
    "openings": ["My lamp is dark."],
    "knows": [
        {"about": "model", "says": "It is the L1.", "asked": ["which lamp"]},
        {
            "about": "switch",
            "says": "I did: {output}",
            "asked": ["press"],
            "does": {"tool": "press_switch"},
        },
    ],
    "stops": ["good bye"],
    "patience": [2, 2],
}


class Lamp(rk.TwoSidedServer):
    def new_world(self, row: Any) -> JsonObject:
        return {"is_on": False}

    @rk.tool
    async def look_up(self, model: str) -> str:
        """What is known of a lamp."""
        return f"{model}: press the switch"

    @rk.user_tool
    async def press_switch(self) -> str:
        """Press the switch."""
        self.world["is_on"] = True
        return "it shines"

    async def verify(self, body: rk.UserRequest) -> rk.VerifyResponse:
        return body.scored(float(self.world["is_on"]))


def talk(
    policy: Any,
    simulator: JsonObject | None = None,
    *,
    user: JsonObject = USER,
    user_model: Any = (),
    over: Over = "local",
    session: Session | None = None,
    server: Any = Lamp,
    **settings: Any,
) -> tuple[JsonObject, JsonObject, ScriptedModel]:
    """The response, what the session says of it, and the model that played the user."""
    played = ScriptedModel(user_model)
    session = session or Session("0123456789abcdef.3.x")

    async def main() -> JsonObject:
        servers = {
            "policy_model": lambda peers, name: ScriptedModel(policy),
            "user_model": lambda peers, name: played,
            "lamp": making(server),
            "agent": making(SimpleAgent, **WIRING, user_simulator=simulator or {}, **settings),
        }
        async with mount(servers, over) as peers:
            with entered(session):
                row = {"responses_create_params": {"input": []}, "user": user}
                await peers.call("lamp", "/seed_session", row, dict)
                return await peers.call("agent", "/v1/responses", {"input": []}, dict)

    return asyncio.run(main()), session.stats, played


def spoken(response: JsonObject) -> list[tuple[str, str]]:
    return [
        (item["role"], item["content"][0]["text"])
        for item in response["output"]
        if item["type"] == "message"
    ]


@pytest.mark.parametrize("over", OVERS)
def test_a_scripted_user_says_and_does_what_it_is_asked_for(over: Over) -> None:
    turns = ["Which lamp is it?", call_response(("look_up", '{"model": "L1"}'))]
    turns += ["Please PRESS the switch.", "Good bye!"]
    response, stats, _ = talk(turns, over=over)
    assert spoken(response) == [
        ("user", "My lamp is dark."),
        ("assistant", "Which lamp is it?"),
        ("user", "It is the L1."),
        ("assistant", "Please PRESS the switch."),
        ("user", "I did: it shines"),
        ("assistant", "Good bye!"),
    ]
    done = [item["user_calls"] for item in response["output"] if "user_calls" in item]
    assert done == [[{"name": "press_switch", "arguments": "{}", "output": "it shines"}]]
    assert (stats["finish_reason"], stats["num_turns"], stats["num_tool_calls"]) == (
        *("user_stop", 4),
        1,
    )
    assert stats["user"]["revealed"] == ["model", "switch"]
    assert (stats["user"]["turns"], stats["user"]["ended"]) == (3, "user_stop")


def test_the_policy_reads_the_user_s_words_and_not_what_the_user_did() -> None:
    asked: list[JsonObject] = []

    def policy(params: JsonObject) -> str:
        asked.append(params)
        return ["Press it.", "Good bye."][len(asked) - 1]

    talk(policy)
    assert [item["content"][0]["text"] for item in asked[1]["input"]] == [
        "My lamp is dark.",
        "Press it.",
        "I did: it shines",
    ]
    assert not any("user_calls" in item for item in asked[1]["input"])
    assert [tool["name"] for tool in asked[0]["tools"]] == ["look_up"]


@pytest.mark.parametrize(
    ("turns", "settings", "simulator", "reason"),
    [
        (["Hm.", "Hm."], {}, {}, "user_gave_up"),
        (["Which lamp?", "Which lamp?", "Which lamp?"], {}, {}, "user_gave_up"),
        (["Which lamp?", "Press it."], {}, {"max_turns": 2}, "max_user_turns"),
        (["Which lamp?", "Press it."], {"max_steps": 2}, {}, "max_steps"),
    ],
)
def test_every_conversation_ends_and_says_why(
    turns: list[str], settings: JsonObject, simulator: JsonObject, reason: str
) -> None:
    _, stats, _ = talk(turns, simulator, **settings)
    assert stats["finish_reason"] == reason and stats["num_turns"] == len(turns)


def test_what_is_drawn_depends_on_the_task_and_the_repeat_alone() -> None:
    user = {**USER, "openings": ["a", "b", "c"], "patience": [1, 9], "volunteers": 0.5}

    def decisions(repeat: int, turns: list[str], **more: Any) -> JsonObject:
        session = Session(f"0123456789abcdef.{repeat}.x")
        return talk(turns, user={**user, **more}, session=session)[1]["user"]["decisions"]

    drawn = [decisions(repeat, ["Good bye."]) for repeat in range(12)]
    assert drawn == [decisions(repeat, ["Which lamp?", "Good bye."]) for repeat in range(12)]
    assert len({each["opening"] for each in drawn}) == 3
    assert {*(name for each in drawn for name in each["volunteered"])} == {"model"}  # no tool
    assert len({json.dumps(decisions(n, ["Good bye."], seed=7)) for n in range(4)}) == 1


def test_a_model_plays_the_user_in_its_own_conversation() -> None:
    answers = [call_response(("press_switch", "{}")), "It shines now.", "Thanks! ###STOP###"]
    policy = ["Press the switch.", "Anything else?"]
    response, stats, played = talk(policy, PLAYED, user_model=answers)
    assert spoken(response) == [
        ("user", "My lamp is dark."),
        ("assistant", "Press the switch."),
        ("user", "It shines now."),
        ("assistant", "Anything else?"),
        ("user", "Thanks!"),
    ]
    first, second = played.calls[0], played.calls[1]
    assert "Get your lamp to shine." in first["instructions"]
    assert [tool["name"] for tool in first["tools"]] == ["press_switch"]
    assert [item["role"] for item in first["input"]] == ["user", "assistant", "user"]
    assert [item.get("type") for item in second["input"][-2:]] == [
        "function_call",
        "function_call_output",
    ]
    assert stats["finish_reason"] == "user_stop"


def test_each_turn_says_who_was_asked_and_only_the_policy_is_counted() -> None:
    answers = [call_response(("press_switch", "{}")), "It shines.", "###STOP###"]
    response, stats, _ = talk(["Press it.", "Good?"], PLAYED, user_model=answers)
    turns = read_turns(stats["turns"])
    assert [each.by for each in turns] == ["policy", "user", "user", "policy", "user"]
    assert [each.to for each in turns] == [2, 2, 3, 4, 4]
    assert [each.chain for each in turns] == [0, None, None, 0, None]
    assert (stats["num_turns"], stats["num_tool_calls"]) == (2, 0)
    own = [each for each in turns if each.by == "policy"]
    assert response["usage"]["output_tokens"] == sum(each.output or 0 for each in own)


def test_a_seed_is_sent_on_request() -> None:
    answers = ["Hm.", "###STOP###"]
    _, _, played = talk(["One.", "Two."], {**PLAYED, "sends_seed": True}, user_model=answers)
    _, _, again = talk(["Uno.", "Dos."], {**PLAYED, "sends_seed": True}, user_model=answers)
    assert [call["seed"] for call in played.calls] == [call["seed"] for call in again.calls]
    assert len({call["seed"] for call in played.calls}) == 2
    _, _, without = talk(["One.", "Two."], PLAYED, user_model=answers)
    assert "seed" not in without.calls[0]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (make_response("m", [], None), "the simulated user said nothing"),
        (
            make_response("m", [message_item("I w")], None, incomplete_reason="max_output_tokens"),
            "message was cut off",
        ),
        (call_response(("press_switch", "{}")), "only calls tools"),
    ],
)
def test_a_user_who_cannot_be_played_fails_the_attempt(answer: JsonObject, why: str) -> None:
    with pytest.raises(ModelError, match=why):
        talk(["Press it."], PLAYED, user_model=lambda params: answer)


def test_turns_of_both_models_are_taken_from_storage() -> None:
    stored: list[JsonObject] = []

    async def report(turn: JsonObject) -> None:
        stored.append(turn)

    def session(known: list[JsonObject]) -> Session:
        found = Session("0123456789abcdef.3.x")
        found.turn_log = TurnLog(known, report)
        return found

    answers = ["Hm.", "Hm.", "Hm.", "Hm.", "###STOP###"]
    policy = ["One.", "Two.", "Three.", "Four.", "Five."]
    first, _, _ = talk(policy, PLAYED, user_model=answers, session=session([]))
    assert len(stored) >= 4 and {turn.get("model_server") for turn in stored} == {
        None,
        "user_model",
    }
    assert {turn["by"] for turn in stored if "model_server" in turn} == {"user"}
    rest = [policy[len([turn for turn in stored if "model_server" not in turn]) :]]
    told = len([turn for turn in stored if "model_server" in turn])
    second, stats, played = talk(
        rest[0], PLAYED, user_model=answers[told:], session=session(list(stored))
    )
    assert spoken(second) == spoken(first)
    assert stats["resumed_turns"] >= 4 and len(played.calls) == len(answers) - told


def test_a_stored_user_is_replayed_against_another_policy(tmp_path: Path) -> None:
    row = {"responses_create_params": {"input": []}, "user": USER}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(row) + "\n")

    async def run(policy: Any, simulator: JsonObject, name: str) -> Any:
        config = SimpleAgent.Config.model_validate(
            {
                "resources_server": {"name": "Lamp"},
                "model_server": {"name": "policy_model"},
                "user_simulator": simulator,
            }
        )
        agent = SimpleAgent(config, None, "agent")
        async with rk.servers(model=policy, environment=Lamp, agents={"agent": agent}) as servers:
            return await rk.collect(
                tmp_path / "tasks.jsonl", servers=servers, output=tmp_path / name
            )

    def polite(params: JsonObject) -> str:
        return ["Which lamp?", "Press it.", "Good bye."][len(params["input"]) // 2]

    def rude(params: JsonObject) -> str:
        return "What?"

    [first] = asyncio.run(run(polite, {}, "first.jsonl"))
    replay = {"policy": "replayed", "replay_fpath": str(tmp_path / "first.jsonl")}
    [second] = asyncio.run(run(rude, replay, "second.jsonl"))

    def users(rollout: rk.Rollout) -> list[Any]:
        output = rollout.response["output"]
        return [item for item in output if item.get("role") == "user"]

    assert users(first) == users(second) and first.reward == second.reward == 1.0
    assert second.line["rollout"]["finish_reason"] == "user_stop"


@pytest.mark.parametrize(
    ("simulator", "why"),
    [
        ({"policy": "model"}, "policy: model needs model_server"),
        ({"policy": "replayed"}, "policy: replayed needs replay_fpath"),
        ({"model_server": {"name": "m"}}, "model_server has no effect with policy: scripted"),
    ],
)
def test_a_simulator_that_lacks_something_is_refused(simulator: JsonObject, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        SimpleAgent.Config.model_validate({**WIRING, "user_simulator": simulator})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"goal": ""}, "goal"),
        ({"patience": [3, 1]}, "patience: give two numbers"),
        ({"knows": [USER["knows"][0]] * 2}, "knows: 'model' occurs twice"),
        ({"openings": []}, "user.openings: a scripted user needs at least one"),
        ({"mood": "bad"}, "mood"),
        (
            {"knows": [{**USER["knows"][1], "does": {"tool": "look_up"}}]},
            "no user tool 'look_up'; there are: press_switch",
        ),
    ],
)
def test_a_row_whose_user_cannot_be_played_is_refused(changes: JsonObject, why: str) -> None:
    with pytest.raises(TaskError, match=why):
        talk(["Hm."], user={**USER, **changes})


def test_a_server_without_users_is_named() -> None:
    class Plain(rk.ResourcesServer):
        def verify(self, task: JsonObject, response: JsonObject) -> float:
            return 1.0

    with pytest.raises(TaskError, match="lamp has no users: it must be a TwoSidedServer"):
        talk(["Hm."], server=Plain)


def test_a_file_without_users_cannot_be_replayed(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("")
    replay = {"policy": "replayed", "replay_fpath": str(tmp_path / "none.jsonl")}
    with pytest.raises(ConfigError, match="no rollout in it has a user"):
        talk(["Hm."], replay)


def test_the_settings_of_a_run_name_the_model_that_plays_the_user(tmp_path: Path) -> None:
    simulator = {"policy": "model", "model_server": {"name": "user_model"}}

    async def collect(name: str) -> JsonObject:
        class Played(ScriptedModel):
            def generation_settings(self) -> JsonObject:
                return {"temperature": name}

        servers = {
            "policy_model": lambda peers, name: ScriptedModel([]),
            "user_model": lambda peers, name: Played(["###STOP###"], peers, name),
            "lamp": making(Lamp),
            "agent": making(SimpleAgent, **WIRING, user_simulator=simulator),
        }
        async with mount(servers) as peers:
            config = config_of(tmp_path).command
            known = await know_agent(peers, "agent", {}, config)
            return {**known.settings[""], "fingerprint": known.plan.settings}

    one, two = (asyncio.run(collect(name)) for name in ("warm", "cold"))
    assert one["user_model"] != two["user_model"] and one["fingerprint"] != two["fingerprint"]


def test_an_agent_without_a_user_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    row = {"responses_create_params": {"input": []}, "user": USER}

    async def main() -> Any:
        return await rk.collect([row], model=lambda params: "Hm.", environment=Lamp)

    with pytest.raises(ConfigError, match="the tasks of Lamp have a user: set user_simulator"):
        asyncio.run(main())


def test_a_limit_that_the_user_reaches_leaves_the_policy_one_turn() -> None:
    """The user has one reply: it would be an error to ask it again."""
    user = {**USER, "openings": []}
    response, stats, _ = talk(
        ["Hm?"], PLAYED, user=user, user_model=["Hi."], rollout_limits={"calls": 1}
    )
    assert stats["finish_reason"] == "rollout_limit" and stats["num_turns"] == 1
    assert response["id"] and response["status"] == "incomplete"
