"""The memory of a run with many scored groups of eight, beside the same run without scores.

    python -m benchmarks.many_groups [--groups 100000] [--parallel 128]

The model answers at once, and all servers are in the collector's process. Prints the memory of the
process while it goes on, and what each further group adds to it, from a fifth of the groups on.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .measure import Unmeasured, environment, memory_mb
from .sides import collector_keys
from .work import write_rows

REPEATS = 8

POINTS = 10
"""Samples that are shown."""

SAMPLE_S = 0.5

SERVER = """
from typing import Any

from rollout_kit import JsonObject, ResourcesServer, VerifyRequest, VerifyResponse


class Alone(ResourcesServer):
    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        return body.scored(1.0)
"""

WITH_GROUPS = """
    async def verify_group(self, task: JsonObject, members: list[Any]) -> JsonObject:
        scores = [{"reward": 0.5, "components": {"part": 0.5}} for _ in members]
        return {"members": scores, "group": {"agreement": 1.0}}
"""

CONFIG = """
{name}: {{resources_servers: {{{name}: {{}}}}}}
{name}_agent:
  responses_api_agents:
    simple_agent:
      resources_server: {{type: resources_servers, name: {name}}}
      model_server: {{type: responses_api_models, name: policy_model}}
"""

MODEL = """
from rollout_kit import JsonObject
from rollout_kit.responses import make_response, message_item
from rollout_kit.serving.model import Model

USAGE = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}


class Instant(Model):
    async def responses(self, params: JsonObject) -> JsonObject:
        return make_response("instant", [message_item("It is 7.")], USAGE)
"""

Samples = list[tuple[int, float]]
"""Groups that were finished, and MB."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=100_000)
    parser.add_argument("--parallel", type=int, default=128)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seen = dict(watch_both(folder, args.groups, args.parallel))
    print(f"{'groups':>10} {'MB without scores':>18} {'MB with scores':>15}")
    for point in range(1, POINTS + 1):
        at = args.groups * point // POINTS
        print(f"{at:>10,} {memory_at(seen['alone'], at):>18.1f}", end=" ")
        print(f"{memory_at(seen['grouped'], at):>15.1f}")
    kept = {which: slope(samples, args.groups // 5) for which, samples in seen.items()}
    print("bytes a further group: " + ", ".join(f"{kept[w]:.0f} {w}" for w in kept))


def measure_kept(folder: Path, number: int) -> dict[str, float]:
    """Bytes that each further group adds, with and without scores."""
    return {which: slope(seen, number // 5) for which, seen in watch_both(folder, number, 128)}


def watch_both(folder: Path, number: int, parallel: int) -> Iterator[tuple[str, Samples]]:
    rows = write_rows(folder / "many_tasks.jsonl", number)
    for which, text in (("alone", SERVER), ("grouped", SERVER + WITH_GROUPS)):
        write_servers(folder, f"many_{which}", text)
        yield which, watch(folder, f"many_{which}", rows, number, parallel)


def write_servers(folder: Path, name: str, text: str) -> None:
    """The verifier and the model, as servers of the working folder, and their configuration."""
    for kind, server, code in (
        ("resources_servers", name, text),
        ("responses_api_models", "instant", MODEL),
    ):
        (folder / kind / server).mkdir(parents=True, exist_ok=True)
        (folder / kind / server / "app.py").write_text(code)
    model = "policy_model: {responses_api_models: {instant: {}}}\n"
    (folder / f"{name}.yaml").write_text(CONFIG.format(name=name) + model)


def watch(folder: Path, name: str, rows: Path, number: int, parallel: int) -> Samples:
    """Collect, and look at the process meanwhile."""
    output = folder / name / "rollouts.jsonl"
    argv = [
        sys.executable,
        "-c",
        "from rollout_kit.commands import main; main('ng_collect_rollouts')",
    ]
    argv += collector_keys(rows, parallel, str(output))
    argv += [f"+config_paths=[{name}.yaml]", f"+num_repeats={REPEATS}"]
    process = subprocess.Popen(argv, cwd=folder, env=environment(), stdout=subprocess.DEVNULL)
    samples: Samples = []
    while process.poll() is None:
        time.sleep(SAMPLE_S)
        if output.exists() and (held := memory_mb(process.pid)):
            samples.append((output.stat().st_size, held))
    size = output.stat().st_size
    lines = sum(1 for _ in output.open("rb"))
    scores = output.parent / "rollouts.d/groups.jsonl"
    scored = sum(1 for _ in scores.open("rb")) if scores.exists() else 0
    for path in output.parent.iterdir():
        path.unlink()
    if process.returncode or lines != number * REPEATS:
        raise Unmeasured(f"exit status {process.returncode}, {lines} rollouts")
    if scored != (number if name == "many_grouped" else 0):
        raise Unmeasured(f"{scored} groups were scored")
    return [(at * number // size, held) for at, held in samples]


def memory_at(samples: Samples, groups: int) -> float:
    """The sample that is nearest to so many groups."""
    return min(samples, key=lambda sample: abs(sample[0] - groups))[1]


def slope(samples: Samples, since: int) -> float:
    """Bytes a group, by least squares over the samples since then."""
    used = [(x, y) for x, y in samples if x >= since]
    mean_x, mean_y = (sum(column) / len(used) for column in zip(*used, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in used)
    return sum((x - mean_x) * (y - mean_y) for x, y in used) / spread * 2**20


if __name__ == "__main__":
    main()
