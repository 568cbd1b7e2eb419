"""The tools of an MCP server as an environment: one connection, or one process, for each rollout.

Another resources server may stand behind it. Then that one verifies, and its tools are offered too.
"""

import shlex
import sys
from functools import partial
from typing import Any, ClassVar

from pydantic import ConfigDict, Field, model_validator

from rollout_kit import (
    ConfigError,
    JsonObject,
    ResourcesServer,
    ResourcesServerConfig,
    Reverify,
    RolloutError,
    SeedSessionResponse,
    VerifyRequest,
    VerifyResponse,
)
from rollout_kit.serving.protocols.mcp_tools import (
    McpCommand,
    McpConnection,
    McpKeys,
    McpServer,
    check_sdk,
)
from rollout_kit.serving.registry import resolve_path
from rollout_kit.serving.service import Demands, ServerRef
from rollout_kit.serving.tools import ForwardedTool, by_name


class McpEnvironmentConfig(ResourcesServerConfig, McpKeys):
    model_config = ConfigDict(extra="forbid")

    url: str | None = Field(
        None,
        pattern="^https?://",
        description="The endpoint of a running MCP server, such as http://…/mcp.",
    )
    command: str | list[str] | None = Field(
        None,
        description="Or the command that starts the MCP server, with one process for each rollout.",
    )
    cwd: str | None = Field(None, description="Working directory of the command.")
    auth_token: str | None = Field(
        None, description="Token that is sent to `url` as a bearer token."
    )
    verifier: ServerRef | None = Field(
        None,
        description="The resources server that verifies. Its tools are offered too. Default: none,"
        " and rollouts have no reward.",
    )

    @model_validator(mode="after")
    def _has_one_server(self) -> "McpEnvironmentConfig":
        if (self.url is None) == (self.command is None):
            raise ValueError("set either url or command, which says where the MCP server is")
        if self.command is None and self.cwd is not None:
            raise ValueError("cwd: is for a command, and url is set")
        if self.command is not None and not self.argv:
            raise ValueError("command: is empty")
        return self

    @property
    def argv(self) -> list[str]:
        """The command in words. `python` is this interpreter. A relative path is looked up as every
        path of a YAML file."""
        given = shlex.split(self.command) if isinstance(self.command, str) else self.command or []
        words = [str(resolve_path(word) or word) if "/" in word else word for word in given]
        return [sys.executable, *words[1:]] if words[:1] == ["python"] else words

    def server(self) -> McpServer | McpCommand:
        shared: JsonObject = {name: getattr(self, name) for name in McpKeys.model_fields}
        if self.url is not None:
            return McpServer(url=self.url, auth_token=self.auth_token, **shared)
        return McpCommand(command=self.argv, cwd=self.cwd, **shared)


class McpEnvironment(ResourcesServer):
    """Forwards calls to the MCP server, and verification to another resources server."""

    Config = McpEnvironmentConfig
    reverify: ClassVar[Reverify | None] = "never"

    def __init__(self, config: Any = None, peers: Any = None, name: str = "") -> None:
        super().__init__(config, peers, name)
        self._open: set[McpConnection] = set()
        self._verifier = self.config.verifier.name if self.config.verifier else None
        self._about: JsonObject = {}

    @classmethod
    def demands(cls, settings: JsonObject) -> Demands:
        """A process of its own, with which the commands of all rollouts end."""
        return Demands(own_process=True)

    async def start(self) -> None:
        check_sdk(self.name)
        offered = await self._find_tools()
        if self._verifier is not None:
            self._about = await self.peers.describe(self._verifier)
            names = {each.name for each in offered}
            behind = await self.peers.call(self._verifier, "/tools", None, list)
            offered += [
                ForwardedTool(each["name"], each, partial(self._ask_verifier, f"/{each['name']}"))
                for each in behind
                if each["name"] not in names
            ]
        self.tools = by_name(self.name, offered)

    async def stop(self) -> None:
        for connection in list(self._open):
            await self._disconnect(connection)

    async def seed_session(self, body: JsonObject) -> SeedSessionResponse:
        self.state = _Session()
        if self._verifier is not None:
            await self.peers.call(self._verifier, "/seed_session", body, dict)
        return SeedSessionResponse()

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        """The verdict of the verifier."""
        if self._verifier is None:
            raise RolloutError("no verifier is set for this server", retryable=False)
        return body.scored(**await self.peers.verify(self._verifier, body.model_dump()))

    async def close_session(self, body: JsonObject) -> JsonObject:
        try:
            if (connection := self.state.connection) is not None:
                await self._disconnect(connection)
        finally:
            if self._verifier is not None:
                await self.peers.call(self._verifier, "/close_session", {}, dict)
        return {}

    def describe(self) -> JsonObject:
        """Of the verifier behind it, if there is one: its verdicts are the rollouts'."""
        own = {**super().describe(), "verifies": self._verifier is not None}
        shared = ("verifier", "verifier_parts", "verifies", "lack")
        return own | {key: self._about[key] for key in shared if key in self._about}

    async def _find_tools(self) -> list[ForwardedTool]:
        connection = self._connect()
        try:
            found = (await connection.tools()).offered
        except RolloutError as error:
            raise ConfigError(f"{self.name}: {error.message}") from None
        finally:
            await self._disconnect(connection)
        if missing := [name for name in self.config.tools or () if name not in found]:
            raise ConfigError(
                f"{self.name}: tools: the MCP server has no '{missing[0]}'; it has:"
                f" {', '.join(found) or 'none'}"
            )
        return [
            ForwardedTool(name, each.schema, partial(self._call, name))
            for name, each in found.items()
        ]

    async def _call(self, name: str, arguments: JsonObject) -> str:
        session: _Session = self.state
        if session.connection is None:
            session.connection = self._connect()
        return await (await session.connection.tools()).call(name, arguments)

    async def _ask_verifier(self, path: str, arguments: JsonObject) -> str:
        return await self.peers.call(str(self._verifier), path, arguments, str)

    def _connect(self) -> McpConnection:
        connection = McpConnection(self.name, self.config.server())
        self._open.add(connection)
        return connection

    async def _disconnect(self, connection: McpConnection) -> None:
        await connection.close()
        self._open.discard(connection)


class _Session:
    """The connection of a rollout; None until it calls a tool."""

    connection: McpConnection | None = None
