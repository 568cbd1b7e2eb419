"""The agent over a scripted model and a small game: every turn is played, and it always ends."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import Response

from rollout_kit.api.testing import (
    OVERS,
    Over,
    ScriptedModel,
    call_response,
    making,
    mount,
    run_virtual,
    text_response,
)
from rollout_kit.errors import PeerLost, SessionLost
from rollout_kit.responses import make_response, reasoning_item
from rollout_kit.serving import registry
from rollout_kit.serving.gymnasium import GameRequest, GymnasiumServer, Step, actions
from rollout_kit.serving.resources_server import tool
from rollout_kit.serving.service import Service, post
from rollout_kit.session import Session, entered
from rollout_kit.types import JsonObject

GymnasiumAgent = registry.load("responses_api_agents", "gymnasium_agent")
WIRING = {"resources_server": {"name": "game"}, "model_server": {"name": "policy_model"}}
ROW = {"responses_create_params": {"input": "Count down."}, "seed": 3}


class Countdown:
    """Say the number that is shown; a point for each, and it is over at nought."""

    def __init__(self, left: int) -> None:
        self.left = left

    @property
    def observation(self) -> str:
        return f"{self.left}?"

    def step(self, action: str) -> Step:
        if action == "quit":
            return Step(reward=-1, truncated=True)
        reward = float(action == str(self.left))
        self.left -= 1
        if not self.left:
            return Step(reward=reward, terminated=True, info={"last": action})
        return Step(self.observation, reward)


class CountdownServer(GymnasiumServer):
    def new_game(self, row: GameRequest) -> Countdown:
        return Countdown(row.seed)


def run(
    answers: Any, row: JsonObject = ROW, over: Over = "local", game: Any = None, **settings: Any
) -> tuple[JsonObject, ScriptedModel]:
    model = ScriptedModel(answers)

    async def main() -> JsonObject:
        servers = {
            "policy_model": lambda peers, name: model,
            "game": game or making(CountdownServer),
            "agent": making(GymnasiumAgent, **WIRING, **settings),
        }
        async with mount(servers, over) as peers:
            return await peers.call("agent", "/run", row, dict)

    return asyncio.run(main()), model


def respond(answers: Any, session: Session | None = None, **settings: Any) -> JsonObject:
    """The response alone, as a collector has it."""

    async def main() -> JsonObject:
        servers = {
            "policy_model": lambda peers, name: ScriptedModel(answers),
            "game": making(CountdownServer),
            "agent": making(GymnasiumAgent, **WIRING, **settings),
        }
        async with mount(servers) as peers:
            with entered(session or Session()):
                await peers.call("game", "/seed_session", ROW, dict)
                params = ROW["responses_create_params"]
                return await peers.call("agent", "/v1/responses", params, dict)

    return asyncio.run(main())


@pytest.mark.parametrize("over", OVERS)
def test_a_game_is_played_to_its_end(over: Over) -> None:
    row, model = run(["3", "no", "1"], over=over)
    assert (row["reward"], row["num_steps"]) == (2.0, 3)
    assert (row["terminated"], row["truncated"], row["info"]) == (True, False, {"last": "1"})
    said = [item["content"][0]["text"] for item in row["response"]["output"]]
    assert said == ["3?", "3", "2?", "no", "1?", "1"]
    assert row["response"]["usage"]["total_tokens"] == 6
    assert [len(call["input"]) for call in model.calls] == [2, 4, 6]
    assert model.calls[1]["input"][0] == {"role": "user", "content": "Count down."}
    parsed = Response.construct(**row["response"])  # as the SDK's client reads it
    assert parsed.output_text == "3no1" and parsed.output[1].id.startswith("msg_")


def test_the_game_may_cut_itself_short() -> None:
    row, _ = run(["3", "quit"])
    assert (row["reward"], row["terminated"], row["truncated"]) == (0.0, False, True)


def test_at_max_steps_the_game_is_left() -> None:
    row, model = run(["3", "2"], max_steps=2)
    assert (row["reward"], row["terminated"], row["truncated"]) == (2.0, False, True)
    assert len(model.calls) == 2


@pytest.mark.parametrize(
    ("answers", "settings", "reason"),
    [
        (["3", "2", "1"], {}, "terminated"),
        (["quit"], {}, "truncated"),
        (["3"], {"max_steps": 1}, "max_steps"),
        (
            [make_response("m", [], None, incomplete_reason="max_output_tokens")],
            {},
            "max_output_tokens",
        ),
    ],
)
def test_it_says_why_it_ended(answers: Any, settings: JsonObject, reason: str) -> None:
    session = Session()
    respond(answers, session, **settings)
    stats = session.stats
    assert stats["finish_reason"] == reason
    assert stats["num_turns"] == len(answers) and stats["num_tool_calls"] == 0
    assert stats["model_s"] >= 0 and stats["tool_s"] > 0


def test_each_tool_call_of_a_turn_is_counted() -> None:
    session = Session()
    respond([call_response(("a", "{}"), ("b", "{}")), call_response(("a", "{}")), "1"], session)
    assert (session.stats["num_turns"], session.stats["num_tool_calls"]) == (3, 3)


def test_a_turn_without_a_word_is_a_turn_all_the_same() -> None:
    silent = make_response("m", [], None)
    row, _ = run(["3", silent, "1"])
    assert (row["reward"], row["num_steps"]) == (2.0, 3)


def test_reasoning_belongs_to_its_turn_and_is_no_action() -> None:
    thought = text_response("3")
    thought["output"].insert(0, reasoning_item("it says 3"))
    row, model = run([thought, "2", "1"])
    assert (row["reward"], row["num_steps"]) == (3.0, 3)
    assert model.calls[1]["input"][2]["type"] == "reasoning"


def test_a_turn_that_was_asked_for_twice_is_played_once() -> None:
    lost = iter([True, False, True, True, False, False])

    def answer(params: JsonObject) -> str:
        if next(lost):
            raise PeerLost("died")
        return params["input"][-1]["content"][0]["text"].strip("?")

    row, _ = run(answer)
    assert (row["reward"], row["num_steps"]) == (3.0, 3)


class Foreign(Service):
    """A game as another project writes it: tools, observations left out, nothing to verify."""

    kind = "resources_servers"

    @post("/seed_session")
    async def seed(self, body: JsonObject) -> JsonObject:
        return {}

    @post("/reset")
    async def reset(self, body: JsonObject) -> JsonObject:
        return {"observation": None, "info": {}}

    @post("/step")
    async def step(self, body: JsonObject) -> JsonObject:
        outputs = [{"call_id": "c", "output": "9"}]
        return {
            "observation": None,
            "reward": 1,
            "terminated": True,
            "info": {"tool_outputs": outputs},
        }

    @post("/verify")
    async def verify(self, body: JsonObject) -> JsonObject:
        return {**body, "reward": 1.0}


def test_tool_outputs_of_a_game_stand_in_the_response() -> None:
    row, _ = run(["x"], game=making(Foreign))
    kinds = [item["type"] for item in row["response"]["output"]]
    assert kinds == ["message", "function_call_output"] and row["reward"] == 1.0


@pytest.mark.parametrize("path", ["/reset", "/step"])
def test_nobody_plays_without_a_session(path: str) -> None:
    async def main() -> None:
        async with mount({"game": making(CountdownServer)}) as peers:
            with entered(Session()):
                await peers.call("game", path, {"response": {"output": []}}, dict)

    with pytest.raises(SessionLost):
        asyncio.run(main())


@pytest.mark.parametrize("over", OVERS)
def test_sessions_are_apart_and_are_closed(over: Over) -> None:
    async def main() -> list[str]:
        said = []
        async with mount({"game": making(CountdownServer)}, over) as peers:
            sessions = [Session(), Session()]
            for number, session in enumerate(sessions):
                with entered(session):
                    await peers.call("game", "/seed_session", {**ROW, "seed": 5 + number}, dict)
            for session in [*sessions, *sessions]:
                with entered(session):
                    body = {"response": text_response("5")}
                    step = await peers.call("game", "/step", body, dict)
                    said.append((step["observation"], step["reward"]))
            with entered(sessions[0]):
                again = await peers.call("game", "/reset", {}, dict)
                said.append((again["observation"], 0))
                await peers.call("game", "/close_session", {}, dict)
                with pytest.raises(SessionLost):
                    await peers.call("game", "/step", {"response": {}}, dict)
        return said

    assert asyncio.run(main()) == [("4?", 1.0), ("5?", 0.0), ("3?", 0.0), ("4?", 1.0), ("5?", 0)]


def test_nobody_plays_on_when_the_game_is_over() -> None:
    async def main() -> Any:
        async with mount({"game": making(CountdownServer)}) as peers:
            with entered(Session()):
                await peers.call("game", "/seed_session", {**ROW, "seed": 1}, dict)
                await peers.call("game", "/step", {"response": text_response("1")}, dict)
                await peers.call("game", "/step", {"response": text_response("0")}, dict)

    with pytest.raises(Exception, match="the game is over"):
        asyncio.run(main())


def test_the_game_of_the_documents(tmp_path: Path) -> None:
    document = Path(__file__).parents[3] / "docs/writing-a-resources-server.md"
    _, _, rest = document.read_text().partition("```python resources_servers/countdown/app.py\n")
    folder = tmp_path / "resources_servers/countdown"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(rest.partition("```")[0])
    game = making(registry.load("resources_servers", "countdown", tmp_path))
    row, _ = run(["4", "3", "3", "1"], {**ROW, "seed": 1}, game=game)
    assert (row["reward"], row["num_steps"], row["terminated"]) == (3.0, 4, True)


@pytest.mark.parametrize("items", [[], [{"role": "user"}], [{"type": "reasoning"}], [{}]])
def test_no_response_is_too_odd_to_read(items: list[JsonObject]) -> None:
    assert set(actions(items)) <= {""}


class Slow(Countdown):
    """Each step takes a second."""

    async def step(self, action: str) -> Step:  # type: ignore[override]
        await asyncio.sleep(1)
        return super().step(action)


class SlowServer(GymnasiumServer):
    def new_game(self, row: GameRequest) -> Slow:
        return Slow(row.seed)


def test_64_games_step_at_the_same_time() -> None:
    async def main() -> tuple[float, list[float]]:
        servers = {
            "policy_model": lambda peers, name: ScriptedModel(lambda params: "1"),
            "game": making(SlowServer),
            "agent": making(GymnasiumAgent, **WIRING),
        }
        async with mount(servers) as peers:
            row = {**ROW, "seed": 1}
            began = asyncio.get_running_loop().time()
            calls = [peers.call("agent", "/run", row, dict) for _ in range(64)]
            rows = await asyncio.gather(*calls)
            return asyncio.get_running_loop().time() - began, [each["reward"] for each in rows]

    seconds, rewards = run_virtual(main())
    assert seconds == pytest.approx(1, abs=0.1) and rewards == [1.0] * 64


class Safe:
    """Say the code of the safe; a tool turns the light on, and shows it only then."""

    observation = "Which code?"

    def __init__(self, code: int) -> None:
        self.code, self.is_lit, self.num_looks = code, False, 0

    def step(self, action: str) -> Step:
        right = self.is_lit and action.split()[-1:] == [str(self.code)]
        return Step("" if right else "No.", float(right), terminated=right)


class SafeServer(GymnasiumServer):
    def new_game(self, row: GameRequest) -> Safe:
        return Safe(row.seed)

    @tool
    async def switch_light(self) -> str:
        """Turn the light on."""
        self.state.game.is_lit = True
        return "it is light"

    @tool
    async def look(self) -> str:
        """Look at the safe."""
        game = self.state.game
        game.num_looks += 1
        return str(game.code) if game.is_lit else "it is dark"


@pytest.mark.parametrize("over", OVERS)
def test_tools_of_a_game_s_server_are_offered_and_run_before_a_move(over: Over) -> None:
    both = [
        call_response(("look", "{}")),
        "7",
        call_response(("switch_light", "{}"), ("look", "{}")),
    ]
    row, model = run([*both, "3"], over=over, game=making(SafeServer))
    assert {each["name"] for each in model.calls[0]["tools"]} == {"look", "switch_light"}
    outputs = [item["output"] for item in row["response"]["output"] if "output" in item]
    assert outputs == ["it is dark", "it is light", "3"]
    assert (row["reward"], row["num_steps"]) == (1.0, 2)


def test_calls_are_counted_and_the_verdict_of_a_stored_game_is_the_same() -> None:
    session = Session()
    answers = [call_response(("switch_light", "{}")), call_response(("look", "{}")), "3"]

    async def main() -> tuple[JsonObject, JsonObject]:
        servers = {
            "policy_model": lambda peers, name: ScriptedModel(answers),
            "game": making(SafeServer),
            "agent": making(GymnasiumAgent, **WIRING),
        }
        async with mount(servers) as peers:
            with entered(session):
                await peers.call("game", "/seed_session", ROW, dict)
                response = await peers.call("agent", "/v1/responses", {"input": "?"}, dict)
                asked = {**ROW, "response": response}
                first = await peers.call("game", "/verify", asked, dict)
            return first, await peers.call("game", "/verify", asked, dict)

    first, again = asyncio.run(main())
    assert session.stats["num_tool_calls"] == 2 and session.stats["num_turns"] == 3
    assert first["reward"] == again["reward"] == 1.0 and first["num_steps"] == 1


def test_a_call_that_no_tool_has_is_the_game_s_to_answer() -> None:
    row, _ = run([call_response(("knock", "{}")), "quit"], game=making(SafeServer), max_steps=2)
    assert row["reward"] == 0.0 and row["num_steps"] == 2
