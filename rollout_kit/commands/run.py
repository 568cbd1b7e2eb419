"""ng_run: start every server of the configuration and keep them running until Ctrl-C."""

import asyncio
import signal
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any, TextIO

from ..collecting.cluster.nodes import nodes_for
from ..collecting.live.client import Here
from ..collecting.live.schema import STEER
from ..collecting.live.site import routes_of
from ..config.keys import RunConfig
from ..config.load import Config
from ..config.replaced import explain
from ..errors import ConfigError
from ..launch.fleet import Upkeep
from ..launch.head_server import HeadServer
from ..launch.placement import HttpLimits, Placed, placed
from ..launch.ports import WARM_UP_PORT, warm_up_agent
from ..launch.run import RunIdentity
from ..secrets import mask
from ..serving.transport import loop
from ..serving.transport.cassette import Tapes
from . import entry

MAX_WAITING = 10_000
"""Lines kept for a slow reader."""

FLUSH_S = 1.0
"""Time limit for the last lines at the end."""


class Console:
    """Prints lines in order from a thread, until `close`.

    A pager, a stopped terminal or a closed pipe must not stop the servers. Lines that are not read
    are dropped, oldest first; the servers' logs are complete.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        if hasattr(self._out, "reconfigure"):
            self._out.reconfigure(errors="backslashreplace")  # type: ignore[attr-defined]
        self._waiting: deque[str | None] = deque(maxlen=MAX_WAITING)
        self._some = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def say(self, line: str) -> None:
        self._waiting.append(line)
        self._some.release()

    def close(self) -> None:
        """Print the remaining lines, within a time limit."""
        self._waiting.append(None)
        self._some.release()
        self._thread.join(FLUSH_S)

    def _write(self) -> None:
        # the pipe or stream was closed
        with suppress(OSError, ValueError):
            while True:
                self._some.acquire()
                if not self._waiting:
                    continue  # its line was dropped
                line = self._waiting.popleft()
                if line is None:
                    return
                self._out.write(f"{line}\n")
                self._out.flush()


def main(words: list[str]) -> int:
    config = entry.load(words, RunConfig)
    if not config.instances:
        raise ConfigError(
            "no server to start: name YAML files with  ng_run '+config_paths=[a.yaml,b.yaml]'"
        )
    if config.command.dry_run:
        print(f"dry run: {len(config.instances)} servers would be started")
        return 0
    return loop.run(_serve(config))


async def _serve(config: Config[RunConfig]) -> int:
    command = config.command
    began = time.monotonic()
    stopping = asyncio.Event()
    task = asyncio.current_task()
    assert task is not None
    ready = False

    def stop() -> None:
        stopping.set()
        if not ready:
            task.cancel()  # do not wait until the servers are ready

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    run = RunIdentity.with_token(command.auth_token)
    shown = mask(config.values, config.secrets)
    console = Console()
    for clause in explain(config.replaced, config.instances):
        console.say(mask(clause, config.secrets))
    try:
        async with (
            HeadServer(
                run, command.head_server, shown, stop, routes_of(Here()), control=(STEER,)
            ) as head,
            placed(
                config,
                default="process",
                host=command.default_host,
                limits=_make_limits(command),
                upkeep=_make_upkeep(command, console),
                run=run,
                tapes=Tapes.at(command.record, command.replay),
                nodes=nodes_for(config),
            ) as running,
        ):
            ready = True
            head.announce(running.servers)
            _announce(running, head.url, time.monotonic() - began, console)
            _announce_agent(config, running, console)
            return await _wait_until_stopped(running, stopping, console)
    except asyncio.CancelledError:
        if not stopping.is_set():
            raise
        console.say("stopped before all servers were ready")
        return entry.INTERRUPTED
    finally:
        console.close()


def _make_limits(command: Any) -> HttpLimits:
    return HttpLimits(
        limit=command.global_aiohttp_connector_limit or 0,
        limit_per_host=command.global_aiohttp_connector_limit_per_host or 0,
        request_timeout_s=command.global_aiohttp_client_timeout_s or command.request_timeout_s,
        max_reply_mb=command.max_reply_mb,
    )


def _make_upkeep(command: Any, console: Console) -> Upkeep:
    return Upkeep(
        ready_timeout_s=command.ready_timeout_s,
        max_restarts=command.max_restarts,
        log_dir=command.log_dir,
        reload=command.reload,
        show=lambda label, line: console.say(f"({label}) {line}"),
        tell=console.say,
    )


def _announce(running: Placed, head: str, elapsed_s: float, console: Console) -> None:
    width = max(len(each.name) for each in running.servers)
    for each in running.servers:
        where = ", ".join(each.urls) or "in this process"
        pids = f"  pid {', '.join(map(str, each.pids))}" if each.pids else ""
        console.say(f"{each.name:<{width}}  {each.type}/{each.implementation}  {where}{pids}")
    if running.log_dir:
        console.say(f"Logs: {running.log_dir}/")
    console.say(
        f"All {len(running.servers)} servers ready in {elapsed_s:.1f} s."
        f" Head server: {head}. Ctrl-C or ng_stop stops all."
    )


def _announce_agent(config: Config, running: Placed, console: Console) -> None:
    """Report the first agent's address if there are several, or if its port is in use."""

    agent = warm_up_agent(config.instances.values())
    if agent is None or agent.placement not in (None, "process"):
        return
    [url, *_] = next(each.urls for each in running.servers if each.name == agent.name)
    agents = [each for each in config.instances.values() if each.type == agent.type]
    if url.endswith(f":{WARM_UP_PORT}"):
        if len(agents) > 1:
            console.say(f"Port {WARM_UP_PORT} is {agent.name}'s, the first agent")
    else:
        console.say(f"Port {WARM_UP_PORT} is in use: {agent.name} listens at {url} instead")


async def _wait_until_stopped(running: Placed, stopping: asyncio.Event, console: Console) -> int:
    """Wait until stopped; return 1 if a server was given up, else 0."""
    stop = asyncio.create_task(stopping.wait())
    ends = set(running.ends)
    try:
        while not stop.done():
            done, _ = await asyncio.wait({stop, *ends}, return_when=asyncio.FIRST_COMPLETED)
            for end in done & ends:
                console.say(f"error: {end.result()}")
            ends -= done
            if running.ends and not ends:
                console.say("error: no server process is left; stopping")
                return entry.FAILED
    finally:
        stop.cancel()
    console.say("stopping all servers")
    return 0 if len(ends) == len(running.ends) else entry.FAILED
