"""What a harness that is a Python function works with: the model, and the shell."""

from typing import Any

import orjson

from rollout_kit.errors import ModelError
from rollout_kit.serving.gateway.dialects import DIALECTS
from rollout_kit.serving.gateway.recorder import CallRefused, Recorder
from rollout_kit.serving.transport.peers import Peers
from rollout_kit.types import JsonObject


class HarnessClient:
    """The model of the rollout. Other clients reach it too, with `base_url` and `api_key`."""

    def __init__(self, recorder: Recorder, base_url: str, api_key: str, model: str) -> None:
        self.base_url, self.api_key, self.model = base_url, api_key, model
        self._recorder = recorder

    async def responses(self, **request: Any) -> JsonObject:
        """A response, to the fields of a request of the Responses API."""
        return await self._ask("/v1/responses", request)

    async def chat(self, **request: Any) -> JsonObject:
        """A chat completion."""
        return await self._ask("/v1/chat/completions", request)

    async def messages(self, **request: Any) -> JsonObject:
        """A message, as Anthropic's API gives it."""
        return await self._ask("/v1/messages", request)

    async def _ask(self, path: str, request: JsonObject) -> JsonObject:
        raw = orjson.dumps({"model": self.model, **request})
        try:
            answer = await self._recorder.answer(DIALECTS[path], raw)
        except CallRefused as error:
            raise ModelError(error.message, status=error.status, retryable=False) from None
        await self._recorder.store(answer)
        return answer.reply


class HarnessShell:
    """The tools of the resources server, by name: `await shell.call("exec", command="ls")`."""

    def __init__(self, peers: Peers, server: str) -> None:
        self._peers, self._server = peers, server

    async def call(self, tool: str, **arguments: Any) -> str:
        """What a tool returns; ToolError if it fails."""
        return await self._peers.call(self._server, f"/{tool}", arguments, str)

    async def exec(self, command: str, timeout_s: float | None = None) -> str:
        """What a command printed, and its exit status."""
        given = {} if timeout_s is None else {"timeout_s": timeout_s}
        return await self.call("exec", command=command, **given)
