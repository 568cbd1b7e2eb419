"""A user's working folder, in which the commands run as processes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from endpoint import Endpoint
from support import HANG_S, asked, eventually, output_file, read_jsonl, write_jsonl

from rollout_kit.serving.sockets import bound_socket

ROOT = Path(__file__).resolve().parents[2]
VERIFIER = """
import asyncio
import os
from pathlib import Path

from rollout_kit.serving.resources_server import ResourcesServer
from rollout_kit.responses import output_text
from rollout_kit.types import VerifyRequest, VerifyResponse


class Row(VerifyRequest):
    expected: str


class Echo(ResourcesServer):
    async def verify(self, body: Row) -> VerifyResponse:
        if Path("slow_verdicts").exists():
            await asyncio.sleep(10_000)
        if Path("failing_verdicts").exists():
            raise RuntimeError("the judge is down")
        return body.scored(float(output_text(body.response) == body.expected))
"""

CONFIG = """
config_paths: [responses_api_models/openai_model/configs/openai_model.yaml]
echo: {resources_servers: {echo: {}}}
echo_agent:
  responses_api_agents:
    simple_agent:
      resources_server: {type: resources_servers, name: echo}
      model_server: {type: responses_api_models, name: policy_model}
"""


class Workplace:
    """A user's working folder, with an environment of their own and a model behind an endpoint."""

    def __init__(self, folder: Path, model: Endpoint) -> None:
        self.folder = folder
        self.model = model
        (folder / "resources_servers/echo").mkdir(parents=True)
        (folder / "resources_servers/echo/app.py").write_text(VERIFIER)
        (folder / "run.yaml").write_text(CONFIG)
        env = {"base_url": model.url, "api_key": "sk-planted-0123", "model_name": "m"}
        (folder / "env.yaml").write_text("".join(f"policy_{k}: {v}\n" for k, v in env.items()))

    def tasks(self, number: int) -> list[str]:
        questions = [f"q{index}" for index in range(number)]
        rows = [
            {"responses_create_params": {"input": [{"role": "user", "content": q}]}, "expected": q}
            for q in questions
        ]
        write_jsonl(self.folder / "tasks.jsonl", rows)
        return questions

    def start(self, command: str, *argv: str) -> subprocess.Popen[str]:
        code = f"import sys; from rollout_kit.commands import main; main('ng_{command}')"
        return subprocess.Popen(
            [sys.executable, "-c", code, *argv],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str, *argv: str) -> tuple[int, str]:
        process = self.start(command, *argv)
        try:
            output, _ = process.communicate(timeout=HANG_S)
        finally:
            process.kill()
        return process.returncode, output

    def collect_argv(self, *argv: str) -> list[str]:
        files = ["+input_jsonl_fpath=tasks.jsonl", "+output_jsonl_fpath=out/rollouts.jsonl"]
        return ["+config_paths=[run.yaml]", *files, *argv]

    def collect(self, *argv: str) -> tuple[int, str]:
        return self.run("collect_rollouts", *self.collect_argv(*argv))

    def lines(self, sidecar: str = "") -> list[dict[str, Any]]:
        return read_jsonl(self.folder / "out" / output_file(sidecar))

    def lines_so_far(self) -> list[dict[str, Any]]:
        """The same while a collector writes: what is half there does not count."""
        path = self.folder / "out/rollouts.jsonl"
        return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]

    def questions(self) -> list[str]:
        return sorted(asked(line["responses_create_params"]) for line in self.lines())

    def wait_for(self, number: int, sidecar: str = "") -> None:
        path = self.folder / "out" / output_file(sidecar)
        eventually(lambda: path.exists() and path.read_bytes().count(b"\n") >= number)

    @contextmanager
    def ng_run(self, *argv: str) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
        """A running ng_run, its head server's port, and what it said until it was ready."""
        with bound_socket("127.0.0.1", 0) as sock:
            port = sock.getsockname()[1]
        process = self.start("run", "+config_paths=[run.yaml]", f"+head_server.port={port}", *argv)
        try:
            yield process, port, said_until(process, "servers ready")
        finally:
            process.kill()
            process.communicate()


def said_until(process: subprocess.Popen[str], words: str) -> str:
    """What the process says, up to the line with these words. Nothing is read ahead, so that
    `communicate` gives the rest."""
    assert process.stdout
    said = b""
    while byte := os.read(process.stdout.fileno(), 1):
        said += byte
        if byte == b"\n" and words in said.decode():
            return said.decode()
    raise AssertionError(said.decode())


def pids_in(said: str) -> list[int]:
    return [int(line.rsplit("pid ", 1)[1]) for line in said.splitlines() if "pid " in line]
