"""Mastermind: find a code of digits by guesses; each reply counts the correct digits."""

import random
from collections import Counter

from pydantic import Field, ValidationError

from rollout_kit import GameRequest, GymnasiumServer, JsonObject, Step, TaskError
from rollout_kit.errors import validation_summary
from rollout_kit.serving.gymnasium import find_tagged


class MastermindRequest(GameRequest):
    length: int = Field(4, ge=1, le=10, description="Digits of the code.")
    num_symbols: int = Field(6, ge=2, le=9, description="Digits are 1 to this number.")
    max_guesses: int = Field(10, ge=1, le=100, description="The game ends after this many guesses.")


class Mastermind(GymnasiumServer):
    """Reward 1.0 if a guess is the code, else 0.0."""

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
        """Play a guess; an invalid one counts as a guess."""
        self._left -= 1
        guess = "".join((find_tagged(action, "guess") or "").split())
        is_valid = len(guess) == len(self.secret) and set(guess) <= set(self._symbols)
        if is_valid and guess == self.secret:
            return Step(reward=1.0, terminated=True, info=self._info(guess))
        if not self._left:
            return Step(terminated=True, info=self._info(guess if is_valid else None))
        reply = _describe(self.secret, guess) if is_valid else "That is no guess."
        return Step(f"{reply}\n{self._ask()}", info=self._info(guess if is_valid else None))

    def _ask(self) -> str:
        left = f"{self._left} guesses" if self._left > 1 else "1 guess"
        example = f"<guess>{self._symbols[0] * len(self.secret)}</guess>"
        return f"You have {left} left. Respond with a guess, as in {example}."

    def _info(self, guess: str | None) -> JsonObject:
        exact, misplaced = compare_codes(self.secret, guess) if guess else (0, 0)
        return {"guess": guess, "exact": exact, "misplaced": misplaced}


def compare_codes(secret: str, guess: str) -> tuple[int, int]:
    """Count digits in the right place, and correct digits in another place."""
    exact = sum(one == other for one, other in zip(secret, guess, strict=True))
    return exact, (Counter(secret) & Counter(guess)).total() - exact


def _describe(secret: str, guess: str) -> str:
    exact, misplaced = compare_codes(secret, guess)
    return f"{guess}: {exact} in the right place, {misplaced} right but in another place."
