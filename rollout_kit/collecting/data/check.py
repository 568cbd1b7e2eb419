"""Check rows with their verifier's own code, in this process. A server that is written for NeMo Gym
has a schema, which is used in another process."""

import asyncio
from types import TracebackType
from typing import Self

import orjson

from ...config.instance_keys import is_url
from ...config.instances import Instance
from ...errors import ConfigError, RolloutError
from ...serving import registry
from ...serving.nemo_gym.checkout import GymServer
from ...serving.nemo_gym.schema_process import SchemaProcess
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
        self._schema: SchemaProcess | None = None
        if verifier is None:
            self.note = "not checked: the agent names no resources server"
        elif is_url(verifier.placement or ""):
            self.note = f"not checked: '{verifier.name}' runs elsewhere"
        elif verifier.code is not None:
            self._open_schema(verifier, verifier.code)
        else:
            cls = registry.load(verifier.type, verifier.implementation)
            service = cls(cls.Config.model_validate(verifier.settings), Peers({}), verifier.name)
            if not isinstance(service, ResourcesServer):
                raise ConfigError(f"'{verifier.name}' is not a resources server")
            self._service = service
            self._seeds = type(service).seed_session is not ResourcesServer.seed_session

    def _open_schema(self, verifier: Instance, code: GymServer) -> None:
        if not code.has_schema:
            self.note = f"not checked: '{verifier.name}' has no task_data.py"
        elif verifier.python is None:
            self.note = f"not checked: no interpreter for '{verifier.name}': +install=true makes it"
        else:
            self._schema = SchemaProcess(code, verifier.python)

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
        if self._schema:
            self._schema.close()

    def find_problem(self, row: JsonObject) -> str:
        """Return why the verifier refuses the row; empty if it accepts it."""
        if self._schema is not None:
            reply = self._schema.check([row])
            if "error" in reply:
                raise ConfigError(reply["error"])
            return "; ".join(f"{name}: {reason}" for _, name, reason in reply["problems"])
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
