"""Checks of simulated users: leaving the role, giving answers away, ending too early.

They compare what the user said with what the row says of it. Words are compared as plain text, so a
paraphrase of a fact is not seen. A rollout without a user passes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from ...responses import USER_CALLS, assistant_text, content_texts
from ...serving.users.profile import STOP, Fact, UserProfile
from ...serving.users.scripted import USER_STOP
from ...types import JsonObject

LEFT_ROLE, GAVE_AWAY, ENDED_EARLY = "user_left_role", "user_gave_away", "user_ended_early"

OF_USERS = (LEFT_ROLE, GAVE_AWAY, ENDED_EARLY)
"""The checks."""

OF_ASSISTANTS = (
    *(
        "how can i help",
        "how may i help",
        "how can i assist",
        "as an ai",
        "i am an ai",
        "i'm an ai",
    ),
    *("language model", "as an assistant", "as the assistant", "i'm here to help", STOP.casefold()),
    *("<tool_call>", "i have cancelled your", "your request has been processed"),
)
"""Phrases of an assistant: who says them is no longer a user."""

ANSWER = "expected_answer"
"""Field of a row with its answer, which a user must not say."""

SHORT = 3
"""A shorter answer occurs in other words."""


class Said(NamedTuple):
    """A message of the conversation, in lower case, and the tools that a user called before it."""

    by: Literal["policy", "user"]
    text: str
    tools: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class UserRecord:
    """A simulated user in a stored rollout."""

    profile: UserProfile
    volunteered: frozenset[str]
    ended: str
    said: Sequence[Said]
    answer: str

    @classmethod
    def of(cls, row: Mapping[str, Any], items: Sequence[Any]) -> "UserRecord | None":
        """That of a line; None if it has no user."""
        about = row["rollout"].get("user") if isinstance(row.get("rollout"), dict) else None
        if not isinstance(about, dict):
            return None
        try:
            profile = UserProfile.model_validate(row.get("user"))
        except ValidationError:
            return None
        decisions = about.get("decisions") or {}
        answer = row.get(ANSWER)
        return cls(
            profile,
            frozenset(decisions.get("volunteered") or ()),
            str(about.get("ended") or ""),
            list(_read(items)),
            answer.strip().casefold() if isinstance(answer, str) else "",
        )


def _read(items: Sequence[Any]) -> Iterator[Said]:
    for item in items:
        if not isinstance(item, dict) or item.get("type", "message") != "message":
            continue
        if item.get("role") == "user":
            calls = [call for call in item.get(USER_CALLS) or () if isinstance(call, dict)]
            tools = [str(call.get("name")) for call in calls]
            yield Said("user", " ".join(content_texts(item.get("content"))).casefold(), tools)
        elif item.get("role") == "assistant":
            yield Said("policy", assistant_text([item]).casefold())


class UserFault(NamedTuple):
    """What a check has found: its name, the message of the user from 1, and details."""

    check: str
    message: int
    detail: JsonObject


def find_user_faults(user: UserRecord) -> Iterator[UserFault]:
    """What all three checks find."""
    heard, number, opened = "", 0, False
    for each in user.said:
        if each.by == "policy":
            heard += f" {each.text}"
            continue
        number += 1
        if phrase := next((one for one in OF_ASSISTANTS if one in each.text), None):
            yield UserFault(LEFT_ROLE, number, {"phrase": phrase})
        elif len(each.text) > SHORT * 10 and each.text in heard:
            yield UserFault(LEFT_ROLE, number, {"phrase": "it repeats the policy"})
        for fact in user.profile.knows:
            is_early = fact.about not in user.volunteered and not _is_asked(fact, heard)
            if is_early and _tells(fact, each) and (opened or not _is_in_openings(fact, user)):
                yield UserFault(GAVE_AWAY, number, {"fact": fact.about})
        if len(user.answer) >= SHORT and user.answer in each.text and user.answer not in heard:
            yield UserFault(GAVE_AWAY, number, {"fact": ANSWER})
        opened = True
    yield from _find_early_end(user, number)


def _find_early_end(user: UserRecord, number: int) -> Iterator[UserFault]:
    """The user ends by itself, though it was just asked for something that it has not said."""
    if user.ended != USER_STOP:
        return
    turns = [place for place, each in enumerate(user.said) if each.by == "policy"]
    if not turns:
        yield UserFault(ENDED_EARLY, number, {"reason": "the policy has said nothing"})
        return
    last, before = user.said[turns[-1]].text, user.said[: turns[-1]]
    is_done = any(phrase.casefold() in last for phrase in user.profile.stops)
    for fact in user.profile.knows:
        told = fact.about in user.volunteered or any(
            _tells(fact, each) for each in before if each.by == "user"
        )
        if _is_asked(fact, last) and not told and not is_done:
            yield UserFault(ENDED_EARLY, number, {"asked": fact.about})
            return


def _is_asked(fact: Fact, heard: str) -> bool:
    return any(phrase.casefold() in heard for phrase in fact.asked)


def _is_in_openings(fact: Fact, user: UserRecord) -> bool:
    """Whether the row's own first messages tell it."""
    openings = [Said("user", opening.casefold()) for opening in user.profile.openings]
    return any(_tells(fact, opening) for opening in openings)


def _tells(fact: Fact, said: Said) -> bool:
    """Whether a message tells a fact: it has the words with digits or an @, or else all of it."""
    if fact.does is not None:
        return fact.does.tool in said.tools
    says = fact.says.casefold().strip(" .!?")
    marks = [
        word
        for word in (each.strip(".,;:!?\"'()") for each in says.split())
        if "@" in word or any(map(str.isdigit, word))
    ]
    return all(mark in said.text for mark in marks) if marks else says in said.text
