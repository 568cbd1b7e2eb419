"""Turns of long rollouts are on disk: a restarted run continues after the last one."""

import asyncio
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from support import Bench, asked, config_of, made, read_jsonl, row, write_jsonl

from rollout_kit.api.testing import Over, ScriptedModel, call_response, making, mount, run_virtual
from rollout_kit.commands.collect_rollouts import collect_through
from rollout_kit.commands.progress import Progress
from rollout_kit.errors import ConfigError, ModelError, SessionLost
from rollout_kit.launch.reach import Servers
from rollout_kit.serving import registry
from rollout_kit.serving.agents import turns as agents
from rollout_kit.serving.endpoints.prices import Prices
from rollout_kit.serving.gymnasium import GameRequest, GymnasiumServer, Step
from rollout_kit.serving.resources_server import ResourcesServer, tool
from rollout_kit.store import turns as turn_store
from rollout_kit.store.files import OutputPaths
from rollout_kit.store.journal import Journal
from rollout_kit.types import JsonObject, Key, Rollout, StoredTurn, VerifyRequest, VerifyResponse

NUM_TURNS = 6


class Adder(ResourcesServer):
    """Adds up numbers in the session's state; the reward is the sum."""

    reverify = "replay"
    num_calls = 0
    breaks: Callable[["Adder"], None] = staticmethod(lambda adder: None)

    async def seed_session(self, body: JsonObject) -> JsonObject:
        self.state = {"sum": 0}
        return {}

    @tool
    async def add(self, number: int) -> str:
        type(self).num_calls += 1
        type(self).breaks(self)
        self.state["sum"] += number
        return f"the sum is {self.state['sum']}"

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        return body.scored(float(self.state["sum"]))


class Stateful(Adder):
    reverify = "never"


class Policy:
    """Calls the tool in each turn but the last. Turn `down_at` fails while it is set."""

    def __init__(self, num_turns: int = NUM_TURNS, down_at: int = 0, num_tools: int = 1) -> None:
        self.num_turns, self.down_at, self.num_tools = num_turns, down_at, num_tools
        self.turns: list[int] = []

    def __call__(self, params: JsonObject) -> Any:
        kinds = [item.get("type") for item in params["input"]]
        turn = kinds.count("function_call") // self.num_tools + 1
        self.turns.append(turn)
        if turn == self.down_at:
            raise ModelError("is away", status=503)
        if turn == self.num_turns:
            return f"done after {turn} turns"
        return call_response(*[("add", json.dumps({"number": turn}))] * self.num_tools)


@pytest.fixture
def adder(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(agents, "SHORT_TURNS", 2)
    monkeypatch.setattr(agents, "SHORT_S", math.inf)
    Adder.num_calls, Adder.breaks = 0, staticmethod(lambda adder: None)
    bench.verifier = making(Adder)
    return bench


def collect(bench: Bench, policy: Policy, run: Any = asyncio.run, **keys: Any) -> int:
    bench.model = ScriptedModel(policy)
    bench.model.config = bench.model.Config(prices=Prices(input=1.0, output=1.0))
    return run(bench.collect([row("q")], **{"max_attempts": 1, **keys}))


def turns_file(bench: Bench) -> Path:
    return bench.folder / "rollouts.d/turns.jsonl"


def list_turns(bench: Bench) -> list[JsonObject]:
    """The lines of turns, without those of what came back for them."""
    return [line for line in bench.lines("turns") if "returned" not in line["turn"]]


def test_a_run_that_broke_off_continues_after_the_last_stored_turn(
    adder: Bench, over: Over
) -> None:
    adder.collects_over = over
    assert collect(adder, first := Policy(down_at=5)) == 2
    assert first.turns == [1, 2, 3, 4, 5]
    stored = list_turns(adder)
    assert [(line["kind"], line["schema"]) for line in stored] == [("turn", 1)] * 4
    assert collect(adder, second := Policy()) == 0
    assert second.turns == [5, 6] and not turns_file(adder).exists()
    [line] = adder.lines()
    assert line["reward"] == 1 + 2 + 3 + 4 + 5
    assert line["rollout"]["num_turns"] == 6 and line["rollout"]["resumed_turns"] == 4
    assert line["rollout"]["num_tool_calls"] == 5
    assert "unfinished rollouts that continue from stored turns: 1" in adder.out.getvalue()


def test_a_continued_rollout_equals_one_that_was_not_interrupted(adder: Bench) -> None:
    assert collect(adder, Policy()) == 0
    [whole] = adder.lines()
    (adder.folder / "rollouts.jsonl").unlink()
    assert collect(adder, Policy(down_at=4)) == 2
    assert collect(adder, Policy()) == 0
    [continued] = adder.lines()

    def texts(line: JsonObject) -> list[Any]:
        items = line["response"]["output"]
        return [(item["type"], item.get("output"), item.get("arguments")) for item in items]

    assert texts(continued) == texts(whole)
    assert continued["usage"] == whole["usage"]
    assert continued["rollout"]["cost_usd"] == whole["rollout"]["cost_usd"] > 0


@pytest.mark.parametrize("num_turns", [1, 2])
def test_a_short_rollout_writes_no_turn(adder: Bench, num_turns: int) -> None:
    assert collect(adder, Policy(num_turns, down_at=num_turns)) == 2
    assert not turns_file(adder).exists()


def test_a_slow_turn_is_stored_before_its_tools_run(
    adder: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "SHORT_S", 0)
    stored = []
    Adder.breaks = staticmethod(lambda server: stored.append(len(list_turns(adder))))
    assert collect(adder, Policy(3)) == 0
    assert stored == [1, 2]


@pytest.mark.parametrize(
    ("server", "keys", "num_stored"),
    [
        (Adder, {"save_turns": False}, 0),
        (Adder, {"save_turns": "auto"}, 4),
        (Stateful, {}, 0),
        (Stateful, {"save_turns": True}, 4),
    ],
)
def test_turns_are_stored_where_a_response_can_be_verified_again(
    adder: Bench, server: type[Adder], keys: JsonObject, num_stored: int
) -> None:
    adder.verifier = making(server)
    assert collect(adder, Policy(down_at=5), **keys) == 2
    assert len(list_turns(adder)) == num_stored


def test_save_turns_of_an_agent_that_does_not_report_them_is_refused(
    adder: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollout_kit.serving.agent import Agent

    describe = Agent.describe
    monkeypatch.setattr(Agent, "describe", lambda self: {**describe(self), "reports_turns": None})
    assert collect(adder, Policy()) == 0
    (adder.folder / "rollouts.jsonl").unlink()
    with pytest.raises(ConfigError, match="does not report its turns"):
        collect(adder, Policy(), save_turns=True)


def test_parallel_tool_calls_of_stored_turns_are_executed_in_the_new_session(adder: Bench) -> None:
    assert collect(adder, Policy(down_at=5, num_tools=3)) == 2
    assert collect(adder, second := Policy(num_tools=3)) == 0
    assert second.turns == [5, 6] and adder.lines()[0]["reward"] == 3 * 15


def test_a_tool_that_answers_otherwise_has_the_model_asked_again_from_there(adder: Bench) -> None:
    assert collect(adder, Policy(down_at=5)) == 2

    def lose_the_second(server: Adder) -> None:
        if server.state["sum"] == 1:
            server.state["sum"] = 100

    Adder.breaks = staticmethod(lose_the_second)
    assert collect(adder, second := Policy()) == 0
    assert second.turns == [3, 4, 5, 6]
    [line] = adder.lines()
    outputs = [item["output"] for item in line["response"]["output"] if "output" in item]
    assert outputs[:2] == ["the sum is 1", "the sum is 102"]


def test_a_turn_in_another_file_is_not_a_rollout(adder: Bench) -> None:
    """As `cat rollouts*.jsonl` leaves it."""
    assert collect(adder, Policy(down_at=5)) == 2
    (adder.folder / "rollouts.jsonl").write_bytes(turns_file(adder).read_bytes())
    turns_file(adder).unlink()
    assert collect(adder, second := Policy()) == 0
    assert second.turns == [1, 2, 3, 4, 5, 6]


def test_turns_of_other_settings_are_not_used(adder: Bench) -> None:
    assert collect(adder, Policy(down_at=5)) == 2
    lines = adder.lines("turns")
    for line in lines:
        line["turn"]["settings"] = "another"
    turns_file(adder).write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    assert collect(adder, second := Policy()) == 0
    assert second.turns == [1, 2, 3, 4, 5, 6]


def test_a_torn_turn_is_cut_and_the_turns_before_it_count(adder: Bench) -> None:
    assert collect(adder, Policy(down_at=5)) == 2
    raw = turns_file(adder).read_bytes()
    last = raw.rindex(b'"response":')  # the line after it has what came back for the turn
    turns_file(adder).write_bytes(raw[: last + 20])
    assert collect(adder, second := Policy()) == 0
    assert second.turns == [4, 5, 6] and adder.lines()[0]["reward"] == 15


def test_an_attempt_after_the_death_of_a_server_continues_too(adder: Bench) -> None:
    def die_once(server: Adder) -> None:
        if Adder.num_calls == 4:
            raise SessionLost("the server was restarted")

    Adder.breaks = staticmethod(die_once)
    assert collect(adder, policy := Policy(), max_attempts=3) == 0
    assert policy.turns == [1, 2, 3, 4, 5, 6] and adder.lines()[0]["reward"] == 15


def test_turns_that_break_a_server_each_time_are_not_made_again(adder: Bench) -> None:
    def die(server: Adder) -> None:
        if server.state["sum"] == 3:
            raise SessionLost("the call kills the server")

    Adder.breaks = staticmethod(die)
    assert collect(adder, policy := Policy(), run=run_virtual) == 2
    assert policy.turns[:6] == [1, 2, 3, 1, 2, 3]
    assert not turns_file(adder).exists(), "the next run would break the server again"


def test_a_recorded_run_stores_no_turns(adder: Bench) -> None:
    from rollout_kit.serving.transport.cassette import Cassette, Tapes

    cassette = Cassette(Tapes(record=str(adder.folder / "tape"), models=["policy_model"]))
    adder.cassette = cassette
    assert collect(adder, Policy(down_at=5)) == 2
    assert not turns_file(adder).exists()


def test_the_file_is_written_anew_when_most_of_it_is_about_finished_rollouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_store, "ROOMY", 0)
    paths = OutputPaths(tmp_path / "r.jsonl")
    journal = Journal(paths)
    kept = Key("kept", "agent", "", 0)
    for number in range(50):
        key = Key(f"t{number}", "agent", "", 0)
        journal.append_turn(StoredTurn(key, 0, {"request": "d", "response": {"x": "y" * 100}}))
        if number == 20:
            journal.append_turn(StoredTurn(kept, 0, {"request": "d", "response": {}}))
        journal.append_all([Rollout(*made(key))])
    assert paths.turns.read_bytes().count(b"\n") < 5
    assert journal.find_turns(kept) == [{"request": "d", "response": {}}]
    journal.check()
    journal.close(clean=True)
    assert paths.turns.read_bytes().count(b"\n") == 1
    again = Journal(paths)
    assert again.num_unfinished == 1 and again.find_turns(kept)
    again.append_all([Rollout(*made(kept))])
    again.close(clean=True)
    assert not paths.turns.exists()


def test_the_question_is_still_asked_once_for_each_repeat(adder: Bench) -> None:
    """Stored turns of one repeat are not used for another."""
    assert collect(adder, Policy(down_at=5), num_repeats=3) == 2
    policy = Policy()
    assert collect(adder, policy, num_repeats=4) == 0
    assert sorted(policy.turns) == sorted([5, 6] * 3 + [1, 2, 3, 4, 5, 6])
    assert {asked(line["responses_create_params"]) for line in adder.lines()} == {"q"}


def test_a_game_is_played_again_up_to_the_last_stored_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over: Over
) -> None:
    monkeypatch.setattr(agents, "SHORT_TURNS", 2)
    monkeypatch.setattr(agents, "SHORT_S", math.inf)

    class Countdown:
        """Six steps; the reward of each is its number."""

        def __init__(self) -> None:
            self.steps, self.observation = 0, "step 0"

        def step(self, action: str) -> Step:
            self.steps += 1
            return Step(f"step {self.steps}", float(self.steps), terminated=self.steps == 6)

    class Game(GymnasiumServer):
        def new_game(self, row: GameRequest) -> Countdown:
            return Countdown()

    turns: list[int] = []

    def play(params: JsonObject) -> str:
        turns.append(sum(item.get("role") == "assistant" for item in params["input"]) + 1)
        if turns == [1, 2, 3, 4]:
            raise ModelError("is away", status=503)
        return "go on"

    write_jsonl(tmp_path / "tasks.jsonl", [row("play")])
    wiring = {"resources_server": {"name": "game"}, "model_server": {"name": "policy_model"}}
    gym = registry.load("responses_api_agents", "gymnasium_agent")
    model = ScriptedModel(play)
    servers = {
        "policy_model": lambda peers, name: model,
        "game": making(Game),
        "agent": making(gym, **wiring),
    }

    async def main() -> int:
        async with mount(servers, over) as peers:
            reached = Servers(peers, ["agent"], {}, {})
            progress = Progress(out=io.StringIO(), err=io.StringIO())
            config = config_of(tmp_path, max_attempts=1)
            return await collect_through(reached, config, ["+the=command"], progress)

    assert asyncio.run(main()) == 2
    assert asyncio.run(main()) == 0
    assert turns == [1, 2, 3, 4, 4, 5, 6]
    [line] = read_jsonl(tmp_path / "rollouts.jsonl")
    assert line["reward"] == 1 + 2 + 3 + 4 + 5 + 6 and line["rollout"]["resumed_turns"] == 3
