"""Programs that harm what they can, in one run with others: these are as if they were alone."""

from pathlib import Path
from typing import Any

import pytest
from endpoint import endpoint
from harness_programs import LOOP, SMALL_HARNESS
from hostile_programs import HOSTILE, QUICK
from support import NO_NAMESPACES, may_isolate, read_jsonl
from test_harness_runs import NUM_COMMANDS, give_commands, leaving_nothing, run, write_run

from rollout_kit.trajectory import GENERATION

pytestmark = pytest.mark.skipif(not may_isolate(), reason=NO_NAMESPACES)

MOST_CALLS = 400

KEYS: dict[str, Any] = {"rollout_limits": {"calls": MOST_CALLS}}


@pytest.mark.parametrize("names", [QUICK, pytest.param(tuple(HOSTILE), marks=pytest.mark.slow)])
def test_hostile_programs_harm_no_other_rollout(names: tuple[str, ...], tmp_path: Path) -> None:
    """Every second rollout is of a hostile program."""
    hostile = [f"{LOOP}\n{HOSTILE[name]}" for name in names]
    mixed = (
        "import os\n"
        f"hostile = {hostile!r}\n"
        "number = int(os.environ['TASK'].rstrip('.').split()[-1])\n"
        f"exec({SMALL_HARNESS!r} if number % 2 else hostile[number // 2])\n"
    )
    with leaving_nothing(tmp_path) as port, endpoint(give_commands) as point:
        keys = {**KEYS, "gateway_port": port}
        told = run(write_run(tmp_path, point.url, mixed, 2 * len(names), **keys), 1200)
    lines = {line["_ng_task_index"]: line for line in read_jsonl(tmp_path / "rollouts.jsonl")}
    assert sorted(lines) == [*range(2 * len(names))], told
    for number, line in lines.items():
        name = "plain" if number % 2 else names[number // 2]
        assert line["reward"] == 1.0, (name, line["rollout"], told)
        assert not any(GENERATION in item for item in line["response"]["output"]), name
        assert len(str(line["rollout"])) < 100_000, name
    for number in range(1, 2 * len(names), 2):
        block = lines[number]["rollout"]
        assert block["num_turns"] == NUM_COMMANDS + 1 and block["gateway"]["calls"] == 7
        assert block["harness"]["stdout"] == "counted\n"
    ended = {name: lines[2 * at]["rollout"]["harness"] for at, name in enumerate(names)}
    ends_badly = (
        "kills all that it can",
        "takes all memory",
        "asks without end",
        "prints without end",
    )
    wrong = {
        name: each for name, each in ended.items() if each["status"] and name not in ends_badly
    }
    assert not wrong  # a program of these ends well if nothing that it did was answered wrongly
