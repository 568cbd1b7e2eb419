"""Base of resources servers whose tasks have a user: `GET /user`, and tools for the user's side."""

from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel

from ...errors import TaskError
from ...session import current_session, seed_of
from ...types import JsonObject, SeedSessionResponse
from ..resources_server import ResourcesServer, Reverify
from ..rollout_verdicts import splice_metadata
from ..service import get
from ..tools import USER_SIDE
from .profile import UserProfile, UserRequest

Handler = TypeVar("Handler")


def user_tool(function: Handler) -> Handler:
    """Offer a method to the simulated user, and not to the policy. Else it is like `tool`.

    Example:

        class Phone(rk.TwoSidedServer):
            @rk.user_tool
            async def read_code(self) -> str:
                '''Read the code that was sent to your phone.'''
                return self.world["code"]


        print(list(Phone.user_tools))
    """
    function.__tool__ = USER_SIDE  # type: ignore[attr-defined]
    return function


class UserSide(BaseModel):
    """Reply of `/user`: who the user is, the user's own tools, and the seed of its decisions."""

    profile: UserProfile
    tools: list[JsonObject]
    seed: int


@dataclass(slots=True)
class _Talk:
    profile: UserProfile
    world: Any


class TwoSidedServer(ResourcesServer):
    """An environment with a user. Rows have a `user`, as `UserProfile` says. The agent's
    `user_simulator` plays it.

    Subclasses write `new_world`, tools of the policy (`@tool`) and of the user (`@user_tool`), and
    `verify`. All of them use `self.world`. A stored response is verified again after the calls of
    both sides are repeated.

    Example:

        class Lamp(rk.TwoSidedServer):
            def new_world(self, row):
                return {"is_on": False}

            @rk.user_tool
            async def press_switch(self) -> str:
                '''Press the switch of your lamp.'''
                self.world["is_on"] = True
                return "It is on."

            async def verify(self, body: rk.UserRequest) -> rk.VerifyResponse:
                return body.scored(float(self.world["is_on"]))
    """

    reverify: ClassVar[Reverify | None] = "replay"

    def new_world(self, row: Any) -> Any:
        """The state of a session; TaskError if the row is invalid. `row` has the request type of
        `verify`."""
        return {}

    @property
    def world(self) -> Any:
        """The state of this session."""
        return self.state.world

    def describe(self) -> JsonObject:
        return {**super().describe(), "has_users": True}

    async def seed_session(self, body: JsonObject) -> SeedSessionResponse:
        wanted = self._verify_request or UserRequest
        row = wanted.model_validate(splice_metadata({"response": {}, **body}, wanted))
        profile = getattr(row, "user", None)
        if not isinstance(profile, UserProfile):
            raise TaskError(
                f"{type(self).__name__}: the request type of verify must be a UserRequest"
            )
        for fact in profile.knows:
            if fact.does is not None and fact.does.tool not in self.user_tools:
                known = ", ".join(self.user_tools) or "none"
                raise TaskError(f"user.knows: no user tool '{fact.does.tool}'; there are: {known}")
        self.state = _Talk(profile, self.new_world(row))
        return SeedSessionResponse()

    @get("/user")
    async def read_user(self) -> UserSide:
        """The user of this session."""
        profile, session = self.state.profile, current_session()
        assert session is not None
        seed = seed_of(session) if profile.seed is None else profile.seed
        schemas = [each.schema for each in self.user_tools.values()]
        return UserSide(profile=profile, tools=schemas, seed=seed)
