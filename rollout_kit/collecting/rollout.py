"""From a key that is owed to its outcome: attempts are repeated until one ends it.

This is the only place that catches what goes wrong in a rollout. A response in hand is never
discarded: a verdict that is slow, fails or is cut off leaves it parked.
"""

import asyncio
import logging
from dataclasses import replace
from time import perf_counter

from ..errors import THROTTLED, BatchPending, PeerLost, PeerTimeout, RolloutError, SessionLost
from ..serving.transport.retry import LOST_ATTEMPT, delay_s
from ..store.kinds import mark_as
from ..store.lines import describe_error, info_of
from ..time_limit import HeldTime, running_loop, within
from ..types import Attempt, Failure, JsonObject, Result, Rollout, StoredTurn, Unverified
from .agents import AgentPlan
from .batches.batching import gives_up_answers, put_aside
from .pacing.probe import WorkerLoad
from .schedule import Running
from .slot import Slot
from .steps import Equipment, Refused, Steps

log = logging.getLogger(__name__)

LOSSES = {"rate_limit_s": "waits for a rate limit", "retry_s": "requests that failed"}
"""Names of the LOST_TIMES of a session in the message of a timeout."""


class Runner(Equipment):
    """Called with an attempt and its slot; returns the outcome."""

    __slots__ = ()

    def begin(self, attempt: Attempt, slot: Slot) -> Running:
        """Start an attempt."""
        return running_loop().create_task(self(attempt, slot))

    async def __call__(self, attempt: Attempt, slot: Slot) -> Result:
        """The outcome, after as many attempts as the limits allow; or what goes on once a batch has
        ended."""
        if attempt.is_copied and attempt.stored is not None:
            return Rollout(info_of(attempt.stored), mark_as("rollout", attempt.stored))
        try:
            outcome = await self.outcome_of(attempt, slot)
            if isinstance(outcome, Failure):
                self.bill.lost.add(slot.ledger.spent)
        finally:
            self.bill.add(slot.ledger.spent)
        if isinstance(outcome, Unverified) and outcome.error is not None and not self.limits.parks:
            tried = outcome.line["failure"]
            return self.failure_of(attempt, outcome.error, [tried], None)
        return outcome

    def load(self) -> WorkerLoad | None:
        """How busy the workers are; None if there are none."""
        return None

    async def outcome_of(self, attempt: Attempt, slot: Slot) -> Result:
        """Try until a try ends it, or the limits are reached."""
        agent = self.agents[attempt.key.agent]
        began, limit_s = perf_counter(), self._limit_s(agent)
        ends = began + limit_s
        slot.limits.append(held := HeldTime())
        tried: list[JsonObject] = []
        lost = throttled = 0
        if attempt.stored is not None:
            slot.ledger.bring(info_of(attempt.stored))
            if agent.reverify == "never":
                attempt = attempt._replace(stored=None, regenerated=True)
        elif attempt.turns:
            self._resume(attempt, slot)
        while True:
            started, num_turns = perf_counter() if tried else began, len(slot.turns)
            answered, num_calls = None, slot.ledger.spent.calls
            try:
                with within(ends + held.seconds - started if tried else limit_s, slot.limits):
                    found = await Steps(self, attempt, agent, slot, started - began).outcome()
                if not isinstance(found, Refused):
                    return found
                error, answered = found.error, found.line
            except TimeoutError:
                error = self._timeout(attempt, slot)
            except BatchPending as pending:
                return put_aside(attempt._replace(turns=tuple(slot.turns)), pending)
            except RolloutError as failed:
                error = failed
            except Exception as bug:  # a bug fails this rollout and no other
                error = RolloutError(f"{type(bug).__name__}: {bug}", server=attempt.key.agent)
                error.retryable = False
                log.exception("an unexpected error in a rollout")
            tried.append(describe_error(error, perf_counter() - started, slot.place.stage))
            self._drop_turns(attempt, error, slot, len(slot.turns) > num_turns)
            if slot.ledger.spent.calls > num_calls and gives_up_answers(agent, error, lost):
                attempt = attempt._replace(redraws=attempt.redraws + 1)
            pause_s = delay_s(self.retry, len(tried), error.retry_after_s, self.random)
            lost += isinstance(error, SessionLost | PeerLost)
            throttled += error.status in THROTTLED
            own = attempt.number - lost - throttled
            is_last = (
                own >= self.limits.max_attempts
                or lost >= LOST_ATTEMPT.max_tries
                or not self.retry.allows(error, perf_counter() - began + pause_s)
                or perf_counter() + pause_s > ends + held.seconds
            )
            again = None if is_last else await self._again(attempt, error, answered, slot)
            if again is None:
                if slot.parked is not None and not error.terminal:
                    line = {**slot.parked.line, "failure": tried[-1]}
                    return replace(slot.parked, line=line, error=error)
                failure = self.failure_of(attempt, error, tried, slot.ledger.billed_usd)
                return replace(failure, answered=answered)
            attempt = again._replace(number=again.number + 1)
            if error.status in THROTTLED:
                slot.ledger.limited_s += perf_counter() - started + pause_s
            slot.place.stage = "the pause before another attempt"
            await asyncio.sleep(pause_s)

    def _resume(self, attempt: Attempt, slot: Slot) -> None:
        """Have the attempt continue from the stored turns that were made with its settings."""
        settings = self.agents[attempt.key.agent].settings_of(attempt.key)
        slot.turns = [turn for turn in attempt.turns if turn.get("settings") == settings]
        slot.ledger.resume(attempt.turns)

    def _drop_turns(self, attempt: Attempt, error: RolloutError, slot: Slot, has_new: bool) -> None:
        if slot.turns and not self._may_resume(attempt, error, has_new):
            slot.turns.clear()
            slot.place.store_turn(StoredTurn(attempt.key, attempt.task.task_index))

    def _may_resume(self, attempt: Attempt, error: RolloutError, has_new: bool) -> bool:
        """Whether another attempt may continue from the turns of this one.

        Not if the turns themselves may be the reason: a tool call that breaks its server would
        break it again.
        """
        model = self.agents[attempt.key.agent].model_server
        is_of_model = error.server == model and not error.terminal
        return is_of_model or (has_new and isinstance(error, SessionLost | PeerLost))

    async def _again(
        self, attempt: Attempt, error: RolloutError, answered: JsonObject | None, slot: Slot
    ) -> Attempt | None:
        """What to attempt after `error`; None if the response in hand must wait instead."""
        if answered is None or not isinstance(error, SessionLost):
            is_about_another = slot.parked is not None and attempt.stored is None
            return None if is_about_another else attempt
        agent = self.agents[attempt.key.agent]
        if agent.reverify != "never":
            slot.park(Unverified(info_of(answered), answered, verifier=agent.verifier))
            return attempt._replace(stored=answered)
        if slot.parked is None:
            return attempt
        return attempt._replace(regenerated=True) if await slot.regain() else None

    def failure_of(
        self, attempt: Attempt, error: RolloutError, tried: list[JsonObject], cost: float | None
    ) -> Failure:
        """The failure of an attempt, as the run records it."""
        agent = self.agents[attempt.key.agent]
        return Failure(
            attempt.key,
            attempt.task.task_index,
            error,
            tried,
            cost,
            settings=agent.settings_of(attempt.key),
            verifier=agent.verifier,
        )

    def _limit_s(self, agent: AgentPlan) -> float:
        """Seconds that a rollout of this agent may take."""
        of_run = self.limits.rollout_timeout_s
        return of_run if agent.timeout_s is None else min(agent.timeout_s, of_run)

    def _timeout(self, attempt: Attempt, slot: Slot) -> RolloutError:
        lost = [
            f"; {words} took {seconds:.0f} s"
            for name, words in LOSSES.items()
            if (seconds := slot.stats.get(name, 0.0)) >= 1
        ]
        limit_s = self._limit_s(self.agents[attempt.key.agent])
        is_of_run = limit_s == self.limits.rollout_timeout_s
        limit = "rollout_timeout_s" if is_of_run else "default_episode_timeout_seconds"
        error = PeerTimeout(
            f"the rollout did not end within {limit}={limit_s:g}"
            f" while it was waiting for: {slot.place.stage}{''.join(lost)}",
            server=attempt.key.agent,
            retryable=False,
        )
        error.failure_kind = "agent_timeout"
        return error
