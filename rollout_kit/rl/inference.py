"""A model server as trainers' loops call it: `await policy.generate(batch)`, and a session.

These are single answers. For rollouts with tools and rewards use `rollout_kit.collect`.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from ..responses import output_text
from ..serving.transport.peers import Peers
from ..types import JsonObject

Prompt = str | list[JsonObject]
"""A text, or the items of a conversation."""


class InferenceSession:
    """Answers one prompt at a time; call it as often at a time as you like."""

    def __init__(self, engine: "InferenceEngine") -> None:
        self._engine = engine

    async def generate(self, prompt: Prompt) -> str:
        return output_text(await self._engine.respond(prompt))


class InferenceEngine:
    """The model server `name` of some servers. `params` are create params of each request.

    async with rk.servers("configs/demo.yaml") as servers:
        engine = InferenceEngine(servers.peers, temperature=1)
        answers = await engine.generate(["What is 2+2?", "What is 3+4?"])
        async with engine.session() as session:
            answers = await asyncio.gather(*(session.generate(each) for each in prompts))
    """

    def __init__(
        self, peers: Peers, name: str = "policy_model", *, parallel: int = 64, **params: object
    ) -> None:
        self._peers, self._name, self._params = peers, name, params
        self._places = asyncio.Semaphore(parallel)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[InferenceSession]:
        yield InferenceSession(self)

    async def generate(self, prompts: Sequence[Prompt]) -> list[str]:
        """The answers, in the order of the prompts."""
        async with self.session() as session, asyncio.TaskGroup() as group:
            tasks = [group.create_task(session.generate(each)) for each in prompts]
        return [task.result() for task in tasks]

    async def respond(self, prompt: Prompt) -> JsonObject:
        """The whole response, with token ids and log-probs if the server gives them."""
        items = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        async with self._places:
            asked = {**self._params, "input": items}
            return await self._peers.call(self._name, "/v1/responses", asked, dict)
