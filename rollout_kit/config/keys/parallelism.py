"""The value of `num_samples_in_parallel`."""

from dataclasses import dataclass
from typing import Any

from pydantic_core import CoreSchema, core_schema


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Rollouts in flight: `start` at first, then between `floor` and `ceiling`."""

    floor: int
    start: int
    ceiling: int

    @classmethod
    def parse(cls, value: Any) -> "Parallelism":
        """A number, `auto`, or `min-start-max`; ValueError for anything else."""
        if isinstance(value, int) and not isinstance(value, bool):
            if value < 1:
                raise ValueError(f"must be at least 1, got {value}")
            return cls(value, value, value)
        if value == "auto":
            return AUTO
        try:
            floor, start, ceiling = map(int, str(value).split("-"))
        except ValueError:
            raise ValueError(
                f"give a number, auto, or min-start-max as in 4-64-1024, not {value!r}"
            ) from None
        if not 1 <= floor <= start <= ceiling:
            raise ValueError("of min-start-max, each must be at least the one before")
        return cls(floor, start, ceiling)

    @property
    def fixed(self) -> int | None:
        """The number of rollouts in flight if it never changes."""
        return self.start if self.floor == self.ceiling else None

    def spell(self) -> int | str:
        """The value as `parse` takes it."""
        if self == AUTO:
            return "auto"
        return self.fixed or f"{self.floor}-{self.start}-{self.ceiling}"

    def __repr__(self) -> str:
        return str(self.spell())

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else cls.parse(value),
            serialization=core_schema.plain_serializer_function_ser_schema(cls.spell),
        )


AUTO = Parallelism(1, 8, 4096)
"""It begins with few until it is known what the model holds."""
