"""Reaches running collections: those of this user by their sockets, and those of another machine by
the head server of its `ng_run`."""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ...errors import ConfigError
from ...launch.run import is_alive
from .place import Note, address_of, read_notes, remove
from .schema import LIVE, STEER, LiveList, SteerReply, SteerRequest, encode, read_reply

if TYPE_CHECKING:  # sockets need no HTTP
    from ...launch.head_client import HeadClient
    from ...serving.transport.http import Reply

ASK_S = 10.0
"""Time limit of a request. Cancelled rollouts may take a moment to end."""

LOOK_S = 2.0
"""The same where all collections are listed."""

ENDING_S = 0.2
"""Time in which a collection that ends removes its note after it has closed its socket."""

FRESH_S = 1.0
"""A list of the collections is made again after this time, whatever number of pages asks for it."""

AGAIN = "start its command again to continue it"

T = TypeVar("T")

AskServers = Callable[[], Awaitable[list[Any]]]


class Here:
    """All collections of this user on this machine. With `ask_servers`, also the servers of the
    `ng_run` at `url`."""

    def __init__(self, url: str = "", ask_servers: AskServers | None = None) -> None:
        self._url, self._ask_servers = url, ask_servers
        self._asking: asyncio.Task[LiveList] | None = None
        self._asked_at = 0.0

    async def live(self) -> LiveList:
        """What killed collections left is named once, and removed."""
        now = time.monotonic()
        if self._asking is None or now - self._asked_at >= FRESH_S:
            self._asked_at, self._asking = now, asyncio.create_task(self._ask_all())
        return await asyncio.shield(self._asking)

    async def ask(self, asked: SteerRequest) -> SteerReply:
        note = await asyncio.to_thread(choose, asked.output, asked.run)
        asked = msgspec.structs.replace(asked, run=note.run_id, output="")
        return await asyncio.to_thread(ask, note, asked)

    async def _ask_all(self) -> LiveList:
        notes = await asyncio.to_thread(lambda: list(read_notes()))
        asking = (asyncio.to_thread(ask, note, SteerRequest(), LOOK_S) for note in notes)
        found = await asyncio.gather(*asking, return_exceptions=True)
        collections, problems, servers = [], [], None
        for each in found:
            if isinstance(each, SteerReply):
                collections.append(each.snapshot)
            elif isinstance(each, ConfigError):
                problems.append(str(each))
            else:
                raise each
        try:
            servers = await self._ask_servers() if self._ask_servers else None
        except ConfigError as error:
            servers, problems = [], [*problems, str(error)]
        return LiveList(url=self._url, collections=collections, servers=servers, problems=problems)


class AtHead:
    """The collections on the machine of an `ng_run`, through its head server."""

    def __init__(self, head: "HeadClient") -> None:
        self._head = head

    async def live(self) -> LiveList:
        return self._read(await self._head.get(LIVE), LiveList)

    async def ask(self, asked: SteerRequest) -> SteerReply:
        return self._read(await self._head.post(STEER, encode(asked)), SteerReply)

    def _read(self, reply: "Reply", kind: type[T]) -> T:
        return read_reply((reply if reply.status == 400 else self._head.check(reply)).raw, kind)


def choose(output: str, run_id: str) -> Note:
    """The collection that a request means; ConfigError unless there is exactly one."""
    notes = list(read_notes())
    if run_id:
        notes = [note for note in notes if note.run_id.startswith(run_id)]
        wanted = f" with run_id={run_id}"
    elif output:
        notes = [note for note in notes if note.output in (output, os.path.realpath(output))]
        wanted = f" into {output}"
    else:
        wanted = ""
    running = [note for note in notes if is_alive(note.pid)]
    if not running and notes:
        remove(notes[-1])
        raise ConfigError(f"{notes[-1].name} was killed (pid {notes[-1].pid}): {AGAIN}")
    if not running:
        raise ConfigError(f"no collection{wanted} runs on this machine; ng_ctl lists those that do")
    if len(running) > 1:
        listed = "\n".join(f"  +run_id={each.run_id}  {each.output}" for each in running)
        raise ConfigError(f"{len(running)} collections run; say which one:\n{listed}")
    return running[0]


def ask(note: Note, asked: SteerRequest, timeout_s: float = ASK_S) -> SteerReply:
    """The reply of a collection; ConfigError if it refuses the request or does not answer."""
    return read_reply(_exchange(note, encode(asked), timeout_s), SteerReply)


def _exchange(note: Note, raw: bytes, timeout_s: float) -> bytes:
    try:
        with socket.socket(socket.AF_UNIX) as sock, address_of(note.socket) as address:
            sock.settimeout(timeout_s)
            sock.connect(address)
            sock.sendall(raw)
            reply = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    except TimeoutError:
        raise ConfigError(
            f"{note.name} does not answer within {timeout_s:g} s (pid {note.pid}): its process is"
            " stopped or busy; nothing is known to have changed"
        ) from None
    except FileNotFoundError:
        if not is_alive(note.pid):
            remove(note)
        raise ConfigError(f"{note.name} has just ended (pid {note.pid})") from None
    except ConnectionRefusedError:
        time.sleep(ENDING_S)
        if not note.path.exists():
            raise ConfigError(f"{note.name} has just ended (pid {note.pid})") from None
        remove(note)  # another process may have its id by now
        raise ConfigError(f"{note.name} was killed (pid {note.pid}): {AGAIN}") from None
    except PermissionError:
        raise ConfigError(f"{note.socket} belongs to another user") from None
    except OSError:
        raise _explain_end(note) from None
    if not reply.endswith(b"\n"):
        raise _explain_end(note)
    return reply


def _explain_end(note: Note) -> ConfigError:
    return ConfigError(f"{note.name} ended during the request (pid {note.pid})")
