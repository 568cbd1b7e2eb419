"""The checks of one rollout, by name. Each gives what it finds; a check whose evidence is missing
is unobserved.

The names, and what they mean, are those of NeMo Gym 0.7 (`nemo_gym/health/checks.py`), but for the
three of simulated users.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...types import JsonObject
from .evidence import CUT_OFF, Evidence, ObservedCall
from .users import ENDED_EARLY, GAVE_AWAY, LEFT_ROLE, OF_USERS, find_user_faults

UNREADABLE, DUPLICATE = "record_unreadable", "rollout_duplicate_identity"
FAULTY_CHECK = "check_execution_error"
ALWAYS_UNHEALTHY, NO_SUCCESS = "task_consistently_unhealthy", "task_no_successful_model_calls"


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """What a check has found: the place in the rollout, and details."""

    check: str
    place: JsonObject = field(default_factory=dict)
    detail: JsonObject = field(default_factory=dict)

    def as_json(self) -> JsonObject:
        return {"check": self.check, "locator": self.place, "detail": self.detail}


Check = Callable[[Evidence], Iterator[HealthFinding] | None]
"""None: the evidence is missing."""


def find_missing_turns(found: Evidence) -> Iterator[HealthFinding] | None:
    """No turn in which a model was active."""
    if found.turns is None:
        return None
    if any(turn.says or turn.calls or turn.refers for turn in found.turns):
        return iter(())
    reason = {"reason": "no agent turn with model activity"}
    return iter([HealthFinding("rollout_missing_agent_turns", {}, reason)])


def find_hollow_turns(found: Evidence) -> Iterator[HealthFinding] | None:
    """Turns without a text, a thought or a call."""
    if found.turns is None:
        return None
    reason = {"reason": "agent turn has no message or tool calls"}
    hollow = (turn for turn in found.turns if not (turn.says or turn.calls))
    return (HealthFinding("agent_turn_hollow", turn.place, reason) for turn in hollow)


def find_list_failed_ends(found: Evidence) -> Iterator[HealthFinding] | None:
    """Models whose last call failed: the reward says nothing about the answer then."""
    return _list_failed_ends(found.calls) if found.calls else None


def _list_failed_ends(calls: Sequence[ObservedCall]) -> Iterator[HealthFinding]:
    chains: dict[object, list[ObservedCall]] = defaultdict(list)
    for call in calls:
        chains[call.model].append(call)
    for model, chain in chains.items():
        if (last := _last_failed(chain)) is not None:
            detail = {
                "model_ref": "/".join(map(str, model)) if isinstance(model, tuple) else None,
                "status": last.status,
                "error_category": last.error,
                "observed_calls": len(chain),
                "successful_calls": sum(call.has_succeeded for call in chain),
            }
            yield HealthFinding("rollout_ended_on_failed_model_call", last.place, detail)


def _last_failed(chain: Sequence[ObservedCall]) -> ObservedCall | None:
    """The last call of a model, if it failed. Without times nothing tells which one was last,
    unless all failed."""
    failed = [call for call in chain if call.is_failed]
    if not failed:
        return None
    is_timed = all(call.started_at is not None for call in chain)
    if len(failed) < len(chain) and not is_timed:
        return None
    last = max(chain, key=lambda call: (call.started_at or 0.0, call.number))
    return last if last.is_failed else None


def find_zero_tokens(found: Evidence) -> Iterator[HealthFinding] | None:
    """Calls whose reply has no token."""
    if (calls := _own_calls(found)) is None:
        return None
    detail = {"completion_tokens": 0}
    return (
        HealthFinding("model_call_zero_completion_tokens", call.place, detail)
        for call in calls
        if call.output == 0
    )


def find_missing_counts(found: Evidence) -> Iterator[HealthFinding] | None:
    """Calls whose tokens nobody has counted."""
    if (calls := _own_calls(found)) is None:
        return None
    counts = (
        (call, {"prompt_tokens": call.input, "completion_tokens": call.output}) for call in calls
    )
    missing = ((call, [name for name in own if own[name] is None]) for call, own in counts)
    return (
        HealthFinding("model_call_missing_token_counts", call.place, {"missing": names})
        for call, names in missing
        if names
    )


def find_mismatches(found: Evidence) -> Iterator[HealthFinding] | None:
    """References to calls that are not there, or are there several times, and turns that do not
    fit the output."""
    is_known = found.owned.is_referred or found.contradictions
    return _mismatches(found) if found.calls is not None and is_known else None


def _mismatches(found: Evidence) -> Iterator[HealthFinding]:
    each: list[JsonObject] = [
        {"kind": "missing_captured_call", "call_id": name} for name in found.owned.missing
    ]
    for name, number in found.owned.repeated:
        each.append({"kind": "duplicated_captured_call", "call_id": name, "count": number})
    seen: set[tuple[str, object]] = set()
    for own in each:
        if (which := (own["kind"], own["call_id"])) not in seen:
            seen.add(which)
            yield _mismatch(own)
    for gap in found.contradictions:
        if (gap["kind"], gap.get("call_id")) not in seen:
            yield _mismatch(gap)


def _mismatch(own: Mapping[str, Any]) -> HealthFinding:
    place = {name: own[name] for name in ("call_id", "turn") if name in own}
    detail = {name: value for name, value in own.items() if name not in place}
    return HealthFinding("trajectory_capture_mismatch", place, detail)


def find_failed_calls(found: Evidence) -> Iterator[HealthFinding] | None:
    """Calls that failed, the last one or others."""
    if (calls := _own_calls(found)) is None:
        return None
    end = max(call.number for call in calls)
    return (
        HealthFinding(
            "model_call_failed",
            call.place,
            {
                "status": call.status,
                "error_category": call.error,
                "terminal": found.owned.is_complete and call.number == end,
            },
        )
        for call in calls
        if call.is_failed
    )


def find_other_sums(found: Evidence) -> Iterator[HealthFinding] | None:
    """The response's tokens are not those of its turns' calls."""
    bound = found.of_turns
    counts = [(call.input, call.output) for call in bound.calls]
    is_known = counts and all(None not in each for each in counts)
    if found.calls is None or not (found.is_whole and bound.is_complete and is_known):
        return None
    if found.input is None or found.output is None:
        return None
    input, output = (sum(each or 0 for each in column) for column in zip(*counts, strict=True))
    if (input, output) == (found.input, found.output):
        return iter(())
    detail = {
        "transcript_prompt": found.input,
        "transcript_completion": found.output,
        "capture_prompt": input,
        "capture_completion": output,
    }
    return iter([HealthFinding("rollout_token_count_mismatch", {}, detail)])


def find_runaways(found: Evidence) -> Iterator[HealthFinding] | None:
    """Calls that ran into their limit of tokens and said nothing."""
    if (calls := _own_calls(found)) is None:
        return None
    cut = [call for call in calls if call.finish in CUT_OFF]
    if any(call.says is None for call in cut):
        return None
    return (
        HealthFinding("model_call_runaway_generation", call.place, {"finish_reason": call.finish})
        for call in cut
        if not call.says
    )


def _own_calls(found: Evidence) -> Sequence[ObservedCall] | None:
    """The calls that turns or conversations refer to; None if there are none."""
    return (found.owned.calls or None) if found.calls is not None else None


def _check_user(name: str) -> Check:
    """The check of this name of the simulated user; a rollout without one passes."""

    def check(found: Evidence) -> Iterator[HealthFinding]:
        faults = find_user_faults(found.user) if found.user else ()
        return (
            HealthFinding(name, {"user_message": fault.message}, fault.detail)
            for fault in faults
            if fault.check == name
        )

    return check


CHECKS: dict[str, Check] = {
    "rollout_missing_agent_turns": find_missing_turns,
    "rollout_ended_on_failed_model_call": find_list_failed_ends,
    "agent_turn_hollow": find_hollow_turns,
    "model_call_zero_completion_tokens": find_zero_tokens,
    "model_call_missing_token_counts": find_missing_counts,
    "trajectory_capture_mismatch": find_mismatches,
    "model_call_failed": find_failed_calls,
    "rollout_token_count_mismatch": find_other_sums,
    "model_call_runaway_generation": find_runaways,
    **{name: _check_user(name) for name in OF_USERS},
}
"""The checks of a rollout's evidence."""

MEANINGS = {
    FAULTY_CHECK: "a check could not be made",
    UNREADABLE: "the line, or its record of turns, cannot be read",
    DUPLICATE: "several lines have the same key",
    "rollout_missing_agent_turns": "no turn in which a model said or called anything",
    "rollout_ended_on_failed_model_call": "the last call of a model failed",
    "agent_turn_hollow": "a turn has neither text nor a tool call",
    "model_call_zero_completion_tokens": "a reply has no token",
    "model_call_missing_token_counts": "the tokens of a call are not known",
    "trajectory_capture_mismatch": "turns and the recorded calls or items do not fit",
    "model_call_failed": "a call failed",
    "rollout_token_count_mismatch": "the tokens of the response are not those of its calls",
    "model_call_runaway_generation": "a reply ran into its limit of tokens and said nothing",
    LEFT_ROLE: "the simulated user talks like an assistant",
    GAVE_AWAY: "the simulated user says something before it is asked",
    ENDED_EARLY: "the simulated user ends the conversation though it was asked for something",
    ALWAYS_UNHEALTHY: "no rollout of the task is healthy",
    NO_SUCCESS: "no call of any rollout of the task succeeded",
}
"""All of them, in the order in which they are shown."""


def run_checks(found: Evidence, ignored: frozenset[str]) -> tuple[list[HealthFinding], list[str]]:
    """What the checks find in one rollout, and which of them lack their evidence."""
    findings: list[HealthFinding] = []
    unobserved: list[str] = []
    if found.fault is not None and UNREADABLE not in ignored:
        findings.append(HealthFinding(UNREADABLE, {}, found.fault))
    if not found.is_line and DUPLICATE not in ignored:
        unobserved.append(DUPLICATE)
    for name, check in CHECKS.items():
        if name in ignored:
            continue
        try:
            own = check(found) if found.is_observed or name in OF_USERS else None
            if own is None:
                unobserved.append(name)
            else:
                findings += own
        except Exception as error:
            unobserved.append(name)
            if FAULTY_CHECK not in ignored:
                detail = {"failed_check": name, "error": type(error).__name__}
                findings.append(HealthFinding(FAULTY_CHECK, {}, detail))
    return findings, unobserved
