"""Groups that a run scores: each once, over its final members, whatever happens."""

import asyncio
import gc
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import pytest
from claims import assert_written
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import Desk, asked, blocks, read_jsonl, row

from rollout_kit.api.testing import OVERS, Over, ScriptedModel, making, run_virtual, text_response
from rollout_kit.collecting.live.snapshot import Snapshot
from rollout_kit.collecting.live.watcher import Watcher
from rollout_kit.errors import ModelError, OutputError, VerifyError
from rollout_kit.responses import output_text
from rollout_kit.serving.registry import load as load_server
from rollout_kit.serving.resources_server import ResourcesServer
from rollout_kit.store.groups.members import HeldMember
from rollout_kit.store.groups.scores import GroupFile
from rollout_kit.types import JsonObject, VerifyRequest, VerifyResponse


class Ranked(ResourcesServer):
    """Alone, an answer earns its length; in its group, the share of answers that are shorter."""

    calls: ClassVar[list[list[str | None]]] = []
    fails: ClassVar[Callable[[str], bool]] = staticmethod(lambda question: False)

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        return body.scored(float(len(output_text(body.response))), words=1)

    async def verify_group(self, task: JsonObject, members: Sequence[Any]) -> JsonObject:
        texts = [each and output_text(each["response"]) for each in members]
        self.calls.append(texts)
        question = asked(task["responses_create_params"])
        if type(self).fails(question):
            raise VerifyError(f"no scores for {question[:1]}", retryable=False)
        for each, text in zip(members, texts, strict=True):
            assert each is None or each["verdict"] == {"reward": float(len(text or "")), "words": 1}
        there = [text for text in texts if text is not None]
        shares = [
            None if text is None else sum(len(other) < len(text) for other in there) / len(there)
            for text in texts
        ]
        return {
            "members": [
                None if x is None else {"reward": x, "components": {"p": x}} for x in shares
            ],
            "group": {"longest": max(map(len, there)), "task": task["expected"]},
        }


class Numbered:
    """A model whose answers to a question differ in length; it fails those that `fails` names."""

    def __init__(self, fails: Callable[[str, int], bool] = lambda question, number: False) -> None:
        self.seen: Counter[str] = Counter()
        self._fails = fails

    def __call__(self, params: JsonObject) -> str:
        question, number = asked(params), params["seed"]
        self.seen[question] += 1
        if self._fails(question, number):
            raise ModelError("no", retryable=False, status=422)
        return f"{question} " + "x" * number


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    yield make_desk(tmp_path)


def make_desk(folder: Path, model: Any = None) -> Desk:
    desk = Desk(folder)
    Ranked.calls.clear()
    Ranked.fails = staticmethod(lambda question: False)
    desk.verifier, desk.model = making(Ranked), ScriptedModel(model or Numbered())
    return desk


def rows(number: int) -> list[JsonObject]:
    return [row(f"q{index}") for index in range(number)]


KEYS: JsonObject = {"num_repeats": 4, "num_repeats_add_seed": True, "max_attempts": 1}


def current(desk: Desk, file: str = "rollouts") -> dict[str, JsonObject]:
    """Question → the last line of its group."""
    names = {
        line["rollout"]["task_id"]: asked(line["responses_create_params"])
        for line in read_jsonl(desk.folder / f"{file}.jsonl")
    }
    return {
        names[line["task_id"]]: line for line in read_jsonl(desk.folder / f"{file}.d/groups.jsonl")
    }


def rewards(line: JsonObject) -> dict[int, float | None]:
    return {each["rollout_index"]: each["reward"] for each in line["members"]}


@pytest.mark.parametrize("over", OVERS)
def test_each_group_is_scored_once_over_every_transport(desk: Desk, over: Over) -> None:
    desk.collects_over = over
    assert asyncio.run(desk.collect(rows(3), **KEYS)) == 0
    groups = current(desk)
    assert len(desk.lines("groups")) == 3 and len(Ranked.calls) == 3
    assert [rewards(groups[f"q{n}"]) for n in range(3)] == [{0: 0, 1: 0.25, 2: 0.5, 3: 0.75}] * 3
    line = groups["q1"]
    assert line["kind"] == "group" and line["schema"] == 1 and line["scope"] == ""
    assert line["group"] == {"longest": 6, "task": "q1"}
    assert line["members"][3] == {
        "scope": "", "rollout_index": 3, "reward": 0.75, "components": {"p": 0.75}
    }  # fmt: skip
    assert line["verifier"] == desk.lines()[0]["rollout"]["verifier"] and line["digest"]
    metrics = desk.metrics()
    assert metrics["metrics"]["group_reward"] == 0.375 and metrics["metrics"]["reward"] == 4.5
    assert "group_reward" in metrics["intervals"]
    found = metrics["groups"]
    assert {name: found[name] for name in ("planned", "scored", "failed", "incomplete")} == {
        "planned": 3, "scored": 3, "failed": 0, "incomplete": 0
    }  # fmt: skip
    assert found["metrics"] == {"longest": 6.0}
    assert "Group reward 0.375 · 3 of 3 groups scored" in desk.out.getvalue()
    # and again: nothing is asked, nothing is written, the figures are the same
    before = (desk.folder / "rollouts.d/groups.jsonl").read_bytes()
    assert asyncio.run(desk.collect(**KEYS)) == 0 and len(Ranked.calls) == 3
    assert (desk.folder / "rollouts.d/groups.jsonl").read_bytes() == before
    assert desk.metrics()["groups"] == found
    assert desk.metrics()["metrics"]["group_reward"] == 0.375


def test_a_failed_group_is_named_and_the_same_command_scores_it(desk: Desk) -> None:
    Ranked.fails = staticmethod(lambda question: question in ("q2", "q7"))
    assert run_virtual(desk.collect(rows(20), **KEYS)) == 2
    assert len(desk.lines()) == 80 and len(current(desk)) == 18
    found = desk.metrics()["groups"]
    assert (found["scored"], found["failed"]) == (18, 2)
    assert {each["message"] for each in found["failures"]} == {"echo: no scores for q"}
    said = desk.out.getvalue()
    assert "18 of 20 groups scored · 2 failed" in said and "2 × echo: no scores for q" in said
    for each in found["failures"]:
        assert each["task_id"] in said
    assert run_virtual(desk.collect(max_failed_fraction=0.1, **KEYS)) == 0
    Ranked.fails = staticmethod(lambda question: False)
    calls = len(Ranked.calls)
    assert run_virtual(desk.collect(**KEYS)) == 0
    assert len(Ranked.calls) == calls + 2 and len(current(desk)) == 20
    assert desk.metrics()["groups"]["failures"] == []


def test_the_last_snapshot_has_what_came_of_the_groups(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Snapshot] = []
    end = Watcher.end
    monkeypatch.setattr(Watcher, "end", lambda self: seen.append(end(self)) or seen[-1])
    asyncio.run(desk.collect(rows(3), **KEYS))
    [shown] = seen
    counts, found = shown.group_counts, desk.metrics()["groups"]
    assert counts and asdict(counts) == {name: found[name] for name in asdict(counts)}
    assert (counts.planned, counts.scored) == (3, 3)


@pytest.mark.parametrize("fails", [False, True])
def test_only_open_groups_are_held(tmp_path: Path, fails: bool) -> None:
    desk, seen = make_desk(tmp_path), list[int]()

    def count_held(question: str) -> bool:
        if question in ("q10", "q90"):
            gc.collect()  # garbage of this run and of earlier tests is not held
            seen.append(sum(type(each) is HeldMember for each in gc.get_objects()))
        return fails

    Ranked.fails = staticmethod(count_held)
    desk.model = ScriptedModel(Numbered(), delay_s=1)
    run_virtual(desk.collect(rows(100), **KEYS, num_samples_in_parallel=16))
    assert len(Ranked.calls) == 100
    assert len(seen) == 2 and max(seen) <= 2 * 16, seen


def fail_one(question: str, number: int) -> bool:
    return question == "q1" and number == 2


@pytest.mark.parametrize(
    ("policy", "scored", "tally"),
    [
        ({}, None, "2 of 3 groups scored · 1 incomplete"),
        ({"incomplete_groups": "drop"}, None, "2 of 3 groups scored · 1 dropped"),
        ({"incomplete_groups": "partial"}, {0: 0, 1: 1 / 3, 3: 2 / 3}, "3 of 3 groups scored"),
        ({"incomplete_groups": "partial", "min_members": 4}, None, "1 incomplete"),
    ],
)
def test_what_becomes_of_an_incomplete_group(
    tmp_path: Path, policy: JsonObject, scored: JsonObject | None, tally: str
) -> None:
    desk = make_desk(tmp_path, Numbered(fail_one))
    assert run_virtual(desk.collect(rows(3), **KEYS, **policy)) == 2
    assert tally in desk.out.getvalue()
    assert current(desk).get("q1", {}).get("members") == (
        None if scored is None else current(desk)["q1"]["members"]
    )
    if scored is not None:
        assert rewards(current(desk)["q1"]) == scored
        assert ["q1 ", "q1 x", None, "q1 xxx"] in Ranked.calls, "the slot of a failure is empty"
    # the failure is permanent; asked for by name, the rollout comes, and the group is scored anew
    desk.model = ScriptedModel(Numbered())
    task = next(line for line in desk.lines() if asked(line["responses_create_params"]) == "q1")
    only = f"{task['rollout']['task_id']}:2"
    calls = len(Ranked.calls)
    assert run_virtual(desk.collect(only=only, **KEYS)) == 0 and len(Ranked.calls) == calls
    assert run_virtual(desk.collect(**KEYS, **policy)) == 0
    assert len(Ranked.calls) == calls + 1 and desk.metrics()["groups"]["scored"] == 3
    assert rewards(current(desk)["q1"]) == {0: 0, 1: 0.25, 2: 0.5, 3: 0.75}


def test_a_score_that_cannot_be_read_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(question: str, number: int) -> bool:
        if fail_one(question, number):
            raise ModelError("busy", status=500)
        return False

    desk, policy = make_desk(tmp_path, Numbered(fail)), {"incomplete_groups": "partial"}
    assert run_virtual(desk.collect([row("q1")], **KEYS, **policy)) == 2

    def lose(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(GroupFile, "read", lose)
    desk.model = ScriptedModel(Numbered(fail), delay_s=1)  # the group is settled by its failure
    with pytest.raises(OutputError, match="groups cannot be followed: OSError: the disk is gone"):
        run_virtual(desk.collect(**KEYS, **policy))


def test_more_repeats_make_the_scores_stale(desk: Desk) -> None:
    run_virtual(desk.collect(rows(5), **KEYS))
    first = current(desk)
    assert run_virtual(desk.collect(**{**KEYS, "num_repeats": 6})) == 0
    assert len(desk.lines("groups")) == 10 and len(desk.lines()) == 30
    for question, line in current(desk).items():
        assert len(line["members"]) == 6 and line["digest"] != first[question]["digest"]
    assert desk.metrics()["metrics"]["group_reward"] == pytest.approx(15 / 36)
    # fewer repeats: the group is what is on disk
    assert run_virtual(desk.collect(**KEYS)) == 0 and len(desk.lines("groups")) == 10


def test_a_member_that_changes_makes_the_score_stale(desk: Desk) -> None:
    run_virtual(desk.collect(rows(3), **KEYS))
    path = desk.folder / "rollouts.jsonl"
    lines = read_jsonl(path)
    for line in lines:
        if asked(line["responses_create_params"]) == "q1" and line["_ng_rollout_index"] == 0:
            line["response"]["output"] = text_response("a much longer answer")["output"]
            line["reward"] = float(len("a much longer answer"))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run_virtual(desk.collect(**KEYS)) == 0 and len(Ranked.calls) == 4
    assert rewards(current(desk)["q1"]) == {0: 0.75, 1: 0, 2: 0.25, 3: 0.5}
    # white space and the order of keys are no change
    path.write_text("".join(json.dumps(line, indent=None) + " \n" for line in lines))
    assert run_virtual(desk.collect(**KEYS)) == 0 and len(Ranked.calls) == 4


def test_identical_rows_are_one_group(desk: Desk) -> None:
    again = [row("q0"), row("q1"), row("q0")]
    assert run_virtual(desk.collect(again, **KEYS, num_samples_in_parallel=1)) == 0
    assert len(desk.lines()) == 12 and len(current(desk)["q0"]["members"]) == 8
    assert len(current(desk)["q1"]["members"]) == 4
    assert desk.metrics()["groups"]["scored"] == desk.metrics()["groups"]["planned"] == 2
    calls = len(Ranked.calls)
    assert run_virtual(desk.collect(**KEYS)) == 0 and len(Ranked.calls) == calls


def test_a_further_row_of_a_finished_task_is_scored_with_the_others(desk: Desk) -> None:
    """It comes after the rollouts of the earlier run were read, and the group was settled."""
    assert run_virtual(desk.collect(rows(1), **KEYS)) == 0
    again = [*rows(6), row("q0")]
    desk.model = ScriptedModel(Numbered(), delay_s=1)
    assert run_virtual(desk.collect(again, **KEYS, num_samples_in_parallel=1)) == 0
    assert len(desk.lines()) == 28 and len(current(desk)["q0"]["members"]) == 8
    assert desk.metrics()["groups"]["scored"] == desk.metrics()["groups"]["planned"] == 6


def test_groups_are_scored_again_without_generating(desk: Desk) -> None:
    class Reversed(Ranked):
        async def verify_group(self, task: JsonObject, members: Sequence[Any]) -> JsonObject:
            found = await super().verify_group(task, members)
            for each in found["members"]:
                each["reward"] = -each["reward"]
            return found

    run_virtual(desk.collect(rows(4), **KEYS))
    desk.verifier = making(Reversed, fast_mode=True)  # other settings: another verifier
    desk.model = None
    assert run_virtual(desk.reverify()) == 0
    old, new = current(desk), current(desk, "new")
    assert old.keys() == new.keys() and len(desk.new("groups")) == 4
    for question, line in new.items():
        assert rewards(line) == {key: -(x or 0) for key, x in rewards(old[question]).items()}
        assert line["verifier"] != old[question]["verifier"]
        assert line["digest"] == old[question]["digest"], "the members are the same"
    assert desk.new_metrics()["metrics"]["group_reward"] == -0.375
    calls = len(Ranked.calls)
    assert run_virtual(desk.reverify()) == 0 and len(Ranked.calls) == calls
    desk.verifier = making(Ranked)  # and back, in the same output
    assert run_virtual(desk.reverify()) == 0 and len(Ranked.calls) == calls + 4
    assert rewards(current(desk, "new")["q0"]) == {0: 0, 1: 0.25, 2: 0.5, 3: 0.75}


def test_older_scores_are_counted_and_kept(desk: Desk) -> None:
    run_virtual(desk.collect(rows(2), **KEYS))
    desk.verifier = making(Ranked, fast_mode=True)
    assert run_virtual(desk.collect(**KEYS)) == 0 and len(Ranked.calls) == 2
    assert "2 with the score of an older verifier" in desk.out.getvalue()


def test_scoring_does_not_hold_up_generation(desk: Desk) -> None:
    """All rollouts are made while the first group is still being scored."""

    class Slow(Ranked):
        in_flight = most = 0

        async def verify_group(self, task: JsonObject, members: Sequence[Any]) -> JsonObject:
            Slow.in_flight += 1
            Slow.most = max(Slow.most, Slow.in_flight)
            await asyncio.sleep(500)
            Slow.in_flight -= 1
            return await super().verify_group(task, members)

    ends: list[float] = []

    class Clocked(Numbered):
        def __call__(self, params: JsonObject) -> str:
            ends.append(asyncio.get_running_loop().time())
            return super().__call__(params)

    desk.verifier, desk.model = making(Slow), ScriptedModel(Clocked(), delay_s=1)
    keys = {**KEYS, "num_groups_in_parallel": 3, "num_samples_in_parallel": 8}
    assert run_virtual(desk.collect(rows(10), **keys)) == 0
    assert max(ends) < 20 and len(current(desk)) == 10 and Slow.most == 3


def test_a_group_that_takes_too_long_has_no_score(desk: Desk) -> None:
    class Endless(Ranked):
        async def verify_group(self, task: JsonObject, members: Sequence[Any]) -> JsonObject:
            await asyncio.sleep(1e6)
            return {}

    desk.verifier = making(Endless)
    assert run_virtual(desk.collect(rows(2), **KEYS, verify_group_timeout_s=7)) == 2
    assert "2 × echo: no scores within verify_group_timeout_s=7" in desk.out.getvalue()


class Stuck(Numbered):
    """The last repeat of q0 takes a long time."""

    async def wait(self, params: JsonObject) -> None:
        late = asked(params) == "q0" and params["seed"] == 3
        await asyncio.sleep(1000 if late else 1)


class PatientModel(ScriptedModel):
    async def responses(self, params: JsonObject) -> JsonObject:
        await Stuck().wait(params)
        return await super().responses(params)


def test_after_the_deadline_a_group_is_scored_as_it_is_and_again_when_it_is_whole(
    desk: Desk,
) -> None:
    desk.model = PatientModel(Numbered())
    keys = {**KEYS, "incomplete_groups": "partial", "group_deadline_s": 60}
    assert run_virtual(desk.collect(rows(2), **keys)) == 0
    first, last = (line for line in desk.lines("groups") if line["task_id"] == task_id(desk, "q0"))
    assert len(first["members"]) == 3 and len(last["members"]) == 4
    assert len(Ranked.calls) == 3 and desk.metrics()["groups"]["scored"] == 2
    assert desk.metrics()["metrics"]["group_reward"] == 0.375
    assert [texts for texts in Ranked.calls if None in texts] == [["q0 ", "q0 x", "q0 xx", None]]


def test_after_the_deadline_a_group_may_be_dropped(desk: Desk) -> None:
    desk.model = PatientModel(Numbered())
    keys = {**KEYS, "incomplete_groups": "drop", "group_deadline_s": 60}
    assert run_virtual(desk.collect(rows(2), **keys)) == 0
    assert len(desk.lines()) == 8 and list(current(desk)) == ["q1"]
    assert "1 of 2 groups scored · 1 dropped" in desk.out.getvalue()


def task_id(desk: Desk, question: str) -> str:
    return next(
        line["rollout"]["task_id"]
        for line in desk.lines()
        if asked(line["responses_create_params"]) == question
    )


def test_without_group_scores_there_is_no_file_and_no_figure(desk: Desk, tmp_path: Path) -> None:
    class Alone(ResourcesServer):
        async def verify(self, body: VerifyRequest) -> VerifyResponse:
            return body.scored(1.0)

    desk.verifier = making(Alone)
    assert run_virtual(desk.collect(rows(2), **KEYS)) == 0
    assert not (tmp_path / "rollouts.d/groups.jsonl").exists()
    assert "groups" not in desk.metrics() and "groups scored" not in desk.out.getvalue()
    (tmp_path / "skip").mkdir()
    desk = make_desk(tmp_path / "skip")
    assert run_virtual(desk.collect(rows(2), **KEYS, skip_verification=True)) == 0
    assert not Ranked.calls


def test_a_new_start_moves_the_scores_aside_with_the_rest(desk: Desk) -> None:
    run_virtual(desk.collect(rows(2), **KEYS))
    run_virtual(desk.collect(**KEYS, resume="fresh"))
    assert len(list(desk.folder.glob("rollouts.*.d/groups.jsonl"))) == 1
    assert len(desk.lines("groups")) == 2


def test_the_server_of_the_guide_scores_groups(desk: Desk) -> None:
    text = (Path(__file__).parents[2] / "docs/groups.md").read_text()
    [source] = [each.text for each in blocks(text) if each.language == "python"]
    folder = desk.folder / "resources_servers/majority"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(source)
    desk.verifier = making(load_server("resources_servers", "majority", desk.folder))
    desk.model = ScriptedModel(lambda params: "ab"[params["seed"] > 2])
    assert run_virtual(desk.collect(rows(2), **KEYS)) == 0
    for line in desk.lines("groups"):
        assert rewards(line) == {0: 1, 1: 1, 2: 1, 3: 0} and line["group"] == {"agreement": 0.75}
        assert_written("docs/groups.md", '{"kind": "group"', line)


ARMS = [
    {"id": "plain", "seed": 0, "tags": {"probe": "A"}},
    {"id": "warm", "seed": 5, "temperature": 1.5},
]


@pytest.mark.parametrize("over", OVERS)
def test_a_group_holds_all_repeats_of_all_arms(desk: Desk, over: Over) -> None:
    class Tagged(Ranked):
        seen: ClassVar[list[list[tuple[str, JsonObject, float]]]] = []

        async def verify_group(self, task: JsonObject, members: Sequence[Any]) -> JsonObject:
            whole = task["responses_create_params"]
            params = [each.get("responses_create_params", whole) for each in members]
            warmth = [each.get("temperature", 1.0) for each in params]
            arms = [(each["arm"], each["tags"]) for each in members]
            self.seen.append([(*arm, x) for arm, x in zip(arms, warmth, strict=True)])
            return await super().verify_group(task, members)

    desk.collects_over, desk.verifier = over, making(Tagged)
    keys = {"num_repeats": 2, "max_attempts": 1}
    assert asyncio.run(desk.collect(rows(3), arms=ARMS, **keys)) == 0
    assert len(desk.lines()) == 12 and len(desk.lines("groups")) == 3
    plain, warm = ("plain", {"probe": "A"}, 1.0), ("warm", {}, 1.5)
    assert Tagged.seen == [[plain, plain, warm, warm]] * 3
    members = desk.lines("groups")[0]["members"]
    slots = [(each["scope"], each["rollout_index"]) for each in members]
    assert slots == [("arm=plain", 0), ("arm=plain", 1), ("arm=warm", 0), ("arm=warm", 1)]
    assert [each["reward"] for each in members] == [0, 0.25, 0.5, 0.75]
    assert desk.metrics()["arms"]["warm"]["metrics"]["group_reward"] == 0.625
    assert desk.metrics()["metrics"]["group_reward"] == 0.375
    # one more arm: every group is scored again, over all members
    more = [*ARMS, {"id": "hot", "seed": 9, "temperature": 2}]
    assert asyncio.run(desk.collect(arms=more, **keys)) == 0
    assert [len(line["members"]) for line in desk.lines("groups")[3:]] == [6] * 3
    assert asyncio.run(desk.collect(arms=more, **keys)) == 0 and len(desk.lines("groups")) == 6
    assert asyncio.run(desk.reverify()) == 0
    scored = [[rewards_of(line) for line in lines] for lines in (
        desk.lines("groups")[3:], desk.new("groups")
    )]  # fmt: skip
    assert sorted(scored[0]) == sorted(scored[1])


def rewards_of(line: JsonObject) -> list[tuple[str, int, float]]:
    return [(each["scope"], each["rollout_index"], each["reward"]) for each in line["members"]]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.integers(1, 12), st.booleans())
def test_scores_do_not_depend_on_order_restarts_or_retries(
    tmp_path_factory: pytest.TempPathFactory, seed: int, parallel: int, tears: bool
) -> None:
    """Answers come in any order, some fail at first, the run ends anywhere and files are cut off:
    the scores are those of an undisturbed run."""
    rng = random.Random(seed)
    plain = make_desk(tmp_path_factory.mktemp("plain"))
    run_virtual(plain.collect(rows(4), **KEYS))
    expected = {question: rewards(line) for question, line in current(plain).items()}

    class Shuffled(ScriptedModel):
        async def responses(self, params: JsonObject) -> JsonObject:
            await asyncio.sleep(rng.random())
            return await super().responses(params)

    def fail_at_times(params: JsonObject) -> str:
        if rng.random() < 0.2:
            raise ModelError("busy", status=500)
        return Numbered()(params)

    desk = make_desk(tmp_path_factory.mktemp("shuffled"))
    desk.model = Shuffled(fail_at_times)
    Ranked.fails = staticmethod(lambda question: rng.random() < 0.2)
    keys = {**KEYS, "num_samples_in_parallel": parallel, "stop_early": False}
    for _ in range(3):
        run_virtual(desk.collect(rows(4), **keys))
        for name in ("rollouts.jsonl", "rollouts.d/groups.jsonl"):
            path = desk.folder / name
            if tears and path.exists() and (size := path.stat().st_size):
                with path.open("r+b") as stream:
                    stream.truncate(size - rng.randrange(min(size, 3000)))
    desk.model = ScriptedModel(Numbered())
    Ranked.fails = staticmethod(lambda question: False)
    assert run_virtual(desk.collect(rows(4), **keys)) == 0
    assert {question: rewards(line) for question, line in current(desk).items()} == expected
    calls = len(Ranked.calls)
    assert run_virtual(desk.collect(**keys)) == 0 and len(Ranked.calls) == calls
