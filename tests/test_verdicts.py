"""How a verdict reaches the collector: what the verifier set, however it is reached."""

import asyncio
from typing import Any

import pytest
from support import Bench, row

from rollout_kit.serving.resources_server import ResourcesServer, tool
from rollout_kit.testing import Over, making, mount
from rollout_kit.types import JsonObject, SeedSessionResponse, VerifyRequest, VerifyResponse

ROW = {"responses_create_params": {"input": "q"}, "expected": "a", "response": {"output": []}}


class Later(ResourcesServer):
    """Sets fields in every way that a verifier may."""

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        verdict = body.scored(reward=0.5, expected="a", level={"x": [1]}, kinds=frozenset({"k"}))
        verdict.note = "set afterwards"  # type: ignore[attr-defined]
        verdict.reward = 0.75
        return verdict


class Whole(ResourcesServer):
    """Answers with a verdict of its own making."""

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        return VerifyResponse(**{**body.model_dump(), "reward": 1, "expected": "b"})


@pytest.mark.parametrize(
    ("verifier", "scores"),
    [
        (Later, {"reward": 0.75, "level": {"x": [1]}, "kinds": ["k"], "note": "set afterwards"}),
        (Whole, {"reward": 1.0, "expected": "b"}),
    ],
)
def test_the_fields_that_a_verifier_set_are_the_same_over_every_transport(
    over: Over, verifier: type[ResourcesServer], scores: JsonObject
) -> None:
    async def main() -> JsonObject:
        async with mount({"it": making(verifier)}, over) as peers:
            return await peers.verify("it", ROW)

    assert asyncio.run(main()) == scores


class Seeds(Later):
    async def seed_session(self, body: JsonObject) -> SeedSessionResponse:
        self.state = body
        return SeedSessionResponse()


class Tools(Later):
    @tool
    async def look(self) -> str:
        """Look."""
        return "seen"


class Counts(Later):
    async def handle(self, path: str, raw: bytes) -> Any:
        return await super().handle(path, raw)


@pytest.mark.parametrize("server", [Seeds, Tools, Counts])
def test_a_server_that_does_more_than_check_its_row_gets_a_session(
    server: type[ResourcesServer],
) -> None:
    async def main() -> None:
        async with mount({"plain": making(Later), "it": making(server)}) as peers:
            assert peers.row_check("plain") is not None
            assert peers.row_check("it") is None
        async with mount({"plain": making(Later)}, "round_trip") as peers:
            assert peers.row_check("plain") is None

    asyncio.run(main())


class Closes(Later):
    async def close_session(self, body: JsonObject) -> JsonObject:
        return {}


@pytest.mark.parametrize(
    ("server", "last"), [(Later, ["/verify"]), (Closes, ["/verify", "/close_session"])]
)
def test_a_session_is_closed_only_where_the_server_keeps_something_in_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, server: type[ResourcesServer], last: list[str]
) -> None:
    paths: list[str] = []
    sessions: list[int] = []
    handle = ResourcesServer.handle

    async def record(self: ResourcesServer, path: str, raw: bytes) -> Any:
        paths.append(path)
        try:
            return await handle(self, path, raw)
        finally:
            sessions.append(self.num_sessions)

    monkeypatch.setattr(ResourcesServer, "handle", record)
    bench.verifier, bench.collects_over = making(server), "http"
    assert asyncio.run(bench.collect([row("q")])) == 0
    assert [path for path in paths if path != "/tools"] == ["/seed_session", *last]
    assert sessions[-1] == 0
