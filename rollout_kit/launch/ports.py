"""The ports of instances, bound before any server starts, so that no other program can take one."""

import contextlib
import re
import socket
from collections.abc import Iterable, Mapping
from typing import Any

from ..config.instances import AGENTS, Instance
from ..errors import ConfigError
from ..serving.sockets import bound_socket

WARM_UP_PORT = 8000
"""Port of the first agent, if it is free, so that a first request needs no look-up."""

LOCAL_URL = re.compile(rf"https?://(localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1?\]):{WARM_UP_PORT}\b")

NONE = range(0)

Sockets = Mapping[str, list[socket.socket]]
"""An instance's name → one socket per worker."""


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
