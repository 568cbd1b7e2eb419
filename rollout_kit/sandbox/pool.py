"""Run code that a model wrote, each time in a fork of a prepared, isolated interpreter.

The code controls its own output, so callers compare the output themselves and never trust a
verdict computed inside a run.
"""

import json
import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from ..errors import ConfigError
from ..workers.warm import WarmPool
from .container import Container, ContainerZygote
from .keeper import Zygote
from .limits import SandboxError, SandboxLimits, SandboxRun
from .protections import Protections, probe_protections
from .zygote import PACKAGES

log = logging.getLogger(__name__)


class Sandbox:
    """Executes at most `num_processes` runs at a time, each in a zygote of its own.

    Runs may read and import from `folders`, and import those of the `packages` that are installed
    here; `versions` has them. With a `container`, runs import what its image has. If an essential
    protection does not work, `start` raises ConfigError, unless `unsafe` is set.
    """

    def __init__(
        self,
        num_processes: int = 2,
        *,
        folders: Sequence[Path] = (),
        packages: Sequence[str] = (),
        unsafe: bool = False,
        container: Container | None = None,
    ) -> None:
        self.versions = {} if container else _find_versions(packages)
        places = [place for name in self.versions for place in _find_places(name)]
        self._paths = [*(str(folder.resolve()) for folder in folders), PACKAGES, *places]
        self._unsafe = unsafe
        self._kind = "isolated"
        self._container, self._folders = container, [each.resolve() for each in folders]
        self._zygotes = WarmPool(num_processes, self._make)
        self.protections = Protections()

    def _make(self) -> Zygote:
        if self._container and self._kind != "bare":
            return ContainerZygote(self._container, self._folders)
        return Zygote(self._kind, self._paths)

    async def start(self) -> None:
        """Start the first zygote and test the protections; other zygotes start on demand."""
        if sys.platform != "linux":
            raise ConfigError(_describe_refusal("it does not run Linux", []))
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
        if self._container is None:
            return _describe_refusal(refusal, missing)
        found = refusal or f"missing: {', '.join(missing)}"
        return (
            f"code that a model wrote cannot be run safely in a container of"
            f" {self._container.image} ({found}). The image needs python3, 3.11 or newer;"
            " container_options adds words to the engine's run"
        )

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


def _find_versions(packages: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in packages:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _find_places(package: str) -> list[str]:
    """The folder of an installed package, and that of the libraries that its wheel has brought."""
    spec = find_spec(package)
    places = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
    places += [place.with_name(f"{place.name}.libs") for place in places]
    return [str(place.resolve()) for place in places if place.is_dir()]


def _describe_refusal(refusal: str, missing: Sequence[str]) -> str:
    found = refusal or f"missing: {', '.join(missing)}"
    return (
        f"code that a model wrote cannot be run safely on this machine ({found}). The sandbox "
        "needs user namespaces, or root with CAP_SYS_ADMIN; in Docker: docker run "
        "--security-opt seccomp=unconfined --security-opt apparmor=unconfined. With Podman or "
        "Docker, container_image: python:3.12-slim runs it in a container. To run the code "
        "without a sandbox, with all rights of this process: +unsafe_code=true"
    )
