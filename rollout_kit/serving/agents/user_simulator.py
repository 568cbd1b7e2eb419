"""The simulated user of a rollout: a script, a model, or the user of a stored rollout.

What the user says and does becomes one user message of the output. Its text is all that the policy
reads. Its `user_calls` are the calls of the user's own tools.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ...errors import ModelError, RolloutError, TaskError
from ...responses import (
    USER_CALLS,
    assistant_text,
    content_texts,
    function_call_output,
    function_calls,
    message_item,
)
from ...session import current_session
from ...trajectory import without_tokens
from ...types import JsonObject
from ..gymnasium import observation_item
from ..service import ServerRef
from ..tools import NO_TOOL, arguments_of, refusal_text
from ..transport.peers import Peers
from ..users.profile import Decisions, UserAction
from ..users.scripted import USER_STOP, ScriptedUser
from ..users.two_sided import UserSide
from .rollout_bounds import OVER_LIMIT
from .turns import Turns

MAX_USER_TURNS = "max_user_turns"
"""Why a conversation ends in which the user has said enough."""

MAX_CALLS = 8
"""Calls of its own tools, one after the other, after which a model must say something."""

GREETING = "Hello! How can I help you?"
"""What a model that plays the user answers with its first message, as in tau2-bench."""

StoredTurn = tuple[str, list[JsonObject]]
"""Text and calls of one turn of a user."""


class UserSimulatorConfig(BaseModel):
    """Who plays the user of a task."""

    model_config = ConfigDict(extra="forbid")

    policy: Literal["scripted", "model", "replayed"] = Field(
        "scripted",
        description="Who decides what the user says: the script in the row, which costs nothing,"
        " a model, or a stored rollout of the same task and repeat.",
    )
    model_server: ServerRef | None = Field(None, description="The model that plays the user.")
    responses_create_params: JsonObject = Field(
        {}, description="Create params of its requests, for example {temperature: 0}."
    )
    sends_seed: bool = Field(
        False, description="Send a `seed` with them, for endpoints that sample the same with it."
    )
    replay_fpath: Path | None = Field(None, description="Rollouts whose users are replayed.")
    max_turns: int = Field(20, ge=1, description="Most messages of the user.")

    @model_validator(mode="after")
    def _is_whole(self) -> "UserSimulatorConfig":
        needs = {"model": "model_server", "replayed": "replay_fpath"}
        for policy, name in needs.items():
            if (getattr(self, name) is not None) != (self.policy == policy):
                lacks = self.policy == policy
                raise ValueError(
                    f"policy: {self.policy} needs {name}"
                    if lacks
                    else f"{name} has no effect with policy: {self.policy}: write policy: {policy}"
                )
        return self


class UserSimulator:
    """Plays users for an agent, whose tasks belong to the resources server `server`."""

    def __init__(self, config: UserSimulatorConfig, peers: Peers, server: str) -> None:
        self._config, self._peers, self._server = config, peers, server
        self.stored: Mapping[tuple[str, int], list[StoredTurn]] = {}
        """Task id and repeat → the turns of the user that are replayed."""

    async def join(self, turns: Turns) -> "UserTalk":
        """The user of the current session; TaskError if the server knows none."""
        try:
            found = await self._peers.call(self._server, "/user", None, dict)
        except RolloutError as error:
            if error.status != 404:
                raise
            raise TaskError(
                f"{self._server} has no users: it must be a TwoSidedServer, or leave out"
                " user_simulator"
            ) from None
        side = UserSide.model_validate(found)
        decisions = Decisions.draw(side.profile, side.seed)
        talk = UserTalk(self._config, self._peers, self._server, turns, side, decisions)
        if self._config.policy == "replayed":
            talk.stored = self._find_stored()
        elif self._config.policy == "scripted" and not decisions.opening:
            raise TaskError("user.openings: a scripted user needs at least one")
        return talk

    def _find_stored(self) -> list[StoredTurn]:
        session = current_session()
        rollout = session.rollout if session else None
        if rollout is None or rollout not in self.stored:
            raise TaskError(
                f"{self._config.replay_fpath} has no rollout of this task and repeat with a user:"
                " collect it there first, from the same rows"
            )
        return self.stored[rollout]


@dataclass(slots=True)
class UserTalk:
    """The user's side of one rollout. `ended` is empty as long as the user goes on."""

    config: UserSimulatorConfig
    peers: Peers
    server: str
    turns: Turns
    side: UserSide
    decisions: Decisions
    stored: list[StoredTurn] = field(default_factory=list)
    ended: str = ""
    num_turns: int = 0
    _script: ScriptedUser = field(init=False)
    _heard: list[JsonObject] = field(default_factory=list)
    """The conversation as the user sees it."""

    def __post_init__(self) -> None:
        self._script = ScriptedUser(self.side.profile, self.decisions)

    @property
    def tool_names(self) -> set[str]:
        """The user's own tools, which the policy may not call."""
        return {str(tool["name"]) for tool in self.side.tools}

    async def open(self) -> JsonObject:
        """The user's first message, as an item of the output."""
        self._heard.append(observation_item(GREETING))
        if self.config.policy == "scripted":
            item = self._say(self._script.open())
        elif self.config.policy == "model" and self.decisions.opening:
            item = self._say(self.decisions.opening)
        else:
            item = await self._move("", 0)
        if item is None:
            raise ModelError("the simulated user ended the conversation before it began")
        return item

    async def answer(self, said: Sequence[JsonObject], at: int) -> list[JsonObject]:
        """The user's message after a turn of the policy; none if the user says nothing more. `at`
        is the number of items of the output so far."""
        if self.num_turns >= self.config.max_turns:
            self.ended = MAX_USER_TURNS
            return []
        text = assistant_text(said)
        self._heard.append(observation_item(text))
        item = await self._move(text, at)
        return [] if item is None else [item]

    async def _move(self, text: str, at: int) -> JsonObject | None:
        if self.config.policy == "model":
            return await self._ask_model(at)
        if self.config.policy == "replayed":
            return await self._replay()
        move = self._script.answer(text)
        self.ended = move.ended
        texts, calls = [move.text] if move.text else [], list[JsonObject]()
        for fact in move.facts:
            says = fact.says
            if fact.does is not None:
                calls.append(await self._act(fact.does))
                says = says.replace("{output}", calls[-1]["output"])
            texts.append(says)
        return self._say(" ".join(texts), calls)

    async def _replay(self) -> JsonObject | None:
        if self.num_turns >= len(self.stored):
            self.ended = USER_STOP
            return None
        text, calls = self.stored[self.num_turns]
        return self._say(text, [await self._call(call) for call in calls])

    async def _ask_model(self, at: int) -> JsonObject | None:
        """The message of the model that plays the user, after the calls of its tools."""
        assert self.config.model_server is not None
        model, done = self.config.model_server.name, list[JsonObject]()
        request = {**self.config.responses_create_params}
        request["instructions"] = self.side.profile.describe(self.side.tools)
        if self.side.tools:
            request["tools"] = self.side.tools
        if self.config.sends_seed:
            request["seed"] = (self.side.seed + self.num_turns) % 2**31
        for _ in range(MAX_CALLS + 1):
            if self.num_turns and self.turns.find_limit():
                self.ended = OVER_LIMIT
                return self._say("", done)
            asked = {**request, "input": list(self._heard)}
            response = await self.turns.ask(asked, model=model, by="user", chain=None, at=at)
            if response.get("incomplete_details"):
                raise ModelError("the simulated user's message was cut off", server=model)
            calls = function_calls(response["output"])
            if not calls:
                return self._end_or_say(assistant_text(response["output"]), done, model)
            self._heard += without_tokens(response["output"])
            for call in calls:
                done.append(await self._call(call))
                self._heard.append(
                    function_call_output(str(call.get("call_id")), done[-1]["output"])
                )
        raise ModelError(f"the simulated user only calls tools: {MAX_CALLS} turns", server=model)

    def _end_or_say(self, text: str, calls: list[JsonObject], model: str) -> JsonObject | None:
        places = [text.find(word) for word in self.side.profile.ends]
        before = text[: min((place for place in places if place >= 0), default=len(text))]
        if len(before) < len(text):
            self.ended = USER_STOP
        elif not text.strip():
            raise ModelError("the simulated user said nothing", server=model)
        return self._say(before.strip(), calls)

    async def _act(self, action: UserAction) -> JsonObject:
        arguments = orjson.dumps(action.arguments).decode()
        return await self._call({"name": action.tool, "arguments": arguments})

    async def _call(self, call: JsonObject) -> JsonObject:
        """One call of a tool of the user, with its output."""
        name, began = str(call.get("name")), time.perf_counter()
        if name not in self.tool_names:
            known = ", ".join(sorted(self.tool_names)) or "none"
            text = f"{NO_TOOL} '{name}'; there are: {known}"
        else:
            try:
                text = await self.peers.call(self.server, f"/{name}", arguments_of(call), str)
            except RolloutError as error:
                if (told := refusal_text(error)) is None:
                    raise
                text = told
        self.turns.tool_s += time.perf_counter() - began
        return {"name": name, "arguments": str(call.get("arguments") or "{}"), "output": text}

    def _say(self, text: str, calls: Sequence[JsonObject] = ()) -> JsonObject | None:
        """The item of the output; None if there is nothing in it."""
        if not text and not calls:
            return None
        self.num_turns += 1
        self._heard.append(message_item(text))
        item = observation_item(text)
        return {**item, USER_CALLS: list(calls)} if calls else item

    def report(self) -> JsonObject:
        """What the line says of the user."""
        found: JsonObject = {
            "policy": self.config.policy,
            "seed": self.side.seed,
            "turns": self.num_turns,
            "ended": self.ended or None,
            "decisions": self.decisions.to_json(),
        }
        if (usd := self.turns.cost_of("user")) is not None:
            found["cost_usd"] = usd
        if self.config.policy == "scripted":
            found["revealed"] = self._script.revealed
        return found


def find_user_turns(items: Sequence[Any]) -> list[StoredTurn]:
    """The turns of the user in an output."""
    return [
        ("\n".join(content_texts(item.get("content"))), list(item.get(USER_CALLS) or ()))
        for item in items
        if isinstance(item, dict) and item.get("role") == "user"
    ]
