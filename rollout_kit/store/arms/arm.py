"""An arm: one way of asking each task. It patches the row's prompt and create params."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Literal

from ...serving.endpoints.chat import RAW
from ...serving.endpoints.params import merge
from ...types import ArmInfo, Attempt, JsonObject, Key, Task
from .template import Prompt

NOT_SAMPLING = frozenset(
    {"input", "instructions", "tools", "metadata", "seed", "user", "stream", RAW}
)
"""Create params that say what is asked, not how the answer is sampled."""

DERIVED = "derived"

SEEDS = 2**31
"""Seeds are below this number: all engines take them."""


@dataclass(frozen=True, slots=True)
class Arm:
    """`repeats` None: as many as the command asks for."""

    id: str
    prompt: Prompt | None = None
    params: JsonObject = field(default_factory=dict)
    repeats: int | None = None
    tags: JsonObject = field(default_factory=dict)
    seed: int | Literal["derived"] | None = None
    """The seed of the first repeat; `derived`: from the run's seed, task, arm and repeat."""
    run_seed: int = 0
    overrides: JsonObject = field(default_factory=dict)
    """Create params of the command line, which replace those of the arm."""

    @property
    def settings(self) -> JsonObject:
        """What it adds to the settings that a rollout is generated with."""
        found: JsonObject = {"params": self.params} if self.params else {}
        if self.prompt is not None:
            found["prompt"] = self.prompt.settings()
        if self.seed is not None:
            found["seed"] = self.seed
        return {**found, "run_seed": self.run_seed} if self.seed == DERIVED else found

    @property
    def has_question(self) -> bool:
        return self.prompt is not None and self.prompt.has_question

    def patch(self, row: Mapping[str, Any]) -> JsonObject:
        """The create params of a row under this arm; ValueError if the row lacks a field."""
        params = merge(merge(row["responses_create_params"], self.params), self.overrides)
        if self.prompt is None:
            return dict(params)
        try:
            filled = self.prompt.fill(params, row)
        except ValueError as error:
            raise ValueError(f"arm '{self.id}': {error}") from None
        return {**{name: params[name] for name in params if name != RAW}, **filled}

    def attempt(self, key: Key, task: Task) -> Attempt:
        """The attempt at one rollout, with what its line records of the arm."""
        params = self.patch(task.row)
        if self.seed is not None and "seed" not in self.overrides:
            params["seed"] = self.seed_of(key)
        record: JsonObject = {"id": self.id}
        if self.tags:
            record["tags"] = self.tags
        if params.get("seed") is not None:
            record["seed"] = params["seed"]
        record["params"] = {
            name: value for name, value in params.items() if name not in NOT_SAMPLING
        }
        row = {**task.row, "responses_create_params": params}
        return Attempt(key, task._replace(row=row), arm=record)

    def seed_of(self, key: Key) -> int | None:
        if not isinstance(self.seed, str):
            return None if self.seed is None else self.seed + key.rollout_index
        text = f"{self.run_seed}:{key.task_id}:{self.id}:{key.rollout_index}"
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) % SEEDS


def order_by_prompt(arms: Sequence[Arm]) -> list[Arm]:
    """The arms with equal prompts beside each other, for the engine's prefix cache."""
    first: dict[Prompt | None, int] = {}
    for arm in arms:
        first.setdefault(_text(arm), len(first))
    return sorted(arms, key=lambda arm: first[_text(arm)])


def _text(arm: Arm) -> Prompt | None:
    return arm.prompt and replace(arm.prompt, name="")


def with_overrides(arms: Sequence[Arm], overrides: JsonObject, run_seed: int) -> list[Arm]:
    return [replace(arm, overrides=overrides, run_seed=run_seed) for arm in arms]


def arm_of(block: Any) -> ArmInfo | None:
    """The arm that a `rollout` block names; None if it has another form."""
    if not isinstance(block, dict) or not isinstance(block.get("id"), str):
        return None
    tags, params, seed = block.get("tags"), block.get("params"), block.get("seed")
    return ArmInfo(
        block["id"],
        tags if isinstance(tags, dict) else {},
        seed if isinstance(seed, int) else None,
        params if isinstance(params, dict) else {},
    )
