"""Blackjack against a dealer who draws to 17, with an infinite deck."""

import random
from typing import ClassVar

from rollout_kit import GameRequest, GymnasiumServer, Step
from rollout_kit.serving.gymnasium import find_tagged

RANKS = ("2", "3", "4", "5", "6", "7", "8", "9", "10", "J", "Q", "K", "A")

DEALER_STANDS = 17

LIMIT = 21


class Blackjack(GymnasiumServer):
    """+1 for a win, 0 for a draw, −1 for a loss."""

    def new_game(self, row: GameRequest) -> "Hand":
        return Hand(random.Random(row.seed))


class Hand:
    ASK: ClassVar[str] = "Respond with <action>hit</action> or <action>stand</action>."

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.player = [self._card(), self._card()]
        self.dealer = [self._card(), self._card()]

    @property
    def observation(self) -> str:
        return (
            f"Your hand: {format_hand(self.player)} = {compute_value(self.player)}\n"
            f"Dealer shows: {self.dealer[0]}\n{self.ASK}"
        )

    def step(self, action: str) -> Step:
        """Play an action; anything except `hit` is a `stand`."""
        if (find_tagged(action, "action") or "").lower() == "hit":
            self.player.append(self._card())
            if compute_value(self.player) > LIMIT:
                return self._over("bust", -1.0)
            return Step(self.observation)
        while compute_value(self.dealer) < DEALER_STANDS:
            self.dealer.append(self._card())
        player, dealer = compute_value(self.player), compute_value(self.dealer)
        if dealer > LIMIT or player > dealer:
            return self._over("win", 1.0)
        return self._over("draw", 0.0) if player == dealer else self._over("loss", -1.0)

    def _card(self) -> str:
        return self._chance.choice(RANKS)

    def _over(self, result: str, reward: float) -> Step:
        info = {
            "result": result,
            "player": format_hand(self.player),
            "player_value": compute_value(self.player),
            "dealer": format_hand(self.dealer),
            "dealer_value": compute_value(self.dealer),
        }
        return Step(reward=reward, terminated=True, info=info)


def compute_value(hand: list[str]) -> int:
    """Value of a hand; an ace counts 11, or 1 if the hand would exceed the limit."""
    total = sum(11 if card == "A" else int(card) if card.isdigit() else 10 for card in hand)
    for _ in range(hand.count("A")):
        total -= 10 if total > LIMIT else 0
    return total


def format_hand(hand: list[str]) -> str:
    return f"[{', '.join(hand)}]"
