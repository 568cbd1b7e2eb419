"""Run code that a model wrote, each time in a fork of a prepared, isolated interpreter.

The code controls its own output, so callers compare the output themselves and never trust a
verdict computed inside a run.
"""

import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from ..errors import ConfigError
from ..workers.warm import WarmPool
from .keeper import Zygote
from .limits import SandboxError, SandboxLimits, SandboxRun
from .protections import Protections, probe_protections

log = logging.getLogger(__name__)


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
        self._zygotes = WarmPool(num_processes, lambda: Zygote(self._kind, self._folders))
        self.protections = Protections()

    async def start(self) -> None:
        """Start the first zygote and test the protections; other zygotes start on demand."""
        if sys.platform != "linux":
            raise ConfigError(_describe_refusal("it does not run Linux", []))
        refusal = ""
        try:
            await self._zygotes.start(1)
        except SandboxError as error:
            if not self._unsafe:
                raise ConfigError(_describe_refusal(str(error), [])) from None
            refusal, self._kind = str(error), "bare"
            await self._zygotes.start(1)
        self.protections = await probe_protections(self)
        missing = self.protections.missing
        log.log(logging.WARNING if missing else logging.INFO, "sandbox: %s", self.protections)
        if missing and not self._unsafe:
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
        raw = json.dumps(program).encode()  # orjson refuses long integers and lone surrogates
        text = stdin.encode("utf-8", "surrogatepass")
        try:
            return await self._run_once(raw, text, function is None, limits)
        except SandboxError:  # the zygote may have been killed from outside, to free memory
            if self._zygotes.is_closed:
                raise
            return await self._run_once(raw, text, function is None, limits)

    async def _run_once(
        self, program: bytes, stdin: bytes, with_stdout: bool, limits: SandboxLimits
    ) -> SandboxRun:
        async with self._zygotes.lease() as zygote:
            return await zygote.run(program, stdin, with_stdout, limits)

    async def close(self) -> None:
        """Kill every run and every zygote."""
        await self._zygotes.close()

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
