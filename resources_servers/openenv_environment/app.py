"""An OpenEnv environment: its actions are tools, its observations their outputs, its reward the
verdict. Each rollout has one of its sessions."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, ClassVar, Literal

import orjson
from pydantic import ConfigDict, Field, model_validator

from rollout_kit import (
    ConfigError,
    JsonObject,
    ResourcesServer,
    ResourcesServerConfig,
    Reverify,
    RolloutError,
    SeedSessionResponse,
    ToolError,
    VerifyError,
    VerifyRequest,
    VerifyResponse,
)
from rollout_kit.serving.protocols.openenv_client import (
    OpenEnvFull,
    OpenEnvServer,
    PlayedEpisode,
    fetch,
)
from rollout_kit.serving.protocols.openenv_program import MANIFEST, OpenEnvProgram
from rollout_kit.serving.registry import resolve_path
from rollout_kit.serving.service import Demands
from rollout_kit.serving.tools import ForwardedTool, by_name

LIST_TOOLS = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}

OBSERVE, STEP = "observe", "act"
"""Tools of an environment that has none of its own, and the one that shows the latest
observation."""


class OpenEnvEnvironmentConfig(ResourcesServerConfig):
    model_config = ConfigDict(extra="forbid")

    url: str | None = Field(
        None, pattern="^https?://", description="Base URL of a running OpenEnv server."
    )
    folder: str | None = Field(
        None,
        description="Or the folder of the environment, with its openenv.yaml. The environment is"
        " then started on this machine.",
    )
    interpreter: str | None = Field(
        None,
        description="Python interpreter with the packages of the environment in `folder`. Default:"
        " this one.",
    )
    auth_token: str | None = Field(None, description="Sent as a bearer token.")
    reset: JsonObject = Field(
        {}, description="Arguments of each reset. A row's `reset` is added to them."
    )
    deterministic: bool = Field(
        False,
        description="Set this if the same reset and actions always give the same observations. Then"
        " actions are repeated after a lost connection, and rollouts can be verified"
        " again.",
    )
    reward: Literal["last", "sum"] = Field(
        "last",
        description="last: the reward of the last step that has one. sum: the sum over all steps.",
    )
    no_reward: float | None = Field(
        None,
        description="Reward of a rollout in which no step had a reward. null: the rollout fails.",
    )
    timeout_s: float = Field(60.0, gt=0, description="Time limit of one reset or step.")
    ready_timeout_s: float = Field(
        120.0, gt=0, description="Seconds until the environment in `folder` must be ready."
    )

    @model_validator(mode="after")
    def _has_one_place(self) -> "OpenEnvEnvironmentConfig":
        if (self.url is None) == (self.folder is None):
            raise ValueError("set either url or folder, which says where the environment is")
        if self.folder is None and self.interpreter is not None:
            raise ValueError("interpreter: is for a folder, and url is set")
        return self


class OpenEnvRow(VerifyRequest):
    """A row: arguments of its reset, such as `seed`."""

    reset: JsonObject = Field(default_factory=dict)


class OpenEnvEnvironment(ResourcesServer):
    """Plays episodes at an OpenEnv server."""

    Config = OpenEnvEnvironmentConfig
    needs: ClassVar[dict[str, str]] = {"websockets": "rollout-kit[openenv]"}

    def __init__(self, config: Any = None, peers: Any = None, name: str = "") -> None:
        super().__init__(config, peers, name)
        reverify: Reverify = "replay" if self.config.deterministic else "never"
        self.reverify = reverify  # type: ignore[misc]
        self._program: OpenEnvProgram | None = None
        self._server = OpenEnvServer(name, self.config.url or "")
        self._num_open, self._freed = 0, asyncio.Event()

    @classmethod
    def demands(cls, settings: JsonObject) -> Demands:
        """A process of its own for an environment that is started, which ends with it."""
        return Demands(own_process=bool(settings.get("folder")))

    async def start(self) -> None:
        self.check_needs()
        if self.config.folder is not None:
            folder = resolve_path(self.config.folder)
            if folder is None:
                raise ConfigError(f"{self.name}: folder: there is no {self.config.folder}")
            folder = folder.parent if folder.name == MANIFEST else folder
            interpreter = self.config.interpreter or sys.executable
            limit_s = self.config.ready_timeout_s
            self._program = OpenEnvProgram(self.name, folder, interpreter, limit_s)
            await self._program.ensure_running()
        url = (self._program.url if self._program else self.config.url).rstrip("/")
        self._server = OpenEnvServer(self.name, url, self.config.timeout_s, self.config.auth_token)
        try:
            self.tools = by_name(self.name, await self._find_tools())
        except RolloutError as error:
            raise ConfigError(f"{self.name}: {error.message}") from None

    async def stop(self) -> None:
        if self._program is not None:
            await self._program.close()

    async def seed_session(self, body: JsonObject) -> SeedSessionResponse:
        given = {**self.config.reset, **body.get("reset", {})}
        self.state = await self._begin(given)
        return SeedSessionResponse()

    async def verify(  # pyright: ignore[reportIncompatibleMethodOverride] - a narrower row
        self, body: OpenEnvRow
    ) -> VerifyResponse:
        """The environment's own reward."""
        episode: PlayedEpisode = self.state
        reward = self.config.no_reward
        if episode.rewards:
            is_sum = self.config.reward == "sum"
            reward = sum(episode.rewards) if is_sum else episode.rewards[-1]
        if reward is None:
            raise VerifyError(
                "no step of this rollout had a reward: set no_reward to what it should have",
                retryable=False,
            )
        return body.scored(reward, num_rewards=len(episode.rewards), done=episode.is_over)

    async def close_session(self, body: JsonObject) -> JsonObject:
        try:
            await self.state.close()
        finally:
            self._num_open -= 1
            self._freed.set()
        return {}

    async def _begin(self, given: JsonObject) -> PlayedEpisode:
        """An episode, once the server has a place for it."""
        while True:
            episode = PlayedEpisode(self._server, given, self.config.deterministic)
            self._freed.clear()
            try:
                if self._program is not None:
                    await self._program.ensure_running()
                await episode.begin()
            except OpenEnvFull:
                await episode.close()
                if not self._num_open:
                    raise
                await self._freed.wait()
            except BaseException:
                await episode.close()
                raise
            else:
                self._num_open += 1
                return episode

    async def _find_tools(self) -> list[ForwardedTool]:
        """The environment's tools; without any, one tool that takes its action."""
        found = await fetch(self._server, "/mcp", LIST_TOOLS)
        listed = (found.get("result") or {}).get("tools") or []
        offered = [
            self._offer(
                each["name"],
                each.get("description") or "",
                each.get("inputSchema") or each.get("input_schema") or {},
                partial(self._call, each["name"]),
            )
            for each in listed
        ]
        if not offered:
            action = dict((await fetch(self._server, "/schema")).get("action") or {})
            about = action.pop("description", "") or "Take an action in the environment."
            action["properties"] = {
                key: value
                for key, value in (action.get("properties") or {}).items()
                if key != "metadata"  # of the client, not of the policy
            }
            offered = [self._offer(STEP, about, action, self._act)]
        about = "Show the latest observation of the environment; the first one before any action."
        return [*offered, self._offer(OBSERVE, about, {}, self._observe)]

    @staticmethod
    def _offer(
        name: str, about: str, parameters: JsonObject, call: Callable[[JsonObject], Awaitable[str]]
    ) -> ForwardedTool:
        whole = {"type": "object", "properties": {}, **parameters}
        schema = {"type": "function", "name": name, "description": about, "parameters": whole}
        return ForwardedTool(name, {**schema, "strict": False}, call)

    async def _call(self, name: str, arguments: JsonObject) -> str:
        action = {"type": "call_tool", "tool_name": name, "arguments": arguments}
        found = await self._step(action)
        if (error := found.get("error")) is not None:
            raise ToolError(str(error.get("message", error)))
        result = found.get("result")
        if isinstance(result, dict) and "data" in result:
            result = result["data"]
        return _text(result)

    async def _act(self, arguments: JsonObject) -> str:
        return _text(await self._step(arguments))

    async def _observe(self, arguments: JsonObject) -> str:
        return _text(_shown(self.state.observation))

    async def _step(self, action: JsonObject) -> JsonObject:
        if self._program is not None and self.config.deterministic:
            await self._program.ensure_running()
        return _shown(await self.state.step(action))


def _shown(observation: JsonObject) -> JsonObject:
    return {key: value for key, value in observation.items() if key != "metadata"}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
