"""The servers of a run: those that are there, or those that it starts for itself."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..config.keys import CollectConfig
from ..errors import ConfigError
from ..launch.reach import Servers
from .given import Given
from .servers import AnyKind, beside, connect, started

Where = Servers | str | Path | Sequence[str | Path]
"""Servers that run, one or several YAML files, or the URL of an `ng_run`."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How a run finds its servers. `keys` are those of `servers`."""

    where: Where | None
    given: Given = field(default_factory=Given)
    keys: dict[str, Any] = field(default_factory=dict[str, Any])
    kind: AnyKind = CollectConfig
    """The command whose servers are started."""

    def check(self) -> None:
        """ConfigError if there are no servers, or keys that could have no effect."""
        paths = self._paths()
        is_known = self.is_running or paths or (self.where is None and self.given)
        if (not is_known and self.where is not None) or not all(_is_path(each) for each in paths):
            raise ConfigError(
                "servers: expected what  async with servers('….yaml') as servers  or connect('http"
                "://…') gives, the name of a YAML file, or the URL of an ng_run, got"
                f" {type(self.where).__name__}; or leave it out and give model= with environment="
                " or verify="
            )
        if self.keys and (self.is_running or not is_known):
            name = next(iter(self.keys))
            raise ConfigError(
                f"{name}: it concerns servers: give it to servers(…, {name}=…), or to the ng_run"
            )
        if not is_known:
            raise ConfigError(
                "servers: none are given, got NoneType; give servers=, such as the name of a YAML"
                " file, or model= with environment= or verify="
            )

    @property
    def is_running(self) -> bool:
        """Whether the servers are there already."""
        return isinstance(self.where, Servers) or self._url() is not None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Servers]:
        """The servers while the context lasts."""
        given, where = self.given, self.where
        if isinstance(where, Servers):
            if where.ended.is_set():
                raise ConfigError(
                    "the servers have stopped: iterate inside their `async with` block"
                )
            async with beside(where, given) if given else nullcontext(where) as found:
                yield found
        elif url := self._url():
            async with connect(url) as running, replace(self, where=running).opened() as found:
                yield found
        else:
            paths = self._paths()
            async with started(paths, given, self.keys, kind=self.kind) as found:
                yield found

    def _url(self) -> str | None:
        where = self.where
        return where if isinstance(where, str) and where.startswith("http://") else None

    def _paths(self) -> Sequence[str | Path]:
        match self.where:
            case str() | Path():
                return [self.where]
            case list() | tuple():
                return self.where
            case _:
                return ()


def _is_path(given: object) -> bool:
    return isinstance(given, str | Path) and bool(str(given))
