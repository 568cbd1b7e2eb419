"""The token of a running `ng_run`, in a file that only its user can read.

Commands of the same user find it by the run's id, and use it at the run's own address only; nobody
else can stop the run or read its configuration.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import orjson

from ..errors import ConfigError
from .run import Run


@contextmanager
def kept(run: Run, url: str) -> Iterator[Path]:
    """The file is there while inside; `url`: of the run's head server."""
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


def read(run_id: str, url: str) -> str:
    """The run's token; empty where this user has no such file, or it is of another address."""
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
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    except RuntimeError:
        raise ConfigError(
            "there is no home folder to keep the run's token in: name a folder of yours in the"
            " environment variable XDG_STATE_HOME"
        ) from None
    return Path(state) / "rollout_kit/runs"


def _sweep(folder: Path) -> None:
    """Remove what killed runs of this machine left."""
    for path in folder.glob("*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            entry = orjson.loads(path.read_bytes())
            if entry["host"] == socket.gethostname() and not _is_alive(int(entry["pid"])):
                path.unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
