"""What servers promise each other, the same over every transport."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel
from support import Echo, EchoRequest

from rollout_kit.api.testing import Over, ScriptedModel, making, mount, text_response
from rollout_kit.errors import (
    ModelError,
    PeerError,
    RolloutError,
    SessionLost,
    TaskError,
    ToolError,
    VerifyError,
)
from rollout_kit.serving.agent import Agent
from rollout_kit.serving.resources_server import ResourcesServer, tool
from rollout_kit.serving.service import Service, post
from rollout_kit.session import Session, current_session, entered
from rollout_kit.types import JsonObject, VerifyRequest, VerifyResponse


class City(BaseModel):
    city: str


class Report(BaseModel):
    city: str
    text: str = "cold"


class Weather(ResourcesServer):
    """Counts, per session, how often it was asked."""

    async def seed_session(self, body: JsonObject) -> JsonObject:
        self.state = {"asked": [], "budget": body.get("budget", 9)}
        return {}

    @tool
    async def get_weather(self, body: City) -> Report:
        """Current weather of a city."""
        if body.city == "nowhere":
            raise ToolError("unknown city")
        if body.city == "crash":
            raise ZeroDivisionError("oops")
        self.state["asked"].append(body.city)
        return Report(city=body.city)

    @tool
    def add(self, a: int, b: int = 1) -> int:
        """Add two integers."""
        return a + b

    @tool
    async def motto(self) -> str:
        return "Grüße"

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        return body.scored(float(len(self.state["asked"])), asked=self.state["asked"])


class Meddler(Service):
    """Changes whatever it is given, and reports the session that it sees."""

    @post("/meddle")
    async def meddle(self, body: JsonObject) -> JsonObject:
        body["list"].append("meddled")
        return body

    @post("/who")
    async def who(self, body: JsonObject) -> JsonObject:
        session = current_session()
        return {"session": session.id if session else None}

    @post("/garbage")
    async def garbage(self, body: JsonObject) -> str:
        return "<html>not json"

    @post("/raises")
    async def raises(self, body: JsonObject) -> JsonObject:
        kinds: dict[str, type[RolloutError]] = {
            each.__name__: each
            for each in (ModelError, PeerError, SessionLost, TaskError, VerifyError)
        }
        raise kinds[body["kind"]](
            "said so", status=body["status"], body="its body", retryable=True, retry_after_s=2.5
        )

    @post("/breaks")
    async def breaks(self, body: JsonObject) -> JsonObject:
        raise KeyError("lost")


def test_a_tool_s_schema_comes_from_its_signature_and_docstring(over: Over) -> None:
    async def main() -> list[JsonObject]:
        async with mount({"weather": making(Weather)}, over) as peers:
            return await peers.call("weather", "/tools", None, list)

    tools = {each["name"]: each for each in asyncio.run(main())}
    assert set(tools) == {"get_weather", "add", "motto"}
    assert tools["get_weather"]["description"] == "Current weather of a city."
    assert tools["get_weather"]["parameters"]["required"] == ["city"]
    assert tools["add"]["parameters"]["properties"] == {
        "a": {"type": "integer"},
        "b": {"type": "integer", "default": 1},
    }
    assert tools["motto"]["parameters"] == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


def test_tools_give_text_models_and_plain_values(over: Over) -> None:
    async def main() -> list[Any]:
        async with mount({"weather": making(Weather)}, over) as peers:
            with entered(Session()):
                await peers.call("weather", "/seed_session", {"responses_create_params": {}}, dict)
                return [
                    await peers.call("weather", "/get_weather", {"city": "sf"}, str),
                    await peers.call("weather", "/get_weather", City(city="sf"), Report),
                    await peers.call("weather", "/add", {"a": 2}, str),
                    await peers.call("weather", "/motto", {}, str),
                ]

    report = Report(city="sf")
    assert asyncio.run(main()) == ['{"city":"sf","text":"cold"}', report, "3", "Grüße"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"city": "nowhere"}, "unknown city"),
        ({"city": "crash"}, "ZeroDivisionError: oops"),
        ({"town": "sf"}, "bad arguments: city: Field required"),
    ],
)
def test_what_a_tool_raises_is_a_tool_error(over: Over, arguments: JsonObject, said: str) -> None:
    async def main() -> None:
        async with mount({"weather": making(Weather)}, over) as peers:
            with entered(Session()):
                await peers.call("weather", "/seed_session", {"responses_create_params": {}}, dict)
                await peers.call("weather", "/get_weather", arguments, str)

    with pytest.raises(ToolError, match=said):
        asyncio.run(main())


def test_state_belongs_to_one_session_and_dies_with_it(over: Over) -> None:
    async def main() -> list[Any]:
        seen: list[Any] = []
        async with mount({"weather": making(Weather)}, over) as peers:
            task = {"responses_create_params": {}}

            async def attempt(cities: list[str]) -> float:
                with entered(Session()):
                    await peers.call("weather", "/seed_session", task, dict)
                    for city in cities:
                        await peers.call("weather", "/get_weather", {"city": city}, str)
                        await asyncio.sleep(0)
                    verdict = await peers.call("weather", "/verify", {**task, "response": {}}, dict)
                    await peers.call("weather", "/close_session", {}, dict)
                    with pytest.raises(SessionLost):
                        await peers.call("weather", "/get_weather", {"city": "late"}, str)
                    return verdict["reward"]

            seen += await asyncio.gather(*(attempt(["x"] * number) for number in range(5)))
            with entered(Session()), pytest.raises(SessionLost, match="not open"):
                await peers.call("weather", "/get_weather", {"city": "sf"}, str)
        return seen

    assert asyncio.run(main()) == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_row_that_the_verifier_cannot_take_is_refused_before_anything_else(over: Over) -> None:
    async def main(row: JsonObject) -> None:
        async with mount({"echo": making(Echo)}, over) as peers:
            with entered(Session()):
                await peers.call("echo", "/seed_session", row, dict)

    asyncio.run(main({"responses_create_params": {}, "expected": "x"}))
    with pytest.raises(TaskError, match="expected: Input should be a valid string"):
        asyncio.run(main({"responses_create_params": {}, "expected": 5}))


def test_a_verdict_carries_the_row_and_no_nulls_that_nobody_set(over: Over) -> None:
    class Defaults(EchoRequest):
        hint: str | None = None

    class Verifier(ResourcesServer):
        async def verify(self, body: Defaults) -> VerifyResponse:
            return body.scored(1, found=None)

    Verifier.verify.__annotations__["body"] = Defaults

    async def main() -> JsonObject:
        task = {"responses_create_params": {"input": "x"}, "expected": "x", "extra": [1]}
        async with mount({"v": making(Echo)}, over) as peers:
            response = text_response("x")
            return await peers.call("v", "/verify", {**task, "response": response}, dict)

    verdict = asyncio.run(main())
    assert verdict["reward"] == 1.0 and verdict["said"] == "x" and verdict["extra"] == [1]
    assert "hint" not in verdict


@pytest.mark.parametrize(
    "kind", ["ModelError", "PeerError", "SessionLost", "TaskError", "VerifyError"]
)
def test_errors_keep_their_type_and_everything_they_know(over: Over, kind: str) -> None:
    async def main() -> RolloutError:
        async with mount({"meddler": making(Meddler)}, over) as peers:
            with pytest.raises(RolloutError) as caught:
                await peers.call("meddler", "/raises", {"kind": kind, "status": 503}, dict)
            return caught.value

    error = asyncio.run(main())
    assert type(error).__name__ == kind
    assert (error.message, error.status, error.body) == ("said so", 503, "its body")
    assert (error.server, error.retryable, error.retry_after_s) == ("meddler", True, 2.5)


def test_a_server_s_bug_is_its_own_error_with_its_name(over: Over) -> None:
    async def main() -> None:
        async with mount({"meddler": making(Meddler)}, over) as peers:
            await peers.call("meddler", "/breaks", {}, dict)

    with pytest.raises(RolloutError, match="meddler: KeyError: 'lost'") as caught:
        asyncio.run(main())
    assert caught.value.status == 500 and caught.value.retryable


def test_a_server_cannot_change_its_caller_s_body(over: Over) -> None:
    async def main() -> JsonObject:
        body = {"list": ["mine"]}
        async with mount({"meddler": making(Meddler)}, over) as peers:
            await peers.call("meddler", "/meddle", body, dict)
        return body

    assert asyncio.run(main()) == {"list": ["mine"]}


def test_the_session_travels_with_every_call(over: Over) -> None:
    async def main() -> list[str | None]:
        async with mount({"meddler": making(Meddler)}, over) as peers:

            async def who(session: Session | None) -> str | None:
                with entered(session):
                    return (await peers.call("meddler", "/who", {}, dict))["session"]

            return await asyncio.gather(*map(who, [Session("a"), Session("b"), None]))

    assert asyncio.run(main()) == ["a", "b", None]


def test_an_unreadable_reply_and_an_unknown_route_or_peer_are_named(over: Over) -> None:
    async def main() -> list[str]:
        said = []
        async with mount({"meddler": making(Meddler)}, over) as peers:
            for server, path in (("meddler", "/garbage"), ("meddler", "/nope"), ("medler", "/who")):
                with pytest.raises(RolloutError) as caught:
                    await peers.call(server, path, {}, dict)
                said.append(str(caught.value))
        return said

    garbage, route, peer = asyncio.run(main())
    assert "cannot be read" in garbage
    assert "meddler" in route
    assert "did you mean 'meddler'?" in peer


def test_an_agent_s_run_verifies_or_says_why_not(over: Over) -> None:
    class Parrot(Agent):
        async def respond(self, params: JsonObject) -> JsonObject:
            return await self.peers.call(self.model, "/v1/responses", params, dict)

    wiring = {"resources_server": {"name": "echo"}, "model_server": {"name": "model"}}

    async def main(row: JsonObject) -> JsonObject:
        servers = {
            "model": lambda peers, name: ScriptedModel(lambda params: "x", peers, name),
            "echo": making(Echo),
            "agent": making(Parrot, **wiring),
        }
        async with mount(servers, over) as peers:
            return await peers.call("agent", "/run", row, dict)

    full = asyncio.run(main({"responses_create_params": {"input": "?"}, "expected": "x"}))
    assert full["reward"] == 1.0
    bare = asyncio.run(main({"responses_create_params": {"input": "?"}}))
    assert "reward" not in bare and "expected" in bare["verify_error"] and bare["response"]


def test_servers_describe_themselves_alike_over_every_transport(over: Over) -> None:
    async def main() -> JsonObject:
        async with mount({"weather": making(Weather)}, over) as peers:
            return await peers.describe("weather")

    about = asyncio.run(main())
    assert about["reverify"] == "never" and about["type"] == "resources_servers"
    assert len(about["verifier"]) == 16


def test_a_tool_cannot_be_called_like_a_route() -> None:
    with pytest.raises(TypeError, match="cannot be called 'verify'"):

        class Bad(ResourcesServer):
            @tool
            def verify(self, task: JsonObject, response: JsonObject) -> float:
                return 1.0
