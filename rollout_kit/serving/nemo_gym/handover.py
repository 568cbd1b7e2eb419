"""What a process needs to run a server of NeMo Gym: the interpreter, and the configuration as its
code expects it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from ...types import JsonObject
from ..transport import peer_user
from . import bootstrap, episode_route, episodes, game_routes, row_schema
from .checkout import GymServer
from .environment_servers import AGENTS, TAKE_ROWS, TYPE, find_environment_servers, implementations

SCRIPT = Path(bootstrap.__file__)

NO_HEAD = {"host": "127.0.0.1", "port": 11000}
"""The address that its code expects where none is given; only code that asks a head server uses
it."""


def config_for(
    tree: JsonObject, blocks: Mapping[str, tuple[str, str, JsonObject]], urls: Mapping[str, Any]
) -> JsonObject:
    """The whole configuration as NeMo Gym spells it, with the addresses of all servers. `blocks`
    maps each instance to its type, implementation and settings."""
    found = {key: value for key, value in tree.items() if key not in blocks}
    for name, (type_, implementation, settings) in blocks.items():
        domain = {} if type_ == TYPE else {"domain": "other"}  # which these servers do not take
        own = {"entrypoint": "app.py", **domain, **settings, **_address(urls.get(name))}
        found[name] = {type_: {implementation: own}}
    head = {**NO_HEAD, **(tree.get("head_server") or {})}
    return {"dry_run": False, **found, "head_server": head}


def with_addresses(
    values: JsonObject, kinds: Mapping[str, tuple[str, str]], urls: Mapping[str, Any]
) -> JsonObject:
    """A configuration that runs, with the addresses of its servers and of its head server."""
    blocks: dict[str, tuple[str, str, JsonObject]] = {}
    for name, (type_, implementation) in kinds.items():
        given = values.get(name) or {}
        own = TYPE if TYPE in given else type_
        inner = next(iter((given.get(own) or {}).values()), {}) if own in given else given
        blocks[name] = (own, implementation, inner or {})
    found = {**config_for(values, blocks, urls), "head_server": _address(urls["head_server"])}
    return found | _environment_servers(values, urls)


def _environment_servers(values: JsonObject, urls: Mapping[str, Any]) -> JsonObject:
    """The environment servers that take a row at `/run`, with the addresses of their agents."""
    found: JsonObject = {}
    for name, one in find_environment_servers(values).items():
        for kind, settings in implementations(values[name], TYPE):
            if kind in TAKE_ROWS and name not in urls:
                found[name] = {TYPE: {kind: {**settings, **_address(urls.get(one.agent))}}}
    return found


def _address(urls: Any) -> JsonObject:
    if not urls:
        return {}
    parts = urlsplit(urls[0])
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return {"host": host, "port": parts.port or (443 if parts.scheme == "https" else 80)}


def environment(inherited: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The variables of its process. PYTHONPATH belongs to our interpreter."""
    kept = {key: value for key, value in inherited.items() if key != "PYTHONPATH"}
    return {**kept, "PYTHONUNBUFFERED": "1", **own}


def plan_for(
    name: str, server: GymServer, config: JsonObject, run_id: str, descriptor: int
) -> JsonObject:
    """The line that `bootstrap` reads; its code begins at the `entrypoint` of its block.

    The configuration is in it, and never in arguments or in the environment that the process starts
    with: other processes can read those.
    """
    text = orjson.dumps(config).decode()
    [[block]] = [each.values() for each in config[name].values()]
    entrypoint = block["entrypoint"]
    return {
        "app": str(server.folder / entrypoint),
        "folder": str(server.folder),
        "root": str(server.root),
        "env": {"NEMO_GYM_CONFIG_DICT": text, "NEMO_GYM_CONFIG_PATH": name},
        "socket": descriptor,
        "run_id": run_id,
        "starts_ray": server.asks_for_ray,
        "peer_user": peer_user.__file__,
        "game_routes": game_routes.__file__,
        "row_schema": row_schema.__file__,
        "episode_route": episode_route.__file__,
        "episodes": episodes.__file__,
        "takes_episodes": server.type == TYPE,
        "about": describe(name, server),
    }


def describe(name: str, server: GymServer) -> JsonObject:
    """What a collector needs to know about the server, in the words of `/health`."""
    type_ = AGENTS if server.type == TYPE else server.type
    about: JsonObject = {"name": name, "type": type_, "settings": {}}
    if server.has_schema:
        about["checks_rows"] = True
    if server.type == "resources_servers":
        code = f"{server.folder.name} of NeMo Gym {server.digest}"
        about |= {
            "reverify": server.reverify,
            "verifier": server.digest,
            "verifier_parts": {"code": code, "libraries": {}},
        }
    return about
