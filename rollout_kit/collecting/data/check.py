"""Check rows with their verifier's own code, in this process."""

import asyncio
from types import TracebackType
from typing import Self

import orjson

from ...config.instance_keys import is_url
from ...config.instances import Instance
from ...errors import ConfigError, RolloutError
from ...serving import registry
from ...serving.resources_server import ResourcesServer
from ...serving.transport.peers import Peers
from ...session import Session, entered
from ...types import JsonObject


class Check:
    """Checks rows of one verifier. Starts it only if it overrides `seed_session`."""

    def __init__(self, verifier: Instance | None) -> None:
        self.note = ""
        self._runner = asyncio.Runner()
        self._service: ResourcesServer | None = None
        self._seeds = False
        if verifier is None:
            self.note = "not checked: the agent names no resources server"
        elif is_url(verifier.placement or ""):
            self.note = f"not checked: '{verifier.name}' runs elsewhere"
        else:
            cls = registry.load(verifier.type, verifier.implementation)
            service = cls(cls.Config.model_validate(verifier.settings), Peers({}), verifier.name)
            if not isinstance(service, ResourcesServer):
                raise ConfigError(f"'{verifier.name}' is not a resources server")
            self._service = service
            self._seeds = type(service).seed_session is not ResourcesServer.seed_session

    def __enter__(self) -> Self:
        if self._service and self._seeds:
            self._runner.run(self._service.start())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._service and self._seeds:
            self._runner.run(self._service.stop())
        self._runner.close()

    def find_problem(self, row: JsonObject) -> str:
        """Return why the verifier refuses the row; empty if it accepts it."""
        if self._service is None:
            return ""
        try:
            self._runner.run(self._seed(orjson.dumps(row)))
        except RolloutError as error:
            return error.message
        return ""

    async def _seed(self, raw: bytes) -> None:
        assert self._service
        with entered(Session()):
            try:
                await self._service.handle("/seed_session", raw)
            finally:
                await self._service.handle("/close_session", b"{}")
