"""How many tasks ng_make_tasks makes of thirty packages: `python -m benchmarks.make_tasks FOLDER`.

Prints a line for each package: tests, tasks, and the time without downloads and installation of
packages. `--audit` runs every solution and an empty agent afterwards, and the scripted policy.
"""

import argparse
import asyncio
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rollout_kit.authoring.make_tasks import making
from rollout_kit.authoring.make_tasks.tasks import make_task_row
from rollout_kit.authoring.playing import play, serving_shell
from rollout_kit.config.keys import MakeTasksConfig
from rollout_kit.errors import ConfigError
from rollout_kit.serving.harbor.task_folder import HarborTask, read_task

PACKAGES = (
    *("xmltodict", "parse", "semver", "tinydb", "cachetools", "funcy", "voluptuous", "schema"),
    *("itsdangerous", "python-slugify", "inflection", "toolz", "first", "shortuuid", "munch"),
    *("addict", "glom", "humanize", "marshmallow", "boltons", "tabulate", "wcwidth", "sqlparse"),
    *("blinker", "more-itertools", "textdistance", "markdown", "packaging", "tomli"),
    *("idna", "pydash", "uritemplate", "rfc3986", "anytree", "webcolors", "cerberus", "isodate"),
    *("dpath", "ordered-set", "jsonpointer", "num2words", "unidecode", "pathspec", "aniso8601"),
)
"""More than thirty: some releases come without tests, and some suites take too long."""

MADE = re.compile(r"(\d+) tests? in ([\d.]+) s")


class Times:
    """What a package says of itself, with the time of each line; ConfigError if its suite takes
    longer than is counted."""

    def __init__(self, longest_s: float) -> None:
        self.longest_s = longest_s
        self.tests, self.suite_s, self.began = 0, 0.0, 0.0

    def say(self, text: str, **_: Any) -> None:
        if found := MADE.search(text):
            self.tests, self.suite_s = int(found[1]), float(found[2])
            if self.suite_s > self.longest_s:
                raise ConfigError(f"not counted: its suite takes {self.suite_s:.1f} s")
            self.began = time.perf_counter() - 3 * self.suite_s  # the suite has run three times


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("folder", type=Path)
    asked.add_argument("--packages", nargs="*", default=PACKAGES)
    asked.add_argument("--tasks", type=int, default=12, help="of each package")
    asked.add_argument("--longest", type=float, default=5.0, help="seconds of a suite")
    asked.add_argument("--most", type=int, default=30, help="packages with tasks")
    asked.add_argument("--audit", action="store_true")
    given = asked.parse_args()
    command = MakeTasksConfig(
        output_dir=given.folder, num_tasks=given.tasks, max_minutes=3, suite_timeout_s=60
    )
    given.folder.mkdir(parents=True, exist_ok=True)
    whole_s, num_tasks, num_packages = 0.0, 0, 0
    for name in given.packages:
        times = Times(given.longest)
        try:
            folders = asyncio.run(making.make_tasks(command, f"pypi:{name}", times.say))
        except ConfigError as error:
            print(f"{name:18} – {str(error)[:90]}", flush=True)
            continue
        spent = time.perf_counter() - times.began
        about = f"{times.tests:5} tests in {times.suite_s:4.1f} s  {len(folders):3} tasks"
        print(f"{name:18} {about} in {spent:5.0f} s", flush=True)
        if folders:
            whole_s, num_tasks = whole_s + spent, num_tasks + len(folders)
            num_packages += 1
        if num_packages >= given.most:
            break
    print(f"{num_tasks} tasks of {num_packages} packages in {whole_s / 60:.1f} minutes")
    if given.audit:
        command = ["ng_check_harbor_tasks", str(given.folder), "+run=true"]
        program = Path(sys.executable).with_name(command[0])
        subprocess.run([program, *command[1:]], check=False)
        tasks = [read_task(each.parent, {}) for each in sorted(given.folder.glob("*/task.toml"))]
        asyncio.run(play_scripted(given.folder, tasks))


async def play_scripted(folder: Path, tasks: list[HarborTask]) -> None:
    """The rewards of the policy that reverts each fault with chance 1/2."""
    rewards = []
    async with serving_shell(task_folders=[str(folder)]) as peers:
        for task in tasks:
            row = make_task_row(task, seed=0)
            rewards.append((await play(peers, row, row["scripted_items"]))["reward"])
    expected = sum(1 - task.toml.metadata["difficulty"] for task in tasks) / len(tasks)
    print(
        f"the scripted policy: mean reward {sum(rewards) / len(rewards):.3f} over {len(rewards)}"
        f" tasks, {expected:.3f} by their difficulty"
    )


if __name__ == "__main__":
    main()
