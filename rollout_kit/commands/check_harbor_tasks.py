"""ng_check_harbor_tasks: which tasks in Harbor's folders run here, and which lines prevent it."""

import asyncio
import json
import sys
from pathlib import Path

from ..authoring.harbor_check import CheckedTask, check_task, run_tasks
from ..config.keys import CheckHarborConfig
from ..errors import ConfigError, number_of
from ..serving.harbor.task_rows import read_collection
from . import entry


def main(words: list[str]) -> int:
    command = entry.parse_plain(words, CheckHarborConfig)
    if not command.inputs:
        raise ConfigError("name a folder with tasks: ng_check_harbor_tasks tasks/")
    tasks = read_collection(command.inputs, command.roots, Path.cwd(), command.allowed_hosts)
    checked = [check_task(task) for task in tasks]
    if command.run:
        asyncio.run(run_tasks(checked, command.roots, _tell))
    if command.json_output:
        print(json.dumps([each.to_json() for each in checked], indent=2))
    else:
        for each in checked:
            print("\n".join(_describe(each)))
        print(_summarize(checked))
    return 0 if all(each.is_sound for each in checked) else entry.FAILED


def _tell(one: CheckedTask) -> None:
    print(f"{one.task.name}: {_show_rewards(one)}", file=sys.stderr, flush=True)


def _show_rewards(one: CheckedTask) -> str:
    parts = [
        f"{label} {value:g}"
        for label, value in (("solution", one.gold), ("empty answer", one.empty))
        if value is not None
    ]
    return ", ".join(parts) or "no verdict"


def _describe(one: CheckedTask) -> list[str]:
    verdict = "runs" if one.runs else "does not run"
    steps = f", {len(one.task.steps)} steps" if len(one.task.steps) > 1 else ""
    played = f", {_show_rewards(one)}" if one.empty is not None else ""
    lines = [f"{one.task.folder}: {verdict}{steps}{played}"]
    return [*lines, *(f"  {each}" for each in one.problems), *_list_notes(one)]


def _list_notes(one: CheckedTask) -> list[str]:
    return [f"  note: {each}" for each in one.task.notes]


def _summarize(checked: list[CheckedTask]) -> str:
    number = sum(each.runs for each in checked)
    unsound = [each.task.name for each in checked if each.runs and not each.is_sound]
    found = f"{number:,} of {number_of(len(checked), 'task')} run here"
    if unsound:
        found += f"; in {', '.join(unsound[:5])} the solution is no better than doing nothing"
    return found
