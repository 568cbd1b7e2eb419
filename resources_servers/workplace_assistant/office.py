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


ADDRESSED = ("recipient", "participant_email", "assigned_to_email")
"""Arguments and fields with the address of somebody whom the office knows."""

MISSING = (" not found.", "Please choose from the list of team members.")
"""Ends of what tools say about something that is not in the office."""


def _domain(address: str) -> str:
    return address.rpartition("@")[2].lower()


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

    def find_missing(self, calls: list[JsonObject]) -> str:
        """Execute the calls, and describe the first that refers to something that is not in this
        office: a row of a table, a member of a team, or an address of a foreign domain."""
        domains = self._list_domains()
        for number, call in enumerate(calls):
            given = arguments_of(call)
            values = {str(given.get("field")): given.get("new_value"), **given}
            for name in ADDRESSED:
                if (domain := _domain(str(values.get(name) or ""))) and domain not in domains:
                    return f"ground_truth.{number}: nobody here has an address at {domain}"
            tool = TOOLS[call["name"]]
            if any(part in tool.name for part in READS):
                continue
            try:
                said = str(self.use(tool, tool.parse(orjson.dumps(given))))
            except (ToolError, ValueError):
                continue
            if said.endswith(MISSING):
                return f"ground_truth.{number}: {call['name']}: {said}"
        return ""

    def _list_domains(self) -> set[str]:
        rows = [row for toolkit in self.toolkits.values() for row in toolkit.table.rows]
        return {_domain(value) for row in rows for value in row.values() if "@" in value}

    def equals(self, other: "Office") -> bool:
        """Whether both offices are in the same state."""
        return all(
            mine.table.equals(other.toolkits[toolkit].table)
            for toolkit, mine in self.toolkits.items()
        )
