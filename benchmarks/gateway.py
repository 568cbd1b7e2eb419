"""What the gateway costs: CPU of a call, next to a bare relay (`benchmarks.hop`) that passes bytes
on, and the time to the first byte, next to the model server itself.

    python -m benchmarks.gateway [--turns 10,300] [--rollouts 20]

Three processes: this one is the harness, and one each for the model server and for the relay or the
gateway, whose CPU is counted.
"""

import argparse
import asyncio
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
import uvloop

from rollout_kit.serving import registry
from rollout_kit.serving.gateway.door import Gateway, OpenAddress
from rollout_kit.serving.gateway.recorder import Recorder
from rollout_kit.serving.sockets import bound_socket
from rollout_kit.serving.transport.http import HttpClient
from rollout_kit.serving.transport.peers import Http, Peers
from rollout_kit.session import Session, TurnLog, entered

CHAT = "/v1/chat/completions"

SAID, ASKED = "I look at the file and change the line. " * 6, "out: line of a tool's output\n" * 15


def fork(serve: Callable[[], Awaitable[Any]]) -> int:
    """A process that serves until it is killed."""
    child = os.fork()
    if child:
        return child
    try:
        uvloop.run(serve())  # type: ignore[arg-type]
    finally:
        os._exit(0)


def cpu_s(pid: int) -> float:
    """CPU of all threads of a process so far."""
    found = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
            found += int(file.read().split()[0])
    return found / 1e9


async def serve_model(sock: socket.socket) -> None:
    cls = registry.load("responses_api_models", "simulated_model")
    config = cls.Config.model_validate({"answer": "text", "text": SAID})
    model = cls(config, Peers({}), "policy_model")
    await model.start()
    async with model.serving(sock):
        await asyncio.Event().wait()


async def serve_gateway(port: int, url: str, tokens: int) -> None:
    """Addresses of `tokens` rollouts, whose journal is a file."""
    peers = Peers({"policy_model": Http("policy_model", [url], HttpClient())})
    gateway = Gateway(port=port)
    await gateway.start()
    with open("/dev/shm/gateway-benchmark.jsonl", "wb", buffering=0) as file:  # noqa: ASYNC230
        for number in range(tokens):
            session = Session()

            def report(turn: Any) -> None:
                file.write(orjson.dumps(turn, option=orjson.OPT_APPEND_NEWLINE))

            session.turn_log = TurnLog((), report)
            with entered(session):
                recorder = Recorder(peers, "policy_model")
            gateway._open[f"t{number}"] = OpenAddress(recorder)
        await asyncio.Event().wait()
    os.unlink("/dev/shm/gateway-benchmark.jsonl")


async def converse(url: str, turns: int, *, stream: bool) -> list[float]:
    """One rollout of a harness; the time to the first byte of each call."""
    client, messages, first = HttpClient(), [{"role": "system", "content": "You work."}], []
    for _ in range(turns):
        messages.append({"role": "user", "content": ASKED})
        raw = orjson.dumps({"messages": messages, "model": "m", "stream": stream})
        began, seen = time.perf_counter(), []

        def arrived(piece: bytes, seen: list[float] = seen) -> None:
            seen.append(time.perf_counter())

        reply = await client.post(url, raw, arrived=arrived if stream else None)
        first.append((seen[0] if seen else time.perf_counter()) - began)
        assert reply.status == 200, reply.text()
        messages.append({"role": "assistant", "content": SAID})
    await client.close()
    return first


@dataclass
class Measured:
    """What the calls on one way took, in seconds."""

    urls: list[str]
    pids: list[int]
    first: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=lambda: [0.0, 0.0])

    async def converse(self, turns: int, *, stream: bool) -> None:
        before = [cpu_s(pid) for pid in self.pids]
        self.first += await converse(self.urls.pop(0), turns, stream=stream)
        for number, pid in enumerate(self.pids):
            self.cpu[number] += cpu_s(pid) - before[number]

    def describe(self) -> dict[str, Any]:
        """Milliseconds of CPU of each process for a call, and p50 of the first byte."""
        each = [round(spent / len(self.first) * 1000, 3) for spent in self.cpu[: len(self.pids)]]
        return {"cpu_ms": each, "first_ms": round(statistics.median(self.first) * 1000, 3)}


def compare(turns: int, rollouts: int, *, stream: bool) -> dict[str, Any]:
    sock = bound_socket("127.0.0.1", 0)
    free = bound_socket("127.0.0.1", 0)
    port, url = free.getsockname()[1], f"http://127.0.0.1:{sock.getsockname()[1]}"
    free.close()
    model = fork(lambda: serve_model(sock))
    hop = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.hop", url], stdout=subprocess.PIPE, text=True
    )
    assert hop.stdout is not None
    relay, relay_port = hop.pid, int(hop.stdout.readline())
    gateway = fork(lambda: serve_gateway(port, url, rollouts + 1))
    try:
        relay_url = f"http://127.0.0.1:{relay_port}{CHAT}"
        own = [f"http://127.0.0.1:{port}/r/t{number}{CHAT}" for number in range(rollouts + 1)]
        time.sleep(2)
        for each in (url + CHAT, relay_url, own.pop()):
            asyncio.run(converse(each, 3, stream=stream))
        found: dict[str, Any] = {"turns": turns, "stream": stream}
        ways = {
            "direct": Measured([url + CHAT] * rollouts, [model]),
            "relay": Measured([relay_url] * rollouts, [relay, model]),
            "gateway": Measured(own, [gateway, model]),
        }
        for _ in range(rollouts):  # in turns, as a machine changes its speed
            for way in ways.values():
                asyncio.run(way.converse(turns, stream=stream))
        found |= {name: way.describe() for name, way in ways.items()}
        both = [sum(found[name]["cpu_ms"]) for name in ("gateway", "relay")]
        found["ratio"] = round(both[0] / both[1], 2)
        found["later_ms"] = round(found["gateway"]["first_ms"] - found["direct"]["first_ms"], 3)
        return found
    finally:
        for pid in (model, relay, gateway):
            os.kill(pid, signal.SIGKILL)
            if pid != relay:
                os.waitpid(pid, 0)
        hop.wait()
        hop.stdout.close()
        sock.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", default="10,300")
    parser.add_argument("--rollouts", type=int, default=20)
    given = parser.parse_args()
    for turns in map(int, given.turns.split(",")):
        rollouts = max(1, given.rollouts * 10 // turns) if turns > 10 else given.rollouts
        for stream in (False, True):
            print(orjson.dumps(compare(turns, rollouts, stream=stream)).decode(), flush=True)


if __name__ == "__main__":
    main()
