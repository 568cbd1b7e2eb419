"""One rollout of 10,000 turns and 125 MB in a browser: seconds to what is shown, and memory.

    python -m benchmarks.long_rollout

It needs what `make test-view` installs.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson

from .measure import cpu_s
from .probe import peak_mb
from .viewer import POLL_S, ask, drive, open_viewer

TURNS = 10_000
OUTPUT = "a line of the output of a tool, as a compiler may write it\n" * 210


def write_long(path: Path, turns: int = TURNS) -> Path:
    """A file with one rollout of many turns."""
    items: list[Any] = []
    for turn in range(turns):
        given = orjson.dumps({"command": f"make part-{turn}"}).decode()
        call = {"type": "function_call", "name": "bash", "call_id": f"c{turn}", "arguments": given}
        output = f"part {turn}\n{OUTPUT}"
        items += [call, {"type": "function_call_output", "call_id": f"c{turn}", "output": output}]
    line = {
        **{"kind": "rollout", "schema": 1, "agent_ref": {"name": "solver"}, "reward": 0.0},
        **{"_ng_task_index": 0, "_ng_rollout_index": 0},
        "rollout": {
            **{"task_id": f"{0:016x}", "scope": "", "rollout_index": 0, "model": "m"},
            **{"num_turns": turns, "finish_reason": "stop", "scores": []},
        },
        "responses_create_params": {"input": "Build all parts."},
        "response": {"id": "r", "output": items},
    }
    path.write_bytes(orjson.dumps(line) + b"\n")
    return path


def measure_long(folder: Path) -> dict[str, Any]:
    """Figures of a first viewer, and of a second one, which has the index."""
    path = write_long(folder / "long.jsonl")
    found: dict[str, Any] = {"file_mb": path.stat().st_size / 1e6}
    found["unindexed"] = _measure(path)
    found["indexed"] = _measure(path)
    return found


def _measure(path: Path) -> dict[str, Any]:
    with open_viewer(path, path.with_name("cache")) as (url, viewer, began):
        while not ask(url, "rows", count=1)["rows"]:
            time.sleep(POLL_S)
        found = {"rows_s": time.monotonic() - began, "server_rows_mb": peak_mb(viewer.pid)}
        cpu_before = cpu_s(viewer.pid)
        found |= drive("long_rollout.mjs", url.rstrip("/"), TURNS, path)
        found["server_cpu_s"] = cpu_s(viewer.pid) - cpu_before
        return found | {"server_peak_mb": peak_mb(viewer.pid)}


def main() -> None:
    """Print the figures as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure_long(Path(folder)), indent=1))


if __name__ == "__main__":
    main()
