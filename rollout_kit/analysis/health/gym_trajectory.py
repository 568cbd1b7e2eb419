"""The evidence in a rollout of NeMo Gym: its `ng_trajectory`, a record of turns, conversations and
model calls that refer to each other. What the record says that it does not know is unobserved."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ...types import JsonObject
from .evidence import Bound, Evidence, ObservedCall, ObservedTurn, has_call, has_text, read_usage

Count = Annotated[int, Field(ge=0)]
Duration = Annotated[float, Field(ge=0)]

NO_TURNS = frozenset({"turns_unavailable"})
NO_CALLS = frozenset(
    {
        "model_calls_unavailable",
        "model_call_capture_incomplete",
        "model_call_capture_records_unreadable",
        "model_call_capture_unreadable",
    }
)
NOTHING = frozenset({"trajectory_projection_failed"})
NOT_ALL_CALLS = frozenset({"turn_model_call_scope_incomplete"})
"""Codes of gaps, by what is missing."""

CONTRADICTIONS = {
    "model_call_reference_unmatched": "missing_captured_call",
    "model_call_reference_ambiguous": "duplicated_captured_call",
    "model_call_reference_conflict": "conflicting_call_ownership",
}
"""Code of a gap → what kind of contradiction it is."""


class GymRecord(BaseModel):
    """A part of the record; an unknown field makes it unreadable, as it does there."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class GymModel(BaseModel):
    """The model server that was asked."""

    type: Any = None
    name: Any = None


class GymReference(GymRecord):
    """Names a model call."""

    model_call_id: str | None = None
    model_ref: GymModel | None = None
    response_id: str | None = None

    @model_validator(mode="after")
    def _names_a_call(self) -> "GymReference":
        if not self.model_call_id and not (self.model_ref is not None and self.response_id):
            raise ValueError("model_call_id or both model_ref and response_id are required")
        return self

    @property
    def signature(self) -> tuple[str, str, str, str]:
        model = self.model_ref or GymModel()
        parts = self.model_call_id, model.type, model.name, self.response_id
        return tuple(str(part or "") for part in parts)  # type: ignore[return-value]

    @property
    def name(self) -> str:
        return str(self.model_call_id or self.response_id).split(":")[-1]


class GymTokens(GymRecord):
    """Tokens of a call."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    reasoning_tokens: Count | None = None
    total_tokens: Count | None = None
    cached_tokens: Count | None = None


class GymReply(GymRecord):
    """What is known of the reply to a call."""

    response_id: str | None = None
    model_ref: GymModel | None = None
    model: str | None = None
    dialect: str | None = None
    status_code: int | None = None
    response_status: str | None = None
    finish_reason: str | None = None
    upstream_attempted: bool | None = None
    response_source: Literal["upstream", "local"] | None = None
    upstream_status_code: int | None = None
    local_response_reason: str | None = None
    error_category: str | None = None
    latency_ttft_ms: Duration | None = None


class GymCall(GymRecord):
    """One request to a model."""

    model_call_id: str | None = None
    started_at: float | None = None
    completed_at: float | None = None
    duration_ms: Duration | None = None
    request: Any = None
    response: Any = None
    response_metadata: GymReply = Field(default_factory=GymReply)
    token_stats: GymTokens = Field(default_factory=GymTokens)


class GymTurn(GymRecord):
    """One turn of an agent."""

    invocation_id: str
    task_id: str
    rollout_id: str
    turn_no: Annotated[int, Field(ge=1)]
    timestamp: float
    question: Any = None
    answer: Any = None
    reasoning_content: Any = None
    resolved: bool | None = None
    step_count: Count
    model_calls: list[GymReference] = []


class GymInvocation(GymRecord):
    """One conversation of an agent."""

    kind: Literal["agent_invocation"] = "agent_invocation"
    invocation_id: str
    parent_invocation_id: str | None = None
    spawned_by_tool_call_id: str | None = None
    status: Literal["completed", "failed", "incomplete", "unknown"] = "unknown"
    duration_ms: Duration | None = None
    error_type: str | None = None
    model_calls: list[GymReference] = []
    conversation: list[JsonObject] = []


class GymGap(GymRecord):
    """What the writer of the record could not observe or join."""

    code: str
    invocation_id: str | None = None
    detail: str | None = None


class GymTrajectory(GymRecord):
    """The record of one rollout, schema 1.0 of NeMo Gym 0.7."""

    schema_version: Literal["1.0"] = "1.0"
    task_id: str
    rollout_id: str
    invocations: list[GymInvocation] = []
    turns: list[GymTurn] = []
    model_calls: list[GymCall] = []
    tool_calls: list[JsonObject] = []
    gaps: list[GymGap] = []

    @model_validator(mode="after")
    def _has_unique_names(self) -> "GymTrajectory":
        _check_unique("invocation_id", (each.invocation_id for each in self.invocations))
        _check_unique(
            "model_call_id", (c.model_call_id for c in self.model_calls if c.model_call_id)
        )
        _check_unique("turn_no", ((turn.invocation_id, turn.turn_no) for turn in self.turns))
        if any((t.task_id, t.rollout_id) != (self.task_id, self.rollout_id) for t in self.turns):
            raise ValueError("a turn is of another rollout")
        return self

    def has_gap(self, codes: frozenset[str]) -> bool:
        """Whether the writer of the record says that one of these is missing."""
        return any(gap.code in codes for gap in self.gaps)


def _check_unique(name: str, found: Iterable[Any]) -> None:
    each = list(found)
    if len(each) > len(set(each)):
        raise ValueError(f"{name} is not unique")


def observe_gym(row: Mapping[str, Any], number: int) -> Evidence:
    """The evidence in a line of NeMo Gym; `number` is that of the line, from 0."""
    task, index = row.get("_ng_task_index", number), row.get("_ng_rollout_index", 0)
    stage = row.get("stage_index")
    raw = row.get("ng_trajectory")
    input, output = read_usage(row.get("response"))
    bare = Evidence(task, index, stage=stage, input=input, output=output)
    if raw is None:
        return bare
    try:
        found = GymTrajectory.model_validate(raw)
    except ValidationError as error:
        reason = {"reason": "canonical trajectory is unreadable", "error": type(error).__name__}
        return Evidence(task, index, reason, stage=stage, input=input, output=output)
    if found.has_gap(NOTHING):
        return bare
    calls = [_call_of(position, call) for position, call in enumerate(found.model_calls)]
    of_turns = _references(found.turns)
    return Evidence(
        task,
        index,
        turns=None if found.has_gap(NO_TURNS) else list(map(_turn_of, found.turns)),
        calls=None if found.has_gap(NO_CALLS) else calls,
        is_observed=True,
        of_turns=_bind(of_turns, found.model_calls, calls),
        owned=_bind([*of_turns, *_references(found.invocations)], found.model_calls, calls),
        contradictions=list(_contradictions(found.gaps)),
        is_whole=not found.has_gap(NOT_ALL_CALLS),
        input=input,
        output=output,
        stage=stage,
    )


def _turn_of(turn: GymTurn) -> ObservedTurn:
    says = has_text(turn.answer) or has_text(turn.reasoning_content)
    return ObservedTurn({"turn": turn.turn_no}, says, has_call(turn.answer), bool(turn.model_calls))


def _call_of(position: int, call: GymCall) -> ObservedCall:
    reply, tokens = call.response_metadata, call.token_stats
    model = (reply.model_ref.type, reply.model_ref.name) if reply.model_ref else None
    return ObservedCall(
        position,
        {"call_id": str(call.model_call_id or reply.response_id or position)},
        model,
        call.started_at,
        tokens.prompt_tokens,
        tokens.completion_tokens,
        reply.finish_reason,
        reply.status_code,
        reply.error_category,
        reply.response_status,
        None if call.response is None else _says(call.response),
    )


def _says(response: Any) -> bool:
    """Whether a response of any interface has a text."""
    if not isinstance(response, dict):
        return False
    if has_text(response.get("output_text")) or has_text(response.get("content")):
        return True
    choices = [each for each in response.get("choices") or [] if isinstance(each, dict)]
    texts = ((each.get("text"), (each.get("message") or {}).get("content")) for each in choices)
    return has_text(response.get("output")) or any(map(has_text, texts))


def _references(owners: Iterable[GymTurn | GymInvocation]) -> list[GymReference]:
    return [reference for owner in owners for reference in owner.model_calls]


class _Names(NamedTuple):
    """What a reference may name a call by."""

    id: str | None
    model: GymModel | None
    response: str | None


def _bind(
    references: Sequence[GymReference], recorded: Sequence[GymCall], calls: Sequence[ObservedCall]
) -> Bound:
    """The calls that references name, each once, in their order."""
    names = [
        _Names(
            call.model_call_id, call.response_metadata.model_ref, call.response_metadata.response_id
        )
        for call in recorded
    ]
    unique = {reference.signature: reference for reference in reversed(references)}
    matched: set[int] = set()
    missing: list[str] = []
    repeated: list[tuple[str, int]] = []
    for reference in dict.fromkeys(each.signature for each in references):
        own = unique[reference]
        found = [at for at, name in enumerate(names) if _is_named(own, name)]
        if not found:
            missing.append(own.name)
        elif len(found) > 1:
            repeated.append((own.name, len(found)))
        else:
            matched.add(found[0])
    return Bound([calls[at] for at in sorted(matched)], bool(references), missing, repeated)


def _is_named(reference: GymReference, call: _Names) -> bool:
    if reference.model_call_id:
        return (
            reference.model_call_id == call.id
            and reference.model_ref in (None, call.model)
            and reference.response_id in (None, call.response)
        )
    return reference.model_ref == call.model and reference.response_id == call.response


def _contradictions(gaps: Iterable[GymGap]) -> Iterator[JsonObject]:
    for gap in gaps:
        if (kind := CONTRADICTIONS.get(gap.code)) is not None:
            place = (gap.detail or "unknown").split(":")[-1]
            more = {"observation_gap": gap.code, "invocation_id": gap.invocation_id}
            yield {"kind": kind, "call_id": place, **more}
