"""OpenEnv's protocol on both sides: a server of ours, played by our client over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rollout_kit import ConfigError, JsonObject, RolloutError, make_response
from rollout_kit.api.testing import making, mount
from rollout_kit.errors import SessionLost
from rollout_kit.serving import registry
from rollout_kit.serving.protocols.openenv_client import OpenEnvServer, PlayedEpisode, fetch
from rollout_kit.serving.sockets import bound_socket, url_of
from rollout_kit.serving.transport.peers import Http, Peers
from rollout_kit.session import Session, entered

pytest.importorskip("websockets")

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

CALCULATOR = registry.load("resources_servers", "calculator")
BLACKJACK = registry.load("resources_servers", "blackjack")
ENVIRONMENT = registry.load("resources_servers", "openenv_environment")
TASKS = "resources_servers/calculator/data/example.jsonl"
ROW = {"responses_create_params": {"input": "Play."}}


@asynccontextmanager
async def offered(cls: Any = CALCULATOR, tasks: str | None = TASKS) -> AsyncIterator[str]:
    """The URL of a server under OpenEnv's protocol."""
    made = making(cls, openenv=True, openenv_tasks=tasks)
    async with mount({"one": made}, "http") as peers:
        transport = peers.transport("one")
        assert isinstance(transport, Http)
        yield f"{transport.urls[0]}/openenv"


@asynccontextmanager
async def playing(url: str, **settings: Any) -> AsyncIterator[Peers]:
    async with mount({"env": making(ENVIRONMENT, url=url, **settings)}) as peers:
        yield peers


@asynccontextmanager
async def seeded(peers: Peers, **reset: Any) -> AsyncIterator[None]:
    with entered(Session()):
        await peers.call("env", "/seed_session", {**ROW, "reset": reset}, dict)
        yield
        await peers.call("env", "/close_session", {}, dict)


async def verdict_of(peers: Peers) -> JsonObject:
    response = make_response("m", [], None)
    return await peers.verify("env", {**ROW, "response": response})


def test_ours_is_an_environment_of_ours_through_openenv() -> None:
    async def main() -> list[JsonObject]:
        async with offered() as url, playing(url) as peers:
            tools = await peers.call("env", "/tools", None, list)
            assert [each["name"] for each in tools] == ["add", "respond", "observe"]
            assert tools[0]["parameters"]["required"] == ["a", "b"]
            found = []
            for answer in ("42", "43"):
                async with seeded(peers, task_index=0):
                    assert "17 and 25" in await peers.call("env", "/observe", {}, str)
                    assert await peers.call("env", "/add", {"a": 17, "b": 25}, str) == "42"
                    assert "bad arguments" in await peers.call("env", "/add", {"a": "?"}, str)
                    await peers.call("env", "/respond", {"text": answer}, str)
                    with pytest.raises(RolloutError, match="the episode is over"):
                        await peers.call("env", "/add", {"a": 1, "b": 2}, str)
                    found.append(await verdict_of(peers))
            return found

    right, wrong = asyncio.run(main())
    assert (right["reward"], right["done"], right["num_rewards"]) == (1.0, True, 1)
    assert wrong["reward"] == 0.0


def test_a_game_is_played_turn_by_turn() -> None:
    async def main() -> tuple[JsonObject, JsonObject]:
        row = {"responses_create_params": {"input": "Play."}, "seed": 7}
        async with offered(BLACKJACK, None) as url:
            episode = PlayedEpisode(OpenEnvServer("games", url), {"row": row})
            await episode.begin()
            first = episode.observation
            stand = {"tool_name": "respond", "arguments": {"text": "<action>stand</action>"}}
            last = await episode.step(stand)
            assert episode.is_over and len(episode.rewards) == 1
            await episode.close()
            return first, last

    first, last = asyncio.run(main())
    assert first["messages"][0]["content"] == "Play." and len(first["text"]) > len("Play.")
    assert last["tool_name"] == "respond"


@pytest.mark.parametrize(
    ("reset", "why"),
    [
        ({"task_index": 99}, "task_index must be from 0 to 4, got 99"),
        ({"row": {"responses_create_params": {"input": "?"}}}, "expected_answer"),
        ({"row": 5}, "row must be an object"),
    ],
)
def test_a_task_that_cannot_be_played_is_refused(reset: JsonObject, why: str) -> None:
    async def main() -> None:
        async with offered() as url, playing(url) as peers, seeded(peers, **reset):
            pass

    with pytest.raises(RolloutError, match=why):
        asyncio.run(main())


def test_a_file_of_tasks_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\nno json\n')

    async def main(path: str) -> None:
        async with offered(tasks=path):
            pass

    with pytest.raises(ConfigError, match=r"one: openenv_tasks: .*rows\.jsonl:2: not a JSON"):
        asyncio.run(main(str(tmp_path / "rows.jsonl")))
    with pytest.raises(ConfigError, match="openenv_tasks: there is no file nowhere"):
        asyncio.run(main("nowhere.jsonl"))


def test_a_rollout_without_a_reward_fails_unless_one_is_set() -> None:
    async def main() -> float:
        async with offered() as url:
            async with playing(url) as peers, seeded(peers):
                with pytest.raises(RolloutError, match="no step of this rollout had a reward"):
                    await verdict_of(peers)
            async with playing(url, no_reward=0.0) as peers, seeded(peers):
                return (await verdict_of(peers))["reward"]

    assert asyncio.run(main()) == 0.0


def test_a_web_page_cannot_open_a_session() -> None:
    async def main() -> None:
        async with offered() as url:
            place = url.replace("http", "ws") + "/ws"
            with pytest.raises(InvalidStatus, match="403"):
                async with connect(place, origin="http://evil.example", proxy=None):  # type: ignore[arg-type]
                    pass
            with pytest.raises(InvalidStatus, match="403"):
                headers = {"Host": "evil.example"}
                async with connect(place, additional_headers=headers, proxy=None):
                    pass

    asyncio.run(main())


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ("no json", "INVALID_JSON"),
        ('{"type": "dance"}', "UNKNOWN_TYPE"),
        ('{"type": "step", "data": {"tool_name": "add"}}', "EXECUTION_ERROR"),
        ('{"type": "step", "data": 5}', "EXECUTION_ERROR"),
    ],
)
def test_a_message_that_means_nothing_is_answered(sent: str, code: str) -> None:
    async def main() -> JsonObject:
        async with offered() as url, connect(url.replace("http", "ws") + "/ws") as socket:
            await socket.send(sent)
            return json.loads(await socket.recv())

    reply = asyncio.run(main())
    assert (reply["type"], reply["data"]["code"]) == ("error", code)


def test_mcp_has_sessions_of_its_own() -> None:
    async def main() -> None:
        async with offered() as url:
            server = OpenEnvServer("one", url)

            async def ask(method: str, **params: Any) -> JsonObject:
                request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
                return await fetch(server, "/mcp", request)

            id = (await ask("openenv/session/create"))["result"]["session_id"]
            add = {"name": "add", "arguments": {"a": 1, "b": 2}}
            assert (
                "reset first" in (await ask("tools/call", session_id=id, **add))["error"]["message"]
            )
            async with connect(url.replace("http", "ws") + f"/ws?session_id={id}") as socket:
                await socket.send('{"type": "reset", "data": {"seed": 0}}')
                assert json.loads(await socket.recv())["type"] == "observation"
                assert (await ask("tools/call", session_id=id, **add))["result"]["data"] == "3"
            assert (await ask("openenv/session/close", session_id=id))["result"]["closed"]
            gone = await ask("tools/call", session_id=id, **add)
            assert "unknown session_id" in gone["error"]["message"]

    asyncio.run(main())


async def lose_connection(episode: PlayedEpisode) -> None:
    """As when the server is killed: the connection breaks, without a last message."""
    episode._socket.transport.abort()
    await episode._socket.wait_closed()


@pytest.mark.parametrize("is_deterministic", [True, False])
def test_actions_are_repeated_where_the_environment_is_deterministic(
    is_deterministic: bool,
) -> None:
    async def main() -> JsonObject:
        async with offered() as url:
            episode = PlayedEpisode(OpenEnvServer("env", url), {"seed": 0}, is_deterministic)
            await episode.begin()
            add = {"tool_name": "add", "arguments": {"a": 17, "b": 25}}
            await episode.step(add)
            await lose_connection(episode)
            try:
                return await episode.step(add)
            finally:
                await episode.close()

    if is_deterministic:
        assert asyncio.run(main())["result"] == "42"
    else:
        with pytest.raises(SessionLost, match=r"env: the OpenEnv server at http.* has ended"):
            asyncio.run(main())


def test_an_openenv_server_that_is_not_there_is_named() -> None:
    sock = bound_socket("127.0.0.1", 0)
    url = url_of(sock)
    sock.close()

    async def main() -> None:
        async with playing(url):
            pass

    with pytest.raises(ConfigError, match=r"env: .*cannot"):
        asyncio.run(main())
