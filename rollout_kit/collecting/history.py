"""`<stem>.d/runs.ndjson`: where each run's rollouts come from. A run appends a line when it starts
and one when it ends; nothing is ever changed, so a line without an end is a run that was killed.

Its name does not end in `.jsonl`, so that `cat rollouts_*.jsonl` prints rollouts only.
"""

import hashlib
import os
import subprocess
from contextlib import nullcontext, suppress
from pathlib import Path
from threading import Thread
from uuid import uuid4

import orjson

from ..errors import OutputError
from ..store.kinds import mark
from ..store.lines import now_text
from ..store.manifest import versions
from ..types import JsonObject

HASHED_FIRST = 16 << 20
"""Bytes of an input that is hashed before the run; a larger one is hashed meanwhile, in a thread,
and its hash is in the line of the end."""

GIT_TIMEOUT_S = 5.0
"""On a slow disk `git status` of a large repository may take longer; then nothing is known."""


class History:
    """The two lines of one run. `path` is None for a run without an output."""

    def __init__(self, path: Path | None) -> None:
        self.result: JsonObject = {"exit_status": 0}
        """How the run ended, for the line of its end."""
        self._path = path
        self._run = ""
        self._input: JsonObject = {}
        self._hashing: Thread | None = None

    def start(self, command: str, source: Path | None, name: str, verifiers: JsonObject) -> None:
        """Append the line of the start. `source` is the input, which was given as `name`."""
        if self._path is None:
            return
        self._run, self._input = uuid4().hex[:12], {"path": name}
        given = self._input if source is None else self._hash(source)
        facts = {"command": command, "folder": os.getcwd(), "pid": os.getpid()}
        known = {"git": git_state(Path.cwd()), "versions": versions(), "verifiers": verifiers}
        self._append("start", {**facts, **known, "input": given})

    def end(self, error: BaseException | None) -> None:
        """Append the line of the end, if there is one of the start."""
        if not self._run:
            return
        if self._hashing:
            self._hashing.join()
            self.result = {**self.result, "input": self._input}
        if error is not None:
            what = str(error) or type(error).__name__
            self.result = {**self.result, "exit_status": 1, "error": what.partition("\n")[0]}
        with nullcontext() if error is None else suppress(OutputError):
            self._append("end", self.result)
        self._run = ""

    def _hash(self, source: Path) -> JsonObject:
        """What is known of the input by now; the hash of a large one follows."""
        with suppress(OSError):
            self._input["bytes"] = source.stat().st_size
        if self._input.get("bytes", 0) <= HASHED_FIRST:
            self._read(source)
            return self._input
        known = dict(self._input)
        self._hashing = Thread(target=self._read, args=(source,), daemon=True)
        self._hashing.start()
        return known

    def _read(self, source: Path) -> None:
        with suppress(OSError), source.open("rb") as stream:
            self._input["sha256"] = hashlib.file_digest(stream, "sha256").hexdigest()

    def _append(self, event: str, facts: JsonObject) -> None:
        assert self._path is not None
        line = {**mark("run"), "event": event, "run": self._run, "at": now_text(), **facts}
        try:
            with self._path.open("ab+") as stream:
                stream.seek(0, os.SEEK_END)
                is_torn = stream.tell() and stream.seek(-1, os.SEEK_END) and stream.read() != b"\n"
                stream.write(b"\n" * bool(is_torn) + orjson.dumps(line) + b"\n")
        except OSError as error:
            raise OutputError(f"cannot write {self._path}: {error.strerror}") from None


def git_state(folder: Path) -> JsonObject | None:
    """The commit that is checked out in a folder, and whether tracked files differ from it; None
    outside of a repository."""
    if "GIT_DIR" not in os.environ and not _is_in_repository(folder):
        return None  # without a new process
    argv = ["git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "-uno"]
    try:
        found = subprocess.run(argv, cwd=folder, capture_output=True, timeout=GIT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = found.stdout.decode("utf-8", "replace").splitlines()
    commit = [line.removeprefix("# branch.oid ") for line in lines if "branch.oid" in line]
    if found.returncode or not commit:
        return None
    return {"commit": commit[0], "dirty": any(not line.startswith("#") for line in lines)}


def _is_in_repository(folder: Path) -> bool:
    return any((each / ".git").exists() for each in (folder, *folder.absolute().parents))
