"""A server of NeMo Gym that is not started, such as in a dry run."""

from typing import Any

from ...errors import RolloutError
from ...types import JsonObject
from ..service import ServerConfig, Service
from .checkout import GymServer
from .handover import describe


class IdleGymServer(Service):
    """Describes the server; every call fails."""

    def __init__(self, name: str, code: GymServer) -> None:
        super().__init__(ServerConfig(), None, name)  # type: ignore[arg-type]
        self.kind = code.type  # type: ignore[misc]
        self._code = code

    async def handle(self, path: str, raw: bytes) -> Any:
        raise RolloutError("is not started", server=self.name, status=503)

    def describe(self) -> JsonObject:
        return describe(self.name, self._code)
