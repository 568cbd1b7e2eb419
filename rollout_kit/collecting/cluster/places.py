"""What a place where workers run has: this machine, or the nodes of a Ray cluster."""

import asyncio
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from ...types import JsonObject, Say
from .leases import Leases


@dataclass(frozen=True, slots=True)
class Crew:
    """The workers that are wanted. `invite` makes what a new worker needs to reach the driver."""

    number: int
    invite: Callable[[str], JsonObject]
    leases: Leases
    secrets: Collection[str]
    log_dir: Path | None
    say: Say


class WorkerPlace(Protocol):
    """Context in which workers can be started."""

    host: str
    """The address under which workers reach this machine."""

    def num_workers(self) -> int:
        """As many as there is room for."""
        ...

    def start(self, crew: Crew) -> AbstractAsyncContextManager[list["asyncio.Task[str]"]]:
        """Context with the workers; its tasks end, with the reason, when a worker is given up."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...
