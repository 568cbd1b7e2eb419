"""A collection of Harbor's folders as the definition of a benchmark: `+harbor_tasks=<folder>`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import ConfigError
from ...serving.harbor.task_folder import find_tasks
from ...types import JsonObject
from ..keys import Command
from .definition import HARBOR, Definition, read_definition

KEY = "harbor_tasks"


def define_harbor(
    folders: str | Sequence[str],
    roots: Mapping[str, str],
    cwd: Path | None = None,
    *,
    with_gold: bool = False,
) -> Definition:
    """The definition whose rows are the tasks at or below the folders."""
    given = [folders] if isinstance(folders, str) else list(folders)
    paths = [(cwd or Path.cwd()) / Path(each).expanduser() for each in given]
    for path in paths:
        if not path.is_dir():
            raise ConfigError(f"{KEY}: there is no folder {path}")
    number = sum(len(find_tasks(path)) for path in paths)
    if not number:
        raise ConfigError(f"{KEY}: no folder with a task.toml in {', '.join(map(str, paths))}")
    source: JsonObject = {"type": HARBOR, "folder": [str(path.resolve()) for path in paths]}
    if with_gold:
        source["with_gold"] = True
    about = {
        "name": HARBOR,
        "about": "tasks in Harbor's folders",
        "source": source,
        "rows": number,
        "verifier": {"shell": {"roots": dict(roots)} if roots else {}},
        "metric": "avg@1",
        "license": "of each task",
        "citation": "",
        "follows": "the folders",
        "path": paths[0],
        "digest": "",
    }
    return Definition.model_validate(about)


def find_own(command: Command, cwd: Path | None = None) -> Definition | None:
    """The definition whose rows a command needs; None if it needs none of ours. An audit gets the
    solutions of folders too."""
    with_gold = not command.asks_policy
    if folders := getattr(command, KEY, None):
        return define_harbor(folders, getattr(command, "roots", {}), cwd, with_gold=with_gold)
    name = getattr(command, "benchmark", None)
    found = read_definition(name, cwd) if name else None
    return found.for_audit() if found is not None and with_gold else found
