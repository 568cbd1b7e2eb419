"""Function calls as in BFCL: in one turn by their syntax, in several turns by what they change.

`gymnasium_agent` sends each step of the model to `/step`. In a worker process its calls are
executed, and the verdict is found: there the whole conversation is played again, so a stored
response has all that it needs.
"""

from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollout_kit import (
    JsonObject,
    ResourcesServer,
    Reverify,
    RunRequest,
    VerifyRequest,
    VerifyResponse,
    VerifyWorkersConfig,
    WorkerPool,
    function_calls,
    output_items,
)
from rollout_kit.responses import assistant_text
from rollout_kit.serving.service import post
from rollout_kit.types import Wire

WORKER_MEMORY_MB = 1024

MORE_TOOLS = "I have updated some more functions you can choose from. What about now?"
"""What the user says where a turn brings functions."""

Programs = Literal[
    *("GorillaFileSystem", "MathAPI", "MessageAPI", "TicketAPI"),
    *("TradingBot", "TravelAPI", "TwitterAPI", "VehicleControlAPI"),
]


class Parameter(BaseModel):
    """A parameter of a function: its type in BFCL's words, and that of the items of a list."""

    model_config = ConfigDict(extra="forbid")

    type: str
    items: str | None = None


class Function(BaseModel):
    """What the verdict needs of a function."""

    model_config = ConfigDict(extra="forbid")

    name: str
    parameters: dict[str, Parameter]
    required: list[str] = []


class BfclTask(RunRequest):
    """A row."""

    category: str
    kind: Literal["single_turn", "irrelevance", "relevance", "multi_turn"]
    mode: Literal["fc", "prompt"] = "fc"
    language: Literal["python", "java", "javascript"] = "python"
    functions: list[Function] = Field([])
    possible_answers: list[dict[str, dict[str, list[Any]]]] = Field([])
    involved_classes: list[Programs] = Field([])
    initial_config: dict[str, JsonObject] = Field({})
    long_context: bool = False
    ground_truth: list[list[dict[str, JsonObject]]] = Field([])
    turns: list[list[JsonObject]] = Field([], description="Messages of the turns after the first.")
    more_tools: dict[str, list[JsonObject]] = Field(
        {}, description="Turn → all tools from then on; in mode prompt, the new ones."
    )

    @model_validator(mode="after")
    def check_parts(self) -> "BfclTask":
        if self.kind == "multi_turn" and len(self.turns) + 1 != len(self.ground_truth):
            raise ValueError("ground_truth: it needs a list of calls for each turn")
        if self.kind == "single_turn" and not (self.possible_answers and self.functions):
            raise ValueError("possible_answers, functions: a row of one turn needs them")
        return self

    def to_work(self) -> JsonObject:
        """What a worker process needs of it."""
        names = {"kind", "mode", "language", "functions", "possible_answers", "involved_classes"}
        names |= {"initial_config", "long_context", "ground_truth"}
        return {**self.model_dump(include=names), "num_turns": len(self.turns) + 1}

    def list_parts(self) -> list[str]:
        """The parts of the score that it counts for."""
        is_live = self.category.startswith("live_") and self.kind == "single_turn"
        return [self.category, *(["live"] if is_live else [])]

    def find_message(self, turn: int) -> str:
        """What the user says in a turn after the first."""
        said = "\n".join(str(each["content"]) for each in self.turns[turn - 1])
        if (more := self.more_tools.get(str(turn))) is None:
            return said
        return MORE_TOOLS if self.mode == "fc" else f"{more}\n{MORE_TOOLS}"


class BfclRequest(BfclTask, VerifyRequest):
    """A row with its response."""


class StepRequest(Wire):
    """The model's latest step."""

    response: JsonObject


class Talk:
    """The state of a session."""

    def __init__(self, row: BfclTask) -> None:
        self.row = row
        self.steps: list[Any] = []
        self.turn = 0


class Bfcl(ResourcesServer):
    """Reward 1.0 if the calls are right, else 0.0."""

    Config = VerifyWorkersConfig
    reverify: ClassVar[Reverify | None] = "stateless"

    def __init__(self, config: VerifyWorkersConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        self._workers = WorkerPool(
            Path(__file__).with_name("worker.py"),
            "work",
            num_workers=config.num_verify_workers,
            deadline_s=config.verify_timeout_s,
            wall_deadline_s=config.verify_wall_timeout_s,
            max_memory_mb=WORKER_MEMORY_MB,
        )

    async def start(self) -> None:
        await self._workers.start()

    async def stop(self) -> None:
        await self._workers.close()

    async def seed_session(self, body: BfclTask) -> JsonObject:
        self.state = Talk(body)
        return {}

    @post("/reset")
    async def reset(self, body: JsonObject) -> JsonObject:
        """Begin: the row has the first message."""
        return {"observation": "", "info": {}}

    @post("/step")
    async def step(self, body: StepRequest) -> JsonObject:
        """Execute the calls of the latest step, or go on to the next message of the user."""
        talk: Talk = self.state
        items = output_items(body.response)
        if talk.row.kind != "multi_turn":
            return _answer(is_last=True)
        talk.steps.append(_read_step(items, talk.row.mode))
        try:
            done = await self._workers.call("play", talk.row.to_work(), talk.steps)
        except TimeoutError as error:
            return _answer(outputs=_write_outputs(items, [str(error)]), is_cut=True)
        outputs = _write_outputs(items, done["results"]) if talk.row.mode == "fc" else []
        if done["is_over"]:
            return _answer(outputs=outputs, is_cut=done["is_cut"], is_last=True)
        if done["turn"] == talk.turn:
            said = "" if talk.row.mode == "fc" else done["shown"]
            return _answer(said, outputs)
        talk.turn = done["turn"]
        more = talk.row.more_tools.get(str(talk.turn)) if talk.row.mode == "fc" else None
        return _answer(talk.row.find_message(talk.turn), outputs, tools=more)

    async def verify(self, body: BfclRequest) -> VerifyResponse:
        steps = read_steps(output_items(body.response), body.mode)
        try:
            problem, has_calls = await self._workers.call("judge", body.to_work(), steps)
        except TimeoutError as error:
            problem, has_calls = str(error), True
        reward = float(not problem)
        return body.scored(
            reward=reward,
            problem=problem or None,
            has_calls=float(has_calls),
            **{f"accuracy/{name}": reward for name in body.list_parts()},
        )


def _answer(
    observation: str = "",
    outputs: list[JsonObject] | None = None,
    *,
    is_last: bool = False,
    is_cut: bool = False,
    tools: list[JsonObject] | None = None,
) -> JsonObject:
    more = {"tools": tools} if tools is not None else {}
    return {
        "observation": observation,
        "reward": 0.0,
        "terminated": is_last and not is_cut,
        "truncated": is_cut,
        "info": {"tool_outputs": outputs or [], **more},
    }


def _write_outputs(items: list[JsonObject], results: list[str]) -> list[JsonObject]:
    """The result of each call of a step. Calls of a step that could not be read were not made."""
    calls = function_calls(items)
    if len(results) < len(calls):
        results = [*results, *["Error: the arguments of a call are no JSON object"] * len(calls)]
    pairs = zip(calls, results, strict=False)
    return [{"call_id": str(call.get("call_id")), "output": result} for call, result in pairs]


def _read_step(items: list[JsonObject], mode: str) -> Any:
    """A step as a worker process takes it: calls in mode fc, else a text."""
    if mode == "prompt":
        return assistant_text(items)
    return [
        {"name": str(call.get("name")), "arguments": call.get("arguments") or ""}
        for call in function_calls(items)
    ]


def read_steps(items: list[JsonObject], mode: str) -> list[Any]:
    """The steps of a response: what is between messages of the user and outputs of tools."""

    def is_own(item: JsonObject) -> bool:
        return item.get("role") != "user" and item.get("type") != "function_call_output"

    return [_read_step(list(found), mode) for own, found in groupby(items, key=is_own) if own]
