"""Stored responses verified again: the verdict is new, everything else as it was, each key once."""

import asyncio
import errno
import gzip
import json
import os
import resource
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import as_function
from endpoint import endpoint, says
from support import HANG_S, Desk, Echo, EchoRequest, asked, eventually, read_jsonl, row, write_jsonl
from workplace import Workplace, said_until

from rollout_kit.api.testing import (
    Over,
    ScriptedModel,
    call_response,
    making,
    run_virtual,
    text_response,
)
from rollout_kit.config.keys import ReverifyConfig
from rollout_kit.config.load import load
from rollout_kit.config.verification import select_needed, verifier_of
from rollout_kit.errors import ConfigError, ModelError, OutputError, StopRun, VerifyError
from rollout_kit.responses import output_text
from rollout_kit.serving.endpoints.prices import Prices
from rollout_kit.serving.model import ModelConfig
from rollout_kit.serving.resources_server import ResourcesServer, tool
from rollout_kit.store.lines import build_line
from rollout_kit.store.tasks import task_id_of
from rollout_kit.types import JsonObject, Key, Task, VerifyRequest, VerifyResponse

reverify_main = as_function("ng_reverify")

ROWS = [row(f"q{number}") for number in range(6)]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


class Halves(Echo):
    """Another verifier of the same rows: half the reward, one field fewer and one more, and a
    row's own field written over."""

    async def verify(self, body: EchoRequest) -> VerifyResponse:
        Counted.num_calls += 1
        said = output_text(body.response)
        return body.scored(0.5 * (said == body.expected), said=said, expected="?", halved=True)


class Counted:
    num_calls = 0


HALVES = making(Halves, fast_mode=True)  # other settings: another fingerprint


def by_key(lines: list[JsonObject]) -> dict[tuple[str, int], JsonObject]:
    found = {
        (asked(line["responses_create_params"]), line["rollout"]["rollout_index"]): line
        for line in lines
    }
    assert len(found) == len(lines)
    return found


def of_generation(line: JsonObject) -> JsonObject:
    block = line["rollout"]
    taken = ("scores", "verifier", "verify_s", "duration_s")
    kept = ("agent_ref", "_ng_task_index", "_ng_rollout_index", "usage", "response", "mark")
    return {
        **{name: line.get(name) for name in (*kept, "responses_create_params")},
        "rollout": {name: value for name, value in block.items() if name not in taken},
        "generated_s": pytest.approx(block["duration_s"] - block["verify_s"], abs=2e-6),
    }


def test_the_verdict_is_new_and_everything_else_is_as_it_was(desk: Desk) -> None:
    rows = [row("q0", mark=[1], usage="mine"), row("q1", "else"), row("q2")]
    run_virtual(desk.collect(rows, num_repeats=2))
    before = (desk.folder / "rollouts.jsonl").read_bytes()
    desk.verifier = HALVES
    assert run_virtual(desk.reverify()) == 0
    old, new = by_key(desk.lines()), by_key(desk.new())
    assert old.keys() == new.keys() and len(new) == 6
    for key, line in new.items():
        assert of_generation(line) == of_generation(old[key])
        assert line["reward"] == old[key]["reward"] / 2
        assert "length" not in line and line["halved"] is True and line["expected"] == "?"
        assert line["rollout"]["scores"] == ["expected", "said", "halved"]
        assert line["rollout"]["verifier"] != old[key]["rollout"]["verifier"]
    assert new["q0", 0]["task_fields"] == {"usage": "mine", "expected": "q0"}
    assert (desk.folder / "rollouts.jsonl").read_bytes() == before
    # and back again: what was written over comes back, what was added goes
    desk.verifier = making(Echo)
    again = {"input_jsonl_fpath": str(desk.folder / "new.jsonl")}
    assert run_virtual(desk.reverify(**again, output_jsonl_fpath=desk.folder / "back.jsonl")) == 0
    back = by_key(read_jsonl(desk.folder / "back.jsonl"))
    for key, line in back.items():
        assert line.keys() == old[key].keys() and list(line)[:4] == list(old[key])[:4]
        own = ("expected", "reward", "said", "length", "task_fields")
        assert [line.get(name) for name in own] == [old[key].get(name) for name in own]


def test_the_plan_the_metrics_and_the_summary_tell_what_changed(desk: Desk) -> None:
    class Judge(Echo):
        async def verify(self, body: EchoRequest) -> VerifyResponse:
            return body.scored({"q0": 0.0, "q1": 1.0}.get(body.expected, 0.5))

    class Later(Echo):
        async def verify(self, body: EchoRequest) -> VerifyResponse:
            return body.scored({"q0": 1.0, "q1": 0.0}.get(body.expected, 0.5))

    Judge._verify_request = Later._verify_request = EchoRequest
    desk.verifier = making(Judge)
    run_virtual(desk.collect(ROWS))
    desk.verifier = making(Later, fast_mode=True)
    assert run_virtual(desk.reverify(limit=4)) == 0
    said = desk.out.getvalue()
    assert (
        "Plan: 4 stored rollouts (4 with an older verifier's verdict) · 0 done · 4 to ver" in said
    )
    assert (
        "mean reward 0.5000 → 0.5000 (+0.0000) over 4 verified again: 1 up, 1 down, 2 the s" in said
    )
    assert desk.new_metrics()["metrics"]["reward"] == 0.5
    assert run_virtual(desk.reverify()) == 0  # two more: the comparison is over all that is there
    assert "4 done · 2 to verify" in desk.out.getvalue()
    verdicts = desk.new_metrics()["verdicts"]
    assert (verdicts["compared"], verdicts["up"], verdicts["same"]) == (6, 1, 4)
    assert desk.new_metrics()["counts"]["planned"] == 6
    assert json.loads((desk.folder / "new.d/run.json").read_text())["exit_status"] == 0


def test_responses_without_a_verdict_get_their_first_one(desk: Desk) -> None:
    run_virtual(desk.collect(ROWS, skip_verification=True))
    assert "without verification: 6 rollouts. This verifies:\n  ng_reverify" in desk.out.getvalue()
    assert run_virtual(desk.reverify()) == 0
    assert "(6 without a verdict)" in desk.out.getvalue()
    assert "First verdicts: 6" in desk.out.getvalue()
    assert [line["reward"] for line in desk.new()] == [1.0] * 6
    # what is collected further joins what was verified
    desk.model.calls.clear()
    more = {"output_jsonl_fpath": desk.folder / "new.jsonl"}
    assert run_virtual(desk.collect([*ROWS, row("q6")], **more)) == 0
    assert len(desk.model.calls) == 1 and len(desk.new()) == 7


def test_parked_responses_and_refused_ones_are_taken_from_their_own_files(desk: Desk) -> None:
    class Failing(Echo):
        async def verify(self, body: EchoRequest) -> VerifyResponse:
            if body.expected in ("q0", "q1"):
                raise VerifyError("no rule for this", status=422)
            raise RuntimeError("the judge is down")

    def answer(params: JsonObject) -> str:
        if asked(params) == "q5":
            raise ModelError("broken", status=500)
        return asked(params)

    Failing._verify_request = EchoRequest
    desk.verifier, desk.model = making(Failing), ScriptedModel(answer)
    assert run_virtual(desk.collect([*ROWS, "{"])) == 2
    collected = by_key(desk.lines("unverified"))
    desk.verifier = making(Echo)
    parked = {"input_jsonl_fpath": str(desk.folder / "rollouts.d/unverified.jsonl")}
    assert run_virtual(desk.reverify(**parked)) == 0
    assert by_key(desk.new()).keys() == collected.keys() == {("q2", 0), ("q3", 0), ("q4", 0)}
    assert not any("failure" in line for line in desk.new())
    refused = {"input_jsonl_fpath": str(desk.folder / "rollouts.d/failures.jsonl")}
    assert run_virtual(desk.reverify(**refused)) == 0
    # q5, the malformed line, and three whose responses are in the other file
    assert "5 failures without a response" in desk.out.getvalue()
    both = by_key(desk.new())
    assert sorted(both) == [(f"q{number}", 0) for number in range(5)]
    for line in both.values():
        assert line["reward"] == 1.0 and line["rollout"]["settings"] and line["usage"]
    assert by_key(desk.lines("unverified")) == collected


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_packed_files_are_read_too(desk: Desk, suffix: str) -> None:
    run_virtual(desk.collect(ROWS))
    raw = (desk.folder / "rollouts.jsonl").read_bytes()
    if suffix == ".zst":
        from rollout_kit.store.input import import_zstd

        raw = import_zstd().compress(raw)
    else:
        raw = gzip.compress(raw)
    (desk.folder / f"rollouts.jsonl{suffix}").write_bytes(raw)
    (desk.folder / "rollouts.jsonl").unlink()
    packed = str(desk.folder / f"rollouts.jsonl{suffix}")
    assert run_virtual(desk.reverify(input_jsonl_fpath=packed)) == 0
    assert len(by_key(desk.new())) == 6
    settings = json.loads((desk.folder / "new.d/run.json").read_text())["settings"]
    assert settings.keys() == {line["rollout"]["settings"] for line in desk.new()}


def test_lines_of_others_are_named_once_and_stop_nothing(desk: Desk) -> None:
    run_virtual(desk.collect(ROWS))
    good = [json.dumps(line) for line in desk.lines()]
    foreign = ["{torn", "[1]", json.dumps(ROWS[0]), '{"rollout": {"task_id": "x"}}']
    foreign.append(json.dumps({**desk.lines()[0], "reward": "1"}))
    answerless = {**desk.lines()[0], "response": None}
    write_jsonl(desk.folder / "rollouts.jsonl", [*foreign, *good, answerless, *good])
    assert run_virtual(desk.reverify(limit=2)) == 2
    assert [failure["line"] for failure in desk.new("failures")] == [1, 2, 3, 4, 5]
    assert run_virtual(desk.reverify()) == 2
    assert len(by_key(desk.new())) == 6
    failures = desk.new("failures")
    assert [failure["line"] for failure in failures] == [1, 2, 3, 4, 5, 12]
    messages = [failure["failure"]["message"] for failure in failures]
    assert "not JSON" in messages[0] and "a task, without a response" in messages[2]
    assert "its 'reward' or 'usage' is not a number" in messages[4]
    assert "6 malformed lines" in desk.out.getvalue()
    assert run_virtual(desk.reverify()) == 2
    assert len(desk.new("failures")) == 6
    assert run_virtual(desk.reverify(max_failed_fraction=0.5)) == 0


@pytest.mark.parametrize(
    ("rewards", "stands"), [([None, None], 1), ([None, 0.5, None, 0.25], 1), ([0.5, None], 0)]
)
def test_of_several_lines_with_one_key_one_stands(
    desk: Desk, rewards: list[float | None], stands: int
) -> None:
    run_virtual(desk.collect(ROWS[:1]))
    [line] = desk.lines()
    lines = []
    for number, reward in enumerate(rewards):
        text = {"reward": reward, "response": text_response(f"answer {number}")}
        lines.append({name: value for name, value in {**line, **text}.items() if value is not None})
    write_jsonl(desk.folder / "rollouts.jsonl", lines)
    assert run_virtual(desk.reverify()) == 0
    assert [line["said"] for line in desk.new()] == [f"answer {stands}"]


def test_a_verdict_that_does_not_come_is_a_failure_and_never_a_reward(desk: Desk) -> None:
    run_virtual(desk.collect(ROWS))
    broken = True

    class Flaky(Echo):
        async def verify(self, body: EchoRequest) -> VerifyResponse:
            if broken and body.expected == "q1":
                raise RuntimeError("the judge is down")
            if broken and body.expected == "q2":
                await asyncio.sleep(10**6)
            if broken and body.expected == "q3":
                raise VerifyError("no rule for this", status=422)
            return body.scored(0.25)

    Flaky._verify_request = EchoRequest
    desk.verifier = making(Flaky, fast_mode=True)
    assert run_virtual(desk.reverify(verify_timeout_s=5)) == 2
    assert by_key(desk.new()).keys() == {("q0", 0), ("q4", 0), ("q5", 0)}
    assert desk.new_metrics()["metrics"]["reward"] == 0.25
    assert desk.new_metrics()["counts"]["failed"] == 3
    failures = {each["failure"]["class"]: each for each in desk.new("failures")}
    assert failures.keys() == {"PeerTimeout", "VerifyError"} and len(desk.new("failures")) == 3
    assert "verify_timeout_s=5" in failures["PeerTimeout"]["failure"]["message"]
    said = desk.out.getvalue()
    assert "1 × echo: RuntimeError: the judge is down" in said and "ng_reverify" in said
    assert desk.new("unverified") == []  # the responses are in the input
    broken = False
    [task_id] = {
        line["rollout"]["task_id"]
        for line in desk.lines()
        if asked(line["responses_create_params"]) == "q3"
    }
    assert f"+only={task_id}:0" in " ".join(each["repro"] for each in desk.new("failures"))
    assert run_virtual(desk.reverify(only=f"{task_id}:0")) == 0
    assert len(desk.new()) == 4
    assert run_virtual(desk.reverify()) == 0
    assert len(by_key(desk.new())) == 6


def test_a_judge_s_invalid_response_is_no_verdict_if_the_command_says_so(desk: Desk) -> None:
    """NeMo Gym's verifiers give it a reward of 0."""
    is_valid = False

    class Judged(Echo):
        async def verify(self, body: EchoRequest) -> VerifyResponse:
            if is_valid or body.expected != "q1":
                return body.scored(1.0, invalid_judge_response=False)
            return body.scored(0.0, invalid_judge_response=True)

    Judged._verify_request = EchoRequest
    desk.verifier = making(Judged, fast_mode=True)
    retries = {"retry_invalid_judge_responses": True}
    run_virtual(desk.collect(ROWS, **retries))
    assert len(desk.lines("unverified")) == 1
    assert [line["reward"] for line in desk.lines()] == [1.0] * 5
    run_virtual(desk.collect(ROWS))
    assert sorted(line["reward"] for line in desk.lines()) == [0.0, *[1.0] * 5]
    assert run_virtual(desk.reverify(**retries)) == 2
    [failed] = desk.new("failures")
    assert failed["failure"]["failure_kind"] == "judge_unparseable" and len(desk.new()) == 5
    is_valid = True
    assert run_virtual(desk.reverify(**retries)) == 0
    assert [line["reward"] for line in desk.new()] == [1.0] * 6


def test_a_verifier_that_refuses_everyone_stops_the_run(desk: Desk) -> None:
    class Locked(Echo):
        async def verify(self, body: EchoRequest) -> VerifyResponse:
            raise VerifyError("Incorrect API key of the judge", status=401, server="echo")

    run_virtual(desk.collect(ROWS))
    desk.verifier = making(Locked)
    with pytest.raises(StopRun, match="Incorrect API key of the judge"):
        run_virtual(desk.reverify(num_samples_in_parallel=1))
    assert desk.new() == []


def test_a_seed_that_fails_for_a_moment_is_tried_again(desk: Desk) -> None:
    class Starting(Echo):
        refusals = 2

        async def seed_session(self, body: JsonObject) -> JsonObject:
            Starting.refusals -= 1
            if Starting.refusals >= 0:
                raise ModelError("loading", status=503)
            self.state = {}
            return {}

        reverify = "stateless"

    Starting._verify_request = EchoRequest
    run_virtual(desk.collect(ROWS[:1]))
    desk.verifier = making(Starting)
    assert run_virtual(desk.reverify()) == 0
    assert len(desk.new()) == 1 and Starting.refusals < 0


def test_cut_at_any_byte_the_output_is_completed_with_each_key_once(desk: Desk) -> None:
    run_virtual(desk.collect(ROWS[:3], num_repeats=2))
    run_virtual(desk.reverify())
    whole = (desk.folder / "new.jsonl").read_bytes()
    keys = by_key(desk.new()).keys()
    for cut in [*range(0, len(whole), 97), len(whole) - 1, len(whole)]:
        (desk.folder / "new.jsonl").write_bytes(whole[:cut])
        assert run_virtual(desk.reverify()) == 0, cut
        assert by_key(desk.new()).keys() == keys, cut
        kept = whole[: whole[:cut].rfind(b"\n") + 1]
        assert (desk.folder / "new.jsonl").read_bytes().startswith(kept), cut


def test_the_same_command_again_verifies_nothing(desk: Desk) -> None:
    run_virtual(desk.collect(ROWS))
    desk.verifier = HALVES
    Counted.num_calls = 0
    assert run_virtual(desk.reverify()) == 0
    before = (desk.folder / "new.jsonl").read_bytes()
    assert run_virtual(desk.reverify()) == 0
    assert Counted.num_calls == 6 and (desk.folder / "new.jsonl").read_bytes() == before
    assert "6 done · 0 to verify" in desk.out.getvalue()
    assert run_virtual(desk.reverify(resume="fresh")) == 0
    assert Counted.num_calls == 12 and len(by_key(desk.new())) == 6
    [kept] = desk.folder.glob("new.2*.jsonl")
    assert kept.read_bytes() == before


def test_a_verifier_that_changed_in_between_verifies_anew_and_nothing_is_lost(desk: Desk) -> None:
    run_virtual(desk.collect(ROWS))
    assert run_virtual(desk.reverify(limit=4)) == 0
    before = (desk.folder / "new.jsonl").read_bytes()
    desk.verifier = HALVES
    assert run_virtual(desk.reverify(dry_run=True)) == 0
    assert "4 rollouts of" in desk.out.getvalue() and "0 done · 6 to verify" in desk.out.getvalue()
    assert (desk.folder / "new.jsonl").read_bytes() == before
    assert run_virtual(desk.reverify()) == 0
    said = desk.out.getvalue()
    assert "with another verifier's verdict, or another response: verified anew" in said
    assert "0 done · 6 to verify" in said
    assert len(by_key(desk.new())) == 6 and all(line["reward"] == 0.5 for line in desk.new())
    [kept] = desk.folder.glob("new.2*.jsonl")
    assert kept.read_bytes() == before


def test_a_response_that_changed_under_its_key_is_verified_anew(desk: Desk) -> None:
    run_virtual(desk.collect(ROWS))
    assert run_virtual(desk.reverify()) == 0
    desk.model = ScriptedModel(lambda params: "otherwise" if asked(params) == "q1" else "q0")
    run_virtual(desk.collect(ROWS[:2], resume="fresh"))
    assert run_virtual(desk.reverify()) == 0
    assert "0 done · 2 to verify" in desk.out.getvalue()
    new = by_key(desk.new())
    assert len(new) == 6 and new["q1", 0]["said"] == "otherwise" and new["q1", 0]["reward"] == 0.0


@pytest.mark.parametrize("has_links", [True, False])
def test_without_room_to_renew_the_output_everything_stays_as_it_was(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    run_virtual(desk.collect(ROWS))
    assert run_virtual(desk.reverify()) == 0
    desk.model = ScriptedModel(lambda params: "otherwise" if asked(params) == "q1" else "q0")
    run_virtual(desk.collect(ROWS[:2], resume="fresh"))
    before = contents(desk.folder, "new*")
    if not has_links:
        monkeypatch.setattr(os, "link", refuse_link)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OutputError, match=r"cannot write .*new.*: File too large"):
            run_virtual(desk.reverify())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert contents(desk.folder, "new*") == before


def contents(folder: Path, pattern: str) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.glob(pattern) if path.is_file()}


def refuse_link(*_: object) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


def test_rollouts_that_are_not_asked_for_stay_in_the_output(desk: Desk) -> None:
    run_virtual(desk.collect(ROWS))
    assert run_virtual(desk.reverify()) == 0
    desk.verifier = HALVES
    assert run_virtual(desk.reverify(limit=2)) == 0
    rewards = sorted(line["reward"] for line in by_key(desk.new()).values())
    assert rewards == [0.5, 0.5, 1.0, 1.0, 1.0, 1.0]


def with_agent(lines: list[JsonObject], *agents: str) -> list[JsonObject]:
    return [
        {**line, "agent_ref": {"name": agent}} for line, agent in zip(lines, agents, strict=True)
    ]


def test_an_output_of_another_agent_is_refused_before_anything_is_written(desk: Desk) -> None:
    run_virtual(desk.collect(ROWS[:2]))
    desk.names["other"] = "echo"
    theirs = write_jsonl(desk.folder / "theirs.jsonl", with_agent(desk.lines(), "other", "other"))
    output = desk.folder / "new.jsonl"
    assert run_virtual(desk.reverify()) == 0

    def content() -> dict[Path, bytes]:
        found = (each for each in desk.folder.rglob("*") if each.is_file())
        return {path: path.read_bytes() for path in found}

    before = content()
    for dry_run in (True, False):
        with pytest.raises(OutputError) as caught:
            run_virtual(desk.reverify(input_jsonl_fpath=str(theirs), dry_run=dry_run))
        said = str(caught.value)
        assert f"{output} holds rollouts of 'echo_agent', and {theirs} has rollouts of" in said
        assert "of 'other': their" in said and "+output_jsonl_fpath=" in said
    assert content() == before
    collected = desk.folder / "rollouts.jsonl"  # by a collection, without a verification
    with pytest.raises(OutputError, match="holds rollouts of 'echo_agent'"):
        run_virtual(desk.reverify(input_jsonl_fpath=str(theirs), output_jsonl_fpath=collected))
    assert content() == before
    theirs.replace(collected)  # another input under the name of the one that was verified
    with pytest.raises(OutputError, match="holds rollouts of 'echo_agent'"):
        run_virtual(desk.reverify())
    assert run_virtual(desk.reverify(resume="fresh")) == 0
    assert {line["agent_ref"]["name"] for line in desk.new()} == {"other"}


def test_parts_and_sidecars_of_one_collection_share_an_output(desk: Desk) -> None:
    run_virtual(desk.collect(ROWS[:4]))
    desk.names["other"] = "echo"
    first, second, third, fourth = with_agent(
        desk.lines(), "echo_agent", "other", "other", "echo_agent"
    )
    write_jsonl(desk.folder / "rollouts.jsonl", [first, second])
    other = f"{second['rollout']['task_id']}:0"
    assert run_virtual(desk.reverify(limit=1)) == 0
    assert run_virtual(desk.reverify(only=other)) == 0
    assert len(desk.new()) == 2
    assert run_virtual(desk.reverify(limit=1, resume="fresh")) == 0
    parked = write_jsonl(desk.folder / "rollouts.d/unverified.jsonl", [third])
    assert run_virtual(desk.reverify(input_jsonl_fpath=str(parked))) == 0
    more = write_jsonl(desk.folder / "more.jsonl", [fourth])  # another file with one of the agents
    assert run_virtual(desk.reverify(input_jsonl_fpath=str(more))) == 0
    assert [line["agent_ref"]["name"] for line in desk.new()] == [
        "echo_agent",
        "other",
        "echo_agent",
    ]


def test_rollouts_of_every_scope_are_verified_and_the_metrics_are_of_the_plain_one(
    desk: Desk,
) -> None:
    run_virtual(desk.collect(ROWS))
    warmer = {"responses_create_params": {"temperature": 0.7}, "resume": "append"}
    run_virtual(desk.collect(ROWS[:2], **warmer))
    assert run_virtual(desk.reverify()) == 0
    assert len(desk.new()) == 8 and len({line["rollout"]["scope"] for line in desk.new()}) == 2
    assert "2 rollouts under other settings" in desk.out.getvalue()
    counts = desk.new_metrics()["counts"]
    assert (counts["planned"], counts["rollouts"], counts["tasks"]) == (6, 6, 6)


def test_stale_only_copies_what_is_up_to_date(desk: Desk) -> None:
    desk.verifier = HALVES
    run_virtual(desk.collect(ROWS[:2]))
    desk.verifier = making(Echo)
    run_virtual(desk.collect(ROWS[:4]))
    assert "2 rollouts on disk carry verdicts of an older verifier" in desk.out.getvalue()
    assert "This renews them:\n  ng_reverify" in desk.out.getvalue()
    desk.verifier = HALVES
    Counted.num_calls = 0
    assert run_virtual(desk.reverify(stale_only=True)) == 0
    assert "(2 with an older verifier's verdict, 2 up to date)" in desk.out.getvalue()
    assert "2 to verify · 2 to copy" in desk.out.getvalue()
    assert Counted.num_calls == 2
    old, new = by_key(desk.lines()), by_key(desk.new())
    assert [new[f"q{number}", 0] == old[f"q{number}", 0] for number in range(4)] == [
        True,
        True,
        False,
        False,
    ]
    assert {line["reward"] for line in new.values()} == {0.5}


def test_dry_run_writes_and_sends_nothing(desk: Desk) -> None:
    run_virtual(desk.collect(ROWS))
    before = sorted(desk.folder.iterdir())
    desk.verifier = HALVES
    Counted.num_calls = 0
    assert run_virtual(desk.reverify(dry_run=True)) == 0
    assert "First request (POST echo/verify)" in desk.out.getvalue()
    request = json.loads(desk.out.getvalue().partition("/verify):\n")[2])
    assert request["expected"] == "q0" and "reward" not in request and "said" not in request
    assert Counted.num_calls == 0 and sorted(desk.folder.iterdir()) == before


def test_the_limit_is_reached_and_never_passed(desk: Desk) -> None:
    class Slow(Echo):
        now = most = 0

        async def verify(self, body: EchoRequest) -> VerifyResponse:
            Slow.now += 1
            Slow.most = max(Slow.most, Slow.now)
            await asyncio.sleep(1)
            Slow.now -= 1
            return body.scored(1.0)

    Slow._verify_request = EchoRequest
    run_virtual(desk.collect(ROWS, num_repeats=20))
    desk.verifier = making(Slow, fast_mode=True)
    assert run_virtual(desk.reverify(limit=20, num_samples_in_parallel=7)) == 0
    assert Slow.most == 7
    assert run_virtual(desk.reverify()) == 0
    assert Slow.most == 50


class Shop(ResourcesServer):
    """Its verdict is what the session bought; the price list is not always the same."""

    reverify = "replay"
    price = 1
    num_calls = 0

    async def seed_session(self, body: JsonObject) -> JsonObject:
        self.state = {"spent": 0}
        return {}

    @tool
    async def buy(self, item: str) -> str:
        Shop.num_calls += 1
        if item == "nothing":
            raise ValueError("there is no such item")
        self.state["spent"] += Shop.price
        return f"{item} costs {Shop.price}"

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        return body.scored(float(self.state["spent"]))


BOUGHT = [("buy", '{"item": "tea"}'), ("buy", '{"item": "nothing"}'), ("sell", "{}")]


def shopper(params: JsonObject) -> Any:
    if asked({"input": params["input"][:1]}) == "q0" and len(params["input"]) == 1:
        return call_response(*BOUGHT)
    return "done"


def test_a_replay_brings_the_session_back_and_says_what_went_otherwise(desk: Desk) -> None:
    desk.verifier, desk.model = making(Shop), ScriptedModel(shopper)
    Shop.price = 1
    run_virtual(desk.collect(ROWS[:2]))
    Shop.num_calls = 0
    assert run_virtual(desk.reverify()) == 0
    assert Shop.num_calls == 2  # and none for a tool that never was
    assert sorted(line["reward"] for line in desk.new()) == [0.0, 1.0]
    assert not any("replay_differences" in line["rollout"] for line in desk.new())
    Shop.price = 3
    assert run_virtual(desk.reverify(resume="fresh")) == 0
    assert by_key(desk.new())["q0", 0]["reward"] == 3.0
    assert by_key(desk.new())["q0", 0]["rollout"]["replay_differences"] == 1
    assert "the tools of 1 gave other answers" in desk.out.getvalue()
    assert desk.new_metrics()["verdicts"]["replay_differences"] == 1
    Shop.price = 1
    source = {"input_jsonl_fpath": str(desk.folder / "new.jsonl")}
    back = {"output_jsonl_fpath": desk.folder / "back.jsonl"}
    assert run_virtual(desk.reverify(**source, **back)) == 0
    assert not any(
        "replay_differences" in line["rollout"] for line in read_jsonl(desk.folder / "back.jsonl")
    )


def test_a_replay_is_the_same_over_every_transport(desk: Desk, over: Over) -> None:
    made: list[Shop] = []

    def shop(peers: Any, name: str) -> Shop:
        made.append(Shop(Shop.Config(), peers, name))
        return made[-1]

    desk.verifier, desk.model, desk.over = shop, ScriptedModel(shopper), over
    Shop.price = 1
    run_virtual(desk.collect(ROWS, num_repeats=3))
    assert asyncio.run(desk.reverify()) == 0
    old, new = by_key(desk.lines()), by_key(desk.new())
    assert {key: line["reward"] for key, line in new.items()} == {
        key: line["reward"] for key, line in old.items()
    }
    assert sum(line["reward"] for line in new.values()) == 3.0
    assert not any("replay_differences" in line["rollout"] for line in new.values())
    assert made[-1].num_sessions == 0


def test_a_tool_output_that_was_cut_for_the_policy_is_no_difference(desk: Desk) -> None:
    desk.agent_settings = {"max_tool_output_chars": 5}
    desk.verifier, desk.model = making(Shop), ScriptedModel(shopper)
    run_virtual(desk.collect(ROWS[:1]))
    assert "more characters" in json.dumps(desk.lines())
    assert run_virtual(desk.reverify()) == 0
    assert "replay_differences" not in desk.new()[0]["rollout"]


class Kept(Echo):
    """Keeps a state that no stored response brings back."""

    async def seed_session(self, body: JsonObject) -> JsonObject:
        Counted.num_calls += 1
        self.state = {}
        return {}


def test_what_can_never_be_verified_again_is_refused_by_name(desk: Desk) -> None:
    run_virtual(desk.collect(ROWS))
    desk.verifier = making(Kept)
    Counted.num_calls = 0
    with pytest.raises(ConfigError) as caught:
        run_virtual(desk.reverify())
    for words in ("'echo_agent'", "'echo'", "nothing was sent", "ng_collect_rollouts"):
        assert words in str(caught.value)
    assert Counted.num_calls == 0 and desk.new() == []


def test_the_others_of_a_mixed_file_are_verified(desk: Desk) -> None:
    run_virtual(desk.collect(ROWS))
    lines = desk.lines()
    for number, agent in enumerate(("kept_agent", "stranger", "mute")):
        lines[number]["agent_ref"] = {"name": agent}
    write_jsonl(desk.folder / "rollouts.jsonl", lines)
    desk.verifiers = {"kept": making(Kept)}
    desk.names |= {"kept_agent": "kept", "mute": None}
    assert run_virtual(desk.reverify()) == 2
    assert len(by_key(desk.new())) == 3
    said = desk.out.getvalue()
    assert "0 done · 3 to verify · 3 left out" in said
    assert "left out: 1 rollout of agent 'kept_agent': its resources server 'kept' keeps" in said
    assert "agent 'stranger': none is called so here" in said
    assert "agent 'mute': its configuration names no resources_server" in said
    assert "Still to come" not in said  # no command would bring them
    assert desk.new_metrics()["counts"]["left_out"] == 3
    assert desk.new_metrics()["bracket"]["reward"][0] == 0.5


def test_what_is_no_stored_rollout_is_said_in_one_line(desk: Desk) -> None:
    def refused(path: Path | None, **keys: Any) -> str:
        given = {"input_jsonl_fpath": path and str(path), **keys}
        with pytest.raises(ConfigError) as caught:
            run_virtual(desk.reverify(**given))
        return str(caught.value)

    run_virtual(desk.collect(ROWS))
    assert "did you mean 'rollouts.jsonl'" in refused(desk.folder / "rollout.jsonl")
    empty = desk.folder / "empty.jsonl"
    empty.touch()
    assert "contains no rollout" in refused(empty)
    assert "line 1: not a stored rollout: a task, without a" in refused(desk.folder / "tasks.jsonl")
    broken = write_jsonl(desk.folder / "f.d/failures.jsonl", [{"failure": {"class": "ModelError"}}])
    assert "none carries a response" in refused(broken)
    rollouts = desk.folder / "rollouts.jsonl"
    assert "has no such rollout" in refused(rollouts, only="0123:0")
    assert "expected <task_id>:<rollout_index>" in refused(rollouts, only="x")
    assert "both input and output" in refused(rollouts, output_jsonl_fpath=rollouts)
    parked = write_jsonl(desk.folder / "rollouts.d/unverified.jsonl", [])
    assert "both input and output" in refused(parked, output_jsonl_fpath=rollouts)
    assert "a file beside another output" in refused(rollouts, output_jsonl_fpath=parked)
    assert "output_jsonl_fpath is missing" in refused(rollouts, output_jsonl_fpath=None)
    assert "input_jsonl_fpath is missing" in refused(None)
    assert desk.new() == [] and len(desk.lines()) == 6


def test_a_second_writer_of_the_same_output_stops_at_once(desk: Desk) -> None:
    class Slow(Echo):
        async def verify(self, body: EchoRequest) -> VerifyResponse:
            await asyncio.sleep(5)
            return body.scored(1.0)

    Slow._verify_request = EchoRequest
    run_virtual(desk.collect(ROWS))
    desk.verifier = making(Slow)

    async def both() -> None:
        first = asyncio.create_task(desk.reverify())
        await asyncio.sleep(1)
        for resume in ("auto", "fresh"):
            with pytest.raises(OutputError, match="another collector"):
                await desk.reverify(resume=resume)
        assert await first == 0

    run_virtual(both())
    assert len(by_key(desk.new())) == 6


JUDGED = """
policy_model: {responses_api_models: {openai_model: {openai_model: "${nowhere_model}"}}}
judge_model:
  responses_api_models: {openai_model: {openai_base_url: "http://x/v1", openai_model: m}}
judged:
  resources_servers:
    judged: {judge: {type: responses_api_models, name: judge_model}}
other: {resources_servers: {judged: {}}}
judged_agent:
  responses_api_agents:
    simple_agent:
      resources_server: {type: resources_servers, name: judged}
      model_server: {type: responses_api_models, name: policy_model}
"""

SERVER = "from rollout_kit import ResourcesServer\nclass Judged(ResourcesServer):\n"


def test_a_verification_needs_the_judge_and_never_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "resources_servers/judged").mkdir(parents=True)
    (tmp_path / "resources_servers/judged/app.py").write_text(SERVER + "    pass\n")
    (tmp_path / "run.yaml").write_text(JUDGED)
    instances = load(["+config_paths=[run.yaml]"], ReverifyConfig).instances
    assert verifier_of(instances["judged_agent"]) == "judged"
    assert list(select_needed(instances, ["judged"])) == ["judge_model", "judged"]
    assert "policy_model" not in instances
    # a policy model that is the judge as well stays
    (tmp_path / "run.yaml").write_text(JUDGED.replace("name: judge_model", "name: policy_model"))
    with pytest.raises(ConfigError, match="nowhere_model"):
        load(["+config_paths=[run.yaml]"], ReverifyConfig)
    # an agent elsewhere, whose code is not here
    elsewhere = "far: {responses_api_agents: {theirs: {placement: 'http://far', resources_server: "
    for reference in ("{type: resources_servers, name: judged}}}}", "{name: judged}}}}"):
        far = f"judged: {{resources_servers: {{judged: {{}}}}}}\n{elsewhere}{reference}"
        (tmp_path / "run.yaml").write_text(far)
        instances = load(["+config_paths=[run.yaml]"], ReverifyConfig).instances
        assert verifier_of(instances["far"]) == "judged"
    # without agent and model the agent is the one that would have been wired
    (tmp_path / "run.yaml").write_text("judged: {resources_servers: {judged: {}}}")
    instances = load(["+config_paths=[run.yaml]"], ReverifyConfig).instances
    assert verifier_of(instances["judged_simple_agent"]) == "judged"


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    """The policy model behind it is there to be counted: nobody may ask it anything."""
    monkeypatch.chdir(tmp_path)
    with endpoint(says(asked)) as model:
        yield Workplace(tmp_path, model)
        assert model.saw.total() == 0


FILES = ["+input_jsonl_fpath=out/rollouts.jsonl", "+output_jsonl_fpath=out/new.jsonl"]
ARGV = ["+config_paths=[run.yaml]", *FILES]


def store(workplace: Workplace, number: int) -> None:
    """Rollouts as a collection that left their verdicts for later has them."""
    lines = []
    for index in range(number):
        task_row = row(f"q{index}")
        task = Task(task_id_of(task_row), index, index + 1, "echo_agent", task_row)
        key = Key(task.task_id, task.agent, "", 0)
        block = {"settings": "s", "duration_s": 1.0, "num_turns": 1}
        lines.append(build_line(task, key, text_response(f"q{index}"), block))
    (workplace.folder / "out").mkdir()
    write_jsonl(workplace.folder / "out/rollouts.jsonl", lines)


def new(workplace: Workplace, name: str = "new.jsonl") -> list[JsonObject]:
    return read_jsonl(workplace.folder / "out" / name)


def here(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    """The command in this process: its exit status and what it said."""
    with pytest.raises(SystemExit) as ended:
        reverify_main(list(argv))
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out + said.err


@pytest.mark.parametrize("placement", ["local", "process"])
def test_the_command_needs_no_policy_model_wherever_the_verifier_runs(
    workplace: Workplace, placement: str
) -> None:
    store(workplace, 30)
    path = workplace.folder / "run.yaml"
    path.write_text(path.read_text().replace("echo: {}", f"echo: {{placement: {placement}}}"))
    (workplace.folder / "env.yaml").unlink()  # nor its address and its key
    status, output = workplace.run("reverify", *ARGV)
    assert status == 0, output
    assert "First verdicts: 30" in output and "Verifying rollouts: 100%" in output
    assert {line["reward"] for line in by_key(new(workplace)).values()} == {1.0}
    assert len(new(workplace)) == 30


def test_the_servers_of_a_running_ng_run_verify(
    workplace: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    store(workplace, 10)
    with workplace.ng_run() as (_, port, _):
        head = f"+head_server.port={port}"
        status, output = here(capsys, *FILES, head)
    assert status == 0 and "First verdicts: 10" in output, output
    assert len(by_key(new(workplace))) == 10
    files = ["+input_jsonl_fpath=out/new.jsonl", "+output_jsonl_fpath=out/newer.jsonl"]
    status, output = here(capsys, "+config_paths=[run.yaml]", *files)
    assert status == 0 and "10 verified again: 0 up, 0 down, 10 the same" in output
    assert "(10 up to date)" in output  # the same verifier, wherever it runs
    status, output = here(capsys, *files, head)
    assert status == 1 and "no ng_run answers at" in output


def hold(workplace: Workplace, number: int) -> Path:
    """After so many verdicts of a process the next ones wait for the file that is returned; the
    verifier's code says nothing of the number."""
    app, gate = workplace.folder / "resources_servers/echo/app.py", workplace.folder / "gate"
    waiting = f"""
        Echo.num_asked = getattr(Echo, "num_asked", 0) + 1
        if Echo.num_asked > int(Path({str(workplace.folder / "held")!r}).read_text()):
            while not Path({str(gate)!r}).exists():
                await asyncio.sleep(0.01)
"""
    app.write_text(app.read_text().replace("VerifyResponse:\n", f"VerifyResponse:{waiting}", 1))
    (workplace.folder / "held").write_text(f"{number}")
    return gate


@pytest.mark.parametrize("moment", [1, 60])
def test_killed_at_any_moment_the_same_command_completes_it(
    workplace: Workplace,
    moment: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store(workplace, 120)
    gate = hold(workplace, moment + 10)
    process = workplace.start("reverify", *ARGV, "+num_samples_in_parallel=4")
    out = workplace.folder / "out/new.jsonl"
    eventually(lambda: out.exists() and out.read_bytes().count(b"\n") >= moment)
    process.kill()
    process.communicate()
    before = out.read_bytes()
    kept = before[: before.rfind(b"\n") + 1]
    number = kept.count(b"\n")
    assert moment <= number < 120
    gate.touch()
    status, output = here(capsys, *ARGV)
    assert status == 0 and f"· {number} done · {120 - number} to verify" in output, output
    assert out.read_bytes().startswith(kept)
    assert len(by_key(new(workplace))) == 120


def test_interrupted_it_drains_and_says_how_to_continue(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store(workplace, 100)
    gate = hold(workplace, 10)
    process = workplace.start("reverify", *ARGV, "+num_samples_in_parallel=5")
    out = workplace.folder / "out/new.jsonl"
    eventually(lambda: out.exists() and out.read_bytes().count(b"\n") >= 5)
    process.send_signal(signal.SIGINT)
    said = said_until(process, "stopping: 5 in flight")
    gate.touch()
    output = said + process.communicate(timeout=HANG_S)[0]
    assert process.returncode == 130, output
    done = len(new(workplace))
    assert 0 < done < 100 and f"Still to come: {100 - done} rollouts. This continues:" in output
    command = output.rsplit("This continues:\n", 1)[1].strip().splitlines()[0]
    assert here(capsys, *shlex.split(command)[1:])[0] == 0
    assert len(by_key(new(workplace))) == 100


def test_a_judge_is_paid_for_and_its_money_can_be_limited(desk: Desk) -> None:
    class Judged(Echo):
        async def verify(self, body: EchoRequest) -> VerifyResponse:
            await self.peers.call("judge", "/v1/responses", {"input": "judge this"})
            return body.scored(reward=1.0)

    def judge(peers: Any, name: str) -> ScriptedModel:
        model = ScriptedModel(lambda params: "good")
        model.config = ModelConfig(prices=Prices(input=0, output=1e6))
        return model

    run_virtual(desk.collect(ROWS))
    desk.verifier, desk.verifiers = making(Judged), {"judge": judge}
    keys: dict[str, Any] = {"num_samples_in_parallel": 1, "max_cost_usd": 4}
    assert run_virtual(desk.reverify(**keys)) == 3
    assert [line["rollout"]["cost_usd"] for line in desk.new()] == [1.0] * 4
    said = desk.out.getvalue()
    assert "max_cost_usd=4 is reached" in said and "Still to come: 2 rollouts" in said
    assert run_virtual(desk.reverify(**keys)) == 0
    assert desk.new_metrics()["cost"]["usd"] == 6.0
    assert desk.new_metrics()["cost"]["run"]["usd"] == 2.0


JUDGE = """
    async def verify(self, body: Row) -> VerifyResponse:
        asked = {"input": [{"role": "user", "content": output_text(body.response)}]}
        said = await self.peers.call("judge_model", "/v1/responses", asked, dict)
        return body.scored(float(output_text(said) == "right"))
"""

JUDGED_RUN = """
judge_model: {responses_api_models: {openai_model: {openai_base_url: "%s", openai_model: j}}}
echo: {resources_servers: {echo: {judge: {type: responses_api_models, name: judge_model}}}}
"""


def test_a_judge_is_asked_and_the_policy_is_not(
    workplace: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    store(workplace, 5)
    app = workplace.folder / "resources_servers/echo/app.py"
    app.write_text(app.read_text().partition("    async def verify")[0] + JUDGE)
    with endpoint(says(lambda body: "right" if asked(body) == "q3" else "wrong")) as judge:
        (workplace.folder / "judged.yaml").write_text(JUDGED_RUN % judge.url)
        status, output = here(capsys, "+config_paths=[run.yaml,judged.yaml]", *FILES)
        assert status == 0, output
        assert judge.saw == {f"q{index}": 1 for index in range(5)}
    rewards = {key[0]: line["reward"] for key, line in by_key(new(workplace)).items()}
    assert rewards == {f"q{index}": float(index == 3) for index in range(5)}


def test_json_output_is_one_object_a_line(
    workplace: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    store(workplace, 3)
    status, output = here(capsys, *ARGV, "+json=true")
    assert status == 0, output
    events = [json.loads(line) for line in output.splitlines()]
    assert events[0]["event"] == "plan" and events[0]["none"] == 3
    [metrics] = [each for each in events if each["event"] == "metrics"]
    assert metrics["verdicts"]["first_verdicts"] == 3


def test_what_is_left_for_later_names_the_command_that_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with endpoint(says(asked)) as model:
        workplace = Workplace(tmp_path, model)
        workplace.tasks(5)
        status, output = workplace.collect("+skip_verification=true", "+num_repeats=2")
    assert status == 0, output
    name, *argv = shlex.split(output.rsplit("This verifies:\n", 1)[1].strip().splitlines()[0])
    status, output = here(capsys, *argv)
    assert name == "ng_reverify" and status == 0 and "First verdicts: 10" in output, output
    assert len(by_key(new(workplace, "rollouts_reverified.jsonl"))) == 10


@pytest.mark.parametrize(
    ("argv", "says_what"),
    [
        (["+input_jsonl_fpath=gone.jsonl"], "no input file gone.jsonl"),
        (["+num_samples_in_parallel=many"], "num_samples_in_parallel=many"),
        (["+stale_onyl=true"], "did you mean 'stale_only'"),
        (["+num_repeats=3"], "'num_repeats' on the command line is a key of ng_collect_rollouts"),
        (["+config_paths=[other.yaml]"], "agent 'echo_agent': none is called so here"),
        (["+config_paths=[run.yml]"], "run.yml"),
        (["+config_paths=[]", "+head_server.port=1"], "no ng_run answers at http://127.0.0.1:1"),
    ],
)
def test_a_slip_is_one_readable_line(
    workplace: Workplace, argv: list[str], says_what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store(workplace, 1)
    other = (workplace.folder / "run.yaml").read_text().replace("echo_agent", "other_agent")
    (workplace.folder / "other.yaml").write_text(other)
    given = [word for word in ARGV if word.partition("=")[0] != argv[0].partition("=")[0]]
    status, output = here(capsys, *given, *argv)
    assert status == 1 and output.startswith("error: ") and says_what in output, output
    assert new(workplace) == []
