"""The pipeline over a scripted model, mostly under a virtual clock: nothing lost, nothing twice."""

import asyncio
import json
from typing import Any

import pytest
from support import Bench, Echo, asked, row, write_jsonl

from rollout_kit.api.testing import ScriptedModel, making, run_virtual
from rollout_kit.errors import ConfigError, ModelError, OutputError, PeerError, StopRun, VerifyError
from rollout_kit.serving.resources_server import ResourcesServer
from rollout_kit.store.files import OutputPaths
from rollout_kit.types import VerifyRequest, VerifyResponse

ROWS = [row(f"q{number}") for number in range(5)]


def test_every_repeat_of_every_task_is_on_disk_once_and_scored(bench: Bench) -> None:
    assert run_virtual(bench.collect(ROWS, num_repeats=3)) == 0
    assert bench.keys() == [(f"q{task}", index) for task in range(5) for index in range(3)]
    assert all(line["reward"] == 1.0 and line["said"] for line in bench.lines())
    assert bench.metrics()["metrics"] == {
        "reward": 1.0,
        "length": 2.0,
        "num_turns": 1.0,
        "num_tool_calls": 0.0,
    }
    assert bench.metrics()["counts"]["rollouts"] == 15


def test_the_same_command_again_sends_nothing(bench: Bench) -> None:
    run_virtual(bench.collect(ROWS))
    before = (bench.folder / "rollouts.jsonl").read_bytes()
    assert run_virtual(bench.collect()) == 0
    assert len(bench.model.calls) == len(ROWS)
    assert (bench.folder / "rollouts.jsonl").read_bytes() == before
    assert "5 done · 0 to verify only · 0 to collect" in bench.out.getvalue()


def test_more_repeats_more_rows_and_a_larger_limit_add_just_the_difference(bench: Bench) -> None:
    run_virtual(bench.collect(ROWS, limit=2))
    assert len(bench.model.calls) == 2
    run_virtual(bench.collect(limit=4))
    assert len(bench.model.calls) == 4
    run_virtual(bench.collect(limit=4, num_repeats=2))
    assert len(bench.model.calls) == 8
    run_virtual(bench.collect([*ROWS, row("new")], num_repeats=2))
    assert len(bench.model.calls) == 12
    assert len(bench.keys()) == len(set(bench.keys())) == 12


def test_sorting_the_input_or_its_keys_changes_nothing(bench: Bench) -> None:
    run_virtual(bench.collect(ROWS))
    turned = [dict(reversed(each.items())) for each in reversed(ROWS)]
    assert run_virtual(bench.collect(turned)) == 0
    assert len(bench.model.calls) == len(ROWS)


def test_identical_rows_are_further_repeats_of_one_task(bench: Bench) -> None:
    run_virtual(bench.collect([row("a"), row("b"), row("a")], num_repeats=2))
    assert bench.keys() == [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 0), ("b", 1)]
    assert "Plan: 2 tasks: 6 rollouts · 0 done" in bench.out.getvalue()
    assert "6 to collect · 1 repeated row" in bench.out.getvalue()
    assert bench.metrics()["counts"]["tasks"] == 2


def test_a_task_s_repeats_are_dispatched_together_in_input_order(bench: Bench) -> None:
    run_virtual(bench.collect(ROWS, num_repeats=2, num_samples_in_parallel=1))
    sent = [asked(params) for params in bench.model.calls]
    assert sent == [f"q{number}" for number in range(5) for _ in range(2)]


def test_bad_lines_a_bad_row_and_a_failing_row_are_each_named_once(bench: Bench) -> None:
    def answer(params: dict[str, Any]) -> str:
        if asked(params) == "breaks":
            raise ModelError("the engine broke", status=500)
        return asked(params)

    bench.model = ScriptedModel(answer)
    no_answer = {"responses_create_params": {"input": "x"}}
    rows = ["{not json", *ROWS, "[1, 2]", row("breaks"), no_answer]
    assert run_virtual(bench.collect(rows)) == 2
    assert len(bench.lines()) == 5
    failures = bench.lines("failures")
    assert len(failures) == 4
    by_line = {failure["line"]: failure for failure in failures if "line" in failure}
    assert set(by_line) == {1, 7}
    assert "not JSON" in by_line[1]["failure"]["message"]
    keyed = {each["failure"]["class"]: each for each in failures if "line" not in each}
    assert keyed["TaskError"]["failure"]["terminal"] is True
    assert "expected: Field required" in keyed["TaskError"]["failure"]["message"]
    assert keyed["ModelError"]["attempt"] == 3
    assert keyed["ModelError"]["failure"]["server"] == "policy_model"
    assert "+only=" in keyed["ModelError"]["repro"]
    # a second run tries the broken one again, and repeats no line about what is terminal
    assert run_virtual(bench.collect()) == 2
    assert len(bench.lines("failures")) == 5


def test_rows_that_name_another_agent_are_told_of_once(bench: Bench) -> None:
    other = {"agent_ref": {"name": "their_agent"}}
    rows = [row("a"), row("b", **other), row("c", agent_ref={"name": "echo_agent"})]
    assert run_virtual(bench.collect([*rows, row("d", **other)], agent_name="echo_agent")) == 0
    said = [line for line in bench.out.getvalue().splitlines() if "another agent" in line]
    assert len(said) == 1 and said[0].startswith("warning: the agent_ref of 2 rows name another")
    assert "tasks.jsonl:2: 'their_agent'), and all run with 'echo_agent'" in said[0]
    assert {line["agent_ref"]["name"] for line in bench.lines()} == {"echo_agent"}
    assert run_virtual(bench.collect(rows[:1])) == 0
    assert "another agent" not in bench.out.getvalue()


def test_rows_that_no_agent_is_named_for_are_one_error_before_anything_is_written(
    bench: Bench,
) -> None:
    bench.other_agents = ["second_agent", "third_agent"]
    with pytest.raises(ConfigError) as caught:
        run_virtual(bench.collect(ROWS))
    assert str(caught.value).endswith(
        "tasks.jsonl: the rows name no agent (agent_ref), and there are 3: add"
        " +agent_name=… with one of echo_agent, second_agent, third_agent"
    )
    assert [each.name for each in bench.folder.iterdir()] == ["tasks.jsonl"]
    # one row among others that say it is a malformed line like any
    named = [row("a", agent_ref={"name": "third_agent"}), row("b")]
    assert run_virtual(bench.collect(named)) == 2
    assert len(bench.lines()) == len(bench.lines("failures")) == 1


def test_strict_input_stops_before_the_first_request(bench: Bench) -> None:
    with pytest.raises(ConfigError, match=r"tasks\.jsonl:2: not JSON"):
        run_virtual(bench.collect([row("a"), "{"], strict_input=True))
    assert bench.model.calls == []


def test_a_slow_verdict_is_parked_first_and_frees_its_place(bench: Bench) -> None:
    class Slow(Echo):
        async def verify(self, body: VerifyRequest) -> VerifyResponse:
            self_parked.append(len(bench.lines("unverified")))
            await asyncio.sleep(50)
            return body.scored(1.0)

    self_parked: list[int] = []
    bench.verifier = making(Slow)
    rows = [row(f"q{number}") for number in range(10)]

    async def timed() -> float:
        assert await bench.collect(rows, num_samples_in_parallel=1) == 0
        return asyncio.get_running_loop().time()

    assert run_virtual(timed()) < 100  # not 500: the one place did not wait for verdicts
    assert self_parked[-1] >= 8
    assert bench.lines("unverified") == []
    assert len(bench.lines()) == 10


def test_a_verdict_that_takes_long_has_its_response_on_disk_and_the_next_ones_from_the_start(
    bench: Bench,
) -> None:
    on_disk: list[list[str]] = []

    class Unsteady(Echo):
        async def verify(self, body: VerifyRequest) -> VerifyResponse:
            known = asked(body.responses_create_params)
            if known in ("q1", "q2"):
                await asyncio.sleep(0.2)
            on_disk.append([asked(each["responses_create_params"]) for each in kept()])
            return body.scored(1.0)

    def kept() -> list[dict[str, Any]]:
        return bench.lines("unverified")

    bench.verifier = making(Unsteady)
    rows = [row(f"q{number}") for number in range(5)]
    # one in flight, and its place is not given up before 100 s
    keys = {"num_samples_in_parallel": 1, "park_after_s": 100}
    assert run_virtual(bench.collect(rows, **keys)) == 0
    # q0 was quick; q1 was slow; so q2 and q3 were kept beforehand; q3 was quick, so q4 was not
    assert on_disk == [[], ["q1"], ["q1", "q2"], ["q1", "q2", "q3"], ["q1", "q2", "q3"]]
    assert len(bench.lines()) == 5 and kept() == []


def test_a_verifier_that_fails_leaves_responses_for_the_next_run(bench: Bench) -> None:
    down = True

    class Flaky(Echo):
        async def verify(self, body: VerifyRequest) -> VerifyResponse:
            if down:
                raise RuntimeError("the judge is down")
            return body.scored(0.5)

    bench.verifier = making(Flaky)
    assert run_virtual(bench.collect(ROWS)) == 2
    assert len(bench.lines("unverified")) == 5 and bench.lines() == []
    assert {each["failure"]["class"] for each in bench.lines("failures")} == {"VerifyError"}
    assert bench.metrics()["metrics"] == {}  # an infrastructure failure is never a reward of 0
    assert "5 wait for their verdict" in bench.out.getvalue()
    down = False
    assert run_virtual(bench.collect()) == 0
    assert "0 done · 5 to verify only · 0 to collect" in bench.out.getvalue()
    assert len(bench.model.calls) == 5  # the policy was asked once for each
    assert [line["reward"] for line in bench.lines()] == [0.5] * 5
    assert not (bench.folder / "rollouts.d/unverified.jsonl").exists()


def test_a_verifier_that_hangs_is_given_up_after_its_time(bench: Bench) -> None:
    class Hanging(Echo):
        async def verify(self, body: VerifyRequest) -> VerifyResponse:
            await asyncio.sleep(10**6)
            return body.scored(1.0)

    bench.verifier = making(Hanging)
    assert run_virtual(bench.collect(ROWS, verify_timeout_s=30)) == 2
    assert len(bench.lines("unverified")) == 5
    [kind] = {each["failure"]["class"] for each in bench.lines("failures")}
    assert kind == "PeerTimeout"


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), 1e305, 10**400, None, "1"])
def test_a_reward_that_is_no_finite_number_is_the_verifier_s_failure(
    bench: Bench, reward: Any
) -> None:
    class Odd(Echo):
        async def verify(self, body: VerifyRequest) -> VerifyResponse:
            return body.scored(reward)

    bench.verifier = making(Odd)
    assert run_virtual(bench.collect(ROWS[:1])) == 2
    assert bench.lines() == []
    [failure] = bench.lines("failures")
    assert "finite number" in failure["failure"]["message"]


def test_a_deterministic_refusal_after_generation_is_terminal_and_keeps_the_response(
    bench: Bench,
) -> None:
    class Refusing(Echo):
        async def verify(self, body: VerifyRequest) -> VerifyResponse:
            raise VerifyError("no rule for this", status=422)

    bench.verifier = making(Refusing)
    assert run_virtual(bench.collect(ROWS[:1])) == 2
    [failure] = bench.lines("failures")
    assert failure["failure"]["terminal"] and failure["response"]["output"]
    assert run_virtual(bench.collect()) == 2
    assert len(bench.model.calls) == 1
    assert len(bench.lines("failures")) == 1
    task_id = failure["rollout"]["task_id"]
    bench.verifier = making(Echo)
    assert run_virtual(bench.collect(only=f"{task_id}:0")) == 0
    assert len(bench.lines()) == 1


def test_a_refusal_counts_for_the_settings_it_was_made_with(bench: Bench) -> None:
    def answer(params: dict[str, Any]) -> str:
        if params["temperature"] == 9:
            raise ModelError("temperature: must be at most 2", status=400)
        return asked(params)

    bench.model = ScriptedModel(answer)
    wrong = {"responses_create_params": {"temperature": 9}}
    assert run_virtual(bench.collect(ROWS, **wrong)) == 2
    assert run_virtual(bench.collect(**wrong)) == 2
    assert len(bench.model.calls) == len(bench.lines("failures")) == 5
    assert "5 failed permanently" in bench.out.getvalue()
    right = {"responses_create_params": {"temperature": 0.5}}
    assert run_virtual(bench.collect(**right)) == 0
    assert len(bench.lines()) == 5 and len(bench.model.calls) == 10
    assert bench.metrics()["counts"]["failed"] == 0
    assert run_virtual(bench.collect(**right)) == 0
    assert len(bench.model.calls) == 10


def test_rows_that_a_verifier_could_not_take_are_taken_again_by_one_that_is_mended(
    bench: Bench,
) -> None:
    rows = [{"responses_create_params": {"input": [{"role": "user", "content": "a"}]}}]
    assert run_virtual(bench.collect(rows)) == 2
    assert run_virtual(bench.collect()) == 2
    assert "1 failed permanently" in bench.out.getvalue() and not bench.model.calls

    class Lenient(ResourcesServer):
        async def verify(self, body: VerifyRequest) -> VerifyResponse:
            return body.scored(1.0)

    bench.verifier = making(Lenient, fast_mode=True)  # a verifier is known by what it is given, too
    assert run_virtual(bench.collect()) == 0
    assert len(bench.lines()) == len(bench.model.calls) == 1


def test_a_transient_failure_is_tried_again_in_a_fresh_session(bench: Bench) -> None:
    answers = iter([PeerError("reset"), ModelError("busy", status=503), "q0"])

    def answer(params: dict[str, Any]) -> str:
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    bench.model = ScriptedModel(answer)
    assert run_virtual(bench.collect(ROWS[:1])) == 0
    assert bench.lines()[0]["rollout"]["attempt"] == 3
    assert bench.lines("failures") == []


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_set_up_stops_the_run_with_the_server_s_words(bench: Bench, status: int) -> None:
    def answer(params: dict[str, Any]) -> str:
        raise ModelError("Incorrect API key provided", status=status, server="policy_model")

    bench.model = ScriptedModel(answer)
    with pytest.raises(StopRun, match="Incorrect API key"):
        run_virtual(bench.collect(ROWS, num_samples_in_parallel=1))
    assert len(bench.model.calls) == 1


def test_changed_settings_are_refused_with_old_and_new_and_three_ways_on(bench: Bench) -> None:
    run_virtual(bench.collect(ROWS, responses_create_params={"temperature": 0.2}))
    with pytest.raises(OutputError) as caught:
        run_virtual(bench.collect(responses_create_params={"temperature": 0.7}))
    text = str(caught.value)
    assert "responses_create_params.temperature: 0.2 → 0.7" in text
    for way in ("+output_jsonl_fpath=", "+resume=append", "+resume=fresh"):
        assert way in text
    assert len(bench.model.calls) == 5


def test_append_collects_other_settings_under_a_scope_of_their_own(bench: Bench) -> None:
    run_virtual(bench.collect(ROWS, responses_create_params={"temperature": 0.2}))
    warmer = {"responses_create_params": {"temperature": 0.7}, "resume": "append"}
    assert run_virtual(bench.collect(**warmer)) == 0
    assert len(bench.lines()) == 10
    assert bench.metrics()["counts"]["rollouts"] == 5
    assert run_virtual(bench.collect(**warmer)) == 0
    assert len(bench.model.calls) == 10


def test_fresh_moves_the_old_files_aside(bench: Bench) -> None:
    run_virtual(bench.collect(ROWS, responses_create_params={"temperature": 0.2}))
    run_virtual(bench.collect(responses_create_params={"temperature": 0.7}, resume="fresh"))
    assert len(bench.lines()) == 5
    [kept] = bench.folder.glob("rollouts.*.jsonl")
    assert len(kept.read_text().splitlines()) == 5
    assert OutputPaths(kept).manifest.exists() and OutputPaths(kept).metrics.exists()


def test_operational_changes_continue(bench: Bench) -> None:
    run_virtual(bench.collect(ROWS, limit=2))
    keys = {"num_samples_in_parallel": 2, "request_timeout_s": 7, "max_attempts": 1}
    assert run_virtual(bench.collect(**keys)) == 0
    assert len(bench.model.calls) == 5


def test_parameters_of_the_command_line_go_over_the_row_s_and_defaults_under(bench: Bench) -> None:
    rows = [row("a")]
    rows[0]["responses_create_params"] |= {"temperature": 0.5, "reasoning": {"effort": "low"}}
    run_virtual(
        bench.collect(
            rows,
            default_params={"temperature": 0.1, "service_tier": "scale"},
            responses_create_params={"reasoning": {"summary": "auto"}, "max_output_tokens": 9},
        )
    )
    sent = bench.model.calls[0]
    assert sent["temperature"] == 0.5 and sent["service_tier"] == "scale"
    assert sent["reasoning"] == {"effort": "low", "summary": "auto"}
    assert sent["max_output_tokens"] == 9
    assert bench.lines()[0]["responses_create_params"]["max_output_tokens"] == 9


def test_seeds_differ_by_repeat_and_are_the_same_again(bench: Bench) -> None:
    run_virtual(bench.collect(ROWS[:1], num_repeats=3, num_repeats_add_seed=True))
    assert sorted(params["seed"] for params in bench.model.calls) == [0, 1, 2]


def test_a_prompt_config_builds_the_input_and_names_missing_fields(bench: Bench) -> None:
    (bench.folder / "prompt.yaml").write_text("system: Be brief.\nuser: 'Say {expected}'\n")
    prompt = str(bench.folder / "prompt.yaml")
    rows = [{"expected": "hi"}, {"other": 1}]
    assert run_virtual(bench.collect(rows, prompt_config=prompt)) == 2
    assert bench.model.calls[0]["input"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Say hi"},
    ]
    [failure] = bench.lines("failures")
    assert failure["line"] == 2 and "'expected'" in failure["failure"]["message"]


def test_dry_run_prints_the_plan_and_the_first_request_and_writes_nothing(bench: Bench) -> None:
    assert run_virtual(bench.collect(ROWS, dry_run=True)) == 0
    text = bench.out.getvalue()
    assert "Plan: 5 tasks × 1 repeat = 5 rollouts" in text and '"content": "q0"' in text
    assert bench.model.calls == []
    assert [path.name for path in bench.folder.iterdir()] == ["tasks.jsonl"]


def test_skip_verification_collects_without_rewards(bench: Bench) -> None:
    assert run_virtual(bench.collect(ROWS, skip_verification=True)) == 0
    assert all("reward" not in line for line in bench.lines())
    assert "reward" not in bench.metrics()["metrics"]
    assert run_virtual(bench.collect(skip_verification=True)) == 0
    assert len(bench.model.calls) == 5


def test_some_missing_rollouts_can_be_tolerated(bench: Bench) -> None:
    rows = [*ROWS, "{"]
    assert run_virtual(bench.collect(rows, max_failed_fraction=0.1)) == 2
    assert run_virtual(bench.collect(max_failed_fraction=0.2)) == 0


def test_a_row_s_own_reserved_fields_survive_under_task_fields(bench: Bench) -> None:
    rows = [row("a", usage="mine", rollout=[1], reward=7, _ng_task_index=41)]
    run_virtual(bench.collect(rows))
    [line] = bench.lines()
    assert line["task_fields"] == {"usage": "mine", "rollout": [1], "reward": 7}
    assert line["reward"] == 1.0 and line["usage"]["total_tokens"] == 2
    assert line["_ng_task_index"] == 41


def test_a_task_index_that_no_file_can_hold_is_replaced_by_the_position(bench: Bench) -> None:
    rows = [row("a", _ng_task_index=2**63), row("b", _ng_task_index=2**80)]
    assert run_virtual(bench.collect(rows)) == 0
    assert sorted(line["_ng_task_index"] for line in bench.lines()) == [0, 1]


def test_the_rest_of_an_interrupted_input_can_be_given_as_another_input(bench: Bench) -> None:
    run_virtual(bench.collect(ROWS, limit=3))
    (bench.folder / "rest.jsonl").write_text("".join(json.dumps(each) + "\n" for each in ROWS[2:]))
    rest = str(bench.folder / "rest.jsonl")
    run_virtual(bench.collect(ROWS, input_jsonl_fpath=rest, limit=3))
    assert len(bench.model.calls) == 5
    (bench.folder / "rollouts.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in bench.lines()[1:])
    )
    run_virtual(bench.collect(ROWS, input_jsonl_fpath=rest, limit=3))
    assert "1 task of the earlier input" in bench.out.getvalue()


def test_a_long_input_is_counted_while_it_is_collected(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollout_kit.collecting.sources.COUNT_FIRST", 3)
    assert asyncio.run(bench.collect(ROWS)) == 0
    assert "counting on" in bench.out.getvalue()
    assert bench.metrics()["counts"]["planned"] == 5


def test_a_second_collector_on_the_same_output_stops_at_once(bench: Bench) -> None:
    bench.model = ScriptedModel(asked, delay_s=5)

    async def both() -> None:
        first = asyncio.create_task(bench.collect(ROWS))
        await asyncio.sleep(1)
        with pytest.raises(OutputError, match=r"another collector \(pid \d+\)"):
            await bench.collect()
        assert await first == 0

    run_virtual(both())


def test_a_quiet_minute_is_explained(bench: Bench) -> None:
    bench.model = ScriptedModel(asked, delay_s=150)
    run_virtual(bench.collect(ROWS))
    text = bench.out.getvalue()
    assert "nothing has finished for 60 s" in text and "5 for echo_agent /v1/responses" in text


def test_a_rollout_that_takes_too_long_is_a_failure_that_says_where(bench: Bench) -> None:
    bench.model = ScriptedModel(asked, delay_s=10**6)
    assert run_virtual(bench.collect(ROWS[:1], rollout_timeout_s=100)) == 2
    [failure] = bench.lines("failures")
    assert "rollout_timeout_s=100" in failure["failure"]["message"]
    assert "echo_agent /v1/responses" in failure["failure"]["message"]


def test_the_short_form_of_verify_works_with_a_mapping_and_with_a_number(bench: Bench) -> None:
    class Short(ResourcesServer):
        def verify(self, task: dict[str, Any], response: dict[str, Any]) -> Any:
            fast = self.config.get("fast_mode", False)
            return {"reward": 0.25, "fast": fast} if task["expected"] == "q0" else 1

    bench.verifier = making(Short, fast_mode=True)
    assert asyncio.run(bench.collect(ROWS[:2])) == 0
    assert sorted(line["reward"] for line in bench.lines()) == [0.25, 1.0]
    assert bench.metrics()["metrics"]["fast"] == 1.0


def test_rollouts_are_never_written_into_their_own_input(bench: Bench) -> None:
    write_jsonl(bench.folder / "tasks.jsonl", ROWS)
    before = (bench.folder / "tasks.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="both input and output"):
        run_virtual(bench.collect(output_jsonl_fpath=bench.folder / "tasks.jsonl"))
    assert (bench.folder / "tasks.jsonl").read_bytes() == before


def test_a_model_that_nobody_reaches_ends_the_run_after_its_first_wave(bench: Bench) -> None:
    def answer(params: dict[str, Any]) -> str:
        raise ModelError("cannot connect to http://127.0.0.1:1", status=503)

    bench.model = ScriptedModel(answer)
    rows = [row(f"q{number}") for number in range(200)]
    with pytest.raises(StopRun, match=r"(?s)first 20 .* cannot connect.*\nStart that server"):
        run_virtual(bench.collect(rows, num_samples_in_parallel=4, max_attempts=1))
    assert len(bench.model.calls) < 30


def test_the_summary_groups_the_reasons_and_names_the_verifier_s_line(bench: Bench) -> None:
    class Buggy(Echo):
        async def verify(self, body: VerifyRequest) -> VerifyResponse:
            raise KeyError("nope")

    bench.verifier = making(Buggy)
    run_virtual(bench.collect(ROWS))
    assert "5 × echo: KeyError: 'nope' (test_collect.py:" in bench.out.getvalue()
    assert "Rollouts:" not in bench.out.getvalue()  # the empty file is removed
    assert "Look at them:  ng_view" in bench.out.getvalue()


def test_a_run_with_nothing_to_do_keeps_what_was_measured(bench: Bench) -> None:
    bench.model = ScriptedModel(asked, delay_s=1)
    asyncio.run(bench.collect(ROWS))
    measured = bench.metrics()["throughput"]
    assert measured["rollouts_per_s"] > 0
    asyncio.run(bench.collect())
    assert bench.metrics()["throughput"] == measured


def test_a_smaller_plan_than_the_file_counts_what_is_there(bench: Bench) -> None:
    run_virtual(bench.collect(ROWS))
    run_virtual(bench.collect(limit=2))
    counts = bench.metrics()["counts"]
    assert (counts["planned"], counts["rollouts"], counts["tasks"]) == (5, 5, 5)
    assert bench.metrics()["bracket"] == {"reward": [1.0, 1.0]}


def test_the_command_that_continues_a_fresh_run_does_not_start_it_over(bench: Bench) -> None:
    from rollout_kit.collecting.command_line import repeat_command

    words = ["+a=1", "+resume=fresh", "+only=x:1", "+dry_run=true", "+output_jsonl_fpath=a b"]
    assert repeat_command("ng_collect_rollouts", words, frozenset()) == (
        "ng_collect_rollouts +a=1 '+output_jsonl_fpath=a b'"
    )


def test_an_output_whose_folder_cannot_be_made_is_one_line(bench: Bench) -> None:
    (bench.folder / "file").touch()
    with pytest.raises(OutputError, match="cannot make the folder"):
        run_virtual(bench.collect(ROWS, output_jsonl_fpath=bench.folder / "file/x.jsonl"))


def test_a_run_that_cannot_begin_leaves_no_files(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="there is no task in it"):
        run_virtual(bench.collect([]))
    assert [path.name for path in bench.folder.iterdir()] == ["tasks.jsonl"]
