"""Problems with one number as answer, scored alone and as a group of solutions."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import ConfigDict, Field

from rollout_kit import (
    JsonObject,
    ResourcesServer,
    ResourcesServerConfig,
    Reverify,
    VerifyRequest,
    VerifyResponse,
    output_text,
)

from .scoring import Member, ProfileName, Weights, extract, is_correct, key_of, score

TEXT_LIMIT = 200_000
"""Only so many characters at the end of a response are read."""


class CoherenceMathConfig(ResourcesServerConfig):
    model_config = ConfigDict(extra="forbid")

    profile: ProfileName = Field(
        "strict", description="v1 or v3: the published rules. strict: without their weaknesses."
    )
    alpha_correct: float = Field(1.0, ge=0, description="Weight of a right answer.")
    beta_coherence: float = Field(0.5, ge=0, description="Weight of the group's coherence.")
    quality_weight: float = Field(
        0.3, ge=0, description="Weight of a solution's quality, in v3 and strict."
    )
    agreement_bonus: float = Field(
        0.2, ge=0, description="Bonus for a right answer in a group that agrees."
    )
    length_penalty: float = Field(
        0.001, ge=0, description="Penalty for each word (in strict, each token) beyond free_words."
    )
    free_words: int = Field(512, ge=0, description="Length without a penalty.")

    @property
    def weights(self) -> Weights:
        return Weights(
            correct=self.alpha_correct,
            coherence=self.beta_coherence,
            quality=self.quality_weight,
            bonus=self.agreement_bonus,
            length_penalty=self.length_penalty,
            free_words=self.free_words,
        )


class CoherenceMathRequest(VerifyRequest):
    """A row. `expected_answer` may be a worked answer with `####` before the number."""

    expected_answer: str = Field(min_length=1)


class CoherenceMath(ResourcesServer):
    """Alone, a response earns 1.0 if its answer is right; its group's score is `verify_group`'s."""

    Config = CoherenceMathConfig
    config: CoherenceMathConfig
    reverify: ClassVar[Reverify | None] = "stateless"

    async def verify(self, body: CoherenceMathRequest) -> VerifyResponse:
        text, profile = output_text(body.response)[-TEXT_LIMIT:], self.config.profile
        key = key_of(text, profile)
        return body.scored(
            reward=float(is_correct(key, key_of(body.expected_answer, profile))),
            extracted_answer=key or None,
            answer_text=extract(text, profile),
            num_words=len(text.split()),
        )

    def verify_group(
        self, task: JsonObject, members: Sequence[Mapping[str, Any] | None]
    ) -> JsonObject:
        """The rewards of the solutions to one task, in their slots; None for an empty slot.

        A member has `response` and, from its arm, `tags` with `probe`.
        """
        there = [each for each in members if each is not None]
        if not there:
            return {"members": [None] * len(members), "group": {}}
        config, gold = self.config, str(task["expected_answer"])
        found = score(list(map(_member, there)), gold, config.profile, config.weights)
        scored = iter(zip(found.rewards, found.components, strict=True))
        slots: list[JsonObject | None] = []
        for each in members:
            if each is None:
                slots.append(None)
            else:
                reward, components = next(scored)
                slots.append({"reward": reward, "components": components})
        return {"members": slots, "group": found.group}


def _member(given: Mapping[str, Any]) -> Member:
    response, tags = given["response"], given.get("tags") or {}
    usage = response.get("usage")
    tokens = usage.get("output_tokens") if isinstance(usage, dict) else None
    text = output_text(response)[-TEXT_LIMIT:]
    return Member(text, str(tags.get("probe") or ""), tokens if type(tokens) is int else None)
