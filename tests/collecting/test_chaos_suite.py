"""`make chaos`: dozens of kills, an endpoint that fails in every way, full disks, moved clocks.

Real processes against the simulated model. `ng_chaos` itself does the killing and the checking.
"""

import json
import math
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from endpoint import endpoint
from support import asked, eventually, read_jsonl, row, write_jsonl
from workplace import ROOT, Workplace

from rollout_kit.api.testing import text_response
from rollout_kit.serving.sockets import bound_socket

pytestmark = pytest.mark.chaos

VERIFIER = """
import asyncio

from rollout_kit.serving.resources_server import ResourcesServer, ResourcesServerConfig
from rollout_kit.responses import output_text
from rollout_kit.types import VerifyRequest, VerifyResponse


class Config(ResourcesServerConfig):
    verdict_s: float = 0


class Row(VerifyRequest):
    expected: str


class Patient(ResourcesServer):
    Config = Config

    async def verify(self, body: Row) -> VerifyResponse:
        if self.config.verdict_s:
            await asyncio.sleep(self.config.verdict_s)
        return body.scored(float(output_text(body.response) == body.expected))
"""

CONFIG = """
model_port: 0
verdict_s: 0
policy_model:
  responses_api_models:
    openai_model:
      openai_base_url: http://127.0.0.1:${model_port}/v1
      openai_model: simulated
      openai_api_key: sk-planted-0123456789
      request_timeout_s: 20
      max_tries: 6
patient: {resources_servers: {patient: {verdict_s: "${verdict_s}"}}}
patient_agent:
  responses_api_agents:
    simple_agent:
      resources_server: {type: resources_servers, name: patient}
      model_server: {type: responses_api_models, name: policy_model}
"""

FAULTS = """
      faults:
        - {kind: 500, probability: 0.05}
        - {kind: reset, probability: 0.05}
        - {kind: half_body, probability: 0.05}
        - {kind: 429, probability: 0.05, retry_after_s: 0.5}
        - {kind: hang, probability: 0.01}
        - {kind: garbage, probability: 0.01}
"""


def ahead() -> tuple[str, ...]:
    """Ahead of what else the machine does, where that is allowed: a collector that gets no CPU
    loses what it could not read yet."""
    nice = ("nice", "-n", "-15")
    allowed = subprocess.run([*nice, "true"], capture_output=True, text=True)
    return () if allowed.returncode or allowed.stderr else nice


FILES = ["+input_jsonl_fpath=tasks.jsonl", "+output_jsonl_fpath=out/rollouts.jsonl"]


class Site:
    """A working folder and a simulated model in a process of its own, which outlives all kills."""

    def __init__(self, folder: Path, faults: str = "", latency_s: float = 0.1) -> None:
        self.folder = folder
        (folder / "resources_servers/patient").mkdir(parents=True)
        (folder / "resources_servers/patient/app.py").write_text(VERIFIER)
        (folder / "run.yaml").write_text(CONFIG)
        with bound_socket("127.0.0.1", 0) as head, bound_socket("127.0.0.1", 0) as model:
            self.port, self.head = model.getsockname()[1], head.getsockname()[1]
        block = f"{{placement: process, port: {self.port}, latency_s: {latency_s}}}"
        if faults:
            block = (
                f"\n      placement: process\n      port: {self.port}\n      latency_s: {latency_s}"
            )
        text = f"endpoint:\n  responses_api_models:\n    simulated_model: {block}{faults}\n"
        (folder / "endpoint.yaml").write_text(text)
        self.config = ["+config_paths=[run.yaml]", f"+model_port={self.port}"]
        self.tasks(1)

    def tasks(self, number: int, first: int = 0) -> None:
        write_jsonl(self.folder / "tasks.jsonl", self.rows(number, first))

    def rows(self, number: int, first: int = 0) -> list[dict[str, Any]]:
        return [row(f"q{index}") for index in range(first, first + number)]

    def command(self, command: str, *argv: str) -> list[str]:
        code = f"import sys; from rollout_kit.commands import main; main('ng_{command}')"
        return [sys.executable, "-c", code, *argv]

    def start(
        self, command: str, *argv: str, under: tuple[str, ...] = (), **env: str
    ) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*under, *self.command(command, *argv)],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def collecting(
        self, *argv: str, under: tuple[str, ...] = (), **env: str
    ) -> "subprocess.Popen[str]":
        words = [*self.config, *FILES, *argv]
        return self.start("collect_rollouts", *words, under=under, **env)

    def ended(self, process: "subprocess.Popen[str]", timeout_s: float = 120) -> tuple[int, str]:
        try:
            output, _ = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
        return process.returncode, output

    def collect(self, *argv: str, **env: str) -> tuple[int, str]:
        return self.ended(self.collecting(*argv, **env))

    def chaos(self, *argv: str, timeout_s: float = 900) -> dict[str, Any]:
        """The report of ng_chaos, which must hold."""
        process = self.start("chaos", *self.config, *FILES, "+json=true", *argv)
        status, output = self.ended(process, timeout_s)
        assert status == 0, output
        assert "too late" not in output, output
        return json.loads(output.splitlines()[-1])

    def check(self, *argv: str) -> None:
        """That the files are sound; by the command, as a user would."""
        self.chaos("+check_only=true", "+num_reverified=5", *argv)

    def asked(self, path: str, data: bytes | None = None) -> Any:
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as reply:
            return json.load(reply)

    def num_answered(self) -> int:
        """Whole answers that the model has given."""
        return self.asked("/stats")["by_status"].get("200", 0)

    def num_on_disk(self) -> int:
        """Rollouts and responses whose line is whole."""
        keys = set()
        for suffix in ("", ".d/unverified"):
            path = self.folder / f"out/rollouts{suffix}.jsonl"
            raw = path.read_bytes() if path.exists() else b""
            keys |= {json.loads(line)["rollout"]["task_id"] for line in raw.split(b"\n")[:-1]}
        return len(keys)

    def wait_for_lines(self, number: int) -> None:
        path = self.folder / "out/rollouts.jsonl"
        eventually(lambda: path.exists() and path.read_bytes().count(b"\n") >= number)

    @contextmanager
    def endpoint(self) -> Iterator["Site"]:
        argv = ["+config_paths=[endpoint.yaml]", f"+head_server.port={self.head}", "+log_dir=null"]
        process = self.start("run", *argv, under=ahead())
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "servers ready" in line:
                    break
            else:
                raise AssertionError("the endpoint does not start")
            yield self
        finally:
            process.send_signal(signal.SIGINT)
            self.ended(process, 30)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path).endpoint() as site:
        yield site


Note = Callable[[str, object], None]


BUSY = 1.5
"""Others' load for each core from which on a collector does not get to read what it is sent."""


@pytest.mark.parametrize(("verdict_s", "within_s"), [(0, 0.5), (10, 1.2)])
def test_an_answer_that_was_given_is_on_disk_when_the_collector_is_killed(
    site: Site, verdict_s: float, within_s: float, record_property: Note
) -> None:
    busy = os.getloadavg()[0] > BUSY * (os.cpu_count() or 1)
    site.tasks(6000)
    rng, lost = random.Random(0), []
    for _ in range(10):
        shutil.rmtree(site.folder / "out", ignore_errors=True)
        site.asked("/reset_stats", b"{}")
        argv = [f"+verdict_s={verdict_s}", "+num_samples_in_parallel=64"]
        collector = site.collecting(*argv, under=ahead())
        eventually(lambda: site.num_answered() >= 1000)
        time.sleep(rng.uniform(0, within_s))
        # frozen, then killed: a killed process keeps its connections until its memory is gone, and
        # what is answered meanwhile, some ten milliseconds, nobody could have put on disk
        collector.send_signal(signal.SIGSTOP)
        answered = site.num_answered()
        collector.kill()
        collector.communicate()
        lost.append(answered - site.num_on_disk())
    said = f"median {statistics.median(lost):g} of {sorted(lost)}"
    record_property(f"answers lost, verdict {verdict_s:g} s", said)
    if busy and statistics.median(lost) > 5:
        pytest.skip(f"too busy a machine to tell: {said}")
    assert statistics.median(lost) <= 5, said


@pytest.mark.parametrize(
    ("victim", "number", "num_tasks"),
    [("collector", 30, 3000), ("servers", 10, 2000), ("ng_run", 10, 2000)],
)
def test_killed_at_random_moments_it_holds(
    site: Site, victim: str, number: int, num_tasks: int, record_property: Note
) -> None:
    site.tasks(num_tasks)
    none = [f"+kills.{each}=0" for each in ("collector", "servers", "ng_run") if each != victim]
    report = site.chaos(*none, f"+kills.{victim}={number}")
    states = {name: each["state"] for name, each in report["invariants"].items()}
    assert set(states.values()) == {"held"}, report
    assert len(read_jsonl(site.folder / "out/rollouts.jsonl")) == num_tasks
    record_property(f"{number} kills of {victim}", report["invariants"]["ends"]["note"])


def test_an_endpoint_that_fails_in_every_way_costs_no_rollout(
    tmp_path: Path, record_property: Note
) -> None:
    with Site(tmp_path, FAULTS).endpoint() as site:
        site.tasks(2000)
        none = [f"+kills.{each}=0" for each in ("collector", "servers", "ng_run")]
        report = site.chaos(*none, "+max_attempts=5", "+run_timeout_s=300")
        assert set(report["invariants"]) == {
            name for name, each in report["invariants"].items() if each["state"] == "held"
        }
        struck = site.asked("/stats")["by_fault"]
    assert set(struck) == {"500", "reset", "half_body", "429", "hang", "garbage"}
    lines = read_jsonl(site.folder / "out/rollouts.jsonl")
    assert len(lines) == 2000 and {line["reward"] for line in lines} == {1.0}
    record_property(f"{sum(struck.values())} faults", report["invariants"]["ends"]["note"])


NUM_TURNS = 32

COUNTER = """
from rollout_kit.serving.resources_server import ResourcesServer, tool
from rollout_kit.types import JsonObject, VerifyRequest, VerifyResponse


class Counter(ResourcesServer):
    reverify = "replay"

    async def seed_session(self, body: JsonObject) -> JsonObject:
        self.state = {"count": 0}
        return {}

    @tool
    async def count(self) -> str:
        self.state["count"] += 1
        return str(self.state["count"])

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        return body.scored(float(self.state["count"]))
"""

LONG = """
model_port: 0
policy_model:
  responses_api_models:
    openai_model:
      openai_base_url: http://127.0.0.1:${model_port}/v1
      openai_model: simulated
      openai_api_key: sk-planted-0123456789
counter: {resources_servers: {counter: {}}}
counter_agent:
  responses_api_agents:
    simple_agent:
      resources_server: {type: resources_servers, name: counter}
      model_server: {type: responses_api_models, name: policy_model}
"""


@pytest.mark.parametrize(
    ("kills", "num_tasks"),
    [({"collector": 100}, 400), ({"collector": 20, "servers": 10}, 200)],
)
def test_long_rollouts_that_are_killed_are_not_paid_for_again(
    tmp_path: Path, kills: dict[str, int], num_tasks: int, record_property: Note
) -> None:
    """Calls are counted at the endpoint. A kill costs those in flight, and young rollouts."""
    tools = f"\n      num_tool_turns: {NUM_TURNS - 1}\n      prices: {{input: 1, output: 1}}"
    site = Site(tmp_path, tools, latency_s=0.02)
    (tmp_path / "resources_servers/counter").mkdir(parents=True)
    (tmp_path / "resources_servers/counter/app.py").write_text(COUNTER)
    (tmp_path / "run.yaml").write_text(LONG)
    with site.endpoint():
        site.tasks(num_tasks)
        words = [f"+kills.{each}={kills.get(each, 0)}" for each in ("collector", "servers")]
        report = site.chaos("+num_samples_in_parallel=8", "+kills.ng_run=0", *words)
        num_calls = sum(site.asked("/stats")["by_path"].values())
    assert {each["state"] for each in report["invariants"].values()} == {"held"}, report
    lines = read_jsonl(site.folder / "out/rollouts.jsonl")
    assert len(lines) == num_tasks == len({line["rollout"]["task_id"] for line in lines})
    assert {(line["reward"], line["rollout"]["num_turns"]) for line in lines} == {(31.0, 32)}
    assert not (site.folder / "out/rollouts.d/turns.jsonl").exists()
    planned = num_tasks * NUM_TURNS
    resumed = sum("resumed_turns" in line["rollout"] for line in lines)
    said = f"{num_calls:,} for {planned:,} planned ({num_calls / planned:.3f}), {resumed} continued"
    record_property(f"model calls, {kills} kills", said)
    assert num_calls <= 1.1 * planned, said


def can_mount() -> bool:
    argv = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return (
        bool(shutil.which("unshare")) and not subprocess.run(argv, capture_output=True).returncode
    )


needs_mount = pytest.mark.skipif(not can_mount(), reason="needs unshare, and leave to mount")


@needs_mount
def test_odd_huge_dropped_and_throttled_replies_are_paid_for_once(tmp_path: Path) -> None:
    """Each row has its own trouble; the others do not notice, and nothing good is asked again."""
    throttled: Counter[str] = Counter()

    def behave(body: dict[str, Any]) -> tuple[int, Any]:
        question = asked(body)
        answer = text_response(question)
        if question == "q1":  # not strict JSON: NaN, a lone surrogate
            return 200, {**answer, "metadata": {"score": math.nan, "text": "\ud800"}}
        if question == "q2":
            return 200, text_response("x" * 3_000_000)
        if question == "q3":
            return 0, {}
        if question == "q4" and throttled[question] < 10:
            throttled[question] += 1
            return 429, {"error": {"message": "slow down"}}
        if question == "q5":
            deep: Any = []
            for _ in range(300):
                deep = [deep]
            return 200, {**answer, "metadata": {"deep": deep}}
        return 200, answer

    with endpoint(behave) as model:
        place = Workplace(tmp_path, model)
        place.tasks(40)
        few = "+policy_model.responses_api_models.openai_model.max_tries=2"
        small = "+policy_model.responses_api_models.openai_model.max_reply_mb=1"
        status, said = place.collect(few, small, "+max_attempts=2", "+num_samples_in_parallel=4")
        assert status == 2, said
        assert sorted(set(place.questions())) == sorted({f"q{n}" for n in range(40)} - {"q2", "q3"})
        once = {question for question, number in model.saw.items() if number == 1}
        assert {f"q{number}" for number in range(40)} - once == {"q3", "q4"}, model.saw
        assert model.saw["q4"] == 11 and model.saw["q3"] <= 12
        failed = {each["failure"]["message"] for each in place.lines("failures")}
        assert len(failed) == 2 and any("max_reply_mb=1" in message for message in failed), failed
        repaired = [line for line in place.lines() if "repaired" in line["rollout"]]
        assert len(repaired) == 2
        before = sum(model.saw.values())
        place.collect(few, small, "+max_attempts=2")
        again = sum(model.saw.values()) - before
        assert again <= 5, "what is done is not asked again"


def test_a_disk_that_is_full_leaves_whole_lines_and_room_continues(site: Site) -> None:
    site.tasks(400)
    (site.folder / "out").mkdir()
    collect = site.command("collect_rollouts", *site.config, *FILES)
    script = """
        mount -t tmpfs -o size=200k none out
        "$@"; echo "status $?"; cp out/rollouts.jsonl first.jsonl; ls out
        mount -o remount,size=50m out
        "$@"; echo "status $?"; cp out/* kept/
    """
    (site.folder / "kept").mkdir()
    process = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", *collect],
        cwd=site.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = process.stdout + process.stderr
    assert re.findall(r"status (\d+)", said) == ["1", "0"], said
    assert "every line in it is whole: make room and run the same command again" in said
    assert said.count("Traceback") == 0, said
    first = (site.folder / "first.jsonl").read_bytes()
    assert first.endswith(b"\n") and 0 < first.count(b"\n") < 400
    shutil.copytree(site.folder / "kept", site.folder / "out", dirs_exist_ok=True)
    assert (site.folder / "out/rollouts.jsonl").read_bytes().startswith(first)
    site.check()


@needs_mount
def test_an_output_that_is_read_only_is_one_line(site: Site) -> None:
    (site.folder / "out").mkdir()
    collect = site.command("collect_rollouts", *site.config, *FILES)
    script = 'mount -t tmpfs none out && mount -o remount,ro out && "$@"'
    process = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", *collect],
        cwd=site.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 1 and site.num_answered() == 0
    assert "error: cannot write out/rollouts.jsonl: Read-only file system" in process.stderr
    assert "Traceback" not in process.stderr


@pytest.mark.parametrize(
    ("act", "undo"),
    [
        ("rm rollouts.jsonl", "true"),
        ("rm -r ../out", "true"),
        ("mv rollouts.jsonl old.jsonl", "mv old.jsonl rollouts.jsonl"),
        ("sed -i s/simulated/Simulated/ rollouts.jsonl", "true"),
    ],
)
def test_an_output_that_another_program_touches_is_lost_in_no_part(
    site: Site, act: str, undo: str
) -> None:
    site.tasks(800)
    collector = site.collecting("+num_samples_in_parallel=16")
    site.wait_for_lines(100)
    subprocess.run(act, shell=True, check=True, cwd=site.folder / "out")
    status, output = site.ended(collector)
    assert status == 1 and "while rollouts were collected; the run stopped" in output, output
    assert "Traceback" not in output
    assert 100 < site.num_answered() < 800
    subprocess.run(undo, shell=True, check=True, cwd=site.folder / "out")
    status, output = site.collect()
    assert status == 0, output
    assert len(read_lines(site)) == site.num_answered() == 800
    site.check()


FSYNC = """
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
#include <sys/syscall.h>

int fsync(int descriptor) {
    char *flag = getenv("FSYNC_FAILS");
    if (access(flag, F_OK) == 0) return unlink(flag), errno = EIO, -1;
    return syscall(SYS_fsync, descriptor);
}
"""
"""Fails once when the file FSYNC_FAILS is there, as the kernel reports a lost write only once."""


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_an_fsync_that_fails_stops_the_run(site: Site) -> None:
    site.tasks(800)
    (site.folder / "fsync.c").write_text(FSYNC)
    shim, flag = site.folder / "fsync.so", site.folder / "fails"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, site.folder / "fsync.c"], check=True)
    env = {"LD_PRELOAD": str(shim), "FSYNC_FAILS": str(flag)}
    collector = site.collecting("+num_samples_in_parallel=16", **env)
    site.wait_for_lines(100)
    flag.touch()
    status, output = site.ended(collector)
    assert status == 1 and "Traceback" not in output, output
    assert re.search(r"Of the [\d,]+ lines .* the first [\d,]+ are known to be on disk", output)
    assert site.num_answered() < 800
    status, output = site.collect()
    assert status == 0, output
    assert len(read_lines(site)) == 800
    site.check()


def test_few_open_files_slow_a_run_down_and_do_not_end_it(site: Site) -> None:
    site.tasks(1200)
    few = ("sh", "-c", 'ulimit -n 256; exec "$@"', "sh")
    collector = site.collecting("+num_samples_in_parallel=300", under=few)
    status, output = site.ended(collector)
    assert status == 0 and "warning: 'ulimit -n' of this shell is too low for 300" in output, output
    assert site.num_answered() == 1200
    site.check()


def test_of_two_collectors_on_one_file_one_stops_at_once(site: Site) -> None:
    site.tasks(600)
    both = [site.collecting(), site.collecting()]
    eventually(lambda: any(each.poll() is not None for each in both))
    loser = next(each for each in both if each.poll() is not None)
    [winner] = [each for each in both if each is not loser]
    status, output = site.ended(loser)
    assert status == 1 and "is being written by another collector" in output, output
    status, output = site.ended(winner)
    assert status == 0, output
    assert site.num_answered() == 600
    site.check()


CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>

static long moved(void) {
    struct stat found;
    return stat(getenv("CLOCK_MOVED"), &found) ? 0 : atol(getenv("CLOCK_BY"));
}
int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, now);
    if (id == CLOCK_REALTIME) now->tv_sec += moved();
    return failed;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec, now->tv_usec = found.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *to) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    return to ? (*to = found.tv_sec) : found.tv_sec;
}
"""
"""Once the file CLOCK_MOVED is there the system's clock is off by CLOCK_BY seconds."""


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
@pytest.mark.parametrize("by_s", [86_400, -86_400])
def test_a_clock_that_is_moved_disturbs_nothing(site: Site, by_s: int) -> None:
    site.tasks(1000)
    (site.folder / "clock.c").write_text(CLOCK)
    shim, moved = site.folder / "clock.so", site.folder / "moved"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", shim, site.folder / "clock.c", "-ldl"], check=True
    )
    env = {"LD_PRELOAD": str(shim), "CLOCK_MOVED": str(moved), "CLOCK_BY": str(by_s)}
    began = time.monotonic()
    collector = site.collecting("+rollout_timeout_s=60", "+request_timeout_s=60", **env)
    site.wait_for_lines(100)
    moved.touch()
    status, output = site.ended(collector, 60)
    assert status == 0, output
    stamps = [line["rollout"]["started_at"][:10] for line in read_lines(site)]
    assert len(set(stamps)) >= 2, "the clock was not moved"
    blocks = [line["rollout"] for line in read_lines(site)]
    assert all(0 <= block["duration_s"] < 60 for block in blocks)
    metrics = json.loads((site.folder / "out/rollouts_aggregate_metrics.json").read_text())
    assert 0 < metrics["throughput"]["elapsed_s"] < time.monotonic() - began
    site.check()


def read_lines(site: Site) -> list[dict[str, Any]]:
    return read_jsonl(site.folder / "out/rollouts.jsonl")


def test_an_input_that_grows_is_collected_to_its_end_by_the_same_command(site: Site) -> None:
    site.tasks(600)
    collector = site.collecting()
    site.wait_for_lines(100)
    with (site.folder / "tasks.jsonl").open("a") as stream:
        stream.writelines(json.dumps(each) + "\n" for each in site.rows(100, first=600))
    status, output = site.ended(collector)
    assert status in (0, 2), output
    assert site.collect()[0] == 0
    assert len(read_lines(site)) == 700 and site.num_answered() == 700
    site.check()


def test_an_input_that_vanishes_loses_nothing_that_is_done(site: Site) -> None:
    site.tasks(2000)
    tasks, elsewhere = site.folder / "tasks.jsonl", site.folder / "elsewhere.jsonl"
    collector = site.collecting()
    site.wait_for_lines(100)
    tasks.rename(elsewhere)
    status, output = site.ended(collector)
    assert status in (0, 1, 2) and "Traceback" not in output, output
    status, output = site.collect()
    assert status == 1 and "no input file tasks.jsonl" in output
    before = (site.folder / "out/rollouts.jsonl").read_bytes()
    elsewhere.rename(tasks)
    assert site.collect()[0] == 0
    assert (site.folder / "out/rollouts.jsonl").read_bytes().startswith(before)
    assert len(read_lines(site)) == 2000 and site.num_answered() == 2000
    site.check()


def test_an_input_that_is_cut_short_stops_nothing(site: Site) -> None:
    site.tasks(2000)
    tasks = site.folder / "tasks.jsonl"
    whole = tasks.read_bytes()
    collector = site.collecting()
    site.wait_for_lines(100)
    os.truncate(tasks, len(whole) // 2 + 7)
    status, output = site.ended(collector)
    assert status in (0, 1, 2) and "Traceback" not in output, output
    tasks.write_bytes(whole)
    assert site.collect()[0] in (0, 2)
    assert len(read_lines(site)) == 2000
