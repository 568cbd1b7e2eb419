"""Servers for a program: started from YAML, or those of a running `ng_run`."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..collecting.cluster.opening import open_servers
from ..config.keys import CollectConfig
from ..config.load import load
from ..errors import ConfigError
from ..launch.reach import Servers

log = logging.getLogger("rollout_kit")


def log_event(text: str, **fields: Any) -> None:
    """Where a program's run reports: the logger `rollout_kit`, at level INFO."""
    log.info("%s", text)


@asynccontextmanager
async def servers(
    *config_paths: str | Path,
    overrides: Sequence[str] = (),
    executor: str = "local",
    num_workers: int | None = None,
) -> AsyncIterator[Servers]:
    """Start the servers of YAML files, in this process unless the YAML places them elsewhere.

    With `executor="processes"` or `"ray"`, `num_workers` workers run the rollouts, as they do for
    `ng_collect_rollouts`; all runs through them have the same settings. `overrides` are words as on
    the command line: `"++policy_model.…=0.7"`. Raises ConfigError if the configuration is wrong or
    a server cannot start.
    """
    if isinstance(overrides, str):
        raise ConfigError(f"overrides: expected a list of words, got the text '{overrides}'")
    if not config_paths or not all(isinstance(path, str | Path) and path for path in config_paths):
        raise ConfigError(
            "servers: expected the paths of YAML files, as in servers('a.yaml', 'b.yaml'), got"
            f" {', '.join(map(repr, config_paths)) or 'none'}"
        )
    paths = ",".join(str(path) for path in config_paths)
    words = [f"+config_paths=[{paths}]", f"+executor={executor}", *overrides]
    if num_workers is not None:
        words.append(f"+num_workers={num_workers}")
    async with _reach(words) as found:
        yield found


@asynccontextmanager
async def connect(url: str, *, auth_token: str | None = None) -> AsyncIterator[Servers]:
    """The servers of the `ng_run` whose head server answers at `url`, as it prints it."""
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except (AttributeError, TypeError, ValueError):
        scheme = host = port = None
    if scheme != "http" or not host or not port:
        raise ConfigError(f"connect: expected a URL such as http://127.0.0.1:11000, got {url!r}")
    named = f"[{host}]" if ":" in host else host
    words = [f"+head_server.host='{named}'", f"+head_server.port={port}"]
    async with _reach(words, auth_token=auth_token) as found:
        yield found


@asynccontextmanager
async def _reach(words: Sequence[str], **keys: Any) -> AsyncIterator[Servers]:
    """`keys` are set as they are: they never appear in an error about a word."""
    config = load(["+global_aiohttp_connector_limit=0", *words], CollectConfig)
    given = {name: value for name, value in keys.items() if value is not None}
    config = replace(config, command=config.command.model_copy(update=given))
    async with open_servers(config, log_event) as found:
        try:
            yield found
        finally:
            found.ended.set()
