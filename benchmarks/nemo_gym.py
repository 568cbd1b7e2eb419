"""Servers of a NeMo Gym checkout that are not ours, through our agent and through its own.

    python benchmarks/nemo_gym.py ~/Gym [server …]

Each is started from its YAML and collects its five example rows ten times. The model plays the
trajectories of the server's own `example_rollouts.jsonl`. One line per server: the time to the
first request, rollouts, mean reward, and of how many rollouts both agents got the same reward.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

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
    "example_multi_turn_gymnasium": "",
    "grl_tetris": "",
    "grl_sokoban": "",
    "openair_congestion": "",
}
"""Server → its YAML, if that has another name."""

MODEL = "responses_api_models/openai_model/configs/openai_model.yaml"

THEIRS = "+nemo_gym_code=[simple_agent,gymnasium_agent]"

REPEATS = 10


class Player:
    """A model that plays recorded trajectories: the one that began as the request did."""

    def __init__(self, folder: Path) -> None:
        self.turns: dict[str, list[list[Any]]] = {}
        self.first_request: float | None = None
        path = folder / "data" / "example_rollouts.jsonl"
        for line in path.read_text().splitlines() if path.exists() else ():
            row = json.loads(line)
            if isinstance(row.get("response"), dict) and "responses_create_params" in row:
                params = row["responses_create_params"]
                self.turns[opening(as_items(params["input"]))] = split(row["response"]["output"])

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        self.first_request = self.first_request or time.time()
        items = as_items(body["input"])
        start = opening(items)
        known = sorted(self.turns)
        if start not in self.turns and known:
            start = known[int(sha256(start.encode()).hexdigest(), 16) % len(known)]
        turns = self.turns.get(start) or [[message("I do not know.")]]
        said = split(items)
        turn = turns[min(len(said), len(turns) - 1)]
        for number, item in enumerate(turn):
            item["id"] = f"{item['type']}_{len(said)}_{number}"
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        usage |= {"input_tokens_details": {"cached_tokens": 0}}
        usage |= {"output_tokens_details": {"reasoning_tokens": 0}}
        return {
            **{"id": "resp_1", "object": "response", "created_at": 0, "model": "player"},
            **{"output": turn, "usage": usage, "status": "completed", "tools": []},
            **{"tool_choice": "auto", "parallel_tool_calls": True},
        }


def as_items(given: Any) -> list[Any]:
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


def is_said(item: Any) -> bool:
    kind = item.get("type") or "message"
    return kind in ("function_call", "reasoning") or item.get("role") == "assistant"


def opening(items: list[Any]) -> str:
    """The texts before the first turn."""
    texts = []
    for item in items:
        if is_said(item):
            break
        content = item.get("content")
        texts.append(content if isinstance(content, str) else content[0].get("text"))
    return json.dumps(texts)


def split(items: list[Any]) -> list[list[Any]]:
    """The model's turns: runs of items that it said, with what the API allows in them."""
    turns: list[list[Any]] = [[]]
    for item in items:
        if not is_said(item):
            turns.append([])
        elif item.get("type") == "function_call":
            turns[-1].append({k: item[k] for k in ("type", "name", "arguments", "call_id")})
        elif item.get("type") != "reasoning":
            content = item["content"]
            texts = [content] if isinstance(content, str) else [p.get("text") for p in content]
            turns[-1].append(message("".join(map(str, texts))))
    return [turn for turn in turns if turn]


def message(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    whole = {"type": "message", "role": "assistant", "status": "completed"}
    return {**whole, "content": [part]}


def serve(player: Player) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            body = json.dumps(player.answer(json.loads(raw))).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def collect(gym: Path, name: str, output: Path, *words: str) -> tuple[dict[Any, float], float, str]:
    """Rewards by task and repeat, seconds to the first request, and the last words."""
    folder = gym / "resources_servers" / name
    player = Player(folder)
    server = serve(player)
    yaml = f"resources_servers/{name}/configs/{SERVERS.get(name) or name}.yaml"
    command = Path(sys.executable).with_name("ng_collect_rollouts")
    began = time.time()
    done = subprocess.run(
        [
            str(command),
            f"+config_paths=[{yaml},{MODEL}]",
            f"+nemo_gym={gym}",
            "+install=true",
            f"+input_jsonl_fpath={folder}/data/example.jsonl",
            f"+num_repeats={REPEATS}",
            f"+output_jsonl_fpath={output}",
            f"+policy_base_url=http://127.0.0.1:{server.server_port}/v1",
            "+policy_api_key=none",
            "+policy_model_name=player",
            "+num_samples_in_parallel=16",
            *words,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    server.shutdown()
    rows = [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []
    rewards = {(r["rollout"]["task_id"], r["rollout"]["rollout_index"]): r["reward"] for r in rows}
    took = (player.first_request or time.time()) - began
    return rewards, took, (done.stderr + done.stdout)[-1500:]


def main() -> None:
    gym, *names = sys.argv[1:]
    print("| server | first request, s | rollouts | mean reward | same reward by its agent |")
    print("|---|---|---|---|---|")
    for name in names or SERVERS:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(gym).expanduser().resolve()
            ours, took, said = collect(folder, name, Path(place) / "ours.jsonl")
            theirs, _, told = collect(folder, name, Path(place) / "theirs.jsonl", THEIRS)
        same = sum(ours[key] == theirs.get(key) for key in ours)
        mean = sum(ours.values()) / len(ours) if ours else 0.0
        print(f"| {name} | {took:.1f} | {len(ours)} | {mean:.3f} | {same} of {len(theirs)} |")
        if not ours or len(theirs) != len(ours):
            print(said if not ours else told, file=sys.stderr)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
