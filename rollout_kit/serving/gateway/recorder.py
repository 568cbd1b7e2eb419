"""The calls of one rollout: answered by the model or from the journal, recorded, and made into the
response of the rollout.

The journal is that of the turns of any agent: a request that is the same as a stored one gets its
reply, without a model call. So a program that is started again gets as far as it was.
"""

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from ...errors import ModelError, PeerError, RolloutError, TaskError
from ...items import track
from ...responses import function_calls
from ...session import (
    FIRST_TURNS,
    GIVEN,
    LOST_TIMES,
    RETURNED,
    SNAPSHOT,
    SNAPSHOT_DATA,
    TURNS,
    Session,
    Spent,
    current_session,
    entered,
    fresh_id,
)
from ...time_limit import running_loop
from ...trajectory import pack_turns
from ...types import JsonObject
from ..agents.returned_items import find_returned, shorten_returned
from ..agents.rollout_bounds import OVER_LIMIT, RolloutBounds
from ..agents.turns import call_of
from ..transport.conversation import SplitRequest
from ..transport.peers import Peers
from ..transport.retry import TURN, retry
from .dialects import Dialect, ReadRequest, keep_params
from .lanes import AGAIN, KnownCalls, Lane, RecordedCall
from .layout import LaidOut, SideCalls, join_chain, lay_out
from .snapshots import CALL, Snapshots, describe_call, restore_calls

MAX_LANES = 64
"""Conversations that are read on where they ended; those used longest ago are read anew."""

MALFORMED = (AttributeError, KeyError, IndexError, TypeError, ValueError, RecursionError)
"""What is raised where a request is JSON, and not what its API says."""

MAX_AT_ONCE = 32
"""Calls of one rollout that are answered at a time."""


class CallRefused(Exception):
    """What the program gets in place of an answer."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


@dataclass(slots=True, eq=False)
class Answer:
    """The reply to one request of a program. `turn` is what the journal has yet to store."""

    request: JsonObject
    reply: JsonObject
    digest: str
    response: JsonObject
    turn: JsonObject | None


class Recorder:
    """`sampling` are create params of the row, which hold for every call. `ended` is set once the
    program has no more to expect: past a limit, or after a failure of the model."""

    def __init__(
        self,
        peers: Peers,
        model: str,
        *,
        sampling: JsonObject | None = None,
        limits: RolloutBounds | None = None,
        snapshots: Snapshots | None = None,
    ) -> None:
        self.calls: list[RecordedCall] = []
        self.failure: RolloutError | None = None
        self.refusal = ""
        """Why the model refused a request, the last time that it did."""
        self.reached = ""
        """The limit that the rollout has reached."""
        self.num_replayed = 0
        self.diverged_at: int | None = None
        """The first call that the journal did not answer although it had replies left."""
        self.ended = asyncio.Event()
        self.session = current_session() or Session()
        self._peers, self._model, self._limits = peers, model, limits
        self._sampling = sampling or {}
        self._log = None if peers.is_taped else self.session.turn_log
        self.session.turn_log = None
        self._stored: dict[str, list[JsonObject]] = {}
        self._snapshots = snapshots
        self._unclaimed: dict[str, list[JsonObject]] = {}
        """Responses whose program left before it had them, by their request."""
        self._known = KnownCalls()
        self._lanes: list[Lane] = []
        self._num_busy = 0
        self._tips: dict[int, RecordedCall] = {}
        """The last call of each chain."""
        self._cost = Spent()
        self.lost_s: dict[str, float] = {}
        """The LOST_TIMES of all calls."""
        self._began, self._began_at = time.perf_counter(), running_loop().time()
        self.files = ""
        """The files of the snapshot from which the program continues; empty: it begins anew."""
        self._take_stored()
        self.num_restored = len(self.calls)
        """Calls before the snapshot."""

    def _take_stored(self) -> None:
        """Begin with the calls before the snapshot; have others answer the same requests."""
        stored = list(self._log.stored) if self._log else []
        turns = [turn for turn in stored if SNAPSHOT not in turn]
        if any(GIVEN in turn for turn in turns):
            raise TaskError(f"{FIRST_TURNS}: a harness has a conversation of its own")
        if self._snapshots is not None:
            self._snapshots.log = self._log
            if (snapshot := next((turn for turn in stored if SNAPSHOT in turn), None)) is not None:
                self.calls = restore_calls(turns, snapshot, self._known, self._tips)
                self.files = snapshot[SNAPSHOT_DATA] if self.calls else ""
            self._snapshots.num_before = len(self.calls)
        restored = {call.id for call in self.calls}
        for turn in turns:
            if restored and turn.get(CALL, {}).get("id") in restored:
                self._cost.call(0, turn.get("cost_usd"))
            else:
                self._stored.setdefault(turn["request"], []).append(turn)

    async def answer(self, dialect: Dialect, raw: bytes) -> Answer:
        """The reply to a request; CallRefused if there is none."""
        if self.ended.is_set():
            raise self._refuse_more()
        if self._num_busy >= MAX_AT_ONCE:
            raise CallRefused(
                429, f"more than {MAX_AT_ONCE} calls at a time", "rate_limit_exceeded"
            )
        self._num_busy += 1
        lane = None
        try:
            try:
                lane, request = self._find_lane(dialect, raw)
            except MALFORMED as error:
                raise CallRefused(400, f"the request cannot be read: {error!r:.200}") from None
            call = lane.begin_call(self._known)
            return await self._answer_call(lane, call, request)
        except TaskError as error:
            raise CallRefused(400, error.message) from None
        finally:
            self._num_busy -= 1
            if lane is not None:
                lane.is_busy = False

    def _refuse_more(self) -> CallRefused:
        if self.failure is not None:
            return CallRefused(503, f"the model failed: {self.failure.message}")
        return CallRefused(400, f"the rollout has reached its limit of {self.reached}", OVER_LIMIT)

    def _find_lane(self, dialect: Dialect, raw: bytes) -> tuple[Lane, JsonObject]:
        """The conversation that a request continues, with its new items, and the request."""
        found = [each for each in self._lanes if each.dialect is dialect and not each.is_busy]
        going = [each for each in found if each.reader.goes_on(raw)]
        if going:
            lane = max(going, key=lambda each: each.reader.size)
            self._lanes.remove(lane)
            num_before = len(lane.items)
            request = lane.reader.read(raw)
            if (asked := lane.reader.asked) is not None and asked.old and num_before:
                read = dialect.read(request)
                if lane.takes(read):
                    return self._take(lane, read), request
        lane = Lane(dialect, self._new_session())
        request = lane.reader.read(raw)
        return self._take(lane, dialect.read(request)), request

    def _new_session(self) -> Session:
        """A session for one conversation, which the model server reads on as it grows."""
        found = Session(self.session.origin + fresh_id())
        found.limits = self.session.limits
        return found

    def _take(self, lane: Lane, read: ReadRequest) -> Lane:
        lane.is_busy = True
        lane.params = {**keep_params(read.params), **self._sampling}
        lane.extend(read, self._known)
        self._lanes.append(lane)
        del self._lanes[:-MAX_LANES]
        return lane

    async def _answer_call(self, lane: Lane, call: RecordedCall, request: JsonObject) -> Answer:
        params, dialect = lane.params, lane.dialect
        digest = lane.digest(orjson.dumps(params, option=orjson.OPT_SORT_KEYS))
        if unclaimed := self._unclaimed.get(digest):
            response = unclaimed.pop(0)
            return Answer(request, dialect.write(response, request), digest, response, None)
        turn = None
        if stored := self._stored.get(digest):
            known = stored.pop(0)
            call.response, usd = track_output(known["response"]), known.get("cost_usd")
            call.made = call_of(call.response, by="policy", chain=0)
            call.id = known.get(CALL, {}).get("id", "")
            self.num_replayed += 1
            self._cost.call(0, usd)
        else:
            self._check_limits()
            if self.diverged_at is None and any(self._stored.values()):
                self.diverged_at = len(self.calls) + 1
            await self._report_returned(call)
            taken = self._snapshots.begin(self.session, self.calls) if self._snapshots else None
            try:
                costs = await self._ask(lane, call, {**params, "input": lane.items})
                if taken is not None:
                    await taken
            except BaseException:
                if taken is not None:
                    taken.cancel()
                raise
            turn = {"request": digest, "response": call.response, **costs}
        call.request = digest
        reply = dialect.write(call.response, request)
        self._record(lane, call, reply)
        if turn is not None and self._snapshots is not None:
            call.id = fresh_id()
            turn[CALL] = describe_call(call)
        return Answer(request, reply, digest, call.response, turn if self._log else None)

    async def _report_returned(self, call: RecordedCall) -> None:
        """Report what came back for the turn that a call continues."""
        before = call.parent
        if self._log is None or before is None:
            return
        returned = find_returned(call.new, has_calls=before.made.finish == "tool_calls")
        if before.request and returned:
            turn = {"request": before.request, RETURNED: shorten_returned(returned)}
            if (reported := self._log.report(turn)) is not None:
                await reported

    def _record(self, lane: Lane, call: RecordedCall, reply: JsonObject) -> None:
        self.calls.append(call)
        if call.asked_at in self._known.by_request:  # an earlier one may have been in flight
            call.why = AGAIN
        join_chain(call, self._tips)
        call.ends = [lane.end_of(call.output), lane.end_of(lane.dialect.read_reply(reply))]
        self._known.add(call)

    def _check_limits(self) -> None:
        if self._limits is None or not self.calls:
            return
        usages = [call.response.get("usage") for call in self.calls]
        try:
            seconds = running_loop().time() - self._began_at
            self.reached = self._limits.find_reached_by(usages, self._cost, seconds)
        except ModelError as error:
            self.fail(error)
        if self.reached or self.failure:
            self.ended.set()
            raise self._refuse_more()

    def fail(self, error: RolloutError) -> None:
        """Nothing more is answered: the attempt fails with this error."""
        self.failure = self.failure or error
        self.ended.set()

    async def _ask(self, lane: Lane, call: RecordedCall, asked: JsonObject) -> JsonObject:
        """Ask the model; the costs of the call."""
        began, began_at = time.perf_counter(), running_loop().time()
        spent = lane.session.spent = Spent()
        lost_before, tries = lane.session.lost_s, 1

        def lose(error: RolloutError, seconds: float) -> None:
            nonlocal tries
            tries += 1
            lane.session.lose("retry_s", seconds)

        raw = lane.writer.write(asked)
        try:
            with entered(lane.session):
                response = await self._ask_until_answered(raw, began_at, lose)
        except RolloutError as error:
            if is_of_program(error):
                self.refusal = error.message
                raise CallRefused(error.status, error.message) from None
            self.fail(error)
            raise self._refuse_more() from None
        finally:
            self.session.spent.add(spent)
            self._cost.add(spent)
        call.response, waited_s = track_output(response), 0.0
        for name, was, now in zip(LOST_TIMES, lost_before, lane.session.lost_s, strict=True):
            self.lost_s[name] = self.lost_s.get(name, 0.0) + now - was
            waited_s += now - was
        costs = {
            "cost_usd": None if spent.unpriced else spent.usd,
            "standard_usd": None if spent.unlisted else spent.standard_usd,
        }
        call.made = call_of(
            call.response,
            start_s=began - self._began,
            model_s=max(0.0, time.perf_counter() - began - waited_s),
            waited_s=waited_s,
            tries=tries,
            cost_usd=costs["cost_usd"],
            by="policy",
            chain=0,
        )
        return costs

    async def _ask_until_answered(
        self, raw: SplitRequest | bytes, began_at: float, lose: Any
    ) -> JsonObject:
        try:
            return await self._ask_once(raw)
        except RolloutError as error:
            again = partial(self._ask_once, raw)
            return await retry(again, TURN, on_retry=lose, first=(error, began_at))

    async def _ask_once(self, raw: SplitRequest | bytes) -> JsonObject:
        response = await self._peers.call(self._model, "/v1/responses", raw, dict)
        if not isinstance(response.get("output"), list):
            raise PeerError("answered without an 'output' list", server=self._model, retryable=True)
        return response

    async def ask_other(self, path: str, raw: bytes | None) -> bytes:
        """The reply of the model server to a request that generates nothing; or CallRefused."""
        try:
            with entered(None):
                return orjson.dumps(await self._peers.call(self._model, path, raw, dict))
        except RolloutError as error:
            raise CallRefused(error.status, error.message) from None

    async def store(self, answer: Answer) -> None:
        """Have a reply on disk before its end is sent."""
        turn, answer.turn = answer.turn, None
        if self._log is not None and turn is not None:
            reported = self._log.report(turn)
            if reported is not None:
                await reported

    def give_back(self, answer: Answer) -> None:
        """The program left before it had the reply: the same request gets it."""
        self._unclaimed.setdefault(answer.digest, []).append(answer.response)

    def finish(self, rule: SideCalls, model: str, finish_reason: str) -> JsonObject:
        """Put the statistics into the session; return the response of the whole rollout."""
        found = lay_out(self.calls, rule, model)
        own = [turn for turn in found.turns if turn.by == "policy"]
        response = found.response
        if self.reached:
            finish_reason = OVER_LIMIT
            response |= {"status": "incomplete", "incomplete_details": {"reason": OVER_LIMIT}}
        stats: JsonObject = {
            "num_turns": len(own),
            "num_tool_calls": len(function_calls(response["output"])),
            "model_s": sum(turn.model_s or 0.0 for turn in own),
            "tool_s": sum(turn.tool_s or 0.0 for turn in own),
            "finish_reason": finish_reason,
            "resumed_turns": self.num_restored + self.num_replayed or None,
            TURNS: pack_turns(found.turns) if found.turns else None,
            "gateway": self._describe(found),
            **{name: seconds for name, seconds in self.lost_s.items() if seconds},
        }
        self.session.stats |= {name: each for name, each in stats.items() if each is not None}
        return response

    def _describe(self, found: LaidOut) -> JsonObject:
        """What the line says of the calls as a whole."""
        known: JsonObject = {"calls": len(self.calls), "side_calls": found.num_side}
        if len(found.chains) > 1:
            known["chains"] = found.chains
        if self.num_restored:
            known["restored"] = self.num_restored
        if self.num_restored or self.num_replayed:
            known |= {"replayed": self.num_replayed, "diverged_at": self.diverged_at}
        return known


def track_output(response: JsonObject) -> JsonObject:
    """The response, whose items need not be encoded again while they are as they are."""
    return {**response, "output": list(map(track, response["output"]))}


def is_of_program(error: RolloutError) -> bool:
    """Whether a request is refused for what the program wrote, and not for trouble of the run."""
    return isinstance(error, TaskError) or (
        isinstance(error, ModelError) and error.status in (400, 413, 422) and not error.retryable
    )
