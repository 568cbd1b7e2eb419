"""A server of NeMo Gym that is not started, such as in a dry run."""

import asyncio
from contextlib import closing
from typing import Any

from ...errors import RolloutError
from ...types import JsonObject
from ..service import ServerConfig, Service
from .checkout import GymServer
from .handover import describe
from .row_schema import ROUTE
from .schema_process import SchemaProcess


class IdleGymServer(Service):
    """Describes the server, and checks rows if `python` is known; every other call fails."""

    def __init__(self, name: str, code: GymServer, python: str | None = None) -> None:
        super().__init__(ServerConfig(), None, name)  # type: ignore[arg-type]
        self.kind = code.type  # type: ignore[misc]
        self._code, self._python = code, python

    async def handle(self, path: str, raw: bytes) -> Any:
        if path == ROUTE and self._python:
            with closing(SchemaProcess(self._code, self._python)) as process:
                return await asyncio.to_thread(process.answer, raw)
        raise RolloutError("is not started", server=self.name, status=503)

    def describe(self) -> JsonObject:
        about = describe(self.name, self._code)
        return {**about, "checks_rows": bool(self._python and about.get("checks_rows"))}
