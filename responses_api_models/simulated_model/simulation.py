"""Decide what happens to a request: the pure core, without a clock or sockets.

Answers and faults are drawn from the seed, the request's content and its number of repetitions, so
they do not depend on the order of arrival; rate limits, queues and schedules do. A fault does not
change the later answer: only answers that arrive count as repetitions.
"""

from dataclasses import dataclass, replace

from rollout_kit.errors import ModelError
from rollout_kit.types import JsonObject

from .answers import Answer, Answers
from .asked import Asked, read
from .commands import CommandScript
from .config import Fault, SimulatedModelConfig
from .draws import Draws, Occurrences
from .limits import Limiter, Slots
from .script import Script


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error in the form of OpenAI and vLLM."""

    status: int
    message: str
    type: str
    code: str | int | None = None
    param: str | None = None
    retry_after_s: float | None = None

    @property
    def is_overflow(self) -> bool:
        return self.param == "input_tokens"

    def body(self) -> JsonObject:
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": error}

    def error(self) -> ModelError:
        return ModelError(self.message, status=self.status, retry_after_s=self.retry_after_s)


BROKEN = Refusal(500, "simulated fault: internal server error", "server_error")


FULL = Refusal(
    429, "too many requests at the same time", "requests", code="concurrency_limit_exceeded"
)


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of a request; times are seconds from its arrival.

    It is either a refusal, or an answer that a fault may spoil.
    """

    asked: Asked
    answer: Answer | None = None
    refusal: Refusal | None = None
    fault: Fault | None = None
    headers: tuple[tuple[str, str], ...] = ()
    turn_s: float = 0.0
    first_s: float = 0.0
    end_s: float = 0.0

    @property
    def is_answered(self) -> bool:
        """Whether the answer arrives, even if slowly."""
        arrives = self.fault is None or self.fault.kind == "slow_drip"
        return self.answer is not None and arrives


class Simulation:
    def __init__(
        self, config: SimulatedModelConfig, script: Script | CommandScript | None = None
    ) -> None:
        self._config = config
        self._answers = Answers(config, script)
        self._limiter = Limiter(config.rate_limit)
        self._slots = Slots(config.max_concurrent_requests)
        self._arrived = Occurrences()
        self._answered = Occurrences()
        self._num_requests = 0
        self._first_at = 0.0

    def decide(self, dialect: str, body: JsonObject, now: float, in_flight: int = 1) -> Decision:
        """Decide a request that arrives `now`, on a monotonic clock, as the last of `in_flight`;
        TaskError if it is invalid."""
        asked = read(dialect, body)
        draws = self._arrival(asked, now)
        fault = self._fault(draws, now)
        if in_flight > (self._config.refuse_above or in_flight):
            return Decision(asked, refusal=FULL)
        if fault and (refusal := _at_once(fault)):
            return Decision(asked, refusal=refusal, fault=fault)
        if refusal := self._overflow(asked, fault):
            return Decision(asked, refusal=refusal, fault=fault)
        occurrence = self._answered.next(asked.digest)
        answer = self._answers.to(
            asked, Draws(self._config.seed, "answer", asked.digest, occurrence)
        )
        short = self._limiter.take(asked.prompt_tokens + answer.num_tokens, now)
        headers = self._limiter.headers()
        if short:
            return Decision(asked, refusal=self._limited(*short), headers=headers)
        if fault and fault.kind == "hang":
            return Decision(asked, fault=fault, headers=headers)
        first_s = draws.of(self._config.latency_s)
        takes_s = first_s + answer.num_tokens * self._config.per_output_token_s
        turn_s = self._slots.begin(now, takes_s) - now
        decision = Decision(
            asked,
            answer,
            fault=fault,
            headers=headers,
            turn_s=turn_s,
            first_s=turn_s + first_s,
            end_s=turn_s + takes_s,
        )
        if fault and fault.kind == 500:
            return replace(decision, answer=None, refusal=BROKEN)
        if decision.is_answered:
            self._answered.count(asked.digest)
        return decision

    def _arrival(self, asked: Asked, now: float) -> Draws:
        self._first_at = self._first_at if self._num_requests else now
        self._num_requests += 1
        occurrence = self._arrived.next(asked.digest)
        self._arrived.count(asked.digest)
        return Draws(self._config.seed, "arrival", asked.digest, occurrence)

    def _fault(self, draws: Draws, now: float) -> Fault | None:
        """The fault, if any. One number is drawn for each, so that schedules do not shift draws."""
        strikes = [draws.uniform() < fault.probability for fault in self._config.faults]
        for fault, does_strike in zip(self._config.faults, strikes, strict=True):
            if does_strike and fault.is_due(self._num_requests, now - self._first_at):
                return fault
        return None

    def _overflow(self, asked: Asked, fault: Fault | None) -> Refusal | None:
        length, most = asked.prompt_tokens, self._config.max_context_tokens
        if fault and fault.kind == "context_overflow":
            most = min(most or length, length) - 1
        if most is None or length <= most:
            return None
        return Refusal(
            400,
            f"This model's maximum context length is {most} tokens. However, your request has "
            f"{length} input tokens. Please reduce the length of the input messages.",
            "BadRequestError",
            code=400,
            param="input_tokens",
        )

    def _limited(self, unit: str, missing_s: float) -> Refusal:
        most = self._limiter.figures()[unit]
        name = "RPM" if unit == "requests" else "TPM"
        return Refusal(
            429,
            f"Rate limit reached for {self._config.model_name} on {unit} per min ({name}): "
            f"Limit {most:.0f}. Please try again in {missing_s:.3g}s.",
            unit,
            code="rate_limit_exceeded",
            retry_after_s=missing_s,
        )


def _at_once(fault: Fault) -> Refusal | None:
    """The refusal by a fault that rejects the request at once."""
    if fault.kind == 429:
        return Refusal(
            429,
            "simulated fault: too many requests",
            "requests",
            code="rate_limit_exceeded",
            retry_after_s=fault.retry_after_s,
        )
    if fault.kind == 503:
        message = "simulated fault: the engine is overloaded"
        return Refusal(503, message, "server_error", retry_after_s=fault.retry_after_s)
    return None
