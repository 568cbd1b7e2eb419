"""A counter per session: the smallest environment whose verdict depends on its tool calls."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from rollout_kit import (
    ResourcesServer,
    ResourcesServerConfig,
    Reverify,
    RunRequest,
    SeedSessionResponse,
    VerifyRequest,
    VerifyResponse,
    tool,
)


class ExampleSessionStateMgmtConfig(ResourcesServerConfig):
    model_config = ConfigDict(extra="forbid")


class SeedRequest(RunRequest):
    initial_count: int


class CountedRequest(VerifyRequest):
    expected_count: int


class Increment(BaseModel):
    count: int


class Nothing(BaseModel):
    """No arguments; additional ones are ignored."""


class Incremented(BaseModel):
    success: bool


class CounterValue(BaseModel):
    count: int


class ExampleSessionStateMgmt(ResourcesServer):
    """Reward 1.0 if the session's counter ends at the row's `expected_count`, else 0.0."""

    Config = ExampleSessionStateMgmtConfig
    reverify: ClassVar[Reverify | None] = "replay"

    async def seed_session(self, body: SeedRequest) -> SeedSessionResponse:
        self.state = CounterValue(count=body.initial_count)
        return SeedSessionResponse()

    @tool
    async def increment_counter(self, body: Increment) -> Incremented:
        """Add to the counter."""
        self.state.count += body.count
        return Incremented(success=True)

    @tool
    async def get_counter_value(self, body: Nothing) -> CounterValue:
        """Where the counter stands."""
        return self.state

    async def verify(self, body: CountedRequest) -> VerifyResponse:
        return body.scored(reward=float(self.state.count == body.expected_count))
