"""A collection on workers gives what one process gives: the same rollouts, failures, groups,
metrics and exit status, with each key that changes what a run does."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from spread import collect_spread
from support import Bench, asked, read_jsonl, row
from test_arms import ARMS
from test_cost import FromElsewhere, Judged, OfItsOwn, PricedModel
from test_groups import KEYS, Numbered, PatientModel, fail_one, make_desk
from test_groups import rows as group_rows
from test_producing import check_groups, feed

from rollout_kit.api.testing import ScriptedModel, making, run_virtual
from rollout_kit.collecting import steps
from rollout_kit.errors import ModelError, VerifyError
from rollout_kit.rl import BufferPolicy
from rollout_kit.serving.resources_server import ResourcesServer
from rollout_kit.types import JsonObject, VerifyRequest, VerifyResponse

ROWS = [{**row(f"q{number}"), "question": f"q{number}"} for number in range(12)]

VARIES = {
    *("at", "started_at", "created_at", "id", "digest"),
    *("duration_s", "elapsed_s", "queue_s", "verify_s", "model_s", "tool_s", "first_turn_s"),
    *("start_s", "waited_s"),
    *("bottleneck", "latency_s", "throughput", "usd_per_minute", "parallelism"),
}
"""Fields that differ from run to run."""


class Unsteady(ResourcesServer):
    """Refuses one answer, and is down for another."""

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        if asked(body.responses_create_params) == "q3":
            raise VerifyError("no verdict", status=500)
        if asked(body.responses_create_params) == "q5":
            raise VerifyError("a wrong row", status=422, retryable=False)
        return body.scored(1.0, length=2)


def refuse_some(params: JsonObject) -> str:
    if asked(params) == "q7":
        raise ModelError("too long", status=400, retryable=False)
    return asked(params)


def plain(folder: Path) -> Bench:
    return Bench(folder)


def make_priced(folder: Path) -> Bench:
    bench = Bench(folder)
    bench.model = PricedModel()
    return bench


def failing(folder: Path) -> Bench:
    bench = Bench(folder)
    bench.model, bench.verifier = ScriptedModel(refuse_some), making(Unsteady)
    return bench


def with_groups(folder: Path) -> Bench:
    return make_desk(folder)


def with_a_gap(folder: Path) -> Bench:
    return make_desk(folder, Numbered(fail_one))


def with_a_late_member(folder: Path) -> Bench:
    desk = make_desk(folder)
    desk.model = PatientModel(Numbered())
    return desk


def make_judged(folder: Path) -> Bench:
    bench = make_priced(folder)
    bench.verifier = making(Judged)
    bench.others["judge"] = lambda peers, name: PricedModel()
    return bench


def opaque(kind: Any) -> Callable[[Path], Bench]:
    def make(folder: Path) -> Bench:
        bench = make_priced(folder)
        bench.others["echo_agent"] = making(kind, model_server={"name": "policy_model"})
        return bench

    return make


class Case(NamedTuple):
    make: Callable[[Path], Bench]
    keys: JsonObject = {}  # noqa: RUF012
    then: JsonObject | None = None
    """Keys of a second run into the same output."""
    rows: list[JsonObject] = ROWS


CASES = {
    "repeats": Case(plain, {"num_repeats": 3}, {"num_repeats": 4}),
    "arms": Case(plain, {"arms": ARMS, "num_repeats": 2}),
    "one shard": Case(plain, {"shard": "1/2"}),
    "limit and only": Case(plain, {"limit": 5, "num_repeats": 2}, {"skip_verification": False}),
    "no verification": Case(plain, {"skip_verification": True}, {}),
    "epochs": Case(plain, {"epochs": 2}, {"epochs": 3}),
    "an estimate first": Case(plain, {"confirm": True, "num_canary": 5}),
    "audit": Case(plain, {"audit_fraction": 1.0}),
    "auto": Case(make_priced, {"num_samples_in_parallel": "auto"}),
    "failures": Case(failing, {"max_attempts": 1, "stop_early": False}, {}),
    "judge": Case(make_judged),
    "opaque agent": Case(opaque(OfItsOwn)),
    "opaque agent of its own model": Case(opaque(FromElsewhere)),
    "groups": Case(with_groups, KEYS, {**KEYS, "num_repeats": 5}, group_rows(3)),
    **{
        f"groups: {name}": Case(with_a_gap, {**KEYS, **policy}, {**KEYS, **policy}, group_rows(3))
        for name, policy in {
            "wait": {},
            "drop": {"incomplete_groups": "drop"},
            "partial": {"incomplete_groups": "partial"},
            "too few": {"incomplete_groups": "partial", "min_members": 4},
        }.items()
    },
    **{
        f"groups: {name} at a deadline": Case(
            with_a_late_member,
            {**KEYS, "incomplete_groups": name, "group_deadline_s": 60},
            rows=group_rows(2),
        )
        for name in ("partial", "drop")
    },
}


@pytest.mark.parametrize("name", CASES)
def test_workers_make_what_one_process_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # by chance a verdict could fail so soon that its response is written only with the failure
    monkeypatch.setattr(steps, "VERIFICATION", replace(steps.VERIFICATION, jitter=0.0))
    case, found = CASES[name], []
    for where in ("alone", "spread"):
        (folder := tmp_path / where).mkdir()
        bench = case.make(folder)
        more = on_workers() if where == "spread" else {}
        ends = [run_virtual(bench.collect(case.rows, **case.keys, **more))]
        if case.then is not None:
            ends.append(run_virtual(bench.collect(**case.then, **more)))
        found.append((ends, figures(bench)))
    assert found[0] == found[1]


def on_workers() -> JsonObject:
    return {"through": collect_spread, "executor": "processes"}


@pytest.mark.parametrize("limit", ["max_cost_usd", "max_total_tokens"])
def test_a_limit_is_exceeded_by_no_more_than_what_was_in_flight(bench: Bench, limit: str) -> None:
    rows = [row(" ".join(["w"] * (1 + number % 9)) + f" q{number}") for number in range(200)]
    bench.model = model = PricedModel()
    keys = {limit: 100, "num_samples_in_parallel": 7}
    assert run_virtual(bench.collect(rows, **keys, **on_workers())) == 3
    done = [line["rollout"]["cost_usd"] for line in bench.lines()]  # a dollar a token
    assert len(done) == model.started, "what was paid for is on disk"
    assert sum(done) <= 100 + sum(sorted(done)[-7:])
    assert f"{limit}=100 is reached" in bench.out.getvalue()
    assert run_virtual(bench.collect(**on_workers())) == 0 and len(bench.lines()) == 200


def test_groups_of_workers_reach_a_trainer_epoch_after_epoch(bench: Bench) -> None:
    policy, keys = BufferPolicy(batch=2, staleness=1), {"epochs": None, "num_repeats": 2}
    seen = feed(bench, policy, steps=5, **keys, **on_workers())
    groups = check_groups(bench, seen)
    acked = [line["key"] for line in bench.lines("acks") if line["reason"] == "acked"]
    assert sorted(acked) == sorted(group.key for group in groups)


def test_a_group_that_an_earlier_run_began_is_put_by_a_run_on_workers(bench: Bench) -> None:
    run_virtual(bench.collect([row(text) for text in "abc"]))
    keys = {"epochs": None, "num_repeats": 2}
    [(_, groups)] = feed(bench, BufferPolicy(batch=3, staleness=9), steps=1, **keys, **on_workers())
    assert all(group.rewards == [1.0, 1.0] for group in groups)


def figures(bench: Bench) -> JsonObject:
    """What is on disk, times aside."""
    files = {
        path.name: sorted(repr(drop_times(line)) for line in read_jsonl(path))
        for path in bench.folder.glob("rollouts*.jsonl")
    }
    [metrics] = bench.folder.glob("rollouts*_aggregate_metrics.json")
    return {**files, "metrics": drop_times(json.loads(metrics.read_bytes()))}


def drop_times(found: Any) -> Any:
    if isinstance(found, dict):
        return {name: drop_times(value) for name, value in found.items() if name not in VARIES}
    return [drop_times(each) for each in found] if isinstance(found, list) else found
