"""Servers for a program: started from YAML or from objects, or those of a running `ng_run`."""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, Unpack
from urllib.parse import urlsplit

from ..collecting.cluster.nodes import nodes_for
from ..collecting.cluster.opening import open_servers
from ..config.keys import CollectConfig, Command, ReverifyConfig
from ..config.load import Config, Program, load
from ..errors import ConfigError
from ..launch.reach import Servers, reach
from ..secrets import mask
from ..types import JsonObject
from .given import Agents, Environment, Given, Modelled, Verified
from .keys import StartKeys

log = logging.getLogger("rollout_kit")

AnyCommand = TypeVar("AnyCommand", bound=Command)

AnyKind = type[CollectConfig] | type[ReverifyConfig]


def log_event(text: str, **fields: Any) -> None:
    """Where a program's run reports: the logger `rollout_kit`, at level INFO."""
    log.info("%s", text)


@asynccontextmanager
async def servers(
    *config_paths: str | Path,
    agents: Agents | None = None,
    model: Modelled | None = None,
    verify: Verified | None = None,
    environment: Environment | None = None,
    values: JsonObject | None = None,
    overrides: Sequence[str] = (),
    **keys: Unpack[StartKeys],
) -> AsyncIterator[Servers]:
    """Start servers and stop them at the end of the block.

    They come from YAML files, from Python objects, or from both: a server that is given here
    replaces that of the same name in the files. All run in this process unless the YAML places them
    elsewhere.

    - `model` becomes the server `policy_model`. It is `"openai/gpt-4o-mini"` (a provider whose YAML
      is shipped, and its model), the URL of an endpoint with one model, an `Endpoint`, a `Model` or
      its class, or a function of the create params that returns a text or a response.
    - `environment` is the name of a shipped resources server, a YAML file, or a `ResourcesServer`.
    - `verify` is a function `verify(task, response)` that returns a reward or a mapping with
      `reward`, or a `ResourcesServer`. It takes the place of `environment`.
    - `agents` are `Agent` objects or classes, one, several, or by name. Without any, a
      `simple_agent` is added if there is one resources server.
    - `values` are keys and blocks as in a YAML file that is merged last.
    - `overrides` are words as on the command line: `"++policy_model.…=0.7"`.
    - `keys` are the keys of the commands that concern servers, such as `record="tape"`. With
      `executor="processes"` or `"ray"`, `num_workers` workers run the rollouts, and all runs
      through these servers have the same settings.

    Raises ConfigError if the configuration is wrong or a server cannot start.

    Example:

        async with rk.servers(model=lambda params: "4", environment="string_match") as servers:
            table = await rk.collect(rows, servers=servers)
        print(len(table))
    """
    if isinstance(overrides, str | Mapping):
        raise ConfigError(
            f"overrides: expected a list of words, got {overrides!r:.80}; give a mapping as values="
        )
    given = Given(model, verify, environment, agents)
    async with started(config_paths, given, {**(values or {}), **keys}, overrides) as found:
        yield found


@asynccontextmanager
async def started(
    config_paths: Sequence[str | Path],
    given: Given,
    values: JsonObject,
    overrides: Sequence[str] = (),
    kind: AnyKind = CollectConfig,
) -> AsyncIterator[Servers]:
    """The servers of files and objects that a command of this kind needs."""
    is_some = config_paths or given or values
    if not is_some or not all(isinstance(path, str | Path) and path for path in config_paths):
        raise ConfigError(
            "servers: expected objects, or paths of YAML files, as in servers('a.yaml', 'b.yaml'),"
            f" got {', '.join(map(repr, config_paths)) or 'none'}"
        )
    given = await given.ask_name()
    async with _reach(given.program(config_paths, values), overrides, kind) as found:
        yield found


@asynccontextmanager
async def connect(url: str, *, auth_token: str | None = None) -> AsyncIterator[Servers]:
    """The servers of the `ng_run` whose head server answers at `url`, as it prints it.

    `auth_token` is the secret of that run, if it is not in this user's token file. Raises
    ConfigError if nothing answers there.

    Example (needs ng_run):

        async with rk.connect("http://127.0.0.1:11000") as servers:
            table = await rk.collect("tasks.jsonl", servers=servers)
    """
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except (AttributeError, TypeError, ValueError):
        scheme = host = port = None
    if scheme != "http" or not host or not port:
        raise ConfigError(f"connect: expected a URL such as http://127.0.0.1:11000, got {url!r}")
    named = f"[{host}]" if ":" in host else host
    values: JsonObject = {"head_server": {"host": named, "port": port}}
    if auth_token is not None:
        values["auth_token"] = auth_token
    async with _reach(Program(values=values)) as found:
        yield found


@asynccontextmanager
async def beside(running: Servers, given: Given) -> AsyncIterator[Servers]:
    """The servers that a program gives, which ask a model server that runs already."""
    async with _reach(given.program((), {}, running)) as found:
        yield replace(found, ends=[*found.ends, *running.ends])


@asynccontextmanager
async def _reach(
    program: Program, words: Sequence[str] = (), kind: AnyKind = CollectConfig
) -> AsyncIterator[Servers]:
    values = {"global_aiohttp_connector_limit": 0, **program.values}
    values = {key: str(one) if isinstance(one, Path) else one for key, one in values.items()}
    program = replace(program, values=values)
    if kind is ReverifyConfig:
        verifying = _load(words, ReverifyConfig, program)
        where = reach(verifying, log_event, nodes=nodes_for(verifying))
    else:
        where = _reach_for_collections(_load(words, CollectConfig, program), program)
    async with where as found:
        try:
            yield found
        finally:
            found.ended.set()


def _load(words: Sequence[str], kind: type[AnyCommand], program: Program) -> Config[AnyCommand]:
    """The configuration; the logger gets its warnings, and its notes at level INFO."""
    config = load(words, kind, program=program)
    for warning in config.warnings:
        log.warning("%s", mask(warning, config.secrets))
    for note in config.notes:
        log_event(mask(note, config.secrets))
    return config


def _reach_for_collections(
    config: Config[CollectConfig], program: Program
) -> AbstractAsyncContextManager[Servers]:
    if program.made and config.command.executor != "local":
        names = ", ".join(program.made)
        raise ConfigError(
            f"executor={config.command.executor}: {names} would run in this process only: put its"
            " class into the app.py of a folder, such as resources_servers/my_env, or leave it out"
        )
    return open_servers(config, log_event)
