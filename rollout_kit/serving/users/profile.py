"""What a row says of its user, and what is drawn for a rollout.

Everything that is left to chance is drawn before the conversation, from a seed. It does not depend
on what the policy says, so every policy meets the same user.
"""

from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ...types import JsonObject, VerifyRequest

STOP = "###STOP###"
"""What a model that plays the user says to end the conversation, as in tau2-bench."""

PROMPT = """\
You play a person who talks to an assistant. Stay in this role, and never act as the assistant.

{about}

Rules:
- Write only what the person says, one short message at a time.
- Begin with your goal in your own words. Say what you know only when the assistant asks for it.
- Never invent what is not written here. If you are asked for anything else, you do not know it.
- Use your tools only when the assistant asks you to do something that they do.
- When your goal is reached, or the assistant says that it cannot be, answer with {stop} alone.
"""


class UserAction(BaseModel):
    """A call of one of the user's own tools."""

    model_config = ConfigDict(extra="forbid")

    tool: str
    arguments: JsonObject = {}


class Fact(BaseModel):
    """Something that the user says, or does and says, only when the policy asks for it."""

    model_config = ConfigDict(extra="forbid")

    about: str = Field(min_length=1, description="Its name.")
    says: str = Field(description="What the user says; {output} stands for what the tool returned.")
    asked: list[str] = Field(
        min_length=1,
        description="A scripted user is asked for it by a message with one of these phrases.",
    )
    does: UserAction | None = Field(None, description="What the user does first.")
    is_secret: bool = Field(
        False, description="Whether it must not be said before the policy asks, as an answer key."
    )


class UserProfile(BaseModel):
    """The `user` of a row.

    Example:

        rk.UserProfile.model_validate({
            "goal": "Cancel your order.",
            "openings": ["Hello, please cancel my order."],
            "knows": [{"about": "order", "says": "It is A17.", "asked": ["order number"]}],
            "stops": ["is cancelled"],
        })
    """

    model_config = ConfigDict(extra="forbid")

    goal: str = Field(min_length=1, description="What the user wants, as an instruction.")
    persona: str = Field("", description="Who the user is, and how the user talks.")
    openings: list[str] = Field([], description="First messages, of which one is drawn.")
    knows: list[Fact] = []
    stops: list[str] = Field(
        [], description="Phrases of the policy after which a scripted user ends the conversation."
    )
    otherwise: str = Field(
        "I do not know. Please go on.",
        description="The answer to what a scripted user is not asked.",
    )
    patience: tuple[int, int] = Field(
        (3, 3), description="Bounds of the number of such answers before a scripted user gives up."
    )
    volunteers: float = Field(
        0.0, ge=0, le=1, description="The chance that a scripted user says a fact in the opening."
    )
    instructions: str = Field(
        "",
        description="All instructions for a model that plays the user, in place of those made of"
        " the other fields.",
    )
    ends: list[str] = Field(
        [STOP], min_length=1, description="Words with which such a model ends the conversation."
    )
    seed: int | None = Field(
        None, description="Determines what is drawn; by default the task and the repeat do."
    )

    @model_validator(mode="after")
    def _is_sound(self) -> "UserProfile":
        least, most = self.patience
        if not 1 <= least <= most:
            raise ValueError("patience: give two numbers from 1, the smaller one first")
        names = [fact.about for fact in self.knows]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"knows: '{twice}' occurs twice")
        return self

    def describe(self, tools: list[JsonObject]) -> str:
        """The instructions of a model that plays this user, who has these tools."""
        if self.instructions:
            return self.instructions
        known = [f"- {fact.about}: {_tell(fact)}" for fact in self.knows]
        about = [f"Your goal: {self.goal}"]
        about += [f"Who you are: {self.persona}"] if self.persona else []
        about += ["What you know:", *known] if known else []
        about += [f"Your tools: {', '.join(str(tool['name']) for tool in tools)}"] if tools else []
        return PROMPT.format(about="\n".join(about), stop=STOP)


def _tell(fact: Fact) -> str:
    if fact.does is None:
        return fact.says
    return f"call your tool {fact.does.tool} when you are asked for it, then tell its result"


class UserRequest(VerifyRequest):
    """A row with a user.

    Example:

        class OrderRequest(rk.UserRequest):
            orders: dict[str, str]
    """

    user: UserProfile


@dataclass(frozen=True, slots=True)
class Decisions:
    """What is drawn for one rollout. `opening` and `volunteered` matter to a scripted user, and
    `opening` to others too."""

    opening: str
    patience: int
    volunteered: tuple[str, ...]
    """Facts that are said in the opening; never secret ones, nor those that need a tool."""

    @classmethod
    def draw(cls, profile: UserProfile, seed: int) -> "Decisions":
        def chance(name: str) -> Random:
            """One for each decision, so that another fact changes no other decision."""
            return Random(f"{seed} {name}")

        openings = profile.openings
        return cls(
            chance("opening").choice(openings) if openings else "",
            chance("patience").randint(*profile.patience),
            tuple(
                fact.about
                for fact in profile.knows
                if not (fact.is_secret or fact.does)
                and chance(f"fact {fact.about}").random() < profile.volunteers
            ),
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
