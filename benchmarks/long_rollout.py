"""One rollout of 10,000 turns and 125 MB in a browser: seconds to what is shown, and memory.

    python -m benchmarks.long_rollout

It needs what `make test-view` installs.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import orjson

from .measure import ROOT, environment
from .probe import peak_mb

TURNS = 10_000
OUTPUT = "a line of the output of a tool, as a compiler may write it\n" * 210
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


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
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None or not (ROOT / ".browser/node_modules").exists():
        raise SystemExit("no Chromium or no playwright-core: make test-view installs them")
    found["unindexed"] = _measure(path, browser)
    found["indexed"] = _measure(path, browser)
    return found


def _measure(path: Path, browser: str) -> dict[str, Any]:
    command = [Path(sys.executable).with_name("ng_view"), path, "+port=0"]
    env = {**environment(), "XDG_CACHE_HOME": str(path.with_name("cache"))}
    began, found = time.monotonic(), dict[str, Any]()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as viewer:
        try:
            assert viewer.stdout
            words = viewer.stdout.readline().split()
            url = next(word for word in words if "http" in word).rstrip("/")
            while not _get(f"{url}/api/rows?count=1")["rows"]:
                time.sleep(0.03)
            found["rows_s"] = time.monotonic() - began
            found["server_rows_mb"] = peak_mb(viewer.pid)
            script = ROOT / "benchmarks/long_rollout.mjs"
            argv = ["node", script, ROOT / ".browser", browser, url, f"{TURNS}", path]
            done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=300)
            found |= json.loads(done.stdout)
            found["server_peak_mb"] = peak_mb(viewer.pid)
        finally:
            viewer.terminate()
    return found


def _get(address: str) -> Any:
    with urllib.request.urlopen(address) as reply:
        return json.loads(reply.read())


def main() -> None:
    """Print the figures as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure_long(Path(folder)), indent=1))


if __name__ == "__main__":
    main()
