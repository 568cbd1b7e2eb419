"""Collections on several worker processes: the same result, and nothing lost or paid for twice."""

import json
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support import alive, eventually, read_jsonl, write_jsonl
from test_chaos_suite import FILES, Note, Site
from workplace import said_until

from rollout_kit.collecting.cluster.ray_cluster import describe_refusal
from rollout_kit.serving.sockets import bound_socket

PROCESSES = ["+executor=processes", "+num_workers=2"]

EXECUTORS = ["processes", *(["ray"] if find_spec("ray") else [])]
"""`make test-ray` runs the tests that need Ray where it is installed."""

RAY_AUTH = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "ab" * 32}
"""On Linux Ray listens on all interfaces."""


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Any]:
    """A Ray cluster of one node, with two workers' CPUs: it starts once for many tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in RAY_AUTH.items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
        try:
            yield cluster
        finally:
            cluster.shutdown()


@pytest.fixture(params=EXECUTORS)
def workers(request: pytest.FixtureRequest) -> list[str]:
    """The words that a command needs for two workers."""
    words = [f"+executor={request.param}", "+num_workers=2"]
    if request.param == "ray":
        words.append(f"+ray_address={request.getfixturevalue('ray_cluster').address}")
    return words


@pytest.fixture(params=EXECUTORS)
def own_workers(request: pytest.FixtureRequest) -> list[str]:
    """The same, with a Ray cluster that the command starts."""
    return [f"+executor={request.param}", "+num_workers=2"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path, latency_s=0.2).endpoint() as site:
        yield site


def workers_of(site: Site) -> list[int]:
    """Process ids of the workers of a site."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            is_worker = (
                b"rollout_kit.collecting.cluster.worker" in path.joinpath("cmdline").read_bytes()
            )
            if is_worker and path.joinpath("cwd").readlink() == site.folder:
                found.append(int(path.name))
        except OSError:
            continue
    return found


def hold_verdicts(site: Site) -> None:
    """Have no rollout end before `wait_for_workers`: else the first worker may have done all."""
    path = site.folder / "resources_servers/patient/app.py"
    verdict = "        if self.config.verdict_s:"
    held = "        import os\n        while os.path.exists('held'):\n"
    held += "            await asyncio.sleep(0.02)\n"
    path.write_text(path.read_text().replace(verdict, held + verdict))
    (site.folder / "held").touch()


def wait_for_workers(site: Site, driver: "subprocess.Popen[str]") -> None:
    """Wait until both workers are ready, and let the rollouts end."""
    for _ in range(2):
        said_until(driver, "is ready")
    (site.folder / "held").unlink()


def lose_worker(site: Site, driver: "subprocess.Popen[str]", number: int) -> tuple[int, str]:
    """Kill or freeze a worker that was ready, and let the run end without it."""
    lost = workers_of(site)[0]
    os.kill(lost, number)
    said_until(driver, "is lost")
    if number == signal.SIGSTOP:
        os.kill(lost, signal.SIGCONT)
    return site.ended(driver)


def check_keys(site: Site, number: int) -> list[dict[str, Any]]:
    lines = read_jsonl(site.folder / "out/rollouts.jsonl")
    keys = Counter((line["rollout"]["task_id"], line["_ng_rollout_index"]) for line in lines)
    assert len(keys) == len(lines) == number
    return lines


def metrics_of(site: Site) -> dict[str, Any]:
    return json.loads((site.folder / "out/rollouts_aggregate_metrics.json").read_bytes())


def test_workers_make_what_one_process_makes(site: Site, own_workers: list[str]) -> None:
    site.tasks(60)
    status, said = site.collect("+num_repeats=3", *own_workers)
    assert status == 0, said
    assert re.search(r"worker 1 .*is ready", said) and re.search(r"worker 2 .*is ready", said)
    check_keys(site, 180)
    spread = metrics_of(site)
    assert site.num_answered() == 180
    status, said = site.collect("+num_repeats=3", "+resume=fresh")
    assert status == 0, said
    alone = metrics_of(site)
    assert spread["metrics"]["reward"] == alone["metrics"]["reward"]
    for name in ("pass_at_k", "pass_at_k_tasks", "counts", "usage"):
        assert spread[name] == alone[name]


def test_a_killed_worker_loses_only_what_it_had_in_flight(site: Site, workers: list[str]) -> None:
    site.tasks(400)
    hold_verdicts(site)
    driver = site.collecting(*workers, "+num_samples_in_parallel=64")
    wait_for_workers(site, driver)
    site.wait_for_lines(100)
    os.kill(workers_of(site)[0], signal.SIGKILL)
    status, said = site.ended(driver)
    assert status == 0, said
    assert "is lost" in said
    check_keys(site, 400)
    assert site.num_answered() <= 400 + 2 * 64


@pytest.mark.slow
def test_a_worker_that_stands_still_is_replaced_and_may_come_back(
    site: Site, workers: list[str]
) -> None:
    site.tasks(400)
    hold_verdicts(site)
    driver = site.collecting(*workers, "+num_samples_in_parallel=64", "+worker_lease_s=4")
    wait_for_workers(site, driver)
    site.wait_for_lines(50)
    stopped = workers_of(site)[0]
    os.kill(stopped, signal.SIGSTOP)
    site.wait_for_lines(330)
    os.kill(stopped, signal.SIGCONT)
    status, said = site.ended(driver)
    assert status == 0, said
    check_keys(site, 400)
    assert site.num_answered() <= 400 + 2 * 64


@pytest.mark.slow
def test_the_same_command_continues_after_its_driver_was_killed(
    site: Site, workers: list[str]
) -> None:
    site.tasks(300)
    driver = site.collecting(*workers, "+num_samples_in_parallel=64")
    site.wait_for_lines(100)
    started = workers_of(site)
    driver.send_signal(signal.SIGKILL)
    site.ended(driver)
    eventually(lambda: not any(map(alive, started)))
    status, said = site.collect(*workers)
    assert status == 0, said
    check_keys(site, 300)
    assert site.num_answered() <= 300 + 2 * 64


@pytest.mark.slow
def test_responses_of_a_lost_worker_that_wait_for_verdicts_are_kept(
    site: Site, workers: list[str]
) -> None:
    site.tasks(64)
    driver = site.collecting(*workers, "+verdict_s=3", "+park_after_s=0.2")
    eventually(lambda: site.num_on_disk() == 64)
    os.kill(workers_of(site)[0], signal.SIGKILL)
    status, said = site.ended(driver)
    assert status == 0, said
    check_keys(site, 64)
    assert site.num_answered() == 64


@pytest.mark.slow
def test_a_limit_on_tokens_holds_over_all_workers(site: Site, workers: list[str]) -> None:
    site.tasks(300)
    limits = ["+max_total_tokens=300", "+num_samples_in_parallel=16"]
    status, said = site.collect(*workers, *limits)
    assert "max_total_tokens=300" in said and status != 0, said
    lines = read_jsonl(site.folder / "out/rollouts.jsonl")
    spread = sum(line["usage"]["total_tokens"] for line in lines)
    most = max(line["usage"]["total_tokens"] for line in lines)
    assert 300 <= spread <= 300 + 16 * most


@pytest.mark.slow
def test_ctrl_c_lets_all_workers_finish(site: Site, workers: list[str]) -> None:
    site.tasks(400)
    driver = site.collecting(*workers, "+num_samples_in_parallel=64")
    site.wait_for_lines(100)
    started = workers_of(site)
    driver.send_signal(signal.SIGINT)
    _, said = site.ended(driver)
    assert "in flight may finish" in said
    assert not any(map(alive, started))
    lines = read_jsonl(site.folder / "out/rollouts.jsonl")
    assert len(lines) == site.num_answered()
    assert site.collect(*workers)[0] == 0
    check_keys(site, 400)
    assert site.num_answered() == 400


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["+num_workers=2"], "error: num_workers: add +executor=processes"),
        (
            [*PROCESSES, "+record=tape"],
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


def test_a_worker_that_cannot_start_ends_the_run_with_its_reason(
    tmp_path: Path, workers: list[str]
) -> None:
    with Site(tmp_path).endpoint() as site:
        path = site.folder / "resources_servers/patient/app.py"
        broken = "\n    async def start(self) -> None:\n        raise OSError('no such disk')\n"
        path.write_text(path.read_text() + broken)
        status, said = site.collect(*workers)
    assert status == 1 and "no such disk" in said and re.search("worker [12]", said), said


@pytest.mark.slow
def test_a_row_that_kills_its_worker_fails_and_no_other_does(site: Site) -> None:
    path = site.folder / "resources_servers/patient/app.py"
    deadly = "        if body.expected == 'q7':\n            import os; os._exit(9)\n"
    verdict = "        if self.config.verdict_s:"
    path.write_text(path.read_text().replace(verdict, deadly + verdict))
    site.tasks(60)
    status, said = site.collect(*PROCESSES, "+num_samples_in_parallel=32")
    assert status == 2 and "it ended with status 9" in said, said
    check_keys(site, 59)
    [failure] = read_jsonl(site.folder / "out/rollouts.d/failures.jsonl")
    assert "workers were lost while they worked on it" in failure["failure"]["message"]


@pytest.mark.slow
def test_a_verifier_that_blocks_for_longer_than_a_lease_loses_no_worker(site: Site) -> None:
    path = site.folder / "resources_servers/patient/app.py"
    verdict = "        if self.config.verdict_s:"
    blocked = "        if body.expected == 'q1':\n            import time; time.sleep(9)\n"
    path.write_text(path.read_text().replace(verdict, blocked + verdict))
    site.tasks(4)
    status, said = site.collect(*PROCESSES, "+worker_lease_s=4")
    assert status == 0 and "something blocks its event loop for 4 s" in said, said
    assert "is lost" not in said and site.num_answered() == 4


@pytest.mark.skipif("ray" not in EXECUTORS, reason="Ray is not installed: make test-ray")
def test_a_node_of_a_cluster_that_dies_loses_only_what_it_had_in_flight(
    site: Site, ray_cluster: Any
) -> None:
    site.tasks(400)
    hold_verdicts(site)
    second = ray_cluster.add_node(num_cpus=1)
    words = ["+executor=ray", "+num_workers=2", f"+ray_address={ray_cluster.address}"]
    driver = site.collecting(*words, "+num_samples_in_parallel=64")
    wait_for_workers(site, driver)
    site.wait_for_lines(100)
    assert len(workers_of(site)) == 2
    ray_cluster.remove_node(second, allow_graceful=False)
    status, said = site.ended(driver)
    assert status == 0, said
    assert "is lost" in said
    check_keys(site, 400)
    assert site.num_answered() <= 400 + 2 * 64
    assert not workers_of(site)


def test_without_ray_the_command_says_how_to_get_it(tmp_path: Path) -> None:
    if "ray" in EXECUTORS:
        pytest.skip("Ray is installed")
    status, said = Site(tmp_path).collect("+executor=ray")
    assert status == 1 and "executor=ray needs Ray" in said and "rollout-kit[ray]" in said


GROUPS = """

    async def verify_group(self, task: dict, members: list) -> dict:
        return {"members": [each["verdict"]["reward"] for each in members], "group": {"n": 3}}
"""


@pytest.mark.slow
def test_groups_are_scored_and_verdicts_audited_by_workers(site: Site) -> None:
    path = site.folder / "resources_servers/patient/app.py"
    path.write_text(path.read_text() + GROUPS)
    site.tasks(20)
    status, said = site.collect(*PROCESSES, "+num_repeats=3", "+audit_fraction=1")
    assert status == 0, said
    assert "20 of 20 groups scored" in said
    found = metrics_of(site)
    assert found["audit"]["rollouts"] == 60 and found["audit"]["flipped"] == 0
    assert found["groups"]["metrics"] == {"n": 3}


@pytest.mark.slow
def test_the_servers_of_an_ng_run_are_reached_by_url(site: Site) -> None:
    site.tasks(30)
    with bound_socket("127.0.0.1", 0) as sock:
        head = f"+head_server.port={sock.getsockname()[1]}"
    servers = site.start("run", *site.config, head)
    try:
        assert servers.stdout is not None
        assert any("servers ready" in line for line in servers.stdout)
        words = [*PROCESSES, head, "+agent_name=patient_agent"]
        status, said = site.ended(site.start("collect_rollouts", *FILES, *words))
        assert status == 0, said
        check_keys(site, 30)
    finally:
        servers.send_signal(signal.SIGINT)
        site.ended(servers)


SLOW_GROUPS = """

    async def verify_group(self, task: dict, members: list) -> dict:
        with open("scoring.log", "a") as log:
            log.write(f"{task['expected']}\\n")
        await asyncio.sleep(3)
        return {"members": [each["verdict"]["reward"] for each in members], "group": {"n": 3}}
"""


@pytest.mark.chaos
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_lost_while_it_scores_groups_costs_no_rollout_and_no_score(
    site: Site, number: signal.Signals
) -> None:
    path = site.folder / "resources_servers/patient/app.py"
    path.write_text(path.read_text() + SLOW_GROUPS)
    hold_verdicts(site)
    site.tasks(12)
    words = ["+num_repeats=3", "+worker_lease_s=4"]
    driver, log = site.collecting(*PROCESSES, *words), site.folder / "scoring.log"
    wait_for_workers(site, driver)
    eventually(lambda: log.exists() and log.read_text().count("\n") == 12)
    status, said = lose_worker(site, driver, number)
    assert status == 0, said
    assert "12 of 12 groups scored" in said
    check_keys(site, 36)
    assert site.num_answered() == 36
    groups = read_jsonl(site.folder / "out/rollouts.d/groups.jsonl")
    assert len({each["task_id"] for each in groups}) == len(groups) == 12


JUDGED = """
        reply = await self.peers.call("policy_model", "/v1/responses", {"input": "judge this"})
"""


@pytest.mark.chaos
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_lost_during_judge_calls_repeats_the_judges_only(
    tmp_path: Path, number: signal.Signals
) -> None:
    with Site(tmp_path, latency_s=2).endpoint() as site:
        path = site.folder / "resources_servers/patient/app.py"
        verdict = "        if self.config.verdict_s:"
        hold_verdicts(site)
        path.write_text(path.read_text().replace(verdict, JUDGED + verdict))
        site.tasks(64)
        words = ["+num_samples_in_parallel=64", "+worker_lease_s=4"]
        driver = site.collecting(*PROCESSES, *words)
        wait_for_workers(site, driver)
        eventually(lambda: site.num_on_disk() == 64)
        status, said = lose_worker(site, driver, number)
        assert status == 0, said
        check_keys(site, 64)
        assert site.num_answered() <= 64 + 64 + 32


@pytest.mark.chaos
def test_twenty_thousand_rollouts_and_a_killed_worker(
    tmp_path: Path, workers: list[str], record_property: Note
) -> None:
    with Site(tmp_path, latency_s=0.5).endpoint() as site:
        site.tasks(20_000)
        driver = site.collecting(*workers, "+num_samples_in_parallel=512")
        site.wait_for_lines(5_000)
        os.kill(workers_of(site)[0], signal.SIGKILL)
        site.wait_for_lines(10_000)
        driver.send_signal(signal.SIGKILL)
        site.ended(driver)
        status, said = site.ended(site.collecting(*workers, "+num_samples_in_parallel=512"), 600)
        assert status == 0, said
        check_keys(site, 20_000)
        calls = site.num_answered()
        record_property("20,000 rollouts, a worker and the driver killed", f"{calls:,} calls")
        assert calls <= 20_000 + 2 * 512 + 256


@pytest.mark.chaos
def test_ten_workers_keep_a_hosted_endpoint_s_rate_limit(tmp_path: Path) -> None:
    limit = "\n      rate_limit: {requests_per_minute: 1200, burst_s: 2}"
    model = "policy_model.responses_api_models.openai_model"
    with Site(tmp_path, limit).endpoint() as site:
        site.tasks(200)
        words = ["+executor=processes", "+num_workers=10", "+num_samples_in_parallel=200"]
        status, said = site.collect(*words, f"++{model}.requests_per_minute=1200")
        assert status == 0, said
        check_keys(site, 200)
        assert site.asked("/stats")["by_status"] == {"200": 200}


def test_held_out_tasks_are_answered_while_workers_make_the_rollouts(
    site: Site, own_workers: list[str]
) -> None:
    """Held-out tasks too are answered by servers that the workers run."""
    site.tasks(40)
    write_jsonl(site.folder / "test.jsonl", site.rows(6, first=100))
    sets = "sets: {test: {input_jsonl_fpath: test.jsonl, agent_name: patient_agent}}"
    (site.folder / "eval.yaml").write_text(sets)
    with bound_socket("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
    words = ["+buffer=memory:?batch=4&staleness=1", f"+buffer_port={port}", "+epochs=1"]
    words += ["+eval=eval.yaml", "+eval_every=2", "+num_repeats=2"]
    run = site.collecting(*own_workers, *words)
    said_until(run, "Buffer: http")
    trainer = [f"+buffer=http://127.0.0.1:{port}", "+batch=4", "+step_s=0", "+steps=4"]
    status, said = site.ended(site.start("simulate_trainer", *trainer))
    assert status == 0, said
    said_until(run, "evaluation of version 4: test_greedy")
    run.send_signal(signal.SIGINT)
    site.ended(run)
    lines = read_jsonl(site.folder / "out/rollouts.d/evaluations.jsonl")
    names = ("test", "test_greedy")
    assert [(x["set"], x["version"]) for x in lines] == [(n, v) for v in (0, 2, 4) for n in names]
    assert [x["rollouts"] for x in lines] == [24, 6] * 3


NODES = """
policy_model:
  responses_api_models:
    simulated_model: {placement: ray, num_workers: 2, num_cpus: 0.5, latency_s: 0.1}
"""


@pytest.mark.skipif("ray" not in EXECUTORS, reason="Ray is not installed: make test-ray")
def test_servers_on_nodes_move_and_nothing_outlives_their_ng_run(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.tasks(300)
    run = (tmp_path / "run.yaml").read_text()
    before, _, after = run.partition("policy_model:")
    rest = after[after.index("patient:") :]
    (tmp_path / "run.yaml").write_text(f"{before}{NODES}{rest}")
    ng_run = site.start("run", "+config_paths=[run.yaml]", f"+head_server.port={site.head}")
    head = [f"+head_server.port={site.head}"]
    try:
        assert ng_run.stdout is not None
        assert any("servers ready" in line for line in ng_run.stdout)
        hosts = hosts_of_servers()
        assert len(hosts) == 2
        words = [*head, "+agent_name=patient_agent", "+num_samples_in_parallel=8"]
        collecting = site.start("collect_rollouts", *FILES, *words)
        site.wait_for_lines(20)
        os.kill(hosts[0], signal.SIGKILL)
        status, said = site.ended(collecting, 240)
        assert status == 0, said
        check_keys(site, 300)
        status, said = site.ended(site.start("status", *head, "+json=true"))
        found = {each["name"]: each for each in json.loads(said.splitlines()[-1])["servers"]}
        models = [found[f"policy_model-{number}"] for number in range(2)]
        assert [each["health"] for each in models] == ["ok", "ok"]
        assert sorted(each["restarts"] for each in models) == [0, 1]
        assert all(each["place"] for each in models)
        pids = [each["pid"] for each in models]
    finally:
        ng_run.kill()
        ng_run.communicate()
    eventually(lambda: not any(map(alive, pids)))


def hosts_of_servers() -> list[int]:
    """Process ids of the actors that run servers."""
    found = subprocess.run(["pgrep", "-f", "ray::ServerHost"], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


def test_a_cluster_that_asks_for_a_token_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = ConnectionError("Failed to connect to Ray cluster at 192.0.2.2:6399\n and more")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    said = describe_refusal(error)
    assert said.startswith("Failed to connect to Ray cluster at 192.0.2.2:6399. If the cluster")
    assert "RAY_AUTH_MODE=token" in said and "~/.ray/auth_token" in said
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert describe_refusal(error) == "Failed to connect to Ray cluster at 192.0.2.2:6399"
