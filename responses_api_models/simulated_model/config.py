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

    model_name: str = Field("simulated", description="Name of the model in responses.")
    seed: int = Field(
        0,
        description="Seed of the answers and faults. The same seed and requests give the same"
        " answers and faults.",
    )

    answer: Literal["echo", "text", "script", "commands"] = Field(
        "echo",
        description="Kind of answer. echo: the last user message. text: the key text. script and"
        " commands: from script_jsonl_fpath.",
    )
    text: str = Field("This is a simulated answer.", description="The answer with `answer: text`.")
    script_jsonl_fpath: str | None = Field(
        None,
        description="With `answer: script`: file of rows. The answer to a prompt is the gold answer"
        " of its row.",
    )
    last_command: str = Field(
        "",
        description="With `answer: commands`: an additional command after the row's last command.",
    )
    accuracy: float = Field(
        1.0, ge=0, le=1, description="Share of right answers with `answer: script`."
    )
    answer_template: str = Field(
        "{answer}",
        description="Text around a row's expected_answer, if the row has no gold_output.",
    )
    num_tool_turns: int = Field(
        0,
        ge=0,
        description="Number of turns before the answer in which each offered tool is called once.",
    )
    output_tokens: int | LogNormal | None = Field(
        None,
        description="Length of answers. Shorter answers are padded at the beginning. Four"
        " characters count as a token.",
    )
    max_context_tokens: int | None = Field(
        None, ge=1, description="Maximum length of a prompt. Longer prompts are refused as by vLLM."
    )
    return_token_ids: bool = Field(
        False, description="Return token ids and log-probs with every response."
    )

    latency_s: float | LogNormal = _operational(0.0, "Time until the first token of an answer.")
    per_output_token_s: float = _operational(
        0.0, "Further time for each token of the answer.", ge=0
    )
    rate_limit: RateLimit | None = _operational(None, "Requests above this rate get a 429.")
    refuse_above: int | None = _operational(
        None, "With more requests than this at a time, further ones get a 429.", ge=1
    )
    faults: list[Fault] = _operational(
        [], "Faults that are drawn for each request. The first that strikes is used."
    )
    endpoint_port: int | None = _operational(
        None, "Further port on 127.0.0.1 that all workers share.", ge=1, le=65535
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
