"""ng_run: start every server of the configuration, and keep them until Ctrl-C."""

import asyncio
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from . import entry

if TYPE_CHECKING:
    from ..config.load import Config
    from ..running.launch import Placed


def main(argv: list[str] | None = None) -> None:
    sys.exit(entry.run("ng_run", sys.argv[1:] if argv is None else argv, _run))


def _run(config: "Config") -> int:
    from .. import loop  # the servers are not needed to print the help
    from ..errors import ConfigError

    if not config.instances:
        raise ConfigError(
            "no server to start: name YAML files with  ng_run '+config_paths=[a.yaml,b.yaml]'"
        )
    if config.command.dry_run:  # type: ignore[attr-defined]
        print(f"dry run: {len(config.instances)} servers would be started")
        return 0
    return loop.run(_serve(config))


async def _serve(config: "Config") -> int:
    from ..config.secrets import mask
    from ..running.fleet import Upkeep
    from ..running.head import head_server
    from ..running.launch import HttpLimits, placed

    command: Any = config.command
    began = time.monotonic()
    stopping = asyncio.Event()
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    ready = False

    def stop() -> None:
        stopping.set()
        if not ready:
            task.cancel()  # nobody waits for servers that nobody wants any more

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    limits = HttpLimits(
        limit=command.global_aiohttp_connector_limit or 0,
        limit_per_host=command.global_aiohttp_connector_limit_per_host or 0,
        request_timeout_s=command.global_aiohttp_client_timeout_s or command.request_timeout_s,
    )
    upkeep = Upkeep(
        ready_timeout_s=command.ready_timeout_s,
        max_restarts=command.max_restarts,
        log_dir=command.log_dir,
        show=_print_line,
        tell=lambda line: print(line, flush=True),
    )
    try:
        async with (
            placed(
                config,
                default="process",
                host=command.default_host,
                limits=limits,
                upkeep=upkeep,
                token=command.auth_token,
            ) as running,
            head_server(
                command.head_server, running, mask(config.values, config.secrets), stopping.set
            ) as head,
        ):
            ready = True
            _announce(running, head, time.monotonic() - began)
            return await _until_stopped(running, stopping)
    except asyncio.CancelledError:
        if not stopping.is_set():
            raise
        print("stopped before all servers were ready", flush=True)
        return 130


def _print_line(label: str, line: str) -> None:
    print(f"({label}) {line}", flush=True)


def _announce(running: "Placed", head: str, elapsed_s: float) -> None:
    width = max(len(each.name) for each in running.servers)
    for each in running.servers:
        where = ", ".join(each.urls) or "in this process"
        pids = f"  pid {', '.join(map(str, each.pids))}" if each.pids else ""
        print(f"{each.name:<{width}}  {each.type}/{each.implementation}  {where}{pids}")
    if running.log_dir:
        print(f"What they print is kept in {running.log_dir}/")
    print(
        f"All {len(running.servers)} servers ready in {elapsed_s:.1f} s."
        f" Head server: {head}. Ctrl-C or ng_stop stops all.",
        flush=True,
    )


async def _until_stopped(running: "Placed", stopping: asyncio.Event) -> int:
    """0 when asked to stop while every server could be kept; else 1."""
    stop = asyncio.create_task(stopping.wait())
    ends = set(running.ends)
    try:
        while not stop.done():
            done, _ = await asyncio.wait({stop, *ends}, return_when=asyncio.FIRST_COMPLETED)
            for end in done & ends:
                print(f"error: {end.result()}", file=sys.stderr, flush=True)
            ends -= done
            if running.ends and not ends:
                print("error: no server process is left: stopping", file=sys.stderr)
                return 1
    finally:
        stop.cancel()
    print("stopping all servers", flush=True)
    return 0 if len(ends) == len(running.ends) else 1
