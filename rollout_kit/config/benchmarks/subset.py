"""Some rows of a benchmark, or other worked examples, by its name:
`mmlu_pro:category=law+math:examples=0`.
"""

import copy

from ...errors import ConfigError
from ...types import JsonObject

NUMBERS = {"examples": "number", "examples_seed": "seed", "order_seed": "shuffle_seed"}
"""Words in a name that are no columns → the key that they set."""


def split_subset(name: str) -> tuple[str, list[str]]:
    """The name of a benchmark, and what follows it: `mmlu_pro:category=law+math:examples=0`."""
    first, *others = name.split(":")
    return first, others


def take_subset(where: str, content: JsonObject, subset: list[str]) -> JsonObject:
    """The definition of some of the rows, or with other examples or another order of options."""
    found = copy.deepcopy(content)
    for each in subset:
        column, sign, value = each.partition("=")
        if not sign or not value:
            raise ConfigError(f"{where}: {each!r} is no column=value, as in mmlu_pro:category=law")
        first, is_range, last = value.partition("..")
        if column in NUMBERS:
            _set_number(where, found, column, value)
        else:
            wanted = {"from": first, "before": last} if is_range else value.split("+")
            _choose_rows(where, found.setdefault("where", {}), column, wanted)
    return found


def _choose_rows(
    where: str, chosen: JsonObject, column: str, wanted: JsonObject | list[str]
) -> None:
    """Add a condition. One that the definition has for this column is never widened."""
    known = chosen.get(column, wanted)
    if isinstance(known, list) and isinstance(wanted, list):
        is_within = set(wanted) <= set(known)
    elif isinstance(known, dict) and isinstance(wanted, dict):
        is_within = known.get("from", "") <= wanted["from"] and wanted["before"] <= known.get(
            "before", wanted["before"]
        )
    else:
        is_within = False
    if not is_within:
        raise ConfigError(f"{where}: {column}: the definition has {known} only")
    chosen[column] = wanted


def _set_number(where: str, content: JsonObject, name: str, value: str) -> None:
    mapping = content.get("mapping")
    options = mapping.get("choices") if isinstance(mapping, dict) else None
    place = options if name == "order_seed" else content.get("examples")
    if not isinstance(place, dict) or not value.isdecimal():
        what = "options" if name == "order_seed" else "worked examples of the dataset"
        raise ConfigError(f"{where}: {name}={value}: needs a number, and a benchmark with {what}")
    place[NUMBERS[name]] = int(value)
