"""Base of resources servers that are games: `/reset`, then `/step` until the game ends.

The protocol is Gymnasium's, in text: observation, action, reward, and whether the game is over
(`terminated`) or was cut short (`truncated`). A row's `seed` determines all random events, so
`verify` plays the actions of the response again and needs no session. A row without `seed` has
another game in each of its rollouts, which has the same seed again when it is verified again.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import ClassVar, Protocol

from pydantic import Field

from ..errors import TaskError
from ..responses import assistant_text, output_items, output_text
from ..session import current_session
from ..types import JsonObject, SeedSessionResponse, VerifyRequest, VerifyResponse, Wire
from .resources_server import ResourcesServer, Reverify
from .service import post


@dataclass(frozen=True, slots=True)
class Step:
    """Result of an action. `observation` may be empty when the game is over.

    Example:

        print(rk.Step("you win", reward=1.0, terminated=True).is_last)
    """

    observation: str = ""
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: JsonObject = field(default_factory=dict)

    @property
    def is_last(self) -> bool:
        return self.terminated or self.truncated


class Game(Protocol):
    """One game in progress. Each session and each verdict has its own.

    Example:

        class Coin:
            observation = "heads or tails?"

            def step(self, action):
                return rk.Step(reward=float(action == "heads"), terminated=True)
    """

    @property
    def observation(self) -> str:
        """The first observation of the policy."""
        ...

    def step(self, action: str) -> Step:
        """Play `action`, the whole text of a turn of the policy."""
        ...


class GameRequest(VerifyRequest):
    """A row: `seed` and the fields of the game.

    Example:

        class CoinRequest(rk.GameRequest):
            sides: int = 2
    """

    seed: int = Field(
        default=0, description="Determines all random events of the game; without it, they differ."
    )


class StepRequest(Wire):
    """The policy's latest response."""

    response: JsonObject


class GymnasiumServer(ResourcesServer):
    """Subclasses write `new_game`; `gymnasium_agent` plays it.

    Example:

        class Coin:
            observation = "heads or tails?"

            def step(self, action):
                return rk.Step(reward=float(action == "heads"), terminated=True)


        class Coins(rk.GymnasiumServer):
            def new_game(self, row):
                return Coin()
    """

    reverify: ClassVar[Reverify | None] = "stateless"

    def new_game(self, row: GameRequest) -> Game:
        """The game of this row; TaskError if its fields are invalid."""
        raise NotImplementedError(f"{type(self).__name__} has no new_game")

    async def seed_session(self, body: JsonObject) -> SeedSessionResponse:
        row = _with_seed(GameRequest.model_validate({"response": {}, **body}))
        self.state = _Session(row, self.new_game(row))
        return SeedSessionResponse()

    @post("/reset")
    async def reset(self, body: JsonObject) -> JsonObject:
        """Start the session's game again."""
        session: _Session = self.state
        session.game, session.is_over = self.new_game(session.row), False
        return {"observation": session.game.observation, "info": {}}

    @post("/step")
    async def step(self, body: StepRequest) -> JsonObject:
        """Play the latest turn; TaskError if the game is over."""
        session: _Session = self.state
        if session.is_over:
            raise TaskError("the game is over: /reset starts it again", status=400)
        step = session.game.step(output_text(body.response))
        session.is_over = step.is_last
        return {
            "observation": step.observation,
            "reward": step.reward,
            "terminated": step.terminated,
            "truncated": step.truncated,
            "info": step.info,
        }

    async def verify(  # pyright: ignore[reportIncompatibleMethodOverride] - a narrower row
        self, body: GameRequest
    ) -> VerifyResponse:
        """The sum of the rewards of all steps, in a game that is played again."""
        row = _with_seed(body)
        game, total, step, num_steps = self.new_game(row), 0.0, Step(), 0
        for action in actions(output_items(body.response)):
            step = game.step(action)
            total += step.reward
            num_steps += 1
            if step.is_last:
                break
        return body.scored(
            reward=total,
            terminated=step.terminated,
            truncated=not step.terminated,
            num_steps=num_steps,
            info=step.info if row is body else {**step.info, "seed": row.seed},
        )


def _with_seed(row: GameRequest) -> GameRequest:
    """The row, with a seed that its rollout determines if it has none."""
    session = current_session()
    if "seed" in row.model_fields_set or session is None:
        return row
    digest = hashlib.blake2b(f"{session.rollout or session.id}".encode(), digest_size=4)
    return row.model_copy(update={"seed": int.from_bytes(digest.digest())})


@dataclass(slots=True)
class _Session:
    row: GameRequest
    game: Game
    is_over: bool = False


def observation_item(text: str) -> JsonObject:
    """An observation as a conversation item: a user message, as in NeMo Gym, so that tools that
    read its rollouts read ours."""
    part = {"type": "input_text", "text": text}
    return {"type": "message", "role": "user", "content": [part]}


def actions(items: Iterable[JsonObject]) -> list[str]:
    """The text of each turn of the policy: all items between two observations."""
    turns = groupby(items, key=lambda item: item.get("role") == "user")
    return [assistant_text(turn) for is_observation, turn in turns if not is_observation]


def find_tagged(text: str, tag: str) -> str | None:
    """The text in the last `<tag>…</tag>`, in upper or lower case; None if there is none."""
    opened, found = -1, None
    for match in re.finditer(f"<(/?){tag}>", text, re.IGNORECASE):
        if not match[1]:
            opened = match.end()
        elif opened >= 0:
            opened, found = -1, text[opened : match.start()].strip()
    return found
