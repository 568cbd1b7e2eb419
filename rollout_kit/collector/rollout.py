"""One attempt at a key, from its row to a Rollout, an Unverified response or a Failure.

The only place that catches what goes wrong in a rollout. Once a response is in hand it is never
given up: a verdict that is slow, fails or is cut off leaves it parked.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from ..errors import THROTTLED, PeerLost, PeerTimeout, RolloutError, SessionLost, VerifyError
from ..pacing.bill import Bill
from ..responses import answered_calls, total_tokens
from ..serving.agent import open_session
from ..serving.tools import NO_TOOL, arguments_of, is_callable, refusal_text
from ..session import Session, entered
from ..store.lines import (
    answered_line,
    counted_calls,
    is_sound,
    now_text,
    row_of,
    scores_of,
    tried_block,
    with_verdict,
    without_verdict,
)
from ..time_limit import within
from ..transport.peers import Peers
from ..transport.retry import ATTEMPT, LOST_ATTEMPT, VERIFICATION, delay_s
from ..types import (
    Attempt,
    Failure,
    JsonObject,
    Outcome,
    Rollout,
    Task,
    Unverified,
    finite_reward,
)
from .parking import parked_when_slow
from .schedule import Slot

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """What the runner knows of an agent: its peers, and the fingerprints that its rollouts
    carry."""

    resources: str | None
    model_server: str | None
    settings: str
    verifier: str
    model: str
    reverify: str = "stateless"
    opaque: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one rollout, in seconds unless they count."""

    max_attempts: int = 3
    rollout_timeout_s: float = 3600
    verify_timeout_s: float = 120
    park_after_s: float = 1
    skip_verification: bool = False


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs attempts."""

    peers: Peers
    agents: dict[str, AgentPlan]
    limits: Limits
    random: Callable[[], float] = field(default=random.random)
    slow: set[str] = field(default_factory=set)
    """Agents whose latest verdict took long."""
    bill: Bill = field(default_factory=Bill)
    """Of all rollouts that have ended, however they did."""

    async def __call__(self, attempt: Attempt, slot: Slot) -> Outcome:
        """The attempt's outcome, after as many tries as the limits allow."""
        try:
            return await self._outcome(attempt, slot)
        finally:
            self.bill.add(slot.spent)

    async def _outcome(self, attempt: Attempt, slot: Slot) -> Outcome:
        agent = self.agents[attempt.key.agent]
        began = perf_counter()
        ends = began + self.limits.rollout_timeout_s
        tried: list[JsonObject] = []
        lost = 0
        if attempt.stored is not None:
            slot.earlier_usd = attempt.stored["rollout"].get("cost_usd")
        if attempt.stored is not None and agent.reverify == "never":
            attempt = replace(attempt, stored=None, regenerated=True)
        while True:
            if tried:
                attempt = replace(attempt, number=len(tried) + 1)
            started = perf_counter()
            try:
                with within(ends - started):
                    run = _Run(self, attempt, agent, slot, started - began)
                    return await run.outcome()
            except TimeoutError:
                error = self._too_late(attempt, slot)
            except RolloutError as failed:
                error = failed
            except Exception as bug:  # whatever it is, it is this rollout's and nobody else's
                message = f"{type(bug).__name__}: {bug}"
                error = RolloutError(message, server=attempt.key.agent, retryable=False)
                log.exception("an unexpected error in a rollout")
            tried.append(tried_block(error, perf_counter() - started))
            pause_s = delay_s(ATTEMPT, len(tried), error.retry_after_s, self.random)
            lost += isinstance(error, SessionLost | PeerLost)
            own = len(tried) - lost
            last = own >= self.limits.max_attempts or lost >= LOST_ATTEMPT.max_tries
            last = last or not error.retryable or perf_counter() + pause_s > ends
            again = None if last else await self._again(attempt, error, slot)
            if again is None:
                if slot.parked is not None and not error.terminal:
                    line = {**slot.parked.line, "failure": tried[-1]}
                    return Unverified(attempt.key, line, error)
                cost = slot.cost_usd if slot.spent.calls else None
                return Failure(attempt.key, attempt.task.task_index, error, tried, cost)
            attempt = again
            if error.status in THROTTLED:
                slot.limited_s += perf_counter() - started + pause_s
            slot.stage = "the pause before another attempt"
            await asyncio.sleep(pause_s)

    async def _again(self, attempt: Attempt, error: RolloutError, slot: Slot) -> Attempt | None:
        """What to attempt after `error`; None where the response in hand must wait instead."""
        answered = error.answered if isinstance(error, SessionLost) else None
        if answered is None:
            is_about_another = slot.parked is not None and attempt.stored is None
            return None if is_about_another else attempt
        if self.agents[attempt.key.agent].reverify != "never":
            slot.park(Unverified(attempt.key, answered))
            return replace(attempt, stored=answered)
        if slot.parked is None:
            return attempt
        return replace(attempt, regenerated=True) if await slot.regain() else None

    def _too_late(self, attempt: Attempt, slot: Slot) -> RolloutError:
        return PeerTimeout(
            f"the rollout did not end within rollout_timeout_s={self.limits.rollout_timeout_s:g}"
            f" while it was waiting for: {slot.stage}",
            server=attempt.key.agent,
            retryable=False,
        )


@dataclass(slots=True)
class _Run:
    """One try at one key."""

    runner: Runner
    attempt: Attempt
    agent: AgentPlan
    slot: Slot
    queue_s: float

    def outcome(self) -> Awaitable[Outcome]:
        """Of the stored response where there is one, else of one that is collected now."""
        stored = self.attempt.stored
        return self.collected() if stored is None else self.verified_again(stored)

    async def collected(self) -> Outcome:
        """The five steps: seed, respond, response in hand, verify, close."""
        task, agent = self.attempt.task, self.agent
        if agent.opaque or agent.resources is None:
            return await self._opaque()
        async with self._session(agent.resources) as session:
            await self._call(agent.resources, "/seed_session", task.row)
            started_at, began = now_text(), perf_counter()
            params = task.row["responses_create_params"]
            response = await self._call(self.attempt.key.agent, "/v1/responses", params)
            seconds = perf_counter() - began
            line = self._answered(task, response, session.stats, started_at, seconds)
            if self.runner.limits.skip_verification:
                return Rollout(self.attempt.key, line)
            return await self._verified({**task.row, "response": line["response"]}, line)

    async def verified_again(self, stored: JsonObject) -> Outcome:
        """The stored response's verdict, in a fresh session, without the policy."""
        resources = self.agent.resources
        assert resources is not None
        line = without_verdict(stored)
        row = row_of(line)
        if self.runner.limits.skip_verification:
            return Rollout(self.attempt.key, line)
        self.slot.parked = Unverified(self.attempt.key, line)  # it is on disk already
        async with self._session(resources):
            await self._call(resources, "/seed_session", row)
            if self.agent.reverify == "replay":
                different = await self._replayed(resources, line["response"])
                if different:
                    line["rollout"]["replay_differences"] = different
            return await self._verified({**row, "response": line["response"]}, line)

    async def _replayed(self, resources: str, response: JsonObject) -> int:
        """Execute the stored tool calls again, in order; how many now answer otherwise."""
        different = 0
        for call, stored in answered_calls(response["output"]):
            name = str(call.get("name"))
            if not is_callable(name) or stored.startswith(NO_TOOL):
                continue
            self.slot.stage = f"{resources} /{name}"
            try:
                said = await self.runner.peers.call(resources, f"/{name}", arguments_of(call), str)
            except RolloutError as error:
                if (said := refusal_text(error)) is None:
                    raise
            different += not _is_same_answer(stored, said)
        return different

    async def _opaque(self) -> Outcome:
        """An agent with a way of its own: its `/run` brings the verdict along, or says why not."""
        task, agent = self.attempt.task, self.attempt.key.agent
        started_at, began = now_text(), perf_counter()
        session = Session.of(self.attempt.key.rollout, self.slot.spent)
        with entered(session):
            row = await self._call(agent, "/run", task.row)
        if not isinstance(response := row.get("response"), dict):
            raise RolloutError("/run answered without a 'response'", server=agent, retryable=True)
        seconds = perf_counter() - began
        line = self._answered(task, response, session.stats, started_at, seconds)
        if "reward" not in row:
            why = str(row.get("verify_error", "/run gave no reward"))
            return Unverified(self.attempt.key, line, VerifyError(why, server=agent))
        return self._rollout(task.row, line, row, None)

    def _session(self, resources: str) -> open_session:
        return open_session(self.runner.peers, resources, self.attempt.key.rollout, self.slot.spent)

    async def _call(self, server: str, path: str, body: JsonObject) -> JsonObject:
        self.slot.stage = f"{server} {path}"
        return await self.runner.peers.call(server, path, body, dict)

    def _answered(
        self,
        task: Task,
        response: JsonObject,
        stats: JsonObject,
        started_at: str,
        duration_s: float,
    ) -> JsonObject:
        if "num_tool_calls" not in stats:
            stats = {"num_tool_calls": counted_calls(response), **stats}
        incomplete = response.get("incomplete_details") or {}
        known = {
            "attempt": self.attempt.number,
            "settings": self.agent.settings,
            "model": response.get("model") or self.agent.model,
            "started_at": started_at,
            "duration_s": round(duration_s, 6),
            "queue_s": round(self.queue_s, 6),
            "finish_reason": incomplete.get("reason") or "stop",
            **{name: _rounded(value) for name, value in stats.items() if is_sound(name, value)},
        }
        if self.attempt.regenerated:
            known["regenerated"] = True
        if not self.slot.spent.calls:  # an agent of another kind, whose reply says nothing of it
            self.slot.spent.call(total_tokens(response), None)
        if (cost := self.slot.cost_usd) is not None:
            known["cost_usd"] = cost
        return answered_line(task, self.attempt.key, response, known)

    async def _verified(self, request: JsonObject, line: JsonObject) -> Outcome:
        """The verdict, waited for as long as the limits say."""
        limits, key = self.runner.limits, self.attempt.key
        waiting = parked_when_slow(
            self.slot, Unverified(key, line), self.runner.slow, limits.park_after_s
        )
        began = perf_counter()
        try:
            with waiting, within(limits.verify_timeout_s):
                verdict = await self._verdict(request)
                return self._rollout(request, line, verdict, perf_counter() - began)
        except TimeoutError:
            why = f"no verdict within verify_timeout_s={limits.verify_timeout_s:g}"
            error: RolloutError = PeerTimeout(why, server=self.agent.resources or "")
        except RolloutError as failed:
            if failed.terminal or isinstance(failed, SessionLost):
                failed.answered = line
                raise
            error = failed
        except Exception as bug:
            log.exception("an unexpected error in a verification")
            error = VerifyError(f"{type(bug).__name__}: {bug}", retryable=False)
        line = {**line, "failure": tried_block(error, perf_counter() - began)}
        return Unverified(key, line, error)

    async def _verdict(self, request: JsonObject) -> JsonObject:
        resources = self.agent.resources
        assert resources is not None
        for number in range(1, VERIFICATION.max_tries + 1):
            try:
                return await self._call(resources, "/verify", request)
            except SessionLost:
                raise
            except RolloutError as error:
                if not error.retryable or number == VERIFICATION.max_tries:
                    raise
                pause = delay_s(VERIFICATION, number, error.retry_after_s, self.runner.random)
                await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    def _rollout(
        self, request: JsonObject, line: JsonObject, verdict: JsonObject, verify_s: float | None
    ) -> Rollout:
        scores = scores_of(request, verdict)
        scores["reward"] = finite_reward(verdict.get("reward"))
        verification: JsonObject = {"verifier": self.agent.verifier}
        if verify_s is not None:
            verification["verify_s"] = round(verify_s, 6)
            verification["duration_s"] = round(line["rollout"].get("duration_s", 0) + verify_s, 6)
        if (cost := self.slot.cost_usd) is not None:
            verification["cost_usd"] = cost
        verified = with_verdict(line, scores, verification)
        if cost is None:  # the judge's price is not known
            verified["rollout"].pop("cost_usd", None)
        return Rollout(self.attempt.key, verified)


def _is_same_answer(stored: str, said: str) -> bool:
    """Whether a tool said again what an agent stored, which may have been cut for the policy."""
    start, cut, _ = stored.rpartition("…")
    return stored == said or (bool(cut) and len(said) > len(start) and said.startswith(start))


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value
