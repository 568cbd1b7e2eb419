"""Packages that a peer imports and that are not installed, in an environment of that peer.

It runs under the peer's interpreter, next to the children that import it.
"""

import sys
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock


class Replacing:
    """Finds the packages of these names as objects that take any call."""

    def __init__(self, names):
        self._names = names

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self._names:
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = MagicMock()
        module.__path__, module.__spec__ = [], spec
        return module

    def exec_module(self, module):
        """There is no code."""


def replace(*names, is_first=True):
    """Import these packages as objects that take any call: even if they are installed, or only
    where they are not."""
    finder = Replacing(names)
    sys.meta_path.insert(0, finder) if is_first else sys.meta_path.append(finder)
