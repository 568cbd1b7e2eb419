"""The two sides of a comparison as commands: the bare loop, and rollout_kit in each placement."""

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .measure import Unmeasured, environment

MODEL = "responses_api_models/openai_model/configs/openai_model.yaml"
ENVIRONMENTS = {
    "short": "resources_servers/mcqa/configs/mcqa.yaml",
    "long": "resources_servers/mcqa/configs/mcqa.yaml",
    "tools": "resources_servers/example_multi_step/configs/example_multi_step.yaml",
    "turns": "resources_servers/example_session_state_mgmt/configs/example_session_state_mgmt.yaml",
}
MOST_TURNS = (
    "+example_session_state_mgmt_simple_agent.responses_api_agents.simple_agent.max_steps=1000"
)

PROBED = [sys.executable, "-m", "benchmarks.probe", "{report}", "collect_rollouts"]
"""Our command with a probe; see `probe`."""

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Servers:
    """A running ng_run with agent, resources server and model server, each a process."""

    pid: int
    head_port: int
    ready_s: float


def bare(port: int, rows: Path, parallel: int, *more: str) -> list[str]:
    url = f"http://127.0.0.1:{port}/v1"
    return [
        *(sys.executable, "-m", "benchmarks.bare_loop"),
        *("{report}", url, str(rows), str(parallel), *more),
    ]


@contextmanager
def hop(port: int) -> Iterator[tuple[int, int]]:
    """A process that passes requests on to a port; its own port, and its id."""
    argv = [sys.executable, "-m", "benchmarks.hop", f"http://127.0.0.1:{port}"]
    with subprocess.Popen(argv, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline()), process.pid
        finally:
            process.kill()


def local(port: int, kind: str, rows: Path, parallel: int, output: str = "") -> list[str]:
    """ng_collect_rollouts with all servers in its own process."""
    return [*PROBED, *collector_keys(rows, parallel, output), *server_keys(port, kind)]


def through(servers: Servers, rows: Path, parallel: int) -> list[str]:
    """ng_collect_rollouts with running servers."""
    return [*PROBED, *collector_keys(rows, parallel), f"+head_server.port={servers.head_port}"]


def collector_keys(rows: Path, parallel: int, output: str = "") -> list[str]:
    return [
        f"+input_jsonl_fpath={rows}",
        f"+output_jsonl_fpath={output or f'out-{next(_numbers)}/rollouts.jsonl'}",
        f"+num_samples_in_parallel={parallel}",
    ]


def server_keys(port: int, kind: str) -> list[str]:
    which = kind.partition("-")[0]
    return [
        f"+config_paths=[{MODEL},{ENVIRONMENTS[which]}]",
        *([MOST_TURNS] if which == "turns" else []),
        f"+policy_base_url=http://127.0.0.1:{port}/v1",
        "+policy_api_key=none",
        "+policy_model_name=fake",
    ]


@contextmanager
def ng_run(port: int, kind: str, folder: Path) -> Iterator[Servers]:
    """Start servers in their own processes; stop them with Ctrl-C."""
    code = "from rollout_kit.commands import main; main('ng_run')"
    argv = [sys.executable, "-c", code, *server_keys(port, kind), "+head_server.port=0"]
    began = time.monotonic()
    with subprocess.Popen(
        argv, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            said = []
            for line in process.stdout:
                said.append(line)
                if "servers ready" in line:
                    at = line.partition("Head server: http://127.0.0.1:")[2].partition(".")[0]
                    yield Servers(process.pid, int(at), time.monotonic() - began)
                    return
            raise Unmeasured(f"ng_run did not start: {''.join(said)}")
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()
