"""The office of a session: toolkits with the 27 tools of WorkBench and NeMo Gym.

Tools return errors as text; only invalid arguments raise.
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
"""Parts of the names of tools that change nothing."""


@dataclass(frozen=True, slots=True)
class OfficeTool(Tool):
    """A tool of a toolkit, called through the server's `use`. Null arguments count as missing."""

    toolkit: type

    def parse(self, raw: bytes) -> BaseModel:
        try:
            given = orjson.loads(raw)
            raw = orjson.dumps({name: each for name, each in given.items() if each is not None})
        except (orjson.JSONDecodeError, AttributeError):
            pass  # not an object: validation reports it
        return Tool.parse(self, raw)

    def bind(self, server: Any, arguments: BaseModel) -> tuple[Callable[..., Any], list[Any]]:
        return server.use, [self, arguments]


TOOLS = {
    name: OfficeTool(name, tool.schema, tool.arguments, tool.takes_model, toolkit)
    for toolkit in TOOLKITS
    for name, tool in find_tools(toolkit).items()
}


class Office:
    """Toolkits over a session's tables, which are shared with other sessions until a write."""

    def __init__(self, tables: Tables) -> None:
        self.toolkits = {toolkit: toolkit(tables) for toolkit in TOOLKITS}

    def use(self, tool: OfficeTool, arguments: BaseModel) -> Any:
        """Call a tool and return its output."""
        method, given = Tool.bind(tool, self.toolkits[tool.toolkit], arguments)
        return method(*given)

    def replay(self, calls: list[JsonObject]) -> "Office":
        """Execute the calls that change something, ignore failures, and return self."""
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
        """Whether both offices are in the same state."""
        return all(
            mine.table.equals(other.toolkits[toolkit].table)
            for toolkit, mine in self.toolkits.items()
        )
