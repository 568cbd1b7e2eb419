"""What servers return that JSON cannot hold: over every transport the error says what and where."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from endpoint import endpoint, says
from support import read_jsonl
from workplace import Workplace

from rollout_kit.api.testing import OVERS, Over, making, mount
from rollout_kit.errors import RolloutError, ToolError, VerifyError
from rollout_kit.serving.agent import Agent
from rollout_kit.serving.resources_server import ResourcesServer, ResourcesServerConfig, tool
from rollout_kit.serving.transport.encoding import NotJson, encode
from rollout_kit.session import Session, entered
from rollout_kit.types import JsonObject, VerifyRequest, VerifyResponse

LONE, NO_TYPE = "a text with the lone surrogate U+D800 at character", "which JSON does not have"


ROW: JsonObject = {"responses_create_params": {"input": "hi"}}


class Thing:
    """An object that even `repr` refuses."""

    def __repr__(self) -> str:
        raise ValueError("no name")


def deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


def circle() -> JsonObject:
    found: JsonObject = {}
    found["again"] = [found]
    return found


ODD: list[tuple[Any, str]] = [
    ({"items": [1, 2, 3, Thing()]}, f"details.items[3]=<Thing>, of type Thing, {NO_TYPE}"),
    (
        {"a b": [len]},
        "details['a b'][0]=<built-in function len>, of type builtin_function_or_method",
    ),
    ({"text": "a\ud800"}, rf"details.text='a\ud800', {LONE} 1"),
    ({"a\ud800": 1}, rf"details with the key 'a\ud800', {LONE} 1"),
    ({Thing(): 1}, "details with the key <Thing>, which is no text"),
    (deep(400), "details[0][0][0]"),
    (deep(100_000), "nested more than 250 levels deep"),
    (circle(), "details.again[0], which contains itself"),
    ([b"\xff"], r"details[0]=b'\xff', bytes that are no UTF-8 text"),
    ((1, {"x": range(3)}), f"details[1].x=range(0, 3), of type range, {NO_TYPE}"),
    ([VerifyResponse.model_construct(reward=object)], "details[0].reward=<class 'object'>"),
]


class Odd(ResourcesServer):
    """Returns one of the odd values from everything."""

    class Config(ResourcesServerConfig):
        number: int

    config: Config

    @property
    def value(self) -> Any:
        return ODD[self.config.number][0]

    async def seed_session(self, body: JsonObject) -> JsonObject:  # type: ignore[override]
        self.state = {}
        return {"details": self.value} if "seed" in body else {}

    @tool
    async def look(self) -> JsonObject:
        return {"details": self.value}

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        return body.scored(1.0, details=self.value)


class OddAgent(Agent):
    async def respond(self, params: JsonObject) -> JsonObject:
        return {"output": [], "details": ODD[params["number"]][0]}


@pytest.mark.parametrize("over", OVERS)
@pytest.mark.parametrize("number", range(len(ODD)))
def test_the_error_says_what_was_returned_and_where(number: int, over: Over) -> None:
    said = ODD[number][1]

    async def main() -> None:
        async with mount({"odd": making(Odd, number=number)}, over) as peers:
            with entered(Session()):
                with pytest.raises(RolloutError) as raised:
                    await peers.call("odd", "/seed_session", {**ROW, "seed": 1}, dict)
                _check(raised.value, "/seed_session returned ", said)
            with entered(Session()):
                await peers.call("odd", "/seed_session", ROW, dict)
                with pytest.raises(RolloutError) as raised:
                    await peers.call("odd", "/look", {}, str)
                assert not isinstance(raised.value, ToolError), "the policy cannot mend it"
                _check(raised.value, "/look returned ", said)
                with pytest.raises(VerifyError) as failed:
                    await peers.verify("odd", {**ROW, "response": {}})
                _check(failed.value, "/verify returned ", said)

    asyncio.run(main())


def _check(error: RolloutError, start: str, said: str) -> None:
    assert error.message.startswith(start) and said in error.message
    assert error.server == "odd" and not error.retryable
    assert "\n" not in error.message and len(error.message) < 300


@pytest.mark.parametrize("over", OVERS)
def test_a_secret_in_what_was_returned_is_masked(over: Over) -> None:
    class Telling(ResourcesServer):
        class Config(ResourcesServerConfig):
            api_key: str

        async def verify(self, body: VerifyRequest) -> VerifyResponse:
            return body.scored(1.0, text=f"\ud800 {self.config.api_key}")

    async def main() -> str:
        async with mount({"telling": making(Telling, api_key="sk-0123456789")}, over) as peers:
            with pytest.raises(VerifyError) as raised:
                await peers.verify("telling", {**ROW, "response": {}})
            return raised.value.message

    message = asyncio.run(main())
    assert "****" in message and "sk-01234" not in message


@pytest.mark.parametrize("over", OVERS)
def test_a_text_of_a_tool_is_checked_too(over: Over) -> None:
    class Broken(ResourcesServer):
        @tool
        async def read(self) -> str:
            return "cut \ud83d"

        async def verify(self, body: VerifyRequest) -> VerifyResponse:
            return body.scored(1.0)

    async def main() -> str:
        async with mount({"broken": making(Broken)}, over) as peers:
            with entered(Session()):
                await peers.call("broken", "/seed_session", ROW, dict)
                with pytest.raises(RolloutError) as raised:
                    await peers.call("broken", "/read", {}, str)
                return raised.value.message

    assert asyncio.run(main()) == (
        r"/read returned 'cut \ud83d', a text with the lone surrogate U+D83D at character 4"
    )


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        ("1.0", "got '1.0' (str)"),
        (None, "got None (NoneType)"),
        (float("nan"), "got nan (float)"),
        (1e301, "got 1e+301 (float)"),
        (10**400, "(int)"),
        ([1.0], "got [1.0] (list)"),
        (Thing(), "got <Thing> (Thing)"),
        (deep(100_000), "(list)"),
    ],
)
def test_an_odd_reward_is_quoted_with_its_type(reward: Any, said: str) -> None:
    class Rewarding(ResourcesServer):
        def verify(self, task: JsonObject, response: JsonObject) -> Any:  # type: ignore[override]
            return {"reward": reward}

    async def main() -> RolloutError:
        async with mount({"odd": making(Rewarding)}) as peers:
            with pytest.raises(VerifyError) as raised:
                await peers.verify("odd", {**ROW, "response": {}})
            return raised.value

    error = asyncio.run(main())
    assert error.message.startswith("reward must be a finite number of at most 1e+300, got ")
    assert said in error.message and not error.retryable


@pytest.mark.parametrize(
    "value", [{1, 2}, {"x": {1}}, {1: 2}, [Thing()], Thing(), "\ud800", b"\xff"]
)
def test_only_what_can_be_written_is_encoded(value: Any) -> None:
    try:
        raw = encode(value)
    except NotJson as error:
        assert str(error) and "\n" not in str(error)
    else:
        assert isinstance(value, bytes) and raw == value


APP = """
from rollout_kit.serving.resources_server import ResourcesServer


class Echo(ResourcesServer):
    def verify(self, task, response):
        return {"reward": 1.0, "details": {"items": [1, 2, 3, object()]}}
"""

AGENT = """
from rollout_kit.serving.agent import Agent


class OddAgent(Agent):
    async def respond(self, params):
        return {"output": [], "details": {1, 2}}
"""


@pytest.mark.parametrize("placement", ["local", "process"])
def test_a_rollout_with_an_odd_verdict_keeps_its_response(placement: str, tmp_path: Path) -> None:
    with endpoint(says(lambda body: "a good answer")) as model:
        place = Workplace(tmp_path, model)
        (tmp_path / "resources_servers/echo/app.py").write_text(APP)
        place.tasks(1)
        code, said = place.collect(f"+echo.resources_servers.echo.placement={placement}")
        what = "/verify returned details.items[3]=<object object at "
        [failed], [kept] = place.lines("failures"), place.lines("unverified")
        for line in (failed, kept):
            assert line["failure"]["message"].startswith(what)
            assert line["failure"]["message"].endswith("of type object, which JSON does not have")
        assert "a good answer" in json.dumps(kept["response"])
        assert "Internal Server Error" not in said and code
        (tmp_path / "resources_servers/echo/app.py").write_text(APP.replace("object()", "4"))
        code, said = place.collect(f"+echo.resources_servers.echo.placement={placement}")
        assert [line["details"] for line in place.lines()] == [{"items": [1, 2, 3, 4]}], said
        assert len(model.requests) == 1, "the response was not paid for again"


@pytest.mark.parametrize("argv", [[], ["+skip_verification=true"]])
@pytest.mark.parametrize("placement", ["local", "process"])
def test_an_agent_with_an_odd_response_is_named(
    placement: str, argv: list[str], tmp_path: Path
) -> None:
    with endpoint(says(lambda body: "never asked")) as model:
        place = Workplace(tmp_path, model)
        (tmp_path / "responses_api_agents/odd").mkdir(parents=True)
        (tmp_path / "responses_api_agents/odd/app.py").write_text(AGENT)
        text = (tmp_path / "run.yaml").read_text()
        (tmp_path / "run.yaml").write_text(text.replace("simple_agent:", "odd:"))
        place.tasks(1)
        place.collect(f"+echo_agent.responses_api_agents.odd.placement={placement}", *argv)
    [line] = read_jsonl(tmp_path / "out/rollouts.d/failures.jsonl")
    assert line["failure"]["message"] == (
        f"/v1/responses returned details={{1, 2}}, of type set, {NO_TYPE}"
    )
