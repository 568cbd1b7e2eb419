"""Runs of code that a model wrote, each in a fork of a warm interpreter in a closed room.

What comes of a run is what its code wanted to come of it; so a verdict is made of it out here, by
comparing, and never taken from it.
"""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import orjson

from ..errors import ConfigError
from ..workers.warm import WarmPool
from .keeper import Zygote
from .limits import Limits, Run, SandboxError
from .protections import Protections, probed

log = logging.getLogger(__name__)


class Sandbox:
    """At most `num_processes` runs at a time, in as many warm zygotes.

    `folders` may be read and imported from. Without the essential protections `start` raises
    ConfigError, unless `unsafe`.
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
        self._zygotes = WarmPool(num_processes, lambda: Zygote(self._kind, self._folders))
        self.protections = Protections()

    async def start(self) -> None:
        """Start the first zygote and try out what holds; the others start when they are needed."""
        if sys.platform != "linux":
            raise ConfigError(_refused("this is not Linux", []))
        refusal = ""
        try:
            await self._zygotes.start(1)
        except SandboxError as error:
            if not self._unsafe:
                raise ConfigError(_refused(str(error), [])) from None
            refusal, self._kind = str(error), "bare"
            await self._zygotes.start(1)
        self.protections = await probed(self)
        missing = self.protections.missing
        log.log(logging.WARNING if missing else logging.INFO, "sandbox: %s", self.protections)
        if missing and not self._unsafe:
            await self.close()
            raise ConfigError(_refused(refusal, missing))

    async def run(
        self,
        code: str,
        *,
        stdin: str = "",
        function: str | None = None,
        arguments: Sequence[Any] = (),
        starter: bool = False,
        limits: Limits = Limits(),
    ) -> Run:
        """Execute `code` as a program, and then call its `function` (of `Solution`, if it has one)
        where one is named. `starter`: with LiveCodeBench's imports. SandboxError when the sandbox
        fails."""
        program = {"code": code, "function": function, "arguments": arguments, "starter": starter}
        raw = orjson.dumps(program)
        text = stdin.encode("utf-8", "surrogatepass")
        try:
            return await self._run_once(raw, text, function is None, limits)
        except SandboxError:  # the zygote may have been killed from outside, to free memory
            if self._zygotes.is_closed:
                raise
            return await self._run_once(raw, text, function is None, limits)

    async def _run_once(
        self, program: bytes, stdin: bytes, with_stdout: bool, limits: Limits
    ) -> Run:
        async with self._zygotes.lease() as zygote:
            return await zygote.run(program, stdin, with_stdout, limits)

    async def close(self) -> None:
        """End every run and every zygote."""
        await self._zygotes.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _refused(refusal: str, missing: Sequence[str]) -> str:
    found = refusal or f"missing: {', '.join(missing)}"
    return (
        f"code that a model wrote cannot be run safely on this machine ({found}). It takes user "
        "namespaces, or root with CAP_SYS_ADMIN: in a container, for instance, docker run "
        "--security-opt seccomp=unconfined --security-opt apparmor=unconfined. To run it all the "
        "same, with all rights of this process: +unsafe_code=true"
    )
