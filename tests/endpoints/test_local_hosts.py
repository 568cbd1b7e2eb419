"""Two hundred rollouts with the tiny model through each of three programs that people serve models
with: transformers serve, litellm's proxy and llama.cpp's server.

They stand in `.hosts/`: `make test-hosts`.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from running import ng_run

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ROOT / ".hosts"
CHECKPOINT = ROOT / "responses_api_models/local_model/checkpoint"
KEY = "sk-rollouts-0123456789abcdef0123456789abcdef"
SERVERS = ("math_with_verify", "mcqa", "calculator")

pytestmark = pytest.mark.hosts


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@contextmanager
def running(folder: Path, port: int, *command: str) -> Iterator[None]:
    """A program until it answers, and then for as long as it is needed."""
    log = folder / "host.log"
    with (
        log.open("wb") as out,
        subprocess.Popen(command, cwd=folder, stdout=out, stderr=out) as process,
    ):
        try:
            while not lists_models(port):
                assert process.poll() is None, log.read_text("utf-8")[-2000:]
                time.sleep(0.2)
            yield
        finally:
            process.terminate()
            process.wait()


def lists_models(port: int) -> bool:
    headers = {"authorization": f"Bearer {KEY}"}
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/v1/models", headers=headers)
    try:
        with urllib.request.urlopen(asked, timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


def collect(folder: Path, url: str, model: str, **keys: str) -> list[dict]:
    """The lines of 201 rollouts through `openai_model`, and that none has failed."""
    rows = (ROOT / "responses_api_models/local_model/data/demo.jsonl").read_text("utf-8")
    (folder / "rows.jsonl").write_text("".join(rows.splitlines(keepends=True)[:67]), "utf-8")
    settings = {"openai_base_url": url, "openai_api_key": KEY, "openai_model": model, **keys}
    (folder / "model.yaml").write_text(
        json.dumps({"policy_model": {"responses_api_models": {"openai_model": settings}}}), "utf-8"
    )
    paths = [f"resources_servers/{name}/configs/{name}.yaml" for name in SERVERS]
    command = [
        str(Path(sys.executable).with_name("ng_collect_rollouts")),
        f"+config_paths=[{','.join([*paths, str(folder / 'model.yaml')])}]",
        f"+input_jsonl_fpath={folder / 'rows.jsonl'}",
        f"+output_jsonl_fpath={folder / 'rollouts.jsonl'}",
        "+num_repeats=3",
        "+num_samples_in_parallel=16",
        "+responses_create_params.max_output_tokens=96",
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    lines = (folder / "rollouts.jsonl").read_text("utf-8").splitlines()
    assert len(lines) == 201
    return [json.loads(line) for line in lines]


def called(lines: list[dict]) -> int:
    """The rollouts in which a tool was called and has answered."""
    kinds = ({item["type"] for item in line["response"]["output"]} for line in lines)
    return sum("function_call_output" in each for each in kinds)


def mean(lines: list[dict]) -> float:
    return sum(line["reward"] for line in lines) / len(lines)


def test_transformers_serve(tmp_path: Path) -> None:
    program, port = HOSTS / "transformers/bin/transformers", free_port()
    command = [str(program), "serve", str(CHECKPOINT), "--host", "127.0.0.1", "--port", str(port)]
    with running(tmp_path, port, *command):
        url = f"http://127.0.0.1:{port}/v1"
        lines = collect(tmp_path, url, str(CHECKPOINT), upstream_api="chat_completions")
    assert mean(lines) > 0.5
    assert called(lines) > 50


@pytest.mark.parametrize("api", ["chat_completions", "responses"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_proxy_of_litellm(tmp_path: Path, api: str, stream: bool) -> None:
    port, behind = free_port(), free_port()
    endpoint = {"placement": "process", "port": behind, "model_name": "tiny"}
    (tmp_path / "tiny.yaml").write_text(
        json.dumps({"tiny": {"responses_api_models": {"local_model": endpoint}}}), "utf-8"
    )
    where = {"model": "openai/tiny", "api_base": f"http://127.0.0.1:{behind}/v1", "api_key": "none"}
    (tmp_path / "proxy.yaml").write_text(
        json.dumps(
            {
                "model_list": [{"model_name": "policy", "litellm_params": where}],
                "general_settings": {"master_key": KEY},
            }
        ),
        "utf-8",
    )
    command = ["--config", "proxy.yaml", "--host", "127.0.0.1", "--port", str(port)]
    with (
        ng_run(tmp_path, config=str(tmp_path / "tiny.yaml")),
        running(tmp_path, port, str(HOSTS / "litellm/bin/litellm"), *command),
    ):
        url = f"http://127.0.0.1:{port}/v1"
        lines = collect(tmp_path, url, "policy", upstream_api=api, stream=stream)
    assert mean(lines) > 0.5
    assert called(lines) > 50


def test_the_server_of_llama_cpp(tmp_path: Path) -> None:
    """It splits text in another way than the tiny model's tokenizer, so the model answers badly."""
    program = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
    program = program or str(HOSTS / "llama.cpp/build/bin/llama-server")
    port = free_port()
    command = ["-m", str(HOSTS / "tiny.gguf"), "--jinja", "-c", "16384", "-np", "8"]
    where = ["--host", "127.0.0.1", "--port", str(port)]
    with running(tmp_path, port, program, *command, *where):
        url = f"http://127.0.0.1:{port}/v1"
        lines = collect(tmp_path, url, "tiny", upstream_api="chat_completions")
    assert all(line["usage"]["output_tokens"] > 0 for line in lines)
