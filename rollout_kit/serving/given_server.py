"""Servers that a program gives as objects or classes.

They are instances like those of YAML, so the same code wires, checks, describes and places them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError
from ..types import JsonObject
from .service import ServerRef, Service
from .transport.peers import Peers


@dataclass(frozen=True, slots=True)
class GivenServer:
    """A class, which is created with the settings of its instance, or a `service` that is there."""

    cls: type[Service]
    service: Service | None = None

    @classmethod
    def of(cls, given: Any, kind: type[Service], what: str) -> GivenServer:
        """A server of one kind; ConfigError for anything else. `what` names the argument."""
        if isinstance(given, type) and issubclass(given, kind):
            return cls(given)
        if isinstance(given, kind):
            return cls(type(given), given)
        found = given.__name__ if isinstance(given, type) else type(given).__name__
        raise ConfigError(f"{what}: expected a {kind.__name__}, or a class of one, got {found}")

    @property
    def name(self) -> str:
        """The name that its object has, or else the name of its class."""
        return (self.service.name if self.service else "") or self.cls.__name__

    def settings(self) -> JsonObject:
        """Those that the object was made with."""
        if self.service is None:
            return {}
        return self.service.config.model_dump(mode="json", exclude_unset=True)

    def make(
        self, settings: JsonObject, secrets: Iterable[str], peers: Peers, name: str
    ) -> Service:
        """The server, which reaches others by `peers`."""
        if self.service is None:
            return self.cls(self.cls.Config.of(settings, secrets), peers, name)
        service = self.service
        service.peers, service.name = peers, name
        refs = {
            key: ServerRef.model_validate(settings[key])
            for key in type(service.config).model_fields
            if isinstance(ref := settings.get(key), dict) and set(ref) == {"type", "name"}
        }
        service.config = service.config.model_copy(update=refs)
        return service
