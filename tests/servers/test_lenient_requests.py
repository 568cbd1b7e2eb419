"""JSON that a strict parser refuses reaches a verifier, mended."""

import asyncio
import json
from typing import Any

import orjson
import pytest

from rollout_kit import responses
from rollout_kit.api.testing import Over, making, mount
from rollout_kit.responses import LONG, is_too_deep
from rollout_kit.serving.resources_server import ResourcesServer
from rollout_kit.serving.transport.wire import DEEPEST, mend
from rollout_kit.types import JsonObject, VerifyRequest, VerifyResponse


@pytest.mark.parametrize(
    ("raw", "mended"),
    [
        (b'{"a": NaN, "b": [-Infinity, 1e999]}', {"a": None, "b": [None, None]}),
        (b'"\\ud800 \\ud83d\\ude00"', "\ufffd \U0001f600"),
        (b'"\xff\x01\n"', "\ufffd\x01\n"),
        (b"[" * 100_000 + b"]" * 100_000, "DEEP"),
        (b'{"a": "[[\\"[[", "b": ' + b'{"c": ' * 300 + b'"]"' + b"}" * 301, "DEEP"),
        (b"9" * 5_000, None),
    ],
)
def test_a_value_is_kept_as_far_as_json_can_hold_it(raw: bytes, mended: object) -> None:
    found = mend(raw)
    assert found is not None
    value = json.loads(found)
    if mended != "DEEP":
        assert value == mended
        return
    if isinstance(value, dict):
        assert value["a"] == '[["[['
    levels = 0
    while isinstance(value, list | dict) and value:
        value = value[0] if isinstance(value, list) else value.get("c", value.get("b"))
        levels += 1
    assert levels == DEEPEST


@pytest.mark.parametrize("raw", [b"", b"{", b"[" * 300, b"nothing"])
def test_what_is_not_json_stays_refused(raw: bytes) -> None:
    assert mend(raw) is None


class Long(ResourcesServer):
    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        return body.scored(reward=1.0, said=body.response["said"])


class Short(ResourcesServer):
    def verify(self, task: JsonObject, response: JsonObject) -> JsonObject:  # type: ignore[override]
        return {"reward": 1.0, "said": response["said"]}


@pytest.mark.parametrize("server", [Long, Short])
def test_both_forms_of_a_verifier_get_the_mended_request(
    server: type[ResourcesServer], over: Over
) -> None:
    async def main() -> JsonObject:
        deep = b"[" * 500 + b"]" * 500
        raw = b'{"responses_create_params": {}, "response": {"said": "\\udfff", "x": ' + deep
        async with mount({"it": making(server)}, over) as peers:
            return await peers.call("it", "/verify", raw + b"}}", dict)

    reply = asyncio.run(main())
    assert reply["said"] == "\ufffd"


@pytest.mark.parametrize("text", ["", "x" * 2 * LONG, "[{" * LONG])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_a_value_is_too_deep_from_a_level_on_however_long_it_is(text: str, opening: str) -> None:
    def nest(levels: int) -> tuple[bytes, Any]:
        value: Any = text
        for _ in range(levels):
            value = [value] if opening == "[" else {"a": value}
        return orjson.dumps(value), value

    assert not is_too_deep(*nest(responses.DEEPEST))
    assert is_too_deep(*nest(responses.DEEPEST + 2))
