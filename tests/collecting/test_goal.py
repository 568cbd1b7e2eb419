"""A run that ends once it has enough repeats, also after a kill."""

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from claims import assert_prints
from command import as_function
from endpoint import Endpoint, endpoint, says
from workplace import ROOT

import rollout_kit as rk
from rollout_kit.collecting.goal import GoalSource, choose_source
from rollout_kit.collecting.sources import TaskSource
from rollout_kit.config.keys import CollectConfig
from rollout_kit.errors import ConfigError
from rollout_kit.types import Task

MODELS = "responses_api_models/openai_model/configs/openai_model.yaml"
AGENT = "string_match_simple_agent"


def rows(folder: Path, kinds: Sequence[str]) -> Path:
    """Tasks that are always solved, never, or by every second seed."""
    path = folder / "rows.jsonl"
    lines = [
        {
            "responses_create_params": {"input": [{"role": "user", "content": f"{kind} {n}"}]},
            "expected_answer": "yes",
            "extraction_mode": "final_answer",
        }
        for n, kind in enumerate(kinds)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def answer(body: dict[str, Any]) -> str:
    kind, number = body["input"][0]["content"].split()
    right = {"solved": True, "never": False, "mixed": (body["seed"] + int(number)) % 2 == 0}[kind]
    return f"Answer: {'yes' if right else 'no'}"


def words(folder: Path, url: str, *more: str) -> list[str]:
    return [
        f"+config_paths=[{MODELS},resources_servers/string_match/configs/string_match.yaml]",
        f"+agent_name={AGENT}",
        f"+input_jsonl_fpath={folder / 'rows.jsonl'}",
        f"+output_jsonl_fpath={folder / 'rollouts.jsonl'}",
        f"+policy_base_url={url}",
        "+policy_api_key=none",
        "+policy_model_name=m",
        "+num_repeats_add_seed=true",
        *more,
    ]


def collect(folder: Path, there: Endpoint, *more: str) -> int:
    with pytest.raises(SystemExit) as ended:
        as_function("ng_collect_rollouts")(words(folder, there.url, *more))
    return int(ended.value.code or 0)


def made(folder: Path) -> dict[str, list[int]]:
    """Kind of the task → how many rollouts each of its tasks has."""
    each: Counter[str] = Counter()
    for line in (folder / "rollouts.jsonl").read_text().splitlines():
        each[json.loads(line)["responses_create_params"]["input"][0]["content"]] += 1
    found: dict[str, list[int]] = {}
    for text, number in each.items():
        found.setdefault(text.split()[0], []).append(number)
    return found


def goal_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "rollouts_aggregate_metrics.json").read_text())["goal"]


KINDS = ["solved", "mixed", "never"] * 10
DECIDED = {"solved": [4] * 10, "never": [4] * 10, "mixed": [8] * 10}


def test_a_decided_task_gets_no_more_rollouts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows(tmp_path, KINDS)
    keys = ["+num_repeats=8", "+goal.decided=true"]
    with endpoint(says(answer)) as there:
        assert collect(tmp_path, there, *keys) == 0
        assert made(tmp_path) == DECIDED
        said = capsys.readouterr().out
        assert "Plan: 30 tasks × 8 repeats = 240 rollouts · 0 done" in said
        assert "Reward 0.500 ± " in said
        assert "over these 30 tasks · 80 rollouts not needed" in said
        assert "Still to come" not in said
        assert "part of the plan" not in said
        goal = goal_of(tmp_path)
        assert goal["mean"] == pytest.approx(0.5)
        assert (goal["rollouts_decided"], goal["tasks_differing"]) == (80, 10)

        asked = len(there.requests)
        assert collect(tmp_path, there, *keys) == 0
        said = capsys.readouterr().out
        assert "160 done · 0 to verify only · 0 to collect · 80 decided" in said
        assert_prints("docs/repeats.md", "Plan: 200 tasks", said)
        assert len(there.requests) == asked

        assert collect(tmp_path, there, "+num_repeats=8") == 0, "without a goal all are wanted"
        assert made(tmp_path) == {kind: [8] * 10 for kind in DECIDED}


@pytest.mark.parametrize("killed_after", [1, 60, 125, 150])
def test_a_killed_run_goes_on_to_the_same_rollouts(tmp_path: Path, killed_after: int) -> None:
    rows(tmp_path, KINDS)
    keys = ["+num_repeats=8", "+goal.decided=true", "+num_samples_in_parallel=8"]
    with endpoint(says(answer)) as there:
        there.num_answered = killed_after
        command = [str(Path(sys.executable).with_name("ng_collect_rollouts"))]
        argv = [*command, *words(tmp_path, there.url, *keys)]
        with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            until(lambda: len(there.requests) > killed_after, process)
            process.send_signal(signal.SIGKILL)
        there.num_answered = 10**9
        assert collect(tmp_path, there, *keys) == 0
    assert made(tmp_path) == DECIDED


def until(holds: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    while not holds():
        assert process.poll() is None, "the command ended"


def test_a_run_ends_once_its_interval_is_narrow_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows(tmp_path, ["mixed"] * 40)
    keys = ["+num_repeats=20", "+goal.ci=0.06", "+goal.first=2"]
    with endpoint(says(answer)) as there:
        assert collect(tmp_path, there, *keys) == 0
        [number] = {*made(tmp_path)["mixed"]}
        assert number in (7, 12, 17), "a wave's end, and not the last"
        goal = goal_of(tmp_path)
        assert goal["reached"]
        assert goal["half_width"] <= 0.06
        assert goal["rollouts_decided"] == 40 * (20 - number)
        assert "goal ± 0.06 reached" in capsys.readouterr().out

        assert collect(tmp_path, there, *keys) == 0
        said = capsys.readouterr().out
        assert f"0 to collect · {40 * (20 - number)} decided" in said

        narrower = ["+num_repeats=20", "+goal.ci=0.0001"]
        assert collect(tmp_path, there, *narrower) == 0
        assert "goal ± 0.0001 not reached · 0 rollouts not needed" in capsys.readouterr().out
        assert made(tmp_path) == {"mixed": [20] * 40}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["+goal.first=3"], "say when the run has enough"),
        (["+goal.decided=true", "+buffer=memory"], "it goes through a file of rows in waves"),
        (["+goal.decided=true", "+epochs=2"], "it goes through a file of rows in waves"),
        (["+goal.ci=0.1", "+shard=1/2"], "a shard does not see"),
        (["+goal.ci=0.1", "+skip_verification=true"], "rewards decide"),
        (["+goal.ci=0"], "goal.ci"),
    ],
)
def test_what_does_not_go_with_a_goal_is_refused(
    tmp_path: Path, more: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    rows(tmp_path, ["solved"])
    with endpoint(says(answer)) as there:
        assert collect(tmp_path, there, *more) != 0
        assert not there.requests
    assert message in capfd.readouterr().err


def test_rows_of_a_program_are_refused_and_a_path_is_taken(tmp_path: Path) -> None:
    path = rows(tmp_path, ["solved"] * 3)
    keys: Any = {"num_repeats": 8, "goal": {"decided": True}, "output": tmp_path / "rollouts.jsonl"}
    keys |= {"model": lambda params: "Answer: yes", "environment": "string_match"}
    with pytest.raises(ConfigError, match="give a path as input"):
        list(rk.collect_sync([json.loads(path.read_text().splitlines()[0])], **keys))
    assert len(list(rk.collect_sync(path, **keys))) == 12


def test_what_ends_while_others_are_handed_out_is_seen() -> None:
    """Else a run would wait for ever, once nothing else is running."""
    late, ready = (Task(name, 0, 0, AGENT, {}) for name in ("late", "ready"))

    class Told(GoalSource):
        reader: Any = SimpleNamespace(read=lambda: [late, ready])

        def __init__(self) -> None:
            self._moved, self.running = asyncio.Event(), {"late", "ready"}

        def _name_malformed(self, tasks: Any) -> Any:
            return iter(tasks)

        def _is_open(self, task: Task) -> bool:
            return task.task_id in self.running

        def _hand_out_owed(self, task: Task, before: int, upto: int) -> Any:
            yield task.task_id

        def end(self, name: str) -> None:
            self.running.discard(name)
            self._moved.set()

    source = Told()
    wave: Any = source._wave(2, 4)
    waits = next(wave)
    assert waits.ready is source._moved and not waits.ready.is_set()
    source.end("ready")
    assert next(wave) == "ready"
    source.end("late")
    again = next(wave)
    assert again.ready.is_set(), "it is asked again at once"
    assert list(wave) == ["late"]


def test_group_scores_need_all_rollouts() -> None:
    plans: Any = {"judged": SimpleNamespace(verifies_groups=True)}
    with pytest.raises(ConfigError, match="judged scores all rollouts of a task together"):
        choose_source(CollectConfig(goal={"decided": True}), plans, TaskSource)
