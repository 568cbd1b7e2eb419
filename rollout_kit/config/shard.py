"""The value of `shard`: a part of a collection whose parts run apart from each other."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import CoreSchema, core_schema

SLURM = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX")
KUBERNETES = "JOB_COMPLETION_INDEX"

HASH_BITS = 64
"""Of the task ids, which are hashes of the tasks' content."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `number` (from 1) of `count`. All rollouts of a task are in one part."""

    number: int
    count: int

    @classmethod
    def parse(cls, value: Any, env: Mapping[str, str] = os.environ) -> "Shard":
        """`3/10`, `auto` in a Slurm array, or `auto/10` in an indexed job; else ValueError."""
        first, slash, rest = str(value).partition("/")
        try:
            count = int(rest) if slash else None
            number = int(first) if first != "auto" else None
        except ValueError:
            raise ValueError(f"give 3/10, auto or auto/10, not {value!r}") from None
        if number is None:
            number, count = _from_scheduler(env, count)
        if count is None:
            raise ValueError(f"of how many? Give {number}/10, not {value!r}")
        if count < 1:
            raise ValueError(f"there is at least one part, got {count}")
        if not 1 <= number <= count:
            raise ValueError(f"parts are numbered from 1 to {count}, got {number}")
        return cls(number, count)

    def has(self, task_id: str) -> bool:
        """Whether a task belongs to this part."""
        return (int(task_id, 16) * self.count >> HASH_BITS) == self.number - 1

    def path_of(self, output: Path) -> Path:
        """The file of this part: `rollouts-03-of-10.jsonl` of `rollouts.jsonl`."""
        digits = len(str(self.count))
        suffix = f"-{self.number:0{digits}}-of-{self.count}"
        name = output.name.removesuffix(".jsonl")
        return output.with_name(f"{name}{suffix}.jsonl") if name != output.name else output

    def spell(self) -> str:
        return f"{self.number}/{self.count}"

    def __str__(self) -> str:
        return f"part {self.number} of {self.count}"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else cls.parse(value),
            serialization=core_schema.plain_serializer_function_ser_schema(cls.spell),
        )


def _from_scheduler(env: Mapping[str, str], count: int | None) -> tuple[int, int | None]:
    """Number and count of this job among those of its array."""
    found = [env.get(name, "") for name in SLURM]
    if all(each.isdecimal() for each in found):
        task, first, last = map(int, found)
        step = int(env.get("SLURM_ARRAY_TASK_STEP") or 1)
        return (task - first) // step + 1, count or (last - first) // step + 1
    if (index := env.get(KUBERNETES, "")).isdecimal():
        if count is None:
            raise ValueError(f"{KUBERNETES} does not tell how many parts there are: give auto/10")
        return int(index) + 1, count
    raise ValueError(
        f"auto reads {SLURM[0]} (Slurm) or {KUBERNETES} (Kubernetes), and neither is set here:"
        " give 3/10"
    )
