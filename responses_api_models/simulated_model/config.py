"""The keys of a simulated model: its answers, speed and faults."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollout_kit.serving.model import ModelConfig
from rollout_kit.serving.service import OPERATIONAL

FaultKind = Literal[
    429,
    500,
    503,
    "reset",
    "half_body",
    "garbage",
    "wrong_content_type",
    "slow_drip",
    "hang",
    "context_overflow",
]


class LogNormal(BaseModel):
    """A random quantity with a log-normal distribution."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    median: float = Field(gt=0, description="Half of the draws are below it.")
    sigma: float = Field(
        0.5, ge=0, le=5, description="Spread: at 0.5, one draw in twenty is above 2.3 medians."
    )


class RateLimit(BaseModel):
    """Token buckets that refill evenly; a request that finds too few tokens gets a 429."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    requests_per_minute: float | None = Field(None, gt=0, description="RPM.")
    tokens_per_minute: float | None = Field(None, gt=0, description="TPM: prompt and answer.")
    burst_s: float = Field(
        60, gt=0, description="The buckets hold what this many seconds refill; they begin full."
    )

    def paces(self) -> dict[str, float]:
        """What is allowed a minute, by the names of these keys."""
        found = self.model_dump(include={"requests_per_minute", "tokens_per_minute"})
        return {name: pace for name, pace in found.items() if pace}

    @model_validator(mode="after")
    def _limits_something(self) -> "RateLimit":
        if self.requests_per_minute is None and self.tokens_per_minute is None:
            raise ValueError("give requests_per_minute, tokens_per_minute, or both")
        return self


class Fault(BaseModel):
    """One kind of fault with its schedule (default: always) and probability (default: 1)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: FaultKind = Field(description="What happens; README.md has a line for each.")
    probability: float = Field(
        1.0, ge=0, le=1, description="Of the requests in the schedule, how many are struck."
    )
    from_request: int | None = Field(None, ge=1, description="First request that may be struck.")
    to_request: int | None = Field(None, ge=1, description="Last request that may be struck.")
    from_s: float | None = Field(None, ge=0, description="Begins this long after request 1.")
    to_s: float | None = Field(None, gt=0, description="Ends this long after request 1.")
    retry_after_s: float | None = Field(
        None, ge=0, description="`Retry-After` of a 429 or 503; none is sent if not given."
    )
    duration_s: float = Field(10.0, gt=0, description="How long a slow_drip takes.")

    @model_validator(mode="after")
    def _ends_after_it_begins(self) -> "Fault":
        for name, first, last in (
            ("request", self.from_request, self.to_request),
            ("s", self.from_s, self.to_s),
        ):
            if first is not None and last is not None and last < first:
                raise ValueError(f"to_{name} ({last:g}) comes before from_{name} ({first:g})")
        if self.retry_after_s is not None and self.kind not in (429, 503):
            raise ValueError(f"retry_after_s goes with kind 429 or 503, not with {self.kind}")
        return self

    def is_due(self, request: int, since_s: float) -> bool:
        """Whether the schedule covers request number `request`, `since_s` after the first one."""
        return (
            (self.from_request is None or request >= self.from_request)
            and (self.to_request is None or request <= self.to_request)
            and (self.from_s is None or since_s >= self.from_s)
            and (self.to_s is None or since_s < self.to_s)
        )


def _operational(default: Any, description: str, **bounds: Any) -> Any:
    return Field(default, json_schema_extra=OPERATIONAL, description=description, **bounds)


class SimulatedModelConfig(ModelConfig):
    # pydantic before 2.10 reserves every name that begins with model_
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model_name: str = Field("simulated", description="The name that responses give the model.")
    seed: int = Field(0, description="Other seed, other draws; same seed and requests, the same.")

    answer: Literal["echo", "text", "script", "commands"] = Field(
        "echo", description="The last user message, `text`, or what `script_jsonl_fpath` has."
    )
    text: str = Field("This is a simulated answer.", description="What `answer: text` says.")
    script_jsonl_fpath: str | None = Field(
        None, description="Rows whose gold answer is given to their prompt; `answer: script`."
    )
    last_command: str = Field(
        "", description="With `answer: commands`, a command after those of the row."
    )
    accuracy: float = Field(
        1.0, ge=0, le=1, description="Of scripted answers, how many are the row's own."
    )
    answer_template: str = Field(
        "{answer}", description="Around a row's expected_answer, where it has no gold_output."
    )
    num_tool_turns: int = Field(
        0, ge=0, description="Turns that call each offered tool once, before the answer."
    )
    output_tokens: int | LogNormal | None = Field(
        None, description="Shorter answers are padded in front; four characters are a token."
    )
    max_context_tokens: int | None = Field(
        None, ge=1, description="Longer prompts are refused as vLLM does."
    )
    return_token_ids: bool = Field(
        False, description="Give token ids and log-probs without being asked."
    )

    latency_s: float | LogNormal = _operational(0.0, "From a request's turn to its first token.")
    per_output_token_s: float = _operational(0.0, "For each token of the answer, on top.", ge=0)
    rate_limit: RateLimit | None = _operational(None, "What gets a 429; clients are not told.")
    refuse_above: int | None = _operational(
        None, "More requests than this at a time get a 429.", ge=1
    )
    faults: list[Fault] = _operational([], "The first that strikes a request is taken.")
    endpoint_port: int | None = _operational(
        None, "One more port on loopback, shared by all workers.", ge=1, le=65535
    )

    @model_validator(mode="after")
    def _fits_together(self) -> "SimulatedModelConfig":
        plays = self.answer in ("script", "commands")
        if plays and not self.script_jsonl_fpath:
            needs = f"answer: {self.answer} needs script_jsonl_fpath, most often the run's input"
            raise ValueError(needs)
        if not plays and self.script_jsonl_fpath:
            raise ValueError("script_jsonl_fpath is only read with answer: script or commands")
        if "{answer}" not in self.answer_template:
            raise ValueError("answer_template must contain {answer}")
        for name in ("latency_s", "output_tokens"):
            value = getattr(self, name)
            if isinstance(value, int | float) and value < 0:
                raise ValueError(f"{name} must not be negative, got {value:g}")
        return self
