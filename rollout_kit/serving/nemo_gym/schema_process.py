"""A process that checks rows with the schema of a server that is not started."""

import subprocess
from collections.abc import Iterable

import orjson

from ...errors import ConfigError
from ...types import JsonObject
from ..workers.environment import clean_environment
from . import row_schema
from .checkout import GymServer
from .handover import environment


class SchemaProcess:
    """The process, until it is closed. Its interpreter `python` has pydantic."""

    def __init__(self, server: GymServer, python: str) -> None:
        self._server = server
        command = [python, "-P", row_schema.__file__, str(server.folder), str(server.root)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(clean_environment(), {}),
        )

    def check(self, rows: Iterable[JsonObject]) -> JsonObject:
        """The reply of `/rows/check`; ConfigError if the process ended."""
        return self.answer(orjson.dumps({"rows": list(rows)}))

    def answer(self, raw: bytes) -> JsonObject:
        """The same for a request as JSON, on one line."""
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(raw + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            reply = b""
        else:
            reply = self._process.stdout.readline()
        if not reply:
            raise ConfigError(
                f"{self._server.folder / row_schema.MODULE}: the process that checks rows with it"
                " ended. Correct that file, or add +task_data_validation=off"
            )
        return orjson.loads(reply)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
