"""The same rows through our collector and through NeMo Gym's, with a server of NeMo Gym.

    python -m benchmarks.nemo_gym_speed ~/Gym [rollouts]

The verifier is NeMo Gym's `gpqa_diamond` everywhere, and an endpoint answers at once with prepared
bytes. Three ways, one after the other:

- ours: `ng_collect_rollouts` alone, which runs agent and model server in its own process;
- our collector, with agent and model server of ours as processes of `ng_run`;
- NeMo Gym's `ng_collect_rollouts`, with its agent and its model server as processes of `ng_run`.

CPU is that of all processes except the endpoint; that of a run with one rollout is subtracted. The
last column is the part of the verifier's process.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rollout_kit.serving.nemo_gym.checkout import Gym
from rollout_kit.serving.nemo_gym.environments import environment_of
from rollout_kit.serving.process_tree import family

from . import endpoint
from .endpoint import Setting
from .measure import cpu_s, running_endpoint
from .nemo_gym import MODEL, THEIRS, find_agent, programs, running
from .peers.tree import took

SERVER = "gpqa_diamond"

CONFIG = f"resources_servers/{SERVER}/configs/{SERVER}.yaml"

PARALLEL = 64

AT_MOST_S = 900

ITS_COLLECTOR = "import sys; from nemo_gym.cli.main import main; sys.argv[0] = 'gym'; main()"

Command = Callable[[Path, Path], list[str]]
"""The command from its input and its output."""


def write_rows(gym: Path, path: Path, number: int) -> Path:
    """Rows that differ, because NeMo Gym merges equal ones."""
    text = (gym / "resources_servers" / SERVER / "data/example.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    with path.open("w") as file:
        for index in range(number):
            row = {**rows[index % len(rows)], "number": index}
            row.pop("agent_ref", None)
            file.write(json.dumps(row) + "\n")
    return path


def find_python(gym: Path) -> str:
    server = Gym.of({"nemo_gym": str(gym)}, gym).find("resources_servers", SERVER)
    assert server is not None
    return str(environment_of(server).interpreter)


@dataclass(frozen=True, slots=True)
class Way:
    name: str
    command: Command
    servers: int | None = None
    """The process of `ng_run`."""


@dataclass(frozen=True, slots=True)
class Used:
    """CPU in seconds: of all processes, and of the verifier's if `ng_run` started it."""

    cpu_s: float
    verifier_s: float
    span_s: float
    """From the first request to the last answer."""
    found: int


def measure(way: Way, folder: Path, number: int, model: int, gym: Path) -> Used:
    output = folder / f"out-{number}.jsonl"
    rows = write_rows(gym, folder / "rows.jsonl", number)
    endpoint.configure(model, Setting(limit=PARALLEL))
    before = measure_servers(way.servers)
    env = {**os.environ, "PYTHONPATH": str(gym), "PYTHONNOUSERSITE": "1"}
    run = took(way.command(rows, output), folder, env, at_most_s=AT_MOST_S)
    after = measure_servers(way.servers)
    seen = endpoint.stats(model)
    found = len(output.read_text().splitlines())
    for path in folder.glob("out-*"):
        path.unlink()
    whole, verifier = (now - then for now, then in zip(after, before, strict=True))
    return Used(run.cpu_s + whole, verifier, seen.last_s - seen.first_s, found)


def measure_servers(root: int | None) -> tuple[float, float]:
    """CPU seconds of the servers so far, and of the verifier among them."""
    pids = family(root) if root else {}
    own = [pid for pid in pids if os.readlink(f"/proc/{pid}/cwd").endswith(f"/{SERVER}")]
    return sum(map(cpu_s, pids)), sum(map(cpu_s, own))


def show(way: Way, number: int, place: Path, model: int, gym: Path) -> None:
    """Print the line of a way."""
    one = measure(way, place, 1, model, gym)
    many = measure(way, place, number, model, gym)
    each_ms = (many.cpu_s - one.cpu_s) / (number - 1) * 1e3
    verifier = f"{many.verifier_s / number * 1e3:.2f}" if way.servers else ""
    figures = f"{many.found} | {many.found / many.span_s:.0f} | {each_ms:.2f} | {verifier}"
    print(f"| {way.name} | {figures} | {one.cpu_s:.1f} |", flush=True)


def compare(gym: Path, number: int) -> None:
    def files(rows: Path, output: Path) -> list[str]:
        words = [f"+input_jsonl_fpath={rows}", f"+output_jsonl_fpath={output}"]
        return [*words, f"+num_samples_in_parallel={PARALLEL}"]

    with tempfile.TemporaryDirectory() as text, running_endpoint() as model:
        place, url = Path(text), f"http://127.0.0.1:{model}/v1"
        policy = [f"+policy_base_url={url}", "+policy_api_key=none", "+policy_model_name=fake"]

        def alone(rows: Path, output: Path) -> list[str]:
            words = [f"+config_paths=[{CONFIG},{MODEL}]", f"+nemo_gym={gym}", "+install=true"]
            return [programs("ng_collect_rollouts"), *words, *policy, *files(rows, output)]

        print("| way | rollouts | rollouts/s | CPU ms a rollout | of the verifier | start, CPU s |")
        print("|---|---|---|---|---|---|")
        show(Way("rollout_kit, one command", alone), number, place, model, gym)
        with running(gym, CONFIG, url, place) as (port, _, servers):

            def client(rows: Path, output: Path) -> list[str]:
                words = [f"+head_server.port={port}", f"+agent_name={find_agent(gym / CONFIG)}"]
                return [programs("ng_collect_rollouts"), *words, *files(rows, output)]

            way = Way("rollout_kit, with `ng_run`", client, servers)
            show(way, number, place, model, gym)
        with running(gym, CONFIG, url, place, "openai_model") as (port, _, servers):

            def theirs(rows: Path, output: Path) -> list[str]:
                words = ["eval", "run", "--no-serve", f"+agent_name={THEIRS}"]
                words += [f"++head_server.port={port}", "++head_server.host=127.0.0.1"]
                python = [find_python(gym), "-c", ITS_COLLECTOR]
                return [*python, *words, *files(rows, output)]

            show(Way("NeMo Gym, with `ng_run`", theirs, servers), number, place, model, gym)


def main() -> None:
    gym, *number = sys.argv[1:]
    compare(Path(gym).expanduser().resolve(), int(number[0]) if number else 2_000)


if __name__ == "__main__":
    main()
