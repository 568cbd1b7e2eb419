"""Measure the simulated model: requests per second on one core, compared with a bare server.

    python benchmarks/simulated_model.py [--seconds 3] [--connections 64] [--workers 1]

The bare server answers every request with the same bytes without reading it, which is the upper
bound for Python on a socket. Rates are requests per second of the server's CPU time, which does not
depend on other load; the wall rate does.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

LONG = {"output_tokens": {"median": 400, "sigma": 0.5}}
CASES = {
    "bare server": None,
    "echo": {},
    "400 tokens": LONG,
    "limits and faults": {
        **LONG,
        "rate_limit": {"requests_per_minute": 1e9, "tokens_per_minute": 1e12},
        "latency_s": {"median": 0.002},
        "max_concurrent_requests": 1000,
        "faults": [{"kind": 500, "probability": 0.01}, {"kind": 429, "probability": 0.01}],
    },
    "400 tokens, streamed": LONG,
    "2,000 tokens with ids": {"output_tokens": 2000, "return_token_ids": True},
}


class Bare(asyncio.Protocol):
    """Answers everything, one request per read."""

    body = json.dumps({"output": [{"type": "message", "content": "hi"}], "pad": "x" * 500}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    answer = head % len(body) + body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(self.answer)  # type: ignore[attr-defined]


def serve(case: str, port: int) -> None:
    """Run one server process: print its port and answer until killed."""
    from rollout_kit.serving import registry
    from rollout_kit.serving.sockets import bound_socket
    from rollout_kit.serving.transport import loop
    from rollout_kit.serving.transport.peers import Peers

    async def main() -> None:
        settings = CASES[case]
        if settings is None:
            sock = bound_socket("127.0.0.1", port)
            server = await asyncio.get_running_loop().create_server(Bare, sock=sock)
            print(sock.getsockname()[1], flush=True)
            await server.serve_forever()
        cls = registry.load("responses_api_models", "simulated_model")
        given = {**(settings or {}), **({"endpoint_port": port} if port else {})}
        service = cls(cls.Config.model_validate(given), Peers({}), "policy_model")
        await service.start()
        if port:
            print(port, flush=True)
            await asyncio.Event().wait()
        sock = bound_socket("127.0.0.1", 0)
        async with service.serving(sock):
            print(sock.getsockname()[1], flush=True)
            await asyncio.Event().wait()

    loop.run(main())


class Client(asyncio.Protocol):
    """Sends the next request after each answer."""

    def __init__(self, requests: list[bytes]) -> None:
        self.requests = requests
        self.num_done = 0
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(self.requests[0])  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head = self.buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        at = self.buffer.find(b"content-length: ", 0, head)
        if at < 0:
            if not self.buffer.endswith(b"0\r\n\r\n"):
                return
        elif len(self.buffer) < head + 4 + int(self.buffer[at + 16 : at + 26].split(b"\r")[0]):
            return
        self.buffer = b""
        self.num_done += 1
        request = self.requests[self.num_done % len(self.requests)]
        self.transport.write(request)  # type: ignore[attr-defined]


async def load(port: int, streams: bool, connections: int, seconds: float) -> tuple[int, float]:
    """Run a closed loop; return requests and seconds."""
    loop = asyncio.get_running_loop()
    clients = []
    for number in range(connections):
        requests = []
        for index in range(50):
            text = f"Question {index} of {number}: which one? A: first B: second C: third D: fourth"
            message = {"role": "user", "content": text}
            body = json.dumps({"model": "m", "input": [message], "stream": streams}).encode()
            head = (
                "POST /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: */*\r\n"
                "user-agent: benchmark\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\n\r\n"
            )
            requests.append(head.encode() + body)
        client = Client(requests)
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)
        clients.append(client)
    began = time.perf_counter()
    await asyncio.sleep(seconds)
    done, took_s = sum(client.num_done for client in clients), time.perf_counter() - began
    for client in clients:
        client.transport.abort()  # type: ignore[attr-defined]
    return done, took_s


def cpu_s(pid: int) -> float:
    """CPU time of a process, from /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(case: str, args: argparse.Namespace) -> tuple[float, float]:
    """Measure requests per second of the servers' CPU, and per second of wall time."""
    import uvloop

    shared = args.port if args.workers > 1 and CASES[case] is not None else 0
    argv = [sys.executable, __file__, "--serve", case, "--port", str(shared)]
    number = args.workers if shared else 1
    servers = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(number)]
    try:
        ports = [int(server.stdout.readline()) for server in servers if server.stdout]
        uvloop.run(load(ports[0], "stream" in case, args.connections, 0.3))
        before = sum(cpu_s(server.pid) for server in servers)
        done, took_s = uvloop.run(load(ports[0], "stream" in case, args.connections, args.seconds))
        used_s = sum(cpu_s(server.pid) for server in servers) - before
    finally:
        for server in servers:
            server.kill()
            server.wait()
    return done / used_s, done / took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--workers", type=int, default=1, help="processes that share one port")
    parser.add_argument("--port", type=int, default=18_080, help="that port")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args.serve, args.port)
    print(f"{'':>22} {'per core s':>11} {'per wall s':>11} {'of bare':>8}")
    floor = 0.0
    for case in CASES:
        per_core, per_wall = measure(case, args)
        floor = floor or per_core
        print(f"{case:>22} {per_core:>11.0f} {per_wall:>11.0f} {per_core / floor:>8.2f}")


if __name__ == "__main__":
    main()
