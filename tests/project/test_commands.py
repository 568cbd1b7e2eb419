"""The commands as processes: real sockets, real signals, real kills."""

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from math import inf
from pathlib import Path

import pytest
from endpoint import endpoint, says
from support import HANG_S, alive, asked, eventually, read_jsonl
from workplace import CONFIG, ROOT, VERIFIER, Workplace, pids_in, said_until

from rollout_kit import __version__
from rollout_kit.commands import entry, main
from rollout_kit.config.commands import COMMANDS
from rollout_kit.serving.sockets import bound_socket


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    with endpoint(says(asked)) as model:
        yield Workplace(tmp_path, model)


def test_a_collection_starts_its_servers_and_leaves_every_rollout_on_disk(
    workplace: Workplace,
) -> None:
    questions = workplace.tasks(20)
    status, output = workplace.collect("+num_repeats=2")
    assert status == 0, output
    assert workplace.questions() == sorted(questions * 2)
    assert "Plan: 20 tasks × 2 repeats = 40 rollouts" in output
    assert "Collecting rollouts: 100%" in output
    assert "over 40 rollouts of 20 tasks · pass@1 1.000 · pass@2 1.000\n" in output
    assert '{\n  "reward": 1.0,\n' in output


def test_a_recorded_run_plays_back_under_ng_run_when_the_model_is_gone(tmp_path: Path) -> None:
    with endpoint(says(asked)) as model:
        workplace = Workplace(tmp_path, model)
        workplace.tasks(20)
        status, output = workplace.collect("+num_repeats=2", "+record=tape")
        assert status == 0, output
    with workplace.ng_run("+replay=tape") as (_, port, said):
        assert len(pids_in(said)) == 2  # the model is not even started
        status, output = workplace.run(
            "collect_rollouts",
            "+agent_name=echo_agent",
            "+num_repeats=2",
            "+input_jsonl_fpath=tasks.jsonl",
            "+output_jsonl_fpath=out/played.jsonl",
            f"+head_server.port={port}",
        )
        assert status == 0, output
        status, output = workplace.run(
            "collect_rollouts",
            "+agent_name=echo_agent",
            "+input_jsonl_fpath=tasks.jsonl",
            "+output_jsonl_fpath=out/other.jsonl",
            "+record=tape",
            f"+head_server.port={port}",
        )
        assert status == 1 and "record: the servers are those of an ng_run" in output
    assert len(read_jsonl(tmp_path / "out/played.jsonl")) == 40
    assert sum(model.saw.values()) == 40


def test_two_terminals_collect_the_same_rewards_as_one(workplace: Workplace) -> None:
    questions = workplace.tasks(20)
    with workplace.ng_run() as (process, port, said):
        assert len(pids_in(said)) == 3
        status, output = workplace.run(
            "collect_rollouts",
            "+agent_name=echo_agent",
            "+input_jsonl_fpath=tasks.jsonl",
            "+output_jsonl_fpath=out/rollouts.jsonl",
            f"+head_server.port={port}",
        )
        assert status == 0, output
        assert workplace.questions() == sorted(questions)
        # the same settings in one process: nothing is left to do
        status, output = workplace.collect()
        assert status == 0 and "20 done · 0 to verify only · 0 to collect" in output, output
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=HANG_S)
        assert process.returncode == 0, rest
        assert not any(alive(pid) for pid in pids_in(said))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_server_outlives_ng_run(workplace: Workplace, number: int) -> None:
    with workplace.ng_run() as (process, _, said):
        process.send_signal(number)
        eventually(lambda: not any(alive(pid) for pid in pids_in(said)))


def test_a_server_that_cannot_start_is_named_with_its_last_words(workplace: Workplace) -> None:
    app = workplace.folder / "resources_servers/echo/app.py"
    app.write_text(VERIFIER + "\n    async def start(self):\n        1 / 0\n")
    status, output = workplace.run("run", "+config_paths=[run.yaml]", "+head_server.port=0")
    assert status == 1
    assert "server 'echo'" in output and "ZeroDivisionError" in output


def test_a_taken_port_is_named(workplace: Workplace) -> None:
    with bound_socket("127.0.0.1", 0) as sock:
        sock.listen()
        port = sock.getsockname()[1]
        status, output = workplace.run(
            "run", "+config_paths=[run.yaml]", f"+head_server.port={port}"
        )
    assert status == 1 and f"cannot listen on 127.0.0.1:{port}" in output
    assert "+head_server.port" in output


def test_a_collector_without_ng_run_says_how_to_get_one(workplace: Workplace) -> None:
    workplace.tasks(1)
    status, output = workplace.run(
        "collect_rollouts",
        "+agent_name=a",
        "+input_jsonl_fpath=tasks.jsonl",
        "+output_jsonl_fpath=r.jsonl",
        "+head_server.port=1",
    )
    assert status == 1 and "no ng_run answers at http://127.0.0.1:1" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("agent", ["openai_agent", "azure_agent", "nim_agent"])
def test_without_servers_the_file_that_has_the_agent_is_named(
    workplace: Workplace, agent: str
) -> None:
    argv = [f"+agent_name={agent}", "+input_jsonl_fpath=t.jsonl", "+output_jsonl_fpath=o.jsonl"]
    status, output = workplace.run("collect_rollouts", *argv, "+head_server.port=1")
    assert status == 1 and f"'+config_paths=[configs/{agent}.yaml]'" in output
    argv[0] = f"+agent_name={agent}"
    status, output = workplace.run("collect_rollouts", "+config_paths=[run.yaml]", *argv)
    assert status == 1 and f"'+config_paths=[configs/{agent}.yaml]'" in output


@pytest.mark.parametrize("moment", [1, 40, 100])
def test_killed_at_any_moment_the_same_command_completes_the_plan(
    workplace: Workplace, moment: int
) -> None:
    questions = workplace.tasks(150)
    workplace.model.num_answered = moment + 10
    process = workplace.start(
        "collect_rollouts", *workplace.collect_argv("+num_samples_in_parallel=8")
    )
    workplace.wait_for(moment)
    process.kill()
    process.communicate()
    before = (workplace.folder / "out/rollouts.jsonl").read_bytes()
    kept = before[: before.rfind(b"\n") + 1]
    workplace.model.num_answered = inf
    status, output = workplace.collect()
    assert status == 0, output
    assert workplace.questions() == sorted(questions)
    assert (workplace.folder / "out/rollouts.jsonl").read_bytes().startswith(kept)
    assert workplace.model.saw.total() <= 150 + 8  # only what was in flight is paid again


def test_a_collector_killed_while_verdicts_are_out_has_the_responses_on_disk(
    workplace: Workplace,
) -> None:
    questions = workplace.tasks(5)
    (workplace.folder / "slow_verdicts").touch()
    process = workplace.start("collect_rollouts", *workplace.collect_argv("+park_after_s=0.2"))
    workplace.wait_for(5, "unverified")
    process.kill()
    process.communicate()
    (workplace.folder / "slow_verdicts").unlink()
    status, output = workplace.collect()
    assert status == 0 and "5 to verify only · 0 to collect" in output, output
    assert workplace.questions() == questions
    assert set(workplace.model.saw.values()) == {1}


def test_an_interrupted_collector_drains_and_says_how_to_continue(workplace: Workplace) -> None:
    workplace.tasks(100)
    workplace.model.num_answered = 10
    process = workplace.start(
        "collect_rollouts", *workplace.collect_argv("+num_samples_in_parallel=5")
    )
    workplace.wait_for(5)
    process.send_signal(signal.SIGINT)
    said = said_until(process, "stopping: 5 in flight")
    workplace.model.num_answered = inf
    output = said + process.communicate(timeout=HANG_S)[0]
    assert process.returncode == 130, output
    done = len(workplace.lines())
    assert workplace.model.saw.total() == done < 100  # what was in flight was finished
    assert f"Still to come: {100 - done} rollouts. This continues:" in output
    command = output.rsplit("This continues:\n", 1)[1].strip().splitlines()[0]
    assert command.startswith("ng_collect_rollouts '+config_paths=[run.yaml]'")


def test_interrupted_twice_it_ends_at_once_and_keeps_what_it_has(workplace: Workplace) -> None:
    workplace.tasks(20)
    (workplace.folder / "slow_verdicts").touch()
    never = ("+park_after_s=10000", "+drain_timeout_s=10000")
    process = workplace.start("collect_rollouts", *workplace.collect_argv(*never))
    workplace.wait_for(20, "unverified")
    process.send_signal(signal.SIGTERM)
    said_until(process, "stopping: 20 in flight")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 130, output
    assert len(workplace.lines("unverified")) == 20


def test_a_failure_s_repro_command_repeats_just_that_rollout(workplace: Workplace) -> None:
    workplace.tasks(5)
    fine = workplace.model.behaviour
    workplace.model.behaviour = lambda body: (
        (500, {"error": {"message": "engine on fire"}}) if asked(body) == "q3" else fine(body)
    )
    (workplace.folder / "run.yaml").write_text(CONFIG + QUICK)
    status, output = workplace.collect("+max_attempts=1")
    assert status == 2, output
    [failure] = workplace.lines("failures")
    assert "engine on fire" in failure["failure"]["message"]
    before = workplace.model.saw.copy()
    workplace.model.behaviour = fine
    argv = failure["repro"].removeprefix("ng_collect_rollouts ").replace("'", "").split()
    status, output = workplace.run("collect_rollouts", *argv)
    assert status == 0, output
    assert workplace.model.saw - before == {"q3": 1}
    assert workplace.questions() == [f"q{index}" for index in range(5)]


QUICK = """
policy_model: {responses_api_models: {openai_model: {max_tries: 1}}}
"""


def test_the_documents_recipes_work_on_the_output(workplace: Workplace) -> None:
    workplace.tasks(30)
    assert workplace.collect("+limit=10")[0] == 0
    shell = """
    set -e
    test "$(wc -l < out/rollouts.jsonl)" = 10
    tail -n +11 tasks.jsonl > remaining.jsonl
    jq '.usage.total_tokens' out/rollouts.jsonl | awk '{s+=$1} END {exit !(s/NR == 2)}'
    jq -e '.reward == 1 and .accuracy == 1 and .avg_tool_calls == 0' \
        out/rollouts_aggregate_metrics.json
    """
    subprocess.run(["bash", "-c", shell], cwd=workplace.folder, check=True)
    argv = ["+config_paths=[run.yaml]", "+input_jsonl_fpath=remaining.jsonl"]
    argv += ["+output_jsonl_fpath=out/rollouts.jsonl", "+limit=15"]
    status, output = workplace.run("collect_rollouts", *argv)
    assert status == 0, output
    assert len(workplace.lines()) == len(set(workplace.questions())) == 25
    subprocess.run(
        ["bash", "-c", "cat out/rollouts.jsonl out/rollouts.jsonl > final.jsonl"],
        cwd=workplace.folder,
        check=True,
    )


def test_the_key_is_in_no_file_and_in_no_output(workplace: Workplace) -> None:
    workplace.tasks(3)
    workplace.model.behaviour = lambda body: (500, {"error": {"message": "sk-planted-0123 broke"}})
    (workplace.folder / "run.yaml").write_text(CONFIG + QUICK)
    _, output = workplace.collect("+max_attempts=1")
    assert "sk-planted" not in output
    files = [path for path in (workplace.folder / "out").rglob("*") if path.is_file()]
    assert "failures.jsonl" in {path.name for path in files}
    for path in files:
        assert b"sk-planted" not in path.read_bytes(), path


def test_json_output_is_one_object_a_line(workplace: Workplace) -> None:
    workplace.tasks(3)
    status, output = workplace.collect("+json=true")
    assert status == 0
    events = [json.loads(line)["event"] for line in output.splitlines()]
    assert events[:2] == ["agent", "plan"] and "metrics" in events


def test_a_typo_is_refused_with_a_suggestion_before_anything_starts(workplace: Workplace) -> None:
    workplace.tasks(1)
    status, output = workplace.collect("+num_sample_in_parallel=3")
    assert status == 1 and "did you mean 'num_samples_in_parallel'" in output
    assert workplace.model.saw.total() == 0 and not (workplace.folder / "out").exists()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_tells_its_version(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--version", "-V"):
        with pytest.raises(SystemExit) as ended:
            main(name, [flag])
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(f"{name} (rollout_kit {__version__})")


def test_help_shows_empty_defaults_and_offers_keys_of_servers_where_they_count() -> None:
    pages = {name: entry.format_help(name) for name in COMMANDS}
    assert not [name for name, page in pages.items() if "default )" in page]
    assert 'where  (text, default "")' in pages["ng_view"]
    assert "a key of a server" in pages["ng_collect_rollouts"]
    for name in ("ng_view", "ng_ctl"):
        assert "a key of a server" not in pages[name] and "config_paths" not in pages[name]


@pytest.mark.parametrize(
    "command",
    ["run", "collect_rollouts", "reverify", "status", "stop", "validate", "dump_config"],
)
def test_help_names_every_key_without_reading_anything(command: str, tmp_path: Path) -> None:
    code = f"from rollout_kit.commands import main; main('ng_{command}', ['--help'])"
    names = "{'hydra', 'omegaconf', 'aiohttp', 'fastapi', 'openai'}"
    heavy = f"import sys; bad = {names} & set(sys.modules)"
    script = f"import atexit\natexit.register(lambda: exec({heavy!r} + '; print(bad)'))\n{code}"
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "config_paths" in result.stdout and result.stdout.rstrip().endswith("set()")


def test_the_table_of_commands_the_scripts_and_the_modules_are_the_same() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    scripts = settings["project"]["scripts"]
    assert scripts.pop("gym") == "rollout_kit.commands.gym:main"
    assert scripts == dict.fromkeys(COMMANDS, "rollout_kit.commands:main")
    for name, each in COMMANDS.items():
        module = import_module(f"rollout_kit.commands.{each.module or name.removeprefix('ng_')}")
        assert callable(module.main) and each.summary, name
