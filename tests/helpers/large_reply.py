"""An endpoint whose one reply is large, and the memory that a child process needs for it.

By hand, for any size in megabytes:  python tests/helpers/large_reply.py 200
"""

import json
import os
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

from endpoint import endpoint, says
from workplace import ROOT, Workplace

PIECE = b"a word, " * 8192

CHAT_START = b'{"id": "x", "model": "m", "choices": [{"index": 0, "finish_reason": "stop", '
CHAT_START += b'"message": {"role": "assistant", "content": "'
CHAT_END = b'"}}], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}'
RESPONSE_START = (
    b'{"id": "x", "object": "response", "model": "m", "status": "completed", "output": '
)
RESPONSE_START += b'[{"type": "message", "id": "y", "role": "assistant", "status": "completed", '
RESPONSE_START += b'"content": [{"type": "output_text", "annotations": [], "text": "'
RESPONSE_END = b'"}]}]}'

CASES: dict[str, tuple[int, bytes, bytes]] = {
    "chat": (200, CHAT_START, CHAT_END),
    "responses": (200, RESPONSE_START, RESPONSE_END),
    "no JSON": (200, CHAT_START, b'"}}], oops'),
    "no completion": (200, b'{"text": "', b'"}'),
    "error": (400, b'{"error": {"message": "', b'"}}'),
    "error for now": (503, b'{"error": {"message": "', b'"}}'),
    "page": (502, b"<html>", b"</html>"),
    "packed": (200, CHAT_START, CHAT_END),
    "bomb": (200, CHAT_START, CHAT_END),
}
"""Name → status, and what is around the text of the reply."""

PEAK = """
def peak():
    # that of getrusage begins with the parent's
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) << 10
"""

ASKING = f"""
import asyncio, json, sys
from rollout_kit.errors import RolloutError
from rollout_kit.serving import registry
from rollout_kit.serving.transport.loop import run
from rollout_kit.serving.transport.peers import Peers
{PEAK}
url, api, limit = sys.argv[1:]
server = registry.load("responses_api_models", "openai_model")
settings = {{"openai_base_url": url, "openai_api_key": "sk-0123456789abcdef", "openai_model": "m"}}
settings |= {{"upstream_api": api, "max_tries": 1, "max_reply_mb": float(limit)}}


async def main():
    model = server(server.Config.of(settings, []), Peers({{}}), "model")
    await model.start()
    before = peak()
    try:
        reply = await model.answer("/v1/responses", b'{{"input": "hi"}}')
        said = len(reply["output"][0]["content"][0]["text"])
    except RolloutError as error:
        said = error.message[:200]
    print(json.dumps({{"growth": peak() - before, "said": said}}))
    await model.stop()


run(main())
"""

COLLECTING = f"""
import atexit, json, sys
{PEAK}
from rollout_kit.serving.transport.http import HttpClient

begun, post = [], HttpClient.post

def note(*given, **named):
    begun.append(peak())
    return post(*given, **named)

HttpClient.post = note
atexit.register(lambda: print("\\ngrowth", peak() - begun[0]))
from rollout_kit.commands import main
main("ng_collect_rollouts")
"""


def pieces(case: str, size: int) -> Iterator[bytes]:
    _, start, end = CASES[case]
    yield start
    for _ in range(size // len(PIECE)):
        yield PIECE
    yield end


def packed(case: str, size: int) -> Iterator[bytes]:
    packing = zlib.compressobj(1, wbits=31)
    for piece in pieces(case, size):
        yield packing.compress(piece)
    yield packing.flush()


@contextmanager
def large_endpoint(case: str, size: int) -> Iterator[str]:
    """The URL of an endpoint whose every reply has about `size` bytes."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(CASES[case][0])
            self.send_header("content-type", "application/json")
            self.send_header("transfer-encoding", "chunked")
            is_packed = case in ("packed", "bomb")
            if is_packed:
                self.send_header("content-encoding", "gzip")
            self.end_headers()
            for piece in filter(None, (packed if is_packed else pieces)(case, size)):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except OSError:  # the client has read enough
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def measure(case: str, size: int, *, limit_mb: float = 256.0) -> tuple[int, str | int]:
    """By how many bytes the peak of a process grows that asks a model once, and what it got."""
    api = "responses" if case == "responses" else "chat_completions"
    with large_endpoint(case, size) as url:
        argv = [sys.executable, "-c", ASKING, url, api, str(limit_mb)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return found["growth"], found["said"]


def measure_run(case: str, size: int, folder: Path) -> int:
    """The same for a whole rollout, from the request to the stored line, in one process."""
    with endpoint(says(lambda body: "never asked")) as model:
        place = Workplace(folder, model)
    place.tasks(1)
    with large_endpoint(case, size) as url:
        env = (folder / "env.yaml").read_text().replace(model.url, url)
        (folder / "env.yaml").write_text(env)
        settings = "+policy_model.responses_api_models.openai_model"
        api = "responses" if case == "responses" else "chat_completions"
        argv = place.collect_argv(f"{settings}.upstream_api={api}", f"{settings}.max_tries=1")
        done = subprocess.run(
            [sys.executable, "-c", COLLECTING, *argv, "+max_attempts=1"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert "\ngrowth " in done.stdout, done.stdout + done.stderr
    return int(done.stdout.rsplit("growth ", 1)[1])


if __name__ == "__main__":
    size = int(float(sys.argv[1]) * 1e6)
    for name in CASES:
        bytes_, said = measure(
            name, 2 * size if name == "bomb" else size, limit_mb=1.3 * size / 1e6
        )
        sys.stdout.write(f"{name:15} {bytes_ / size:5.2f} x   {said}\n")
    for name in ("chat", "responses", "no JSON", "error"):
        with TemporaryDirectory() as folder:
            grown = measure_run(name, size, Path(folder))
        sys.stdout.write(f"run: {name:10} {grown / size:5.2f} x\n")
