"""A user who follows a script: it needs no model and costs nothing.

It answers what it is asked for. It compares phrases with the policy's message as plain text, in
lower case, and knows nothing else.
"""

from dataclasses import dataclass, field

from .profile import Decisions, Fact, UserProfile

USER_STOP, GAVE_UP = "user_stop", "user_gave_up"
"""Why a user ends a conversation: the policy is done, or does not get on."""


@dataclass(frozen=True, slots=True)
class UserMove:
    """What the user does next: the facts to say, or a text. `ended` says why it is the last."""

    facts: tuple[Fact, ...] = ()
    text: str = ""
    ended: str = ""


@dataclass(slots=True)
class ScriptedUser:
    """One conversation of a scripted user."""

    profile: UserProfile
    decisions: Decisions
    _left: int = 0
    _said: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._left = self.decisions.patience
        self._said = set(self.decisions.volunteered)

    @property
    def revealed(self) -> list[str]:
        """The facts that were said, in the order of the profile."""
        return [fact.about for fact in self.profile.knows if fact.about in self._said]

    def open(self) -> str:
        """The first message."""
        told = [fact.says for fact in self.profile.knows if fact.about in self._said]
        return " ".join([self.decisions.opening, *told])

    def answer(self, text: str) -> UserMove:
        """The move after a message of the policy. Being asked again costs patience."""
        heard = text.casefold()
        asked = tuple(fact for fact in self.profile.knows if _has_any(heard, fact.asked))
        fresh = tuple(fact for fact in asked if fact.about not in self._said)
        if fresh:
            self._said |= {fact.about for fact in fresh}
            return UserMove(fresh)
        if _has_any(heard, self.profile.stops):
            return UserMove(ended=USER_STOP)
        self._left -= 1
        if self._left <= 0:
            return UserMove(ended=GAVE_UP)
        return UserMove(asked) if asked else UserMove(text=self.profile.otherwise)


def _has_any(heard: str, phrases: list[str]) -> bool:
    return any(phrase.casefold() in heard for phrase in phrases)
