"""The socket of a running collection: one line of JSON in, one out, for its own user only.

A request is `{"steer": {knob: value, …}, "dry_run": false, "from": "ng_ctl", "history": false}`,
where each part may be missing. The reply holds the `changes`, the `state` and the `snapshot` of the
last second, or only an `error`.
"""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import orjson

from ...errors import ConfigError, RolloutKitError
from ...serving.transport.loop import beside, cancel_all
from ...serving.transport.peer_user import find_user
from ...store.lines import now_text
from ...types import JsonObject, Say
from .control import Control, name_user
from .place import Note, address_of, encode, make_folder, remove, write_note
from .watcher import Watcher

MAX_REQUEST = 1 << 20

PATIENCE_S = 10.0
"""Time for one request to arrive, and for its reply to be read."""


class Door:
    """Answers for one run."""

    def __init__(self, control: Control, watcher: Watcher) -> None:
        self._control, self._watcher = control, watcher
        self._open: set[asyncio.Task[None]] = set()

    async def serve(self, sock: socket.socket) -> None:
        """Accept connections until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                connection, _ = await loop.sock_accept(sock)
                connection.setblocking(False)
                task = loop.create_task(self._handle(connection))
                self._open.add(task)
                task.add_done_callback(self._open.discard)
        finally:
            await cancel_all(self._open)

    async def _handle(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, TimeoutError):
            loop = asyncio.get_running_loop()
            if find_user(connection) not in (os.geteuid(), None):
                # where users are not known, the folder is what keeps others out
                await loop.sock_sendall(connection, encode({"error": "it is another user's"}))
                return
            async with asyncio.timeout(PATIENCE_S):
                raw = await self._read(connection)
            reply = await self.answer(raw, _name_peer(connection))
            async with asyncio.timeout(PATIENCE_S):
                await loop.sock_sendall(connection, reply + b"\n")

    async def _read(self, connection: socket.socket) -> bytes:
        raw = b""
        while not raw.endswith(b"\n") and len(raw) < MAX_REQUEST:
            if not (more := await asyncio.get_running_loop().sock_recv(connection, 1 << 16)):
                break
            raw += more
        return raw

    async def answer(self, raw: bytes, peer: str) -> bytes:
        """The reply to a request: JSON, without the end of its line."""
        try:
            asked = orjson.loads(raw or b"{}")
            if not isinstance(asked, dict):
                raise ConfigError("a request is a JSON object")
            return await self._reply(asked, peer)
        except orjson.JSONDecodeError as error:
            return orjson.dumps({"error": f"the request is not JSON: {error}"})
        except RolloutKitError as error:
            return orjson.dumps({"error": str(error)})

    async def _reply(self, asked: JsonObject, peer: str) -> bytes:
        steer, is_dry, watcher = asked.get("steer"), bool(asked.get("dry_run")), self._watcher
        by = f"{name_user()} ({str(asked.get('from') or 'a program')[:40]}{peer})"
        changes = await self._control.steer(steer, by, is_dry=is_dry) if steer else []
        said = {"changes": changes, "dry_run": is_dry, "state": self._control.state}
        history = b',"history":' + watcher.history if asked.get("history") else b""
        return orjson.dumps(said)[:-1] + history + b',"snapshot":' + watcher.raw + b"}"


@asynccontextmanager
async def open_door(control: Control, watcher: Watcher, say: Say) -> AsyncIterator[None]:
    """Context in which other commands of this user find the run, and can steer it.

    A run that cannot be found goes on all the same.
    """
    note = Note(watcher.run_id, os.getpid(), socket.gethostname(), watcher.output, now_text())
    try:
        sock = _bind(note)
    except (OSError, ConfigError) as error:
        say(f"warning: this run cannot be steered: {error}")
        yield
        return
    try:
        async with beside(Door(control, watcher).serve(sock)):
            yield
    finally:
        sock.close()
        remove(note)


def _bind(note: Note) -> socket.socket:
    make_folder()
    sock = socket.socket(socket.AF_UNIX)
    try:
        with address_of(note.socket) as address:
            sock.bind(address)
        note.socket.chmod(0o600)
        sock.listen()
        sock.setblocking(False)
        write_note(note)
    except BaseException:
        sock.close()
        remove(note)
        raise
    return sock


def _name_peer(connection: socket.socket) -> str:
    """`, pid 12`: the process at the other end, where that is known."""
    if not hasattr(socket, "SO_PEERCRED"):
        return ""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return f", pid {struct.unpack('3i', credentials)[0]}"
