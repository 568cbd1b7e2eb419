"""Addresses outside that programs of a session reach by name, through an HTTP proxy, and nothing
else of the network.

A program finds the proxy by `http_proxy` and `https_proxy`. Names are resolved here, so a session
needs no resolver. The proxy sees the name of a connection, and not what an encrypted one carries.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from .client import ShellSession

MAX_HEAD = 64 << 10

MAX_CONNECTIONS = 64
"""Open connections of one session; further ones are closed at once."""

HEAD_S, CONNECT_S = 30.0, 20.0

CHUNK = 64 << 10


def is_allowed(host: str, allowed: Sequence[str]) -> bool:
    """Whether a host matches an entry: a name, `*.name` for all below it, an address, a range of
    addresses, or `*` for all. Names and addresses are never taken for each other."""
    host = host.lower().rstrip(".")
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return any(
            each == "*" or host == each or (each.startswith("*.") and host.endswith(each[1:]))
            for each in (entry.lower().rstrip(".") for entry in allowed)
        )
    for entry in allowed:
        with suppress(ValueError):
            if entry == "*" or address in ip_network(entry):
                return True
    return False


@asynccontextmanager
async def reaching(session: ShellSession, allowed: Sequence[str]) -> AsyncIterator[dict[str, str]]:
    """Context in which programs of the session reach the hosts. Gives the environment variables
    that they need. All connections end with it."""
    listener = await session.listen()
    listener.setblocking(False)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(tasks) >= MAX_CONNECTIONS:
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await _serve(reader, writer, allowed)
        finally:
            tasks.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(serve, sock=listener, limit=MAX_HEAD)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    try:
        yield {**dict.fromkeys(names, url), "no_proxy": "127.0.0.1,localhost"}
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, allowed: Sequence[str]
) -> None:
    try:
        async with asyncio.timeout(HEAD_S):
            head = await reader.readuntil(b"\r\n\r\n")
        method, target, rest = head.split(b" ", 2)
        host, port, first = _read_target(method, target.decode("latin-1"), rest)
    except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
        return
    except asyncio.LimitOverrunError:
        return
    if not is_allowed(host, allowed):
        _refuse(writer, f"403 {host} is not allowed here")
        return
    try:
        async with asyncio.timeout(CONNECT_S):
            far_reader, far_writer = await asyncio.open_connection(host.strip("[]"), port)
    except (OSError, TimeoutError):
        _refuse(writer, f"502 {host} cannot be reached")
        return
    try:
        if first:
            far_writer.write(first)
        else:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        async with asyncio.TaskGroup() as group:
            group.create_task(_pass_on(reader, far_writer))
            group.create_task(_pass_on(far_reader, writer))
    finally:
        far_writer.transport.abort()


def _read_target(method: bytes, target: str, rest: bytes) -> tuple[str, int, bytes]:
    """Host, port, and what is sent there first; ValueError if it is no request to a proxy."""
    if method == b"CONNECT":
        host, _, port = target.rpartition(":")
        return host, int(port), b""
    parts = urlsplit(target)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError("no request to a proxy")
    path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
    version, _, headers = rest.partition(b"\r\n")
    kept = [
        line
        for line in headers.split(b"\r\n")
        if line.partition(b":")[0].lower() not in (b"connection", b"proxy-connection")
    ]
    lines = [b"%s %s %s" % (method, path.encode("latin-1"), version), b"Connection: close", *kept]
    return parts.hostname, parts.port or 80, b"\r\n".join(lines)


def _refuse(writer: asyncio.StreamWriter, why: str) -> None:
    status, _, text = why.partition(" ")
    body = f"{text}\n".encode()
    head = f"HTTP/1.1 {status} {text}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while part := await reader.read(CHUNK):
            writer.write(part)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
