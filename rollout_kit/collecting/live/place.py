"""Where running collections are found: a folder of this user, with a socket and a note for each.

Only the user can open the folder, so another one cannot even reach a socket. It needs neither token
nor port. The note names a run that was killed or hangs.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import orjson

from ...errors import ConfigError
from ...launch.run import state_folder

MAX_ADDRESS = 100
"""Longer paths do not fit into the address of a socket on every system."""


@dataclass(frozen=True, slots=True)
class Note:
    """What is known of a collection without asking it. `output` is empty if it keeps nothing."""

    run_id: str
    pid: int
    host: str
    output: str
    began: str

    @property
    def socket(self) -> Path:
        return folder() / f"{self.run_id}.sock"

    @property
    def path(self) -> Path:
        return folder() / f"{self.run_id}.json"

    @property
    def name(self) -> str:
        """How messages name it."""
        return f"the collection {f'into {self.output}' if self.output else self.run_id}"


def folder() -> Path:
    return state_folder() / "live"


def make_folder() -> Path:
    """The folder, open to this user only; ConfigError if it cannot be."""
    found = folder()
    try:
        found.mkdir(parents=True, exist_ok=True, mode=0o700)
        found.chmod(0o700)
    except OSError as error:
        raise ConfigError(
            f"{found} cannot be used: {error.strerror}; name a folder of yours in the environment"
            " variable XDG_STATE_HOME"
        ) from None
    return found


def write_note(note: Note) -> None:
    with os.fdopen(os.open(note.path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as stream:
        stream.write(orjson.dumps(asdict(note)))


def read_notes() -> Iterator[Note]:
    """The collections of this machine, in the order of their start; they may have been killed."""
    found = []
    for path in folder().glob("*.json"):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=Note))
        except (OSError, msgspec.DecodeError):
            continue
    here = socket.gethostname()
    yield from sorted((each for each in found if each.host == here), key=lambda each: each.began)


def remove(note: Note) -> None:
    note.socket.unlink(missing_ok=True)
    note.path.unlink(missing_ok=True)


@contextmanager
def address_of(path: Path) -> Iterator[str]:
    """Context with an address for `bind` and `connect`, also for a long path."""
    text = str(path)
    if len(os.fsencode(text)) <= MAX_ADDRESS or not Path("/proc/self/fd").exists():
        yield text
        return
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)
