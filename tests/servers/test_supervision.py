"""Servers that die under a running ng_run: noticed, restarted, given up; none survives it."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import pytest
from endpoint import endpoint
from support import HANG_S, alive, eventually, read_jsonl
from workplace import ROOT, Workplace

from rollout_kit.api.testing import call_response, text_response
from rollout_kit.serving.process_tree import family
from rollout_kit.serving.sockets import bound_socket

CHAOS = pytest.mark.chaos

TALLY = """
import asyncio, os, subprocess, sys
from math import inf
from pathlib import Path

from rollout_kit.serving.resources_server import ResourcesServer, tool
from rollout_kit.session import current_session
from rollout_kit.types import JsonObject, VerifyRequest, VerifyResponse


class Tally(ResourcesServer):
    async def start(self):
        if Path("dies_at_once").exists():
            print("the disk is on fire", file=sys.stderr)
            sys.exit(3)
        if Path("has_children").exists():
            # one in the same group, one in a group and one in a session of its own, and a daemon
            for detach in ({}, {"process_group": 0}, {"start_new_session": True}):
                subprocess.Popen(["sleep", "987654"], **detach)
            subprocess.run(["sh", "-c", "setsid sleep 987654 & echo $! >> daemons"])

    async def seed_session(self, body: JsonObject) -> JsonObject:
        self.state = []
        self.numbers[current_session().id] = int(body["expected"][1:])
        return {}

    numbers = {}

    @property
    def number(self):
        return self.numbers[current_session().id]

    @tool
    async def add(self, step: int) -> int:
        with open("executed.log", "a") as log:
            log.write(f"{current_session().id} {step}\\n")
        if Path("poison").exists() and step == 1 and self.number % 5 == 0:
            os._exit(7)
        if Path("stuck").exists():
            import re
            re.match(r"(a+)+$", "a" * 64 + "b")  # holds the interpreter's lock for ages
        self.state.append(step)
        return len(self.state)

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        return body.scored(float(self.state == [0, 1, 2]))
"""

CONFIG = """
config_paths: [responses_api_models/openai_model/configs/openai_model.yaml]
tally: {resources_servers: {tally: {num_workers: 2}}}
tally_agent:
  responses_api_agents:
    simple_agent:
      resources_server: {type: resources_servers, name: tally}
      model_server: {type: responses_api_models, name: policy_model}
"""


def adds_thrice(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    made = sum(item.get("type") == "function_call" for item in body["input"])
    if made == 3:
        return 200, text_response("done")
    return 200, call_response(("add", json.dumps({"step": made})))


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    with endpoint(adds_thrice) as model:
        place = Workplace(tmp_path, model)
        (tmp_path / "resources_servers/tally").mkdir()
        (tmp_path / "resources_servers/tally/app.py").write_text(TALLY)
        (tmp_path / "run.yaml").write_text(CONFIG)
        yield place


def status(workplace: Workplace, port: int) -> list[dict[str, Any]]:
    """What ng_status finds."""
    _, output = workplace.run("status", f"+head_server.port={port}", "+json=true")
    return json.loads(output)["servers"]


def through(port: int, *more: str) -> list[str]:
    files = ["+input_jsonl_fpath=tasks.jsonl", "+output_jsonl_fpath=out/rollouts.jsonl"]
    return [*files, f"+head_server.port={port}", *more]


def is_ready(servers: list[dict[str, Any]]) -> bool:
    return all(each["health"] == "ok" for each in servers)


@pytest.mark.parametrize(
    "number",
    [pytest.param(400, marks=CHAOS), pytest.param(2000, marks=pytest.mark.slow)],
)
def test_servers_killed_in_turn_cost_no_rollout_and_repeat_no_tool_call(
    workplace: Workplace, number: int
) -> None:
    workplace.tasks(number)
    workplace.model.delay_s = 0.25
    with workplace.ng_run() as (run, port, _):
        collector = workplace.start(
            "collect_rollouts", *through(port, "+num_samples_in_parallel=32")
        )
        num_kills = 0
        while collector.poll() is None:
            servers = status(workplace, port)
            victim = servers[num_kills % len(servers)]
            if victim["pid"]:
                os.kill(victim["pid"], signal.SIGKILL)
                num_kills += 1
            time.sleep(2)
        output, _ = collector.communicate()
        assert collector.returncode == 0, output
        eventually(lambda: is_ready(status(workplace, port)))
        run.send_signal(signal.SIGINT)
        said, _ = run.communicate(timeout=HANG_S)
        assert run.returncode == 0, said
    assert num_kills >= 4, "too short to show anything"
    assert said.count("was killed by SIGKILL: restarting it") == num_kills, said
    keys = Counter(line["rollout"]["task_id"] for line in workplace.lines())
    assert len(keys) == number and set(keys.values()) == {1}
    assert {line["reward"] for line in workplace.lines()} == {1.0}
    executed = Counter((workplace.folder / "executed.log").read_text().splitlines())
    assert set(executed.values()) == {1}, "a tool call was executed twice in one attempt"
    assert read_jsonl(workplace.folder / "out/rollouts.d/failures.jsonl") == []


@CHAOS
def test_a_server_that_keeps_dying_is_given_up_by_name_and_the_rest_goes_on(
    workplace: Workplace,
) -> None:
    with workplace.ng_run("+max_restarts=3") as (run, port, _):
        before = {each["name"]: each for each in status(workplace, port)}
        (workplace.folder / "dies_at_once").touch()
        os.kill(before["tally-0"]["pid"], signal.SIGKILL)
        eventually(lambda: "failed" in {each["health"] for each in status(workplace, port)})
        after = {each["name"]: each for each in status(workplace, port)}
        assert after["tally-0"]["health"] == "failed" and after["tally-0"]["pid"] is None
        assert after["tally-0"]["restarts"] == 3
        for name in ("tally-1", "tally_agent", "policy_model"):
            assert after[name]["health"] == "ok" and after[name]["pid"] == before[name]["pid"]
        code, table = workplace.run("status", f"+head_server.port={port}")
        assert code == 2 and re.search(r"^tally-0 +failed", table, re.MULTILINE), table
        run.send_signal(signal.SIGTERM)
        said, _ = run.communicate(timeout=HANG_S)
    assert run.returncode == 1
    [logs] = (workplace.folder / "logs").iterdir()
    assert f"its log: logs/{logs.name}/tally-0.log" in said, said
    assert "the disk is on fire" in said
    # the killed process counts if it was ready only for a moment
    assert re.search("given up: it ended [34] times in a row", said), said
    assert "the disk is on fire" in (logs / "tally-0.log").read_text()


@pytest.mark.parametrize(
    "how",
    ["killed", pytest.param("killed and stuck", marks=CHAOS), "stopped", "interrupted"],
)
def test_nothing_survives_an_ng_run(workplace: Workplace, how: str) -> None:
    (workplace.folder / "has_children").touch()
    with workplace.ng_run() as (run, port, _):
        daemons = map(int, (workplace.folder / "daemons").read_text().split())
        members = family(run.pid).keys() | set(daemons)
        assert len(members) >= 1 + 4 + 2 * 4, "ng_run, four servers, and two workers' children"
        if how == "killed and stuck":
            (workplace.folder / "stuck").touch()
            workplace.tasks(4)
            stuck = threading.Thread(
                target=lambda: workplace.run("collect_rollouts", *through(port)), daemon=True
            )
            stuck.start()
            eventually((workplace.folder / "executed.log").exists)
        match how:
            case "stopped":
                code, said = workplace.run("stop", f"+head_server.port={port}")
                assert code == 0 and "and all its servers" in said, said
                assert not any(alive(pid) for pid in members - {run.pid}), "stopped means gone"
            case "interrupted":
                run.send_signal(signal.SIGINT)
            case _:
                run.kill()
        eventually(lambda: not any(map(alive, members)))


def test_a_server_whose_children_went_their_own_way_is_restarted_all_the_same(
    workplace: Workplace,
) -> None:
    (workplace.folder / "has_children").touch()
    with workplace.ng_run() as (_, port, _):
        before = {each["name"]: each["pid"] for each in status(workplace, port)}
        left = family(before["tally-0"]).keys()
        (workplace.folder / "has_children").unlink()
        os.kill(before["tally-0"], signal.SIGKILL)
        eventually(lambda: sum(each["restarts"] for each in status(workplace, port)) == 1)
        assert is_ready(status(workplace, port))
        assert len(left) >= 4 and not any(map(alive, left))


@pytest.mark.slow
def test_rows_that_kill_their_server_fail_by_name_and_the_others_are_collected(
    workplace: Workplace,
) -> None:
    (workplace.folder / "poison").touch()
    workplace.tasks(20)
    with workplace.ng_run() as (_, port, _):
        code, said = workplace.run("collect_rollouts", *through(port, "+rollout_timeout_s=90"))
        assert code == 2, said
        assert {each["health"] for each in status(workplace, port)} == {"ok"}
        assert set(workplace.questions()) >= {f"q{n}" for n in range(20) if n % 5}, said
        failed = read_jsonl(workplace.folder / "out/rollouts.d/failures.jsonl")
        assert {line["failure"]["class"] for line in failed} <= {"PeerLost", "SessionLost"}


@pytest.mark.parametrize("reader", ["head -1", pytest.param("sleep 987", marks=CHAOS)])
def test_nobody_reading_what_ng_run_says_holds_up_nothing(
    workplace: Workplace, reader: str
) -> None:
    app = workplace.folder / "resources_servers/tally/app.py"
    seeding = "        self.state = []\n"
    talking = '        print("a line of many\\n" * 30_000)\n'
    app.write_text(app.read_text().replace(seeding, talking + seeding))
    workplace.tasks(3)
    with bound_socket("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
    argv = ["+config_paths=[run.yaml]", f"+head_server.port={port}"]
    code = f"from rollout_kit.commands import main; main('ng_run', {argv})"
    piped = f'"{sys.executable}" -c "{code}" | {reader}'
    shell = subprocess.Popen(
        ["bash", "-c", piped],
        cwd=workplace.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    try:
        eventually(lambda: workplace.run("status", f"+head_server.port={port}")[0] == 0)
        status, said = workplace.run("collect_rollouts", *through(port))
        assert status == 0, said
        status, said = workplace.run("stop", f"+head_server.port={port}")
        assert status == 0, said
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def test_ng_stop_needs_the_token_of_the_run(workplace: Workplace, tmp_path: Path) -> None:
    with workplace.ng_run() as (run, port, _):
        curl = ["curl", "-s", "-X", "POST", "-H", "content-type: application/json"]
        refused = subprocess.check_output([*curl, f"http://127.0.0.1:{port}/stop"], text=True)
        assert "needs the token" in refused
        elsewhere = tmp_path / "another_user"
        os.environ["XDG_STATE_HOME"], before = str(elsewhere), os.environ.get("XDG_STATE_HOME")
        try:
            code, said = workplace.run("stop", f"+head_server.port={port}")
        finally:
            del os.environ["XDG_STATE_HOME"]
            if before:
                os.environ["XDG_STATE_HOME"] = before
        assert code == 1 and "run this command as the user who started it" in said
        assert run.poll() is None


@pytest.mark.parametrize("command", ["status", "stop"])
def test_a_stranger_on_the_head_s_port_is_recognised_and_so_is_nobody(
    workplace: Workplace, command: str
) -> None:
    port = workplace.model.url.split(":")[2].split("/")[0]
    code, said = workplace.run(command, f"+head_server.port={port}")
    assert code == 1 and "is another program, not an ng_run" in said, said
    code, said = workplace.run(command, "+head_server.port=1")
    assert code == 1 and "no ng_run answers at http://127.0.0.1:1" in said, said
    assert ("nothing to stop" in said) == (command == "stop")
    assert "+head_server.port=" in said and "start one" not in said, "not what was asked for"
    code, said = workplace.run("run", "+config_paths=[run.yaml]", f"+head_server.port={port}")
    assert code == 1 and f"cannot listen on 127.0.0.1:{port}" in said, said


@CHAOS
def test_a_collector_whose_ng_run_is_stopped_says_so_and_continues_later(
    workplace: Workplace,
) -> None:
    workplace.tasks(60)
    with workplace.ng_run() as (_, port, _):
        workplace.model.num_answered = 60
        collector = workplace.start(
            "collect_rollouts", *through(port, "+num_samples_in_parallel=2")
        )
        workplace.wait_for(5)
        code, said = workplace.run("stop", f"+head_server.port={port}")
        assert code == 0, said
        said, _ = collector.communicate(timeout=HANG_S)
        assert collector.returncode == 1 and "is gone: start it again" in said, said
    workplace.model.num_answered = inf
    with workplace.ng_run() as (_, port, _):
        code, said = workplace.run("collect_rollouts", *through(port))
        assert code == 0 and len(workplace.lines()) == 60, said


@CHAOS
def test_two_runs_on_one_machine_do_not_meet(workplace: Workplace) -> None:
    workplace.tasks(20)
    with workplace.ng_run() as (first, port, _), workplace.ng_run() as (_, other, _):
        code, said = workplace.run("stop", f"+head_server.port={port}")
        assert code == 0, said
        assert first.wait(timeout=HANG_S) == 0
        code, said = workplace.run("collect_rollouts", *through(other))
        assert code == 0 and len(workplace.lines()) == 20, said
