"""Listening sockets, bound before any server starts, so that no other program can take a port."""

import contextlib
import re
import socket
from collections.abc import Iterable, Mapping
from typing import Any

from ..config.instances import AGENTS, Instance
from ..errors import ConfigError

BACKLOG = 2048
"""Connections that may wait to be accepted, such as during a restart of the server."""

WARM_UP_PORT = 8000
"""Port of the first agent, if it is free, so that a first request needs no look-up."""

LOCAL_URL = re.compile(rf"https?://(localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1?\]):{WARM_UP_PORT}\b")

NONE = range(0)

Sockets = Mapping[str, list[socket.socket]]
"""An instance's name → one socket per worker."""


def bound_socket(host: str, port: int) -> socket.socket:
    """A listening socket; OSError if the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns off Nagle's algorithm only if the protocol is named; else replies lose 40 ms
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)  # only a listening socket keeps others off the port
    except OSError:
        sock.close()
        raise
    return sock


def bind_page(key: str, port: int) -> socket.socket:
    """The socket of a page for this machine; ConfigError, with the `key` of its port, if the port
    is taken."""
    try:
        return bound_socket("127.0.0.1", port)
    except OSError as error:
        raise ConfigError(
            f"{key}={port}: {error.strerror}; choose another, or 0 for a free one"
        ) from None


def bind_all(instances: Iterable[Instance], listening: Iterable[Instance], host: str) -> Sockets:
    """A socket for every worker of the `listening` instances; ConfigError if a port is taken."""
    instances, listening = list(instances), list(listening)
    at_8000 = warm_up_agent(instances)
    sockets: dict[str, list[socket.socket]] = {}
    try:
        for each in listening:
            own = sockets[each.name] = []
            for worker in range(_num_sockets(each)):  # in a loop, so that an error closes them all
                sock = _bind(each, worker, host, listening, wants_8000=each is at_8000)
                own.append(sock)
    except BaseException:
        for sock in (sock for bound in sockets.values() for sock in bound):
            sock.close()
        raise
    return sockets


def warm_up_agent(instances: Iterable[Instance]) -> Instance | None:
    """The first agent without a `port`, which may listen on WARM_UP_PORT; None if the `port` or a
    URL of an instance names that port."""
    instances = list(instances)
    agents = [each for each in instances if each.type == AGENTS and each.port is None]
    is_spoken_for = any(
        WARM_UP_PORT in _ports(each) or _names_port(each.settings) for each in instances
    )
    return agents[0] if agents and not is_spoken_for else None


def _names_port(value: Any) -> bool:
    """Whether the settings contain a URL of this machine with WARM_UP_PORT."""
    if isinstance(value, Mapping):
        return any(map(_names_port, value.values()))
    if isinstance(value, list):
        return any(map(_names_port, value))
    return isinstance(value, str) and LOCAL_URL.match(value) is not None


def _num_sockets(instance: Instance) -> int:
    return 1 if instance.process else instance.num_workers


def _ports(instance: Instance) -> range:
    """The ports of the instance; empty if they are chosen automatically."""
    return range(instance.port, instance.port + _num_sockets(instance)) if instance.port else NONE


def _bind(
    instance: Instance, worker: int, host: str, others: list[Instance], *, wants_8000: bool
) -> socket.socket:
    host = instance.host or host
    if instance.port is None and wants_8000 and worker == 0:
        with contextlib.suppress(OSError):
            return bound_socket(host, WARM_UP_PORT)
    port = (instance.port or 0) + (worker if instance.port else 0)
    try:
        return bound_socket(host, port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        same = [each.name for each in others if each is not instance and port in _ports(each)]
        if same:
            reason = f"{reason} by '{same[0]}', which is given the same"
        raise ConfigError(
            f"{instance.name}: cannot listen on {host}:{port}: {reason}; give it another"
            " 'port', or none to have one picked"
        ) from None


def url_of(sock: socket.socket) -> str:
    bound, port = sock.getsockname()[:2]
    host = str({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound, bound))
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
