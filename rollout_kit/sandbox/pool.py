"""Run code that a model wrote, each time in a fork of a prepared, isolated interpreter.

The code controls its own output, so callers compare the output themselves and never trust a
verdict computed inside a run.
"""

import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import orjson

from ..errors import ConfigError
from .keeper import Zygote
from .limits import SandboxError, SandboxLimits, SandboxRun
from .protections import Protections, probe_protections

log = logging.getLogger(__name__)

START_S = 30.0
"""Time limit for starting a zygote."""


class Sandbox:
    """Executes at most `num_processes` runs at a time, each in a zygote of its own.

    Runs may read and import from `folders`. If an essential protection does not work, `start`
    raises ConfigError, unless `unsafe` is set.
    """

    def __init__(
        self,
        num_processes: int = 2,
        *,
        folders: Sequence[Path] = (),
        unsafe: bool = False,
    ) -> None:
        self._folders = [str(folder.resolve()) for folder in folders]
        self._unsafe = unsafe
        self._kind = "isolated"
        self._free = asyncio.Semaphore(num_processes)
        self._idle: list[Zygote] = []
        self._busy: set[Zygote] = set()
        self._is_closed = False
        self.protections = Protections()

    async def start(self) -> None:
        """Start the first zygote and test the protections; other zygotes start on demand."""
        refusal = "it does not run Linux" if sys.platform != "linux" else ""
        if not refusal:
            try:
                self._idle.append(await self._start_zygote())
            except SandboxError as error:
                refusal = str(error)
        if refusal and self._unsafe and sys.platform == "linux":
            self._kind = "bare"
            self._idle.append(await self._start_zygote())
        if self._idle:
            self.protections = await probe_protections(self)
            level = logging.WARNING if self.protections.missing else logging.INFO
            log.log(level, "sandbox: %s", self.protections)
        missing = self.protections.missing
        if (refusal or missing) and not (self._unsafe and self._idle):
            await self.close()
            raise ConfigError(_describe_refusal(refusal, missing))

    async def run(
        self,
        code: str,
        *,
        stdin: str = "",
        function: str | None = None,
        arguments: Sequence[Any] = (),
        starter: bool = False,
        limits: SandboxLimits = SandboxLimits(),
    ) -> SandboxRun:
        """Execute `code` as a program; then call `function`, if given, of its class `Solution` or
        of the module. With `starter`, LiveCodeBench's imports are available. Raise SandboxError if
        the sandbox itself fails."""
        program = {"code": code, "function": function, "arguments": arguments, "starter": starter}
        raw = orjson.dumps(program)
        text = stdin.encode("utf-8", "surrogatepass")
        async with self._free:
            try:
                return await self._once(raw, text, function is None, limits)
            except SandboxError:  # something killed the zygote, perhaps for lack of memory
                if self._is_closed:
                    raise
                return await self._once(raw, text, function is None, limits)

    async def _once(
        self, program: bytes, stdin: bytes, with_stdout: bool, limits: SandboxLimits
    ) -> SandboxRun:
        zygote = self._idle.pop() if self._idle else await self._start_zygote()
        self._busy.add(zygote)
        is_sound = False
        try:
            run = await zygote.run(program, stdin, with_stdout, limits)
            is_sound = True
            return run
        finally:
            self._busy.discard(zygote)
            if is_sound:
                self._idle.append(zygote)
            else:
                await zygote.kill()

    async def _start_zygote(self) -> Zygote:
        zygote = Zygote(self._kind, self._folders)
        try:
            async with asyncio.timeout(START_S):
                told = await zygote.receive()
        except BaseException as error:
            await zygote.kill()
            if isinstance(error, TimeoutError):
                raise SandboxError(f"a zygote did not start within {START_S:g} s") from None
            raise
        if problem := told.get("error"):
            await zygote.kill()
            raise SandboxError(problem)
        return zygote

    async def close(self) -> None:
        """Kill every run and every zygote."""
        self._is_closed = True
        idle, self._idle = self._idle, []
        for zygote in [*idle, *self._busy]:
            await zygote.kill()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _describe_refusal(refusal: str, missing: Sequence[str]) -> str:
    found = refusal or f"missing: {', '.join(missing)}"
    return (
        f"code that a model wrote cannot be run safely on this machine ({found}). The sandbox "
        "needs user namespaces, or root with CAP_SYS_ADMIN; in Docker: docker run "
        "--security-opt seccomp=unconfined --security-opt apparmor=unconfined. To run the code "
        "without a sandbox, with all rights of this process: +unsafe_code=true"
    )
