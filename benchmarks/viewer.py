"""The viewer over a file of a million rollouts of 3 KB: start, opening, filtering, searching.

    python -m benchmarks.viewer

In a browser: seconds until each is on screen, and the viewer's seconds of CPU. It needs what `make
test-view` installs.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlencode

import orjson

from .measure import ROOT, Unmeasured, environment
from .probe import peak_mb

MILLION = 1_000_000
ROW = 9 * MILLION // 10
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
POLL_S = 0.03
NEEDLE = "a needle in the haystack"
NEEDLE_AT = 700_000
TEXT = " ".join(f"word{number % 97}" for number in range(330))


def write_rollouts(path: Path) -> Path:
    """A million rollouts, four of each task; one of them has the needle in its text."""
    random = Random(0)
    with path.open("wb") as stream:
        for row in range(MILLION):
            text = f"{TEXT} {NEEDLE}" if row == NEEDLE_AT else TEXT
            message = {"type": "message", "role": "assistant", "content": []}
            message["content"] = [{"type": "output_text", "text": text, "annotations": []}]
            reward, tokens = float(random.random() < 0.6), random.randint(20, 900)
            line = {
                **{"kind": "rollout", "schema": 1, "agent_ref": {"name": "agent"}},
                **{"_ng_task_index": row // 4, "_ng_rollout_index": row % 4, "reward": reward},
                "extracted_answer": str(random.randint(0, 999)),
                "usage": {"input_tokens": 9, "output_tokens": tokens, "total_tokens": 9 + tokens},
                "rollout": {
                    **{"task_id": f"{row // 4:016x}", "scope": "", "rollout_index": row % 4},
                    **{"settings": "5186febe1f20", "model": "m", "verifier": "6af56272dbaa074f"},
                    **{"started_at": "2026-01-01T00:00:00.000Z", "finish_reason": "stop"},
                    **{"num_turns": random.randint(1, 12), "duration_s": random.random()},
                    "scores": ["extracted_answer"],
                },
                "responses_create_params": {"input": f"Question {row // 4}"},
                "response": {"id": f"r{row}", "output": [message]},
            }
            stream.write(orjson.dumps(line) + b"\n")
    return path


def measure_viewer(folder: Path) -> Iterator[tuple[str, str, float, str]]:
    """(name, what, value, unit) of each figure."""
    rollouts = write_rollouts(folder / "viewed.jsonl")
    cache = folder / "cache"
    yield (
        "viewer_file_gb",
        "viewer: file of 1,000,000 rollouts",
        rollouts.stat().st_size / 1e9,
        "GB",
    )
    with open_viewer(rollouts, cache) as (url, process, began):
        first_s = _until(url, began, lambda found: found["rows"])
        yield "viewer_first_unindexed_s", "… first rows, without an index", first_s, "s"
        whole_s = _until(url, began, lambda found: found["total"] == MILLION)
        yield "viewer_index_s", "… all rows, without an index", whole_s, "s"
    size = sum(each.stat().st_size for each in cache.rglob("*.index"))
    yield "viewer_index_bytes", "… index, a rollout", size / MILLION, "bytes"
    with open_viewer(rollouts, cache) as (url, process, began):
        whole_s = _until(url, began, lambda found: found["total"] == MILLION)
        yield "viewer_first_s", "… all rows, with the index", whole_s, "s"
        took = 1e3 * _took(url, "rollout", id=ROW)
        yield "viewer_open_ms", "… opening row 900,000", took, "ms"
        where = "reward < 0.5 and num_turns > 8"
        took = _query_s(url, where=where)
        yield "viewer_filter_s", f"… filter: {where}", took, "s"
        took = _query_s(url, where="", sort="-duration_s")
        yield "viewer_sort_s", "… sorting by a column", took, "s"
        first_s = _query_s(url, search=f"word{ROW % 97}", is_first=True)
        yield "viewer_search_first_s", "… searching a frequent text: first hits", first_s, "s"
        yield "viewer_search_s", "… searching the only line", _query_s(url, search=NEEDLE), "s"
        yield "viewer_peak_mb", "… peak of the server", peak_mb(process.pid), "MB"
    rollouts.unlink()


@contextmanager
def open_viewer(rollouts: Path, cache: Path) -> Iterator[tuple[str, Any, float]]:
    """A viewer that keeps its index in `cache`: its address, its process, and when it began."""
    command = [Path(sys.executable).with_name("ng_view"), rollouts, "+port=0"]
    env = {**environment(), "XDG_CACHE_HOME": str(cache)}
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout
        words = process.stdout.readline().split()
        if not words:
            raise Unmeasured("ng_view did not start")
        try:
            yield next(word for word in words if "http" in word), process, began
        finally:
            process.terminate()


def drive(script: str, *words: object) -> Any:
    """What a script of this folder has measured in a browser."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None or not (ROOT / ".browser/node_modules").exists():
        raise SystemExit("no Chromium or no playwright-core: make test-view installs them")
    argv = ["node", ROOT / "benchmarks" / script, ROOT / ".browser", browser, *map(str, words)]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, timeout=900)
    return json.loads(done.stdout)


def ask(url: str, path: str, **query: Any) -> Any:
    with urllib.request.urlopen(f"{url}api/{path}?{urlencode(query)}") as reply:
        return json.loads(reply.read())


def _took(url: str, path: str, **query: Any) -> float:
    began = time.monotonic()
    ask(url, path, **query)
    return time.monotonic() - began


def _until(url: str, began: float, holds: Any) -> float:
    while not holds(ask(url, "rows", count=50)):
        time.sleep(POLL_S)
    return time.monotonic() - began


def _query_s(url: str, *, is_first: bool = False, **query: str) -> float:
    """Seconds until the first rows of a query, or until all of them."""
    began = time.monotonic()
    while True:
        found = ask(url, "rows", count=50, **query)
        if found["error"]:
            raise Unmeasured(found["error"])
        if found["is_done"] or (is_first and found["rows"]):
            return time.monotonic() - began
        time.sleep(POLL_S / 3)


def main() -> None:
    """Print the figures as JSON: without an index only the first rows and all of them."""
    with tempfile.TemporaryDirectory() as folder:
        rollouts = write_rollouts(Path(folder, "viewed.jsonl"))
        found: dict[str, Any] = {}
        for name, row in (("unindexed", 0), ("indexed", ROW)):
            with open_viewer(rollouts, Path(folder, "cache")) as (url, process, _):
                argv = (url.rstrip("/"), rollouts, row, process.pid)
                found[name] = drive("million_rows.mjs", *argv)
                found[name]["server_peak_mb"] = peak_mb(process.pid)
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
