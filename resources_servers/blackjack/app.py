"""Blackjack against a dealer who draws to 17, from a pack that never runs out."""

import random
from typing import ClassVar

from rollout_kit import GameRequest, GymnasiumServer, Step
from rollout_kit.serving.gymnasium import find_tagged

RANKS = ("2", "3", "4", "5", "6", "7", "8", "9", "10", "J", "Q", "K", "A")

DEALER_STANDS = 17

LIMIT = 21


class Blackjack(GymnasiumServer):
    """+1 for a hand that is won, 0 for a draw, −1 for one that is lost."""

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
            f"Your hand: {shown(self.player)} = {value(self.player)}\n"
            f"Dealer shows: {self.dealer[0]}\n{self.ASK}"
        )

    def step(self, action: str) -> Step:
        """Whatever is no `hit` is a `stand`."""
        if (find_tagged(action, "action") or "").lower() == "hit":
            self.player.append(self._card())
            if value(self.player) > LIMIT:
                return self._over("bust", -1.0)
            return Step(self.observation)
        while value(self.dealer) < DEALER_STANDS:
            self.dealer.append(self._card())
        player, dealer = value(self.player), value(self.dealer)
        if dealer > LIMIT or player > dealer:
            return self._over("win", 1.0)
        return self._over("draw", 0.0) if player == dealer else self._over("loss", -1.0)

    def _card(self) -> str:
        return self._chance.choice(RANKS)

    def _over(self, result: str, reward: float) -> Step:
        info = {
            "result": result,
            "player": shown(self.player),
            "player_value": value(self.player),
            "dealer": shown(self.dealer),
            "dealer_value": value(self.dealer),
        }
        return Step(reward=reward, terminated=True, info=info)


def value(hand: list[str]) -> int:
    """An ace is 11 as long as that is not too much, and then 1."""
    total = sum(11 if card == "A" else int(card) if card.isdigit() else 10 for card in hand)
    for _ in range(hand.count("A")):
        total -= 10 if total > LIMIT else 0
    return total


def shown(hand: list[str]) -> str:
    return f"[{', '.join(hand)}]"
