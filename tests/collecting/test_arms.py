"""Arms: each task asked in several ways, in one output."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from support import Bench, Desk, asked, row

from rollout_kit.api.testing import Over, ScriptedModel, run_virtual
from rollout_kit.errors import ConfigError, ModelError, OutputError
from rollout_kit.store.arms.arm import Arm, order_by_prompt
from rollout_kit.store.arms.read import read_arms
from rollout_kit.store.lines import info_of

ROWS = [{**row(f"q{number}"), "question": f"q{number}"} for number in range(4)]

PLAIN = {"id": "plain", "temperature": 0.2}

POLITE = {
    "id": "polite",
    "prompt": {"system": "Be kind.", "user": "{question}"},
    "temperature": 0.9,
}

ARMS = [PLAIN, POLITE]


def read(given: Any) -> list[Arm]:
    return read_arms(given, lambda path: Path(path) if Path(path).exists() else None)


def arms_on_disk(bench: Bench) -> list[tuple[str, str, int]]:
    """(arm, question, repeat) of every rollout, sorted."""
    infos = [(info_of(line), line) for line in bench.lines()]
    return sorted(
        (info.arm.id if info.arm else "", line["question"], info.key.rollout_index)
        for info, line in infos
    )


def all_of(arms: list[str], tasks: int = 4, repeats: int = 1) -> list[tuple[str, str, int]]:
    return sorted(
        (arm, f"q{task}", repeat)
        for arm, task, repeat in itertools.product(arms, range(tasks), range(repeats))
    )


# --- a run


def test_each_task_is_asked_once_for_each_arm(bench: Bench, over: Over) -> None:
    bench.collects_over = over
    collect = bench.collect(ROWS, arms=ARMS)
    assert (run_virtual(collect) if over == "local" else run_real(collect)) == 0
    assert arms_on_disk(bench) == all_of(["plain", "polite"])
    said = bench.out.getvalue()
    assert "Plan: 4 tasks × 2 arms = 8 rollouts · 0 done" in said
    assert "\n  plain   1.000" in said and "\n  polite  1.000" in said
    for line in bench.lines():
        params, arm = line["responses_create_params"], info_of(line).arm
        assert arm
        roles = [item["role"] for item in params["input"]]
        assert roles == (["user"] if arm.id == "plain" else ["system", "user"])
        assert (
            params["temperature"]
            == arm.params["temperature"]
            == {"plain": 0.2, "polite": 0.9}[arm.id]
        )
        assert line["rollout"]["scope"] == f"arm={arm.id}"


def run_real(collect: Any) -> int:
    import asyncio

    return asyncio.run(collect)


def test_the_same_command_again_sends_nothing(bench: Bench) -> None:
    run_virtual(bench.collect(ROWS, arms=ARMS))
    before = (bench.folder / "rollouts.jsonl").read_bytes()
    assert run_virtual(bench.collect(arms=ARMS)) == 0
    assert len(bench.model.calls) == 8
    assert (bench.folder / "rollouts.jsonl").read_bytes() == before


def test_a_run_that_ended_early_continues(bench: Bench) -> None:
    run_virtual(bench.collect(ROWS, arms=ARMS, num_repeats=2, limit=3))
    path = bench.folder / "rollouts.jsonl"
    kept = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(kept[:5]) + kept[5][:40])  # as a kill leaves it
    assert run_virtual(bench.collect(arms=ARMS, num_repeats=2)) == 0
    assert arms_on_disk(bench) == all_of(["plain", "polite"], repeats=2)
    assert len(bench.model.calls) == 12 + 11


def test_an_added_arm_adds_the_difference(bench: Bench) -> None:
    run_virtual(bench.collect(ROWS, arms=ARMS))
    assert run_virtual(bench.collect(arms=[*ARMS, {"id": "warm", "temperature": 1.5}])) == 0
    assert "4 tasks × 3 arms = 12 rollouts · 8 done" in bench.out.getvalue()
    assert len(bench.model.calls) == 12
    assert arms_on_disk(bench) == all_of(["plain", "polite", "warm"])


def test_a_changed_arm_is_refused_alone_with_old_and_new(bench: Bench) -> None:
    run_virtual(bench.collect(ROWS, arms=ARMS))
    changed = [PLAIN, {**POLITE, "temperature": 0.7}]
    with pytest.raises(OutputError) as refused:
        run_virtual(bench.collect(arms=changed))
    text = str(refused.value)
    assert "arm 'polite' of 'echo_agent'" in text and "'plain'" not in text
    assert "  arm.params.temperature: 0.9 → 0.7\n" in text
    assert "The other arms (1) are as they were." in text and "another id" in text
    assert len(bench.model.calls) == 8
    renamed = [PLAIN, {**changed[1], "id": "kind"}]
    assert run_virtual(bench.collect(arms=renamed)) == 0
    assert (
        "4 rollouts of arm 'polite' stay in the output and are not counted" in bench.out.getvalue()
    )
    assert len(bench.model.calls) == 12


def test_append_keeps_a_changed_arm_apart(bench: Bench) -> None:
    run_virtual(bench.collect(ROWS, arms=ARMS))
    changed = [PLAIN, {**POLITE, "temperature": 0.7}]
    assert run_virtual(bench.collect(arms=changed, resume="append")) == 0
    assert len(bench.model.calls) == 12
    scopes = {line["rollout"]["scope"] for line in bench.lines()}
    assert {"arm=plain", "arm=polite"} < scopes and len(scopes) == 3
    assert run_virtual(bench.collect(arms=changed, resume="append")) == 0
    assert len(bench.model.calls) == 12
    assert bench.metrics()["arms"]["polite"]["rollouts"] == 4


def test_a_removed_arm_stays_and_is_not_counted(bench: Bench) -> None:
    run_virtual(bench.collect(ROWS, arms=ARMS))
    assert run_virtual(bench.collect(arms=[PLAIN])) == 0
    assert "4 rollouts of arm 'polite' stay" in bench.out.getvalue()
    assert bench.metrics()["counts"]["rollouts"] == 4
    assert list(bench.metrics()["arms"]) == ["plain"]
    assert len(bench.lines()) == 8
    assert run_virtual(bench.collect()) == 0  # no arms at all
    assert "8 rollouts of arm 'plain', arm 'polite' stay" in bench.out.getvalue()
    assert bench.metrics()["counts"]["rollouts"] == 4 and "arms" not in bench.metrics()


def test_another_model_is_one_change_of_all_arms(bench: Bench) -> None:
    run_virtual(bench.collect(ROWS, arms=ARMS))
    with pytest.raises(OutputError) as refused:
        run_virtual(bench.collect(arms=ARMS, default_params={"top_p": 0.5}))
    assert "arms 'plain', 'polite' of 'echo_agent'" in str(refused.value)
    assert str(refused.value).count("default_params") == 1


@pytest.mark.parametrize("most", [3, 4])  # with four the mean is a whole number
def test_an_arm_has_its_own_number_of_repeats(bench: Bench, most: int) -> None:
    run_virtual(bench.collect(ROWS, arms=[PLAIN, {**POLITE, "repeats": most}], num_repeats=2))
    assert arms_on_disk(bench) == sorted(
        [*all_of(["plain"], repeats=2), *all_of(["polite"], repeats=most)]
    )
    assert f"Plan: 4 tasks × 2 arms: {4 * (2 + most)} rollouts" in bench.out.getvalue()


def test_identical_rows_are_further_repeats_in_each_arm(bench: Bench) -> None:
    run_virtual(bench.collect([ROWS[0], ROWS[0]], arms=[PLAIN, {**POLITE, "repeats": 3}]))
    assert arms_on_disk(bench) == sorted(
        [*all_of(["plain"], 1, repeats=2), *all_of(["polite"], 1, repeats=6)]
    )


def test_metrics_are_for_each_arm_and_over_all(bench: Bench) -> None:
    bench.model = ScriptedModel(
        lambda params: asked(params) if params["temperature"] < 0.5 else "wrong"
    )
    run_virtual(bench.collect(ROWS, arms=ARMS, num_repeats=2))
    metrics = bench.metrics()
    assert metrics["metrics"]["reward"] == 0.5 and metrics["counts"]["rollouts"] == 16
    assert metrics["counts"]["tasks"] == 4
    found = {arm: figures["metrics"]["reward"] for arm, figures in metrics["arms"].items()}
    assert found == {"plain": 1.0, "polite": 0.0}
    assert metrics["arms"]["plain"]["pass_at_k"] == {"1": 1.0, "2": 1.0}
    assert metrics["pass_at_k"]["1"] == 0.5 and metrics["pass_at_k"]["4"] == 1.0
    [agent] = metrics["agents"]
    assert agent["group_level_metrics"][0]["expected_num_rollouts"] == 4


def test_arms_of_several_agents_are_counted_together(bench: Bench) -> None:
    bench.other_agents = ["other"]
    names = ["echo_agent", "other", "echo_agent", "other"]
    rows = [{**row, "agent_ref": {"name": name}} for row, name in zip(ROWS, names, strict=True)]
    bench.model = ScriptedModel(
        lambda params: asked(params) if params["temperature"] < 0.5 else "wrong"
    )
    assert run_virtual(bench.collect(rows, arms=ARMS, num_repeats=2)) == 0
    metrics = bench.metrics()
    assert metrics["metrics"]["reward"] == 0.5
    plain = metrics["arms"]["plain"]
    assert (plain["rollouts"], plain["tasks"], plain["metrics"]["reward"]) == (8, 4, 1.0)
    assert plain["pass_at_k"] == {"1": 1.0, "2": 1.0}
    assert metrics["arms"]["polite"]["pass_at_k"] == {"1": 0.0, "2": 0.0}


def test_requests_of_equal_prompts_go_out_together(bench: Bench) -> None:
    arms = [PLAIN, POLITE, {**PLAIN, "id": "warm", "temperature": 0.8}]
    run_virtual(bench.collect(ROWS, arms=arms, num_samples_in_parallel=1))
    sent = [(asked(params), params["temperature"]) for params in bench.model.calls]
    assert sent[:3] == [("q0", 0.2), ("q0", 0.8), ("q0", 0.9)]
    assert [question for question, _ in sent] == [f"q{task}" for task in range(4) for _ in range(3)]


def test_only_names_one_arm_or_all(bench: Bench) -> None:
    run_virtual(bench.collect(ROWS, arms=ARMS))
    task = bench.lines()[0]["rollout"]["task_id"]
    for only, number in ((f"{task}:polite:0", 1), (f"{task}:0", 2)):
        run_virtual(bench.collect(arms=ARMS, only=only, resume="fresh"))
        assert len(bench.lines()) == number
    with pytest.raises(ConfigError, match="no such rollout"):
        run_virtual(bench.collect(arms=ARMS, only=f"{task}:rude:0"))


def test_a_failure_names_its_arm_and_how_to_repeat_it(bench: Bench) -> None:
    def answer(params: dict[str, Any]) -> str:
        if params["temperature"] == 0.9 and asked(params) == "q1":
            raise ModelError("no", status=400, retryable=False)
        return asked(params)

    bench.model = ScriptedModel(answer)
    assert run_virtual(bench.collect(ROWS, arms=ARMS)) == 2
    [failure] = bench.lines("failures")
    task = failure["rollout"]["task_id"]
    assert failure["repro"].endswith(f"+only={task}:polite:0")
    bench.model = ScriptedModel(asked)
    assert run_virtual(bench.collect(arms=ARMS, only=f"{task}:polite:0")) == 0
    assert arms_on_disk(bench) == all_of(["plain", "polite"])


def test_the_command_line_s_params_replace_those_of_arms(bench: Bench) -> None:
    run_virtual(bench.collect(ROWS, arms=ARMS, responses_create_params={"temperature": 0.0}))
    assert {params["temperature"] for params in bench.model.calls} == {0.0}
    assert {line["rollout"]["arm"]["params"]["temperature"] for line in bench.lines()} == {0.0}


def test_stored_rollouts_of_arms_are_verified_again(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    run_virtual(desk.collect(ROWS, arms=ARMS))
    assert run_virtual(desk.reverify()) == 0
    assert [line["rollout"]["arm"] for line in desk.new()] == [
        line["rollout"]["arm"] for line in desk.lines()
    ]
    assert list(desk.new_metrics()["arms"]) == ["plain", "polite"]
    assert desk.new_metrics()["counts"]["rollouts"] == 8


# --- seeds


def test_seeds_are_fixed_derived_or_absent(bench: Bench) -> None:
    arms = [
        {"id": "fixed", "seed": 7},
        {"id": "sum_{i}", "seed": "40+{i}", "vary": {"temperature": [0.1, 0.2]}},
        {"id": "own", "seed": "derived"},
        {"id": "bare", "seed": "none"},
    ]
    run_virtual(bench.collect(ROWS[:2], arms=arms, num_repeats=2))
    seeds: dict[str, list[Any]] = {}
    for line in sorted(bench.lines(), key=lambda each: json.dumps(each["rollout"]["task_id"])):
        info, params = info_of(line), line["responses_create_params"]
        assert info.arm and params.get("seed") == info.arm.seed
        seeds.setdefault(info.arm.id, []).append(info.arm.seed)
    assert sorted(seeds["fixed"]) == [7, 7, 8, 8]  # a repeat with the same seed would be a copy
    assert sorted(seeds["sum_0"]) == [40, 40, 41, 41] and sorted(seeds["sum_1"]) == [41, 41, 42, 42]
    assert len(set(seeds["own"])) == 4 and seeds["bare"] == [None] * 4
    again = {line["rollout"]["arm"].get("seed") for line in bench.lines()}
    run_virtual(bench.collect(arms=arms, num_repeats=2, resume="fresh"))
    assert again == {line["rollout"]["arm"].get("seed") for line in bench.lines()}
    with pytest.raises(OutputError, match=r"arm.run_seed: 0 → 1"):
        run_virtual(bench.collect(arms=arms, num_repeats=2, arms_seed=1))


def test_seeds_by_the_index_of_a_repeat_are_for_arms_without_their_own(bench: Bench) -> None:
    arms = [{"id": "own", "seed": 70}, {"id": "bare"}]
    run_virtual(bench.collect(ROWS[:1], arms=arms, num_repeats=2, num_repeats_add_seed=True))
    found = [(info_of(line).arm, line["responses_create_params"]) for line in bench.lines()]
    assert sorted((arm.id, arm.seed, params["seed"]) for arm, params in found if arm) == [
        ("bare", 0, 0),
        ("bare", 1, 1),
        ("own", 70, 70),
        ("own", 71, 71),
    ]


# --- reading


def test_vary_is_a_cartesian_product() -> None:
    arms = read(
        [
            {
                "id": "a_{temperature}_{i}",
                "vary": {"temperature": [0.2, 0.5], "prompt": ["x {question}", "y {question}"]},
                "seed": "10+{i}",
                "tags": {"style": "s{i}", "rank": 1},
            }
        ]
    )
    assert [arm.id for arm in arms] == ["a_0.2_0", "a_0.2_1", "a_0.5_2", "a_0.5_3"]
    assert [arm.params["temperature"] for arm in arms] == [0.2, 0.2, 0.5, 0.5]
    assert [arm.prompt.user for arm in arms if arm.prompt] == ["x {question}", "y {question}"] * 2
    assert [arm.seed for arm in arms] == [10, 11, 12, 13]
    assert arms[3].tags == {"style": "s3", "rank": 1}
    assert [arm.id for arm in order_by_prompt(arms)] == ["a_0.2_0", "a_0.5_2", "a_0.2_1", "a_0.5_3"]


def test_defaults_are_for_all_arms_and_an_arm_replaces_them() -> None:
    arms = read(
        {
            "defaults": {
                "max_output_tokens": 512,
                "prompt": {"completion": "Q: {q}\nA:"},
                "repeats": 2,
                "tags": {"set": 1},
                "responses_create_params": {"guided": True},
            },
            "arms": [
                {"id": "a", "tags": {"probe": "A"}},
                {"id": "b", "prompt": "{q}", "max_output_tokens": 9, "repeats": 1},
            ],
        }
    )
    assert arms[0].params == {"max_output_tokens": 512, "guided": True}
    assert arms[0].tags == {"set": 1, "probe": "A"} and arms[0].repeats == 2
    assert arms[0].prompt and arms[0].prompt.completion == "Q: {q}\nA:"
    assert arms[1].params["max_output_tokens"] == 9 and arms[1].repeats == 1
    assert arms[1].prompt and arms[1].prompt.completion is None


def test_a_file_of_arms_and_of_templates(tmp_path: Path, bench: Bench) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "kind.txt").write_text("Kindly: {question}\n")
    (tmp_path / "more" / "both.yaml").write_text("system: S\nuser: 'U {question}'\n")
    (tmp_path / "more" / "arms.yaml").write_text(
        "- {id: kind, prompt: kind.txt}\n- {id: both, prompt: both.yaml}\n"
        "- {id: mixed, prompt: {system: kind.txt}}\n"
    )
    run_virtual(bench.collect(ROWS[:1], arms=str(tmp_path / "more" / "arms.yaml")))
    sent = [[item["content"] for item in params["input"]] for params in bench.model.calls]
    assert sent == [["Kindly: q0"], ["S", "U q0"], ["Kindly: q0", "q0"]]


def test_a_row_needs_no_prompt_if_every_arm_has_one(bench: Bench) -> None:
    rows = [{"question": "q0", "expected": "q0"}]
    arms = [{"id": "a", "prompt": "{question}"}, {"id": "b", "prompt": {"user": "{question}"}}]
    assert run_virtual(bench.collect(rows, arms=arms)) == 0
    assert len(bench.lines()) == 2
    with pytest.raises(ConfigError, match="no responses_create_params"):
        run_virtual(bench.collect(arms=[*arms, {"id": "c"}], strict_input=True))


def test_a_row_that_lacks_a_field_of_an_arm_is_named(bench: Bench) -> None:
    rows = [*ROWS[:1], row("q1")]
    assert run_virtual(bench.collect(rows, arms=ARMS)) == 2
    [failure] = bench.lines("failures")
    message = failure["failure"]["message"]
    assert failure["line"] == 2
    assert "arm 'polite': its prompt needs the field 'question', which the row lacks" in message
    assert arms_on_disk(bench) == all_of(["plain", "polite"], 1)


def test_arms_that_fit_no_row_are_one_error(bench: Bench) -> None:
    arms = [{"id": "a", "prompt": "{qestion}"}]
    with pytest.raises(ConfigError, match=r"tasks.jsonl:1: arm 'a': its prompt needs the field"):
        run_virtual(bench.collect(ROWS, arms=arms))
    assert not bench.model.calls


BAD = {
    "nothing": ([], "arms: expected a list of arms"),
    "no list": ({}, "arms: expected a list of arms"),
    "twice": ([{"id": "a"}, {"id": "a"}], "arms: two arms are called 'a': give one"),
    "no id": ([{"temperature": 1}], "arms: entry 1: needs an id"),
    "no mapping": (["a"], "arms: entry 1: needs an id"),
    "unknown": ([{"id": "a", "temprature": 1}], "arm 'a': unknown key 'temprature' (did you mean"),
    "foreign": ([{"id": "a", "guided": 1}], "parameters of an engine go into responses_create_"),
    "renamed": ([{"id": "a", "max_tokens": 1}], "the Responses API calls this max_output_tokens"),
    "type": ([{"id": "a", "temperature": "hot"}], "arm 'a': temperature: expected a number"),
    "bounds": ([{"id": "a", "top_p": 2}], "arm 'a': top_p: must be at most 1"),
    "repeats": ([{"id": "a", "repeats": 0}], "arm 'a': repeats: expected an int from 1"),
    "seed": ([{"id": "a", "seed": "often"}], "arm 'a': seed: expected an int, a sum such as"),
    "float seed": ([{"id": "a", "seed": 1.5}], "arm 'a': seed: expected an int"),
    "bool seed": ([{"id": "a", "seed": True}], "arm 'a': seed: expected an int"),
    "tags": ([{"id": "a", "tags": "x"}], "arm 'a': tags: expected a mapping"),
    "name": ([{"id": "a b"}], "the id 'a b' may have letters"),
    "comma": ([{"id": "a,epoch=1"}], "the id 'a,epoch=1' may have letters"),
    "template": ([{"id": "a_{j}"}], "arm 'a_{j}': 'a_{j}': 'j' is not known here; there are: {i}"),
    "same vary": ([{"id": "a", "vary": {"top_p": [0.1, 0.2]}}], "write id: a_{i}"),
    "vary": ([{"id": "a", "vary": {"top_p": 0.1}}], "vary: expected lists, as in"),
    "empty vary": ([{"id": "a", "vary": {"top_p": []}}], "vary: expected lists, as in"),
    "vary twice": ([{"id": "a", "top_p": 1, "vary": {"top_p": [1]}}], "top_p is given twice"),
    "vary unknown": ([{"id": "a", "vary": {"topp": [1]}}], "vary: unknown key 'topp'"),
    "file": ([{"id": "a", "prompt": "gone.txt"}], "gone.txt: No such file"),
    "prompt": ([{"id": "a", "prompt": 3}], "arm 'a': prompt: expected a template, or the path"),
    "parts": ([{"id": "a", "prompt": {"usr": "x"}}], "unknown usr (did you mean 'user'?)"),
    "both": ([{"id": "a", "prompt": {"user": "x", "completion": "y"}}], "or completion alone"),
    "brace": ([{"id": "a", "prompt": "{question"}], "arm 'a': prompt: user: "),
    "input": (
        [{"id": "a", "responses_create_params": {"input": "x"}}],
        "give it as the arm's prompt",
    ),
    "params": ([{"id": "a", "responses_create_params": 3}], "expected a mapping"),
    "keys": ({"arm": []}, "arms: unknown key 'arm' (did you mean 'arms'?)"),
    "defaults": ({"defaults": {"id": "x"}, "arms": [{"id": "a"}]}, "defaults: unknown key 'id'"),
    "gone": ("gone.yaml", "arms gone.yaml: No such file"),
    "many": ([{"id": "a{i}", "vary": {"seed": list(range(1001))}}], "at most 1,000 are possible"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_gets_one_clear_line(name: str) -> None:
    given, message = BAD[name]
    with pytest.raises(ConfigError) as refused:
        read(given)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_mistakes_in_files_name_them(tmp_path: Path) -> None:
    path = tmp_path / "arms.yaml"
    path.write_text("- {id: a, prompt: [")
    with pytest.raises(ConfigError, match=r"arms.yaml: not YAML"):
        read(str(path))
    path.write_text("- {id: a, temprature: 1}")
    with pytest.raises(ConfigError, match=r"arms.yaml: arm 'a': unknown key"):
        read(str(path))
    (tmp_path / "p.txt").write_bytes(b"\xff\xfe")
    path.write_text("- {id: a, prompt: p.txt}")
    with pytest.raises(ConfigError, match=r"p.txt: not UTF-8"):
        read(str(path))


def test_arms_are_refused_before_anything_is_sent(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="two arms are called 'plain'"):
        run_virtual(bench.collect(ROWS, arms=[PLAIN, PLAIN]))
    with pytest.raises(ConfigError, match="arms: expected a list of arms"):
        run_virtual(bench.collect(arms=[]))
    assert not bench.model.calls and not (bench.folder / "rollouts.jsonl").exists()


# --- raw completion prompts


def test_a_raw_prompt_reaches_the_model_as_one_text(bench: Bench) -> None:
    seen: list[Any] = []

    def answer(params: dict[str, Any]) -> str:
        seen.append((params["input"][0]["content"], params.get("raw_prompt")))
        return "q0"

    bench.model = ScriptedModel(answer)
    arms = [{"id": "raw", "prompt": {"completion": "Problem: {question}\nSolution:"}}, PLAIN]
    assert run_virtual(bench.collect(ROWS[:1], arms=arms, num_samples_in_parallel=1)) == 0
    assert seen == [("Problem: q0\nSolution:", True), ("q0", None)]


def test_a_chat_prompt_of_an_arm_replaces_a_raw_row(bench: Bench) -> None:
    raw = {"input": "Q: q0", "raw_prompt": True}
    rows = [{"responses_create_params": raw, "question": "q0", "expected": "q0"}]
    assert run_virtual(bench.collect(rows, arms=[POLITE, {"id": "raw"}])) == 0
    sent = {"raw_prompt" in params: params["input"] for params in bench.model.calls}
    assert [item["role"] for item in sent[False]] == ["system", "user"]
    assert [item["content"] for item in sent[True]] == ["Q: q0"]


def test_each_arm_has_a_fingerprint_of_its_own(bench: Bench) -> None:
    run_virtual(bench.collect(ROWS[:1], arms=ARMS))
    settings = {line["rollout"]["scope"]: line["rollout"]["settings"] for line in bench.lines()}
    assert settings.keys() == {"arm=plain", "arm=polite"} and len(set(settings.values())) == 2
    manifest = json.loads((bench.folder / "rollouts.d/run.json").read_text())
    known = {
        manifest["settings"][each]["arm"]["params"]["temperature"] for each in settings.values()
    }
    assert known == {0.2, 0.9}
