"""`ng_merge` over a million rollouts of 3 KB in ten shards: seconds, CPU and peak memory of its two
processes.

    python -m benchmarks.merge [--rows 1000000] [--input] [--index]

With `--input` the output has the order of a file of tasks, else that of the shards. With `--index`
each shard has its index, as a collection leaves it.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

SHARDS = 10

LOOK_S = 0.3
"""Interval between looks at the memory."""

FILLER = "The model thinks about the question for a while and then answers. " * 36


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--input", action="store_true", help="in the order of a file of tasks")
    parser.add_argument("--index", action="store_true", help="the shards have indexes")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = [write_shards(folder, args.rows, with_tasks=args.input)] if args.input else []
        if not args.input:
            write_shards(folder, args.rows, with_tasks=False)
        for shard in folder.glob("shard-*.jsonl") if args.index else ():
            write_index(shard)
        size = sum(path.stat().st_size for path in folder.glob("shard-*.jsonl"))
        code = "from rollout_kit.commands import main; main('ng_merge')"
        output = f"+output_jsonl_fpath={folder}/merged.jsonl"
        command = [sys.executable, "-c", code, f"{folder}/shard-*.jsonl", output, *words]
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        most_mb = 0.0
        while process.poll() is None:
            most_mb = max(most_mb, memory_mb(process.pid))
            time.sleep(LOOK_S)
        took_s = time.perf_counter() - began
        said, _ = process.communicate()
    print(said.strip())
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{args.rows:,} rollouts, {size / 1e9:.2f} GB: {took_s:.1f} s,"
        f" {used.ru_utime + used.ru_stime:.1f} s of CPU, {most_mb:.0f} MB at most"
    )


def memory_mb(pid: int) -> float:
    """The memory of a process and its children; what they share counts once."""
    total = 0.0
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            total += memory_mb(int(child))
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        total += sum(int(each) for each in re.findall(r"^Pss: +(\d+) kB", rollup, re.M)) / 1024
    return total


def write_index(shard: Path) -> None:
    """Write the index of a file beside it, as a collection does."""
    from rollout_kit.store.files import OutputPaths
    from rollout_kit.store.index import Index

    Index(shard, kept_at=OutputPaths(shard).index).update()


def write_shards(folder: Path, num_rows: int, *, with_tasks: bool) -> str:
    """Write the shards; returns the word that names the file of tasks."""
    from rollout_kit.config.shard import Shard
    from rollout_kit.store.tasks import task_id_of

    shards = [Shard(number, SHARDS) for number in range(1, SHARDS + 1)]
    files = [shard.path_of(folder / "shard.jsonl").open("w", buffering=1 << 20) for shard in shards]
    with (folder / "tasks.jsonl").open("w") as tasks:
        for number in range(num_rows // 4):
            row = {"responses_create_params": {"input": f"question {number}"}, "expected": "4"}
            task_id = task_id_of(row)
            if with_tasks:
                tasks.write(json.dumps(row) + "\n")
            mine = next(
                file for shard, file in zip(shards, files, strict=True) if shard.has(task_id)
            )
            for index in range(4):
                mine.write(json.dumps(line_of(row, task_id, number, index)) + "\n")
    for file in files:
        file.close()
    return f"+input_jsonl_fpath={folder}/tasks.jsonl"


def line_of(row: dict, task_id: str, number: int, index: int) -> dict:
    text = f"{FILLER}{number} {index}"
    usage = {"input_tokens": 20, "output_tokens": 600, "total_tokens": 620}
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"type": "message", "role": "assistant", "status": "completed", "content": content}
    block = {"task_id": task_id, "scope": "", "rollout_index": index, "attempt": 1}
    block |= {"settings": "2a104f0c08c7", "model": "m", "started_at": "2026-01-01T00:00:00.000Z"}
    block |= {"duration_s": 1.5, "queue_s": 0.01, "finish_reason": "stop", "num_turns": 1}
    block |= {"num_tool_calls": 0, "model_s": 1.4, "tool_s": 0.0, "cost_usd": 0.001}
    block |= {"verifier": "19407000e863d8dd", "verify_s": 0.001, "scores": ["extracted_answer"]}
    head = {"kind": "rollout", "schema": 1, "agent_ref": {"name": "agent"}}
    head |= {"_ng_task_index": number, "_ng_rollout_index": index, "reward": float(index % 2)}
    head |= {"extracted_answer": str(index), "usage": usage, "rollout": block}
    response = {"id": f"resp_{number}_{index}", "object": "response", "output": [message]}
    return {**head, **row, "response": {**response, "usage": usage}}


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).resolve().parents[1]))
    main()
