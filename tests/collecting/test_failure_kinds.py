"""Failures have NeMo Gym's names where these mean the same."""

import pytest

from rollout_kit.errors import (
    BY_NAME,
    ModelError,
    PeerLost,
    PeerTimeout,
    PeerUnreachable,
    RolloutError,
    SessionLost,
    TaskError,
    VerifyError,
    from_wire,
)
from rollout_kit.serving.judge import JudgeModel
from rollout_kit.store.lines import describe_error

NAMES = {
    "transport_unreachable transport_peer_drop transport_timeout agent_timeout judge_failed"
    " judge_unparseable verifier_error session_lost cancelled"
}
"""Those of its `failure_kinds.py` that have a counterpart here."""


def test_only_names_of_its_vocabulary_are_used() -> None:
    used = {kind.default_kind for kind in BY_NAME.values()} - {""}
    assert used <= set(*map(str.split, NAMES))


@pytest.mark.parametrize(
    ("error", "waited_for", "kind", "stage"),
    [
        (SessionLost("gone"), "env /seed_session", "session_lost", "seed"),
        (VerifyError("no"), "env /verify", "verifier_error", "verification"),
        (PeerUnreachable("no"), "env /verify", "transport_unreachable", None),
        (PeerLost("cut"), "agent /v1/responses", "transport_peer_drop", None),
        (PeerTimeout("late"), "agent /run", "transport_timeout", None),
        (ModelError("no"), "agent /v1/responses", None, "agent"),
        (TaskError("bad row"), "starting", None, None),
        (RolloutError("?"), "env /add", None, None),
    ],
)
def test_a_failure_names_its_kind_and_stage_if_they_are_known(
    error: RolloutError, waited_for: str, kind: str | None, stage: str | None
) -> None:
    found = describe_error(error, 1.0, waited_for)
    assert (found.get("failure_kind"), found.get("stage")) == (kind, stage)


def test_a_kind_survives_the_way_over_http_and_a_foreign_text_is_no_kind() -> None:
    judge = JudgeModel.__new__(JudgeModel)
    judge._server = "judge"
    for body, kind in (
        (None, "judge_failed"),
        ("", "judge_unparseable"),
        ("?", "judge_unparseable"),
    ):
        error = judge.refuse("gave nothing", body=body, is_final=True)
        wire = error.to_wire()
        assert from_wire("env", 500, wire, "").failure_kind == kind
        wire["error"]["failure_kind"] = "No kind\n"
        assert from_wire("env", 500, wire, "").failure_kind == "verifier_error"
    assert "failure_kind" not in VerifyError("no").to_wire()["error"]
