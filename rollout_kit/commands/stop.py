"""ng_stop: stop a running ng_run and its servers, from another terminal."""

import asyncio
import time

from ..config.keys import ControlConfig
from ..errors import ConfigError
from ..launch.head_client import OTHER_PLACE, found_head
from . import entry

STOP_S = 30.0
"""Time limit for ng_run to stop. Servers are killed after five seconds; the rest is a reserve."""

POLL_S = 0.1


def main(words: list[str]) -> int:
    return asyncio.run(_stop(entry.load(words, ControlConfig).command))


async def _stop(command: ControlConfig) -> int:

    nothing = f"nothing to stop; {OTHER_PLACE}"
    async with found_head(command.head_server, command.auth_token, nothing) as head:
        await head.stop()
        give_up = time.monotonic() + STOP_S
        while await head.answers():
            if time.monotonic() > give_up:
                raise ConfigError(f"the ng_run at {head.url} has not stopped within {STOP_S:g} s")
            await asyncio.sleep(POLL_S)
    print(f"stopped the ng_run at {head.url} and all its servers")
    return 0
