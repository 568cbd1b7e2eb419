"""The sessions of each root, and the tasks of folders that rows name."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import TaskError
from ...types import Say
from ..sandbox.container import Container
from ..sandbox.roots.build import CannotBuild, Root, build_root
from ..sandbox.roots.dockerfile import Recipe
from ..sandbox.session.client import Sessions
from .task_folder import HarborTask, read_task, sign
from .task_toml import PhaseNetwork

MAX_ROOTS = 32
"""Roots with a process that makes sessions; the one that was not used for longest goes first."""


class Grounds:
    """Reads the tasks below `task_folders` and builds their roots. All sessions end with
    `close`."""

    def __init__(
        self,
        task_folders: Sequence[str],
        roots: Mapping[str, str],
        packages: Sequence[str],
        *,
        allowed_hosts: Sequence[str] = (),
        folders: Mapping[str, str] | None = None,
        container: Container | None = None,
        say: Say,
    ) -> None:
        self._task_folders = [Path(each).expanduser().resolve() for each in task_folders]
        self._roots, self._packages = roots, packages
        self._allowed, self._folders, self._say = list(allowed_hosts), folders, say
        self._container = container
        self._open: OrderedDict[tuple[str, ...], Sessions] = OrderedDict()
        self._opening = asyncio.Lock()
        self._tasks: dict[Path, tuple[str, HarborTask]] = {}

    async def read(self, named: str, digest: str) -> HarborTask:
        """The task of a row; TaskError if its folder is another one, or cannot be run."""
        folder = await asyncio.to_thread(Path(named).resolve)
        if not any(folder.is_relative_to(each) for each in self._task_folders):
            raise TaskError(f"{named} is not below one of task_folders, which rows may name")
        if not await asyncio.to_thread(folder.is_dir):
            raise TaskError(f"there is no folder {named} on the machine of the server")
        signed = await asyncio.to_thread(sign, folder)
        known = self._tasks.get(folder)
        if known is None or known[0] != signed:
            task = await asyncio.to_thread(read_task, folder, self._roots, self._allowed)
            known = self._tasks[folder] = (signed, task)
        task = known[1]
        if digest and digest != task.digest:
            raise TaskError(f"{named} has changed since its row was made")
        if task.problems:
            raise TaskError(f"{named} does not run here: {task.problems[0]}")
        return task

    async def build(self, recipe: Recipe, name: str) -> Root:
        try:
            return await build_root(recipe, self._roots, self._packages, self._say, name)
        except CannotBuild as error:
            raise TaskError(f"its root cannot be built: {error}") from None

    def allow(self, phase: PhaseNetwork, environment: PhaseNetwork) -> list[str]:
        """The hosts that a phase reaches. The owner allows them, as far as a task asks for them."""
        mode = phase.network_mode or environment.network_mode or "public"
        hosts = phase.allowed_hosts or environment.allowed_hosts or []
        return {"public": self._allowed, "allowlist": hosts}.get(mode, [])

    async def find_sessions(self, root: Root) -> Sessions:
        """What makes the sessions of a root."""
        key = (str(root.folder), *map(str, root.layers))
        async with self._opening:
            if key in self._open:
                self._open.move_to_end(key)
                return self._open[key]
            packages = () if root.folder else self._packages
            made = Sessions(
                root.folder,
                packages,
                folders=self._folders,
                layers=root.layers,
                container=self._container,
            )
            await made.start()
            self._open[key] = made
            for old in list(self._open)[:-MAX_ROOTS]:
                if not self._open[old].num_open:
                    await self._open.pop(old).close()
            return made

    async def close(self) -> None:
        for each in self._open.values():
            await each.close()
        self._open.clear()
