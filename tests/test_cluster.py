"""Collections on several worker processes: the same result, and nothing lost or paid for twice."""

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import eventually, read_jsonl
from test_chaos_suite import Site

WORKERS = ["+executor=processes", "+num_workers=2"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path, latency_s=0.2).endpoint() as site:
        yield site


def workers_of(driver: "subprocess.Popen[str]") -> list[int]:
    """Process ids of the workers of a driver."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int(path.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            command = path.joinpath("cmdline").read_bytes()
        except OSError:
            continue
        if parent == driver.pid and b"rollout_kit.cluster.worker" in command:
            found.append(int(path.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def check_keys(site: Site, number: int) -> list[dict[str, Any]]:
    lines = read_jsonl(site.folder / "out/rollouts.jsonl")
    keys = Counter((line["rollout"]["task_id"], line["_ng_rollout_index"]) for line in lines)
    assert len(keys) == len(lines) == number
    return lines


def metrics_of(site: Site) -> dict[str, Any]:
    return json.loads((site.folder / "out/rollouts_aggregate_metrics.json").read_bytes())


def test_workers_make_what_one_process_makes(site: Site) -> None:
    site.tasks(60)
    status, said = site.collect("+num_repeats=3", *WORKERS)
    assert status == 0, said
    assert "worker 1 is ready" in said and "worker 2 is ready" in said
    check_keys(site, 180)
    spread = metrics_of(site)
    assert site.num_answered() == 180
    status, said = site.collect("+num_repeats=3", "+resume=fresh")
    assert status == 0, said
    alone = metrics_of(site)
    assert spread["metrics"]["reward"] == alone["metrics"]["reward"]
    for name in ("pass_at_k", "tasks", "rollouts"):
        assert spread.get(name) == alone.get(name)


def test_a_killed_worker_loses_only_what_it_had_in_flight(site: Site) -> None:
    site.tasks(400)
    driver = site.collecting(*WORKERS, "+num_samples_in_parallel=64")
    site.wait_for_lines(100)
    os.kill(workers_of(driver)[0], signal.SIGKILL)
    status, said = site.ended(driver)
    assert status == 0, said
    assert "is lost, it was killed by SIGKILL" in said
    check_keys(site, 400)
    assert site.num_answered() <= 400 + 2 * 64


def test_a_worker_that_stands_still_is_replaced_and_may_come_back(site: Site) -> None:
    site.tasks(400)
    driver = site.collecting(*WORKERS, "+num_samples_in_parallel=64", "+worker_lease_s=4")
    site.wait_for_lines(50)
    stopped = workers_of(driver)[0]
    os.kill(stopped, signal.SIGSTOP)
    site.wait_for_lines(330)
    os.kill(stopped, signal.SIGCONT)
    status, said = site.ended(driver)
    assert status == 0, said
    check_keys(site, 400)
    assert site.num_answered() <= 400 + 2 * 64


def test_the_same_command_continues_after_its_driver_was_killed(site: Site) -> None:
    site.tasks(300)
    driver = site.collecting(*WORKERS, "+num_samples_in_parallel=64")
    site.wait_for_lines(100)
    workers = workers_of(driver)
    driver.send_signal(signal.SIGKILL)
    site.ended(driver)
    eventually(lambda: not any(map(is_alive, workers)))
    status, said = site.collect(*WORKERS)
    assert status == 0, said
    check_keys(site, 300)
    assert site.num_answered() <= 300 + 2 * 64


def test_responses_of_a_lost_worker_that_wait_for_verdicts_are_kept(site: Site) -> None:
    site.tasks(64)
    driver = site.collecting(*WORKERS, "+verdict_s=3", "+park_after_s=0.2")
    eventually(lambda: site.num_on_disk() == 64)
    os.kill(workers_of(driver)[0], signal.SIGKILL)
    status, said = site.ended(driver)
    assert status == 0, said
    check_keys(site, 64)
    assert site.num_answered() == 64


def test_a_limit_on_tokens_holds_over_all_workers(site: Site) -> None:
    site.tasks(300)
    limits = ["+max_total_tokens=300", "+num_samples_in_parallel=16"]
    status, said = site.collect(*WORKERS, *limits)
    assert "max_total_tokens=300" in said and status != 0, said
    lines = read_jsonl(site.folder / "out/rollouts.jsonl")
    spread = sum(line["usage"]["total_tokens"] for line in lines)
    most = max(line["usage"]["total_tokens"] for line in lines)
    assert 300 <= spread <= 300 + 16 * most


def test_ctrl_c_lets_all_workers_finish(site: Site) -> None:
    site.tasks(400)
    driver = site.collecting(*WORKERS, "+num_samples_in_parallel=64")
    site.wait_for_lines(100)
    workers = workers_of(driver)
    driver.send_signal(signal.SIGINT)
    _, said = site.ended(driver)
    assert "in flight may finish" in said
    assert not any(map(is_alive, workers))
    lines = read_jsonl(site.folder / "out/rollouts.jsonl")
    assert len(lines) == site.num_answered()
    assert site.collect(*WORKERS)[0] == 0
    check_keys(site, 400)
    assert site.num_answered() == 400


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["+num_workers=2"], "num_workers: add +executor=processes"),
        (
            [*WORKERS, "+record=tape"],
            "record: model calls are recorded and replayed in one process",
        ),
        (["+executor=processes", "+num_workers=0"], "num_workers"),
        (["+executor=slurm"], "executor"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(
    tmp_path: Path, words: list[str], reason: str
) -> None:
    status, said = Site(tmp_path).collect(*words)
    assert status == 1 and reason in said and "Traceback" not in said


def test_a_worker_that_cannot_start_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    with Site(tmp_path).endpoint() as site:
        path = site.folder / "resources_servers/patient/app.py"
        broken = "\n    async def start(self) -> None:\n        raise OSError('no such disk')\n"
        path.write_text(path.read_text() + broken)
        status, said = site.collect(*WORKERS)
    assert status == 1 and "no such disk" in said and "worker 1" in said, said
