"""Mastermind: a code of digits, found by guesses that are answered with what is right in them."""

import random
from collections import Counter

from pydantic import Field, ValidationError

from rollout_kit import GameRequest, GymnasiumServer, JsonObject, Step, TaskError
from rollout_kit.errors import validation_summary
from rollout_kit.serving.gymnasium import find_tagged


class MastermindRequest(GameRequest):
    length: int = Field(4, ge=1, le=10, description="Digits of the code.")
    num_symbols: int = Field(6, ge=2, le=9, description="They are 1 to this one.")
    max_guesses: int = Field(10, ge=1, le=100, description="After these the game is over.")


class Mastermind(GymnasiumServer):
    """Reward 1.0 for the guess that is the code, else 0.0."""

    def new_game(self, row: GameRequest) -> "Code":
        try:
            rules = MastermindRequest.model_validate(row.model_dump())
        except ValidationError as error:
            raise TaskError(f"this row is no game: {validation_summary(error)}") from None
        return Code(rules)


class Code:
    def __init__(self, rules: MastermindRequest) -> None:
        chance = random.Random(rules.seed)
        self._symbols = "123456789"[: rules.num_symbols]
        self.secret = "".join(chance.choice(self._symbols) for _ in range(rules.length))
        self._left = rules.max_guesses

    @property
    def observation(self) -> str:
        return (
            f"Find my code: {len(self.secret)} digits from 1 to {self._symbols[-1]}, each as often "
            f"as you like.\n{self._ask()}"
        )

    def step(self, action: str) -> Step:
        """A guess that is none uses up a guess."""
        self._left -= 1
        guess = "".join((find_tagged(action, "guess") or "").split())
        is_valid = len(guess) == len(self.secret) and set(guess) <= set(self._symbols)
        if is_valid and guess == self.secret:
            return Step(reward=1.0, terminated=True, info=self._info(guess))
        if not self._left:
            return Step(terminated=True, info=self._info(guess if is_valid else None))
        told = _told(self.secret, guess) if is_valid else "That is no guess."
        return Step(f"{told}\n{self._ask()}", info=self._info(guess if is_valid else None))

    def _ask(self) -> str:
        left = f"{self._left} guesses" if self._left > 1 else "1 guess"
        example = f"<guess>{self._symbols[0] * len(self.secret)}</guess>"
        return f"You have {left} left. Respond with a guess, as in {example}."

    def _info(self, guess: str | None) -> JsonObject:
        exact, misplaced = compared(self.secret, guess) if guess else (0, 0)
        return {"guess": guess, "exact": exact, "misplaced": misplaced}


def compared(secret: str, guess: str) -> tuple[int, int]:
    """How many digits are right where they stand, and how many of the others stand elsewhere."""
    exact = sum(one == other for one, other in zip(secret, guess, strict=True))
    return exact, (Counter(secret) & Counter(guess)).total() - exact


def _told(secret: str, guess: str) -> str:
    exact, misplaced = compared(secret, guess)
    return f"{guess}: {exact} in the right place, {misplaced} right but in another place."
