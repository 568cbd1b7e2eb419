"""The model calls of one rollout: asked with retries, stored, taken from storage, and told in the
arrays of `rollout.turns`."""

import time
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from ...errors import THROTTLED, BatchPending, PeerError, RolloutError
from ...items import track
from ...responses import function_calls, make_response, sum_usage
from ...session import (
    GIVEN,
    LOST_TIMES,
    RETURNED,
    TURNS,
    WAITS,
    BatchTicket,
    Session,
    Spent,
    current_session,
)
from ...time_limit import running_loop
from ...trajectory import ModelCall, pack_turns, versions_of
from ...types import JsonObject
from ..transport.conversation import LENGTH_OF_OLD, Digests, RequestWriter, SplitRequest, old_digest
from ..transport.loop import step
from ..transport.peers import Peers
from ..transport.retry import TURN, retry
from .returned_items import find_returned, shorten_returned
from .rollout_bounds import OVER_LIMIT, RolloutBounds

SHORT_S, SHORT_TURNS = 0.5, 6
"""A rollout that takes less time and fewer turns stores none of them: it costs little to make
again, and would notice the 40 µs that storing a turn takes."""

By = Literal["policy", "user"]
"""Who is asked: a model whose answers are the rollout's, or the simulated user."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """Whom a call asks, and where it begins."""

    model: str
    by: By
    chain: int | None
    at: int | None
    """Items of the output before it."""
    tools_s: float
    """The time of all tools before it."""


class Turns:
    """The model calls of one rollout, one after the other, and their statistics.

    The agent adds its tool calls to `num_calls` and their seconds to `tool_s`.

    Where the turns of an interrupted attempt are stored, a request that is equal to a stored one
    gets its response, without a model call. So the agent makes the same turns again up to there,
    with its tool calls in the new session. A tool that answers otherwise makes another request. No
    agent needs code of its own to continue.

    Example:

        class Plans(rk.Agent):
            async def respond(self, params):
                turns, asked = self.begin_turns(), rk.input_items(params)
                plan = await turns.ask({"input": asked}, model="planner", at=0)
                output = plan["output"]
                work = await turns.ask({"input": asked + output}, at=len(output))
                return turns.finish(work, output + work["output"], "stop")
    """

    def __init__(self, peers: Peers, model: str, limits: RolloutBounds | None = None) -> None:
        self.num_calls = 0
        self.tool_s = 0.0
        self._peers, self._model, self._limits = peers, model, limits
        self._usages: list[Any] = []
        self._calls: list[ModelCall] = []
        """The calls so far, without where they end and the time of their tools."""
        self._costs: JsonObject = {}
        """Of the last call, in US dollars."""
        self._asked: list[_Asked] = []
        self._first: int | None = None
        """Items in the request of the first call that does not say where it begins."""
        self._tries = 0
        self._session = current_session() or Session()
        self._lost_s: dict[str, float] = {}
        self._lost_before = 0.0
        spent = self._session.spent
        self._usd_before, self._unpriced_before = spent.usd, spent.unpriced
        # recorded calls are their own store, and would lack what is not sent again
        self._log = None if peers.is_taped else self._session.turn_log
        self._session.turn_log = None
        self._began, self._began_at = time.perf_counter(), running_loop().time()
        self._digests = Digests()
        self._stored: dict[str, list[JsonObject]] = {}
        self._given: list[list[JsonObject]] = []
        """Items of the turns with which the rollout begins, the next one first."""
        for turn in self._log.stored if self._log else ():
            if GIVEN in turn:
                self._given.append(turn[GIVEN])
                continue
            name = turn["request"]
            if (server := turn.get("model_server")) is not None:
                name = f"{server} {name}"
            self._stored.setdefault(name, []).append(turn)
        self._unstored: list[tuple[SplitRequest | bytes | None, JsonObject]] = []
        """Requests, and their turns; without a request, what came back for the turn before."""
        self._last_stored = ""
        """The digest of the request of the last turn that is stored."""
        self._writers = {model: RequestWriter()}
        """Of each model: it is asked in a conversation of its own."""
        self._num_resumed, self._num_given = 0, len(self._given)

    async def ask(
        self,
        request: JsonObject,
        *,
        model: str = "",
        by: By = "policy",
        chain: int | None = 0,
        at: int | None = None,
    ) -> JsonObject:
        """Return the response of the next turn; retry as TURN says.

        `model` is the model server, by default the agent's. `at` is the number of items of the
        output before the turn. Without it the request must have the items of the first one, and
        the output so far.
        """
        model = model or self._model
        if (writer := self._writers.get(model)) is None:
            writer = self._writers[model] = RequestWriter()
        whom = _Asked(model, by, chain, self._find_place(request, at), self.tool_s)
        asked = writer.write(request)
        if self._given and model == self._model and by == "policy":
            self._keep_session()
            return self._take_given(self._given.pop(0), whom)
        if self._stored and (known := self._find_stored(asked, model)):
            self._keep_session()
            return self._resume(known.pop(0), whom)
        self._note_returned(request, by)
        if self._unstored:
            await self._store()
        await step
        response = await self._ask_model(asked, whom)
        self._asked.append(whom)
        if len(self._usages) > 1:  # a short rollout encodes its items again
            response = {**response, "output": list(map(track, response["output"]))}
        if self._log is not None:
            turn = {"response": response, **self._costs}
            if model != self._model:
                turn["model_server"] = model
            if by != "policy":
                turn["by"] = by
            self._unstored.append((asked, turn))
            if function_calls(response["output"]):
                await self._store()  # the tools may take long
        return response

    def _take_given(self, items: list[JsonObject], whom: _Asked) -> JsonObject:
        """The response of a turn that the row gives; it costs nothing."""
        response = make_response("", [dict(item) for item in items], None)
        self._usages.append(None)
        self._calls.append(call_of(response, by=whom.by, chain=whom.chain, cost_usd=0.0))
        self._asked.append(whom)
        return response

    def _resume(self, turn: JsonObject, whom: _Asked) -> JsonObject:
        """The response of a stored turn, which counts as one of this rollout."""
        response, usd = turn["response"], turn.get("cost_usd")
        self._last_stored = turn["request"]
        self._num_resumed += 1
        self._usages.append(response.get("usage"))
        self._calls.append(call_of(response, by=whom.by, chain=whom.chain))
        self._asked.append(whom)
        if usd is None:
            self._unpriced_before -= 1
        else:
            self._usd_before -= usd
        return response

    def find_limit(self) -> str:
        """The name of a limit that the calls so far have reached; empty if there is none.
        ModelError if what it bounds is unknown."""
        if self._limits is None or not self._calls:
            return ""
        spent = self._session.spent
        cost = Spent(
            usd=spent.usd - self._usd_before, unpriced=spent.unpriced - self._unpriced_before
        )
        return self._limits.find_reached_by(
            self._usages, cost, running_loop().time() - self._began_at
        )

    def _find_place(self, request: JsonObject, at: int | None) -> int | None:
        """The number of items of the output before a call."""
        items = request.get("input")
        if at is not None or not isinstance(items, list):
            return at
        if self._first is None:
            self._first = len(items)
        return len(items) - self._first

    def _find_stored(self, asked: SplitRequest | bytes, model: str) -> list[JsonObject] | None:
        """The stored turns of a model that answer a request."""
        if model != self._model:
            return self._stored.get(f"{model} {self._digests.of(asked)}")
        known = self._stored.get(self._digests.of(asked))
        if known is None and any(len(name) == LENGTH_OF_OLD for name in self._stored):
            known = self._stored.get(old_digest(bytes(asked)))
        return known

    def _note_returned(self, request: JsonObject, by: By) -> None:
        """Have what came back for the last turn reported, if both turns are the policy's."""
        items = request.get("input")
        if self._log is None or not self._asked or not isinstance(items, list):
            return
        if by == self._asked[-1].by == "policy":
            has_calls = self._calls[-1].finish == "tool_calls"
            if returned := find_returned(items, has_calls=has_calls):
                self._unstored.append((None, {RETURNED: returned}))

    async def _store(self) -> None:
        """Store the turns that are not stored yet, unless the rollout may be a short one."""
        is_short = len(self._usages) < SHORT_TURNS and time.perf_counter() - self._began < SHORT_S
        if self._log is None or is_short:
            return
        while self._unstored:
            asked, turn = self._unstored.pop(0)
            if asked is not None:
                self._last_stored = self._digests.of(asked)
            else:
                turn = {RETURNED: shorten_returned(turn[RETURNED])}
            if self._last_stored:
                await self._report({"request": self._last_stored, **turn})

    async def _ask_model(self, request: SplitRequest | bytes, whom: _Asked) -> JsonObject:
        began, began_at = time.perf_counter(), running_loop().time()
        lost_before, spent = self._session.lost_s, self._session.spent
        usd, unpriced = spent.usd, spent.unpriced
        standard, unlisted = spent.standard_usd, spent.unlisted
        self._lost_before, self._tries = sum(lost_before), 1
        try:
            response = await self._ask_once(request, whom.model)
        except RolloutError as error:
            first = error, began_at
            again = partial(self._ask_once, request, whom.model)
            response = await retry(again, TURN, on_retry=self._lose, first=first)
        seconds, lost = time.perf_counter() - began, self._session.lost_s
        await step
        waited_s = sum(lost) - sum(lost_before)
        if lost != lost_before:
            for name, before, after in zip(LOST_TIMES, lost_before, lost, strict=True):
                self._lost_s[name] = self._lost_s.get(name, 0.0) + after - before
                seconds -= after - before
        self._keep_session()
        self._usages.append(response.get("usage"))
        self._costs = {
            "cost_usd": None if spent.unpriced > unpriced else spent.usd - usd,
            "standard_usd": None if spent.unlisted > unlisted else spent.standard_usd - standard,
        }
        self._calls.append(
            call_of(
                response,
                start_s=began - self._began,
                model_s=max(0.0, seconds),
                waited_s=waited_s,
                tries=self._tries,
                cost_usd=self._costs["cost_usd"],
                by=whom.by,
                chain=whom.chain,
            )
        )
        return response

    def _lose(self, error: RolloutError, seconds: float) -> None:
        """Record the time of a try that failed and of its pause, unless the model server did."""
        self._tries += 1
        lost = sum(self._session.lost_s)
        name = "rate_limit_s" if error.status in THROTTLED else "retry_s"
        self._session.lose(name, max(0.0, seconds - (lost - self._lost_before)))
        self._lost_before = sum(self._session.lost_s)

    async def _ask_once(self, request: SplitRequest | bytes, model: str) -> JsonObject:
        ticket = self._session.ticket
        if ticket is not None and self._calls:
            return await self._ask_in_place(request, model, ticket)
        return await self._ask_server(request, model)

    def _keep_session(self) -> None:
        """From now on nothing of this session may be put aside, as its tools are called."""
        if (ticket := self._session.ticket) is not None:
            self._session.ticket = ticket._replace(waits=True)

    async def _ask_in_place(
        self, request: SplitRequest | bytes, model: str, ticket: BatchTicket
    ) -> JsonObject:
        """Ask for a later turn, which may wait for a batch. The session goes on meanwhile: its
        tools have been called."""
        self._session.ticket = ticket._replace(waits=False)
        try:
            return await self._ask_server(request, model)
        except BatchPending:
            self._keep_session()
            await self._report({WAITS: True})
            try:
                return await self._ask_server(request, model)
            finally:
                await self._report({WAITS: False})
        finally:
            self._keep_session()

    async def _report(self, event: JsonObject) -> None:
        reported = self._log.report(event) if self._log else None
        if reported is not None:
            await reported

    async def _ask_server(self, request: SplitRequest | bytes, model: str) -> JsonObject:
        response = await self._peers.call(model, "/v1/responses", request, dict)
        if not isinstance(response.get("output"), list):
            raise PeerError("answered without an 'output' list", server=model, retryable=True)
        return response

    def cost_of(self, by: By) -> float | None:
        """US dollars of the calls that asked the policy, or the user; None if one is unknown."""
        pairs = zip(self._calls, self._asked, strict=True)
        costs = [call.cost_usd for call, asked in pairs if asked.by == by]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if known and len(known) == len(costs) else None

    def finish(self, last: JsonObject, output: list[JsonObject], finish_reason: str) -> JsonObject:
        """Put the statistics into the session; return the response of the whole rollout: the last
        turn's, with every item and the sum of usage. Counts, times and usage are the policy's;
        those of the user stand in the turns."""
        own = [number for number, asked in enumerate(self._asked) if asked.by == "policy"]
        model_s = [
            seconds for number in own if (seconds := self._calls[number].model_s) is not None
        ]
        stats: JsonObject = {
            "num_turns": len(own),
            "num_tool_calls": self.num_calls,
            "model_s": sum(model_s, 0.0),
            "tool_s": self.tool_s,
            "finish_reason": finish_reason,
        }
        if turns := pack_turns(self._end_calls(len(output))):
            stats[TURNS] = turns
        if self._num_given:
            stats["given_turns"] = self._num_given - len(self._given)
        if self._num_resumed:
            stats["resumed_turns"] = self._num_resumed
        elif len(model_s) > 1:
            stats["first_turn_s"] = model_s[0]
        for name in LOST_TIMES:  # of the turns only, without those of models that tools called
            self._session.stats.pop(name, None)
        stats |= {name: seconds for name, seconds in self._lost_s.items() if seconds}
        self._session.stats |= stats
        usage = sum_usage([self._usages[number] for number in own])
        if finish_reason == OVER_LIMIT:
            last = {**last, "status": "incomplete", "incomplete_details": {"reason": OVER_LIMIT}}
        return {**last, "output": output, "usage": usage}

    def _end_calls(self, num_items: int) -> list[ModelCall]:
        """The calls, each with where it ends in the output and the time of its tools."""
        found: list[ModelCall] = []
        to: int | None = num_items
        tools_s = self.tool_s
        for call, asked in zip(reversed(self._calls), reversed(self._asked), strict=True):
            ends_at = None if asked.at is None else to
            times = call.start_s, call.model_s, tools_s - asked.tools_s
            found.append(ModelCall._make((ends_at, *times, *call[4:])))
            to, tools_s = asked.at, asked.tools_s
        found.reverse()
        return found


def call_of(response: JsonObject, **known: Any) -> ModelCall:
    """What a response tells of the call, and what is `known` besides."""
    usage = response.get("usage")
    used: JsonObject = usage if isinstance(usage, dict) else {}
    details = used.get("input_tokens_details")
    incomplete = response.get("incomplete_details")
    versions = versions_of(response["output"]) if known.get("by") == "policy" else None
    if isinstance(incomplete, dict):
        finish = str(incomplete.get("reason") or "incomplete")
    else:
        finish = "tool_calls" if function_calls(response["output"]) else "stop"
    model = response.get("model")
    return ModelCall(
        input=used.get("input_tokens"),
        cached=details.get("cached_tokens") if isinstance(details, dict) else None,
        output=used.get("output_tokens"),
        finish=finish,
        version=versions.last if versions else None,
        model=model if isinstance(model, str) else None,
        **known,
    )
