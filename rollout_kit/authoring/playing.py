"""Play known answers in the environment `shell`, in this process: calls, and then the verdict."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ..errors import RolloutError
from ..serving import registry
from ..serving.agent import open_session
from ..serving.transport.http import HttpClient
from ..serving.transport.peers import Local, Peers
from ..types import JsonObject

SHELL = "shell"


@asynccontextmanager
async def serving_shell(**settings: Any) -> AsyncIterator[Peers]:
    """The server `shell` with these keys, as a peer."""
    cls = registry.load("resources_servers", SHELL)
    peers, client = Peers({}), HttpClient()
    server = cls(cls.Config.model_validate({"num_ready": 0, **settings}), peers, SHELL)
    peers = Peers({SHELL: Local(server, round_trip=True)})
    try:
        await server.start()
        yield peers
    finally:
        await server.stop()
        await client.close()


async def play(peers: Peers, row: JsonObject, items: Sequence[JsonObject]) -> JsonObject:
    """The verdict on an answer whose calls are made; RolloutError if there is none. `replies` are
    what the tools said."""
    replies = list[str]()
    async with open_session(peers, SHELL):
        await peers.call(SHELL, "/seed_session", row, dict)
        for item in items:
            if item.get("type") == "function_call":
                try:
                    given = json.loads(item["arguments"])
                    replies.append(await peers.call(SHELL, f"/{item['name']}", given, str))
                except RolloutError as error:
                    replies.append(f"error: {error.message}")
        request = {**row, "response": {"output": list(items)}}
        verdict = await peers.call(SHELL, "/verify", request, dict)
    return {**verdict, "replies": replies}
