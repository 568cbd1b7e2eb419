"""The user at the other end of a connection on this machine.

Linux lists every TCP socket with its user in `/proc/net/tcp` and `tcp6`. Elsewhere it is not known.
So the owner's `curl` works without a token, and other users of the machine are refused.
"""

import os
import socket
import struct
import sys
from contextlib import suppress
from typing import Any

PEER_USER = "rollout_kit.peer_user"
"""Key of an ASGI scope: the PeerUser of the connection."""

LOCAL, REMOTE, USER, INODE = 1, 2, 7, 9
"""Fields of a line in `/proc/net/tcp`."""


class PeerUser:
    """The user of one connection, looked up once, when it is asked for."""

    __slots__ = ("_is_own", "_sock")

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._is_own: bool | None = None

    @property
    def is_own(self) -> bool:
        """Whether it is known to be the user of this process."""
        if self._is_own is None:
            self._is_own = find_user(self._sock) == os.geteuid()
        return self._is_own


def find_user(sock: Any) -> int | None:
    """The user who has the other end of `sock`; None if it is not known."""
    with suppress(OSError, ValueError, IndexError):
        if sock.family == socket.AF_UNIX:
            size = struct.calcsize("3i")
            credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            return struct.unpack("3i", credentials)[1]
        ends = [sock.getpeername(), sock.getsockname()]
        for table, spell in (("tcp", _spell), ("tcp6", _spell_in_6)):
            if table == "tcp" and ":" in ends[0][0]:
                continue
            wanted = [spell(*end[:2]) for end in ends]
            with open(f"/proc/self/net/{table}", encoding="ascii") as lines:
                for line in lines:
                    fields = line.split()
                    # a socket that its process has closed belongs to no user, and has no inode
                    if fields[LOCAL : REMOTE + 1] == wanted and fields[INODE] != "0":
                        return int(fields[USER])
    return None


def _spell(host: str, port: int) -> str:
    """An IPv4 address as the kernel writes it: words in the byte order of the machine."""
    return _in_words(socket.inet_pton(socket.AF_INET, host), port)


def _spell_in_6(host: str, port: int) -> str:
    """The same for IPv6; IPv4 as sockets that speak both have it."""
    return _in_words(
        socket.inet_pton(socket.AF_INET6, host if ":" in host else f"::ffff:{host}"), port
    )


def _in_words(raw: bytes, port: int) -> str:
    words = (raw[start : start + 4] for start in range(0, len(raw), 4))
    host = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return f"{host}:{port:04X}"
