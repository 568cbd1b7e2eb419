"""Customer service as in τ²-bench: an agent with a policy and tools, and a simulated customer.

The reward is 1.0 if the database is in the end as the right actions leave it, and the agent has
said what had to be said. A published database is read from the wheel that `ng_prepare_data` has
fetched.
"""

import gzip
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rollout_kit import (
    JsonObject,
    ResourcesServerConfig,
    TaskError,
    ToolError,
    TwoSidedServer,
    UserRequest,
    VerifyResponse,
    function_calls,
    output_items,
)
from rollout_kit.reading import cache_folder
from rollout_kit.responses import assistant_text
from rollout_kit.serving.tools import Tool, arguments_of, find_tools

from .airline import AirlineDesk
from .database import Database
from .desk import Desk
from .retail import RetailDesk

DESKS: dict[str, type[Desk]] = {"airline": AirlineDesk, "retail": RetailDesk}

WHEEL = "packages/inspect_evals-0.28.0-py3-none-any.whl"

MEMBER = "inspect_evals/tau2/data/domains/{}/db.json.gz"

UNCHANGING = ("calculate", "transfer_to_human_agents")
"""Right actions that are not executed again."""

Basis = Literal["DB", "COMMUNICATE", "ACTION"]


class Tau2Config(ResourcesServerConfig):
    model_config = ConfigDict(extra="forbid")

    desk: Literal["airline", "retail"] = Field(
        "airline", description="The company that the agent works for."
    )


class Action(BaseModel):
    """A right action."""

    model_config = ConfigDict(extra="ignore")

    name: str
    arguments: JsonObject = {}
    compare_args: list[str] | None = None


class Tau2Request(UserRequest):
    """A row."""

    database: Literal["published"] | Database = "published"
    actions: list[Action] = Field([])
    communicate_info: list[str] = Field([])
    nl_assertions: list[str] = Field([], description="They are shown and not scored.")
    reward_basis: Annotated[list[Basis], Field(min_length=1)] = Field(["DB", "COMMUNICATE"])


@dataclass(frozen=True, slots=True)
class DeskTool(Tool):
    """A tool of the desk of a session."""

    def bind(self, server: Any, arguments: BaseModel) -> tuple[Callable[..., Any], list[Any]]:
        return Tool.bind(self, server.world, arguments)


class Tau2(TwoSidedServer):
    """Reward 1.0 if the task is done, else 0.0."""

    Config = Tau2Config

    def __init__(self, config: Tau2Config, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        self._desk = DESKS[config.desk]
        self.tools = {
            each.name: DeskTool(each.name, each.schema, each.arguments, each.takes_model)
            for each in find_tools(self._desk).values()
        }

    def new_world(self, row: Tau2Request) -> Desk:
        """A desk at the beginning of a row; TaskError if its database is not here."""
        if row.database == "published":
            return self._desk(read_published(self.config.desk))
        return self._desk(row.database)

    async def verify(self, body: Tau2Request) -> VerifyResponse:
        expected = self.new_world(body)
        for action in body.actions:
            if action.name not in UNCHANGING:
                await self._act(expected, action)
        items = output_items(body.response)
        said = "\n".join(read_messages(items)).lower().replace(",", "")
        missing = [info for info in body.communicate_info if info.lower() not in said]
        left = [action.name for action in body.actions if not was_called(action, items)]
        is_right = self.world.db.equals(expected.db)
        parts = {"DB": is_right, "COMMUNICATE": not missing, "ACTION": not left}
        return body.scored(
            reward=float(all(parts[basis] for basis in body.reward_basis)),
            is_database_right=is_right,
            missing_info=missing,
            missing_actions=left,
        )

    async def _act(self, desk: Desk, action: Action) -> None:
        """Execute a right action; one that is refused changes nothing, as when an agent does it."""
        tool = self.tools.get(action.name)
        if tool is None:
            raise TaskError(f"actions: no tool '{action.name}'; there are: {', '.join(self.tools)}")
        try:
            method, arguments = Tool.bind(
                tool, desk, tool.parse(json.dumps(action.arguments).encode())
            )
            await method(*arguments)
        except ToolError:
            return


@cache
def read_published(desk: str) -> Database:
    """The database of τ²-bench; TaskError if its wheel was not fetched."""
    folder = cache_folder()
    try:
        with zipfile.ZipFile(folder / "benchmarks" / WHEEL if folder else WHEEL) as archive:
            return json.loads(gzip.decompress(archive.read(MEMBER.format(desk))))
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise TaskError(
            f"the database of τ²-bench is not here ({error}): ng_prepare_data"
            f" +benchmark=tau2_{desk} fetches it"
        ) from None


def read_messages(items: list[JsonObject]) -> list[str]:
    """What the agent has said to the user: the messages after its last call of each turn."""
    found = []
    for is_user, own in groupby(items, key=lambda item: item.get("role") == "user"):
        if not is_user:
            turn = list(own)
            last = max((at for at, item in enumerate(turn) if "call_id" in item), default=-1)
            found.append(assistant_text(turn[last + 1 :]))
    return found


def was_called(action: Action, items: list[JsonObject]) -> bool:
    """Whether a call has done an action. The order in lists does not matter."""
    for call in function_calls(items):
        if call.get("name") != action.name:
            continue
        if action.name == "transfer_to_human_agents" or action.compare_args == []:
            return True
        try:
            given: Mapping[str, Any] = arguments_of(call)
        except ToolError:
            continue
        wanted: Mapping[str, Any] = action.arguments
        if action.compare_args is not None:
            given, wanted = (
                {name: each.get(name) for name in action.compare_args} for each in (given, wanted)
            )
        if _sort(given) == _sort(wanted):
            return True
    return False


def _sort(value: Any) -> Any:
    """A value with its lists in one order."""
    if isinstance(value, Mapping):
        return {name: _sort(each) for name, each in value.items()}
    if isinstance(value, list):
        return sorted(
            (_sort(each) for each in value), key=lambda each: json.dumps(each, sort_keys=True)
        )
    return value
