"""NeMo Gym's collector with our servers, and our collector with NeMo Gym's servers.

For each environment `ng_run` starts the servers of its YAML, and both collectors collect its
example rows ten times: `ng_collect_rollouts`, and `gym eval run --no-serve`. Then `gym env start`
starts NeMo Gym's servers from that YAML, and `ng_collect_rollouts` reaches its resources server.
The model says what `example_rollouts.jsonl` has recorded, and for every second row what it has
recorded for another row.
"""

import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import yaml

from ..nemo_gym import MODEL, REPEATS, collect, find_agent, find_turns, programs, running
from ..replayed_model import Player, Turns

CROSSED = {
    "string_match": "",
    "arc_agi": "",
    "nvarc": "transductive",
    "spartqa": "",
    "mcqa": "",
    "calendar": "",
    "circle_count": "",
    "xlam_fc": "",
    "hotpotqa_qa": "",
    "gpqa_diamond": "",
    "workplace_assistant": "",
}
"""Server → its YAML, if that has another name."""

READY_S = 300
"""Longest start of NeMo Gym's servers."""

STOP_S = 60
"""Longest end of these servers after Ctrl-C."""

Rewards = dict[tuple[int, int], float]
"""Reward by the position of a task in the input, and its repeat."""


class Crossing(NamedTuple):
    """Rewards of the same rows: all ours, its collector with our servers, and our collector with
    its resources server."""

    ours: Rewards
    its_collector: Rewards
    its_server: Rewards


def read_rewards(path: Path) -> Rewards:
    """The rewards in a file of either collector."""
    lines = map(json.loads, path.read_text().splitlines())
    return {(each["_ng_task_index"], each["_ng_rollout_index"]): each["reward"] for each in lines}


def mix(turns: dict[str, Turns]) -> dict[str, Turns]:
    """The same prompts; every second one gets the turns of the next."""
    known = list(turns)
    return {
        each: turns[known[(number + number % 2) % len(known)]] for number, each in enumerate(known)
    }


def cross(name: str, gym: Path, python: Path) -> Crossing:
    """Collect the rows of one environment in the three ways."""
    folder = gym / "resources_servers" / name
    config = f"resources_servers/{name}/configs/{CROSSED[name] or name}.yaml"
    agent, rows = find_agent(gym / config), folder / "data/example.jsonl"
    model = Player(mix(find_turns(name, folder)))
    with tempfile.TemporaryDirectory() as text, model.serve() as url:
        place = Path(text)
        with running(gym, config, url, place, python=python) as (port, _, _):
            collect(port, rows, agent, place / "ours.jsonl")
            collect_by_gym(python, port, rows, agent, place / "gym.jsonl")
        with running_gym(gym, config, python, url, place) as its_url:
            collect_alone(gym, config, its_url, url, rows, place / "its_server.jsonl")
        names = ("ours.jsonl", "gym.jsonl", "its_server.jsonl")
        return Crossing(*(read_rewards(place / each) for each in names))


def collect_by_gym(python: Path, port: int, rows: Path, agent: str, output: Path) -> None:
    words = ["eval", "run", "--no-serve", "--agent", agent, "--input", rows, "--output", output]
    words += ["--num-repeats", str(REPEATS), "--concurrency", "16"]
    head = ["+head_server.host=127.0.0.1", f"+head_server.port={port}"]
    done = subprocess.run(
        [python.with_name("gym"), *words, *head], cwd=output.parent, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"gym eval run: {done.stderr[-2000:]}")


@contextmanager
def running_gym(gym: Path, config: str, python: Path, url: str, place: Path) -> Iterator[str]:
    """The URL of the resources server that `gym env start` has started from a YAML."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    tree = yaml.safe_load((gym / config).read_text())
    for block in tree.values():  # it refuses the licenses of some of its datasets
        for settings in block.get("responses_api_agents", {}).values():
            settings.pop("datasets", None)
    (place / "servers.yaml").write_text(yaml.safe_dump(tree))
    words = [
        f"+config_paths=[{place / 'servers.yaml'},{MODEL}]",
        f"+head_server={{host: 127.0.0.1, port: {port}}}",
        f"+policy_base_url={url}",
        "+policy_api_key=none",
        "+policy_model_name=player",
        "+skip_venv_if_present=true",
    ]
    for kind in find_kinds(gym / config, gym / MODEL):  # it would make an environment for each
        (place / kind).mkdir(parents=True)
        (place / kind / ".venv").symlink_to(python.parents[1])
    said = place / "gym.log"
    with said.open("w") as log:
        process = subprocess.Popen(
            [python.with_name("gym"), "env", "start", *words],
            cwd=place,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"},
        )
    try:
        yield wait_for_server(process, port, said)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:  # a shell's background process ignores that signal
            process.terminate()
            process.wait()


def find_kinds(*configs: Path) -> Iterator[str]:
    """The folders of the servers that YAML files start."""
    for path in configs:
        for block in yaml.safe_load(path.read_text()).values():
            for type_, kinds in block.items() if isinstance(block, dict) else ():
                yield from (f"{type_}/{kind}" for kind in kinds)


def wait_for_server(process: "subprocess.Popen[bytes]", port: int, said: Path) -> str:
    """The URL of the resources server, once all servers are ready."""
    ends = time.monotonic() + READY_S
    while not re.search(r"All \d+ / \d+ servers ready", said.read_text(errors="replace")):
        if process.poll() is not None or time.monotonic() > ends:
            raise RuntimeError(f"gym env start: {said.read_text(errors='replace')[-2000:]}")
        time.sleep(0.2)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/global_config_dict_yaml") as reply:
        tree = yaml.safe_load(json.loads(reply.read()))
    for block in tree.values():
        with suppress(AttributeError, KeyError, TypeError):
            [settings] = block["resources_servers"].values()
            return f"http://{settings['host']}:{settings['port']}"
    raise RuntimeError(f"no resources server runs at port {port}")


def collect_alone(gym: Path, config: str, its_url: str, url: str, rows: Path, output: Path) -> None:
    """Collect with our agent and model server, and the resources server at `its_url`."""
    tree = yaml.safe_load((gym / config).read_text())
    own = [name for name, block in tree.items() if "resources_servers" in block]
    [kind] = tree[own[0]]["resources_servers"]
    words = [
        f"+config_paths=[{config},{MODEL}]",
        f"+nemo_gym={gym}",
        f"++{own[0]}.resources_servers.{kind}.placement={its_url}",
        f"+policy_base_url={url}",
        "+policy_api_key=none",
        "+policy_model_name=player",
        f"+agent_name={find_agent(gym / config)}",
        f"+input_jsonl_fpath={rows}",
        f"+num_repeats={REPEATS}",
        f"+output_jsonl_fpath={output}",
    ]
    done = subprocess.run(
        [programs("ng_collect_rollouts"), *words], cwd=output.parent, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"ng_collect_rollouts: {done.stderr[-2000:]}")


def show(name: str, found: Crossing) -> tuple[str, bool]:
    """A line of the table, and whether all rewards are equal."""
    ours, others = found.ours, found[1:]
    same = [sum(other.get(key) == reward for key, reward in ours.items()) for other in others]
    mean = sum(ours.values()) / len(ours)
    are_equal = all(other == ours for other in others)
    line = f"| `{name}` | {len(ours)} | {mean:.3f} | " + " | ".join(map(str, same)) + " |"
    return line, are_equal
