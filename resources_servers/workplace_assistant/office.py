"""An office of one session: its toolkits, with the 27 tools of WorkBench and NeMo Gym.

What a tool cannot do it says; nothing is raised but for arguments that do not fit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import BaseModel

from rollout_kit import JsonObject, ToolError
from rollout_kit.serving.tools import Tool, arguments_of, find_tools

from .analytics import Analytics
from .customers import Customers
from .events import Calendar
from .mail import Mail
from .projects import Projects
from .tables import Tables

TOOLKITS = (Mail, Calendar, Analytics, Projects, Customers)

READS = ("_get_", "_search_", "_count", "_find_")
"""In the names of tools that leave everything as it is."""


@dataclass(frozen=True, slots=True)
class OfficeTool(Tool):
    """A tool of a toolkit, used by way of the server's `use`. A null is an argument left out."""

    toolkit: type

    def parse(self, raw: bytes) -> BaseModel:
        try:
            given = orjson.loads(raw)
            raw = orjson.dumps({name: each for name, each in given.items() if each is not None})
        except (orjson.JSONDecodeError, AttributeError):
            pass  # no object: said by whoever wants one
        return Tool.parse(self, raw)

    def bound(self, server: Any, arguments: BaseModel) -> tuple[Callable[..., Any], list[Any]]:
        return server.use, [self, arguments]


TOOLS = {
    name: OfficeTool(name, tool.schema, tool.arguments, tool.takes_model, toolkit)
    for toolkit in TOOLKITS
    for name, tool in find_tools(toolkit).items()
}


class Office:
    """The toolkits over one session's tables; those that were loaded are shared until it writes."""

    def __init__(self, tables: Tables) -> None:
        self.toolkits = {toolkit: toolkit(tables) for toolkit in TOOLKITS}

    def use(self, tool: OfficeTool, arguments: BaseModel) -> Any:
        """What the tool says."""
        method, given = Tool.bound(tool, self.toolkits[tool.toolkit], arguments)
        return method(*given)

    def replay(self, calls: list[JsonObject]) -> "Office":
        """Itself, after those of the calls that change something; what cannot be done is not."""
        for call in calls:
            tool = TOOLS.get(str(call.get("name")))
            if tool is None or any(part in tool.name for part in READS):
                continue
            try:
                self.use(tool, tool.parse(orjson.dumps(arguments_of(call))))
            except (ToolError, ValueError):
                continue
        return self

    def equals(self, other: "Office") -> bool:
        """Whether both have come to the same."""
        return all(
            mine.table.equals(other.toolkits[toolkit].table)
            for toolkit, mine in self.toolkits.items()
        )
