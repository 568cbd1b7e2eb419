"""Answers scored by a reward model: a sequence classifier in a folder, or one behind vLLM."""

from typing import ClassVar

from pydantic import ConfigDict

from rollout_kit import (
    ResourcesServer,
    Reverify,
    RewardModel,
    RewardModelConfig,
    VerifyRequest,
    VerifyResponse,
    output_text,
)


class RewardModelServerConfig(RewardModelConfig):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class RewardModelServer(ResourcesServer):
    """The reward is the score of the model, after its activation."""

    Config = RewardModelServerConfig
    config: RewardModelServerConfig
    reverify: ClassVar[Reverify | None] = "stateless"
    measured: ClassVar[frozenset[str]] = frozenset({"reward_model_scores"})
    """The last digits depend on the answers that are scored together."""

    async def start(self) -> None:
        self._model = RewardModel(self.config, self.name)
        await self._model.start()

    async def stop(self) -> None:
        await self._model.stop()

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        answer = output_text(body.response)
        found = await self._model.score(body.responses_create_params, answer)
        return body.scored(reward=found.reward, reward_model_scores=found.scores)
