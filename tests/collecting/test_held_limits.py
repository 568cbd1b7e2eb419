"""While a model's weights change, nobody's time limit for a request ends: not at the model server,
not at the agent, not at the collector."""

import asyncio
import importlib
from typing import Any

import pytest
from support import Bench, asked, row
from virtual_time import VirtualTime

from rollout_kit.api.testing import ScriptedModel, mount, run_virtual
from rollout_kit.collecting.slot import Slot
from rollout_kit.errors import PeerTimeout
from rollout_kit.rl.weights.follower import Follower
from rollout_kit.rl.weights.sync import WeightSync
from rollout_kit.serving import model, registry
from rollout_kit.serving.agent import Agent
from rollout_kit.session import Session, TurnLog, current_session, entered
from rollout_kit.time_limit import HeldTime, within
from rollout_kit.types import JsonObject

VLLM = registry.load("responses_api_models", "vllm_model").__module__.rpartition(".")[0]
Gate: Any = importlib.import_module(f"{VLLM}.gate").Gate

PARAMS = {"input": [{"role": "user", "content": "a"}]}

PAUSE_S = 1200.0
"""Longer than all limits: 600 s of each request, 1,000 s of the rollout."""


class Paused(ScriptedModel):
    """Its weights change when the first request has come."""

    def __init__(self, is_update: bool) -> None:
        super().__init__(asked)
        self._is_update, self._gate = is_update, Gate()

    async def responses(self, params: JsonObject) -> JsonObject:
        with self._gate.serving():
            if not self._is_update:
                await asyncio.sleep(PAUSE_S)
            elif not self.calls:
                self._gate.close()
                asyncio.get_running_loop().call_later(PAUSE_S, self._gate.open)
            await self._gate.wait()
            return await super().responses(params)


class Asking(Agent):
    """Asks the model; with turns to report, a reply to it has begun before."""

    async def respond(self, params: JsonObject) -> JsonObject:
        if (session := current_session()) and session.turn_log:
            await session.turn_log.report({"request": "x"})  # type: ignore[misc]
        return await self.peers.call("policy_model", "/v1/responses", params, dict)


def ask(monkeypatch: pytest.MonkeyPatch, asked_model: Any, *, reports: bool, **params: Any) -> Any:
    """The response through model and agent over HTTP, and how long the limits were held."""
    seen: list[JsonObject] = []

    async def main() -> Any:
        servers: Any = {
            "policy_model": lambda peers, name: asked_model,
            "agent": lambda peers, name: Asking(Asking.Config(), peers, name),
        }
        async with mount(servers, "http") as peers:
            slot = Slot()
            slot.limits.append(held := HeldTime())
            log = TurnLog((), seen.append) if reports else None
            session = Session.of(("abc", 0), None, "", slot.limits)
            with entered(session), within(1000, slot.limits):
                reply = await peers.call("agent", "/v1/responses", {**PARAMS, **params}, dict, log)
            assert slot.limits == [held] and len(seen) == reports
            return reply, held.seconds

    return VirtualTime(monkeypatch).run(main())


@pytest.mark.parametrize("reports", [False, True])
def test_an_update_longer_than_every_limit_ends_no_request(
    monkeypatch: pytest.MonkeyPatch, reports: bool
) -> None:
    reply, held_s = ask(monkeypatch, Paused(True), reports=reports)
    assert reply["output"] and PAUSE_S <= held_s < PAUSE_S + 10


class Following(ScriptedModel):
    """Its trainer writes version 1 when this pause is over."""

    def __init__(self) -> None:
        super().__init__(asked)
        self.follower = Follower(WeightSync(mode="external"), self.name, self._load)
        self._coming: Any = None

    async def _load(self, step: Any) -> None: ...

    async def responses(self, params: JsonObject) -> JsonObject:
        self._coming = self._coming or asyncio.create_task(self._come())
        await self.wait_for_version(params)
        return await super().responses(params)

    async def _come(self) -> None:
        await asyncio.sleep(PAUSE_S)
        self.follower.version = 1
        await self.follower.announce()


@pytest.mark.parametrize("version", [1, 2])
def test_no_limit_ends_while_a_required_version_is_waited_for(
    version: int, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only that of the wait itself does, if it does not come."""
    monkeypatch.setattr(model, "VERSION_TIMEOUT_S", 2 * PAUSE_S)
    bench.model = Following()
    params = {"require_version": version}
    keys = {"rollout_timeout_s": 60, "request_timeout_s": 30, "max_attempts": 1}
    rows = [row("a"), row("b")]
    status = run_virtual(bench.collect(rows, default_params=params, **keys))
    if version == 1:
        assert status == 0 and len(bench.lines()) == 2
    else:
        said = "version 2 of the weights did not come within 2400 s; in use is 1"
        assert [said in str(line) for line in bench.lines("failures")] == [True, True]


def test_a_required_version_is_waited_for_over_http_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "VERSION_TIMEOUT_S", 2 * PAUSE_S)
    reply, held_s = ask(monkeypatch, Following(), reports=False, require_version=1)
    assert reply["output"] and PAUSE_S <= held_s < PAUSE_S + 10


def test_a_model_that_is_only_slow_is_a_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PeerTimeout, match="within 600 s"):
        ask(monkeypatch, Paused(False), reports=False)


def test_a_rollout_has_its_own_time_left_after_an_update(bench: Bench) -> None:
    bench.model = Paused(True)
    keys = {"rollout_timeout_s": 60, "request_timeout_s": 30, "max_attempts": 1}
    assert run_virtual(bench.collect([row("a"), row("b")], **keys)) == 0
    assert len(bench.lines()) == 2


@pytest.mark.parametrize("num_requests", [1, 2])
def test_a_session_with_two_requests_is_held_until_both_are_answered(
    monkeypatch: pytest.MonkeyPatch, num_requests: int
) -> None:
    """And no longer than with one."""
    held, gate, is_answered = HeldTime(), Gate(), asyncio.Event()

    async def request() -> None:
        with gate.serving():
            await is_answered.wait()

    async def main() -> None:
        with entered(Session(limits=[held])):
            long = asyncio.create_task(request())
            for _ in range(num_requests - 1):
                with gate.serving():
                    await asyncio.sleep(0)
            async with gate.closed():
                await asyncio.sleep(PAUSE_S)
            is_answered.set()
            await long
        before = held.seconds
        async with gate.closed():
            await asyncio.sleep(PAUSE_S)
        assert held.seconds == before

    VirtualTime(monkeypatch).run(main())
    assert PAUSE_S <= held.seconds < PAUSE_S + 10
