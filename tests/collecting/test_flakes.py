"""audit_fraction: a sample of the verdicts is made again while rollouts are collected."""

import json
import random
from typing import Any

import pytest
from support import Bench, Echo, EchoRequest, row

from rollout_kit.api.testing import making, run_virtual
from rollout_kit.errors import VerifyError
from rollout_kit.responses import output_text
from rollout_kit.types import VerifyRequest, VerifyResponse

ROWS = [row(f"q{number}") for number in range(200)]


class Fickle(Echo):
    """Says 1 the first time that it reads a q…7, and 0 ever after."""

    async def verify(self, body: EchoRequest) -> VerifyResponse:
        said = output_text(body.response)
        is_first = said not in SEEN
        SEEN.add(said)
        return body.scored(float(is_first or not said.endswith("7")))


SEEN: set[str] = set()


class Stateful(Echo):
    reverify = "replay"


@pytest.fixture(autouse=True)
def nothing_is_seen() -> None:
    SEEN.clear()


def audit(bench: Bench) -> dict[str, Any]:
    return bench.metrics()["audit"]


def test_a_sound_verifier_has_no_flips(bench: Bench) -> None:
    assert run_virtual(bench.collect(ROWS, audit_fraction=0.2)) == 0
    found = audit(bench)
    assert 20 < found["rollouts"] < 60 and found["flipped"] == found["failed"] == 0
    assert found["flake_rate"] == 0 and found["interval"][1] < 0.2
    assert f"Audit: 0 of {found['rollouts']} verdicts made again" in bench.out.getvalue()
    assert len(bench.lines()) == 200


def test_verdicts_that_come_out_otherwise_are_counted_and_named(bench: Bench) -> None:
    bench.verifier = making(Fickle)
    assert run_virtual(bench.collect(ROWS, audit_fraction=1)) == 0
    found = audit(bench)
    assert (found["rollouts"], found["flipped"], found["flake_rate"]) == (200, 20, 0.1)
    tasks = {line["rollout"]["task_id"]: line["reward"] for line in bench.lines()}
    assert {flip["task_id"] for flip in found["flips"]} <= tasks.keys()
    assert all((flip["first"], flip["second"]) == (1.0, 0.0) for flip in found["flips"])
    assert set(tasks.values()) == {1.0}, "the first verdict stands"
    said = bench.out.getvalue()
    assert "20 of 200 verdicts made again came out otherwise: a flake rate of 10.00%" in said
    assert ":0 1→0" in said and "… and 15 more" in said


def test_the_sample_is_the_same_whatever_the_order_and_another_under_another_seed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sampled(rows: list[Any], **keys: Any) -> set[str]:
        SEEN.clear()
        bench.verifier = making(Fickle)
        keys = {"audit_fraction": 0.3, "resume": "fresh", **keys}
        run_virtual(bench.collect(rows, **keys))
        return {flip["task_id"] for flip in audit(bench)["flips"]}

    rows = [row(f"{number} is 7") for number in range(60)]
    first = sampled(rows)
    assert 5 < len(first) < 35
    assert sampled(random.Random(0).sample(rows, 60)) == first
    monkeypatch.setattr("rollout_kit.collecting.plan.AUDIT_SEED", 1)
    assert sampled(rows) != first


def test_nothing_is_made_again_unless_it_is_asked_for(bench: Bench) -> None:
    bench.verifier = making(Fickle)
    assert run_virtual(bench.collect(ROWS)) == 0
    assert "audit" not in bench.metrics() and "Audit" not in bench.out.getvalue()


def test_a_verifier_that_looks_at_state_is_said_to_be_left_out(bench: Bench) -> None:
    bench.verifier = making(Stateful)
    assert run_virtual(bench.collect(ROWS, audit_fraction=1)) == 0
    assert audit(bench)["rollouts"] == 0
    assert "looks at a session's state" in audit(bench)["not_audited"]["echo_agent"]
    assert "not audited: echo_agent: its verifier looks at" in bench.out.getvalue()


def test_a_second_verdict_that_does_not_come_is_counted_and_costs_nothing(bench: Bench) -> None:
    class Once(Echo):
        async def verify(self, body: VerifyRequest) -> VerifyResponse:
            said = output_text(body.response)
            if said in SEEN:
                raise VerifyError("I have said it", retryable=False)
            SEEN.add(said)
            return body.scored(1.0)

    bench.verifier = making(Once)
    assert run_virtual(bench.collect(ROWS[:10], audit_fraction=1)) == 0
    assert (audit(bench)["rollouts"], audit(bench)["failed"]) == (0, 10)
    assert len(bench.lines()) == 10 and not bench.lines("failures")


def test_a_run_that_does_nothing_keeps_what_the_last_one_found(bench: Bench) -> None:
    run_virtual(bench.collect(ROWS, audit_fraction=1))
    run_virtual(bench.collect(ROWS, audit_fraction=1))
    assert audit(bench)["rollouts"] == 200
    run_virtual(bench.collect([*ROWS, row("another")], audit_fraction=1, json=True))
    assert audit(bench)["rollouts"] == 1, "each run's own"
    events = [json.loads(line) for line in bench.out.getvalue().splitlines()]
    assert [each["rollouts"] for each in events if each.get("event") == "audit"] == [1]
