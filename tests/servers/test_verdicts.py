"""How a verdict reaches the collector: what the verifier set, however it is reached."""

import asyncio
import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import ConfigDict, Field
from support import Bench, row

from rollout_kit.api.testing import Over, making, mount
from rollout_kit.serving.resources_server import ResourcesServer, tool
from rollout_kit.serving.rollout_verdicts import parse_request
from rollout_kit.serving.transport.wire import parse_leniently
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


class Fields(VerifyRequest):
    day: date
    either: date | str
    exact: date = Field(strict=True)
    pair: tuple[int, float]
    names: set[str]
    price: Decimal
    text: bytes
    place: Path
    by_number: dict[int, str]


class Coded(Fields):
    model_config = ConfigDict(val_json_bytes="base64")


@pytest.mark.parametrize("wanted", [Fields, Coded])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"text": "YWI="},
        {"price": 0.1, "pair": [1.0, 2], "either": "x"},
        {"deep": json.loads("[" * 150 + "]" * 150)},
        {"lone": "\ud800"},
        {"number": -(2**63), "price": 1e-7, "none": None},
    ],
)
def test_a_request_is_what_pydantic_reads(wanted: type[Fields], fields: JsonObject) -> None:
    day = "2026-01-02"
    given = {"day": day, "either": day, "exact": day, "pair": ["1", "2.5"], "names": ["a", "a"]}
    given |= {"price": "1.10", "text": "YWJj", "place": "a/b", "by_number": {"1": "x"}}
    raw = json.dumps({**ROW, **given, **fields}).encode()
    assert repr(parse_request(raw, wanted)) == repr(
        parse_leniently(wanted.model_validate_json, raw)
    )
    assert repr(parse_request(raw, VerifyRequest)) == repr(
        parse_leniently(VerifyRequest.model_validate_json, raw)
    )


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
