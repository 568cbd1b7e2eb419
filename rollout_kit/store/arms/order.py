"""The order of arms for people: as they were declared, and by their names where that is unknown."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ...types import JsonObject
from ..scope import split_numbers

UNKNOWN = 2**32
"""The place of an arm whose settings no manifest has: behind all others."""

Place = tuple[int, list[str | int]]


@dataclass(frozen=True, slots=True)
class ArmOrder:
    """Where each arm stands; rollouts without an arm come first."""

    _places: dict[str, int] = field(default_factory=dict)

    def add(self, manifest: JsonObject, made: Iterable[tuple[str, str]]) -> None:
        """Take over the order of an output: `made` are its pairs of arm and fingerprint of
        settings, and the manifest has the settings in the order of the arms."""
        known = manifest.get("settings")
        names: list[str] = list(known) if isinstance(known, dict) else []
        places = {name: at for at, name in enumerate(names)}
        for arm, settings in made:
            place = places.get(settings, UNKNOWN)
            self._places[arm] = min(place, self._places.get(arm, UNKNOWN))

    def place_of(self, arm: str) -> Place:
        """To sort by."""
        return (self._places.get(arm, UNKNOWN) if arm else -1), split_numbers(arm)
