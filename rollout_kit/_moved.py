"""Import paths of earlier versions, which keep working.

`import rollout_kit.testing` gives the module that is `rollout_kit.api.testing` now. It is the same
object, so its classes and its state exist once.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "rollout_kit.metrics": "rollout_kit.analysis.metrics",
    "rollout_kit.sandbox": "rollout_kit.serving.sandbox",
    "rollout_kit.testing": "rollout_kit.api.testing",
}
"""An earlier module or package -> where it is now. Modules within a package moved with it."""


def home_of(name: str) -> str | None:
    """Where a module of an earlier version is now; None for every other name."""
    if not name.startswith("rollout_kit."):
        return None
    first = ".".join(name.split(".", 2)[:2])
    return MOVED[first] + name[len(first) :] if first in MOVED else None


class MovedFinder:
    """Finds and loads modules under the names that they had in earlier versions."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if home_of(name) else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """The import system makes an empty module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(home_of(module.__name__) or "")


def install() -> None:
    """Let `import` find the earlier names.

    The finder is asked before the folders are: else Python would load a module of a package that
    moved a second time, under the earlier name.
    """
    sys.meta_path.insert(0, MovedFinder())  # type: ignore[arg-type]
