"""What a line's head holds, read from its one declaration, `RolloutInfo`.

From it are made: the reader of heads, the columns of the index, the numbers of the metrics, the
names that filters know, and the reference.
"""

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from ..types import HeadField, RolloutInfo

OF_NUMBER = frozenset({int, float, type(None)})
"""Types of which a field that must be a number is made."""

DEFAULTS: Mapping[str, Any] = {"attempt": 1, "replay_differences": 0}
"""Values of fields that a line lacks, where it is not None for a number and "" for a text."""


class Field:
    """One field of the head."""

    def __init__(self, name: str, hint: Any) -> None:
        kind, declared = get_args(hint)
        types = set(get_args(kind)) or {kind}
        self.name: Final[str] = name
        self.declared: Final[HeadField] = declared
        self.types: Final = types
        self.is_number = types <= OF_NUMBER
        self.is_whole = self.is_number and float not in types
        self.default = DEFAULTS.get(name, "" if types == {str} else None)

    @property
    def type_name(self) -> str:
        """The type, as the reference names it."""
        names = {int: "whole number", float: "number", str: "text", type(None): "null"}
        return " or ".join(text for kind, text in names.items() if kind in self.types)


FIELDS = [
    Field(name, hint)
    for name, hint in get_type_hints(RolloutInfo, include_extras=True).items()
    if get_origin(hint) is Annotated
]
"""In the order of `RolloutInfo`: those of the `rollout` block, then those of `usage`."""

USAGE = ("input_tokens", "output_tokens", "total_tokens")

BLOCK_FIELDS = [field for field in FIELDS if field.name not in USAGE]
"""Fields of the `rollout` block."""

BLOCK_NAMES = tuple(field.name for field in BLOCK_FIELDS)
BLOCK_DEFAULTS = tuple(field.default for field in BLOCK_FIELDS)

NUMBERS = tuple(field.name for field in BLOCK_FIELDS if field.is_number)
"""Fields of the `rollout` block that must be numbers."""

TEXTS = tuple(field.name for field in BLOCK_FIELDS if str in field.types and int not in field.types)
"""Fields of the `rollout` block that are texts."""

LATENCIES = {field.declared.latency: field.name for field in FIELDS if field.declared.latency}
"""Latencies of the metrics file → the fields that have them."""

MEANS = tuple(field.name for field in FIELDS if field.declared.is_mean)
"""Fields whose means the metrics have."""

COLUMNS = [field for field in FIELDS if field.declared.is_column]
TEXT_COLUMNS = tuple(field.name for field in COLUMNS if not field.is_number)
COUNT_COLUMNS = tuple(field.name for field in COLUMNS if field.is_whole)
NUMBER_COLUMNS = tuple(field.name for field in COLUMNS if field.is_number and not field.is_whole)
"""Columns of the index, by what they hold."""


def values_of(names: tuple[str, ...]) -> Callable[[RolloutInfo], tuple[Any, ...]]:
    """A function that gives the values of two or more fields of a head."""
    return itemgetter(*map(RolloutInfo._fields.index, names))


def describe() -> list[tuple[str, str, str]]:
    """Name, type and meaning of each field of the head, for the reference."""
    return [(each.name, each.type_name, each.declared.about) for each in FIELDS]
