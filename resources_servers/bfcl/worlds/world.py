"""Base of the programs: a state that is loaded from a task and can be compared."""

from copy import deepcopy
from typing import Any, ClassVar


class World:
    """Public attributes are the state that counts. Public methods are tools."""

    _defaults: ClassVar[dict[str, Any]] = {}

    def __init__(self, scenario: dict[str, Any], long: dict[str, Any] | None) -> None:
        """`long` has the texts of a task with a long context."""
        self._long = long
        known = deepcopy({**self._defaults, **scenario})
        for name in self._defaults:
            setattr(self, name, known[name])

    def _state(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}
