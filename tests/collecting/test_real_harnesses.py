"""Programs of others as they are, on commands that a simulated model gives them: verified by the
files that they leave, recorded one to one, killed and continued. `make test-harness` installs them.
"""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import NO_NAMESPACES, count_turns, eventually, may_isolate, read_jsonl
from test_harness_runs import check_nothing_is_left
from test_harness_runs import run as run_to_its_end
from workplace import ROOT

FOLDER = Path(os.environ.get("HARNESSES", ".harnesses"))

pytestmark = [
    pytest.mark.harness,
    pytest.mark.skipif(not may_isolate(), reason=NO_NAMESPACES),
    pytest.mark.skipif(not (FOLDER / "mini").exists(), reason="make test-harness installs them"),
]

COMMANDS = "responses_api_models/simulated_model/configs/commands.yaml"

RECIPES = (
    "mini_swe_agent",
    "mini_in_process",
    "codex",
    "claude_code",
    "opencode",
    "pi",
    "claude_code_outside",
)

DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""The command with which mini-swe-agent ends."""


def make_command(folder: Path, name: str, num_tasks: int = 6, *words: str) -> list[str]:
    """The command of a run of one recipe on small tasks."""
    rows = ROOT / "responses_api_agents/harness_agent/generate.py"
    subprocess.run([sys.executable, rows, folder, str(num_tasks)], check=True)
    files = f"configs/harnesses/{name}.yaml,{COMMANDS}"
    model = "+policy_model.responses_api_models.simulated_model."
    return [
        str(Path(sys.executable).with_name("ng_collect_rollouts")),
        f"+config_paths=[{files}]",
        f"+agent_name={name}",
        f"+input_jsonl_fpath={folder / 'example.jsonl'}",
        f"+output_jsonl_fpath={folder / 'rollouts.jsonl'}",
        f"{model}script_jsonl_fpath={folder / 'example.jsonl'}",
        f"{model}return_token_ids=true",
        *([f"{model}last_command={DONE}"] if name.startswith("mini") else []),
        "+num_samples_in_parallel=4",
        "+max_attempts=1",
        *words,
    ]


@pytest.mark.parametrize("name", RECIPES)
def test_a_program_of_others_solves_tasks_that_are_verified_by_its_files(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "mini_in_process":
        [packages] = FOLDER.glob("mini/lib/python3*/site-packages")
        monkeypatch.setenv("PYTHONPATH", str(packages.resolve()))
        monkeypatch.setenv("MSWEA_CONFIGURED", "true")
    monkeypatch.setenv("HARNESSES", str(FOLDER.resolve()))
    told = run_to_its_end(make_command(tmp_path, name), 900)
    lines = read_jsonl(tmp_path / "rollouts.jsonl")
    assert len(lines) == 6, told
    for line in lines:
        block, output = line["rollout"], line["response"]["output"]
        assert line["reward"] == 1.0, block
        assert block["harness"]["status"] == 0
        sampled = [item for item in output if "generation_token_ids" in item]
        assert len(sampled) == block["num_turns"]
        assert block["gateway"]["calls"] == block["num_turns"] + block["gateway"]["side_calls"]
        assert "chains" not in block["gateway"], block["gateway"]
        assert set(block["turns"]["chain"]) <= {0, None}


def count_stored(folder: Path) -> int:
    """Turns that are on disk, of finished rollouts or not."""
    done = read_jsonl(folder / "rollouts.jsonl")
    return sum(line["rollout"]["gateway"]["calls"] for line in done) + count_turns(folder)


@pytest.mark.parametrize("name", ["mini_swe_agent", "codex"])
def test_a_run_of_it_that_is_killed_again_and_again_goes_on(name: str, tmp_path: Path) -> None:
    command, draw, num_stored = make_command(tmp_path, name), random.Random(5), 0
    for _ in range(3):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            num_stored += draw.randint(1, 3)
            eventually(lambda: count_stored(tmp_path) >= num_stored or process.poll() is not None)  # noqa: B023
            process.send_signal(signal.SIGKILL)
        check_nothing_is_left(process.pid)
    run_to_its_end(command, 900)
    lines = read_jsonl(tmp_path / "rollouts.jsonl")
    assert sorted(line["_ng_task_index"] for line in lines) == list(range(6))
    assert all(line["reward"] == 1.0 for line in lines)
    diverged = [line["rollout"]["gateway"].get("diverged_at") for line in lines]
    assert not any(diverged)


BIN = "/opt/harnesses/node_modules/.bin"

RESUMED = {
    "codex": f"{BIN}/codex exec resume --last --skip-git-repo-check"
    ' --dangerously-bypass-approvals-and-sandbox -c model_provider=run -m "$MODEL"'
    """ -c web_search='"disabled"' -c "model_providers.run={name='run',"""
    """base_url='$OPENAI_BASE_URL',env_key='OPENAI_API_KEY',wire_api='responses'}" Continue.""",
    "claude_code": f"{BIN}/claude -p --continue --dangerously-skip-permissions"
    ' --model "$MODEL" Continue.',
    "pi": f'{BIN}/pi -p --continue --provider run --model "$MODEL" Continue. < /dev/null',
    "opencode": f'{BIN}/opencode run --continue -m "run/$MODEL" Continue. < /dev/null',
}
"""How each continues its last conversation, as docs/agents.md says."""


@pytest.mark.parametrize("name", RESUMED)
def test_a_program_of_others_continues_in_its_snapshot(name: str, tmp_path: Path) -> None:
    resumed = tmp_path / "resumed.yaml"
    keys = {"resume_command": RESUMED[name], "snapshot_every": 1}
    resumed.write_text(json.dumps({name: {"responses_api_agents": {"harness_agent": keys}}}))
    command = make_command(tmp_path, name, 2)
    command[1] = f"{command[1].removesuffix(']')},{resumed}]"
    snapshots = tmp_path / "rollouts.d/snapshots"

    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        eventually(lambda: snapshots.exists() or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
    check_nothing_is_left(process.pid)
    assert list(snapshots.iterdir())
    told = run_to_its_end(command, 300)
    lines = read_jsonl(tmp_path / "rollouts.jsonl")
    assert [line["reward"] for line in lines] == [1.0, 1.0], told
    assert any(line["rollout"]["gateway"].get("restored") for line in lines)
    assert not snapshots.exists()
