"""Proxies on real sockets: HTTP (CONNECT and forwarding) and SOCKS 5, with a password or without.

They know names that nobody else does, so a request to such a name can only have come this way.
"""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from threading import Event, Thread
from urllib.parse import urlsplit

NAME = "api.inside.example"
"""A host that only the proxy knows: this machine."""


@dataclass
class Proxying:
    """A running proxy; `seen` has what it was asked for, and `refused` how often it refused."""

    user: str = ""
    seen: list[str] = field(default_factory=list)
    refused: int = 0
    port: int = 0

    def url(self, kind: str, user: str = "") -> str:
        return f"{kind}://{user + '@' if user else ''}127.0.0.1:{self.port}"


@asynccontextmanager
async def proxying(
    kind: str = "http", user: str = "", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Proxying]:
    """A proxy that lets `user` ("name:password") pass, or everybody."""
    found = Proxying(user)
    talk = _talk_http if kind.startswith("http") else _talk_socks

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, asyncio.CancelledError, OSError):
            await talk(found, reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()  # what is open ends with the loop


@contextmanager
def proxy_beside(
    kind: str = "http", user: str = "", tls: ssl.SSLContext | None = None
) -> Iterator[Proxying]:
    """The same in a thread, for a command that runs its own loop."""
    ready = Event()
    found: list[tuple[Proxying, Callable[[], object]]] = []

    async def serve() -> None:
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        async with proxying(kind, user, tls) as proxy:
            found.append((proxy, lambda: loop.call_soon_threadsafe(ended.set)))
            ready.set()
            await ended.wait()

    thread = Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    ready.wait()
    proxy, end = found[0]
    try:
        yield proxy
    finally:
        end()
        thread.join()


async def _talk_http(
    proxy: Proxying, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    while True:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, _ = head.split(" ", 2)
        named = base64.b64encode(proxy.user.encode()).decode()
        if proxy.user and f"proxy-authorization: basic {named}\r\n".lower() not in head.lower():
            proxy.refused += 1
            writer.write(b"HTTP/1.1 407 Who are you\r\ncontent-length: 0\r\n\r\n")
            return
        proxy.seen.append(f"{method} {target}")
        if method == "CONNECT":
            host, _, port = target.rpartition(":")
            if host == "closed.example":
                writer.write(b"HTTP/1.1 403 Not from here\r\n\r\n")
                return
            beyond = await asyncio.open_connection(_address(host), int(port))
            writer.write(b"HTTP/1.1 200 Go ahead\r\n\r\n")
            await _join((reader, writer), beyond)
            return
        parts = urlsplit(target)
        beyond = await asyncio.open_connection(_address(str(parts.hostname)), parts.port or 80)
        beyond[1].write(head.replace(target, parts.path, 1).encode())
        await _join((reader, writer), beyond)
        return


async def _talk_socks(
    proxy: Proxying, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    _, number = await reader.readexactly(2)
    offered, wanted = await reader.readexactly(number), 2 if proxy.user else 0
    if wanted not in offered:
        proxy.refused += 1
        writer.write(b"\x05\xff")
        return
    writer.write(bytes((5, wanted)))
    if proxy.user:
        await reader.readexactly(1)
        said = [await reader.readexactly((await reader.readexactly(1))[0]) for _ in range(2)]
        is_known = b":".join(said).decode() == proxy.user
        proxy.refused += not is_known
        writer.write(bytes((1, not is_known)))
        if not is_known:
            return
    _, _, _, kind = await reader.readexactly(4)
    assert kind == 3, "names are resolved by the proxy"
    host = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
    port = int.from_bytes(await reader.readexactly(2))
    proxy.seen.append(f"{host}:{port}")
    beyond = await asyncio.open_connection(_address(host), port)
    writer.write(b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00")
    await _join((reader, writer), beyond)


def _address(host: str) -> str:
    return "127.0.0.1" if host == NAME else host


async def _join(
    one: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    other: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    """Pass bytes both ways until one end closes."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while piece := await reader.read(1 << 16):
                writer.write(piece)
                await writer.drain()
        writer.close()

    await asyncio.gather(pump(one[0], other[1]), pump(other[0], one[1]))
