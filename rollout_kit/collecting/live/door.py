"""The socket of a running collection: one line of JSON in, one out, for its own user only."""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from msgspec import UNSET, Raw

from ...errors import ConfigError, RolloutKitError
from ...serving.transport.loop import beside, cancel_all
from ...serving.transport.peer_user import find_user
from ...store.lines import now_text
from ...types import Say
from .control import Control, name_user
from .place import Note, address_of, make_folder, remove, write_note
from .schema import (
    MAX_REQUEST,
    LiveList,
    SteerRefusal,
    SteerReply,
    SteerRequest,
    encode,
    read_request,
)
from .watcher import Watcher

PATIENCE_S = 10.0
"""Time for one request to arrive, and for its reply to be read."""


class OneRun:
    """Answers for the run of this process."""

    def __init__(self, control: Control, watcher: Watcher) -> None:
        self._control, self._watcher = control, watcher

    async def live(self) -> LiveList:
        return LiveList(collections=[Raw(self._watcher.raw)])

    async def ask(self, asked: SteerRequest, peer: str = "") -> SteerReply:
        """`peer` is the process that asks, where it is known."""
        watcher = self._watcher
        if not watcher.run_id.startswith(asked.run):
            raise ConfigError(f"the collection {asked.run} does not run any more")
        sender = asked.sender or "a program"
        by = f"{name_user()} ({sender[:40]}{peer})"
        changes = []
        if asked.steer:
            changes = await self._control.steer(asked.steer, by, is_dry=asked.dry_run)
        return SteerReply(
            changes=changes,
            dry_run=asked.dry_run,
            state=self._control.state,
            history=Raw(watcher.history) if asked.history else UNSET,
            turns=self._control.watch(asked.watch, asked.since) if asked.watch else UNSET,
            snapshot=Raw(watcher.raw),
        )


class Door:
    """Answers at the socket of one run."""

    def __init__(self, run: OneRun) -> None:
        self._run = run
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
                await loop.sock_sendall(connection, encode(SteerRefusal("it is another user's")))
                return
            async with asyncio.timeout(PATIENCE_S):
                raw = await self._read(connection)
            reply = await self._answer(raw, _name_peer(connection))
            async with asyncio.timeout(PATIENCE_S):
                await loop.sock_sendall(connection, encode(reply))

    async def _read(self, connection: socket.socket) -> bytes:
        raw = b""
        while not raw.endswith(b"\n") and len(raw) < MAX_REQUEST:
            if not (more := await asyncio.get_running_loop().sock_recv(connection, 1 << 16)):
                break
            raw += more
        return raw

    async def _answer(self, raw: bytes, peer: str) -> SteerReply | SteerRefusal:
        try:
            return await self._run.ask(read_request(raw), peer)
        except RolloutKitError as error:
            return SteerRefusal(str(error))


@asynccontextmanager
async def open_door(control: Control, watcher: Watcher, say: Say) -> AsyncIterator[OneRun]:
    """Context in which other commands of this user find the run, and can steer it.

    A run that cannot be found goes on all the same.
    """
    run = OneRun(control, watcher)
    note = Note(watcher.run_id, os.getpid(), socket.gethostname(), watcher.output, now_text())
    try:
        sock = _bind(note)
    except (OSError, ConfigError) as error:
        say(f"warning: this run cannot be steered: {error}")
        yield run
        return
    try:
        async with beside(Door(run).serve(sock)):
            yield run
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
