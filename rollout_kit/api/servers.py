"""Servers for a program: started from YAML, or those of a running `ng_run`."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..config.keys.commands import CollectConfig
from ..config.load import load
from ..errors import ConfigError
from ..launch.reach import Servers, reach

log = logging.getLogger("rollout_kit")


def log_event(text: str, **fields: Any) -> None:
    """Where a program's run reports: the logger `rollout_kit`, at level INFO."""
    log.info("%s", text)


@asynccontextmanager
async def servers(
    *config_paths: str | Path, overrides: Sequence[str] = ()
) -> AsyncIterator[Servers]:
    """Start the servers of YAML files, in this process unless the YAML places them elsewhere.

    `overrides` are words as on the command line: `"++policy_model.…=0.7"`. Raises ConfigError if
    the configuration is wrong or a server cannot start.
    """
    if not config_paths:
        raise ConfigError("servers: name at least one YAML file")
    paths = ",".join(str(path) for path in config_paths)
    async with _reach([f"+config_paths=[{paths}]", *overrides]) as found:
        yield found


@asynccontextmanager
async def connect(url: str, *, auth_token: str | None = None) -> AsyncIterator[Servers]:
    """The servers of the `ng_run` whose head server answers at `url`, as it prints it."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    if not parts.hostname or not parts.port:
        raise ConfigError(f"connect: expected a URL such as http://127.0.0.1:11000, got '{url}'")
    words = [f"+head_server.host={parts.hostname}", f"+head_server.port={parts.port}"]
    async with _reach([*words, *([f"+auth_token={auth_token}"] if auth_token else [])]) as found:
        yield found


@asynccontextmanager
async def _reach(words: Sequence[str]) -> AsyncIterator[Servers]:
    config = load(["+global_aiohttp_connector_limit=0", *words], CollectConfig)
    async with reach(config, config.command, log_event) as found:
        yield found
