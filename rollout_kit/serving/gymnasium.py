"""Base of resources servers that are games: `/reset`, then `/step` until the game ends.

The protocol is Gymnasium's, in text: observation, action, reward, and whether the game is over
(`terminated`) or was cut short (`truncated`). A row's `seed` determines all random events, so
`verify` plays the actions of the response again and needs no session. A row without `seed` has
another game in each of its rollouts, which has the same seed again when it is verified again.
"""

import re
from collections.abc import Awaitable, Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import ClassVar, Protocol

from pydantic import Field

from ..errors import RolloutError, TaskError
from ..responses import assistant_text, output_items, output_text, pair_calls
from ..session import Session, current_session, entered, seed_of
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

    def step(self, action: str) -> Step | Awaitable[Step]:
        """Play `action`, the whole text of a turn of the policy. It may be `async`."""
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
        session.game, session.is_over, session.played = self.new_game(session.row), False, []
        return {"observation": session.game.observation, "info": {}}

    @post("/step")
    async def step(self, body: StepRequest) -> JsonObject:
        """Play the latest turn; TaskError if the game is over."""
        session: _Session = self.state
        if session.is_over:
            raise TaskError("the game is over: /reset starts it again", status=400)
        action = output_text(body.response)
        step = await _play(session.game, action)
        session.is_over = step.is_last
        session.played.append((action, step))
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
        """The sum of the rewards of all steps. If this session has not played them, they are played
        again in another game, with the calls of tools before each."""
        row = _with_seed(body)
        steps = self._find_played(body.response) or await self._play_again(row, body.response)
        total = sum((step.reward for step in steps), 0.0)
        step, num_steps = (steps[-1] if steps else Step()), len(steps)
        return body.scored(
            reward=total,
            terminated=step.terminated,
            truncated=not step.terminated,
            num_steps=num_steps,
            info=step.info if row is body else {**step.info, "seed": row.seed},
        )

    def _find_played(self, response: JsonObject) -> list[Step]:
        """The steps of this session, if the response has exactly their actions."""
        session = current_session()
        state: _Session | None = self._sessions.state(session.id) if session else None
        if state is None or not state.played:
            return []
        said = [action for action, _ in plays(output_items(response), self.tools)]
        played, steps = zip(*state.played, strict=True)
        return list(steps) if [*played] == said[: len(played)] and state.is_over else []

    async def _play_again(self, row: GameRequest, response: JsonObject) -> list[Step]:
        game, steps = self.new_game(row), list[Step]()
        with entered(Session()) as session:
            assert session is not None
            self._sessions.begin(session.id)
            try:
                self.state = _Session(row, game)
                for action, calls in plays(output_items(response), self.tools):
                    for call in calls:
                        with suppress(RolloutError):  # as when the policy made it
                            raw = str(call.get("arguments") or "{}").encode()
                            await self._answer(f"/{call['name']}", raw)
                    steps.append(await _play(game, action))
                    if steps[-1].is_last:
                        break
            finally:
                self._sessions.end(session.id)
        return steps


async def _play(game: Game, action: str) -> Step:
    step = game.step(action)
    return step if isinstance(step, Step) else await step


def _with_seed(row: GameRequest) -> GameRequest:
    """The row, with a seed that its rollout determines if it has none."""
    session = current_session()
    if "seed" in row.model_fields_set or session is None:
        return row
    return row.model_copy(update={"seed": seed_of(session)})


@dataclass(slots=True)
class _Session:
    row: GameRequest
    game: Game
    is_over: bool = False
    played: list[tuple[str, Step]] = field(default_factory=list)
    """The actions so far and their steps."""


def observation_item(text: str) -> JsonObject:
    """An observation as a conversation item: a user message, as in NeMo Gym, so that tools that
    read its rollouts read ours."""
    part = {"type": "input_text", "text": text}
    return {"type": "message", "role": "user", "content": [part]}


def actions(items: Iterable[JsonObject]) -> list[str]:
    """The text of each turn of the policy: all items between two observations."""
    return [action for action, _ in plays(items, ())]


def plays(
    items: Iterable[JsonObject], tools: Container[str]
) -> Iterator[tuple[str, list[JsonObject]]]:
    """The actions of the policy, each with the calls of these tools that were executed before it.
    An action is the text of all items between two observations."""
    for is_observation, found in groupby(items, key=lambda item: item.get("role") == "user"):
        if not is_observation:
            own = list(found)
            calls = [call for call, _ in pair_calls(own) if str(call.get("name")) in tools]
            yield assistant_text(own), calls


def find_tagged(text: str, tag: str) -> str | None:
    """The text in the last `<tag>…</tag>`, in upper or lower case; None if there is none."""
    opened, found = -1, None
    for match in re.finditer(f"<(/?){tag}>", text, re.IGNORECASE):
        if not match[1]:
            opened = match.end()
        elif opened >= 0:
            opened, found = -1, text[opened : match.start()].strip()
    return found
