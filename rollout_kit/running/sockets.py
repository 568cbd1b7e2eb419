"""Listening sockets, bound before anything starts, so that no other program can take a port."""

import contextlib
import socket
from collections.abc import Iterable, Mapping

from ..config.instances import AGENTS, Instance
from ..errors import ConfigError

BACKLOG = 2048
"""Connections that may wait to be accepted, also while a server is being started."""

WARM_UP_PORT = 8000
"""Where a single agent listens if it can, so that a warm-up request needs no look-up."""

Sockets = Mapping[str, list[socket.socket]]
"""An instance's name → one socket per worker."""


def bound_socket(host: str, port: int) -> socket.socket:
    """A listening socket's address, taken now so that no other program can; OSError where it is
    taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)  # only a listening socket keeps others off the port
    except OSError:
        sock.close()
        raise
    return sock


def bind_all(instances: Iterable[Instance], listening: Iterable[Instance], host: str) -> Sockets:
    """A socket for every worker of those that listen; ConfigError names a port that is taken."""
    agents = [each for each in instances if each.type == AGENTS]
    only_agent = agents[0].name if len(agents) == 1 else None
    sockets: dict[str, list[socket.socket]] = {}
    try:
        for each in listening:
            workers = 1 if each.process else each.num_workers
            sockets[each.name] = [
                _bind(each, worker, host, wants_8000=each.name == only_agent)
                for worker in range(workers)
            ]
    except BaseException:
        for sock in (sock for bound in sockets.values() for sock in bound):
            sock.close()
        raise
    return sockets


def _bind(instance: Instance, worker: int, host: str, *, wants_8000: bool) -> socket.socket:
    host = instance.host or host
    if instance.port is None and wants_8000 and worker == 0:
        with contextlib.suppress(OSError):
            return bound_socket(host, WARM_UP_PORT)
    port = (instance.port or 0) + (worker if instance.port else 0)
    try:
        return bound_socket(host, port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{instance.name}: cannot listen on {host}:{port}: {reason}; give it another"
            " 'port', or none to have one picked"
        ) from None


def url_of(sock: socket.socket) -> str:
    bound, port = sock.getsockname()[:2]
    host = str({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound, bound))
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
