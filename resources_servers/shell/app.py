"""A shell whose state lives as long as a rollout, and a verifier over the files in the end.

A session is a sandbox of its own: it starts from this machine's programs and the files of the row,
and ends with the rollout.
"""

import asyncio
import logging
import runpy
from collections.abc import Callable
from typing import Any, ClassVar

from pydantic import ValidationError

from rollout_kit import (
    ConfigError,
    JsonObject,
    Reverify,
    SeedSessionResponse,
    TaskError,
    ToolError,
    VerifyError,
    VerifyResponse,
)
from rollout_kit.errors import validation_summary
from rollout_kit.serving.harbor.grounds import Grounds
from rollout_kit.serving.sandbox.limits import SandboxError
from rollout_kit.serving.sandbox.session.bounds import (
    SessionEnded,
    SessionLimits,
    SessionRefused,
)
from rollout_kit.serving.sandbox.session.client import Sessions, ShellSession
from rollout_kit.serving.service import post

from .calls import Room, ShellConfig, ShellTools
from .harbor import HarborRoom
from .programs import PackRequest, ProgramRequest, pack_files, run_program
from .rows import (
    CommandVerifier,
    FilesVerifier,
    HarborVerifier,
    ShellRequest,
    Start,
    read_harbor,
    read_start,
)
from .verifying import Judged, call_function, compare_files, run_command

log = logging.getLogger(__name__)


class Shell(ShellTools):
    """Reward 1.0 if the verifier of the row accepts the session's final files, else 0.0; or the
    number that it gives."""

    Config = ShellConfig
    reverify: ClassVar[Reverify | None] = "replay"
    measured: ClassVar[frozenset[str]] = frozenset({"verifier_output"})
    functions: ClassVar[dict[str, Callable[..., Any]]] = {}
    """Verifiers that rows can name, next to those of functions_fpath."""

    def __init__(self, config: ShellConfig, peers: Any, name: str) -> None:
        super().__init__(config, peers, name)
        self._functions = dict(self.functions)
        self._limits = SessionLimits(
            time_s=config.session_time_s,
            memory_mb=config.memory_mb,
            disk_mb=config.disk_mb,
            num_processes=config.num_processes,
        )
        self._machine = Sessions(
            config.root,
            config.packages,
            folders=config.folders,
            limits=self._limits,
            num_ready=config.num_ready,
            container=config.container,
        )
        self._grounds = Grounds(
            config.task_folders,
            config.roots,
            config.packages,
            allowed_hosts=config.allowed_hosts,
            folders=config.folders,
            container=config.container,
            say=lambda text, **_: log.warning("%s", text),
        )

    async def start(self) -> None:
        if (path := self.config.functions_fpath) is not None:
            if not path.is_file():
                raise ConfigError(f"{self.name}: functions_fpath: there is no file {path}")
            found = await asyncio.to_thread(runpy.run_path, str(path))
            self._functions |= {name: each for name, each in found.items() if callable(each)}
        await self._machine.start()

    async def stop(self) -> None:
        await self._grounds.close()
        await self._machine.close()

    def check_row(self, row: JsonObject) -> None:
        super().check_row(row)
        wanted = row.get("verifier") or row.get("verifier_metadata", {}).get("verifier", {})
        if wanted.get("kind") == "function" and wanted["name"] not in self._functions:
            where = (
                "functions_fpath" if self.config.functions_fpath else "functions_fpath (not set)"
            )
            raise TaskError(f"there is no function '{wanted['name']}' in {where}")

    async def seed_session(self, body: JsonObject) -> SeedSessionResponse:
        given = {**(body.get("verifier_metadata") or {}), **body}
        try:
            start, wanted = read_start(given), read_harbor(given)
        except ValidationError as error:
            raise TaskError(validation_summary(error)) from None
        if wanted is not None:
            task = await self._grounds.read(wanted.folder, wanted.digest)
            self.state = await HarborRoom.open(task, self._grounds, self.config)
        else:
            self.state = Room(await self._open(start))
        return SeedSessionResponse()

    async def _open(self, start: Start) -> ShellSession:
        session = await self._machine.create(
            self._limits, cwd=start.workdir, environment=start.environment
        )
        try:
            await session.exec('mkdir -p "$D"', cwd="/", environment={"D": start.workdir})
            for path, text in start.files.items():
                await session.write_bytes(path, text.encode())
            if start.setup:
                done = await session.exec(start.setup, timeout_s=self.config.max_command_timeout_s)
                if done.status:
                    why = f"setup ended with status {done.status}: {done.stderr[-500:]}"
                    raise TaskError(why, server=self.name)
            await session.seal()
        except SessionRefused as error:
            session.close()
            raise TaskError(f"the row's files cannot be written: {error}") from None
        except BaseException:
            session.close()
            raise
        return session

    @post("/run_program")
    async def run_program(self, body: ProgramRequest) -> JsonObject:
        """Run a program that brings its own loop; how it ended, and what it printed."""
        return await run_program(self.state.kept, body)

    @post("/pack_files")
    async def pack_files(self, body: PackRequest) -> JsonObject:
        """The files of the session as they are now, from which `run_program` can start."""
        try:
            return await pack_files(self.state.kept, body)
        except SandboxError as error:
            raise ToolError(f"the files cannot be packed: {error}") from None

    async def close_session(self, body: JsonObject) -> JsonObject:
        await self.state.close()
        return {}

    async def verify(self, body: ShellRequest) -> VerifyResponse:
        session = self.state.kept
        try:
            session.user = ""
            await session.end_processes()
            most = self.config.patch_bytes
            patch = await session.patch("/", most) if most else None
            judged = await self._judge(body, session)
        except SessionEnded as error:
            return body.scored(reward=0.0, patch=None, verifier_error=str(error))
        except SandboxError as error:
            raise VerifyError(f"the session failed: {error}") from error
        return body.scored(reward=judged.reward, patch=patch, **judged.details)

    async def _judge(self, body: ShellRequest, session: ShellSession) -> Judged:
        wanted = body.verifier
        if isinstance(wanted, HarborVerifier):
            return await self.state.judge()
        if isinstance(wanted, CommandVerifier):
            fresh = await self._open(body)
            try:
                return await run_command(wanted, body, session, fresh)
            finally:
                fresh.close()
        if isinstance(wanted, FilesVerifier):
            return await compare_files(wanted, session)
        return await call_function(wanted, self._functions, body, session)
