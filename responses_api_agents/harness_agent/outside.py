"""A program that runs outside of its session, on this machine and with the rights of its user.

Each rollout has a folder with HOME, working folder and temporary files. The folder and all
processes end with the rollout. After a kill, the reaper ends the processes, and the next start
removes the folders.
"""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from rollout_kit.errors import TaskError
from rollout_kit.launch.processes import Reaper, spawn
from rollout_kit.serving.process_tree import MARK, may_run, read_start
from rollout_kit.serving.sandbox.session.doorway import OUTSIDE
from rollout_kit.serving.sandbox.session.output import HeadAndTail
from rollout_kit.serving.workers.environment import clean_environment
from rollout_kit.session import fresh_id
from rollout_kit.types import JsonObject

PREFIX = "rollout_kit_harness_"

OWN_HOME = "/root/"
"""How `files` name the program's HOME, as for one in a session."""


class OutsidePrograms:
    """The programs of one agent that run outside."""

    def __init__(self) -> None:
        self._reaper = Reaper()
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        await asyncio.to_thread(_remove_leftovers)
        await self._reaper.start()
        self._stack.push_async_callback(self._reaper.close)

    async def stop(self) -> None:
        await self._stack.aclose()

    @asynccontextmanager
    async def room(self) -> "AsyncIterator[OutsideRoom]":
        """Context with the folder of one rollout."""
        pid = os.getpid()
        name = f"{PREFIX}{pid}_{read_start(pid)}_"
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=name))
        try:
            yield OutsideRoom(folder, self._reaper)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


class OutsideRoom:
    """The folder of one rollout, and its program."""

    def __init__(self, folder: Path, reaper: Reaper) -> None:
        self.home = str(folder / "home")
        self._work, self._temporary = folder / "work", folder / "tmp"
        self._reaper = reaper
        for each in (Path(self.home), self._work, self._temporary):
            each.mkdir()

    async def run(self, asked: JsonObject) -> JsonObject:
        """What `run_program` of the shell does, here."""
        url = f"http://{asked['host']}:{asked['port']}"
        for path, text in asked["files"].items():
            await asyncio.to_thread(self._lay_out, path, text.replace(OUTSIDE, url))
        mark, kept, began = fresh_id(), HeadAndTail(asked["output_bytes"]), time.monotonic()
        given = {name: text.replace(OUTSIDE, url) for name, text in asked["environment"].items()}
        child = await spawn(
            ["bash", "-c", asked["command"]],
            {
                **clean_environment(),
                "HOME": self.home,
                "TMPDIR": str(self._temporary),
                MARK: mark,
                **given,
            },
            take=kept.add,
            mark=mark,
            cwd=self._work,
        )
        self._reaper.add(child)
        ended_by = ""
        try:
            async with asyncio.timeout(asked["time_limit_s"]):
                await child.wait()
        except TimeoutError:
            ended_by = "time"
        finally:
            await asyncio.shield(child.end())
            self._reaper.remove(child)
        return {
            "status": None if ended_by else child.process.returncode,
            "ended_by": ended_by,
            "stdout": kept.text(),
            "stderr": "",
            "duration_s": round(time.monotonic() - began, 3),
        }

    def _lay_out(self, path: str, text: str) -> None:
        home = Path(self.home)
        place = Path(os.path.normpath(home / path.removeprefix(OWN_HOME)))
        if not place.is_relative_to(home):
            raise TaskError(f"files: {path} is outside of HOME: write {OWN_HOME}…", status=400)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def _remove_leftovers() -> None:
    """Remove the folders of processes that have ended."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        pid, _, rest = path.name.removeprefix(PREFIX).partition("_")
        if pid.isdecimal() and not may_run(int(pid), rest.partition("_")[0]):
            shutil.rmtree(path, ignore_errors=True)
