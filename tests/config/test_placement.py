"""The same servers in this process, in their own, several of them, by URL: the same rewards."""

import os
import re
import signal
from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest
from endpoint import endpoint, says
from support import HANG_S, alive, asked, eventually, write_jsonl
from workplace import Workplace

COUNTER = """
from rollout_kit.serving.resources_server import ResourcesServer, tool
from rollout_kit.types import JsonObject, VerifyRequest, VerifyResponse


class Counter(ResourcesServer):
    async def seed_session(self, body: JsonObject) -> JsonObject:
        self.state = {"count": 0}
        return {}

    @tool
    async def increment(self) -> int:
        self.state["count"] += 1
        return self.state["count"]

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        import os
        return body.scored(float(self.state["count"] == 2), pid=os.getpid())
"""

CONFIG = """
config_paths: [responses_api_models/openai_model/configs/openai_model.yaml]
counter: {{resources_servers: {{counter: {{{counter}}}}}}}
counter_agent:
  responses_api_agents:
    simple_agent:
      {agent}
      resources_server: {{type: resources_servers, name: counter}}
      model_server: {{type: responses_api_models, name: policy_model}}
"""


def calls_twice(body: dict) -> tuple[int, dict]:
    from rollout_kit.api.testing import call_response, text_response

    made = sum(item.get("type") == "function_call" for item in body["input"])
    return 200, call_response(("increment", "{}")) if made < 2 else text_response("done")


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    with endpoint(calls_twice) as model:
        place = Workplace(tmp_path, model)
        (tmp_path / "resources_servers/counter").mkdir()
        (tmp_path / "resources_servers/counter/app.py").write_text(COUNTER)
        yield place


@pytest.mark.parametrize(
    ("counter", "agent", "num_pids"),
    [
        ("", "", 1),
        ("placement: process", "", 1),
        ("placement: process, num_workers: 2", "", 2),
        ("process: shared", "process: shared", 1),
        ("", "placement: process", 1),
    ],
)
def test_every_placement_gives_the_same_rewards(
    workplace: Workplace, counter: str, agent: str, num_pids: int
) -> None:
    config = CONFIG.format(counter=counter, agent=agent)
    (workplace.folder / "run.yaml").write_text(config)
    workplace.tasks(40)
    status, output = workplace.collect()
    assert status == 0, output
    assert [line["reward"] for line in workplace.lines()] == [1.0] * 40
    assert len({line["pid"] for line in workplace.lines()}) == num_pids


def test_a_server_of_another_run_is_reached_by_its_url(workplace: Workplace) -> None:
    (workplace.folder / "run.yaml").write_text(CONFIG.format(counter="", agent=""))
    workplace.tasks(10)
    with workplace.ng_run() as (_, _, said):
        [line] = [line for line in said.splitlines() if "/counter " in line]
        url = next(word for word in line.split() if "://" in word)
        config = CONFIG.format(counter=f"placement: '{url}'", agent="")
        (workplace.folder / "run.yaml").write_text(config)
        status, output = workplace.collect()
        assert status == 0, output
        assert [line["reward"] for line in workplace.lines()] == [1.0] * 10


def test_a_collector_restarts_its_server_process_and_gives_up_what_cannot_start(
    workplace: Workplace,
) -> None:
    config = CONFIG.format(counter="placement: process", agent="")
    (workplace.folder / "run.yaml").write_text(config)
    workplace.tasks(60)
    workplace.model.num_answered = 40
    argv = workplace.collect_argv("+num_samples_in_parallel=4", "+max_restarts=2")
    process = workplace.start("collect_rollouts", *argv)
    workplace.wait_for(5)
    os.kill(workplace.lines_so_far()[0]["pid"], signal.SIGKILL)
    workplace.model.num_answered = 100
    eventually(lambda: len({line["pid"] for line in workplace.lines_so_far()}) == 2)
    app = workplace.folder / "resources_servers/counter/app.py"
    app.write_text("raise SystemExit('no licence')")
    os.kill(workplace.lines_so_far()[-1]["pid"], signal.SIGKILL)
    output, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 1, output
    assert "server 'counter'" in output and "was killed by SIGKILL: restarting it" in output
    assert "no licence" in output and re.search(r"given up: it ended \d+ times in a row", output)
    app.write_text(COUNTER)
    workplace.model.num_answered = inf
    status, output = workplace.collect()
    assert status == 0, output
    assert len(set(workplace.questions())) == len(workplace.lines()) == 60


def test_a_collector_killed_leaves_no_server_behind(workplace: Workplace) -> None:
    config = CONFIG.format(counter="placement: process", agent="")
    (workplace.folder / "run.yaml").write_text(config)
    workplace.tasks(60)
    workplace.model.num_answered = 40
    argv = workplace.collect_argv("+num_samples_in_parallel=4")
    process = workplace.start("collect_rollouts", *argv)
    workplace.wait_for(5)
    pid = workplace.lines_so_far()[0]["pid"]
    assert alive(pid)
    process.kill()
    process.communicate()
    eventually(lambda: not alive(pid))


def test_a_plain_verifier_that_hangs_does_not_hold_up_ctrl_c(tmp_path: Path) -> None:
    hanging = """
import time
from rollout_kit.serving.resources_server import ResourcesServer

class Hang(ResourcesServer):
    def verify(self, task, response):
        time.sleep(10_000)
"""
    with endpoint(says(asked)) as model:
        place = Workplace(tmp_path, model)
        (tmp_path / "resources_servers/echo/app.py").write_text(hanging)
        rows = [{"responses_create_params": {"input": [{"role": "user", "content": "q"}]}}]
        write_jsonl(tmp_path / "tasks.jsonl", rows)
        process = place.start("collect_rollouts", *place.collect_argv("+drain_timeout_s=0.5"))
        place.wait_for(1, "unverified")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=HANG_S)
        assert process.returncode == 130, output
        assert "1 waits for its verdict" in output
