"""The steps of one attempt: seed_session → respond → response in hand → verify → close_session.

A stored response takes the same way from its verification on. Errors rise to `rollout`, except
those of a verification, which leave the response in hand.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

import orjson

from ..errors import BatchPending, PeerTimeout, RolloutError, SessionLost, VerifyError
from ..responses import (
    function_calls,
    has_provider_data,
    pair_calls,
    total_tokens,
    without_provider_data,
)
from ..serving.agent import open_session
from ..serving.nemo_gym.episode_route import NO_REQUEST, PARAMS
from ..serving.rollout_verdicts import check_judge, finite_reward
from ..serving.tools import NO_TOOL, arguments_of, is_callable, is_same_answer, refusal_text
from ..serving.transport.encoding import NotJson, encode_reply
from ..serving.transport.loop import Begun, step
from ..serving.transport.peers import Peers
from ..serving.transport.retry import ATTEMPT, VERIFICATION, RetryPolicy, retry
from ..serving.transport.wire import LARGE, encode, scores_of
from ..session import VERIFIER, WAITS, BatchTicket, Session, TurnLog, current_session, entered
from ..store.kinds import mark_as
from ..store.lines import (
    MadeRollout,
    build_line,
    count_cached,
    describe_error,
    info_of,
    micros,
    now_text,
    row_of,
    sound_stats,
    with_verdict,
    without_verdict,
)
from ..time_limit import Due, within
from ..trajectory import add_teacher, has_teacher, versions_of
from ..types import Attempt, JsonObject, Result, Rollout, StoredTurn, Unverified
from .agents import AgentPlan
from .batches.batching import make_ticket, put_aside
from .cheapest.ways import ALL_ALIKE, Ways
from .pacing.bill import Bill
from .slot import Slot, parked_when_slow

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """Bounds of one rollout, in seconds unless they count, and the output that names its run.

    Example:

        limits = rk.RolloutLimits(max_attempts=2, rollout_timeout_s=600, verify_timeout_s=30)
        run = rk.collect(
            rows, model=lambda params: "4", environment="string_match", limits=limits
        )
        await run
    """

    max_attempts: int = 3
    rollout_timeout_s: float = 3600
    verify_timeout_s: float = 120
    park_after_s: float = 1
    skip_verification: bool = False
    retry_invalid_judge_responses: bool = False
    parks: bool = True
    """Whether a response without a verdict is parked; it is not if the input has it anyway."""
    output: str = ""
    batch_key: str = ""
    """What names the output to servers that gather requests into batches; empty: none may wait."""
    teacher: str = ""  # the model server that scores the tokens of each rollout
    claim: str = ""  # what the run claims of model servers, as a header


@dataclass(frozen=True, slots=True)
class Equipment:
    """What all attempts of a run share."""

    peers: Peers
    agents: dict[str, AgentPlan]
    limits: RolloutLimits
    random: Callable[[], float] = field(default=random.random)
    slow: set[str] = field(default_factory=set)
    """Agents whose last verdict was slow."""
    bill: Bill = field(default_factory=Bill)
    """Cost of all finished attempts."""
    retry: RetryPolicy = ATTEMPT
    """Pauses between the attempts at a rollout, and the errors after which there is another."""
    ways: Ways = ALL_ALIKE
    """How the requests of a rollout are sent."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A response whose verification failed in a way that ends this attempt."""

    line: JsonObject
    error: RolloutError


@dataclass(slots=True)
class Steps:
    """One attempt at one key. `queue_s`: time since the first attempt at it began."""

    shared: Equipment
    attempt: Attempt
    agent: AgentPlan
    slot: Slot
    queue_s: float
    encoded: bytes | None = None
    """The response as JSON: the verifier gets it, and the line is made of it."""
    num_different: int = 0
    """Replayed tool calls with another answer than the stored one."""

    def outcome(self) -> Awaitable[Result | Refused]:
        """Verify the stored response if there is one, else collect one."""
        stored = self.attempt.stored
        return self._collect() if stored is None else self._verify_stored(stored)

    async def _collect(self) -> Result | Refused:
        task, agent = self.attempt.task, self.agent
        if agent.opaque or agent.resources is None:
            return await self._collect_opaque()
        if (check := self.shared.peers.row_check(agent.resources)) is not None:
            if (later := check(task.row)) is not None:
                await later
            session = self._new_session()
            await step
            with entered(session):
                return await self._respond(session)
        async with self._open_session(agent.resources) as session:
            await self._call(agent.resources, "/seed_session", task.row)
            return await self._respond(session)

    async def _respond(self, session: Session) -> Result | Refused:
        """The response of the agent, and its verdict."""
        row = self.attempt.task.row
        started_at, began = now_text(), perf_counter()
        params = row["responses_create_params"]
        response = await self._call(self._server, "/v1/responses", params, self._turn_log())
        duration_s = perf_counter() - began
        line = self._line(response, session.stats, started_at, duration_s)
        if waiting := await self._ask_teacher(line):
            encode_reply(response, self.attempt.key.agent, "/v1/responses")
            return waiting
        if self.shared.limits.skip_verification or not self.agent.verifies:
            encode_reply(response, self.attempt.key.agent, "/v1/responses")
            return Rollout(info_of(line), mark_as("rollout", line))
        return await self._verify(row, line)

    async def _collect_opaque(self) -> Result:
        """An agent with its own loop: its `/run` returns the verdict, or the reason for none."""
        task, agent = self.attempt.task, self._server
        started_at, began = now_text(), perf_counter()
        session = self._new_session()
        with entered(session):
            row = await self._call(agent, "/run", task.row)
        encode_reply(row, agent, "/run")
        if (failure := row.get("_ng_failure_class")) is not None:  # NeMo Gym's way to say so
            is_final = bool(row.get("_ng_failure_terminal"))
            raise RolloutError(f"/run reported: {failure}", server=agent, retryable=not is_final)
        if not isinstance(response := row.get("response"), dict):
            raise RolloutError("/run answered without a 'response'", server=agent, retryable=True)
        duration_s = perf_counter() - began
        line = self._line(response, session.stats, started_at, duration_s)
        if task.row[PARAMS] == NO_REQUEST and isinstance(asked := row.get(PARAMS), dict):
            line[PARAMS] = asked  # the server made it
        if waiting := await self._ask_teacher(line):
            return waiting
        if "reward" not in row:
            why = str(row.get("verify_error", "/run gave no reward"))
            return self._make_unverified(line, VerifyError(why, server=agent))
        scores = {**scores_of(task.row, row), "reward": row["reward"]}
        if self.shared.limits.retry_invalid_judge_responses:
            try:
                check_judge(scores, agent)
            except VerifyError as error:
                return self._make_unverified(line, error)
        return self._rollout(line, scores, None)

    async def _ask_teacher(self, line: JsonObject) -> Unverified | None:
        """Have the teacher score the sampled tokens. If it is away, the response waits on disk."""
        teacher, output = self.shared.limits.teacher, line["response"].get("output") or []
        if not teacher or has_teacher(output):
            return None
        began, score = perf_counter(), partial(self._call, teacher, "/score_tokens")
        try:
            await retry(lambda: add_teacher(output, score), VERIFICATION, random=self.shared.random)
        except RolloutError as error:
            if not error.retryable:
                raise
            failure = describe_error(error, perf_counter() - began, "/score_tokens")
            return self._make_unverified({**line, "failure": failure}, error)
        except asyncio.CancelledError:
            self.slot.park(self._make_unverified(line))
            raise
        return None

    async def _verify_stored(self, stored: JsonObject) -> Result | Refused:
        """Verify a stored response in a fresh session, without the policy."""
        resources = self.agent.resources
        assert resources is not None
        line = without_verdict(stored)
        row = row_of(line)
        if waiting := await self._ask_teacher(line):
            return waiting
        if self.shared.limits.skip_verification or not self.agent.verifies:
            return Rollout(info_of(line), mark_as("rollout", line))
        self.slot.parked = self._make_unverified(line)  # it is on disk already
        async with self._open_session(resources):
            await self._call(resources, "/seed_session", row)
            if self.agent.reverify == "replay":
                self.num_different = await self._replay(resources, line["response"])
            return await self._verify(row, line)

    async def _replay(self, resources: str, response: JsonObject) -> int:
        """Execute the stored tool calls again, in order; returns how many answers differ."""
        different = 0
        for call, stored in pair_calls(response["output"]):
            name = str(call.get("name"))
            if not is_callable(name) or stored.startswith(NO_TOOL):
                continue
            self.slot.place.stage = f"{resources} /{name}"
            try:
                answer = await self.shared.peers.call(
                    resources, f"/{name}", arguments_of(call), str
                )
            except RolloutError as error:
                if (answer := refusal_text(error)) is None:
                    raise
            different += not is_same_answer(stored, answer)
        return different

    @property
    def _server(self) -> str:
        """The agent's server."""
        return self.agent.server or self.attempt.key.agent

    def _open_session(self, resources: str) -> open_session:
        session, closes = self._new_session(), self.agent.needs_session
        return open_session(self.shared.peers, resources, session, closes=closes)

    def _new_session(self) -> Session:
        key = self.attempt.key
        run = f"{self.shared.limits.output} {key.agent} {key.scope}"
        session = Session.of(key.rollout, self.slot.ledger.spent, run, self.slot.limits)
        self.slot.stats, session.tier = session.stats, self.shared.ways.tier
        session.claim = self.shared.limits.claim
        if self.shared.limits.batch_key and self.shared.ways.takes_batch(self.attempt):
            session.ticket = self._make_ticket(f"{self.attempt.redraws}", waits=self.agent.opaque)
        return session

    def _make_ticket(self, part: str, *, waits: bool) -> BatchTicket | None:
        key = self.attempt.key
        names = self.shared.limits.batch_key, *key, self.agent.settings_of(key), part
        return make_ticket(self.attempt, *names, waits=waits)

    def _call(
        self, server: str, path: str, body: JsonObject, turn_log: TurnLog | None = None
    ) -> Awaitable[JsonObject]:
        self.slot.place.stage = f"{server} {path}"
        return self.shared.peers.call(server, path, body, dict, turn_log)

    def _turn_log(self) -> TurnLog | None:
        given = self.agent.read_first_turns(self.attempt.key.agent, self.attempt.task.row)
        if self.agent.saves_turns:
            return TurnLog((*given, *self.slot.turns), self._store_turn)
        if self.agent.reports_turns and (given or self.shared.limits.batch_key):
            return TurnLog(given, self._note_wait)
        return None

    def _note_wait(self, turn: JsonObject) -> None:
        if WAITS in turn:
            self.slot.place.wait(is_waiting=bool(turn[WAITS]))

    def _store_turn(self, turn: JsonObject) -> None:
        if WAITS in turn:
            return self._note_wait(turn)
        turn = {**turn, "settings": self.agent.settings_of(self.attempt.key)}
        self.slot.keep_turn(turn)
        self.slot.place.store_turn(StoredTurn(self.attempt.key, self.attempt.task.task_index, turn))

    def _line(
        self, response: JsonObject, stats: JsonObject, started_at: str, duration_s: float
    ) -> JsonObject:
        """The line of the response in hand; `stats` are those of its session."""
        if "num_tool_calls" not in stats:
            calls = function_calls(response.get("output") or ())
            stats = {"num_tool_calls": len(calls), **stats}
        incomplete = response.get("incomplete_details") or {}
        known = {
            "attempt": self.attempt.number,
            "settings": self.agent.settings_of(self.attempt.key),
            "model": response.get("model") or self.agent.model,
            "started_at": started_at,
            "duration_s": micros(duration_s),
            "queue_s": micros(self.queue_s),
            "finish_reason": incomplete.get("reason") or "stop",
            **sound_stats(stats),
        }
        if versions := versions_of(response.get("output") or ()):
            known |= {"version_first": versions.first, "version_last": versions.last}
        if self.attempt.regenerated:
            known["regenerated"] = True
        if self.attempt.arm is not None:
            known["arm"] = self.attempt.arm
        if self.agent.agent:
            known["agent"] = self.agent.agent
        ledger = self.slot.ledger
        if not (ledger.spent.calls or self.attempt.turns):
            # a foreign agent, whose reply reports no model calls
            ledger.spent.call(total_tokens(response), None)
        known |= {name: usd for name, usd in ledger.costs().items() if usd is not None}
        if (cached := count_cached(response)) is not None:
            known["cached_tokens"] = cached
        return build_line(self.attempt.task, self.attempt.key, response, known)

    async def _verify(self, row: JsonObject, line: JsonObject) -> Result | Refused:
        """Wait for the verdict within the limits of the run."""
        limits, resources = self.shared.limits, self.agent.resources or ""
        if limits.batch_key and (session := current_session()) is not None:
            session.ticket = self._make_ticket("verdict", waits=self.agent.reverify == "never")
        self.slot.place.stage = f"{resources} /verify"
        began, due = perf_counter(), Due(limits.verify_timeout_s)  # a judge asks for the time left
        self.slot.limits.append(due)
        try:
            await step
            began = perf_counter()
            request = {**row, "response": self._encode(line["response"])}
            verify = partial(self.shared.peers.verify, resources, request)
            if limits.retry_invalid_judge_responses:
                verify = partial(_ask_valid, verify, resources)
            # a response whose verdict may be slow is on disk before it is asked for
            first = None if self.attempt.key.agent in self.shared.slow else Begun(verify())
            if first is not None and first.is_done and first.error is None:
                scores = first.result
            else:
                scores = await self._wait_for_verdict(verify, first, line)
            verify_s = perf_counter() - began
            await step
            return self._rollout(line, scores, verify_s)
        except asyncio.CancelledError:
            self.slot.park(self._make_unverified(line))  # unless it is parked already
            raise
        except NotJson as failed:  # of an agent in this process: nothing of it could be stored
            raise failed.refuse(self.attempt.key.agent, "/v1/responses") from failed
        except TimeoutError:
            why = f"no verdict within verify_timeout_s={limits.verify_timeout_s:g}"
            error: RolloutError = PeerTimeout(why, server=resources)
        except BatchPending as pending:
            self.slot.keep(self._make_unverified(line))
            return put_aside(self.attempt._replace(stored=line), pending)
        except RolloutError as failed:
            if failed.terminal or isinstance(failed, SessionLost):
                return Refused(line, failed)
            error = failed
        except Exception as bug:
            log.exception("an unexpected error in a verification")
            error = VerifyError(f"{type(bug).__name__}: {bug}", retryable=False)
        finally:
            self.slot.limits.remove(due)
        return self._make_unverified(
            {**line, "failure": describe_error(error, perf_counter() - began, "/verify")}, error
        )

    def _encode(self, response: JsonObject) -> JsonObject | orjson.Fragment:
        """The response for a verifier, without provider data: as JSON, unless it is large. That
        would be in memory twice, so it is encoded when it is needed."""
        encoded = encode(response)
        is_large = len(encoded) > LARGE
        if not is_large:
            self.encoded = encoded
        if has_provider_data(encoded):
            response = without_provider_data(response)
            encoded = b"" if is_large else encode(response)
        return response if is_large else orjson.Fragment(encoded)

    async def _wait_for_verdict(
        self,
        verify: Callable[[], Awaitable[JsonObject]],
        first: Awaitable[JsonObject] | None,
        line: JsonObject,
    ) -> JsonObject:
        """What the verifier set; `first` is the first time that it was asked, if it has begun."""
        limits, begun = self.shared.limits, [first] if first is not None else []
        waiting = parked_when_slow(
            self.slot,
            self.attempt.key.agent,
            partial(self._make_unverified, line),
            self.shared.slow,
            limits.park_after_s,
        )
        with waiting, within(limits.verify_timeout_s, self.slot.limits):
            return await retry(
                lambda: begun.pop() if begun else verify(),
                VERIFICATION,
                random=self.shared.random,
            )

    def _verifier(self) -> str:
        session = current_session()
        return session.stats.get(VERIFIER, self.agent.verifier) if session else self.agent.verifier

    def _make_unverified(self, line: JsonObject, error: RolloutError | None = None) -> Unverified:
        return Unverified(info_of(line), line, error, self.agent.verifier)

    def _rollout(self, line: JsonObject, scores: JsonObject, verify_s: float | None) -> Rollout:
        scores["reward"] = finite_reward(scores.get("reward"))
        known = {
            "verifier": self._verifier(),
            "verify_s": None if verify_s is None else micros(verify_s),
            **self.slot.ledger.costs(),
            "replay_differences": self.num_different or None,
        }
        verified = with_verdict(line, scores, known)
        return MadeRollout(info_of(verified), verified, self.encoded)


async def _ask_valid(verify: Callable[[], Awaitable[JsonObject]], server: str) -> JsonObject:
    scores = await verify()
    check_judge(scores, server)
    return scores
