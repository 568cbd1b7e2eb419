"""Run code that a model wrote, each time in a fork of a prepared, isolated interpreter.

The code controls its own output, so callers compare the output themselves and never trust a
verdict computed inside a run.
"""

import json
import logging
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from ...errors import ConfigError
from ...types import JsonObject
from ..workers.warm import WarmPool
from .container import Container, ContainerZygote
from .keeper import Zygote
from .limits import SandboxError, SandboxLimits, SandboxRun
from .protections import Protections, probe_protections
from .zygote import PACKAGES

log = logging.getLogger(__name__)

NAME = re.compile(r"[\w.-]*")
"""A package's name, at the start of a requirement."""


NO_SANDBOX = (
    "code that a model wrote cannot be run safely on this machine ({found}). The sandbox needs user"
    " namespaces, or root with CAP_SYS_ADMIN; in Docker: docker run --security-opt"
    " seccomp=unconfined --security-opt apparmor=unconfined.{more} To run the code without a"
    " sandbox, with all rights of this process: +unsafe_code=true"
)

IN_A_CONTAINER = " With Podman or Docker, container_image: python:3.12-slim runs it in a container."


class Sandbox:
    """Executes at most `num_processes` runs at a time, each in a zygote of its own.

    Runs may read and import from `folders`, and import those of the `packages` that are installed
    here; `versions` has them. With a `container`, runs import what its image has. If an essential
    protection does not work, `start` raises ConfigError, unless `unsafe` is set.

    A `task` is a trusted Python file. Each process loads it once, and runs `call` its functions on
    data that is not trusted.

    Example (needs namespaces):

        async with rk.Sandbox(1) as sandbox:
            print((await sandbox.run("print(2 + 2)")).stdout)
    """

    def __init__(
        self,
        num_processes: int = 2,
        *,
        folders: Sequence[Path] = (),
        packages: Sequence[str] = (),
        unsafe: bool = False,
        container: Container | None = None,
        task: Path | None = None,
    ) -> None:
        self.versions = {} if container else _find_versions(packages)
        places = [place for name in self.versions for place in find_places(name)]
        self._paths = [*(str(folder.resolve()) for folder in folders), PACKAGES, *places]
        self._unsafe = unsafe
        self._kind = "isolated"
        self._task = task.resolve() if task else None
        self._container, self._folders = container, [each.resolve() for each in folders]
        self._zygotes = WarmPool(num_processes, self._make)
        self.protections = Protections()

    def _make(self) -> Zygote:
        if self._container and self._kind != "bare":
            return ContainerZygote(self._container, self._folders)
        return Zygote(self._kind, self._paths, self._task)

    async def start(self) -> None:
        """Start the first zygote and test the protections; other zygotes start on demand."""
        if sys.platform != "linux":
            raise ConfigError(self._describe_refusal("it does not run Linux", []))
        refusal = ""
        try:
            await self._zygotes.start(1)
        except SandboxError as error:
            if not self._unsafe:
                raise ConfigError(self._describe_refusal(str(error), [])) from None
            refusal, self._kind = str(error), "bare"
            await self._zygotes.start(1)
        self.protections = await probe_protections(self)
        missing = self.protections.missing
        log.log(logging.WARNING if missing else logging.INFO, "sandbox: %s", self.protections)
        if missing and not self._unsafe:
            await self.close()
            raise ConfigError(self._describe_refusal(refusal, missing))

    def _describe_refusal(self, refusal: str, missing: Sequence[str]) -> str:
        found = refusal or f"missing: {', '.join(missing)}"
        if self._container is not None:
            return (
                f"code that a model wrote cannot be run safely in a container of"
                f" {self._container.image} ({found}). The image needs python3, 3.11 or newer;"
                " container_options adds words to the engine's run"
            )
        return NO_SANDBOX.format(found=found, more="" if self._task else IN_A_CONTAINER)

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
        request = {"task": "", "code": code, "function": function, "starter": starter}
        text = stdin.encode("utf-8", "surrogatepass")
        with_stdout = function is None
        return await self._run(request, arguments, limits, stdin=text, with_stdout=with_stdout)

    async def call(
        self, function: str, *arguments: Any, limits: SandboxLimits = SandboxLimits()
    ) -> SandboxRun:
        """Call a function of the task; raise SandboxError if the sandbox itself fails."""
        return await self._run({"task": function}, arguments, limits)

    async def _run(
        self,
        request: JsonObject,
        arguments: Sequence[Any],
        limits: SandboxLimits,
        *,
        stdin: bytes = b"",
        with_stdout: bool = False,
    ) -> SandboxRun:
        # orjson refuses long integers and lone surrogates
        raw = json.dumps({**request, "arguments": arguments}).encode()
        for is_last in (False, True):
            try:
                async with self._zygotes.lease() as zygote:
                    return await zygote.run(raw, stdin, with_stdout, limits)
            except SandboxError:  # the zygote may have been killed from outside, to free memory
                if is_last or self._zygotes.is_closed:
                    raise
        raise AssertionError

    async def close(self) -> None:
        """Kill every run and every zygote."""
        await self._zygotes.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _find_versions(packages: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in packages:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def find_places(package: str) -> list[str]:
    """What an installed package consists of: folders and files, with those of libraries that its
    wheel has brought."""
    whole = distribution(package)
    names = {Path(file).parts[0] for file in whole.files or []} - {"..", "__pycache__"}
    places = [Path(str(whole.locate_file(name))).resolve() for name in sorted(names)]
    if not places and (spec := find_spec(package)):  # installed without a list of its files
        places = [Path(place).resolve() for place in spec.submodule_search_locations or ()]
    return [str(place) for place in places if place.exists()]


def with_requirements(package: str) -> list[str]:
    """The installed package and all that it requires, by name; nothing if it is not installed."""
    found: list[str] = []
    waiting = [package]
    while waiting:
        name = waiting.pop()
        with suppress(PackageNotFoundError):
            if name not in found:
                needs = [need for need in requires(name) or [] if "extra ==" not in need]
                waiting += [NAME.match(need)[0] for need in needs]  # type: ignore[index]
                found.append(name)
    return found
