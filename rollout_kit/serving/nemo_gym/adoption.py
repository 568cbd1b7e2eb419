"""A server of a YAML file, run by our implementation of it or by NeMo Gym's code."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...types import JsonObject
from .. import registry
from . import models
from .checkout import Gym, GymServer
from .environment_servers import LISTS_DATASETS, implementations

NAMES_FILES = ("_fpath", "_path", "_paths", "prompt_config", "prepare_script")
"""Endings of keys whose values are files."""

FILES_OF = {"workplace_assistant": {"data_dir": "csv_data"}}
"""Settings of ours that name the data of NeMo Gym's server, without which its rows mean nothing."""

OF_OTHERS = {"harness_agent": "agent"}
"""Implementations that share only their name with one of ours → a key that only NeMo Gym's has."""

OF_TASKS = ("input_jsonl_fpath", "prompt_config")
"""Keys of a command that name a file."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """What runs, with which settings. `problems` tell of keys that have no counterpart here."""

    implementation: str
    given: JsonObject
    code: GymServer | None = None
    problems: list[str] = field(default_factory=list)


def adopt(name: str, type_: str, implementation: str, given: JsonObject, gym: Gym) -> Adopted:
    """Our implementation runs where there is one, unless the command prefers NeMo Gym's."""
    theirs = gym.find(type_, implementation)
    ours = models.name_ours(type_, implementation, given)
    is_ours = registry.find(type_, ours, gym.cwd) is not None
    is_other = OF_OTHERS.get(implementation) in given
    if theirs and (not is_ours or is_other or gym.prefers(name, implementation)):
        return Adopted(implementation, given, theirs)
    if not is_ours:
        return Adopted(implementation, given)
    settings, problems = models.translate(implementation, given)
    beside = [theirs.folder] if theirs else []
    if theirs:
        data = FILES_OF.get(implementation, {})
        settings = {**{key: str(theirs.folder / data[key]) for key in data}, **settings}
    return Adopted(ours, place_files(settings, gym, *beside), None, problems)


def place_data(tree: JsonObject, gym: Gym) -> None:
    """Give the files of tasks and prompts in `tree` the place that they have in the checkout."""
    tree |= place_files({key: tree[key] for key in OF_TASKS if key in tree}, gym)
    for block in tree.values():
        for type_ in LISTS_DATASETS:
            for _, settings in implementations(block, type_):
                if isinstance(settings.get("datasets"), list):
                    settings["datasets"] = place_files({"": settings["datasets"]}, gym)[""]


def place_files(given: JsonObject, gym: Gym, *beside: Path) -> JsonObject:
    """The settings with the files that they name in the checkout, or beside NeMo Gym's server."""

    def place(key: str, value: Any) -> Any:
        if isinstance(value, str) and key.endswith(NAMES_FILES):
            return str(gym.find_file(value, *beside) or value)
        if isinstance(value, dict):
            return {inner: place(inner, one) for inner, one in value.items()}
        return [place(key, one) for one in value] if isinstance(value, list) else value

    return {key: place(key, value) for key, value in given.items()} if gym.root else given
