"""Listening sockets, and the addresses at which they are reached."""

import socket

from ..errors import ConfigError

BACKLOG = 2048
"""Connections that may wait to be accepted, such as during a restart of the server."""


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


def url_of(sock: socket.socket) -> str:
    bound, port = sock.getsockname()[:2]
    host = str({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound, bound))
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
