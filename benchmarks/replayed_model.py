"""A model that says what a file of rollouts has recorded, for rows with the same prompts."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Json = dict[str, Any]
Turns = list[list[Json]]
"""What the model says: messages and calls, turn by turn."""


class Player:
    """Plays the trajectory that began as the request did; the same one for the same unknown
    beginning."""

    def __init__(self, turns: dict[str, Turns]) -> None:
        self.turns = turns

    def answer(self, body: Json) -> Json:
        items = as_items(body["input"])
        start = opening(items)
        known = sorted(self.turns)
        if start not in self.turns and known:
            start = known[int(sha256(start.encode()).hexdigest(), 16) % len(known)]
        turns = self.turns.get(start) or [[message("I do not know.")]]
        return self.reply(turns, split(items))

    def reply(self, turns: Turns, said: Turns) -> Json:
        """The turn that follows those that were said."""
        turn = turns[min(len(said), len(turns) - 1)]
        output = [{**each, "id": f"{each['type']}_{len(said)}_{n}"} for n, each in enumerate(turn)]
        usage: Json = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        usage |= {"input_tokens_details": {"cached_tokens": 0}}
        usage |= {"output_tokens_details": {"reasoning_tokens": 0}}
        return {
            **{"id": "resp_1", "object": "response", "created_at": 0, "model": "player"},
            **{"output": output, "usage": usage, "status": "completed", "tools": []},
            **{"tool_choice": "auto", "parallel_tool_calls": True},
        }

    @contextmanager
    def serve(self) -> Iterator[str]:
        """The URL of an endpoint that answers with this."""
        player = self

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
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()


def read_turns(path: Path) -> dict[str, Turns]:
    """The model's turns in a file of rollouts, by the beginning of their prompts."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        if isinstance(row.get("response"), dict) and "responses_create_params" in row:
            items = as_items(row["responses_create_params"]["input"])
            found[opening(items)] = split(row["response"]["output"])
    return found


def as_items(given: Any) -> list[Any]:
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


def is_said(item: Json) -> bool:
    kind = item.get("type") or "message"
    return kind in ("function_call", "reasoning") or item.get("role") == "assistant"


def opening(items: list[Json]) -> str:
    """What identifies a prompt: the texts and images before the first turn."""
    parts: list[Any] = []
    for item in items:
        if is_said(item):
            break
        content = item.get("content")
        several = [content] if isinstance(content, str) else content or []
        parts += [each if isinstance(each, str) else _essence(each) for each in several]
    return json.dumps(parts)


def _essence(part: Json) -> Any:
    return part.get("text") or part.get("image_url")


def split(items: list[Json]) -> Turns:
    """The model's turns: runs of items that it said, with what the API allows in them."""
    turns: Turns = [[]]
    for item in items:
        if not is_said(item):
            turns.append([])
        elif item.get("type") == "function_call":
            turns[-1].append(call(item["name"], item["arguments"], item["call_id"]))
        elif item.get("type") != "reasoning":
            content = item["content"]
            texts = [content] if isinstance(content, str) else [p.get("text") for p in content]
            turns[-1].append(message("".join(map(str, texts))))
    return [turn for turn in turns if turn]


def message(text: str) -> Json:
    part = {"type": "output_text", "text": text, "annotations": []}
    whole = {"type": "message", "role": "assistant", "status": "completed"}
    return {**whole, "content": [part]}


def call(name: str, arguments: str, call_id: str) -> Json:
    return {"type": "function_call", "name": name, "arguments": arguments, "call_id": call_id}
