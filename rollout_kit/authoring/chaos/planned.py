"""Compute the planned keys of a collection from its input and settings, without any server."""

from collections.abc import Collection
from pathlib import Path

from ...collecting.plan import find_wanted, task_reader
from ...config.inputs import choose_agent, task_path
from ...config.instances import AGENTS
from ...config.keys import CollectConfig
from ...config.load import Config
from ...errors import ConfigError
from ...launch.reach import Servers
from ...serving.transport.peers import Peers
from ...store.lines import Malformed
from ...store.scope import parse_scope
from ...types import Key
from .check import Planned


def read_plan(config: Config[CollectConfig], held: Collection[Key]) -> Planned:
    """Return the keys that the input asks for. Without a configuration, the agents and their scopes
    are taken from the keys `held` on disk; the default scope is preferred."""
    command = config.command
    names = [each.name for each in config.of_type(AGENTS)] or sorted({key.agent for key in held})
    servers = Servers(Peers({}), names, config.default_params, config.values)
    agent = choose_agent(names, config.values, command)
    source = task_path(command, config.values, agent)
    if source == "-":
        raise ConfigError(
            "input_jsonl_fpath: standard input (-) can be read only once; ng_chaos needs a file"
        )
    reader = task_reader(command, servers, Path(source))
    scopes: dict[tuple[str, str], str] = {}
    for key in held:
        which = key.agent, parse_scope(key.scope).arm
        scopes[which] = min(key.scope, scopes.get(which, key.scope), key=len)
    wanted = find_wanted(command, scopes, reader.arms)
    keys: dict[Key, int] = {}
    malformed: set[int] = set()
    for task in reader.read():
        if isinstance(task, Malformed):
            malformed.add(task.line)
        else:
            keys.update((key, task.line) for key in wanted.keys(task))
    return Planned(source, keys, frozenset(malformed if command.only is None else ()))
