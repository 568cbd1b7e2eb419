"""How commands reach running collections of this user: by their sockets."""

import os
import socket
import time
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from ...errors import ConfigError
from ...launch.run import is_alive
from ...types import JsonObject
from .place import Note, address_of, encode, read_notes, remove

ASK_S = 10.0
"""Time limit of a request. Cancelled rollouts may take a moment to end."""

ENDING_S = 0.2
"""Time in which a collection that ends removes its note after it has closed its socket."""

AGAIN = "start its command again to continue it"


class Found(NamedTuple):
    """A collection that was asked: its reply, or why there is none."""

    note: Note
    reply: JsonObject | None
    problem: str


def find_collections() -> list[Found]:
    """All collections of this user on this machine. What killed ones left is named once, and
    removed."""
    return [_greet(note) for note in read_notes()]


def choose(output: Path | None, run_id: str | None) -> Note:
    """The collection that a command means; ConfigError unless there is exactly one."""
    notes = list(read_notes())
    if run_id is not None:
        notes = [note for note in notes if note.run_id.startswith(run_id)]
        wanted = f" with run_id={run_id}"
    elif output is not None:
        path = str(Path.cwd() / output.expanduser())
        notes = [note for note in notes if note.output in (path, os.path.realpath(path))]
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


def ask(note: Note, request: JsonObject, timeout_s: float = ASK_S) -> JsonObject:
    """The reply of a collection; ConfigError if it refuses the request or does not answer."""
    reply = exchange(note, request, timeout_s)
    if (error := reply.get("error")) is not None:
        raise ConfigError(str(error))
    return reply


def exchange(note: Note, request: JsonObject, timeout_s: float = ASK_S) -> JsonObject:
    """The reply of a collection, which may be an error of its own."""
    try:
        with socket.socket(socket.AF_UNIX) as sock, address_of(note.socket) as address:
            sock.settimeout(timeout_s)
            sock.connect(address)
            sock.sendall(encode(request))
            reply = orjson.loads(_read_all(sock))
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
    except (OSError, orjson.JSONDecodeError):
        raise ConfigError(f"{note.name} ended during the request (pid {note.pid})") from None
    return reply if isinstance(reply, dict) else {}


def _greet(note: Note) -> Found:
    try:
        return Found(note, ask(note, {}), "")
    except ConfigError as error:
        return Found(note, None, str(error))


def _read_all(sock: socket.socket) -> bytes:
    parts: list[Any] = []
    while part := sock.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)
