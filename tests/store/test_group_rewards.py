"""Rollouts that are read back have the current score of their group; trainers get it."""

import json
from pathlib import Path
from typing import Any

import pytest
from command import as_function
from exported import Place, line
from support import asked, read_jsonl
from test_groups import KEYS, Ranked, make_desk, rows

from rollout_kit import load
from rollout_kit.api.testing import run_virtual
from rollout_kit.serving.group_verdicts import GroupMemberScore
from rollout_kit.store.groups.members import group_digest, hold
from rollout_kit.store.groups.scores import build_group_line, read_scored
from rollout_kit.store.kinds import key_of
from rollout_kit.store.scope import Group

export_main = as_function("ng_export")
pairs_main = as_function("ng_pairs")


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(tmp_path, capsys)


def write_scored(place: Place, lines: list[Any], scores: dict[tuple[int, int], Any]) -> Path:
    """A file of rollouts, and the scores of its groups by task and index."""
    path, groups = place.write(lines), []
    for task in sorted({task for task, _ in scores}):
        own = [each for each in lines if each["_ng_task_index"] == task]
        keys = {key_of(each): each for each in own}
        total = sum(hold(key, each).digest for key, each in keys.items() if key)
        members = [
            (key, GroupMemberScore(scores[task, key.rollout_index], {"a": 1.0}))
            for key in keys
            if key
        ]
        group = Group(f"{task:016x}", "solver", "")
        figures = {"s_end": task / 2}
        groups.append(build_group_line(group, task, group_digest(total), "v", members, figures))
    place.write(groups, "rollouts.d/groups.jsonl")
    return path


LINES = [
    line(1, 0, "one", 1.0),
    line(1, 1, "two words", 1.0),
    line(1, 2, "three words here", 0.0),
    line(2, 0, "alone", 1.0),
    line(2, 1, "and more", 0.0),
]
SCORES = {(1, 0): 0.5, (1, 1): 1.5, (1, 2): None}


def test_a_run_s_rollouts_have_their_group_s_rewards(tmp_path: Path) -> None:
    desk = make_desk(tmp_path)
    run_virtual(desk.collect(rows(3), **KEYS))
    path = tmp_path / "rollouts.jsonl"
    found = {(r.key.task_id, r.key.rollout_index): r for r in load(path)}
    assert len(found) == 12
    for (_, index), rollout in found.items():
        assert rollout.group_reward == index / 4 and rollout.reward == 3 + index
        assert rollout.group and rollout.group.components == {"p": index / 4}
        assert rollout.group.figures["longest"] == 6
    # a member that changes, comes or goes: the score of its group does not count any more
    lines = read_jsonl(path)
    first = lines[0]["rollout"]["task_id"]
    for changed in (
        [{**lines[0], "reward": 9.0}, *lines[1:]],
        lines[1:],
        [*lines, {**lines[0], "rollout": {**lines[0]["rollout"], "rollout_index": 7}}],
    ):
        path.write_text("".join(json.dumps(each) + "\n" for each in changed))
        for rollout in load(path):
            assert (rollout.group is None) == (rollout.key.task_id == first)
    Ranked.calls.clear()
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    assert all(rollout.group for rollout in load(path))


def test_a_server_s_later_score_replaces_the_earlier_one(place: Place) -> None:
    path = write_scored(place, LINES, SCORES)
    groups = place.folder / "rollouts.d/groups.jsonl"
    [old] = read_jsonl(groups)
    new = {**old, "members": [{**each, "reward": 7.0} for each in old["members"]]}
    stale = {**new, "digest": "0" * 32}
    for order, expected in (([old, new], 7.0), ([new, old], 0.5), ([new, stale], None)):
        groups.write_text("".join(json.dumps(each) + "\n" for each in [*order, "torn"][:2]))
        assert next(iter(load(path))).group_reward == expected
    groups.write_text('{"kind": "group", "members": [1]}\nnot json\n')
    assert next(iter(load(path))).group is None


def test_trainers_get_the_group_s_reward_where_there_is_one(place: Place) -> None:
    path = write_scored(place, LINES, SCORES)

    def export(*argv: str) -> list[Any]:
        out = place.folder / "out.jsonl"
        words = (path, "+format=trl_sft", f"+output_fpath={out}", *argv)
        status, said = place.run(export_main, *words)
        assert status == 0, said
        return [
            (row["task_id"][-1], row["rollout_index"], row["reward"]) for row in read_jsonl(out)
        ]

    alone = [("2", 0, 1.0), ("2", 1, 0.0)]
    assert export() == [("1", 0, 0.5), ("1", 1, 1.5), ("1", 2, None), *alone]
    own = [("1", 0, 1.0), ("1", 1, 1.0), ("1", 2, 0.0), *alone]
    assert export("+reward_key=reward") == own
    assert export("+reward_key=group_reward", "+min_reward=0") == [("1", 0, 0.5), ("1", 1, 1.5)]
    assert export("+where=group_reward > 0.7 and reward == 1") == [("1", 1, 1.5)]
    assert export("+top_k_per_group=1") == [("1", 1, 1.5), ("2", 0, 1.0)]


def test_pairs_are_ranked_by_the_group_and_right_or_wrong_by_the_verdict(place: Place) -> None:
    scores = {(1, 0): 0.5, (1, 1): 1.5, (1, 2): 0.9}
    path = write_scored(place, LINES[:3], scores)
    out = place.folder / "pairs.jsonl"

    def pairs(rule: str) -> list[tuple[int, int, float]]:
        status, said = place.run(pairs_main, path, f"+output_fpath={out}", f"+rules=[{rule}]")
        assert status == 0, said
        return [(r["chosen_index"], r["rejected_index"], r["margin"]) for r in read_jsonl(out)]

    assert pairs("best_worst") == [(1, 0, 1.0)]
    assert pairs("coherence") == [(1, 0, 1.0)]
    right_and_wrong = [(chosen, rejected) for chosen, rejected, _ in pairs("correctness")]
    assert right_and_wrong == [(0, 2), (1, 2)]


def test_pairs_need_no_verdict_of_the_rollout_alone(place: Place) -> None:
    lines = [line(1, index, f"answer {index}", None) for index in range(3)]
    path = write_scored(place, lines, {(1, 0): 0.0, (1, 1): 1.0, (1, 2): 0.5})
    out = place.folder / "pairs.jsonl"
    status, _ = place.run(pairs_main, path, f"+output_fpath={out}")
    [pair] = read_jsonl(out)
    assert status == 0 and (pair["chosen_index"], pair["rejected_index"]) == (1, 0)


def test_the_grouped_view_keeps_both_rewards_there_and_back(place: Place) -> None:
    path = write_scored(place, LINES, SCORES)
    view = place.folder / "view.jsonl"
    place.run(export_main, path, "+format=grouped", f"+output_fpath={view}")
    first, second = read_jsonl(view)
    assert [each["reward"] for each in first["trajectories"]] == [0.5, 1.5, None]
    assert [each["correct"] for each in first["trajectories"]] == [True, True, False]
    assert first["trajectories"][0]["components"] == {"a": 1.0}
    assert first["group_metrics"] == {"s_end": 0.5}
    assert "individual_reward" not in second["trajectories"][0]
    again = place.folder / "again.jsonl"
    place.run(export_main, view, "+format=grouped", f"+output_fpath={again}")
    assert read_jsonl(again) == read_jsonl(view)


def test_tables_have_a_column_for_it(place: Place) -> None:
    pd = pytest.importorskip("pandas")
    frame = load(write_scored(place, LINES, SCORES)).to_pandas()
    assert list(frame["group_reward"][:2]) == [0.5, 1.5] and pd.isna(frame["group_reward"][3])


def test_the_digest_is_of_what_the_verifier_sees() -> None:
    """Other times or settings change nothing; the response, the verdict and the slot do."""
    base = line(1, 0, "one", 1.0)
    key = key_of(base)
    assert key is not None
    digest = hold(key, base).digest
    times = {**base, "rollout": {**base["rollout"], "duration_s": 3.0, "attempt": 2}}
    assert hold(key, times).digest == digest and asked(base["responses_create_params"])
    for other in (
        {**base, "reward": 0.5},
        {**base, "extracted_answer": "2"},
        {**base, "response": line(1, 0, "two", 1.0)["response"]},
        {**base, "rollout": {**base["rollout"], "arm": {"id": "x"}}},
    ):
        assert hold(key, other).digest != digest
    assert hold(key._replace(rollout_index=1), base).digest != digest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"reward": 0.5', '"reward": "0.5"'),
        ('"reward": 0.5', '"reward": NaN'),
        ('"components": {"a": 1.0}', '"components": [1]'),
        ('"group": {"s_end": 0.5}', '"group": [1]'),
    ],
)
def test_an_edited_score_that_is_not_sound_does_not_count(place: Place, old: str, new: str) -> None:
    path = write_scored(place, LINES, SCORES)
    groups = place.folder / "rollouts.d/groups.jsonl"
    text = json.dumps(read_jsonl(groups)[0])
    assert old in text
    groups.write_text(text.replace(old, new) + "\n")
    assert [each.group_reward for each in load(path)] == [None] * 5
    assert not dict(read_scored(groups)), "a run scores it again"
