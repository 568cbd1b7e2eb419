"""An office assistant with tools for mail, calendar, analytics, projects and customers.

The verdict executes the response's calls and the row's calls, each in a new office, and compares
the offices. So it needs only the stored response.
"""

import logging
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import orjson
from pydantic import BaseModel, ConfigDict, Field

from rollout_kit import (
    JsonObject,
    ResourcesServer,
    ResourcesServerConfig,
    Reverify,
    RunRequest,
    TaskError,
    ToolError,
    VerifyRequest,
    VerifyResponse,
    function_calls,
    output_items,
)
from rollout_kit.serving.tools import arguments_of

from .office import TOOLS, Office, OfficeTool
from .tables import load_tables

log = logging.getLogger(__name__)

OFFICE = Path(__file__).parent / "data" / "office"


MAX_CHECKED = 4096
"""Rows whose check is kept, because each repeat of a task asks for it."""


class WorkplaceAssistantConfig(ResourcesServerConfig):
    model_config = ConfigDict(extra="forbid")

    data_dir: str | None = Field(
        None,
        description="Folder with the CSV files of another office, such as NeMo Gym's csv_data.",
    )


class Call(BaseModel):
    """A call in a row; `arguments` is JSON text."""

    model_config = ConfigDict(extra="ignore")

    name: str
    arguments: str


class WorkplaceTask(RunRequest):
    """A row. `id`, `category` and `environment_name` are not used."""

    ground_truth: list[Call]

    @property
    def calls(self) -> list[JsonObject]:
        return [call.model_dump() for call in self.ground_truth]


class WorkplaceRequest(WorkplaceTask, VerifyRequest):
    """A row with its response."""


class WorkplaceAssistant(ResourcesServer):
    """Reward 1.0 if the response's calls leave the office like the row's calls, else 0.0."""

    Config = WorkplaceAssistantConfig
    reverify: ClassVar[Reverify | None] = "stateless"

    def __init__(self, config: WorkplaceAssistantConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        folder = Path(config.data_dir).expanduser() if config.data_dir else OFFICE
        self._tables = load_tables(folder)
        self._missing = lru_cache(MAX_CHECKED)(self._find_missing)

    async def start(self) -> None:
        if not self.config.data_dir:
            log.warning(
                "%s: verdicts are about the generated office; NeMo Gym's rows need its own: set"
                " data_dir to its folder csv_data",
                self.name,
            )

    async def seed_session(self, body: WorkplaceTask) -> JsonObject:
        """Open an office; refuse rows whose calls cannot be executed in it."""
        for number, call in enumerate(body.calls):
            try:
                if call["name"] not in TOOLS:
                    raise ToolError(f"unknown tool '{call['name']}'")
                TOOLS[call["name"]].parse(orjson.dumps(arguments_of(call)))
            except ToolError as error:
                raise TaskError(f"ground_truth.{number}: {error.message}") from None
        if missing := self._missing(orjson.dumps(body.calls)):
            raise TaskError(f"{missing} (data_dir sets another office)")
        self.state = Office(self._tables)
        return {}

    def _find_missing(self, calls: bytes) -> str:
        return Office(self._tables).find_missing(orjson.loads(calls))

    async def use(self, tool: OfficeTool, arguments: BaseModel) -> JsonObject:
        return {"output": self.state.use(tool, arguments)}

    async def verify(self, body: WorkplaceRequest) -> VerifyResponse:
        calls = function_calls(output_items(body.response))
        found = Office(self._tables).replay(calls)
        truth = Office(self._tables).replay(body.calls)
        return body.scored(reward=float(found.equals(truth)))


WorkplaceAssistant.tools = dict(TOOLS)
