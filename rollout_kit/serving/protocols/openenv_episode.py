"""One episode of a resources server for a client of OpenEnv: reset, step, state.

An episode is a session. `reset` seeds it with a row. Each step calls a tool of the server, or
`respond`, which is the text of the policy's turn: in a game the action, elsewhere the answer, which
is verified. Its verdict is the reward of the last step.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

import orjson

from ...errors import ConfigError, RolloutError, TaskError, suggest
from ...reading import line_number, parse_line, read_lines
from ...responses import (
    content_texts,
    function_call_item,
    function_call_output,
    input_items,
    make_response,
    message_item,
)
from ...session import Session, entered, fresh_id
from ...types import JsonObject
from ..registry import resolve_path
from ..tools import NO_TOOL, is_callable, refusal_text
from ..transport.encoding import encode_reply
from ..transport.wire import read_scores

RESPOND = "respond"
"""The tool that takes the text of a turn."""

LIST_TOOLS, CALL_TOOL = "list_tools", "call_tool"
"""Types of actions."""


class EpisodeServer(Protocol):
    """What a resources server has, so that it can be played."""

    name: str
    config: Any
    tools: Mapping[str, Any]

    async def answer(self, path: str, raw: bytes) -> Any: ...

    def describe(self) -> JsonObject: ...


@dataclass(slots=True)
class EpisodeTasks:
    """The rows from which `reset` chooses."""

    server: str
    rows: Sequence[JsonObject] = ()
    _next: Iterator[int] = field(default_factory=count)

    @classmethod
    def read(cls, server: str, path: str | None) -> "EpisodeTasks":
        """Those of a file of rows; ConfigError if it cannot be read."""
        if path is None:
            return cls(server)
        if (found := resolve_path(path)) is None:
            raise ConfigError(f"{server}: openenv_tasks: there is no file {path}")
        rows = []
        for offset, raw in read_lines(found):
            if (row := parse_line(raw)) is None:
                place = f"{path}:{line_number(found, offset)}"
                raise ConfigError(f"{server}: openenv_tasks: {place}: not a JSON object")
            rows.append(row)
        return cls(server, rows)

    def choose(self, given: JsonObject) -> JsonObject:
        """The row itself, that at `task_index`, that of a `seed`, or the next one; TaskError if
        there is none."""
        if (row := given.get("row")) is not None:
            if not isinstance(row, dict):
                raise TaskError("reset: row must be an object, a line of a data set")
            return row
        if not self.rows:
            raise TaskError(
                f"{self.server} has no tasks: set openenv_tasks to a file of rows, or give reset a"
                " row"
            )
        index = given.get("task_index")
        if index is None:
            seed = given.get("seed")
            index = (next(self._next) if seed is None else int(seed)) % len(self.rows)
        if not isinstance(index, int) or not 0 <= index < len(self.rows):
            last = len(self.rows) - 1
            raise TaskError(f"reset: task_index must be from 0 to {last}, got {index!r}")
        return self.rows[index]


class Episode:
    """The episodes of one client, one after the other. Calls at the same time take turns."""

    def __init__(self, server: EpisodeServer, tasks: EpisodeTasks) -> None:
        self._server, self._tasks = server, tasks
        self._is_game = "/step" in getattr(server, "routes", ())
        self._session: Session | None = None
        self._row: JsonObject = {}
        self._items: list[JsonObject] = []
        self._lock = asyncio.Lock()
        self._num_steps, self._is_over, self._id = 0, False, ""

    @property
    def state(self) -> JsonObject:
        """The id of the episode and the number of its steps."""
        return {"episode_id": self._id or None, "step_count": self._num_steps}

    async def reset(self, given: JsonObject) -> JsonObject:
        """Begin an episode; its first observation. TaskError if the server cannot take the row."""
        async with self._lock:
            row = self._tasks.choose(given)
            await self._end()
            session = Session(f"openenv.{fresh_id()}")
            await self._ask(session, "/seed_session", row)
            self._session, self._row, self._items = session, row, []
            self._id = str(given.get("episode_id") or session.id)
            self._num_steps, self._is_over = 0, False
            messages = input_items(row["responses_create_params"])
            if self._is_game:
                played = await self._play("/reset", {})
                messages.append({"role": "user", "content": played["observation"]})
            texts = (" ".join(content_texts(each.get("content"))) for each in messages)
            return observe({"messages": messages, "text": "\n\n".join(filter(None, texts))})

    async def step(self, action: JsonObject) -> JsonObject:
        """Take an action; its observation. RolloutError for one that means nothing."""
        kind = action.get("type", CALL_TOOL)
        if kind == LIST_TOOLS:
            return observe({"tools": self.list_tools()})
        name, arguments = action.get("tool_name"), action.get("arguments", {})
        if kind != CALL_TOOL or not isinstance(name, str) or not isinstance(arguments, dict):
            raise TaskError(
                f"an action is {{type: {CALL_TOOL}, tool_name: …, arguments: {{…}}}} or"
                f" {{type: {LIST_TOOLS}}}, got {orjson.dumps(action)[:200].decode()}"
            )
        async with self._lock:
            if self._session is None or self._is_over:
                raise TaskError("no episode is open: call reset first", status=409)
            self._num_steps += 1
            if name == RESPOND:
                return await self._respond(str(arguments.get("text", "")))
            return observe(of_call(name, await self._call(name, arguments)))

    def list_tools(self) -> list[JsonObject]:
        """The tools of the row, or else of the server, and `respond`, in MCP's form."""
        given = self._row.get("responses_create_params", {}).get("tools")
        own = [each.schema for each in self._server.tools.values()] if given is None else given
        listed = [each for each in own if is_callable(str(each.get("name")))]
        return [as_mcp_tool(each) for each in [*listed, respond_schema(self._is_game)]]

    async def close(self) -> None:
        """End the episode, if one is open."""
        async with self._lock:
            await self._end()

    async def _end(self) -> None:
        if (session := self._session) is not None:
            self._session = None
            await self._ask(session, "/close_session", {})

    async def _call(self, name: str, arguments: JsonObject) -> str:
        """The output of a tool; an error of the tool is text for the policy, as for an agent."""
        call = function_call_item(name, orjson.dumps(arguments).decode())
        known = [each["name"] for each in self.list_tools()]
        try:
            if name in known:
                text = (await self._ask(self._session, f"/{name}", arguments)).decode()
            else:
                hint = suggest(name, known)
                text = f"{NO_TOOL} '{name}'{hint}; there are: {', '.join(sorted(known))}"
        except RolloutError as error:
            if (refusal := refusal_text(error)) is None:
                raise
            text = refusal
        self._items += [call, function_call_output(call["call_id"], text)]
        return text

    async def _respond(self, text: str) -> JsonObject:
        self._items.append(message_item(text))
        if self._is_game:
            played = await self._play("/step", {"response": self._response([self._items[-1]])})
            self._is_over = bool(played["terminated"] or played["truncated"])
            told = of_call(RESPOND, played["observation"])
            return observe(told, played["reward"], self._is_over, {"info": played["info"]})
        scores: JsonObject = {"reward": None}
        if self._server.describe().get("verifies", True):
            request = {**self._row, "response": self._response(self._items)}
            scores = read_scores(request, await self._ask(self._session, "/verify", request))
        self._is_over = True
        return observe(of_call(RESPOND, None), scores["reward"], True, {"scores": scores})

    def _response(self, items: list[JsonObject]) -> JsonObject:
        return make_response("openenv", items, None)

    async def _play(self, path: str, body: JsonObject) -> JsonObject:
        return orjson.loads(await self._ask(self._session, path, body))

    async def _ask(self, session: Session | None, path: str, body: JsonObject) -> bytes:
        with entered(session):
            answer = await self._server.answer(path, orjson.dumps(body))
        return encode_reply(answer, self._server.name, path)


def observe(
    observation: JsonObject,
    reward: float | None = None,
    is_over: bool = False,
    metadata: JsonObject | None = None,
) -> JsonObject:
    """An observation as OpenEnv's clients read it."""
    known = metadata or {}
    return {
        "observation": {**observation, "metadata": known},
        "reward": reward,
        "done": is_over,
        "metadata": known,
    }


def of_call(name: str, result: str | None) -> JsonObject:
    """What an observation says about a call. Errors of a tool are its result, too."""
    return {"tool_name": name, "result": result, "error": None}


def respond_schema(is_game: bool) -> JsonObject:
    """The tool that takes the text of a turn."""
    what = "Play a turn of the game" if is_game else "Give the final answer, which ends the episode"
    text = {"type": "string", "description": "All that you say in this turn."}
    parameters = {"type": "object", "properties": {"text": text}, "required": ["text"]}
    return {"name": RESPOND, "description": f"{what}.", "parameters": parameters}


def as_mcp_tool(schema: JsonObject) -> JsonObject:
    """A function tool of the Responses API as OpenEnv's clients read tools."""
    return {
        "name": schema["name"],
        "description": schema.get("description") or "",
        "input_schema": schema.get("parameters") or {"type": "object", "properties": {}},
    }
