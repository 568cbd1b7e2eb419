"""The identity of a running `ng_run`, and its token in a file that only its user can read.

Commands of the same user find the token by the run's id, from any folder, and send it to that run's
address only, so other users can neither stop the run nor read its configuration.
"""

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from ..errors import ConfigError


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """`id` is public; `token` is the secret that guarded routes ask for."""

    id: str = field(default_factory=lambda: secrets.token_hex(8))
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @classmethod
    def with_token(cls, token: str | None) -> "RunIdentity":
        """A new run with this token, or with a random one."""
        return cls(token=token) if token else cls()


@contextmanager
def keep_token(run: RunIdentity, url: str) -> Iterator[Path]:
    """Context in which the token file exists; `url` is that of the run's head server."""
    folder = _folder()
    path = folder / f"{run.id}.json"
    entry = {"token": run.token, "url": url, "pid": os.getpid(), "host": socket.gethostname()}
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _sweep(folder)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(orjson.dumps(entry))
    except OSError as error:
        raise ConfigError(
            f"the run's token cannot be written to {path}: {error.strerror}; name a folder of"
            " yours in the environment variable XDG_STATE_HOME"
        ) from None
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def read_token(run_id: str, url: str) -> str:
    """The run's token; empty if this user has no file for the run at this address."""
    try:
        if not run_id.isalnum():
            return ""
        entry = orjson.loads((_folder() / f"{run_id}.json").read_bytes())
        return str(entry["token"]) if _port(entry["url"]) == _port(url) else ""
    except (OSError, ValueError, KeyError, TypeError, ConfigError):
        return ""


def _port(url: str) -> str:
    return url.rpartition(":")[2]


def _folder() -> Path:
    return state_folder() / "runs"


def state_folder() -> Path:
    """Where this user's runs keep what other commands of the user read."""
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    except RuntimeError:
        raise ConfigError(
            "there is no home folder to keep a run's token or socket in: name a folder of yours in"
            " the environment variable XDG_STATE_HOME"
        ) from None
    return Path(state) / "rollout_kit"


def _sweep(folder: Path) -> None:
    """Remove what killed runs of this machine left."""
    for path in folder.glob("*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            entry = orjson.loads(path.read_bytes())
            if entry["host"] == socket.gethostname() and not is_alive(int(entry["pid"])):
                path.unlink()


def is_alive(pid: int) -> bool:
    """Whether a process of this machine has this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
