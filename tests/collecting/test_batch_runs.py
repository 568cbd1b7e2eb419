"""Collections whose models answer in batches: rollouts wait without a place, and survive kills."""

import asyncio
import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from batches import USAGE, Imitation, echo, imitation
from claims import assert_prints
from support import HANG_S, Bench, eventually, row, skip_unless_installed, slow
from workplace import ROOT, Workplace, said_until

from rollout_kit.api.testing import Over, ScriptedModel, call_response, making
from rollout_kit.config.keys import CollectConfig, RunConfig
from rollout_kit.config.load import load
from rollout_kit.errors import ConfigError
from rollout_kit.serving import registry
from rollout_kit.serving.judge import Judge, JudgeConfig
from rollout_kit.serving.resources_server import ResourcesServer, tool
from rollout_kit.types import JsonObject, VerifyRequest, VerifyResponse

skip_unless_installed("openai")

MODEL = "policy_model.responses_api_models.openai_model"
SOON = (f"+{MODEL}.batch_gather_s=0.1", f"+{MODEL}.batch_poll_s=0.05")
PRICES = f"+{MODEL}.prices={{input: 1.0, output: 2.0}}"
STANDARD_USD = (100 * 1.0 + 50 * 2.0) / 1e6


def batched(url: str, folder: Path, **settings: Any) -> Any:
    """What makes an openai_model that answers in batches."""
    cls = registry.load("responses_api_models", "openai_model")
    given = {"openai_base_url": url, "openai_model": "m", "batch": True}
    given |= {"batch_dir": str(folder), "batch_gather_s": 0.05, "batch_poll_s": 0.02}
    return making(cls, **{**given, "prices": {"input": 1.0, "output": 2.0}, **settings})


def collect(bench: Bench, rows: list[Any] | None, found: Imitation, **keys: Any) -> int:
    settings = keys.pop("settings", {})
    model = batched(found.url, bench.folder / "batches", **settings)
    bench.others = {**bench.others, "policy_model": model}
    return asyncio.run(bench.collect(rows, **keys))


PATIENT = {"batch_gather_s": 0.5}
"""A busy machine takes longer between two requests than the others' settings wait."""


def test_rollouts_wait_for_a_batch_without_a_place(bench: Bench, over: Over) -> None:
    bench.collects_over = over
    with imitation() as found:
        status = collect(
            bench,
            [row(f"q{number}") for number in range(40)],
            found,
            num_repeats=2,
            num_samples_in_parallel=4,
            settings=PATIENT,
        )
    assert status == 0 and len(bench.lines()) == 80 == len(set(bench.keys()))
    assert found.submitted.total() == len(found.submitted) == 80 and not found.single
    assert len(found.batches) < 10, "four at a time would be twenty batches"
    costs = [line["rollout"]["cost_usd"] for line in bench.lines()]
    assert costs == [pytest.approx(STANDARD_USD / 2)] * 80
    assert all(line["rollout"]["attempt"] == 1 for line in bench.lines())


LIMIT_S = 3.0
"""Much longer than the work of one rollout takes, and shorter than its wait."""


def test_a_wait_counts_for_no_time_limit(bench: Bench) -> None:
    with imitation() as found:
        found.looks = 200  # four seconds or more
        limits = {"rollout_timeout_s": LIMIT_S, "request_timeout_s": LIMIT_S}
        assert collect(bench, [row("q")], found, **limits) == 0
    [line] = bench.lines()
    assert line["rollout"]["duration_s"] < LIMIT_S


class Adder(ResourcesServer):
    """Its tool must be called once for each turn of a session."""

    reverify = "never"

    async def seed_session(self, body: JsonObject) -> JsonObject:
        self.state = {"calls": 0}
        return {}

    @tool
    async def add(self) -> str:
        self.state["calls"] += 1
        return f"called {self.state['calls']} times"

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        return body.scored(float(self.state["calls"]))


def calls_twice(body: JsonObject) -> JsonObject:
    number = sum(item.get("type") == "function_call_output" for item in body["input"])
    if number == 2:
        return echo({"input": [{"content": "done"}]})
    return {**call_response(("add", "{}")), "usage": USAGE}


def test_each_turn_of_a_rollout_waits_in_its_session(bench: Bench, over: Over) -> None:
    bench.collects_over, bench.verifier = over, making(Adder)
    with imitation(calls_twice) as found:
        found.looks = 10
        rows = [row(f"q{number}") for number in range(12)]
        keys = {"num_samples_in_parallel": 2, "settings": PATIENT}
        assert collect(bench, rows, found, **keys) == 0
    assert [line["reward"] for line in bench.lines()] == [2.0] * 12
    assert found.submitted.total() == len(found.submitted) == 36
    assert len(found.batches) < 18, "two at a time would be eighteen batches"
    assert bench.lines()[0]["rollout"]["cost_usd"] == pytest.approx(3 * STANDARD_USD / 2)


class Judged(ResourcesServer):
    Config = JudgeConfig

    async def start(self) -> None:
        self.judge = Judge(self.config, self.peers, self.name, Path())

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        found = await self.judge.compare("the question", "4", "five")
        return body.scored(float(found.equal))


def test_judges_answer_in_batches(bench: Bench, over: Over) -> None:
    def judge(body: JsonObject) -> JsonObject:
        return echo({"input": [{"content": "They agree. [[A=B]]"}]})

    bench.collects_over = over
    with imitation(judge) as found:
        bench.verifier = making(Judged, judge_model_server={"name": "judge"})
        bench.others = {"judge": batched(found.url, bench.folder / "judge")}
        bench.model = ScriptedModel(lambda params: "five")
        rows = [row(f"q{number}") for number in range(20)]
        asked = bench.collect(rows, models=["judge"], num_samples_in_parallel=3)
        status = asyncio.run(asked)
    assert status == 0 and [line["reward"] for line in bench.lines()] == [1.0] * 20
    assert found.submitted.total() == 1, "the same question is judged once"


def test_a_rubric_is_graded_in_batches_and_asked_again_in_the_next(
    bench: Bench, over: Over
) -> None:
    """Of five answers, one gets garbage before it gets a grade."""

    def judge(body: JsonObject) -> JsonObject:
        is_first = len(body["input"]) == 1
        grade = {"name": "right", "evidence": "", "reason": "so", "score": True}
        said = json.dumps({"criteria": [grade]})
        if is_first and "\nq3\n</answer-" in body["input"][0]["content"]:
            said = "Full marks!"
        return echo({"input": [{"content": said}]})

    bench.collects_over = over
    with imitation(judge) as found:
        rubric = registry.load("resources_servers", "rubric_judge")
        criteria = [{"name": "right", "description": "It is right."}]
        bench.verifier = making(rubric, judge_model_server={"name": "judge"}, criteria=criteria)
        bench.others = {"judge": batched(found.url, bench.folder / "judge")}
        rows = [row(f"q{number}") for number in range(5)]
        asked = bench.collect(rows, models=["judge"], num_repeats=4, num_samples_in_parallel=3)
        assert asyncio.run(asked) == 0
    assert [line["reward"] for line in bench.lines()] == [1.0] * 20
    assert found.submitted.total() == 6 and not found.single
    counts = {line["judge_evaluations"][0]["num_asked"] for line in bench.lines()}
    assert counts == {1, 2}


def test_failed_and_expired_requests_are_collected_too(bench: Bench) -> None:
    with imitation() as found:
        found.errors = found.expires = 0.15
        rows = [row(f"q{number}") for number in range(100)]
        assert collect(bench, rows, found) == 0
    assert len(bench.lines()) == 100 and not found.twice and not found.single


def test_the_cost_limit_counts_batches_at_their_price(bench: Bench) -> None:
    with imitation() as found:
        rows = [row(f"q{number}") for number in range(10)]
        assert collect(bench, rows, found, max_cost_usd=STANDARD_USD * 5.5) == 0
    assert len(bench.lines()) == 10


def test_an_estimate_does_not_wait_for_batches(bench: Bench) -> None:
    from rollout_kit.commands.estimate import estimate_through

    with imitation() as found:
        rows = [row(f"q{number}") for number in range(30)]
        collect(bench, rows, found, through=estimate_through, num_canary=5)
        assert len(found.single) == 5 and not found.batches
        assert "at batch prices" in bench.out.getvalue()


def test_batch_where_no_model_can_is_refused() -> None:
    with pytest.raises(ConfigError, match="no model server here can gather"):
        load(["+config_paths=[configs/demo.yaml]", "+batch=true"], CollectConfig)
    given = load(["+config_paths=[configs/demo.yaml]", "+batch=true"], RunConfig)
    assert any("no model server here can gather" in each for each in given.warnings)


def test_a_plan_says_what_waits(bench: Bench) -> None:
    with imitation() as found:
        collect(bench, [row("q")], found, settings={"batch_size": 100})
    said = bench.out.getvalue()
    assert "policy_model answers in batches of OpenAI, of up to 100 requests" in said
    assert_prints("docs/batch.md", "policy_model answers in batches", said)


@pytest.fixture
def place(tmp_path: Path) -> Any:
    with imitation() as found:
        yield Workplace(tmp_path, found), found  # type: ignore[arg-type]


def usd_of(lines: list[JsonObject]) -> float:
    return sum(line["rollout"]["cost_usd"] for line in lines)


def test_ctrl_c_leaves_a_batch_to_the_provider_and_the_same_command_fetches_it(
    place: tuple[Workplace, Imitation],
) -> None:
    workplace, found = place
    workplace.tasks(30)
    found.is_held = True
    argv = workplace.collect_argv("+batch=true", *SOON, PRICES)
    process = workplace.start("collect_rollouts", *argv)
    eventually(lambda: found.batches)
    eventually(lambda: any("batch_0" in path for path in found.paths))
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 3 or process.returncode == 130, said
    assert "30 rollouts wait for batches, which keep running at the provider" in said
    found.is_held = False
    status, said = workplace.run("collect_rollouts", *argv)
    assert status == 0, said
    assert len(workplace.lines()) == 30 and set(found.submitted.values()) == {1}


@contextmanager
def at_a_terminal(workplace: Workplace, argv: list[str]) -> Iterator[tuple[Any, int]]:
    """A collection whose controlling terminal is ours: the process, and what to type at."""
    here, there = pty.openpty()
    code = "from rollout_kit.commands import main; main('ng_collect_rollouts')"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *argv],
        cwd=workplace.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=there,
        stdout=there,
        stderr=there,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(there)
    try:
        yield process, here
    finally:
        process.kill()
        process.wait()
        os.close(here)


def read_until(here: int, words: str) -> str:
    """What a terminal shows, up to these words, or to its end."""
    shown = b""
    with suppress(OSError):  # nobody writes any more
        while words.encode() not in shown and (more := os.read(here, 4096)):
            shown += more
    return shown.decode(errors="replace")


@pytest.mark.parametrize("answer", ["y", "n"])
def test_ctrl_c_at_a_terminal_asks_whether_the_batches_end(
    place: tuple[Workplace, Imitation], answer: str
) -> None:
    workplace, found = place
    workplace.tasks(30)
    found.is_held = True
    argv = workplace.collect_argv("+batch=true", *SOON, PRICES)
    question, ends = "End the batches at the provider too? [y/N]", answer == "y"
    with at_a_terminal(workplace, argv) as (process, here):
        eventually(lambda: any("batch_0" in path for path in found.paths))
        os.write(here, b"\x03")
        assert question in read_until(here, question)
        os.write(here, f"{answer}\n".encode())
        said = read_until(here, "\0")
        assert process.wait(timeout=HANG_S) == 130, said
    assert ("Batches ended: 1" in said) is ends
    assert ("which keep running at the provider" in said) is not ends
    assert any(path.endswith("/cancel") for path in found.paths) is ends
    found.is_held = False
    status, said = workplace.run("collect_rollouts", *argv)
    assert status == 0, said
    assert len(workplace.lines()) == 30
    assert found.twice == [] and (max(found.submitted.values()) > 1) is ends


@pytest.mark.parametrize(
    ("number", "size", "least"), [(60, 25, 4), slow(10_000, 1_000, 20)], ids=["60", "10,000"]
)
def test_every_key_once_and_no_request_twice_through_kills(
    place: tuple[Workplace, Imitation], number: int, size: int, least: int
) -> None:
    """Each two runs are killed at one request later than the two before, once before it is handled
    and once after that."""
    workplace, found = place
    workplace.tasks(number)
    found.errors, found.expires, found.looks = 0.05, 0.05, 3
    argv = workplace.collect_argv("+batch=true", *SOON, PRICES, f"+{MODEL}.batch_size={size}")
    num_kills = 0
    for turn in range(200):
        process = workplace.start("collect_rollouts", *argv)
        killing = Killing(process.pid, 1 + turn // 2, "after" if turn % 2 else "before")
        found.at = killing.at
        said, _ = process.communicate(timeout=120)
        num_kills += killing.has_killed
        if not killing.has_killed:
            assert process.returncode == 0, said
            break
    found.at = lambda when, what: None
    lines = workplace.lines()
    keys = [(line["rollout"]["task_id"], line["rollout"]["rollout_index"]) for line in lines]
    assert len(keys) == len(set(keys)) == number and num_kills >= least
    assert not found.twice and not found.single
    assert usd_of(lines) <= 0.55 * STANDARD_USD * number


class Killing:
    """Kills a process at one of its requests."""

    def __init__(self, pid: int, point: int, when: str) -> None:
        self._pid, self._left, self._when = pid, point, when
        self.has_killed = False

    def at(self, when: str, what: str) -> None:
        if when == self._when and not self.has_killed:
            self._left -= 1
            if not self._left:
                self.has_killed = True
                os.kill(self._pid, signal.SIGKILL)


def test_ng_status_shows_what_waits_and_a_collection_uses_the_servers(
    place: tuple[Workplace, Imitation],
) -> None:
    workplace, found = place
    workplace.tasks(20)
    found.is_held = True
    with workplace.ng_run("+batch=true", *SOON, PRICES) as (_, port, _):
        files = ["+input_jsonl_fpath=tasks.jsonl", "+output_jsonl_fpath=out/rollouts.jsonl"]
        process = workplace.start("collect_rollouts", *files, f"+head_server.port={port}")
        said_until(process, "answers in batches")
        eventually(lambda: found.batches)

        def load() -> JsonObject:
            _, text = workplace.run("status", f"+head_server.port={port}", "+json=true")
            servers = json.loads(text.splitlines()[-1])["servers"]
            return next(each["load"] for each in servers if each["name"] == "policy_model")

        eventually(lambda: load().get("in_batches") == 20)
        found.is_held = False
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said
    assert len(workplace.lines()) == 20
