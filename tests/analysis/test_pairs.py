"""ng_pairs: which rollouts make a pair, by which rule, and why others make none."""

import json
from pathlib import Path
from typing import Any

import pytest
from command import as_function
from exported import Place, line, tool_line
from hypothesis import given
from hypothesis import strategies as st
from support import read_jsonl

from rollout_kit.analysis.export.pairs import plan_pairs
from rollout_kit.analysis.export.selection import Member, Selection
from rollout_kit.analysis.export.source import RolloutSource
from rollout_kit.config.keys import PairRule, PairsConfig
from rollout_kit.store.scope import Group
from rollout_kit.types import Key

command = as_function("ng_pairs")

RULES = ("correctness", "best_worst", "top_bottom", "length_matched", "coherence")


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(tmp_path, capsys)


def pairs(place: Place, *argv: Any) -> tuple[int, str, list[dict[str, Any]]]:
    path = place.folder / "pairs.jsonl"
    path.unlink(missing_ok=True)
    words = (place.folder / "rollouts.jsonl", f"+output_fpath={path}", *argv)
    status, said = place.run(command, *words)
    return status, said, read_jsonl(path) if path.exists() else []


def report(place: Place) -> dict[str, Any]:
    return json.loads((place.folder / "pairs_report.json").read_text())


def of_task(task: int, *rewards: float | None, **more: Any) -> list[Any]:
    """Rollouts with these rewards, each with a text of its own."""
    return [line(task, at, f"answer {at}", reward, **more) for at, reward in enumerate(rewards)]


def indices(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["chosen_index"], row["rejected_index"]) for row in rows]


def test_right_against_wrong_and_the_best_of_the_right_against_the_worst(place: Place) -> None:
    rewards = [1.402339427387, 1.368053713101, 0.222339427387, 1.402339427387]
    verdicts = [1.0, 1.0, 0.0, 1.0]
    place.write(
        line(1, at, f"answer {at}", verdict, of_group=reward)
        for at, (reward, verdict) in enumerate(zip(rewards, verdicts, strict=True))
    )
    (place.folder / "rules.yaml").write_text(
        "rules: [correctness, {type: coherence, min_margin: 0.01}]"
    )
    rules = f"+rules_fpath={place.folder / 'rules.yaml'}"
    status, said, rows = pairs(place, rules, "+reward_key=of_group")
    assert status == 0, said
    assert indices(rows) == [(0, 2), (1, 2), (3, 2), (0, 1)]
    assert [row["rule"] for row in rows] == ["correctness"] * 3 + ["coherence"]
    assert rows[-1]["margin"] == pytest.approx(0.034285714286)
    assert rows[0]["chosen_reward"] == rewards[0] and rows[0]["rejected_reward"] == rewards[2]
    found = report(place)
    assert found["rules"] == {"correctness": 3, "coherence": 1} and found["tasks"] == 1
    assert found["margin"]["max"] == pytest.approx(1.18) and found["longer_by_words"]["mean"] == 0


def test_rewards_that_tie_make_no_pair_and_that_is_an_error(place: Place) -> None:
    place.write([*of_task(1, *[1.6172396859834055] * 8), *of_task(2, 0.5)])
    for rule in RULES:
        status, said, rows = pairs(place, f"+rules=[{rule}]")
        assert (status, rows) == (1, []) and "no pair is left" in said
        assert "1 (tasks without a pair)" in said
        assert "1 (tasks with fewer than two usable rollouts)" in said
    status, said, rows = pairs(place, "+allow_empty=true")
    assert (status, rows) == (0, []) and (place.folder / "pairs.jsonl").exists()
    assert report(place)["rules"] == {}


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["+rules=[best_worst]"], [(3, 0)]),
        (["+rules=[{type: top_bottom, k: 2}]"], [(3, 0), (3, 2), (1, 0), (1, 2)]),
        (["+rules=[{type: top_bottom, k: 9}]"], [(3, 0), (3, 2), (1, 0), (1, 2)]),
        (["+rules=[{type: top_bottom, k: 2, min_margin: 0.3}]"], [(3, 0), (3, 2), (1, 0)]),
        (["+rules=[correctness]"], [(3, 0), (3, 1), (3, 2)]),
        (["+rules=[correctness]", "+pass_threshold=0.5"], [(1, 0), (1, 2), (3, 0), (3, 2)]),
        (["+rules=[correctness, best_worst]"], [(3, 0), (3, 1), (3, 2)]),
        (
            ["+rules=[correctness, best_worst]", "+dedupe_pairs=false"],
            [(3, 0), (3, 1), (3, 2), (3, 0)],
        ),
        (["+where=rollout_index != 0"], [(3, 2)]),
    ],
)
def test_rules(argv: list[str], expected: list[tuple[int, int]], place: Place) -> None:
    place.write(of_task(1, 0.0, 0.5, 0.25, 1.0))
    _, said, rows = pairs(place, *argv)
    assert sorted(indices(rows)) == sorted(expected), said


def test_responses_that_cannot_teach_are_left_out(place: Place) -> None:
    given = [
        line(1, 0, "right", 1.0),
        line(1, 1, "right", 0.0),
        line(1, 2, "", 0.0),
        line(1, 3, "cut o", 0.0, cut="max_output_tokens"),
        line(1, 4, "no verdict", None),
        line(1, 5, "wrong", 0.0),
        line(1, 6, "wrong", 0.0),
    ]
    place.write(given)
    _, _, rows = pairs(place, "+rules=[correctness]")
    assert indices(rows) == [(0, 5)]
    assert report(place)["left_out"] == {
        "drop_truncated": 1,
        "drop_empty": 1,
        "without a reward": 1,
        "pairs of identical responses": 1,
        "pairs that read like another": 1,
    }
    kept = [f"+{each}=false" for each in ("drop_truncated", "drop_identical", "dedupe_pairs")]
    _, _, rows = pairs(place, "+rules=[correctness]", *kept)
    assert indices(rows) == [(0, 1), (0, 3), (0, 5), (0, 6)]


def test_caps_spread_pairs_over_the_tasks_and_do_not_depend_on_the_order(place: Place) -> None:
    lines = [each for task in range(10) for each in of_task(task, 1.0, 1.0, 0.0, 0.0)]
    found = []
    for ordered in (lines, lines[::-1]):
        place.write(ordered)
        _, said, rows = pairs(place, "+rules=[correctness]", "+max_pairs=15")
        counts = [sum(row["task_id"] == f"{task:016x}" for row in rows) for task in range(10)]
        assert sorted(counts) == [1] * 5 + [2] * 5 and "25 (pairs above max_pairs)" in said
        _, _, capped = pairs(place, "+rules=[correctness]", "+max_per_task=3")
        assert len(capped) == 30
        found.append([sorted((r["task_id"], *indices([r])[0]) for r in e) for e in (rows, capped)])
    assert found[0] == found[1]


def test_lengths_are_matched(place: Place) -> None:
    words = [10, 100, 11, 90, 40]
    rewards = [1.0, 1.0, 0.0, 0.0, 0.0]
    place.write(
        line(1, at, " ".join([f"w{at}"] * number), reward)
        for at, (number, reward) in enumerate(zip(words, rewards, strict=True))
    )
    _, _, rows = pairs(place, "+rules=[length_matched]")
    assert indices(rows) == [(0, 2), (1, 3)]
    _, _, rows = pairs(place, "+rules=[{type: length_matched, max_length_ratio: 1.1}]")
    assert indices(rows) == [(0, 2)]


def test_a_prompt_is_the_chosen_one_s_or_that_of_a_template(place: Place) -> None:
    other = {"input": [{"role": "user", "content": "Differently: 1?"}]}
    place.write([line(1, 0, "right", 1.0, params=other), line(1, 1, "wrong", 0.0)])
    [row] = pairs(place)[2]
    assert row["prompt"][-1]["content"] == "Differently: 1?"
    template = place.folder / "tutor.yaml"
    template.write_text('system: Teach.\nuser: "Find {expected_answer}"\n')
    [row] = pairs(place, f"+prompt={template}")[2]
    assert row["prompt"] == [
        {"role": "system", "content": "Teach."},
        {"role": "user", "content": "Find 1"},
    ]
    template.write_text('user: "{nothing}"\n')
    status, said, _ = pairs(place, f"+prompt={template}")
    assert status == 1 and "needs the field 'nothing'" in said


def test_all_pairs_may_get_the_prompt_of_an_arm(place: Place) -> None:
    def ask(arm: str, at: int, text: str, reward: float | None, task: int = 1) -> Any:
        params = {"input": [{"role": "user", "content": f"{arm}: {task}?"}]}
        return line(task, at, text, reward, params=params, scope=f"arm={arm}")

    place.write(
        [
            ask("short", 0, "right", 1.0),
            ask("short", 1, "wrong", 0.0),
            ask("plain", 0, "none", None),  # its prompt is used, though it has no verdict
            ask("short", 0, "right", 1.0, task=2),
            ask("short", 1, "wrong", 0.0, task=2),
        ]
    )
    _, _, rows = pairs(place)
    assert [row["prompt"][-1]["content"] for row in rows] == ["short: 1?", "short: 2?"]
    status, said, [row] = pairs(place, "+prompt=arm:plain")
    assert status == 0 and row["prompt"][-1]["content"] == "plain: 1?"
    assert report(place)["left_out"]["the arm 'plain' has no rollout of its task"] == 1, said
    _, _, rows = pairs(place, "+prompt=arm:short", "+where=reward >= 0")
    assert [row["prompt"][-1]["content"] for row in rows] == ["short: 1?", "short: 2?"]
    status, said, _ = pairs(place, "+prompt=arm:plan")
    assert status == 1 and "no rollout is of the arm 'plan' (did you mean 'plain'?)" in said


def test_pairs_are_split_by_task(place: Place) -> None:
    place.write(each for task in range(40) for each in of_task(task, 1.0, 0.5, 0.0))
    _, _, rows = pairs(place, "+rules=[{type: top_bottom}, correctness]", "+test_fraction=0.25")
    test = read_jsonl(place.folder / "pairs_test.jsonl")
    tasks = [{row["task_id"] for row in part} for part in (rows, test)]
    assert not tasks[0] & tasks[1] and len(tasks[0] | tasks[1]) == 40 and len(tasks[1]) > 2
    assert sum(report(place)["files"].values()) == 80


def test_a_format_that_cannot_hold_a_pair_counts_it(place: Place) -> None:
    place.write([tool_line(1, 0, 1.0, ("price", "{}")), line(1, 1, "x", 0.0), *of_task(2, 1.0, 0)])
    _, said, rows = pairs(place, "+format=llamafactory_dpo")
    assert [row["chosen"] for row in rows] == [{"from": "gpt", "value": "answer 0"}]
    assert "1 (its completion is not one assistant message)" in said
    info = json.loads((place.folder / "dataset_info.json").read_text())["pairs"]
    assert info["ranking"] is True and info["columns"]["rejected"] == "rejected"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["+format=trl_sft"], "format=trl_sft has no pairs; these have: trl_dpo"),
        (["+rules=[correct]"], "rules"),
        (["+rules_fpath=bad.yaml", "+rules=[correctness]"], "not both"),
        (["+rules_fpath=none.yaml"], "none.yaml: No such file"),
        (["+rules_fpath=broken.yaml"], "broken.yaml: not YAML: "),
        (["+rules_fpath=other.yaml"], "other.yaml: expected a list of rules, such as"),
        (["+rules_fpath=bad.yaml"], "rules.0.type: Input should be 'correctness'"),
        (["+prompt=none.yaml"], "prompt none.yaml: No such file"),
        (["+rules=[{type: top_bottom, k: 0}]"], "greater than or equal to 1"),
    ],
)
def test_one_line_says_what_is_wrong(
    argv: list[str], expected: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.folder)
    place.write(of_task(1, 1.0, 0.0))
    (place.folder / "bad.yaml").write_text("rules: [{type: nothing}]")
    (place.folder / "other.yaml").write_text("arms: []")
    (place.folder / "broken.yaml").write_text("rules: [\n- a: {")
    status, said, rows = pairs(place, *argv)
    assert status == 1 and expected in said and said.count("\n") == 1 and rows == []


MEMBERS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 9), st.integers(0, 3)), max_size=9
)


@given(MEMBERS, st.sampled_from(RULES), st.integers(1, 4), st.integers(1, 5))
def test_a_pair_has_a_better_and_a_worse_one_whatever_the_rule(
    given: list[tuple[float, int, int]], rule: Any, k: int, most: int
) -> None:
    group = Group("t", "a", "")
    members = [
        Member(Key("t", "a", "", at), reward, reward, words, bytes([text]), False, False)
        for at, (reward, words, text) in enumerate(given)
    ]
    config = PairsConfig(rules=[PairRule(type=rule, k=k)], max_per_task=most, pass_threshold=0.75)
    found = plan_pairs(Selection(RolloutSource([]), {group: members}, {}), config).pairs.get(
        group, []
    )
    assert len(found) <= most
    assert all(two.margin > 0 and two.chosen.digest != two.rejected.digest for two in found)
    assert len({(two.chosen.digest, two.rejected.digest) for two in found}) == len(found)
    if rule == "length_matched":
        used = [member.key for two in found for member in two[:2]]
        assert len(used) == len(set(used))


def test_pairs_of_raw_prompts_are_texts(place: Place) -> None:
    asked = {"input": "Q: 1+1\nA:", "raw_prompt": True}
    place.write(of_task(1, 0.0, 1.0, responses_create_params=asked))
    _, said, [row] = pairs(place, "+format=trl_dpo")
    assert (row["prompt"], row["chosen"], row["rejected"]) == (
        "Q: 1+1\nA:",
        "answer 1",
        "answer 0",
    ), said
    _, said, [row] = pairs(place, "+format=trl_reward")
    assert row["chosen"] == "Q: 1+1\nA:answer 1", said
    _, said, rows = pairs(place, "+format=llamafactory_dpo")
    assert rows == [] and "its prompt is raw text" in said
    template = place.folder / "chat.yaml"
    template.write_text("user: How much is 1+1?")
    _, said, [row] = pairs(place, "+format=trl_dpo", f"+prompt={template}")
    assert row["prompt"] == [{"role": "user", "content": "How much is 1+1?"}], said
    assert row["chosen"][0]["role"] == "assistant"
