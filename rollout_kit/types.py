"""The words of the wire and of the journal.

Wire models are loose on purpose: what a stage does not look into stays plain JSON, and fields that
it does not know are carried along untouched.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict

from .errors import RolloutError, VerifyError

JsonObject = dict[str, Any]
"""A JSON object that is passed on rather than looked into."""


class Wire(BaseModel):
    """A request or reply: named fields are checked, all others pass."""

    model_config = ConfigDict(extra="allow")


class RunRequest(Wire):
    """A task: what the policy is asked, and whatever the verifier needs."""

    responses_create_params: JsonObject


class SeedSessionResponse(Wire):
    """Reply of `/seed_session`; a server may add fields of its own."""


class VerifyRequest(RunRequest):
    """A task with the response to be scored (a Responses-API object)."""

    response: JsonObject

    def scored(self, reward: float, **scores: Any) -> "VerifyResponse":
        """This request with its reward and whatever else the verifier found out."""
        return VerifyResponse.of(self, {"reward": reward, **scores})


class VerifyResponse(VerifyRequest):
    """The request, plus `reward` (any finite number) and the verifier's own fields."""

    reward: float

    @classmethod
    def of(cls, request: VerifyRequest, scores: Mapping[str, Any]) -> Self:
        return cls.model_construct(**{**given_fields(request), **scores})


def given_fields(model: BaseModel) -> JsonObject:
    """What was given to a model, its extra fields included and its defaults not."""
    given = {name: getattr(model, name) for name in model.model_fields_set}
    return {**given, **(model.model_extra or {})}


def finite_reward(value: Any) -> float:
    """`value` as a reward; VerifyError when it is not one finite number."""
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    raise VerifyError(f"reward must be a finite number, got {value!r}", retryable=False)


class Key(NamedTuple):
    """What makes a rollout itself: never a row position, so that sorting an input changes
    nothing."""

    task_id: str
    agent: str
    scope: str
    rollout_index: int

    @property
    def rollout(self) -> tuple[str, int]:
        """The task and the index, as a session tells them."""
        return self.task_id, self.rollout_index


class Task(NamedTuple):
    """One row of the input; `row` is as it will be sent, `task_index` its position among distinct
    tasks."""

    task_id: str
    task_index: int
    line: int
    agent: str
    row: JsonObject
    first_rollout: int = 0
    """Rollouts that identical earlier rows already ask for: this row's repeats are numbered from
    here."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A key that is owed. `stored`: the line of its response, where only the verdict is owed."""

    key: Key
    task: Task
    stored: JsonObject | None = None
    number: int = 1
    regenerated: bool = False
    """The stored response could not be verified alone, so the rollout is collected again."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """A finished rollout: `line` is what the journal writes."""

    key: Key
    line: JsonObject


@dataclass(frozen=True, slots=True)
class Unverified:
    """A response in hand whose verdict is still out, or has failed."""

    key: Key
    line: JsonObject
    error: RolloutError | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A key that has no result in this run, with the last error and every attempt before it."""

    key: Key
    task_index: int
    error: RolloutError
    attempts: list[JsonObject] = field(default_factory=list)
    cost_usd: float | None = None
    """What its attempts have cost; None where that is not known, or no model was asked."""


Outcome = Rollout | Unverified | Failure
