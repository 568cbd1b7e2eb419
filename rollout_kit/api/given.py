"""What a program gives in place of YAML: a model, a verifier, an environment, agents."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ..config.benchmarks.definition import Definition
from ..config.instances import MODELS, POLICY, RESOURCES
from ..config.load import Program
from ..errors import ConfigError, suggest
from ..launch.reach import Servers
from ..serving import registry
from ..serving.agent import Agent
from ..serving.functions import Answering, FunctionModel, verifier_of
from ..serving.given_server import GivenServer
from ..serving.model import Model
from ..serving.resources_server import ResourcesServer
from ..serving.service import Service
from ..types import JsonObject
from .model_names import Endpoint, ask_name, find_model

YAML = (".yaml", ".yml")


Modelled = str | Endpoint | Model | type[Model] | Answering
"""`"openai/gpt-4o-mini"`, a URL, a running server's name, a YAML file, an endpoint, a server, or a
function of the create params."""


class ServerBlocks(NamedTuple):
    """Servers as blocks of YAML and as objects, and the files that some of the blocks are from."""

    blocks: JsonObject
    made: dict[str, GivenServer]
    files: dict[str, JsonObject]


@runtime_checkable
class Composed(Protocol):
    """A verifier that consists of several servers, such as judges and what asks them."""

    def describe_servers(self) -> ServerBlocks: ...

    async def ask_names(self) -> "Composed": ...


Verified = ResourcesServer | type[ResourcesServer] | Composed | Callable[..., Any]
"""A resources server, what `rk.judge` gives, or a function `verify(task, response)`."""

Environment = str | Path | ResourcesServer | type[ResourcesServer]
"""The name of a shipped resources server, a YAML file, or a server."""

AgentServer = Agent | type[Agent]

Agents = AgentServer | Sequence[AgentServer] | Mapping[str, AgentServer]


@dataclass(frozen=True, slots=True)
class Given:
    """Servers that a program gives; `running`: those that run already, and that these may ask."""

    model: Modelled | None = None
    verify: Verified | None = None
    environment: Environment | None = None
    agents: Agents | None = None
    benchmark: Definition | None = None
    """It brings its verifier, its agent and its sampling."""

    def __bool__(self) -> bool:
        return self != Given()

    def program(
        self,
        config_paths: Iterable[str | Path],
        values: JsonObject,
        running: Servers | None = None,
    ) -> Program:
        """All of them as one configuration; ConfigError for what cannot be one."""
        if self.verify is not None and self.environment is not None:
            raise ConfigError(
                "verify and environment: an environment has its own verifier; give one of the two"
            )
        paths, own = [str(path) for path in config_paths], {**values}
        files: dict[str, JsonObject] = {}
        made: dict[str, GivenServer] = {}
        if self.benchmark is not None:
            files[str(self.benchmark)] = self.benchmark.to_servers()
        if self.environment is not None:
            paths += self._add_environment(self.environment, made)
        if isinstance(self.verify, Composed):
            own, made, files = join_blocks(
                [ServerBlocks(own, made, files), self.verify.describe_servers()]
            )
        elif self.verify is not None:
            one = _verifier(self.verify)
            made[one.name] = one
        for name, agent in _name_agents(self.agents):
            one = GivenServer.of(agent, Agent, "agents")
            if (name := name or one.name) in made:
                raise ConfigError(
                    f"agents: two servers would be called '{name}': give a mapping from names"
                )
            made[name] = one
        if running is not None:
            made[POLICY] = _relay(running, self.model)
        elif self.model is not None:
            paths += self._add_model(self.model, made, own, files)
        return Program(paths, own, made, files)

    async def ask_name(self) -> "Given":
        """The same with the names of models that are given by the URLs of their endpoints."""
        model, verify = self.model, self.verify
        if isinstance(model, str | Endpoint):
            model = await ask_name(model)
        if isinstance(verify, Composed):
            verify = await verify.ask_names()
        return replace(self, model=model, verify=verify)

    def _add_environment(self, given: Environment, made: dict[str, GivenServer]) -> list[str]:
        if not isinstance(given, str | Path):
            one = GivenServer.of(given, ResourcesServer, "environment")
            made[one.name] = one
            return []
        if str(given).endswith(YAML):
            return [str(given)]
        name = str(given)
        path = f"{RESOURCES}/{name}/configs/{name}.yaml"
        if registry.resolve_path(path):
            return [path]
        if registry.find(RESOURCES, name):
            cls = registry.load(RESOURCES, name)
            assert issubclass(cls, ResourcesServer)
            made[name] = GivenServer(cls)
            return []
        known = registry.implementations(RESOURCES)
        hint = suggest(name, known) or f"; there are {', '.join(known)}"
        raise ConfigError(f"environment: no resources server is called '{name}'{hint}")

    def _add_model(
        self,
        given: Modelled,
        made: dict[str, GivenServer],
        values: JsonObject,
        files: dict[str, JsonObject],
    ) -> list[str]:
        if isinstance(given, str) and given.endswith(YAML):
            return [given]
        if isinstance(given, str | Endpoint):
            source = find_model(given)
            for path, content in source.files.items():
                files[path] = {**files.get(path, {}), **content}
            values.update(source.values)
        elif isinstance(given, type | Service) or not callable(given):
            made[POLICY] = GivenServer.of(given, Model, "model")
        else:
            made[POLICY] = GivenServer(FunctionModel, FunctionModel(given))
        return []


def join_blocks(several: Iterable[ServerBlocks]) -> ServerBlocks:
    """All of them as one. Two servers may be from one file."""
    blocks: JsonObject = {}
    made: dict[str, GivenServer] = {}
    files: dict[str, JsonObject] = {}
    for each in several:
        blocks |= each.blocks
        made |= each.made
        for path, content in each.files.items():
            files[path] = {**files.get(path, {}), **content}
    return ServerBlocks(blocks, made, files)


def _verifier(given: Verified) -> GivenServer:
    if isinstance(given, ResourcesServer | type):
        return GivenServer.of(given, ResourcesServer, "verify")
    if not callable(given):
        what = "expected a function verify(task, response) or a ResourcesServer"
        raise ConfigError(f"verify: {what}, got {type(given).__name__}")
    return GivenServer(verifier_of(given))


def _name_agents(given: Agents | None) -> Iterable[tuple[str, AgentServer]]:
    if given is None:
        return ()
    if isinstance(given, Mapping):
        return given.items()
    return [("", one) for one in (given if isinstance(given, Sequence) else [given])]


def _relay(running: Servers, model: Modelled | None) -> GivenServer:
    """A model server that is one of those that run already."""
    known = running.models
    if model is None:
        model = POLICY if POLICY in known else known[0] if len(known) == 1 else None
    if not isinstance(model, str) or model not in known:
        asked = f"'{model}' is none" if isinstance(model, str) else "expected the name of one"
        raise ConfigError(f"model: {asked} of the running model servers: {', '.join(known)}")
    return GivenServer(Relay, Relay(running, model))


class Relay(Service):
    """Passes each request on to a running server."""

    kind = MODELS

    def __init__(self, running: Servers, server: str) -> None:
        super().__init__()
        self._transport = running.peers.transport(server)

    async def answer(self, path: str, raw: bytes) -> Any:
        return await self._transport.send(path, raw or None)
