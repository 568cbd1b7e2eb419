"""OpenEnv's own client, check and environments, with ours: `make test-openenv`."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from peer_pythons import folder_of
from running import ng_run
from support import HANG_S

pytestmark = pytest.mark.openenv

ROOT = Path(__file__).resolve().parents[2]
PEER = folder_of("openenv")
MODEL = """
policy_model:
  responses_api_models:
    simulated_model: {answer: script, script_jsonl_fpath: %s}
"""
ECHO = """
openenv_environment:
  resources_servers:
    openenv_environment: {folder: %s, interpreter: %s, deterministic: true}
"""
ROWS = ROOT / "resources_servers/openenv_environment/data/example.jsonl"


def first_row(name: str) -> dict[str, Any]:
    path = ROOT / f"resources_servers/{name}/data/example.jsonl"
    return json.loads(path.read_text().splitlines()[0])


@pytest.fixture(params=["calculator", "workplace_assistant"])
def offered(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """The name of an environment of ours, and its URL under OpenEnv's protocol."""
    model = tmp_path / "model.yaml"
    model.write_text(MODEL % ROWS)
    name = request.param
    config = f"resources_servers/{name}/configs/{name}.yaml,{model}"
    with ng_run(tmp_path, "+openenv=true", config=config) as head:
        listed = subprocess.run(
            [Path(sys.executable).with_name("ng_status"), f"+head_server.port={head[-5:]}"],
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )
        found = re.search(rf"^\s*{name}\s.*?(http://\S+)", listed.stdout, re.M)
        assert found, listed.stdout + listed.stderr
        yield name, f"{found[1]}/openenv"


def test_openenv_s_check_and_clients_accept_ours(offered: tuple[str, str]) -> None:
    name, url = offered
    checked = subprocess.run(
        [PEER / "openenv", "validate", "--url", url, "--json"], capture_output=True, text=True
    )
    report = json.loads(checked.stdout)
    assert report["passed"] and report["summary"]["failed_criteria"] == []
    items = first_row(name)["gold_items"]
    calls = [
        (item["name"], json.loads(item["arguments"]))
        for item in items
        if item["type"] == "function_call"
    ]
    texts = [item["content"][0]["text"] for item in items if item["type"] == "message"]
    given = [*calls, ("respond", {"text": texts[-1] if texts else "Done."})]
    driver = [PEER / "python", ROOT / "tests/servers/openenv_driver.py", url, json.dumps(given)]
    played = subprocess.run(driver, capture_output=True, text=True, timeout=HANG_S)
    assert played.returncode == 0, played.stderr
    found = json.loads(played.stdout.splitlines()[-1])
    prompt, reward, is_over, state = found["steps"]
    assert prompt and reward == 1.0 and is_over and state["step_count"] == len(given)
    tools, output = found["mcp"]
    assert {calls[0][0], "respond"} <= set(tools) and output
    assert found["trl"] == [len(given), True, 1.0]


@pytest.fixture
def echo(tmp_path: Path) -> Path:
    """OpenEnv's example environment, as its own command makes it."""
    subprocess.run([PEER / "openenv", "init", "echo_env"], cwd=tmp_path, check=True)
    app = tmp_path / "echo_env/server/app.py"
    app.write_text(app.read_text().replace("max_concurrent_envs=1,", "max_concurrent_envs=32,"))
    return tmp_path / "echo_env"


def collect(tmp_path: Path, folder: Path) -> subprocess.Popen[str]:
    (tmp_path / "run.yaml").write_text(ECHO % (folder, PEER / "python") + MODEL % ROWS)
    command = [
        str(Path(sys.executable).with_name("ng_collect_rollouts")),
        f"+config_paths=[{tmp_path / 'run.yaml'}]",
        f"+input_jsonl_fpath={ROWS}",
        f"+output_jsonl_fpath={tmp_path / 'rollouts.jsonl'}",
        f"+log_dir={tmp_path / 'logs'}",
        "+num_repeats=40",
        "+num_samples_in_parallel=32",
    ]
    return subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def test_two_hundred_rollouts_of_an_openenv_environment_over_a_kill(
    tmp_path: Path, echo: Path
) -> None:
    output = tmp_path / "rollouts.jsonl"
    with collect(tmp_path, echo) as killed:
        while not (output.exists() and output.stat().st_size):
            assert killed.poll() is None
        os.kill(killed.pid, signal.SIGKILL)
    with collect(tmp_path, echo) as again:
        said = again.communicate(timeout=HANG_S)[0]
    assert again.returncode == 0, said
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    keys = {(line["rollout"]["task_id"], line["rollout"]["rollout_index"]) for line in lines}
    assert len(lines) == len(keys) == 200
    rewards = {line["reset"]["seed"]: line["reward"] for line in lines}
    assert rewards == {0: 0.5, 1: 1.0, 2: 1.0, 3: 0.4, 4: 1.0}


def test_rollouts_wait_for_a_place_where_the_server_has_one(tmp_path: Path, echo: Path) -> None:
    app = echo / "server/app.py"
    app.write_text(app.read_text().replace("max_concurrent_envs=32,", "max_concurrent_envs=1,"))
    with collect(tmp_path, echo) as run:
        said = run.communicate(timeout=HANG_S)[0]
    assert run.returncode == 0, said
    assert len((tmp_path / "rollouts.jsonl").read_text().splitlines()) == 200


def test_a_killed_environment_is_started_again_and_its_rollouts_arrive(
    tmp_path: Path, echo: Path
) -> None:
    """It kills itself at its first step, as long as a file is there."""
    (echo / "die").touch()
    module = next((echo / "server").glob("*_environment.py"))
    step = "        self._state.step_count += 1\n"
    dies = (
        "        import os, pathlib, signal\n"
        f"        place = pathlib.Path({str(echo / 'die')!r})\n"
        "        if place.exists():\n"
        "            place.unlink(missing_ok=True)\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    module.write_text(module.read_text().replace(step, dies + step))
    with collect(tmp_path, echo) as run:
        said = run.communicate(timeout=HANG_S)[0]
    assert run.returncode == 0, said
    assert not (echo / "die").exists()
    assert len((tmp_path / "rollouts.jsonl").read_text().splitlines()) == 200
