"""ng_make_tasks: make tasks of packages that have tests."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from ..authoring.make_tasks.making import make_tasks
from ..authoring.make_tasks.tasks import make_task_row
from ..config.keys import MakeTasksConfig
from ..errors import ConfigError, number_of
from ..serving.harbor.task_folder import find_tasks, read_task
from . import entry


def main(words: list[str]) -> int:
    command = entry.parse_plain(words, MakeTasksConfig)
    if not command.inputs:
        raise ConfigError("name a package: ng_make_tasks pypi:<name>, or the folder of a project")
    command.output_dir.mkdir(parents=True, exist_ok=True)
    counts, failures = dict[str, int](), dict[str, str]()
    for given in command.inputs:
        try:
            counts[given] = len(asyncio.run(make_tasks(command, given, _say)))
        except ConfigError as error:
            failures[given] = str(error)
            _say(str(error))
    path, number = _write_rows(command)
    if command.json_output:
        found = {"tasks": counts, "failures": failures, "rows": str(path), "num_rows": number}
        print(json.dumps(found))
    else:
        print(f"{number_of(sum(counts.values()), 'task')} of {number_of(len(counts), 'package')}")
        print(f"Rows of {number_of(number, 'task')}: {path}")
        print(f"Run them: ng_collect_rollouts +harbor_tasks={command.output_dir} ...")
    return entry.FAILED if failures or not number else 0


def _write_rows(command: MakeTasksConfig) -> tuple[Path, int]:
    """The rows of all tasks in the folder, of this command or an earlier one."""
    path, folders = command.output_dir / "rows.jsonl", find_tasks(command.output_dir)
    with path.open("w") as file:
        for folder in folders:
            row = make_task_row(read_task(folder, {}), command.seed)
            file.write(json.dumps(row) + "\n")
    return path, len(folders)


def _say(text: str, **_: Any) -> None:
    print(text, file=sys.stderr, flush=True)
