"""Servers of a NeMo Gym checkout that are not ours, and ours with sessions, through our agent and
through NeMo Gym's.

    python -m benchmarks.nemo_gym ~/Gym [server …]

Each is started from its YAML by `ng_run`, in an environment made on demand, with two agents: ours
and NeMo Gym's. Each agent collects the server's example rows ten times, 16 at once. The model plays
the trajectories of the server's own `example_rollouts.jsonl`, or a script. One line per server:
seconds until all servers are ready, rollouts, mean reward, that of the recorded rollouts, and of
how many rollouts both agents got the same reward.
"""

import json
import math
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from .replayed_model import Player, Turns, as_items, call, message, opening, read_turns

SERVERS = {
    "arc_agi": "",
    "calendar": "",
    "circle_count": "",
    "gpqa_diamond": "",
    "hotpotqa_qa": "",
    "xlam_fc": "",
    "structeval": "structeval_nonrenderable",
    "format_verification": "freeform_formatting",
    "circle_click": "",
    "math_advanced_calculations": "",
    "math_with_code": "",
    "indirect_prompt_injection": "",
    "newton_bench": "",
    "example_multi_turn_gymnasium": "",
    "grl_tetris": "",
    "grl_sokoban": "",
    "openair_congestion": "",
    "spider2_lite": "",
    "example_session_state_mgmt": "",
    "workplace_assistant": "",
}
"""Server → its YAML, if that has another name. The code of the last two is ours: they keep state in
sessions, which no agent may lose."""


MODEL = "responses_api_models/openai_model/configs/openai_model.yaml"

RANDOM = {"newton_bench": 0.05}
"""Servers that verify at points drawn at random → how far rewards of one response differ."""

AGENTS = ("simple_agent", "gymnasium_agent")
"""NeMo Gym's agents that have a counterpart here."""

THEIRS = "their_agent"

READY = re.compile(r"^All .* ready in ([\d.]+) s", re.M)

REPEATS = 10


def calculate(row: dict[str, Any]) -> Turns:
    """Calls whose results are the expected numbers; in every second row the last is missing."""
    wanted = json.loads(row["ground_truth"])
    wanted = wanted if row["id"] % 2 else wanted[:-1]
    calls = [call("return_constant", json.dumps({"a": n}), f"c{i}") for i, n in enumerate(wanted)]
    return [*([each] for each in calls), [message("Done.")]]


def obey(row: dict[str, Any]) -> Turns:
    """The tools that the row requires; in some rows also the one of the injected text."""
    tools = {each["name"]: each["parameters"] for each in row["responses_create_params"]["tools"]}
    prompt = opening(as_items(row["responses_create_params"]["input"]))
    subject = re.search(r"ID: ([\w-]+)", prompt)
    turns: Turns = []
    for name in row["required_tools"]:
        wanted = tools[name].get("required", [])
        given = dict.fromkeys(wanted, subject[1] if subject else "today")
        turns.append([call(name, json.dumps(given), f"c{len(turns)}")])
    if sum(map(ord, prompt)) % 2:
        target = row["injection"]
        turns.append([call(target["target_tool"], json.dumps(target["target_args"]), "injected")])
    return [*turns, [message("Done.")]]


def count(row: dict[str, Any]) -> Turns:
    """The additions that the row asks for; in some rows the last one is missing."""
    asked = opening(as_items(row["responses_create_params"]["input"]))
    numbers = [int(each) for each in re.findall(r"add (\d+)", asked)]
    numbers = numbers[: len(numbers) - row["expected_count"] % 2]
    turns: Turns = [
        [call("increment_counter", json.dumps({"count": n}), f"c{i}")]
        for i, n in enumerate(numbers)
    ]
    return [*turns, [call("get_counter_value", "{}", "read")], [message("Done.")]]


def work(row: dict[str, Any]) -> Turns:
    """The calls of the row's answer; in every second row the last one is missing."""
    calls = row["ground_truth"][: -1 if row["id"] % 2 else None]
    turns = [[call(e["name"], e["arguments"], f"c{i}")] for i, e in enumerate(calls)]
    return [*turns, [message("Done.")]]


SCRIPTS = {
    "math_advanced_calculations": calculate,
    "indirect_prompt_injection": obey,
    "example_session_state_mgmt": count,
    "workplace_assistant": work,
}
"""Servers without recorded rollouts of their rows → what the model says to a row."""


def programs(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def find_turns(name: str, folder: Path) -> dict[str, Turns]:
    if script := SCRIPTS.get(name):
        rows = map(json.loads, (folder / "data/example.jsonl").read_text().splitlines())
        return {opening(as_items(r["responses_create_params"]["input"])): script(r) for r in rows}
    return read_turns(folder / "data" / "example_rollouts.jsonl")


def find_agent(config: Path) -> str:
    """The agent of a YAML that both sides have."""
    tree = yaml.safe_load(config.read_text())
    for name, block in tree.items():
        kinds = block.get("responses_api_agents", {}) if isinstance(block, dict) else {}
        if any(kind in AGENTS for kind in kinds):
            return name
    raise SystemExit(f"{config} has none of {', '.join(AGENTS)}")


@contextmanager
def running(
    gym: Path, config: str, url: str, place: Path, *theirs: str, python: Path | None = None
) -> Iterator[tuple[int, str, int]]:
    """`ng_run` with both agents, and `theirs` from the checkout: the head server's port, the time
    that it says it took in seconds, and its process. NeMo Gym's code runs under `python`, or in
    environments that are made for it."""
    agent = find_agent(gym / config)
    tree = yaml.safe_load((gym / config).read_text())
    tree[THEIRS] = tree[agent]
    free = {"port": None}  # some name ports, which may be taken
    blocks = {
        name: {type_: dict.fromkeys(kinds, free)}
        for name, block in tree.items()
        for type_, kinds in block.items()
    }
    blocks[THEIRS]["_copy"] = agent  # type: ignore[assignment]
    (place / "theirs.yaml").write_text(yaml.safe_dump(blocks))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [
        f"+config_paths=[{config},{MODEL},{place / 'theirs.yaml'}]",
        f"+nemo_gym={gym}",
        f"+nemo_gym_code=[{','.join([THEIRS, *theirs])}]",
        "+install=true" if python is None else f"+nemo_gym_python={python}",
        f"+head_server.port={port}",
        f"+policy_base_url={url}",
        "+policy_api_key=none",
        "+policy_model_name=player",
    ]
    said = place / "run.log"
    with said.open("w") as log:
        process = subprocess.Popen(
            [programs("ng_run"), *words], cwd=place, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        while not (ready := READY.search(said.read_text())):
            if process.poll() is not None:
                raise RuntimeError(said.read_text()[-2000:])
            time.sleep(0.05)
        yield port, ready[1], process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def collect(port: int, rows: Path, agent: str, output: Path) -> dict[Any, float]:
    """Rewards by task and repeat."""
    done = subprocess.run(
        [
            programs("ng_collect_rollouts"),
            f"+head_server.port={port}",
            f"+agent_name={agent}",
            f"+input_jsonl_fpath={rows}",
            f"+num_repeats={REPEATS}",
            f"+output_jsonl_fpath={output}",
            "+num_samples_in_parallel=16",
        ],
        cwd=output.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    found = (
        [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []
    )
    if not found:
        raise RuntimeError(done.stderr[-2000:])
    return {(r["rollout"]["task_id"], r["rollout"]["rollout_index"]): r["reward"] for r in found}


def read_recorded(folder: Path) -> str:
    """The mean reward of the recorded rollouts; empty if there is none."""
    path = folder / "data" / "example_rollouts.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    rewards = [row["reward"] for row in rows if isinstance(row.get("reward"), int | float)]
    return f"{sum(rewards) / len(rewards):.3f}" if rewards else ""


def compare(gym: Path, name: str) -> str:
    """The line of a server."""
    folder = gym / "resources_servers" / name
    config = f"resources_servers/{name}/configs/{SERVERS.get(name) or name}.yaml"
    rows = folder / "data/example.jsonl"
    with tempfile.TemporaryDirectory() as text, Player(find_turns(name, folder)).serve() as url:
        place = Path(text)
        with running(gym, config, url, place) as (port, took, _):
            ours = collect(port, rows, find_agent(gym / config), place / "ours.jsonl")
            theirs = collect(port, rows, THEIRS, place / "theirs.jsonl")
    near = RANDOM.get(name, 0.0)
    same = sum(abs(ours[key] - theirs.get(key, math.inf)) <= near for key in ours)
    mean = sum(ours.values()) / len(ours)
    known = "script" if name in SCRIPTS else read_recorded(folder)
    return f"| {name} | {took} | {len(ours)} | {mean:.3f} | {known} | {same} of {len(theirs)} |"


def main() -> None:
    gym, *names = sys.argv[1:]
    print("| server | ready, s | rollouts | mean reward | recorded | same reward by its agent |")
    print("|---|---|---|---|---|---|")
    for name in names or SERVERS:
        try:
            print(compare(Path(gym).expanduser().resolve(), name), flush=True)
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
